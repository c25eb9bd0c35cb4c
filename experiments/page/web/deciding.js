// The main charts. Every value comes from the run folder unchanged.

// Whether workers divide the matrices of each replica.
const isDivided = ({layout}) => /[tc]p/.test(layout || '');
// "ring", "ps-sync"; of a pipeline "dp2xpp4 1f1b", with divided matrices "dp2xtp2".
const plainName = (row) => (row.program ? `${row.layout} ${row.program}` : isDivided(row) ? row.layout : row.strategy);
// "ps-sync, 2 servers", "ps-async (uneven)".
const withServers = (row) => `${plainName(row)}${row.servers > 1 ? `, ${row.servers} ${t('servers_word')}` : ''}${isUneven(row) ? ` (${t('uneven')})` : ''}`;

// Whether one worker of an asynchronous strategy has more than 1.5/N of the samples: its speed is then not that of the strategy.
const isUneven = ({most_samples_share, workers}) => most_samples_share * workers > 1.5;
// "One worker makes 84% of the samples of ps-async × 4.", or nothing.
const unevenText = (row) => (isUneven(row) ? t('uneven_share', `${row.plain || row.strategy} × ${row.workers}`, Math.round(100 * row.most_samples_share)) : '');

// Classes of memory with their colours; and the worker with the most of all together, of valid ones, or nothing.
const MEMORY = [['params_mb', 'var(--c0)'], ['grads_mb', 'var(--c1)'], ['optimizer_mb', 'var(--c2)'], ['activations_mb', 'var(--c5)']];
// The links of a layout that a worker's bytes load; a row without layouts sends to replicas only, and older rows have no sequences.
const LINKS = [['replicas', 'var(--c0)'], ['stages', 'var(--c5)'], ['tensors', 'var(--c2)'], ['sequences', 'var(--c3)']];
const bytesByLink = ({links, payload_tx_bytes_per_worker}) => {
  const given = {sequences: 0, ...links};
  return LINKS.every(([link]) => isNumber(given[link])) ? given
      : {replicas: payload_tx_bytes_per_worker, stages: 0, tensors: 0, sequences: 0};
};
const allMemory = (worker) => d3.sum(MEMORY, ([part]) => worker[part]);
const mostMemory = (workers) => (Array.isArray(workers) ? workers : []).filter((worker) => worker && MEMORY.every(([part]) => isNumber(worker[part])))
    .sort((a, b) => allMemory(b) - allMemory(a))[0];

// A run's rows as plain objects, without malformed ones. Names include the number of servers, the learning rate, a pipeline's
// micro-batches and cut, and "simulated" if rows differ in them. `plain`: the strategy's name in other files, or the layout's. `pushes`: number of pushes by staleness.
// `memory`: by class, of the worker with the most. `has_tables`: of which rows are exchanged, so that bytes and times do not follow from `parameters`.
function rowsOf(run) {
  const rows = (run.summary || []).filter((row) => row.figures && isNumber(row.figures.workers)).map((row) => ({
    ...row.figures, has_tables: row.has_tables === true, plain: plainName(row.figures), basis_of: row.basis || {}, rounds: row.rounds || {},
    intervals: row.intervals || {}, accuracy: row.accuracy, each: (row.workers || {}).figures, memory: mostMemory((row.memory || {}).measured), links: row.links,
    pushes: (row.staleness_histogram || {}).pushes, buckets: numbersOf((row.buckets || {}).bytes)}));
  const alike = (row, other) => ['plain', 'workers', 'servers'].every((key) => row[key] === other[key]);
  const mixed = rows.some((row) => row.basis === 'simulated') && rows.some((row) => row.basis !== 'simulated');
  return rows.map((row) => {
    const differs = (key) => rows.some((other) => alike(row, other) && other[key] !== row[key]);
    return {...row, strategy: `${withServers(row)}${differs('lr') ? `, lr ${row.lr}` : ''}` +
      (row.program && differs('micro_batches') ? ` m${row.micro_batches}` : '') +
      (row.cuts && differs('cuts') ? ` ${t('cut_word')} ${row.cuts}` : '') +
      (mixed && row.basis === 'simulated' ? ` (${t('simulated_word')})` : '')};
  });
}
const columns = (row, ...names) => Object.fromEntries(names.map((name) => [name, row[name]]));
// Identifies an exported row, with the names of the run folder.
const identity = (run, row) => ({run_id: run.run_id, strategy: row.plain, ...columns(row, 'workers', 'servers', 'lr', 'basis')});
const exported = (runs, keep, figures) => runs.flatMap((run) => rowsOf(run).filter(keep)
    .map((row) => ({...identity(run, row), ...figures(row, run)})));
