// The parts of the story: one server and several, the ring, overlap, asynchrony. Each has a guess, a drawing that moves, and
// this run's numbers.

// A sentence about this run. `facts`: [[row, column]], the figures of summary.csv that it states.
function here(key, facts, ...texts) {
  const sentence = make('p', {class: 'here', 'data-key': key}, t(key, ...texts));
  sentence.facts = facts.map(([row, column]) => ({...columns(row, 'workers', 'servers', 'lr'), strategy: row.plain, column, value: row[column]}));
  return sentence;
}

const paragraphs = (parent, ...keys) => { for (const key of keys) parent.append(make('p', {}, t(key))); };

// Where a row's servers are and how they exchange. Rows of tables are always pulled before the step and pushed after it.
const placeOfServers = ({servers, placement, ps_schedule, has_tables}) => [t(`placed_${placement || 'rank0'}${servers > 1 ? '_many' : ''}`, servers),
    ps_schedule && !has_tables ? t(ps_schedule) : ''].filter(Boolean).join(t('comma'));

const placesOf = (run) => unique(rowsOf(run).filter((row) => row.servers > 0).map(placeOfServers));
// The same where rows differ in it; otherwise it is said once, beside the verdict.
const placedText = (row) => (placesOf(DATA.runs[chosenRun]).length > 1 ? placeOfServers(row) : '');

// Whether server_payload_bytes are those of all servers together, on their common link.
const summedServers = (row) => row.basis === 'simulated' && row.servers > 1 && row.placement === 'rank0';

// One server, several servers.
function drawServers(parent, run) {
  askQuestions(parent, run, 'server_bytes', 'server_time');
  paragraphs(parent, 'servers_one', 'servers_many', 'servers_colocated');
  const rows = rowsOf(run).filter((row) => row.plain === 'ps-sync' && row.workers > 1 && row.server_payload_bytes > 0 && !summedServers(row));
  for (const row of rows.slice(-2)) parent.append(here('here_server', [[row, 'server_payload_bytes'], [row, 'payload_tx_bytes_per_worker']],
      row.workers, placedText(row), megabytes(row.server_payload_bytes), megabytes(row.payload_tx_bytes_per_worker)));
  const chart = make('div', {class: 'grid'});
  parent.append(chart);
  drawLinks(chart, run);
  drawStepper(parent, run, 'server', ['star', 'direct']);
}

// The traffic of the busiest link in one exchange by psring's cost models, in gradients.
function linksOf(theory, workers) {
  const server = (place, way, servers) => theory.server[place][way][theory.servers.indexOf(servers)][workers - 1][1];
  const ring = theory.schemes.ring[workers - 1][1];
  return [['serial', server('dedicated', 'serial', 1), true], ['pipelined', server('dedicated', 'pipelined', 1)],
      ['rank0', server('rank0', 'serial', 1), true], ['rank0_pipelined', server('rank0', 'pipelined', 1)],
      ['two', server('dedicated', 'pipelined', 2)],
      ...(theory.servers.includes(workers) ? [['each', server('dedicated', 'pipelined', workers)]] : []),
      ['colocated', theory.schemes.direct[workers - 1][1]], ['ring', ring]]
    .map(([scheme, gradients, returns]) => ({scheme, gradients, returns, times: gradients / ring}));
}

function drawLinks(parent, run) {
  const most = DATA.theory.workers.length;
  const own = d3.max(rowsOf(run).filter((row) => row.workers > 1 && row.workers <= most), (row) => row.workers);
  const workers = Math.max(4, own || 0);  // with 2 the schemes hardly differ
  const links = linksOf(DATA.theory, workers), left = 10;
  const linesOf = (link, width) => wrapped(t('links_row', t(`link_${link.scheme}`), brief(link.gradients), brief(link.times)), width - left);
  const heightOf = (link, width) => 26 + LINE * linesOf(link, width).length;
  figure(parent, {id: 'links', wide: true, title: t('links_title', workers), height: (width) => 8 + d3.sum(links, (link) => heightOf(link, width)),
    note: t('links_note', captionOf(run)),
    rows: links.map((link) => ({run_id: run.run_id, basis: 'derived', workers, scheme: link.scheme,
        gradients_through_the_link: link.gradients, times_the_ring: link.times})),
    draw: (svg, width) => {
      const x = d3.scale.linear().domain([0, d3.max(links, (link) => link.gradients)]).range([left, width - 14]);
      let top = 8;
      for (const link of links) {
        const end = x(link.gradients), half = (left + end) / 2, lines = linesOf(link, width), bar = top + 1 + LINE * lines.length;
        drawLines(svg, left, top + 10, lines);
        svg.append('rect').attr({x: left, y: bar, width: end - left, height: 14})
            .style('fill', link.scheme === 'ring' || link.scheme === 'colocated' ? colourOf('ring') : colourOf('ps-sync'));
        if (link.returns) svg.append('line').attr({x1: half, x2: half, y1: bar - 2, y2: bar + 16}).style({stroke: 'var(--panel)', 'stroke-width': 3});
        top += heightOf(link, width);
      }
    }});
}

