// When a server is faster: a decision table, and the sliders with the charts that they move.

// Cases of the decision table. `wish`: the sliders' values that show the case on the map; `go`: the part that shows it.
const CASES = [
  {id: 'large', wish: {gradient: 1e8, servers: 0, placement: 'dedicated'}},
  {id: 'small', wish: {gradient: 1e4, servers: 0, placement: 'dedicated'}},
  {id: 'servers', wish: {gradient: 1e8, placement: 'dedicated', all: true}},
  {id: 'colocated', wish: {gradient: 1e8, placement: 'colocated', all: true}},
  {id: 'sparse', wish: {gradient: 1e6, servers: 0, placement: 'dedicated'}},
  {id: 'stragglers', go: 'asynchronous'},
];

// Opens a part of the page and shows it.
function openPart(id) {
  document.getElementById(id).open = true;
  drawOpen();
  document.getElementById(id).scrollIntoView();
}

function drawTheory(parent, run) {
  const theoryData = DATA.theory, charts = make('div', {class: 'grid'}), verdict = make('p', {id: 'verdict', 'aria-live': 'polite'});
  const update = () => {
    charts.replaceChildren();
    drawMap(charts, run, theoryData);
    drawCurves(charts, verdict, run, theoryData);
  };
  askQuestions(parent, run, 'ratio', 'small');
  parent.append(scrollTable({id: 'cases', class: 'words'}, t('part_choose'), [t('case'), t('use'), t('because'), t('case_here')], CASES.map(({id, wish: values, go}) =>
      [rowHead(t(`case_${id}`)), t(`use_${id}`), t(`because_${id}`), make('td', {}, button(`show-${id}`, t(go ? 'case_go' : 'case_show'), () => {
        if (go) {
          openPart(go);
          return;
        }
        const {all, ...others} = values;
        Object.assign(wish, others, all ? {servers: theoryData.servers.indexOf(wish.most)} : {});
        redraw('theory', `show-${id}`);
        document.getElementById('map').scrollIntoView();
      }))])));
  drawFactors(parent, run);
  const mostValues = [4, 8, 16, 32, 64], places = Object.keys(theoryData.server);
  if (!mostValues.includes(wish.most)) wish.most = mostValues.find((v) => v >= wish.most) || 64;
  paragraphs(parent, 'theory_intro');
  if (rowsOf(run).some((row) => row.has_tables)) parent.append(make('p', {class: 'note'}, t('map_tables')));
  const served = rowsOf(run).filter((row) => row.plain === 'ps-sync' && row.ps_schedule === 'pipelined' && row.predicted_comm_ms > 0 && row.workers > 1 && !row.has_tables);
  const buckets = served.length ? served[0].buckets.length : 0;
  if (buckets > 0 && buckets < 4) parent.append(here('here_buckets', served.map((row) => [row, 'predicted_comm_ms']), buckets,
      served.map((row) => `${rowName(row)}: ${brief(row.predicted_comm_ms)} ms`).join(t('semicolon'))));
  parent.append(make('div', {class: 'controls', id: 'theory-controls'},
    ...['bandwidth', 'latency', 'gradient'].map((name) => logSlider(name, update)),
    stepSlider('most_workers', mostValues, () => mostValues.indexOf(wish.most), (i) => { wish.most = mostValues[i]; }, update),
    stepSlider('servers', theoryData.servers, () => wish.servers, (i) => { wish.servers = i; }, update),
    labelled(t('placement'), choice('placement', places, wish.placement, places.map((place) => t(place)),
        (value) => { wish.placement = value; update(); })),
    tick('pipelined', 'pipelined', update), wish.medium_rate > 0 ? tick('medium', 'shared', update) : null,
    button('reset', t('reset'), () => { resetWish(run); redraw('theory', 'reset'); })), verdict, charts);
  update();
}