const crowded = (run, row) => /\boversubscribed\b/.test(row.note || '');
// Whether a row or a launch of the trace is a pipeline.
const hasPipeline = (run) => rowsOf(run).some((row) => row.program) || launchesOf(run).some((launch) => launch.spans.some((span) => span[1] === 'bubble'));
const communicates = (row) => isNumber(row.comm_busy_ms) && row.workers > 1;
const moving = (row) => (numberOf(row.comm_busy_ms) === null ? null : numberOf(row.comm_busy_ms) - (numberOf(row.wait_ms) || 0));
// Communication times of the row's repeats.
const repeatedMoving = (run, row) => parseCsv(run.runs_csv).filter((r) => plainName(r) === row.plain && +r.workers === row.workers &&
    (!r.servers || +r.servers === row.servers) && (!r.program || +r.micro_batches === row.micro_batches) && (r.cuts || null) === (row.cuts || null) && r.part !== 'accuracy').map(moving).filter(isNumber);
const rowName = (row) => row.name || `${row.strategy} × ${row.workers}`;

// `text`, after the run's name if the page has several.
const ofRun = (run, text = '') => (DATA.runs.length > 1 ? t('caption', run.run_id, text) : text);

// "5 repeats of 30 steps. Intervals: ..."
function captionOf(run, intervals) {
  const rows = rowsOf(run), row = rows.find((r) => r.repeats > 0) || {};
  const parts = row.repeats ? [t('repeats', row.repeats, row.steps)] : [];
  if (intervals && row.repeats > 1) parts.push(t('interval_rule'));
  if (intervals) parts.push(...rows.map(unevenText).filter(Boolean));
  return ofRun(run, parts.join(' '));
}

// The interval of a figure over repeats as {low, high}, or null; and as columns of an exported row.
function intervalOf(row, figure) {
  const {lo95, hi95} = row.intervals[figure] || {};
  return isNumber(lo95) && isNumber(hi95) && lo95 <= hi95 ? {low: lo95, high: hi95} : null;
}
const spread = (row, ...figures) => Object.assign({}, ...figures.map((figure) => {
  const interval = intervalOf(row, figure) || {low: null, high: null};
  return {[`${figure}_lo95`]: interval.low, [`${figure}_hi95`]: interval.high};
}));

// Several runs together: a point per run, a line through their means.
function pooledPoints(runs, keep, value, more) {
  const all = runs.flatMap((run) => rowsOf(run).filter(keep).map((row) => ({run, row})));
  return unique(all.map(({row}) => row.strategy)).map((name) => {
    const found = all.filter(({run, row}) => row.strategy === name && isNumber(value(row)));
    const points = unique(found.map((f) => f.row.workers)).sort(d3.ascending).map((workers) => {
      const here = found.filter((f) => f.row.workers === workers), mean = d3.mean(here, (f) => value(f.row));
      const one = here.length === 1 ? here[0] : null;
      return {x: workers, y: mean, hollow: here.every((f) => crowded(f.run, f.row)),
        dots: one ? (more.dots ? more.dots(one.run, one.row) : []) : here.map((f) => value(f.row)),
        ...(one && more.interval ? more.interval(one.row) : {}), title: `${name} × ${workers}: ${brief(mean)}`};
    });
    return {name, points, simulated: found.length > 0 && found[0].row.basis === 'simulated', theory: runs.length === 1 &&
        more.theory ? more.theory(name, found.map((f) => f.row)) : []};
  }).filter((series) => series.points.length);
}

const pooledNote = (runs) => (runs.length > 1 ? t('pooled', runs.length) : captionOf(runs[0], true));

