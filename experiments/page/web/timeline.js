// One step of a launch: a row per rank with lanes for computation, buckets and messages in flight, and waiting; below, of a
// pipeline, the same step as simulated. Pointing at a bucket shows arrows from its senders to its receivers, pointing at an
// action what else is done with its micro-batch; the wheel zooms, and the clock of a pipeline stops at each simulated action.

const SERVERS = -1, SIMULATED = 1e7;  // the servers' row; the first row of simulated ranks
const LANE = 18;

// Assigns each span a lane in its row: computation, then one lane per concurrent bucket or message, then waiting. Returns the
// number of lanes of each row.
function layLanes(spans) {
  const flights = new Map();  // row -> when each lane is free again
  for (const span of spans.filter((s) => inFlight(s.name) || s.name === 'message').sort((a, b) => a.begin - b.begin || a.bucket - b.bucket)) {
    if (!flights.has(span.row)) flights.set(span.row, []);
    const ends = flights.get(span.row), free = ends.findIndex((end) => end <= span.begin + 1e-3), lane = free < 0 ? ends.length
        : free;
    ends[lane] = span.end;
    span.lane = (span.rank === SERVERS ? 0 : 1) + lane;
  }
  const lanes = new Map();
  for (const row of unique(spans.map((span) => span.row))) {
    const most = (flights.get(row) || []).length;
    for (const span of spans) if (span.row === row && span.lane === undefined) span.lane = span.name === 'exposed' ? most + 1 : 0;
    lanes.set(row, most + (row === SERVERS ? 0 : row >= SIMULATED ? 1 : 2));
  }
  return lanes;
}

const SPAN_COLOURS = {forward: 'var(--c5)', backward: 'var(--compute)', optimizer: 'var(--c7)', exposed: 'var(--exposed)', bubble: 'none'};
// Of actions, and of the number on them.
const ACTIONS = [[/W\d+$/, 'var(--c3)', 'var(--on-c3)', 'weight_gradient'], [/_F\d+$/, 'var(--c6)', 'var(--on-c6)', 'activations'],
  [/_B\d+$/, 'var(--c4)', 'var(--on-c4)', 'gradients'], [/F\d+$/, 'var(--c5)', 'var(--on-c5)', 'forward'],
  [/[BI]\d+$/, 'var(--compute)', 'var(--on-compute)', 'backward']];
const actionRow = (action) => ACTIONS.find(([pattern]) => pattern.test(action));
const microBatch = (action) => (actionRow(action) ? /\d+$/.exec(action)[0] : '');
const BUCKET_COLOURS = ['var(--c2)', 'var(--c4)', 'var(--c3)', 'var(--c6)'];
const BUCKET_TEXT = ['var(--on-c2)', 'var(--on-c4)', 'var(--on-c3)', 'var(--on-c6)'];  // the colour of a number on them
const ofBucket = (list, bucket) => list[Math.max(0, bucket) % list.length];
const inFlight = (name) => name === 'communication' || name === 'exchange';
const spanColour = (name, bucket, action = '') => (inFlight(name) ? ofBucket(BUCKET_COLOURS, bucket)
    : (actionRow(action) || [])[1] || SPAN_COLOURS[name] || 'var(--rest)');
const rankText = (row) => (row === SERVERS ? t('server_row') : `${t('rank')} ${row >= SIMULATED ? row - SIMULATED : row}`);

const timelineChoice = {launch: null};  // kept over redrawing

// The arrows of a launch as objects, each with the spans at its ends.
function arrowsOf(launch, spans) {
  const list = (Array.isArray(launch.arrows) ? launch.arrows : [])
      .map(([from, to, bucket, leaves, arrives]) => ({from, to, bucket, leaves, arrives}));
  const spanAt = (rank, bucket, moment) => spans.find((s) => s.rank === rank && s.bucket === bucket && inFlight(s.name) &&
      moment >= s.begin - 2e-3 && moment <= s.end + 2e-3);
  for (const arrow of list) {
    arrow.tail = spanAt(arrow.from, arrow.bucket, arrow.leaves);
    arrow.head = spanAt(arrow.to, arrow.bucket, arrow.arrives);
  }
  return list.filter((arrow) => arrow.tail && arrow.head);
}