// The ring: reduce-scatter, then all-gather.
function drawRing(parent, run) {
  askQuestions(parent, run, 'ring_rounds', 'ring_bytes', 'ring_limit', 'busbw');
  paragraphs(parent, 'ring_scatter', 'ring_gather', 'ring_sum');
  drawStepper(parent, run, 'ring', ['star', 'ring']);
  paragraphs(parent, 'ring_constant');
  const rows = rowsOf(run).filter((row) => isRing(row) && !row.has_tables && row.workers > 1 && row.payload_tx_bytes_per_worker > 0);
  if (rows.length) parent.append(here('here_ring', rows.map((row) => [row, 'payload_tx_bytes_per_worker']), rows.map((row) =>
      t('here_ring_one', row.workers, megabytes(row.payload_tx_bytes_per_worker), brief(row.payload_tx_bytes_per_worker / (4 * row.parameters))))
      .join(t('semicolon'))));
  const guessed = make('div', {class: 'interactive'});
  parent.append(guessed);
  drawGuess(guessed, run, DATA.theory);
}

// A row's communication in ms: hidden + exposed + waiting is the longer of the time with a bucket in flight and the time that
// computation waits. Waiting for peers counts as exposed first.
function communicationOf(row) {
  const stopped = row.exposed_comm_ms || 0, all = Math.max(row.comm_busy_ms || 0, stopped);
  const waiting = Math.min(Math.max(0, row.wait_ms || 0), stopped);
  return {all, hidden: all - stopped, exposed: stopped - waiting, waiting};
}

// Less than this share of the communication is "almost nothing": a reader cannot see it in the timeline.
const HARDLY = 0.05;

// When a row's first bucket was sent, as a share of the backward pass, mean over ranks; null without a trace.
function firstSent(run, row) {
  const launch = launchOf(run, row);
  if (!launch) return null;
  const ofRank = (rank, name) => launch.spans.filter((span) => span[0] === rank && span[1] === name);
  const shares = unique(launch.spans.map((span) => span[0])).map((rank) => {
    const backward = ofRank(rank, 'backward'), sent = ofRank(rank, 'communication');
    if (!backward.length || !sent.length) return null;
    const begin = d3.min(backward, (span) => span[3]), end = d3.max(backward, (span) => span[3] + span[4]);
    return end > begin ? (d3.min(sent, (span) => span[3]) - begin) / (end - begin) : null;
  }).filter(isNumber);
  return shares.length ? Math.max(0, Math.min(1, d3.mean(shares))) : null;
}

// Why so much of a row's communication is exposed.
function reasonOf(run, row) {
  const {all, hidden, waiting} = communicationOf(row), percent = (share) => brief(100 * share);
  if (all <= 0) return '';
  const waits = waiting > 0.2 * all ? ` ${t('reason_waits', brief(waiting))}` : '';
  if (hidden > 0.95 * all) return t('reason_all');
  if (hidden >= HARDLY * all) {
    return t(all > row.compute_ms ? 'reason_longer' : 'reason_late', brief(hidden), brief(all), brief(row.compute_ms)) + waits;
  }
  const little = hidden > 0 ? t('reason_hardly', percent(hidden / all)) : t('reason_none'), most = Math.min(1, row.compute_ms / all);
  const sent = firstSent(run, row);
  const why = most < 2 * HARDLY ? t('reason_short', brief(row.compute_ms), percent(most))
      : sent !== null ? t('reason_first', brief(row.compute_ms), percent(sent)) : t('reason_apart', brief(row.compute_ms), brief(hidden));
  return `${little} ${why}${waits}`;
}

// The first and the last sizes in MB.
const sizesText = (sizes) => (sizes.length > 6 ? [...sizes.slice(0, 5).map(megabytes), '…', megabytes(sizes[sizes.length - 1])] : sizes.map(megabytes)).join(t('comma'));

