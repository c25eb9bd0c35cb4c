// The charts under the sliders: time against workers, the map, buckets, waiting.

function drawTheory(parent, run, data, changedElsewhere, redraw) {
  const theoryData = data.theory;
  parent.append(make('p', {}, t('theory_intro')));
  const charts = make('div', {class: 'grid'}), verdict = make('p', {id: 'verdict', 'aria-live': 'polite'});
  const drawAll = () => {
    charts.replaceChildren();
    drawCurves(charts, verdict, run, theoryData);
    drawMap(charts, run, theoryData);
    drawBuckets(charts, run, theoryData);
    drawWaiting(charts, run, data.waiting);
  };
  const update = () => { drawAll(); changedElsewhere(); };
  const mostValues = [4, 8, 16, 32, 64], places = Object.keys(theoryData.server), {rules} = data.waiting;
  if (!mostValues.includes(wish.most)) wish.most = mostValues.find((v) => v >= wish.most) || 64;
  parent.append(make('div', {class: 'controls', id: 'theory-controls'},
    ...Object.keys(SLIDERS).map((name) => logSlider(name, update)),
    stepSlider('most_workers', mostValues, () => mostValues.indexOf(wish.most), (i) => { wish.most = mostValues[i]; }, update),
    stepSlider('servers', theoryData.servers, () => wish.servers, (i) => { wish.servers = i; }, update),
    stepSlider('bound', rules.map(ruleText), () => wish.rule, (i) => { wish.rule = i; }, update),
    labelled(t('placement'), choice('placement', places, wish.placement, places.map((place) => t(place)),
        (value) => { wish.placement = value; update(); })),
    labelled(t('spread'), choice('spread', data.waiting.spreads.map((_, i) => i), wish.spread,
        data.waiting.spreads.map((name) => t(`spread_${name}`)), (value) => { wish.spread = +value; update(); })),
    tick('pipelined', 'pipelined', update), wish.medium_rate > 0 ? tick('medium', 'shared', update) : null,
    tick('log_y', 'log', update), button('reset', t('reset'), () => { resetWish(run); redraw('reset'); })));
  parent.append(verdict, charts);
  drawAll();
}

function drawCurves(parent, verdict, run, theoryData) {
  const curves = theoryCurves(theoryData), names = Object.keys(curves);
  const label = (name) => (name === 'ps-sync' ? serversText(theoryData) : name);
  const points = (name) => curves[name].slice(0, wish.most).map((s, i) => ({x: i + 1, y: s})).filter((p) => p.x >= 2);
  const measured = rowsOf(run).filter((row) => communicates(row) && row.basis !== 'simulated' && !(row.servers > 1) &&
      names.includes(row.strategy) && row.workers <= wish.most && moving(row) > 0);
  const rowOf = (basis, scheme, workers, seconds) => ({run_id: run.run_id, basis, scheme, workers, seconds});
  const rows = [...names.flatMap((name) => points(name).map((p) => rowOf('computed', name, p.x, p.y))),
    ...measured.map((row) => rowOf('measured', row.strategy, row.workers, moving(row) / 1e3))];
  figure(parent, {id: 'curves', wide: true, title: t('theory_title'), height: 380, rows,
    note: t('theory_note', SLIDERS.bandwidth.text(wish.bandwidth), secondsText(wish.latency), bytesText(wish.gradient),
        `${t('simulated')}. ${captionOf(run)}`),
    legend: [...names.map((name) => ({label: label(name), colour: colourOf(name), dashed: true})),
        {label: t('measured'), colour: 'var(--ink)', mark: 'circle', alone: true}],
    draw: (svg, width, height) => {
      const values = rows.map((row) => row.seconds * 1e3).filter((v) => v > 0), low = d3.min(values), high = d3.max(values);
      const x = d3.scale.linear().domain([2, wish.most]), y = wish.log ? d3.scale.log().domain([low * 0.8, high * 1.2])
          : d3.scale.linear().domain([0, high * 1.05]);
      const plot = axes(svg, width, height, x, y, {xLabel: t('workers'), yLabel: t('ms'), yTicks: wish.log
          ? logTicks(low * 0.8, high * 1.2) : null});
      for (const name of names) {
        plot.append('path').attr('class', 'theory').attr('d', d3.svg.line().x((p) => x(p.x)).y((p) => y(p.y * 1e3))(points(name)))
            .style({fill: 'none', stroke: colourOf(name), 'stroke-width': 2.2})
          .append('title').text(label(name));
      }
      for (const row of measured) mark(plot, markOf(row.strategy), x(row.workers), y(moving(row)), colourOf(row.strategy),
          crowded(run, row), `${rowName(row)} ${t('measured')}: ${brief(moving(row))} ms`);
    }});
  const at = wish.most - 1, order = names.slice().sort((a, b) => curves[a][at] - curves[b][at]);
  verdict.textContent = t('verdict', wish.most, order.map((name) => `${label(name)} ${secondsText(curves[name][at])}`).join(', '),
      brief(curves['ps-sync'][at] / curves.ring[at])) + (wish.shared && wish.medium_rate > 0 ? t('medium_hint') : '');
}