function drawArrow(svg, x1, y1, x2, y2, colour, title) {
  const turn = Math.atan2(y2 - y1, x2 - x1) * 180 / Math.PI;
  const group = svg.append('g').attr('class', 'arrow').style({stroke: colour, fill: colour});
  group.append('line').attr({x1, y1, x2, y2}).style({'stroke-width': 1.6});
  group.append('path').attr('d', 'M0,0L-8,-3.5L-8,3.5Z').attr('transform', `translate(${x2},${y2}) rotate(${turn})`);
  group.append('circle').attr({cx: x1, cy: y1, r: 2});
  group.append('title').text(title);
}

const launchesOf = (run) => ((run.trace && run.trace.launches) || []).filter((l) => l && Array.isArray(l.spans) && l.spans.length);
// That of a row without a pipeline; undefined if it was not traced.
const launchOf = (run, row) => launchesOf(run).find((l) => l.workers === row.workers && String(l.name).split(' ')[0] === row.plain && !/pp\d/.test(l.name));

// Two workers of a run of experiments/lecture/lecture.toml on two cores, 2026-11-28: the figures of its ring x 2 and one step of
// the trace, as its page has them. A ring that hides half of its communication, for the pages of runs without such a row.
const EXAMPLE = {"run_id":"lecture.toml","summary":[{"figures":{"strategy":"ring","workers":2,"servers":0,"basis":"measured","step_ms":265.1495,"compute_ms":168.2016,"comm_busy_ms":210.0879,"exposed_comm_ms":96.9461,"wait_ms":7.3014},"buckets":{"bytes":[4724288,75264]}}],
    "trace":{"most_spans":1500,"launches":[{"name":"ring x 2","algorithm":"ring","workers":2,"ms":282.9232,
    "spans":[[0,"forward",-1,0,39.8879],[0,"backward",-1,39.8879,110.9825],[0,"communication",0,48.5438,230.5859],[0,"exposed",-1,150.8704,132.0383],[0,"optimizer",0,279.1301,0.8218],[0,"communication",1,279.9531,2.9577],[0,"optimizer",1,282.911,0.0123],[1,"forward",-1,0.0911,71.2004],[1,"backward",-1,71.2915,111.4741],[1,"communication",0,80.6786,190.2231],[1,"exposed",-1,182.7656,99.375],[1,"optimizer",0,270.9021,0.8436],[1,"communication",1,271.7473,10.3951],[1,"optimizer",1,282.1429,0.0119]],
    "arrows":[[0,1,0,48.5438,270.9018],[1,0,0,80.6786,279.1297],[0,1,1,279.9531,282.1425],[1,0,1,271.7473,282.9108]],"arrows_left_out":0}]}};