// Whether a reader sees hidden and exposed communication in the row.
function showsOverlap(row) {
  const {all, hidden} = communicationOf(row);
  return hidden >= 0.3 * all && hidden <= 0.7 * all;
}

function drawOverlap(parent, run) {
  askQuestions(parent, run, 'exposed', 'hidden', 'efficiency');
  paragraphs(parent, 'overlap_buckets');
  const rows = rowsOf(run).filter((row) => communicates(row) && communicationOf(row).all > 0);
  const telling = [...rows.filter(isRing), ...rows].find(showsOverlap), cut = [telling, ...rows].find((row) => row && row.buckets.length);
  if (cut) parent.append(here('here_sizes', [[cut, 'bucket_mb']], rowName(cut), cut.buckets.length, sizesText(cut.buckets)));
  paragraphs(parent, 'overlap_sum');
  const sum = (key, of, row, facts) => {
    const {all, hidden, exposed, waiting} = communicationOf(row);
    parent.append(here(key, facts.map((column) => [row, column]), rowName(row), ...[all, hidden, exposed, waiting].map(brief), reasonOf(of, row)));
  };
  if (rows.length) {
    parent.append(scrollTable({id: 'overlap-table'}, t('part_overlap'), ['strategy', 'communication_ms', 'hidden_ms', 'exposed_ms_only', 'waiting_ms',
        'step_ms_here', 'without_overlap', 'reason'].map((key) => asTaken(t(key))), rows.map((row) => {
      const {all, hidden, exposed, waiting} = communicationOf(row);
      return [rowHead(rowName(row)), ...[all, hidden, exposed, waiting, row.step_ms, row.step_ms + hidden].map(brief),
          make('td', {class: 'col_note'}, reasonOf(run, row))];
    })));
    sum('here_overlap', run, telling || rows.find(isRing) || rows[rows.length - 1], ['comm_busy_ms', 'exposed_comm_ms', 'wait_ms', 'step_ms']);
  }
  const recorded = !telling && !run.one_launch && !hasPipeline(run) && rowsOf(EXAMPLE)[0];
  if (recorded) sum('here_example', EXAMPLE, recorded, []);
  const first = recorded ? launchOf(EXAMPLE, recorded) : telling && launchOf(run, telling);
  const timeline = make('div');
  parent.append(timeline);
  const again = (id) => { timeline.replaceChildren(); drawTimeline(timeline, run, again, first); document.getElementById(id).focus(); };
  drawTimeline(timeline, run, again, first);
  const bucket = make('div', {class: 'grid'});
  const redrawBuckets = () => { bucket.replaceChildren(); drawBuckets(bucket, run, DATA.theory); };
  parent.append(make('div', {class: 'controls'}, logSlider('bucket', redrawBuckets)), bucket);
  redrawBuckets();
}

// The asynchronous row with the most workers that has a synchronous counterpart with as many servers.
function asynchronousPair(run) {
  const rows = rowsOf(run).filter((row) => row.workers > 1 && row.samples_per_s > 0).sort((a, b) => b.workers - a.workers);
  return rows.filter((row) => row.plain === 'ps-async')
      .map((row) => ({row, waiting: rows.find((r) => r.plain === 'ps-sync' && r.workers === row.workers && r.basis === row.basis &&
      r.servers === row.servers)})).find((pair) => pair.waiting);
}

// Why the asynchronous row is faster or slower, from the workers' own computing times: {slowest, mean} in ms.
const STRAGGLES = 1.2;  // slowest over mean
function leadReason({row, waiting}) {
  const times = (waiting.each || []).map((worker) => worker.compute_ms).filter(isNumber);
  if (isUneven(row)) return t('lead_uneven', unevenText(row));
  if (row.samples_per_s <= waiting.samples_per_s) return t('lead_none');
  if (!times.length) return '';
  const slowest = d3.max(times), mean = d3.mean(times);
  return t(slowest > STRAGGLES * mean ? 'lead_stragglers' : 'lead_even', brief(slowest), brief(mean), rowName(waiting));
}

