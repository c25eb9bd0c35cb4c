// A figure: title, note, legend, drawing, buttons; and the lines-and-points chart that most figures use.

// {id, title, note, rows (for the CSV), legend: [{label, colour, mark, dashed, block, alone}], controls, wide, height, draw(svg, width, height)}
function figure(parent, spec) {
  const svg = d3.select(document.createElementNS('http://www.w3.org/2000/svg', 'svg')).attr('role', 'img')
      .attr('aria-label', spec.title);
  const box = make('figure', {id: spec.id, class: spec.wide ? 'wide' : ''},
    make('figcaption', {}, make('h3', {}, spec.title), TEXTS[`see_${spec.id}`] ? make('p', {class: 'see'}, t(`see_${spec.id}`)) : null,
        make('p', {class: 'note'}, asTaken(spec.note))));
  if (spec.controls) box.append(spec.controls);
  if (spec.legend) box.append(legend(spec.legend));
  box.append(svg.node());
  box.append(make('div', {class: 'buttons'},
    make('button', {type: 'button', 'aria-label': `${t('svg')}: ${spec.title}`,
      onclick: () => download(`${spec.id}.svg`, 'image/svg+xml', svgText(svg.node()))}, t('svg')),
    make('button', {type: 'button', 'aria-label': `${t('csv')}: ${spec.title}`,
      onclick: () => download(`${spec.id}.csv`, 'text/csv', csvText(spec.rows))}, t('csv'))));
  parent.append(box);
  // As wide as the container, so text keeps its size on a phone.
  const width = Math.max(280, Math.min(1140, box.clientWidth - 26)), height = spec.height || 300;
  svg.attr('viewBox', `0 0 ${width} ${height}`);
  spec.draw(svg, width, height);
  box.rows = spec.rows;
  return box;
}

// If all rows of the run are simulated, texts say "simulated" instead of "measured".
let allSimulated = false;
const asTaken = (text) => (allSimulated ? text.replace(/\(measured/g, '(simulated').replace(/([（；])测量/g, '$1模拟')
    .replace(/ m$/, ' s') : text);

function legend(entries) {
  const box = make('div', {class: 'legend'});
  for (const entry of entries) {
    const svg = d3.select(document.createElementNS('http://www.w3.org/2000/svg', 'svg')).attr('viewBox', '0 0 26 12')
        .attr('aria-hidden', 'true');
    if (entry.block) svg.append('rect').attr({x: 4, y: 1, width: 16, height: 10}).style('fill', entry.colour);
    else if (!entry.alone) svg.append('line').attr({x1: 0, x2: 26, y1: 6, y2: 6}).attr('class', entry.dashed ? 'theory' : '')
        .style({stroke: entry.colour, 'stroke-width': 2});
    if (entry.mark) svg.append('path').attr('transform', 'translate(13,6)').attr('d', d3.svg.symbol().type(entry.mark).size(50)())
        .style('fill', entry.colour);
    box.append(make('span', {}, svg.node(), entry.label));
  }
  return box;
}

const strategyLegend = (names) => names.map((name) => ({label: name, colour: colourOf(name), mark: markOf(name)}));

// Axes in a drawing of width x height: {x, y, plot}. `xTicks`: the values to mark; default: D3's choice.
function axes(svg, width, height, x, y, spec) {
  const margin = {left: 58, right: 24, top: 26, bottom: 40};
  x.range([margin.left, width - margin.right]);
  y.range([height - margin.bottom, margin.top]);
  const across = d3.svg.axis().scale(x).orient('bottom').tickSize(4).tickFormat(spec.xFormat || brief);
  if (spec.xTicks) across.tickValues(spec.xTicks); else across.ticks(Math.min(6, width / 80));
  const up = d3.svg.axis().scale(y).orient('left').ticks(6).tickSize(-(width - margin.left - margin.right))
      .tickFormat(spec.yFormat || brief);
  if (spec.yTicks) up.tickValues(spec.yTicks);
  svg.append('g').attr('class', 'axis').attr('transform', `translate(0,${height - margin.bottom})`).call(across);
  svg.append('g').attr('class', 'axis').attr('transform', `translate(${margin.left},0)`).call(up);
  svg.append('text').attr({x: width - margin.right, y: height - 6, 'text-anchor': 'end'}).text(spec.xLabel);
  svg.append('text').attr({x: 6, y: 14}).text(spec.yLabel);
  return svg.append('g');
}

// Ticks of a logarithmic axis: 1, 2, 5 of each power of ten, or fewer if there are many.
function logTicks(low, high) {
  const powers = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  const digits = powers.length > 4 ? [1] : powers.length > 2 ? [1, 3] : [1, 2, 5];
  return [].concat(...powers.map((power) => digits.map((digit) => digit * Math.pow(10, power))))
      .filter((v) => v >= low * 0.999 && v <= high * 1.001);
}

function mark(group, type, x, y, colour, hollow, title) {
  const path = group.append('path').attr('transform', `translate(${x},${y})`).attr('d', d3.svg.symbol().type(type).size(64)())
    .style({fill: hollow ? 'var(--panel)' : colour, stroke: colour, 'stroke-width': 1.5});
  path.append('title').text(title);
}

// Points by number of workers, a line through their means, and theory as a dashed line.
// series: [{name, points: [{x, y, low, high, hollow, title, dots: [y]}], theory: [{x, y}]}]
function linesChart(svg, width, height, series, spec) {
  const everything = [].concat(...series.map((s) => s.points.concat(s.theory || [])));
  const counts = d3.set(everything.map((p) => p.x)).values().map(Number).sort(d3.ascending);
  const top = d3.max(everything, (p) => Math.max(p.y, p.high || 0, ...(p.dots || [])));
  const last = counts[counts.length - 1];
  const x = last > 40 ? d3.scale.log().domain([counts[0] * 0.9, last * 1.1]) : d3.scale.linear()
      .domain([counts[0] - 0.3, last + 0.3]);
  const y = d3.scale.linear().domain([0, top * 1.05 || 1]);
  const plot = axes(svg, width, height, x, y, {...spec, xLabel: t('workers'), xTicks: counts.length <= 12 ? counts : null});
  // Side by side if they would overlap.
  const aside = (i) => (i - (series.length - 1) / 2) * Math.min(9, 60 / series.length);
  series.forEach((s, i) => {
    const colour = colourOf(s.name);
    const at = (p) => x(p.x) + aside(i);
    const line = d3.svg.line().x(at).y((p) => y(p.y));
    if (s.theory && s.theory.length) plot.append('path').attr('class', 'theory').attr('d', line(s.theory))
        .style({fill: 'none', stroke: colour, 'stroke-width': 1.5});
    for (const p of s.theory || []) plot.append('line').attr({x1: at(p) - 5, x2: at(p) + 5, y1: y(p.y), y2: y(p.y)})
        .style({stroke: colour, 'stroke-width': 2}).append('title').text(p.title);
    plot.append('path').attr('class', s.simulated ? 'theory' : '').attr('d', line(s.points))
        .style({fill: 'none', stroke: colour, 'stroke-width': 1.8});
    for (const p of s.points) {
      for (const dot of p.dots || []) plot.append('circle').attr({cx: at(p), cy: y(dot), r: 2.2})
          .style({fill: colour, opacity: 0.45});
      if (isNumber(p.low) && isNumber(p.high)) plot.append('line').attr({x1: at(p), x2: at(p), y1: y(p.low), y2: y(p.high)})
          .style({stroke: colour, 'stroke-width': 2});
      mark(plot, markOf(s.name), at(p), y(p.y), colour, p.hollow, p.title);
    }
  });
}
