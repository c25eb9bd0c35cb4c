// Two explanations with this run's numbers: the cost of one server against a ring, and the trade-off of asynchrony.

// The traffic of the busiest link in one exchange by psring's cost models, in pieces of M/of bytes. `returns`: the second
// half are weights sent back.
function linksOf(theory, workers) {
  const server = (place, way) => theory.server[place][way][0][workers - 1][1], ring = theory.schemes.ring[workers - 1][1];
  return [{key: 'link_serial', gradients: server('dedicated', 'serial'), of: 1, returns: true},
      {key: 'link_pipelined', gradients: server('dedicated', 'pipelined'), of: 1},
      {key: 'link_rank0', gradients: server('rank0', 'serial'), of: 1, returns: true},
      {key: 'link_rank0_pipelined', gradients: server('rank0', 'pipelined'), of: 1},
      {key: 'link_ring', gradients: ring, of: workers}]
    .map((link) => ({...link, pieces: Math.round(link.gradients * link.of), times: link.gradients / ring}));
}

// One block per piece; its length is proportional to its time.
function drawLinks(parent, run, workers) {
  const links = linksOf(DATA.theory, workers), rowHeight = 44, left = 10, most = d3.max(links, (link) => link.gradients);
  figure(parent, {id: 'links', wide: true, title: t('links_title', workers), height: 8 + rowHeight * links.length,
    note: t('links_note', captionOf(run)),
    rows: links.map((link) => ({run_id: run.run_id, basis: 'computed', workers, scheme: link.key.slice(5), pieces: link.pieces,
        gradients_per_piece: 1 / link.of, gradients_through_the_link: link.gradients, times_the_ring: link.times})),
    draw: (svg, width) => {
      const x = d3.scale.linear().domain([0, most]).range([left, width - 14]);
      links.forEach((link, i) => {
        const top = 8 + i * rowHeight, colour = link.key === 'link_ring' ? colourOf('ring') : colourOf('ps-sync');
        svg.append('text').attr({x: left, y: top + 10}).text(t('links_row', t(link.key), brief(link.gradients), brief(link.times)));
        for (let piece = 0; piece < link.pieces; ++piece) svg.append('rect')
            .attr({x: x(piece / link.of), y: top + 16, width: Math.max(0.5, x(1 / link.of) - x(0) - (workers > 16 ? 0.3 : 1.2)), height: 16})
            .style({fill: colour, opacity: link.returns && piece >= link.pieces / 2 ? 0.6 : 1});
      });
    }});
}

function drawWhyServer(parent, run) {
  const most = DATA.theory.workers.length, bytes = gradientOf(run);
  const workers = d3.max(rowsOf(run).filter((row) => row.workers > 1 && row.workers <= most), (row) => row.workers);
  const steps = make('ol', {id: 'why'}), chart = make('div');
  for (const key of ['why_server', 'why_ring', 'why_ratio_here', 'why_halves', 'why_price']) steps.append(make('li', {}, t(key)));
  parent.append(make('h3', {}, t('why_title')), make('p', {}, t('why_count')), chart, steps);
  const redraw = () => { chart.replaceChildren(); drawLinks(chart, run, wish.ranks); };
  redraw();
  if (bytes && workers) {
    const links = linksOf(DATA.theory, workers), find = (key) => links.find((link) => link.key === key);
    const server = find('link_serial'), ring = find('link_ring');
    parent.append(make('p', {id: 'why-here'}, t('why_here', workers, megabytes(bytes), megabytes(server.gradients * bytes),
        megabytes(ring.gradients * bytes), brief(server.times))));
  }
  return redraw;
}

// The asynchronous row with the most workers that has a synchronous counterpart.
function asynchronousPair(run) {
  const rows = rowsOf(run).filter((row) => row.workers > 1 && row.samples_per_s > 0).sort((a, b) => b.workers - a.workers);
  return rows.filter((row) => row.plain === 'ps-async')
      .map((row) => ({row, waiting: rows.find((r) => r.plain === 'ps-sync' && r.workers === row.workers && r.basis === row.basis)}))
      .find((pair) => pair.waiting);
}

function drawWhyAsynchronous(parent, run) {
  const pair = asynchronousPair(run);
  const trade = make('ul', {id: 'async-why'});
  for (const key of ['async_gain', 'async_price', 'async_so']) {
    const [word, ...rest] = t(key).split(/(?<=[.。])/);
    trade.append(make('li', {}, make('strong', {}, word), rest.join('')));
  }
  parent.append(make('h3', {}, t('async_title')), trade);
  if (!pair) return;
  const {row, waiting} = pair;
  parent.append(make('p', {id: 'async-here'}, t('async_here', row.workers, withThousands(row.samples_per_s),
      withThousands(waiting.samples_per_s), isNumber(row.staleness_mean) ? row.staleness_mean.toFixed(2)
      : '?') + (row.basis === 'simulated' ? ` (${t('simulated_word')})` : '') +
    (isNumber(row.test_accuracy) && isNumber(waiting.test_accuracy)
        ? t('async_accuracy', row.test_accuracy.toFixed(4), waiting.test_accuracy.toFixed(4), row.workers) : '')));
}
