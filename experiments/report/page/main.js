// Draws the page, and redraws it when the reader selects another run or language.

const DATA = JSON.parse(document.getElementById('data').textContent);
let chosenRun = 0;

// A part that cannot be drawn shows an error; the others are not affected.
function part(id, draw) {
  const parent = document.getElementById(id);
  parent.replaceChildren();
  try {
    draw(parent);
    if (!parent.childNodes.length) parent.append(make('p', {}, t('no_data')));
  } catch (error) {
    parent.append(make('p', {class: 'missing'}, t('not_drawn', error.message)));
  }
}

function drawMissing(parent, runs) {
  for (const run of runs) {
    if (!run.missing || !run.missing.length) continue;
    const list = make('ul');
    for (const {file, why} of run.missing) list.append(make('li', {}, `${file}: ${why}`));
    parent.append(make('div', {class: 'missing'}, make('p', {}, t('missing') + (runs.length > 1 ? ` (${run.run_id})` : '')), list));
  }
}

// Quotes an argument for a shell.
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replace(/'/g, `'\\''`)}'`);

function drawSettings(parent, run) {
  const manifest = run.manifest || {};
  if (Array.isArray(manifest.command_line)) parent.append(make('h3', {}, t('again')),
      make('pre', {id: 'command'}, manifest.command_line.map(quoted).join(' ')));
  const block = (title, value, printed = true) => {
    if (value === undefined || value === null || (Array.isArray(value) && !value.length)) return;
    parent.append(make('details', {class: printed ? 'printed' : ''}, make('summary', {}, title),
        make('pre', {}, JSON.stringify(value, null, 1))));
  };
  block(t('machine'), manifest.machine);
  block(t('software'), manifest.versions);
  block(t('network'), manifest.link);
  block(t('notes'), manifest.notes);
  const {machine, versions, link, notes, command_line: _, ...others} = manifest;
  block(t('configurations'), others, false);  // dozens of pages
  parent.append(make('details', {}, make('summary', {}, t('files')),
      make('p', {class: 'note'}, [t('csv_rule', run.csv_lines), t('steps_rule', run.steps.most_points),
      t('trace_rule', run.trace.most_spans)].join(' '))));
}

function draw(focus) {
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll('[data-t]')) element.textContent = t(element.dataset.t);
  document.getElementById('language').textContent = t('other_language');
  const run = DATA.runs[chosenRun], verb = (run.manifest && run.manifest.verb) || (run.predicted ? 'predict' : '');
  allSimulated = rowsOf(run).length > 0 && rowsOf(run).every((row) => row.basis === 'simulated');
  const title = `psring ${verb} · ${DATA.runs.map((r) => r.run_id).join(', ')}`;
  document.getElementById('title').textContent = title;
  document.title = title;
  const contents = document.getElementById('contents');
  contents.replaceChildren(...[...document.querySelectorAll('main section')].map((section) => make('a', {href: `#${section.id}`},
      section.querySelector('h2').textContent)));

  const way = ['words', 'predict', 'play', 'asynchronous', 'theory',
      'questions'].map((id) => make('a', {href: `#${id}`}, document.querySelector(`#${id} h2`).textContent));
  document.getElementById('tour').replaceChildren(`${t('tour')} `,
      ...[].concat(...way.map((link, i) => (i ? [' → ', link] : [link]))));

  part('answer-body', (parent) => { drawMissing(parent, DATA.runs); drawAnswer(parent, run); });
  const learningAgain = (id) => { part('charts-body', drawCharts); document.getElementById(id).focus(); };
  const drawCharts = (parent) => {
    drawCommunication(parent, DATA.runs.filter((r) => r.summary));
    drawThroughput(parent, DATA.runs.filter((r) => r.summary));
    drawSplit(parent, run);
    drawEfficiency(parent, DATA.runs.filter((r) => r.summary));
    drawBytes(parent, run);
    drawLearning(parent, run, learningAgain);
    drawStaleness(parent, run);
    drawBench(parent, run);
  };
  part('charts-body', drawCharts);
  const timelineAgain = (id) => { part('timeline-body',
      (parent) => drawTimeline(parent, run, timelineAgain)); document.getElementById(id).focus(); };
  part('timeline-body', (parent) => drawTimeline(parent, run, timelineAgain));
  let wishesChanged = () => {};
  part('guess-body', (parent) => drawGuess(parent, run, DATA.theory));
  part('lens-body', (parent) => drawLens(parent, run));
  part('play-body', (parent) => { wishesChanged = drawStepper(parent, run, DATA.schedules.schedules); });
  part('theory-body', (parent) => drawTheory(parent, run, DATA, wishesChanged,
      (id) => { draw(); document.getElementById(id).focus(); }));
  part('questions-body', (parent) => drawQuestions(parent, run));
  part('words-body', (parent) => drawWords(parent, run, DATA.glossary));
  part('settings-body', (parent) => drawSettings(parent, run));
  if (focus) document.getElementById(focus).focus();
}

(function begin() {
  language = DATA.language;
  const choice = document.getElementById('run');
  DATA.runs.forEach((run, i) => choice.append(make('option', {value: i}, run.run_id)));
  document.getElementById('run-choice').hidden = DATA.runs.length < 2;
  choice.addEventListener('change', () => { chosenRun = +choice.value; resetWish(DATA.runs[chosenRun]); draw('run'); });
  document.getElementById('language').addEventListener('click',
      () => { language = language === 'zh' ? 'en' : 'zh'; draw('language'); });
  document.getElementById('theme').addEventListener('click', () => {
    const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === 'dark'
        : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
  });
  document.getElementById('notice').textContent = document.getElementById('d3-notice').textContent;
  addEventListener('beforeprint', () => document.querySelectorAll('details.printed').forEach((d) => { d.open = true; }));
  // Charts have the width of the window.
  let width = innerWidth, waiting = 0;
  addEventListener('resize', () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; draw(); } }, 300);
  });
  resetWish(DATA.runs[chosenRun]);
  draw();
})();
