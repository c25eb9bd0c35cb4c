// A figure: title, note, legend, drawing, buttons; and the lines-and-points chart that most figures use.

// {id, title, note, rows (for the CSV), legend: [{label, colour, mark, dashed, block, without_line}], controls, wide, recorded (of a run that was measured),
// height (a number, or a function of the width), draw(svg, width, height)}
function figure(parent, spec) {
  const svg = d3.select(document.createElementNS('http://www.w3.org/2000/svg', 'svg')).attr('role', 'img')
      .attr('aria-label', spec.title);
  const box = make('figure', {id: spec.id, class: spec.wide ? 'wide' : ''},
    make('figcaption', {}, make('h3', {}, spec.title), TEXTS[`see_${spec.id}`] ? make('p', {class: 'see'}, t(`see_${spec.id}`)) : null,
        spec.note.trim() ? make('details', {class: 'printed'}, make('summary', {class: 'how'}, t('how_measured')), make('p', {class: 'note'}, spec.recorded ? spec.note : asTaken(spec.note))) : null));
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
  const width = Math.max(280, Math.min(1140, box.clientWidth - 26)), height = typeof spec.height === 'function' ? spec.height(width) : spec.height || 300;
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
    if (entry.block) svg.append('rect').attr({x: 4, y: 1, width: 16, height: 10})
        .style(entry.colour === 'none' ? {fill: 'none', stroke: 'var(--faint)', 'stroke-dasharray': '3 2'} : {fill: entry.colour});
    else if (!entry.without_line) svg.append('line').attr({x1: 0, x2: 26, y1: 6, y2: 6}).attr('class', entry.dashed ? 'theory' : '')
        .style({stroke: entry.colour, 'stroke-width': 2});
    if (entry.mark) svg.append('path').attr('transform', 'translate(13,6)').attr('d', d3.svg.symbol().type(entry.mark).size(50)())
        .style('fill', entry.colour);
    box.append(make('span', {}, svg.node(), entry.label));
  }
  return box;
}

const strategyLegend = (names) => names.map((name) => ({label: name, colour: colourOf(name), mark: markOf(name)}));

// About the width of a label. Chinese characters are twice as wide as others.
const textWidth = (text) => d3.sum([...text], (c) => (c >= '\u2e80' ? 12.2 : 6.8));

// The margin that the longest of `names` needs.
const labelWidth = (names, width) => Math.min(width * 0.45, d3.max(names, textWidth) + 26);

// The lines of a label that may be `room` wide. Lines break at spaces and between Chinese characters.
function wrapped(text, room) {
  const lines = [''];
  for (const word of text.match(/[\u2e80-\uffff]|[^\s\u2e80-\uffff]+|\s+/g) || []) {
    const last = lines[lines.length - 1];
    if (last.trim() === '' || textWidth(last + word.trimEnd()) <= room) lines[lines.length - 1] = last.trimStart() + word;
    else lines.push(word.trimStart());
  }
  return lines.map((line) => line.trim()).filter(Boolean);
}

const LINE = 14;  // the height of a line

function drawLines(group, x, y, lines) {
  lines.forEach((line, i) => group.append('text').attr({x, y: y + LINE * i}).text(line));
}

// Names at the right ends of lines, moved apart if they would overlap. ends: [{name, text, y}]; `range`: the highest and
// lowest place.
function directLabels(plot, x, [top, bottom], ends) {
  const room = plot.node().ownerSVGElement.viewBox.baseVal.width - x - 14, sorted = ends.slice().sort((a, b) => a.y - b.y);
  const lines = sorted.map(({text}) => wrapped(text, room)), places = sorted.map(({y}) => Math.max(top, Math.min(bottom, y)));
  for (let i = 1; i < places.length; ++i) places[i] = Math.max(places[i], places[i - 1] + LINE * lines[i - 1].length);
  for (let i = places.length - 1, below = bottom + LINE; i >= 0; --i) {
    places[i] = Math.min(places[i], below - LINE * lines[i].length);
    below = places[i];
  }
  sorted.forEach(({name}, i) => {
    plot.append('path').attr('transform', `translate(${x + 5},${places[i] - 4})`).attr('d', d3.svg.symbol().type(markOf(name)).size(40)())
        .style('fill', colourOf(name));
    drawLines(plot, x + 13, places[i], lines[i]);
  });
}

// Axes in a drawing of width x height: {x, y, plot}. `xTicks`: the values to mark; default: D3's choice. `right`: the margin
// for labels.
function axes(svg, width, height, x, y, spec) {
  const margin = {left: 58, right: spec.right || 24, top: 26, bottom: 40};
  x.range([margin.left, width - margin.right]);
  y.range([height - margin.bottom, margin.top]);
  const across = d3.svg.axis().scale(x).orient('bottom').tickSize(4).tickFormat(spec.xFormat || brief);
  if (spec.xTicks) across.tickValues(apart(spec.xTicks, x, spec.xFormat || brief)); else across.ticks(Math.min(6, width / 80));
  const up = d3.svg.axis().scale(y).orient('left').ticks(6).tickSize(-(width - margin.left - margin.right))
      .tickFormat(spec.yFormat || brief);
  if (spec.yTicks) up.tickValues(spec.yTicks);
  svg.append('g').attr('class', 'axis').attr('transform', `translate(0,${height - margin.bottom})`).call(across);
  svg.append('g').attr('class', 'axis').attr('transform', `translate(${margin.left},0)`).call(up);
  svg.append('text').attr({x: width - margin.right, y: height - 6, 'text-anchor': 'end'}).text(spec.xLabel);
  svg.append('text').attr({x: 6, y: 14}).text(spec.yLabel);
  return svg.append('g');
}

