// One step of a launch: a row per rank with lanes for computation, buckets in flight and waiting. Pointing at a bucket shows
// arrows from its senders to its receivers; the wheel zooms.

const SERVERS = -1;  // the servers' row
const LANE = 18;

// Assigns each span a lane in its rank's row: computation, then one lane per concurrent bucket, then waiting. Returns the
// number of lanes of each row.
function layLanes(spans) {
  const flies = (span) => span.name === 'communication' || span.name === 'exchange';
  const flights = new Map();  // rank -> when each lane is free again
  for (const span of spans.filter(flies).sort((a, b) => a.begin - b.begin || a.bucket - b.bucket)) {
    if (!flights.has(span.rank)) flights.set(span.rank, []);
    const ends = flights.get(span.rank), free = ends.findIndex((end) => end <= span.begin + 1e-3), lane = free < 0 ? ends.length
        : free;
    ends[lane] = span.end;
    span.lane = (span.rank === SERVERS ? 0 : 1) + lane;
  }
  const lanes = new Map();
  for (const rank of unique(spans.map((span) => span.rank))) {
    const most = (flights.get(rank) || []).length;
    for (const span of spans) if (span.rank === rank && span.lane === undefined) span.lane = span.name === 'exposed' ? most + 1 : 0;
    lanes.set(rank, rank === SERVERS ? most : most + 2);
  }
  return lanes;
}

const SPAN_COLOURS = {forward: 'var(--c5)', backward: 'var(--compute)', optimizer: 'var(--c7)', exposed: 'var(--exposed)'};
const BUCKET_COLOURS = ['var(--c2)', 'var(--c4)', 'var(--c3)', 'var(--c6)'];
const BUCKET_TEXT = ['var(--on-c2)', 'var(--on-c4)', 'var(--on-c3)', 'var(--on-c6)'];  // the colour of a number on them
const ofBucket = (list, bucket) => list[Math.max(0, bucket) % list.length];
const inFlight = (name) => name === 'communication' || name === 'exchange';
const spanColour = (name, bucket) => (inFlight(name) ? ofBucket(BUCKET_COLOURS, bucket)
    : SPAN_COLOURS[name] || 'var(--rest)');
const rankText = (rank) => (rank === SERVERS ? t('server_row') : `${t('rank')} ${rank}`);

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

function drawTimeline(parent, run, redraw) {
  const launches = ((run.trace && run.trace.launches) || []).filter((l) => l && Array.isArray(l.spans) && l.spans.length);
  if (!launches.length) return;
  const talking = launches.filter((l) => l.spans.some((span) => span[1] === 'communication'));
  // The default is the largest all-reduce, if any.
  const telling = talking.slice().sort((a, b) => !!b.algorithm - !!a.algorithm || (b.workers || 0) - (a.workers || 0))[0];
  const launch = launches.find((l) => l.name === timelineChoice.launch) || telling || launches[0];
  const spans = launch.spans.map(([rank, name, bucket, begin, ms]) => ({rank, name, bucket, begin, ms, end: begin + ms}));
  const lanes = layLanes(spans), ranks = [...lanes.keys()].sort((a, b) => (a === SERVERS) - (b === SERVERS) || a - b);
  const tops = new Map();
  let below = 8;
  for (const rank of ranks) {
    tops.set(rank, below);
    below += 10 + LANE * lanes.get(rank);
  }
  const buckets = unique(spans.filter((s) => s.name === 'communication').map((s) => s.bucket)).sort(d3.ascending);
  const arrows = arrowsOf(launch, spans);
  const names = launches.map((l) => l.name), controls = make('div', {class: 'controls'}, labelled(t('launch'),
      choice('launch', names, launch.name, names, (picked) => { timelineChoice.launch = picked; redraw('launch'); })));
  // The run's file lies beside the page that the run wrote.
  if (DATA.runs.length === 1 && !run.source && !run.one_launch) controls.append(make('a', {href: 'trace.json', download: ''}, t('open_trace')));
  figure(parent, {id: 'step', wide: true, title: launch.name, height: below + 44, controls,
    note: [t('timeline_note', t('trace_rule', run.trace.most_spans), brief(launch.ms), ofRun(run)),
        t(arrows.length ? 'arrows_note' : 'arrows_missing'),
      launch.arrows_left_out > 0 ? t('arrows_left_out', launch.arrows_left_out) : '', ranks.includes(SERVERS)
          ? t('server_row_note') : ''].filter(Boolean).join(' '),
    rows: spans.map((span) => ({run_id: run.run_id, launch: launch.name, rank: span.rank === SERVERS ? 'servers' : span.rank,
        span: span.name, bucket: span.bucket < 0 ? '' : span.bucket, begin_ms: span.begin, ms: span.ms})),
    legend: [...['forward', 'backward', 'optimizer'].map((name) => ({label: t(name), colour: spanColour(name), block: true})),
      ...buckets.slice(0, 8).map((bucket) => ({label: `${t('communication')} ${bucket}`,
          colour: spanColour('communication', bucket), block: true})),
      {label: t('exposed_lane'), colour: spanColour('exposed'), block: true}],
    draw: (svg, width, height) => {
      const whole = [-0.02 * launch.ms, 1.02 * launch.ms];
      let shown = whole, x;
      const topOf = (span) => tops.get(span.rank) + span.lane * LANE, middle = (span) => topOf(span) + 8;
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
        ranks.forEach((rank) => svg.append('text')
            .attr({x: 64, y: tops.get(rank) + lanes.get(rank) * LANE / 2 + 4, 'text-anchor': 'end'}).text(rankText(rank)));
        const bars = svg.append('g'), layer = svg.append('g').style('pointer-events', 'none');
        for (const span of spans.filter((s) => s.end >= shown[0] && s.begin <= shown[1])) {
          const wide = Math.max(1, x(span.end) - x(span.begin)), derived = span.name === 'exchange';
          bars.append('rect').attr({x: x(span.begin), y: topOf(span), width: wide, height: 16, rx: 2})
            .style({fill: spanColour(span.name, span.bucket), stroke: derived ? 'var(--ink)' : 'var(--panel)',
                'stroke-dasharray': derived ? '3 3' : 'none', opacity: derived ? 0.85 : 1})
            .on('mouseover', () => showArrows(layer, span)).on('mouseout', () => layer.selectAll('*').remove())
            .append('title').text(`${rankText(span.rank)}: ${span.name}${span.bucket >= 0 ? ` ${span.bucket}` : ''}, ${brief(span.ms)} ms`);
          if (inFlight(span.name) && wide > 14) bars.append('text').attr({x: x(span.begin) + wide / 2, y: topOf(span) + 12, 'text-anchor': 'middle'})
              .style({fill: ofBucket(BUCKET_TEXT, span.bucket), 'pointer-events': 'none'}).text(span.bucket);
        }
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
