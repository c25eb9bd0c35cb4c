// Draws the page: the answer at once, the other parts when they are open. Draws again when the reader selects another run
// or language.

const DATA = JSON.parse(document.getElementById('data').textContent);
DATA.strategies.forEach(placeOf);
let chosenRun = 0;

const PARTS = {words: drawWords, servers: drawServers, ring: drawRing, overlap: drawOverlap, asynchronous: drawAsynchronous,
    theory: drawTheory, pipeline: drawPipeline, charts: drawCharts, settings: drawSettings};
const drawn = new Set();  // parts that show the present run, language and width

// A part that cannot be drawn shows an error; the others are not affected.
function part(id, draw) {
  const parent = document.getElementById(`${id}-body`);
  parent.replaceChildren();
  try {
    draw(parent, DATA.runs[chosenRun]);
    if (!parent.childNodes.length) parent.append(make('p', {}, t('no_data')));
  } catch (error) {
    parent.append(make('p', {class: 'missing'}, t('not_drawn', error.message)));
  }
}

// Draws a part again and returns the focus to a control in it.
function redraw(id, focus) {
  part(id, PARTS[id]);
  const control = document.getElementById(focus);
  if (control) control.focus();
}

function drawOpen() {
  for (const [id, draw] of Object.entries(PARTS)) {
    if (!document.getElementById(id).open || drawn.has(id)) continue;
    drawn.add(id);
    part(id, draw);
  }
}

function drawMissing(parent, runs) {
  for (const run of runs) {
    const {finished, cost} = run.manifest || {}, name = runs.length > 1 ? ` (${run.run_id})` : '';
    if (finished === false && cost && cost.rounds_done > 0) {
      parent.append(make('p', {class: 'missing'}, t('unfinished', cost.rounds_done, cost.rounds_planned) + name));
    }
    if (!run.missing || !run.missing.length) continue;
    const list = make('ul');
    for (const {file, why} of run.missing) list.append(make('li', {}, `${file}: ${why}`));
    parent.append(make('div', {class: 'missing'}, make('p', {}, t('missing') + name), list));
  }
}

// Quotes an argument for a shell.
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replace(/'/g, `'\\''`)}'`);

function drawSettings(parent, run) {
  const manifest = run.manifest || {};
  if (Array.isArray(manifest.command_line)) parent.append(make('p', {}, t('again')),
      make('pre', {id: 'command'}, manifest.command_line.map(quoted).join(' ')));
  const block = (title, value, printed = true) => {
    if (value === undefined || value === null || (Array.isArray(value) && !value.length)) return;
    parent.append(make('details', {class: printed ? 'printed' : ''}, make('summary', {}, title),
        make('pre', {}, JSON.stringify(value, null, 1))));
  };
  block(t('machine_title'), manifest.machine);
  block(t('software'), manifest.versions);
  block(t('network'), manifest.link);
  block(t('notes'), manifest.notes);
  const {machine, versions, link, notes, command_line: _, ...others} = manifest;
  block(t('configurations'), others, false);  // dozens of pages
  parent.append(make('p', {class: 'note'}, [t('csv_rule', run.csv_lines), t('steps_rule', run.steps.most_points),
      t('trace_rule', run.trace.most_spans)].join(' ')));
}

function drawCharts(parent, run) {
  const runs = DATA.runs.filter((r) => r.summary);
  drawCommunication(parent, runs);
  drawThroughput(parent, runs);
  drawBytes(parent, run);
  drawMemory(parent, run);
  drawNetwork(parent, run);
}

const nameOfRun = (run) => (run.source ? run.source.replace(/(\/report)?\.html$/, '') : run.run_id);

function draw(focus) {
  document.documentElement.lang = language === 'zh' ? 'zh-CN' : 'en';
  for (const element of document.querySelectorAll('[data-t]')) element.textContent = t(element.dataset.t);
  document.getElementById('language').textContent = t('other_language');
  const run = DATA.runs[chosenRun], verb = (run.manifest && run.manifest.verb) || (run.predicted ? 'predict' : '');
  countsTokens = rowsOf(run).some((row) => isNumber(row.tokens_per_s));
  allSimulated = rowsOf(run).length > 0 && rowsOf(run).every((row) => row.basis === 'simulated');
  const title = DATA.pool ? pooledLead(DATA.pool) : DATA.beside ? t('beside') : verdictOf(run) || `psring ${verb}`;
  document.getElementById('title').textContent = document.title = title;
  document.getElementById('subtitle').textContent = DATA.pool || DATA.beside ? '' : (run.table && run.table[language].settings) || `psring ${verb}`;
  document.getElementById('stamp').textContent = DATA.runs.map((r) => r.run_id).join(', ');
  if (DATA.pool || DATA.beside) {
    document.getElementById('machines-title').textContent = t(DATA.pool ? 'machines' : 'beside');
    part('machines', (parent) => (DATA.pool ? drawMachines(parent, DATA.pool) : drawBeside(parent, DATA.beside)));
    document.getElementById('machines-run').textContent = t('machines_run', nameOfRun(run));
  }
  document.getElementById('story-tables').hidden = !rowsOf(run).some((row) => row.has_tables);
  part('answer', (parent) => { drawMissing(parent, DATA.runs); drawAnswer(parent, run); });
  showScore(run);
  drawn.clear();
  if (focus) {
    drawOpen();
    document.getElementById(focus).focus();
  } else {
    requestAnimationFrame(() => setTimeout(drawOpen, 0));  // after the answer is painted
  }
}

(function begin() {
  language = DATA.language;
  const select = document.getElementById('run');
  DATA.runs.forEach((run, i) => select.append(make('option', {value: i}, nameOfRun(run))));
  document.getElementById('machines').hidden = !DATA.pool && !DATA.beside;
  document.getElementById('run-choice').hidden = DATA.runs.length < 2;
  select.addEventListener('change', () => { chosenRun = +select.value; resetWish(DATA.runs[chosenRun]); draw('run'); });
  document.getElementById('language').addEventListener('click',
      () => { language = language === 'zh' ? 'en' : 'zh'; draw('language'); });
  document.getElementById('theme').addEventListener('click', () => {
    const {dataset} = document.documentElement;
    dataset.theme = dataset.theme === 'dark' ? 'light' : 'dark';
  });
  document.getElementById('notice').textContent = document.getElementById('d3-notice').textContent;
  for (const id of Object.keys(PARTS)) document.getElementById(id).addEventListener('toggle', drawOpen);
  addEventListener('beforeprint', () => {
    document.querySelectorAll('details.part, details.printed').forEach((d) => { d.open = true; });
    drawOpen();
    document.querySelectorAll('details.printed').forEach((d) => { d.open = true; });
  });
  // Charts have the width of the window.
  let width = innerWidth, waiting = 0;
  addEventListener('resize', () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; draw(); } }, 300);
  });
  resetWish(DATA.runs[chosenRun]);
  draw();
})();