// A line over the number of workers needs several of them.
const severalCounts = (series) => unique(series.flatMap((s) => s.points.map((p) => p.x))).length > 1;

function drawCommunication(parent, runs) {
  const series = pooledPoints(runs, communicates, moving, {
    dots: repeatedMoving,
    interval: (row) => intervalOf(row, 'comm_moving_ms') || {},
    theory: (name, rows) => rows.filter((row) => isNumber(row.predicted_comm_ms))
        .map((row) => ({x: row.workers, y: row.predicted_comm_ms,
        title: `${name} × ${row.workers}: ${t('theory_line')} ${brief(row.predicted_comm_ms)} ms`}))});
  if (!severalCounts(series)) return;
  const rows = exported(runs, communicates, (row) => ({...columns(row, 'comm_busy_ms', 'wait_ms', 'predicted_comm_ms', 'repeats'),
    ...spread(row, 'comm_moving_ms')}));
  figure(parent, {id: 'communication', title: t('comm_title'), note: t('comm_note', pooledNote(runs)), rows,
    draw: (svg, width, height) => linesChart(svg, width, height, series, {yLabel: t('ms')})});
}

function drawThroughput(parent, runs) {
  const series = pooledPoints(runs, () => true, (row) => row.samples_per_s, {
    dots: (run, row) => row.rounds.samples_per_s || [],
    interval: (row) => ({low: row.samples_per_s_lo95, high: row.samples_per_s_hi95})});
  if (!severalCounts(series)) return;
  const rows = exported(runs, () => true, (row, run) => ({samples_per_s: row.samples_per_s, lo95: row.samples_per_s_lo95,
    hi95: row.samples_per_s_hi95, repeats: row.repeats, oversubscribed: crowded(run, row)}));
  figure(parent, {id: 'throughput', title: t('throughput_title'), note: t('throughput_note', pooledNote(runs)), rows,
    draw: (svg, width, height) => linesChart(svg, width, height, series, {yLabel: t('samples_per_s')})});
}

// One bar per row. partsOf: [{value, colour, label}]; tickOf: a value to mark; spreadOf: {low, high} of the bar's end, or
// null.
function barChart(svg, width, height, rows, {partsOf, tickOf = () => null, spreadOf = () => null, endOf, xLabel}) {
  const margin = {left: Math.min(width * 0.5, 7 * d3.max(rows, (row) => rowName(row).length) + 12), right: endOf ? 64 : 20, top: 6, bottom: 38};
  const sum = (row) => Math.max(d3.sum(partsOf(row), (p) => p.value), tickOf(row) || 0, (spreadOf(row) || {high: 0}).high);
  const x = d3.scale.linear().domain([0, d3.max(rows, sum) * 1.02 || 1]).range([margin.left, width - margin.right]);
  const y = d3.scale.ordinal().domain(d3.range(rows.length)).rangeRoundBands([margin.top, height - margin.bottom], 0.25);
  svg.append('g').attr('class', 'axis').attr('transform', `translate(0,${height - margin.bottom})`)
      .call(d3.svg.axis().scale(x).orient('bottom').ticks(Math.max(2, Math.min(6, (width - margin.left - margin.right) / 60))).tickSize(-(height - margin.top - margin.bottom))
      .tickFormat(brief));
  svg.append('text').attr({x: width - margin.right, y: height - 6, 'text-anchor': 'end'}).text(xLabel);
  rows.forEach((row, i) => {
    svg.append('text').attr({x: margin.left - 6, y: y(i) + y.rangeBand() / 2 + 4, 'text-anchor': 'end'}).text(rowName(row));
    let left = 0;
    for (const part of partsOf(row)) {
      svg.append('rect').attr({x: x(left), y: y(i), width: Math.max(0, x(left + part.value) - x(left)), height: y.rangeBand()})
          .style(part.colour === 'none' ? {fill: 'none', stroke: part.value > 0 ? 'var(--faint)' : 'none', 'stroke-dasharray': '4 3'} : {fill: part.colour, stroke: 'var(--panel)'})
        .append('title').text(`${rowName(row)}: ${part.label} ${brief(part.value)}`);
      left += part.value;
    }
    if (isNumber(tickOf(row))) svg.append('line')
        .attr({x1: x(tickOf(row)), x2: x(tickOf(row)), y1: y(i) - 2, y2: y(i) + y.rangeBand() + 2})
        .style({stroke: 'var(--ink)', 'stroke-width': 2.5}).append('title').text(`${t('theory_line')} ${brief(tickOf(row))}`);
    if (endOf) svg.append('text').attr({x: x(sum(row)) + 6, y: y(i) + y.rangeBand() / 2 + 4}).text(brief(endOf(row)));
    const interval = spreadOf(row);
    if (!interval) return;
    const middle = y(i) + y.rangeBand() / 2, from = x(interval.low), to = x(interval.high);
    svg.append('path').attr({class: 'whisker', d: `M${from},${middle}H${to}M${from},${middle - 4}v8M${to},${middle - 4}v8`})
      .append('title').text(`${rowName(row)}: ${brief(interval.low)} – ${brief(interval.high)} (95%)`);
  });
}

