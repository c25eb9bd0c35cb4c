// Sliders, and the theory's curves for them. The page has no formulas of its own: psring's cost models say, for a
// gradient of one byte, how many messages, link bytes, medium bytes and added bytes a scheme needs (theoryData), and
//   seconds = messages a + max(link M/B, medium M/B of the medium) + added M g,
// where a pipelined server adds while it moves: the larger of the two counts.

const SLIDERS = {
  bandwidth: {low: 1e6, high: 1e11, text: (v) => bytesText(v) + '/s'},
  latency: {low: 1e-7, high: 1e-1, text: secondsText},
  gradient: {low: 1e3, high: 1e10, text: bytesText},
};

// What the reader set; shared with the stepper. Begins with the run's own numbers.
const wish = {};

function runWires(run) {
  const link = (run.manifest && run.manifest.link) || {}, wires = link.wires || link.loopback || {};
  const megabytesPerS = wires.mb_per_s || wires.connection_mb_per_s;
  return {
    bandwidth: isNumber(megabytesPerS) && megabytesPerS > 0 ? megabytesPerS * 1e6 : 1.25e9,
    latency: isNumber(wires.latency_us) && wires.latency_us > 0 ? wires.latency_us * 1e-6 : 5e-5,
    adding: isNumber(wires.add_gb_per_s) && wires.add_gb_per_s > 0 ? 1e-9 / wires.add_gb_per_s : 1e-10,
    medium_rate: isNumber(wires.all_connections_mb_per_s) && wires.all_connections_mb_per_s > 0 ? wires.all_connections_mb_per_s * 1e6 : 0,
  };
}

function resetWish(run) {
  const row = rowsOf(run).find((r) => r.parameters > 0);
  const counts = rowsOf(run).map((r) => r.workers);
  const wires = runWires(run);
  Object.assign(wish, wires, {gradient: row ? row.parameters * 4 : 25e6, shared: wires.medium_rate > 0, servers: 0, placement: 'rank0', pipelined: true,
    most: Math.max(8, ...counts.filter((n) => n <= 64)), log: true, ranks: wish.ranks});
}

function seconds([messages, link, medium, added], overlaps) {
  const mediumTime = wish.shared && wish.medium_rate > 0 ? medium * wish.gradient / wish.medium_rate : 0;
  const move = Math.max(link * wish.gradient / wish.bandwidth, mediumTime), add = added * wish.gradient * wish.adding;
  return messages * wish.latency + (overlaps ? Math.max(move, add) : move + add);
}

// Seconds by number of workers, from 2.
function theoryCurves(theoryData) {
  const curves = {};
  for (const [name, terms] of Object.entries(theoryData.schemes)) curves[name] = terms.map((term) => seconds(term, false));
  const server = theoryData.server[wish.placement][wish.pipelined ? 'pipelined' : 'serial'][wish.servers];
  curves['ps-sync'] = server.map((term) => seconds(term, wish.pipelined));
  return curves;
}

// A slider over powers of ten.
function logSlider(name, changed) {
  const {low, high, text} = SLIDERS[name];
  const output = make('output', {for: `slider-${name}`}, text(wish[name]));
  const input = make('input', {type: 'range', id: `slider-${name}`, min: 0, max: 1000, value: Math.round(1000 * Math.log(wish[name] / low) / Math.log(high / low)), 'aria-valuetext': text(wish[name]),
    oninput: (event) => {
      wish[name] = low * Math.pow(high / low, event.target.value / 1000);
      output.textContent = text(wish[name]);
      input.setAttribute('aria-valuetext', text(wish[name]));
      changed();
    }});
  return make('label', {}, `${t(name)} `, input, ' ', output);
}

function stepSlider(name, values, get, set, changed) {
  const output = make('output', {}, String(values[get()]));
  return make('label', {}, `${t(name)} `, make('input', {type: 'range', id: `slider-${name}`, min: 0, max: values.length - 1, value: get(),
    oninput: (event) => { set(+event.target.value); output.textContent = String(values[get()]); changed(); }}), ' ', output);
}

function tick(name, key, changed) {
  const box = make('input', {type: 'checkbox', id: `tick-${name}`, onchange: (event) => { wish[key] = event.target.checked; changed(); }});
  box.checked = wish[key];
  return make('label', {}, box, ` ${t(name)}`);
}

