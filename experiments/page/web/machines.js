// Runs of one plan on several machines: who recommends what, the spread over machines, and what each machine measured.
// The figures are PoolJson's.

const machineName = (machine) => machine.name.replace(/\/report$/, '');

// "123 (100 – 140)".
const spreadText = (spread, format) => (spread ? t('machines_spread', format(spread.median), format(spread.least), format(spread.most)) : '');
const hundredths = (value) => (isNumber(value) ? value.toFixed(2) : '');

// What most machines recommend.
const pooledLead = ({winners, machines}) => (winners.length ? inLanguage(winners[0]) : t('machines_lead', machines.length));

// Runs of different plans: {runs: [name], settings: [[name, value, ...]], rows: [{strategy, workers, servers, runs}]}.
function drawBeside(parent, {runs, settings, rows}) {
  const speed = (one) => (isNumber(one.samples_per_s) ? `${withThousands(one.samples_per_s)} (${intervalText(one)})`.replace(' ()', '') +
      `${isNumber(one.ratio) ? `, × ${hundredths(one.ratio)}` : ''}${one.valid ? '' : ' !'}` : '');
  parent.append(scrollTable({id: 'beside'}, t('beside'), ['', ...runs], [...settings.map(([name, ...values]) => [rowHead(name), ...values]),
      ...rows.map((row) => [rowHead(`${withServers(row)} × ${row.workers}`), ...row.runs.map(speed)])]),
  make('p', {class: 'note'}, t('beside_note')));
}

function drawMachines(parent, pool) {
  const count = pool.machines.length, counted = (row) => (row.samples_per_s ? row.samples_per_s.machines : 0);
  parent.append(make('p', {class: 'lead', id: 'machines-lead'}, t('machines_lead', count)),
    make('ul', {id: 'winners'}, ...pool.winners.map((texts) => make('li', {}, inLanguage(texts)))));
  if (pool.left_out.length) parent.append(make('div', {class: 'missing', id: 'left-out'}, make('p', {}, t('machines_left_out')),
      make('ul', {}, ...pool.left_out.map(({name, why}) => make('li', {}, `${name}: ${inLanguage(why)}`)))));
  drawRatios(parent, pool);
  parent.append(scrollTable({id: 'spread-table'}, t('machines_table'), ['strategy', 'workers', 'samples_per_s', 'machines_efficiency', 'machines_ratio',
      'machines_counted'].map((key) => t(key)), pool.rows.map((row) => [rowHead(withServers(row)), String(row.workers),
      spreadText(row.samples_per_s, withThousands), spreadText(row.efficiency, hundredths),
      row.ratio ? `${spreadText(row.ratio, hundredths)} × ${row.base}${row.ratio.machines < counted(row) ? `${t('comma')}${t('machines_counted')}: ${row.ratio.machines}` : ''}` : '',
      String(counted(row))])),
  make('p', {class: 'note'}, [t('machines_note'), ...pool.rows.map(unevenText)].join(' ').trim()),
  make('details', {class: 'printed', id: 'each-machine'}, make('summary', {}, t('machines_each')), eachMachine(pool)));
}

function eachMachine(pool) {
  const rows = pool.machines.flatMap((machine, i) => pool.rows.map((row) => {
    const {samples_per_s, efficiency, ratio, valid} = row.machines[i], interval = unique(intervalText(row.machines[i]).split(' – ')).join(' – ');
    return [rowHead(machineName(machine)), make('td', {class: 'col_note'}, `${machine.processor}${t('comma')}${t('machines_cores', machine.cores)}`),
      withServers(row), String(row.workers), `${withThousands(samples_per_s)}${valid ? '' : ' !'}`, interval, hundredths(efficiency), hundredths(ratio),
      make('td', {class: 'col_note'}, machine.recommended ? machine.recommended.join(t('comma')) || t('machines_none') : '?')];
  }));
  return scrollTable({id: 'each-machine-table'}, t('machines_each'), ['machine', 'processor', 'strategy', 'workers', 'samples_per_s', 'machines_interval',
      'machines_efficiency', 'machines_ratio', 'machines_recommends'].map((key) => t(key)), rows);
}

// A dot per machine: samples/s divided by those of the machine's own row `base`.
function drawRatios(parent, pool) {
  const shown = pool.rows.filter((row) => row.ratio);
  if (!shown.length) return;
  const nameOf = (row) => `${withServers(row)} × ${row.workers}`, points = shown.flatMap((row) => row.machines
      .map((figures, i) => ({machine: machineName(pool.machines[i]), strategy: row.strategy, workers: row.workers, servers: row.servers, base: row.base, ...figures}))
      .filter((point) => isNumber(point.ratio)));
  const least = d3.min(points, (p) => p.ratio), most = d3.max(points, (p) => p.ratio), logarithmic = most > 10 * least;
  figure(parent, {id: 'machines-ratios', wide: true, title: t('machines_ratio_title', unique(shown.map((row) => row.base)).join(t('comma'))),
    note: t('machines_ratio_note', pool.machines.length), rows: points, height: 54 + 30 * shown.length,
    draw: (svg, width, height) => {
      const left = Math.min(width * 0.5, 7 * d3.max(shown, (row) => nameOf(row).length) + 12), bottom = height - 38;
      const domain = logarithmic ? [least * 0.9, most * 1.1] : [0, Math.max(1, most) * 1.05];
      const x = (logarithmic ? d3.scale.log() : d3.scale.linear()).domain(domain).range([left, width - 60]);
      const axis = d3.svg.axis().scale(x).orient('bottom').tickSize(-(bottom - 6)).tickFormat(brief);
      if (logarithmic) axis.tickValues(logTicks(...domain)); else axis.ticks(Math.max(2, Math.min(8, (width - left) / 70)));
      svg.append('g').attr('class', 'axis').attr('transform', `translate(0,${bottom})`).call(axis);
      svg.append('text').attr({x: width - 14, y: height - 6, 'text-anchor': 'end'}).text(t('machines_ratio'));
      shown.forEach((row, i) => {
        const y = 21 + i * 30;
        svg.append('text').attr({x: left - 6, y: y + 4, 'text-anchor': 'end'}).text(nameOf(row));
        svg.append('line').attr({x1: x(row.ratio.least), x2: x(row.ratio.most), y1: y, y2: y}).style({stroke: colourOf(row.strategy), 'stroke-width': 2});
        for (const figures of points.filter((p) => p.strategy === row.strategy && p.workers === row.workers && p.servers === row.servers)) {
          mark(svg, markOf(row.strategy), x(figures.ratio), y, colourOf(row.strategy), !figures.valid, `${figures.machine}: ${hundredths(figures.ratio)}`);
        }
        svg.append('line').attr({x1: x(row.ratio.median), x2: x(row.ratio.median), y1: y - 11, y2: y + 11}).style({stroke: 'var(--ink)', 'stroke-width': 2.5});
        svg.append('text').attr({x: x(row.ratio.most) + 10, y: y + 4}).text(hundredths(row.ratio.median));
      });
    }});
}