// The workers of a row, with one that has most of the samples. A prediction has only its share: the others are alike.
function workersOf(row) {
  if ((row.each || []).some((worker) => worker.samples_per_s > 0)) return row.each;
  return d3.range(row.workers).map((i) => {
    const samples_per_s = row.samples_per_s * (i ? (1 - row.most_samples_share) / (row.workers - 1) : row.most_samples_share);
    const step_ms = 1e3 * row.batch_per_worker / samples_per_s, exposed_comm_ms = Math.max(0, step_ms - row.compute_ms);
    return {samples_per_s, step_ms, compute_ms: row.compute_ms, comm_busy_ms: exposed_comm_ms, exposed_comm_ms};
  });
}

// A row whose workers have unequal shares of the samples, as two: the workers with more than 1.5/N of them, and the others.
function classesOf(row) {
  if (!isUneven(row)) return [row];
  const workers = workersOf(row), sum = d3.sum(workers, (worker) => worker.samples_per_s);
  return [true, false].map((most) => {
    const group = workers.filter((worker) => (worker.samples_per_s * row.workers > 1.5 * sum) === most), numbers = group.map((worker) => worker.worker);
    const part = !most ? t('others_word') : numbers.every(isNumber) ? t('worker_number', numbers.join(t('comma'))) : t('one_worker');
    return {...row, intervals: {}, wait_ms: 0, part: group.length && part,
        ...Object.fromEntries(['step_ms', 'compute_ms', 'comm_busy_ms', 'exposed_comm_ms'].map((figure) => [figure, d3.mean(group, (worker) => worker[figure])])),
        name: t('class_most', `${row.plain} × ${row.workers}`, part, Math.round(100 * d3.sum(group, (worker) => worker.samples_per_s) / sum))};
  }).filter((each) => each.part);
}

// Where the time of a step goes. With many rows, those with the most workers. The dashed end is communication that was hidden:
// without overlap, a step would take this longer.
const MOST_BARS = 8;
function shownRows(all) {
  const most = d3.max(all, (row) => row.workers);
  return all.length > MOST_BARS ? all.filter((row) => row.workers === most || row.plain === 'single') : all;
}