// The ticks whose labels do not overlap earlier ones.
function apart(values, x, format) {
  let end = -Infinity;
  return values.filter((value) => {
    const half = textWidth(format(value)) / 2, begins = x(value) - half;
    if (begins < end + 4) return false;
    end = begins + 2 * half;
    return true;
  });
}

// Ticks of a logarithmic axis: 1, 2, 5 of each power of ten, or fewer if there are many.
function logTicks(low, high) {
  const powers = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  const digits = powers.length > 4 ? [1] : powers.length > 2 ? [1, 3] : [1, 2, 5];
  return [].concat(...powers.map((power) => digits.map((digit) => digit * Math.pow(10, power))))
      .filter((v) => v >= low * 0.999 && v <= high * 1.001);
}

// A line through points with the colour and dashes of a strategy.
const drawCurve = (plot, points, across, up, name, width = 2.2) => plot.append('path').attr('d', d3.svg.line().x(across).y(up)(points))
    .style({fill: 'none', stroke: colourOf(name), 'stroke-width': width, 'stroke-dasharray': dashOf(name)});

function mark(group, type, x, y, colour, hollow, title) {
  const path = group.append('path').attr('transform', `translate(${x},${y})`).attr('d', d3.svg.symbol().type(type).size(64)())
    .style({fill: hollow ? 'var(--panel)' : colour, stroke: colour, 'stroke-width': 1.5});
  path.append('title').text(title);
}

// Points by number of workers with a line through their means and the name at its end; theory is a thin line with ticks. Values
// over more than a decade and a half have a logarithmic axis.
// series: [{name, points: [{x, y, low, high, hollow, title, dots: [y]}], theory: [{x, y}]}]
function linesChart(svg, width, height, series, spec) {
  const everything = [].concat(...series.map((s) => s.points.concat(s.theory || [])));
  const counts = unique(everything.map((p) => p.x)).sort(d3.ascending);
  const values = everything.flatMap((p) => [p.y, p.low, p.high, ...(p.dots || [])]).filter((v) => v > 0);
  const low = d3.min(values), high = d3.max(values), logarithmic = high > 30 * low;
  const last = counts[counts.length - 1];
  const x = last > 16 ? d3.scale.log().domain([counts[0] * 0.9, last * 1.1]) : d3.scale.linear().domain([counts[0] - 0.3, last + 0.3]);
  const y = logarithmic ? d3.scale.log().domain([low * 0.8, high * 1.2]).clamp(true) : d3.scale.linear().domain([0, high * 1.05]);
  const right = labelWidth(series.map((s) => s.name), width);
  const plot = axes(svg, width, height, x, y, {...spec, right, xLabel: t('workers'), xFormat: String,
      xTicks: counts.filter((_, i) => i % Math.ceil(counts.length / 8) === 0), yTicks: logarithmic ? logTicks(low * 0.8, high * 1.2) : null});
  // Side by side if they would overlap.
  const aside = (i) => (i - (series.length - 1) / 2) * Math.min(9, 60 / series.length);
  series.forEach((s, i) => {
    const colour = colourOf(s.name), at = (p) => x(p.x) + aside(i), up = (p) => y(p.y);
    if (s.theory && s.theory.length) drawCurve(plot, s.theory, at, up, s.name, 1).attr('class', 'theory').style('stroke-dasharray', null);
    for (const p of s.theory || []) plot.append('line').attr({x1: at(p) - 6, x2: at(p) + 6, y1: y(p.y), y2: y(p.y)})
        .style({stroke: 'var(--ink)', 'stroke-width': 2}).append('title').text(p.title);
    drawCurve(plot, s.points, at, up, s.name, 1.8);
    for (const p of s.points) {
      for (const dot of p.dots || []) plot.append('circle').attr({cx: at(p), cy: y(dot), r: 2.2})
          .style({fill: colour, opacity: 0.45});
      if (isNumber(p.low) && isNumber(p.high)) plot.append('line').attr({x1: at(p), x2: at(p), y1: y(p.low), y2: y(p.high)})
          .style({stroke: colour, 'stroke-width': 2});
      mark(plot, markOf(s.name), at(p), y(p.y), colour, p.hollow || s.simulated, p.title);
    }
  });
  directLabels(plot, width - right + 4, [20, height - 44], series.map((s) => ({name: s.name, text: s.name, y: y(s.points[s.points.length - 1].y)})));
}
