// A benchmark: bus bandwidth against message size. And the network between the machines of a run.

const benchRows = (run) => parseCsv(run.bench_csv).filter((row) => numberOf(row.size) > 0 && numberOf(row.workers) > 0);
const benchName = (row) => [row.backend, row.algorithm, row.transport, row.buffers].filter(Boolean)
    .join(' ') + (row.collective === 'all_reduce' ? '' : ` ${row.collective}`);
const busbwOf = (row) => numberOf(row.out_of_place_busbw_gb_s) || numberOf(row.in_place_busbw_gb_s);

function benchLead(run) {
  const rows = benchRows(run);
  if (!rows.length) return '';
  const workers = d3.max(rows, (row) => +row.workers),
      size = d3.max(rows.filter((row) => +row.workers === workers), (row) => +row.size);
  const largest = rows.filter((row) => +row.workers === workers && +row.size === size && isNumber(busbwOf(row)));
  const fastest = unique(largest.map((row) => row.collective)).map((collective) => largest
      .filter((row) => row.collective === collective).reduce((best, row) => (busbwOf(row) > busbwOf(best) ? row : best)));
  return fastest.length ? t('lead_bench', bytesText(size), workers, fastest.map((row) =>
      t('lead_bench_one', benchName(row), brief(busbwOf(row)))).join(t('semicolon'))) : '';
}

function drawBench(parent, run) {
  const rows = benchRows(run).filter((row) => isNumber(busbwOf(row)));
  for (const workers of unique(rows.map((row) => row.workers))) {
    const here = rows.filter((row) => row.workers === workers), names = unique(here.map(benchName));
    const sizes = d3.extent(here, (row) => +row.size);
    figure(parent, {id: `bench-${workers}`, title: t('bench_title', workers),
        note: t('bench_note', ofRun(run), here[0].samples), rows: here, wide: names.length > 4,
        legend: strategyLegend(names),
      draw: (svg, width, height) => {
        const x = d3.scale.log().domain(sizes[0] === sizes[1] ? [sizes[0] / 2, sizes[0] * 2] : sizes), y = d3.scale.linear()
            .domain([0, d3.max(here, busbwOf) * 1.05]);
        const plot = axes(svg, width, height, x, y, {xLabel: t('message'), yLabel: t('busbw'), xFormat: bytesText,
            xTicks: unique(here.map((row) => +row.size)).filter((_, i, all) => i % Math.ceil(all.length / 7) === 0)});
        for (const name of names) {
          const points = here.filter((row) => benchName(row) === name).sort((a, b) => a.size - b.size);
          plot.append('path').attr('d', d3.svg.line().x((p) => x(+p.size)).y((p) => y(busbwOf(p)))(points))
              .style({fill: 'none', stroke: colourOf(name), 'stroke-width': 1.8});
          for (const p of points) mark(plot, markOf(name), x(+p.size), y(busbwOf(p)), colourOf(name), false,
              `${name}, ${bytesText(+p.size)}: ${brief(busbwOf(p))} GB/s`);
        }
      }});
  }
}

// The rates and latencies between machines as one table; a row is the sending machine. Rates are relative to the fastest one.
function drawNetwork(parent, run) {
  const {link, machines} = run.manifest || {}, network = (link && link.network) || {}, rates = network.pair_mb_per_s;
  const isMatrix = (rows) => Array.isArray(rows) && rows.every((row) => Array.isArray(row) && row.length === rows.length && row.every(isNumber));
  if (!isMatrix(rates) || !isMatrix(network.latency_us) || network.latency_us.length !== rates.length) return;
  const gbit = (rate) => (isNumber(rate) && rate > 0 ? brief(rate * 8e-3) : ''), fastest = d3.max(rates, (row) => d3.max(row));
  const nameOf = (node) => `${node}${Array.isArray(machines) && machines[node] ? ` (${machines[node]})` : ''}`;
  const cell = (rate, title) => make('td', {title, style: `background: rgba(214, 96, 77, ${rate > 0 ? brief(0.6 * (1 - rate / fastest)) : 0})`}, gbit(rate));
  const shared = [['network_into', network.into_each_mb_per_s], ['network_ring', network.all_at_once_mb_per_s]].filter(([, list]) => Array.isArray(list));
  parent.append(make('h3', {}, t('network_title', rates.length)), scrollTable({id: 'network-rates'}, t('network_title', rates.length),
      [t('network_from'), ...rates.map((_, node) => String(node)), ...shared.map(([key]) => t(key))],
      rates.map((row, from) => [rowHead(nameOf(from)),
        ...row.map((rate, to) => cell(rate, rate > 0 ? t('network_cell', from, to, gbit(rate), brief(network.latency_us[from][to])) : '')),
        ...shared.map(([, list]) => gbit(list[from]))])),
  make('p', {class: 'note', id: 'network-note'}, [t('network_note'), slowestText(network.slowest)].join(' ')));
}

function slowestText(slowest) {
  if (!slowest || !slowest.much_slower) return slowest ? t('network_even') : '';
  const where = slowest.what === 'node' ? t('network_node', slowest.from) : t('network_link', slowest.from, slowest.to);
  return isNumber(slowest.mb_per_s) ? t('network_slow', where, brief(slowest.mb_per_s * 8e-3), brief(slowest.others_mb_per_s * 8e-3))
      : t('network_late', where, brief(slowest.latency_us), brief(slowest.others_latency_us));
}