function drawSplit(parent, run) {
  const kept = shownRows(rowsOf(run).filter((row) => isNumber(row.step_ms) && isNumber(row.compute_ms)));
  if (!kept.length) return;
  const rows = kept.flatMap(classesOf), means = t(rows.some((row) => row.part) ? 'means_classes' : rows.some((row) => row.plain === 'ps-async') ? 'means_async' : 'means_all');
  const parts = (row) => {
    const {hidden, exposed, waiting} = communicationOf(row), bubble = (row.bubble_fraction || 0) * row.step_ms;
    return [{value: row.compute_ms, colour: 'var(--compute)', label: t('compute')}, {value: exposed, colour: 'var(--exposed)', label: t('exposed')},
      {value: waiting, colour: 'var(--waiting)', label: t('waiting_for')}, {value: bubble, colour: 'var(--waiting)', label: t('bubble')},
      {value: Math.max(0, row.step_ms - row.compute_ms - exposed - waiting - bubble), colour: 'var(--rest)', label: t('rest')},
      {value: hidden, colour: 'none', label: t('hidden')}];
  };
  const shown = parts(rows[0]).filter((p, i) => rows.some((row) => parts(row)[i].value > 0.005 * row.step_ms));
  figure(parent, {id: 'split', wide: true, title: t('split_title'), note: t('split_note', captionOf(run, true), `${means} ${t('split_parts', hasPipeline(run) ? t('split_bubble') : '')}`), height: 50 + 24 * rows.length,
    rows: rows.map((row) => ({...identity(run, row), ...columns(row, 'step_ms', 'compute_ms', 'comm_busy_ms', 'wait_ms', 'exposed_comm_ms', 'bubble_fraction', 'repeats'),
      ...spread(row, 'step_ms', 'compute_ms', 'exposed_comm_ms'), of_workers: row.part || ''})),
    legend: shown.map((p) => ({label: p.label, colour: p.colour, block: true})),
    draw: (svg, width, height) => barChart(svg, width, height, rows,
        {partsOf: parts, spreadOf: (row) => intervalOf(row, 'step_ms'), endOf: (row) => row.step_ms, xLabel: t('ms_step')})});
}

function drawBytes(parent, run) {
  const talking = rowsOf(run).filter((row) => row.payload_tx_bytes_per_worker > 0 || row.server_payload_bytes > 0);
  if (!talking.length) return;
  // Bytes of a worker and of a server are separate bars: they do not add up.
  const derived = (row) => (row.basis_of.payload_tx_bytes_per_worker === 'derived' ? ` (${t('derived_word')})` : '');
  const bars = talking.flatMap((row) => [{...row, strategy: row.strategy + derived(row), what: 'worker'},
    ...(row.server_payload_bytes > 0 ? [{...row, strategy: `${row.strategy}: server`, what: 'server'}] : [])]);
  const sent = talking.filter((row) => row.workers > 1 && row.payload_tx_bytes_per_worker > 0).sort((a, b) => a.payload_tx_bytes_per_worker - b.payload_tx_bytes_per_worker);
  const value = (bar) => (bar.what === 'worker' ? bar.payload_tx_bytes_per_worker : bar.server_payload_bytes) / 1e6;
  const [least, most] = [sent[0], sent[sent.length - 1]];
  if (least && megabytes(least.payload_tx_bytes_per_worker) !== megabytes(most.payload_tx_bytes_per_worker)) parent.append(here('here_bytes', [least, most].map((row) => [row, 'payload_tx_bytes_per_worker']), megabytes(least.payload_tx_bytes_per_worker),
      rowName(least), megabytes(most.payload_tx_bytes_per_worker), rowName(most)));
  const links = LINKS.filter(([link], i) => !i || talking.some((row) => bytesByLink(row)[link] > 0))
      .map(([link, colour], i, shown) => ({link, colour, block: true, label: t(shown.length > 1 ? `link_${link}` : 'worker_sends')}));
  figure(parent, {id: 'bytes', title: t('bytes_title'), note: t('bytes_note', captionOf(run, true)), height: 50 + 20 * bars.length,
    rows: talking.map((row) => ({...identity(run, row), ...columns(row, 'payload_tx_bytes_per_worker',
      'predicted_payload_bytes_per_worker', 'server_payload_bytes', 'wire_tx_bytes_per_worker'),
    ...(links.length > 1 ? columns(bytesByLink(row), ...LINKS.map(([link]) => link)) : {}),
    bytes_basis: row.basis_of.payload_tx_bytes_per_worker, repeats: row.repeats,
    ...spread(row, 'payload_tx_bytes_per_worker', 'server_payload_bytes')})),
    legend: [...links, {label: t('server_moves'), colour: 'var(--c1)', block: true}],
    draw: (svg, width, height) => barChart(svg, width, height, bars, {
      partsOf: (bar) => (bar.what === 'worker' ? links.map(({link, colour, label}) => ({value: bytesByLink(bar)[link] / 1e6, colour, label}))
          : [{value: value(bar), colour: 'var(--c1)', label: t('server_moves')}]),
      tickOf: (bar) => (bar.what === 'worker' && isNumber(bar.predicted_payload_bytes_per_worker)
          ? bar.predicted_payload_bytes_per_worker / 1e6 : null),
      spreadOf: (bar) => {
        const interval = intervalOf(bar, bar.what === 'worker' ? 'payload_tx_bytes_per_worker' : 'server_payload_bytes');
        return interval && {low: interval.low / 1e6, high: interval.high / 1e6};
      },
      xLabel: 'MB'})});
}

