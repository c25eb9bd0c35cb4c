// Puts the page together, and again when the reader chooses another run or language.

const DATA = JSON.parse(document.getElementById('data').textContent);
let chosenRun = 0;

// What cannot be drawn says so, and the other parts stand.
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

const WORDS = [
  ['rank', 'rank', 'w_rank'], ['bucket (DDP)', 'bucket', 'w_bucket'], [null, 'chunk', 'w_chunk'], [null, 'round', 'w_round'],
  [null, 'push, pull', 'w_push'], [null, 'staleness', 'w_stale'], ['optimizer.step()', 'step', 'w_step'],
];

function drawWords(parent, run) {
  const table = (heads, rows, id) => make('table', {class: 'words', id}, make('thead', {}, make('tr', {}, ...heads.map((head) => make('th', {scope: 'col'}, head)))),
    make('tbody', {}, ...rows.map((row) => make('tr', {}, ...row.map((cell) => make('td', {}, cell))))));
  parent.append(make('div', {class: 'scroll'}, table([t('psring_says'), t('pytorch'), t('meaning')], WORDS.map(([theirs, ours, key]) => [ours, theirs || t('none_in_pytorch'), t(key)]))));
  const rows = rowsOf(run), list = (found, value) => found.map((row) => `${rowName(row)} ${value(row)}`).join(', ');
  const rings = rows.filter((row) => row.plain === 'ring' && row.payload_tx_bytes_per_worker > 0);
  const server = rows.filter((row) => row.server_payload_bytes > 0 && row.workers > 1).pop();
  const stale = rows.filter((row) => row.plain === 'ps-async' && isNumber(row.staleness_mean) && row.workers > 1);
  parent.append(make('h3', {}, t('notes_title')), make('div', {class: 'scroll'}, table([t('notes_claim'), t('notes_run')], [
    [t('claim_constant'), t('claim_constant_run', rings.length ? t('claim_constant_here', list(rings, (row) => `${megabytes(row.payload_tx_bytes_per_worker)} MB`)) : '')],
    [t('claim_bytes'), t('claim_bytes_run', server ? t('claim_bytes_here', megabytes(server.server_payload_bytes), megabytes(server.payload_tx_bytes_per_worker)) : '')],
    [t('claim_stale'), t('claim_stale_run', stale.length ? t('claim_stale_here', list(stale, (row) => row.staleness_mean.toFixed(2))) : '')],
    [t('claim_nccl'), t('claim_nccl_run')]], 'claims')));
}

// An argument as a shell takes it.
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replace(/'/g, `'\\''`)}'`);

function drawSettings(parent, run) {
  const manifest = run.manifest || {};
  if (Array.isArray(manifest.command_line)) parent.append(make('h3', {}, t('again')), make('pre', {id: 'command'}, manifest.command_line.map(quoted).join(' ')));
  const block = (title, value, printed = true) => {
    if (value === undefined || value === null || (Array.isArray(value) && !value.length)) return;
    parent.append(make('details', {class: printed ? 'printed' : ''}, make('summary', {}, title), make('pre', {}, JSON.stringify(value, null, 1))));
  };
  block(t('machine'), manifest.machine);
  block(t('software'), manifest.versions);
  block(t('network'), manifest.link);
  block(t('notes'), manifest.notes);
  const {machine, versions, link, notes, command_line: _, ...others} = manifest;
  block(t('configurations'), others, false);  // dozens of pages
  parent.append(make('details', {}, make('summary', {}, t('files')), make('p', {class: 'note'}, [t('csv_rule', run.csv_lines), t('steps_rule', run.steps.most_points), t('trace_rule', run.trace.most_spans)].join(' '))));
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
  contents.replaceChildren(...[...document.querySelectorAll('main section')].map((section) => make('a', {href: `#${section.id}`}, section.querySelector('h2').textContent)));

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
  const timelineAgain = (id) => { part('timeline-body', (parent) => drawTimeline(parent, run, timelineAgain)); document.getElementById(id).focus(); };
  part('timeline-body', (parent) => drawTimeline(parent, run, timelineAgain));
  let wishesChanged = () => {};
  part('play-body', (parent) => { wishesChanged = drawStepper(parent, DATA.schedules.schedules); });
  part('theory-body', (parent) => drawTheory(parent, run, DATA.theory, wishesChanged, (id) => { draw(); document.getElementById(id).focus(); }));
  part('words-body', (parent) => drawWords(parent, run));
  part('settings-body', (parent) => drawSettings(parent, run));
  if (focus) document.getElementById(focus).focus();
}

(function begin() {
  language = DATA.language;
  const choice = document.getElementById('run');
  DATA.runs.forEach((run, i) => choice.append(make('option', {value: i}, run.run_id)));
  document.getElementById('run-choice').hidden = DATA.runs.length < 2;
  choice.addEventListener('change', () => { chosenRun = +choice.value; resetWish(DATA.runs[chosenRun]); draw('run'); });
  document.getElementById('language').addEventListener('click', () => { language = language === 'zh' ? 'en' : 'zh'; draw('language'); });
  document.getElementById('theme').addEventListener('click', () => {
    const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
  });
  document.getElementById('notice').textContent = document.getElementById('d3-notice').textContent;
  addEventListener('beforeprint', () => document.querySelectorAll('details.printed').forEach((d) => { d.open = true; }));
  // Drawings are as wide as there was room.
  let width = innerWidth, waiting = 0;
  addEventListener('resize', () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; draw(); } }, 300);
  });
  resetWish(DATA.runs[chosenRun]);
  draw();
})();
