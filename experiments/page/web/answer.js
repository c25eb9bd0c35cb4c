// The first screen: the verdict's facts, whether to trust it, where the time of a step goes, the tables. Verdict, findings, table
// and residuals are what psring wrote into the run folder.

// The sentences of psring in the page's language, or in English if the folder has no Chinese.
function printed(run, key) {
  const chinese = language === 'zh' && run[`${key}_zh`] && run[`${key}_zh`].length;
  return {said: run[chinese ? `${key}_zh` : key] || [], lang: chinese ? 'zh-CN' : 'en'};
}

// The last paragraph of a prediction is its verdict.
const lastParagraph = (text) => text.trim().split(/\n\s*\n/).pop().replace(/\n/g, language === 'zh' ? '' : ' ');

// What heads the page; '' without one, as of a training.
function verdictOf(run) {
  const predicted = printed(run, 'predicted').said;
  return (run.table && run.table[language].verdict) || (predicted.length && lastParagraph(predicted)) || benchLead(run) || '';
}

function drawAnswer(parent, run) {
  const predicted = printed(run, 'predicted'), findings = printed(run, 'findings'), verdict = verdictOf(run);
  const others = findings.said.slice(verdict ? 0 : 1), lead = verdict ? (DATA.pool || DATA.beside ? verdict : '') : findings.said[0];
  const facts = (run.table && run.table[language].facts) || [], {state, title, why} = trustOf(run);
  parent.append(make('div', {id: 'said'}, lead ? make('p', {class: 'lead', id: 'lead', lang: verdict ? null : findings.lang}, lead) : null,
      facts.length ? make('dl', {id: 'facts'}, ...facts.flatMap(([label, text]) => [make('dt', {}, label), make('dd', {}, text)])) : null,
      state ? make('p', {id: 'trust', class: `badge ${state}`}, make('strong', {}, title), `${language === 'zh' ? '' : ' '}${why}`) : null,
      state === 'invalid' ? commandAgain(run) : null));
  drawSplit(parent, run);
  drawSpeeds(parent, run);
  drawBench(parent, run);
  const more = (id, title, ...children) => parent.append(make('details', {class: 'printed', id}, make('summary', {}, title), ...children));
  if (run.table) more('table', t('table'), answerTable(run.table[language]));
  if (others.length) {
    more('more-findings', t(findings.lang.startsWith(language) ? 'findings' : 'findings_english'),
        make('ul', {id: 'findings', lang: findings.lang}, ...others.map((sentence) => make('li', {}, sentence))));
  }
  if (predicted.said.length) more('prediction', t('prediction'), make('pre', {id: 'predicted', lang: predicted.lang}, predicted.said));
  const residuals = residualTable(run);
  if (residuals) more('residual-part', t('residual_title'), ...residuals);
}

// How to run a comparison again; null for other verbs.
function commandAgain({manifest, folder}) {
  const {verb, command_line: [program] = []} = manifest || {};
  if (verb !== 'compare' || typeof program !== 'string') return null;
  const command = /\/build\/[^/]+\/bin\/psring$/.test(program) ? './run' : quoted(program);
  return make('p', {id: 'again', class: 'badge invalid'}, t('trust_again', `${command} compare --config ${quoted(`${folder}/config.toml`)}`));
}

// The table beside the verdict.
function drawSpeeds(parent, run) {
  const rows = shownRows(rowsOf(run).filter((row) => row.samples_per_s > 0));
  if (!rows.length) return;
  const shared = placesOf(run);
  parent.append(make('div', {id: 'speeds-box'}, scrollTable({id: 'speeds'}, t('throughput_title'), ['strategy', 'samples_per_s', 'machines_interval', 'exposed_ms', 'hidden_word_ms'].map((key) => t(key)),
      rows.map((row) => [rowHead(rowName(row)), withThousands(row.samples_per_s), intervalText(row), ...(communicates(row) ? [row.exposed_comm_ms, communicationOf(row).hidden].map(brief) : ['', ''])])),
  make('p', {class: 'note'}, [asTaken(t('speeds_note')), rows.some((row) => row.plain === 'none') ? t('speeds_none') : '', shared.length === 1 ? t('servers_are', shared[0]) : ''].filter(Boolean).join(' '))));
}

// Whether the times that the answer uses can be trusted: {state: valid, limited, simulated or invalid; title, why}. psring wrote it
// into table.json; a prediction has no table.
function trustOf(run) {
  if (!run.predicted) return (run.table && run.table[language].validity) || {};
  const rows = rowsOf(run), outside = rows.filter((row) => /extrapolated|described network only/.test(row.note || ''));
  const all = outside.length >= rows.filter((row) => row.plain !== 'none').length;
  const named = outside.length === rows.length ? t('every_row') : outside.map(rowName).join(t('comma'));
  return rows.length ? {state: 'simulated', title: t('trust_simulated'),
      why: t(!outside.length ? 'trust_predicted' : all ? 'trust_all_outside' : 'trust_outside', named)} : {};
}

// Longer notes become numbered notes below the table, each once.
const LONG_NOTE = 24;

// {columns: [{heading, mark}], rows: [[cell]], legend: [sentence]}. The first column is the row's name, the last its note.
function answerTable({columns, rows, legend}) {
  const notes = [];
  const below = (text) => {
    if (text.length <= LONG_NOTE) return text;
    if (!notes.includes(text)) notes.push(text);
    return `→ ${notes.indexOf(text) + 1}`;
  };
  const table = scrollTable({id: 'summary-table'}, t('table'), columns.map(({heading, mark}) => `${heading} ${mark}`),
      rows.map(([name, ...cells]) => [rowHead(name), ...cells.slice(0, -1), make('td', {class: 'col_note'}, below(cells.pop()))]));
  return make('div', {}, table, notes.length ? make('ol', {class: 'note', id: 'footnotes'}, ...notes.map((text) => make('li', {}, text)))
      : null, make('p', {class: 'note'}, legend.join(' ')));
}

// Measured and predicted steps, with the components of the difference (`compare --predict`).
const RESIDUAL_PARTS = ['computing', 'waiting', 'update', 'congestion', 'scheduling', 'unexplained'];

function residualTable(run) {
  const rows = (run.summary || []).filter((row) => row && row.figures && row.prediction && row.prediction.residual);
  if (!rows.length) return null;
  const signed = (value) => (isNumber(value) ? `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(1)}` : '');
  const heads = [t('strategy'), t('workers'), t('col_step'), ...['predicted', 'residual', ...RESIDUAL_PARTS]
      .map((column) => t(`residual_${column}`))];
  return [scrollTable({id: 'residuals'}, t('residual_title'), heads,
      rows.map(({figures, prediction: {step_ms, residual}}) => [rowHead(withServers(figures)), String(figures.workers),
        brief(figures.step_ms), brief(step_ms), signed(residual.ms),
        ...RESIDUAL_PARTS.map((column) => signed(residual[`${column}_ms`]))])), make('p', {class: 'note'}, t('residual_note'))];
}