// What the worker with the most memory allocated.
function drawMemory(parent, run) {
  const rows = shownRows(rowsOf(run)).filter((row) => row.memory);
  if (!rows.length) return;
  const legend = MEMORY.map(([part, colour]) => ({part, label: t(part), colour, block: true}));
  figure(parent, {id: 'memory', title: t('memory_title'), note: t('memory_note', captionOf(run, false)), height: 50 + 20 * rows.length,
    rows: rows.map((row) => ({...identity(run, row), ...columns(row, 'layout', 'cuts', 'predicted_peak_memory_mb'), ...columns(row.memory, ...MEMORY.map(([part]) => part))})),
    legend,
    draw: (svg, width, height) => barChart(svg, width, height, rows, {partsOf: (row) => legend.map(({part, label, colour}) => ({value: row.memory[part], colour, label})),
      tickOf: (row) => numberOf(row.predicted_peak_memory_mb), xLabel: 'MiB'})});
}

// The selected axes of the learning curves.
const learning = {x: 'samples', y: 'test_accuracy'};

function drawLearning(parent, run, redraw) {
  const evaluated = parseCsv(run.curves_csv);
  let lines, note, choices;
  if (evaluated.length) {
    const keys = unique(evaluated.map((p) => `${p.strategy} × ${p.workers}, seed ${p.seed}`));
    lines = keys.map((key) => ({key, points: evaluated.filter((p) => `${p.strategy} × ${p.workers}, seed ${p.seed}` === key)}));
    choices = {x: ['samples', 'updates', 'wall_s'], y: ['test_accuracy', 'test_loss', 'train_loss']};
    const trainings = d3.max(rowsOf(run), (row) => (row.accuracy && row.accuracy.trainings) || 0) || 0;
    note = t('curve_note', `${ofRun(run, trainings > 1 ? t('trainings', trainings) : t('one_training'))} ${rowsOf(run).map(unevenText).join(' ').trim()}`);
  } else {
    // A replayed workload has no loss.
    const series = ((run.steps && run.steps.loss) || []).filter((s) => Array.isArray(s.points) && s.points.length > 1 &&
        s.points.some(([, , loss]) => loss !== 0));
    if (!series.length) return;
    lines = series.map((s) => ({key: `${s.strategy} × ${s.workers}`,
        points: s.points.map(([samples, wall_s, train_loss]) => ({strategy: s.strategy, workers: s.workers, samples, wall_s,
        train_loss}))}));
    choices = {x: ['samples', 'wall_s'], y: ['train_loss']};
    note = t('loss_note', `${t('steps_rule', run.steps.most_points)} ${captionOf(run)}`);
  }
  if (lines.every((line) => line.points.length < 2)) return;
  const pick = (axis) => (choices[axis].includes(learning[axis]) ? learning[axis] : choices[axis][0]);
  const xKey = pick('x'), yKey = pick('y');
  const chooser = (axis, label) => labelled(label, choice(`learning-${axis}`, choices[axis], pick(axis), choices[axis].map((key) => t(key)),
      (value) => { learning[axis] = value; redraw(`learning-${axis}`); }));
  const counts = unique(lines.map((line) => line.points[0].workers));
  figure(parent, {id: 'learning', title: t('curve_title'), note,
      rows: lines.flatMap((l) => l.points.map((p) => ({run_id: run.run_id, ...p}))),
    controls: make('div', {class: 'controls'}, chooser('x', t('x_axis')), chooser('y', t('y_axis'))),
    legend: unique(lines.map((line) => rowName(line.points[0])))
        .map((name) => lines.find((line) => rowName(line.points[0]) === name).points[0])
      .map((p) => ({label: rowName(p), colour: colourOf(p.strategy), mark: MARKS[counts.indexOf(p.workers) % MARKS.length]})),
    draw: (svg, width, height) => {
      const points = lines.flatMap((l) => l.points).filter((p) => isFinite(+p[xKey]) && isFinite(+p[yKey]));
      const x = d3.scale.linear().domain([0, d3.max(points, (p) => +p[xKey])]).nice(), y = d3.scale.linear()
          .domain(d3.extent(points, (p) => +p[yKey])).nice();
      const plot = axes(svg, width, height, x, y, {xLabel: t(xKey), yLabel: t(yKey), yFormat: (v) => String(+v.toPrecision(4))});
      for (const line of lines) {
        const colour = colourOf(line.points[0].strategy), type = MARKS[counts.indexOf(line.points[0].workers) % MARKS.length];
        drawCurve(plot, line.points, (p) => x(+p[xKey]), (p) => y(+p[yKey]), line.points[0].strategy, 1.6);
        if (line.points.length <= 40) for (const p of line.points) mark(plot, type, x(+p[xKey]), y(+p[yKey]), colour, false,
            `${line.key}: ${brief(+p[xKey])}, ${String(+(+p[yKey]).toPrecision(4))}`);
      }
    }});
}

