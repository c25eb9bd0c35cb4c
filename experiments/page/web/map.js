// Whether a ring or servers are faster, by gradient size and number of workers, from the cost terms and the sliders, with
// the run's own comparisons.

const MAP_SIZES = d3.range(61).map((i) => 1e3 * Math.pow(10, i * 7 / 60));  // 1 kB to 10 GB
const MAP_EVEN = 1.1;  // smaller ratios count as equal

// Which one is faster, and by how much.
function fieldOf(ratio) {
  if (ratio < MAP_EVEN && ratio > 1 / MAP_EVEN) return 'even';
  const winner = ratio > 1 ? 'ring' : 'server', lead = Math.max(ratio, 1 / ratio);
  return `${winner}-${lead >= 4 ? 'far' : lead >= 2 ? 'clear' : 'near'}`;
}
const FIELD_OPACITY = {far: 0.75, clear: 0.5, near: 0.28};

// The run's rows of a ring and a synchronous server with equal numbers of workers: [{workers, bytes, ring, server}],
// measured or simulated.
function duelsOf(run, basis = 'measured') {
  const rows = rowsOf(run).filter((row) => (row.basis === 'simulated') === (basis === 'simulated') && row.workers > 1 &&
      row.workers <= 64 && row.parameters > 0 && moving(row) > 0 && !row.has_tables);
  return rows.filter((row) => row.plain === 'ring')
      .flatMap((ring) => rows.filter((row) => row.plain === 'ps-sync' && row.workers === ring.workers && row.parameters === ring.parameters)
          .map((server) => ({ring, server})))
    .map(({ring, server}) => ({workers: ring.workers, bytes: ring.parameters * 4, ring: moving(ring), server: moving(server), basis,
        ring_row: ring, server_row: server, ...columns(server, 'servers', 'placement', 'ps_schedule')}));
}

// The duel's times from theory to the step, as {id, server, ring, ratio}: what the server takes over what the ring takes.
function ratiosOf({workers, basis, ring, server, ring_row, server_row}) {
  const rows = [{id: 'law', server: serverGradients(server_row), ring: (DATA.theory.schemes.ring[workers - 1] || [])[1]},
      {id: 'buckets', server: basis === 'measured' && server_row.predicted_comm_ms, ring: ring_row.predicted_comm_ms},
      {id: 'exchange', server, ring}, {id: 'step', server: 1 / server_row.samples_per_s, ring: 1 / ring_row.samples_per_s}];
  return rows.filter((row) => row.server > 0 && row.ring > 0).map((row) => ({...row, ratio: row.server / row.ring}));
}

function drawMap(parent, run, theoryData) {
  const counts = d3.range(2, wish.most + 1), servers = theoryData.servers[wish.servers];
  // Above 1, the ring is faster.
  const ratio = (workers, bytes) => serverSeconds(theoryData, workers, bytes) / ringSeconds(theoryData, workers, bytes);
  const duels = [...duelsOf(run), ...duelsOf(run, 'simulated')].filter((duel) => duel.workers <= wish.most &&
      duel.bytes >= MAP_SIZES[0] && duel.bytes <= MAP_SIZES[60]);
  const rowOf = (basis, workers, gradient_bytes, number, server_over_ring) => ({run_id: run.run_id, basis, workers, gradient_bytes,
    servers: number, server_over_ring});
  const rows = [...counts.flatMap((workers) => MAP_SIZES
      .map((bytes) => rowOf('derived', workers, Math.round(bytes), servers, ratio(workers, bytes)))),
    ...duels.map((duel) => rowOf(duel.basis, duel.workers, duel.bytes, duel.servers, duel.server / duel.ring))];
  const colour = {ring: colourOf('ring'), server: colourOf('ps-sync')};
  figure(parent, {id: 'map', wide: true, title: t('map_title'), height: 360, rows,
    note: t('map_note', SLIDERS.bandwidth.text(wish.bandwidth), secondsText(wish.latency), duels.length ? t('map_here')
        : t(rowsOf(run).some((row) => row.has_tables) ? 'map_tables' : 'map_nowhere'), captionOf(run)),
    legend: [{label: t('map_ring'), colour: colour.ring, block: true},
        {label: t('map_server'), colour: colour.server, block: true},
        {label: t('map_even'), colour: 'var(--rest)', block: true},
      ...unique(duels.map((duel) => duel.basis))
          .map((basis) => ({label: t(`map_point_${basis}`), colour: basis === 'measured' ? 'var(--ink)' : 'var(--faint)',
          mark: 'circle', without_line: true}))],
    draw: (svg, width, height) => {
      const x = d3.scale.log().domain([MAP_SIZES[0], MAP_SIZES[60]]), y = d3.scale.log().domain([1.8, wish.most * 1.1]);
      const under = svg.append('g');
      const plot = axes(svg, width, height, x, y, {xLabel: t('gradient'), yLabel: t('workers'), xFormat: bytesText,
          right: 36, xTicks: d3.range(width < 500 ? 3 : 8).map((i) => Math.pow(10, width < 500 ? 3 + 3 * i : 3 + i)),
          yTicks: [2, 4, 8, 16, 32, 64].filter((n) => n <= wish.most), yFormat: String});
      const half = Math.sqrt(MAP_SIZES[1] / MAP_SIZES[0]),
          edge = (bytes) => Math.max(x.range()[0], Math.min(x.range()[1], x(bytes)));
      for (const workers of counts) {
        const bottom = y(Math.max(1.8, Math.sqrt(workers * (workers - 1)))),
            top = y(Math.min(wish.most * 1.1, Math.sqrt(workers * (workers + 1))));
        let from = 0;
        const fields = MAP_SIZES.map((bytes) => fieldOf(ratio(workers, bytes)));
        fields.forEach((field, i) => {
          if (i + 1 < fields.length && fields[i + 1] === field) return;
          const [winner, lead] = field.split('-');
          under.append('rect').attr({x: edge(MAP_SIZES[from] / half), y: top,
              width: edge(MAP_SIZES[i] * half) - edge(MAP_SIZES[from] / half), height: bottom - top,
              'shape-rendering': 'crispEdges'})
            .style({fill: winner === 'even' ? 'var(--rest)' : colour[winner], opacity: lead ? FIELD_OPACITY[lead] : 0.35,
                stroke: 'none'}).append('title').text(t(`map_${winner}`));
          from = i + 1;
        });
      }
      // The slider's gradient, and the run's own points.
      plot.append('line').attr({x1: x(wish.gradient), x2: x(wish.gradient), y1: y.range()[0], y2: y.range()[1]})
          .attr('class', 'theory').style({stroke: 'var(--ink)', opacity: MAP_SIZES[0] <= wish.gradient &&
          wish.gradient <= MAP_SIZES[60] ? 1 : 0});
      for (const duel of duels) {
        const winner = duel.server > duel.ring ? 'ring' : 'server';
        const simulated = duel.basis === 'simulated';  // hollow and dashed, to differ from measured ones
        plot.append('circle').attr({cx: x(duel.bytes), cy: y(duel.workers), r: 8, class: 'own-point'})
            .style({fill: simulated ? 'var(--panel)' : colour[winner], stroke: simulated ? colour[winner] : 'var(--ink)',
            'stroke-width': 2.5, 'stroke-dasharray': simulated ? '4 3' : 'none'})
          .append('title').text(t(`map_duel_${duel.basis}`, duel.workers, brief(duel.ring), brief(duel.server)));
      }
    }});
}
