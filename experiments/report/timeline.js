// One step of a launch as it happened: every rank a row with lanes for computing, buckets in flight, standing still.

// Gives each span its lane in its rank's row: computing first, then as many lanes as buckets are in flight at once,
// then standing still. Returns the number of lanes of a row.
function layLanes(spans) {
  const flights = new Map();  // rank -> when each lane is free again
  for (const span of spans.filter((s) => s.name === 'communication').sort((a, b) => a.begin - b.begin || a.bucket - b.bucket)) {
    if (!flights.has(span.rank)) flights.set(span.rank, []);
    const ends = flights.get(span.rank), free = ends.findIndex((end) => end <= span.begin + 1e-3), lane = free < 0 ? ends.length : free;
    ends[lane] = span.end;
    span.lane = 1 + lane;
  }
  const most = d3.max([...flights.values()], (ends) => ends.length) || 0;
  for (const span of spans) if (span.lane === undefined) span.lane = span.name === 'exposed' ? most + 1 : 0;
  return most + 2;
}

const SPAN_COLOURS = {forward: 'var(--c5)', backward: 'var(--compute)', optimizer: 'var(--c7)', exposed: 'var(--exposed)'};
const BUCKET_COLOURS = ['var(--c2)', 'var(--c4)', 'var(--c3)', 'var(--c6)'];
const spanColour = (name, bucket) => (name === 'communication' ? BUCKET_COLOURS[Math.max(0, bucket) % BUCKET_COLOURS.length] : SPAN_COLOURS[name] || 'var(--rest)');

let chosenLaunch = null;  // by name, kept over redrawing

function drawTimeline(parent, run, redraw) {
  const launches = ((run.trace && run.trace.launches) || []).filter((l) => Array.isArray(l.spans) && l.spans.length);
  if (!launches.length) return parent.append(make('p', {}, t('no_data')));
  const talking = launches.filter((l) => l.spans.some((span) => span[1] === 'communication'));
  const launch = launches.find((l) => l.name === chosenLaunch) || talking[talking.length - 1] || launches[0];
  const select = make('select', {id: 'launch', onchange: (event) => { chosenLaunch = event.target.value; redraw('launch'); }});
  for (const l of launches) select.append(make('option', {}, l.name));
  select.value = launch.name;
  const spans = launch.spans.map(([rank, name, bucket, begin, ms]) => ({rank, name, bucket, begin, ms, end: begin + ms}));
  const ranks = unique(spans.map((span) => span.rank)).sort(d3.ascending);
  const row = 8 + 18 * layLanes(spans), buckets = unique(spans.filter((s) => s.name === 'communication').map((s) => s.bucket)).sort(d3.ascending);
  figure(parent, {id: 'step', wide: true, title: launch.name, note: t('timeline_note', t('trace_rule', run.trace.most_spans), brief(launch.ms), t('caption', run.run_id, '')), height: 50 + row * ranks.length,
    rows: spans.map((span) => ({run_id: run.run_id, launch: launch.name, rank: span.rank, span: span.name, bucket: span.bucket < 0 ? '' : span.bucket, begin_ms: span.begin, ms: span.ms})),
    controls: make('div', {class: 'controls'}, make('label', {}, `${t('launch')} `, select)),
    legend: [...['forward', 'backward', 'optimizer'].map((name) => ({label: t(name), colour: spanColour(name), block: true})),
      ...buckets.slice(0, 8).map((bucket) => ({label: `${t('communication')} ${bucket}`, colour: spanColour('communication', bucket), block: true})),
      {label: t('exposed_lane'), colour: spanColour('exposed'), block: true}],
    draw: (svg, width, height) => {
      const x = d3.scale.linear().domain([-0.02 * launch.ms, 1.02 * launch.ms]).range([70, width - 10]).clamp(true);
      svg.append('g').attr('class', 'axis').attr('transform', `translate(0,${height - 34})`).call(d3.svg.axis().scale(x).orient('bottom').ticks(Math.min(10, width / 70)).tickSize(-(height - 40)).tickFormat(brief));
      svg.append('text').attr({x: width - 10, y: height - 4, 'text-anchor': 'end'}).text(t('ms'));
      ranks.forEach((rank, i) => svg.append('text').attr({x: 64, y: 8 + i * row + row / 2, 'text-anchor': 'end'}).text(`${t('rank')} ${rank}`));
      for (const span of spans) {
        const top = 8 + ranks.indexOf(span.rank) * row + span.lane * 18, wide = Math.max(1, x(span.end) - x(span.begin));
        svg.append('rect').attr({x: x(span.begin), y: top, width: wide, height: 16, rx: 2}).style({fill: spanColour(span.name, span.bucket), stroke: 'var(--panel)'})
          .append('title').text(`${t('rank')} ${span.rank}: ${span.name}${span.bucket >= 0 ? ` ${span.bucket}` : ''}, ${brief(span.ms)} ms`);
        if (span.name === 'communication' && wide > 14) svg.append('text').attr({x: x(span.begin) + wide / 2, y: top + 12, 'text-anchor': 'middle'}).style('fill', '#000').text(span.bucket);
      }
    }});
}