function drawStaleness(parent, run) {
  const asynchronous = rowsOf(run).filter((row) => Array.isArray(row.pushes) && row.workers > 1);
  if (!asynchronous.length) return;
  const barsOf = (row) => row.pushes.map((count, staleness) => ({...identity(run, row), staleness, count,
    share: count / d3.sum(row.pushes)})).filter((bar) => bar.count > 0);
  const bars = asynchronous.flatMap(barsOf), each = 142, high = 92;
  figure(parent, {id: 'staleness', title: t('stale_title'), note: t('stale_note', captionOf(run)), rows: bars,
    height: 44 + each * asynchronous.length,
    draw: (svg, width, height) => {
      const x = d3.scale.linear().domain([-0.7, Math.min(d3.max(bars, (b) => b.staleness), 60) + 0.7]).range([60, width - 14]);
      const y = d3.scale.linear().domain([0, d3.max(bars, (b) => b.share)]).range([high, 0]);
      const whole = x.ticks(8).filter((v) => v === Math.floor(v));
      asynchronous.forEach((row, i) => {
        const group = svg.append('g').attr('transform', `translate(0,${i * each + 30})`);
        group.append('g').attr('class', 'axis').attr('transform', 'translate(60,0)')
            .call(d3.svg.axis().scale(y).orient('left').ticks(3).tickFormat(d3.format('.0%')).tickSize(3));
        group.append('g').attr('class', 'axis').attr('transform', `translate(0,${high})`)
            .call(d3.svg.axis().scale(x).orient('bottom').tickValues(whole).tickFormat(String).tickSize(3));
        group.append('text').attr({x: width - 14, y: -14, 'text-anchor': 'end'}).text(rowName(row));
        for (const b of barsOf(row)) group.append('rect')
            .attr({x: x(b.staleness - 0.35), width: x(0.7) - x(0), y: y(b.share), height: y(0) - y(b.share)})
            .style('fill', colourOf(row.plain)).append('title').text(`${b.staleness}: ${b.count}`);
        if (row.plain === 'ps-async') group.append('line').attr({x1: x(row.workers - 1), x2: x(row.workers - 1), y1: -6, y2: high}).attr('class', 'theory')
            .style({stroke: 'var(--ink)', 'stroke-width': 2}).append('title').text(`N-1 = ${row.workers - 1}`);
        group.append('path').attr('transform', `translate(${x(row.staleness_mean)},${high + 28})`)
            .attr('d', d3.svg.symbol().type('triangle-up').size(60)()).style('fill', 'var(--ink)').append('title')
            .text(brief(row.staleness_mean));
      });
      svg.append('text').attr({x: width - 14, y: height - 2, 'text-anchor': 'end'}).text(t('staleness'));
    }});
}