// The queue of an asynchronous row's workers before its dedicated servers, without overlap (derived): c and e are a worker's own
// computing and exchange, s is for how long a push occupies the servers' links: of a pipelined synchronous exchange, 1/N.
function sayQueue(parent, run, row) {
  const c = row.compute_ms / 1e3, e = row.predicted_comm_ms / 1e3;
  const s = (n) => serverGradients({...row, ps_schedule: 'pipelined', workers: n}) / n * 4 * row.parameters / runWires(run).bandwidth;
  if (row.placement !== 'dedicated' || row.basis !== 'measured' || row.has_tables || !(c > 0 && e > 0 && s(64) > 0)) return;
  parent.append(here('here_queue', ['compute_ms', 'predicted_comm_ms', 'samples_per_s'].map((column) => [row, column]),
      ...[c, e, s(64)].map(secondsText), ...[4, 64].map((n) => brief(Math.min(n / (c + e), 1 / s(n)))), brief((c + e) / s(64)),
      secondsText(Math.max(0, 64 * s(64) - c - e)), row.workers, brief(row.samples_per_s / row.batch_per_worker)));
}

// "momentum, lr 0.05".
const ruleOf = (row) => (row.optimizer ? `${row.optimizer}, lr ${row.lr}` : '');

function drawAsynchronous(parent, run) {
  askQuestions(parent, run, 'staleness', 'speedup');
  paragraphs(parent, 'async_gain', 'async_queue', 'async_price', 'async_so');
  const pair = asynchronousPair(run);
  if (pair) {
    const {row, waiting} = pair;
    parent.append(here('here_async', [[row, 'samples_per_s'], [waiting, 'samples_per_s'], [row, 'staleness_mean']], row.workers,
        withThousands(row.samples_per_s), withThousands(waiting.samples_per_s), isNumber(row.staleness_mean) ? row.staleness_mean.toFixed(2) : '?',
        row.workers - 1, leadReason(pair)));
    sayQueue(parent, run, row);
    const parts = [row.compute_ms, waiting.compute_ms, moving(row), moving(waiting), waiting.wait_ms];
    if (parts.every(isNumber) && !isUneven(row)) parent.append(make('p', {}, t('lead_parts', ...parts.map(brief))));
  }
  const trained = rowsOf(run).filter((row) => row.workers > 1 && isNumber(row.test_accuracy));
  const prompt = (late) => trained.find((row) => row.workers === late.workers && (row.plain === 'ps-sync' || isRing(row)));
  const late = trained.filter((row) => row.plain === 'ps-async' && prompt(row)).pop();
  if (late) {
    const on_time = prompt(late), once = ((late.accuracy || {}).trainings || 1) === 1;
    parent.append(here(ruleOf(late) === ruleOf(on_time) ? 'here_accuracy' : 'here_accuracy_rules', [[late, 'test_accuracy'], [on_time, 'test_accuracy']],
        late.test_accuracy.toFixed(4), on_time.test_accuracy.toFixed(4), ruleOf(late), ruleOf(on_time), rowName(late), rowName(on_time),
        once ? t('one_training') : ''));
  }
  const timed = rowsOf(run).filter((row) => isNumber(row.time_to_target_s));
  if (timed.length) parent.append(here('here_target', timed.map((row) => [row, 'time_to_target_s']),
      timed.map((row) => `${rowName(row)} ${brief(row.time_to_target_s)} s`).join(t('semicolon'))));
  const each = rowsOf(run).filter((row) => row.workers > 1 && row.plain !== 'ps-sync' && (row.each || []).some((w) => isNumber(w.staleness_mean)));
  const row = each[each.length - 1];
  if (row) parent.append(make('h4', {}, t('each_worker', rowName(row))), scrollTable({id: 'each-worker'}, t('each_worker', rowName(row)),
      [t('worker'), t('each_steps'), t('each_compute'), t('each_stale'), t('each_theory')].map(asTaken), row.each.map((worker, i) => [rowHead(String(i)),
          brief(worker.steps), brief(worker.compute_ms), brief(worker.staleness_mean), brief(worker.staleness_theory)])));
  const lens = make('div');
  parent.append(lens);
  drawUpdates(lens, run);
  const charts = make('div', {class: 'grid'}), simulation = make('div', {class: 'grid'});
  parent.append(charts, waitingControls(() => redrawWaiting()), simulation);
  const redrawWaiting = () => { simulation.replaceChildren(); drawWaiting(simulation, run, DATA.waiting); };
  const again = (id) => { drawIn(); document.getElementById(id).focus(); };
  const drawIn = () => { charts.replaceChildren(); drawStaleness(charts, run); drawLearning(charts, run, again); };
  drawIn();
  redrawWaiting();
}
