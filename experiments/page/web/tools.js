// Numbers, elements, downloads. Strings are inserted as text only; nothing parses markup.

// An element: make('p', {class: 'note'}, 'text', child, ...).
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

const button = (id, text, onclick, attributes) => make('button', {type: 'button', id, onclick, ...attributes}, text);

// A select whose options have `names`.
function choice(id, values, value, names, changed) {
  const select = make('select', {id, onchange: (event) => changed(event.target.value)});
  values.forEach((v, i) => select.append(make('option', {value: v}, names[i])));
  select.value = value;
  return select;
}

const labelled = (text, ...controls) => make('label', {}, `${text} `, ...controls);

// rows: [[cell]], each cell a text or an element.
function scrollTable(attributes, label, heads, rows) {
  const cells = (row) => row.map((cell) => (cell instanceof Element ? cell : make('td', {}, cell)));
  return make('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label}, make('table', attributes,
      make('thead', {}, make('tr', {}, ...heads.map((head) => (head ? make('th', {scope: 'col'}, head) : make('td'))))),
      make('tbody', {}, ...rows.map((row) => make('tr', {}, ...cells(row))))));
}
const rowHead = (text) => make('th', {scope: 'row'}, text);

const unique = (list) => [...new Set(list)];

const isNumber = (value) => typeof value === 'number' && isFinite(value);
const numbersOf = (list) => (Array.isArray(list) ? list.filter(isNumber) : []);

// A CSV field as a number; null if empty.
const numberOf = (text) => (text === undefined || text === null || text === '' || !isFinite(+text) ? null : +text);

function withThousands(value) {
  return isNumber(value) ? Math.round(value).toLocaleString('en-US') : '';
}

// Of samples/s; '' without an interval.
const intervalText = ({samples_per_s_lo95: low, samples_per_s_hi95: high}) => (isNumber(low) && isNumber(high) ? `${withThousands(low)} – ${withThousands(high)}` : '');

// About three digits: 0.0123, 1.23, 123, 12,300.
function brief(value) {
  if (!isNumber(value)) return '';
  if (Math.abs(value) < 1e-9) return '0';  // rounding
  if (Math.abs(value) < 1000) return String(+value.toPrecision(3));
  return withThousands(value);
}

const megabytes = (bytes) => brief(bytes / 1e6);

function bytesText(bytes) {
  if (bytes >= 1e9) return brief(bytes / 1e9) + ' GB';
  if (bytes >= 1e6) return brief(bytes / 1e6) + ' MB';
  if (bytes >= 1e3) return brief(bytes / 1e3) + ' kB';
  return brief(bytes) + ' B';
}

function secondsText(seconds) {
  if (seconds >= 1) return brief(seconds) + ' s';
  if (seconds >= 1e-3) return brief(seconds * 1e3) + ' ms';
  return brief(seconds * 1e6) + ' µs';
}

// A strategy has the same colour and mark in every chart. The first places are those of the table of strategies.
const MARKS = ['circle', 'square', 'triangle-up', 'diamond', 'cross', 'triangle-down'];
const places = new Map();
function placeOf(name) {
  if (!places.has(name)) places.set(name, places.size);
  return places.get(name);
}
// The second eight are shifted, so that a schedule does not look like ring or ps-sync.
const shifted = (name) => (placeOf(name) + 2 * Math.floor(placeOf(name) / 8)) % 8;
const colourOf = (name) => `var(--c${shifted(name)})`;
const DASHES = ['none', '8 3', '2 3', '9 3 2 3', '5 5', '12 4', '3 2', '1 4'];
const dashOf = (name) => DASHES[shifted(name)];
const markOf = (name) => MARKS[(placeOf(name) + Math.floor(placeOf(name) / 8)) % MARKS.length];

function download(name, type, text) {
  const link = make('a', {href: URL.createObjectURL(new Blob([text], {type})), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A CSV text as objects by its header. (D3's parser compiles code, which the page's policy forbids.)
function parseCsv(text) {
  const [header, ...rows] = d3.csv.parseRows(text || '');
  return header ? rows.map((row) => Object.fromEntries(header.map((name, i) => [name, row[i]]))) : [];
}

function csvText(rows) {
  if (rows.length === 0) return '';
  const field = (value) => {
    const text = value === null || value === undefined ? '' : String(value);
    return /[",\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  };
  const columns = Object.keys(rows[0]);
  return [columns, ...rows.map((row) => columns.map((column) => row[column]))]
    .map((fields) => fields.map(field).join(',')).join('\n') + '\n';
}

// The drawing as a separate file, including its computed styles.
function svgText(svg) {
  const copy = svg.cloneNode(true);
  const from = [svg, ...svg.querySelectorAll('*')], to = [copy, ...copy.querySelectorAll('*')];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'font-size', 'font-family',
        'text-anchor']) {
      to[i].style.setProperty(name, style.getPropertyValue(name));
    }
  });
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  copy.style.background = getComputedStyle(document.body).backgroundColor;
  return new XMLSerializer().serializeToString(copy);
}
