// The sliders and their values, shared by the theory's charts and the stepper. psring's cost models give, for a gradient of
// one byte, the messages, link bytes, medium bytes and added bytes of a scheme (theoryData), and
//   seconds = messages a + max(link M/B, medium M/B of the medium) + added M g,
// where servers add while pushes are in flight: the entire transfer if pipelined, else half of it. For servers this is the
// law for large gradients, with infinitely many buckets.

const SLIDERS = {
  bandwidth: {low: 1e6, high: 1e11, text: (v) => bytesText(v) + '/s'},
  latency: {low: 1e-7, high: 1e-1, text: secondsText},
  gradient: {low: 1e3, high: 1e10, text: bytesText},
  bucket: {low: 1e5, high: 1e9, text: bytesText},
};

// Starts with the run's own numbers.
const wish = {};

function runWires(run) {
  const link = (run.manifest && run.manifest.link) || {}, wires = link.wires || link.loopback || {};
  const asked = rowsOf(run).find((row) => row.link_mbps > 0);  // predictions have no measured rate
  const megabytesPerS = wires.mb_per_s || wires.connection_mb_per_s || (asked ? asked.link_mbps / 8 : 0);
  return {
    bandwidth: isNumber(megabytesPerS) && megabytesPerS > 0 ? megabytesPerS * 1e6 : 1.25e9,
    latency: isNumber(wires.latency_us) && wires.latency_us > 0 ? wires.latency_us * 1e-6 : 5e-5,
    adding: isNumber(wires.add_gb_per_s) && wires.add_gb_per_s > 0 ? 1e-9 / wires.add_gb_per_s : 1e-10,
    medium_rate: isNumber(wires.all_connections_mb_per_s) && wires.all_connections_mb_per_s > 0
        ? wires.all_connections_mb_per_s * 1e6 : 0,
  };
}

const gradientOf = (run) => { const row = rowsOf(run).find((r) => r.parameters > 0); return row ? row.parameters * 4 : 0; };

function resetWish(run) {
  const rows = rowsOf(run), wires = runWires(run), computing = rows.find((r) => r.plain === 'none' && r.compute_ms > 0) ||
      rows.find((r) => r.compute_ms > 0);
  // The run's servers with the most workers.
  const server = rows.filter((r) => r.plain === 'ps-sync' && r.workers > 1).pop() || {servers: 1};
  const sized = rows.find((r) => r.bucket_mb > 0);
  Object.assign(wish, wires, {gradient: gradientOf(run) || 25e6, shared: wires.medium_rate > 0,
    servers: Math.max(0, DATA.theory.servers.indexOf(server.servers)), placement: server.placement || 'rank0',
    pipelined: server.ps_schedule !== 'serial',
    bucket: sized ? Math.min(1e9, sized.bucket_mb * 1048576) : 26214400, compute: computing ? computing.compute_ms * 1e-3 : 0.05,
    rule: 5, spread: 1, most: Math.max(8, ...rows.map((r) => r.workers).filter((n) => n <= 64)), log: true, ranks: wish.ranks,
        measured: wish.measured});
}

function seconds([messages, link, medium, added], adding = 0, bytes = wish.gradient) {
  const mediumTime = wish.shared && wish.medium_rate > 0 ? medium * bytes / wish.medium_rate : 0;
  const move = Math.max(link * bytes / wish.bandwidth, mediumTime), add = added * bytes * wish.adding;
  return messages * wish.latency + Math.max(move, (1 - adding) * move + add);
}

const serverTerms = (theoryData) => theoryData.server[wish.placement][wish.pipelined ? 'pipelined' : 'serial'][wish.servers];

// One exchange of `bytes` between `workers`.
const ringSeconds = (theoryData, workers, bytes) => seconds(theoryData.schemes.ring[workers - 1], 0, bytes);
const serverAdds = () => (wish.pipelined ? 1 : 0.5);  // the part of the transfer during which servers add
const serverSeconds = (theoryData, workers, bytes) => seconds(serverTerms(theoryData)[workers - 1], serverAdds(), bytes);

// Seconds by number of workers, from 1.
function theoryCurves(theoryData) {
  const curves = {};
  for (const [name, terms] of Object.entries(theoryData.schemes)) curves[name] = terms.map((term) => seconds(term));
  curves['ps-sync'] = serverTerms(theoryData).map((term) => seconds(term, serverAdds()));
  return curves;
}

// `move` gets the slider's value; `textOf` says what it stands for.
function slider(name, attributes, textOf, move) {
  const output = make('output', {for: `slider-${name}`}, textOf());
  const input = make('input', {type: 'range', id: `slider-${name}`, ...attributes, 'aria-valuetext': textOf(), oninput: (event) => {
    move(+event.target.value);
    output.textContent = textOf();
    input.setAttribute('aria-valuetext', textOf());
  }});
  return labelled(t(name), input, ' ', output);
}

// Over powers of ten.
function logSlider(name, changed) {
  const {low, high, text} = SLIDERS[name];
  return slider(name, {min: 0, max: 1000, value: Math.round(1000 * Math.log(wish[name] / low) / Math.log(high / low))}, () => text(wish[name]),
      (value) => { wish[name] = low * Math.pow(high / low, value / 1000); changed(); });
}

const stepSlider = (name, values, get, set, changed) => slider(name, {min: 0, max: values.length - 1, value: get()}, () => String(values[get()]),
    (value) => { set(value); changed(); });

function tick(name, key, changed, id = `tick-${name}`) {
  const box = make('input', {type: 'checkbox', id,
      onchange: (event) => { wish[key] = event.target.checked; changed(); }});
  box.checked = wish[key];
  return make('label', {}, box, ` ${t(name)}`);
}