// The only place that compares theory, exchange and step of a server and a ring; others refer to it.
const mostDuels = (run) => [...duelsOf(run), ...duelsOf(run, 'simulated')].slice(-2);
function drawFactors(parent, run) {
  const duels = mostDuels(run), ratios = duels.map(ratiosOf), simulated = duels.some((duel) => duel.basis === 'simulated'), basis = duels.length && t(simulated ? 'simulated_word' : 'measured');
  const cell = (row) => (row ? t('ratio_cell', row.ratio.toFixed(2), ...[row.server, row.ring].map((value) => brief(row.id === 'step' ? 1 / value : value))) : '');
  const equal = duels.every(({ring_row: {compute_ms: one}, server_row: {compute_ms: other}}) => Math.abs(one - other) <= 0.1 * Math.min(one, other));
  const of = (rows, id) => rows.find((row) => row.id === id) || {};
  const shorter = ratios.some((rows) => ['server', 'ring'].some((way) => of(rows, 'exchange')[way] < of(rows, 'buckets')[way]));
  const nameOf = (id) => (id === 'exchange' && (simulated || shorter) ? `ratio_exchange_${simulated ? 'simulated' : 'shorter'}` : id === 'step' && !equal ? 'ratio_step_unequal' : `ratio_${id}`);
  const ids = ['law', 'buckets', 'exchange', 'step'].filter((id) => ratios.some((rows) => rows.some((row) => row.id === id)));
  if (ids.length) parent.append(make('h4', {}, t('ratios')), scrollTable({id: 'ratios', class: 'words'}, t('ratios'),
      ['', ...duels.map((duel) => t('ratios_workers', duel.workers, placedText(duel)))],
      ids.map((id) => [rowHead(t(nameOf(id), basis)), ...ratios.map((rows) => cell(rows.find((row) => row.id === id)))])));
}

function drawCurves(parent, verdict, run, theoryData) {
  const curves = theoryCurves(theoryData), names = Object.keys(curves);
  const points = (name) => curves[name].slice(0, wish.most).map((s, i) => ({x: i + 1, y: s})).filter((p) => p.x >= 2);
  const ran = rowsOf(run).filter((row) => communicates(row) && !row.has_tables && names.includes(row.plain) && row.workers <= wish.most && moving(row) > 0);
  const rowOf = (basis, scheme, workers, time) => ({run_id: run.run_id, basis, scheme, workers, seconds: time});
  const rows = [...names.flatMap((name) => points(name).map((p) => rowOf('derived', name, p.x, p.y))),
    ...ran.map((row) => rowOf(row.basis, row.plain, row.workers, moving(row) / 1e3)),
    ...ran.filter((row) => row.predicted_comm_ms > 0).map((row) => rowOf('derived', `${row.plain}, the run's buckets`, row.workers, row.predicted_comm_ms / 1e3))];
  figure(parent, {id: 'curves', wide: true, title: t('theory_title'), height: 400, rows,
    note: t('theory_note', SLIDERS.bandwidth.text(wish.bandwidth), secondsText(wish.latency), bytesText(wish.gradient), captionOf(run)),
    draw: (svg, width, height) => {
      const values = rows.map((row) => row.seconds * 1e3).filter((v) => v > 0), low = d3.min(values) * 0.8, high = d3.max(values) * 1.2;
      const x = d3.scale.log().domain([2, wish.most]), y = d3.scale.log().domain([low, high]);
      const right = labelWidth(names, width);
      const plot = axes(svg, width, height, x, y, {xLabel: t('workers'), yLabel: t('ms'), yTicks: logTicks(low, high), right,
          xTicks: [2, 4, 8, 16, 32, 64].filter((n) => n <= wish.most), xFormat: String});
      for (const name of names) drawCurve(plot, points(name), (p) => x(p.x), (p) => y(p.y * 1e3), name).append('title').text(name);
      for (const row of ran) mark(plot, markOf(row.plain), x(row.workers), y(moving(row)), colourOf(row.plain),
          row.basis === 'simulated' || crowded(run, row), `${rowName(row)}: ${brief(moving(row))} ms`);
      for (const row of ran.filter((r) => r.predicted_comm_ms > 0)) plot.append('line').style({stroke: colourOf(row.plain), 'stroke-width': 2})
          .attr({x1: x(row.workers) - 9, x2: x(row.workers) + 9, y1: y(row.predicted_comm_ms), y2: y(row.predicted_comm_ms)})
        .append('title').text(`${rowName(row)}: ${t('theory_line')} ${brief(row.predicted_comm_ms)} ms`);
      directLabels(plot, width - right + 2, [22, height - 42], names.map((name) => ({name, text: name, y: y(curves[name][wish.most - 1] * 1e3)})));
    }});
  const at = wish.most - 1, order = names.slice().sort((a, b) => curves[a][at] - curves[b][at]);
  verdict.textContent = t('verdict', wish.most, order.map((name) => `${name} ${secondsText(curves[name][at])}`).join(t('comma'))) + (wish.shared && wish.medium_rate > 0 ? t('medium_hint') : '') +
      (language === 'zh' ? '' : ' ') + t('theory_far', 64, ...[theoryData.schemes.ring, serverTerms(theoryData)].map((terms) => bytesText(terms[63][1] * wish.gradient)),
      ...['ring', 'ps-sync'].map((name) => secondsText(curves[name][63])));
}