// Begins with the launch `first`, if any, which may be that of EXAMPLE.
function drawTimeline(parent, run, redraw, first) {
  const launches = unique([...launchesOf(run), ...(first ? [first] : [])]);
  if (!launches.length) return;
  const recorded = (l) => launchesOf(EXAMPLE).includes(l), nameOf = (l) => (recorded(l) ? t('recorded', l.name) : l.name);
  const talking = launches.filter((l) => l.spans.some((span) => span[1] === 'communication'));
  // The default is the largest all-reduce, if any.
  const telling = talking.slice().sort((a, b) => !!b.algorithm - !!a.algorithm || (b.workers || 0) - (a.workers || 0))[0];
  const launch = launches.find((l) => nameOf(l) === timelineChoice.launch) || first || telling || launches[0];
  const of = recorded(launch) ? EXAMPLE : run;
  const simulated = launch.simulated && Array.isArray(launch.simulated.spans) ? launch.simulated : null;
  const spansOf = (list, first) => list.map(([rank, name, bucket, begin, ms, action = '']) => ({rank, name, bucket, begin, ms, end: begin + ms,
      action, row: rank + first}));
  const spans = spansOf(launch.spans, 0).concat(simulated ? spansOf(simulated.spans, SIMULATED) : []);
  const lanes = layLanes(spans), order = (row) => (row === SERVERS ? SIMULATED - 1 : row);
  const ranks = [...lanes.keys()].sort((a, b) => order(a) - order(b)), tops = new Map();
  let below = 8, heading = 0;
  for (const rank of ranks) {
    if (rank >= SIMULATED && !heading) heading = below += 16;
    tops.set(rank, below);
    below += 10 + LANE * lanes.get(rank);
  }
  const longest = Math.max(launch.ms, simulated ? simulated.ms : 0);
  const kinds = ACTIONS.filter((row) => spans.some((span) => actionRow(span.action) === row));
  const buckets = unique(spans.filter((s) => s.name === 'communication').map((s) => s.bucket)).sort(d3.ascending);
  const sizes = (rowsOf(of).find((row) => launchOf(of, row) === launch) || {}).buckets || [];
  const arrows = arrowsOf(launch, spans);
  const names = launches.map(nameOf), controls = make('div', {class: 'controls'}, labelled(t('launch'),
      choice('launch', names, nameOf(launch), names, (picked) => { timelineChoice.launch = picked; redraw('launch'); })));
  // The run's file lies beside the page that the run wrote.
  if (DATA.runs.length === 1 && !run.source && !run.one_launch && launchesOf(run).length) controls.append(make('a', {href: 'trace.json', download: ''}, t('open_trace')));
  // Shows what has begun by a point in time.
  let seek = () => {};
  if (simulated) {
    const moments = unique(spans.filter((span) => span.row >= SIMULATED).map((span) => span.begin).concat(longest)).sort(d3.ascending);
    const last = moments.length - 1, text = make('output', {id: 'step-clock-text'}, t('time_now', brief(longest), brief(longest)));
    controls.append(labelled(t('clock'), make('input', {type: 'range', id: 'step-clock', min: 0, max: last, value: last, oninput: (event) => {
      seek(moments[event.target.value]);
      text.textContent = t('time_now', brief(moments[event.target.value]), brief(longest));
    }}), ' ', text));
  }
  figure(parent, {id: 'step', wide: true, title: nameOf(launch), height: below + 44, controls, recorded: of !== run,
    note: [t('timeline_note', t('trace_rule', of.trace.most_spans), brief(launch.ms), ofRun(of)),
        arrows.length || !simulated ? t(arrows.length ? 'arrows_note' : 'arrows_missing') : '',
      launch.arrows_left_out > 0 ? t('arrows_left_out', launch.arrows_left_out) : '', ranks.includes(SERVERS)
          ? t('server_row_note') : '', simulated ? t('simulated_step', brief(simulated.measured_bubble_ms), brief(simulated.bubble_ms)) : '']
        .filter(Boolean).join(' '),
    rows: spans.map((span) => ({run_id: of.run_id, launch: launch.name, rank: span.rank === SERVERS ? 'servers' : span.rank,
        span: span.name, bucket: span.bucket < 0 ? '' : span.bucket, begin_ms: span.begin, ms: span.ms, action: span.action,
        basis: span.row >= SIMULATED ? 'simulated' : 'measured'})),
    legend: [...['forward', 'backward', 'optimizer'].map((name) => ({label: t(name), colour: spanColour(name), block: true})),
      ...kinds.filter(([, , , text]) => !SPAN_COLOURS[text]).map(([, colour, , text]) => ({label: t(text), colour, block: true})),
      ...(spans.some((span) => span.name === 'bubble') ? [{label: t('bubble'), colour: spanColour('bubble'), block: true}] : []),
      ...buckets.slice(0, 8).map((bucket) => ({label: `${t('communication')} ${bucket}${sizes[bucket] ? ` (${bytesText(sizes[bucket])})` : ''}`,
          colour: spanColour('communication', bucket), block: true})),
      {label: t('exposed_lane'), colour: spanColour('exposed'), block: true}],
    draw: (svg, width, height) => {
      const whole = [-0.02 * longest, 1.02 * longest];
      let shown = whole, now = longest, x;
      const topOf = (span) => tops.get(span.row) + span.lane * LANE, middle = (span) => topOf(span) + 8;
      const showArrows = (layer, span) => {
        for (const arrow of arrows.filter(({tail, head}) => tail === span || head === span)) {
          const down = middle(arrow.head) > middle(arrow.tail) ? 1 : -1, aside = arrow.from === SERVERS || arrow.to === SERVERS ? 8 * down : 0;
          drawArrow(layer, x(arrow.leaves), middle(arrow.tail) + aside, x(arrow.arrives), middle(arrow.head) - aside, 'var(--ink)',
              `${rankText(arrow.from)} → ${rankText(arrow.to)}, ${t('bucket')} ${arrow.bucket}`);
        }
      };
      const render = () => {
        svg.selectAll('*').remove();
        x = d3.scale.linear().domain(shown).range([70, width - 10]).clamp(true);
        svg.append('g').attr('class', 'axis').attr('transform', `translate(0,${height - 34})`)
            .call(d3.svg.axis().scale(x).orient('bottom').ticks(Math.min(10, width / 70)).tickSize(-(height - 40)).tickFormat(brief));
        svg.append('text').attr({x: width - 10, y: height - 4, 'text-anchor': 'end'}).text(t('ms'));
        ranks.forEach((rank) => svg.append('text').attr('class', 'row')
            .attr({x: 64, y: tops.get(rank) + lanes.get(rank) * LANE / 2 + 4, 'text-anchor': 'end'}).text(rankText(rank)));
        if (heading) svg.append('text').attr({class: 'row', x: 70, y: heading - 6}).text(t('simulated_rows'));
        // Everything but the actions of a micro-batch.
        const dim = (others) => bars.selectAll('rect').style('opacity', (span) => (others(span) ? 0.25 : opacity(span)));
        const opacity = (span) => (span.begin > now ? 0.1 : span.name === 'exchange' ? 0.85 : 1);
        const bars = svg.append('g'), layer = svg.append('g').style('pointer-events', 'none');
        for (const span of spans.filter((s) => s.end >= shown[0] && s.begin <= shown[1])) {
          const wide = Math.max(1, x(span.end) - x(span.begin)), derived = span.name === 'exchange', of = microBatch(span.action);
          const outline = span.name === 'bubble' ? 'var(--faint)' : derived ? 'var(--ink)' : 'var(--panel)';
          bars.append('rect').datum(span).attr({x: x(span.begin), y: topOf(span), width: wide, height: 16, rx: 2})
            .style({fill: spanColour(span.name, span.bucket, span.action), stroke: outline, 'pointer-events': 'all',
                'stroke-dasharray': outline === 'var(--panel)' ? 'none' : '3 3', opacity: opacity(span)})
            .on('mouseover', () => (of ? dim((other) => microBatch(other.action) !== of) : showArrows(layer, span)))
            .on('mouseout', () => (of ? dim(() => false) : layer.selectAll('*').remove()))
            .append('title').text(`${rankText(span.rank)}: ${span.action || span.name}${span.bucket >= 0 ? ` ${span.bucket}` : ''}, ${brief(span.ms)} ms`);
          const number = inFlight(span.name) ? span.bucket : of;
          if (number !== '' && wide > 7 * `${number}`.length + 5) bars.append('text').attr({x: x(span.begin) + wide / 2, y: topOf(span) + 12, 'text-anchor': 'middle'})
              .style({fill: of ? actionRow(span.action)[2] : ofBucket(BUCKET_TEXT, span.bucket), 'pointer-events': 'none', opacity: opacity(span)}).text(number);
        }
        if (now < longest) svg.append('line').attr({x1: x(now), x2: x(now), y1: 0, y2: height - 34}).style('stroke', 'var(--ink)');
      };
      seek = (time) => {
        now = time;
        render();
      };
      svg.on('wheel', () => {
        const out = d3.event.deltaY > 0, [from, to] = shown, at = x.invert(d3.mouse(svg.node())[0]), factor = out ? 1.25 : 0.8;
        if (out && shown === whole) return;  // the page scrolls
        d3.event.preventDefault();
        const next = [Math.max(whole[0], at - (at - from) * factor), Math.min(whole[1], at + (to - at) * factor)];
        shown = next[0] === whole[0] && next[1] === whole[1] ? whole : next;
        render();
      });
      render();
    }});
}