function drawTheory(parent, run, theoryData, changedElsewhere, redraw) {
  parent.append(make('p', {}, t('theory_intro')));
  const chart = make('div', {class: 'grid'}), verdict = make('p', {id: 'verdict', 'aria-live': 'polite'});
  const update = () => { chart.replaceChildren(); drawCurves(chart, verdict, run, theoryData); changedElsewhere(); };
  const mostValues = [4, 8, 16, 32, 64];
  const placement = make('select', {id: 'placement', onchange: (event) => { wish.placement = event.target.value; update(); }});
  for (const place of Object.keys(theoryData.server)) placement.append(make('option', {value: place}, t(place)));
  placement.value = wish.placement;
  if (!mostValues.includes(wish.most)) wish.most = mostValues.find((v) => v >= wish.most) || 64;
  parent.append(make('div', {class: 'controls'},
    ...Object.keys(SLIDERS).map((name) => logSlider(name, update)),
    stepSlider('most_workers', mostValues, () => mostValues.indexOf(wish.most), (i) => { wish.most = mostValues[i]; }, update),
    stepSlider('servers', theoryData.servers, () => wish.servers, (i) => { wish.servers = i; }, update),
    make('label', {}, `${t('placement')} `, placement), tick('pipelined', 'pipelined', update),
    wish.medium_rate > 0 ? tick('medium', 'shared', update) : null, tick('log_y', 'log', update),
    make('button', {type: 'button', id: 'reset', onclick: () => { resetWish(run); redraw('reset'); }}, t('reset'))));
  parent.append(chart, verdict, make('h3', {}, t('why_title')), make('p', {id: 'why'}, t('why')), make('h3', {}, t('async_title')), make('p', {}, t('async_why')));
  drawCurves(chart, verdict, run, theoryData);
}

function drawCurves(parent, verdict, run, theoryData) {
  const curves = theoryCurves(theoryData), names = Object.keys(curves);
  const label = (name) => (name === 'ps-sync' ? t('server_name') : name);
  const points = (name) => curves[name].slice(0, wish.most).map((s, i) => ({x: i + 1, y: s})).filter((p) => p.x >= 2);
  const measured = rowsOf(run).filter((row) => communicates(row) && row.basis !== 'simulated' && !(row.servers > 1) && names.includes(row.strategy) && row.workers <= wish.most && moving(row) > 0);
  const rows = [].concat(...names.map((name) => points(name).map((p) => ({basis: 'computed', scheme: name, workers: p.x, seconds: p.y}))),
    measured.map((row) => ({basis: 'measured', scheme: row.strategy, workers: row.workers, seconds: moving(row) / 1e3})));
  figure(parent, {id: 'curves', wide: true, title: t('theory_title'), height: 380, rows,
    note: t('theory_note', SLIDERS.bandwidth.text(wish.bandwidth), secondsText(wish.latency), bytesText(wish.gradient), `${t('simulated')}. ${t('caption', run.run_id, '')}`),
    legend: [...names.map((name) => ({label: label(name), colour: colourOf(name), dashed: true})), {label: t('measured'), colour: 'var(--ink)', mark: 'circle', alone: true}],
    draw: (svg, width, height) => {
      const values = rows.map((row) => row.seconds * 1e3).filter((v) => v > 0), low = d3.min(values), high = d3.max(values);
      const x = d3.scale.linear().domain([2, wish.most]), y = wish.log ? d3.scale.log().domain([low * 0.8, high * 1.2]) : d3.scale.linear().domain([0, high * 1.05]);
      const plot = axes(svg, width, height, x, y, {xLabel: t('workers'), yLabel: t('ms'), yTicks: wish.log ? logTicks(low * 0.8, high * 1.2) : null});
      for (const name of names) {
        plot.append('path').attr('class', 'theory').attr('d', d3.svg.line().x((p) => x(p.x)).y((p) => y(p.y * 1e3))(points(name))).style({fill: 'none', stroke: colourOf(name), 'stroke-width': 2.2})
          .append('title').text(label(name));
      }
      for (const row of measured) mark(plot, markOf(row.strategy), x(row.workers), y(moving(row)), colourOf(row.strategy), crowded(run, row), `${rowName(row)} ${t('measured')}: ${brief(moving(row))} ms`);
    }});
  const at = wish.most - 1, order = names.slice().sort((a, b) => curves[a][at] - curves[b][at]);
  verdict.textContent = t('verdict', wish.most, order.map((name) => `${label(name)} ${secondsText(curves[name][at])}`).join(', '), brief(curves['ps-sync'][at] / curves.ring[at])) + (wish.shared && wish.medium_rate > 0 ? t('medium_hint') : '');
}
