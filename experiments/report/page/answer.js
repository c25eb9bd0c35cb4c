// The first screen: the verdict, whether to trust it, where the time of a step goes, the table. Verdict, findings, table
// and residuals are what psring wrote into the run folder.

// The sentences of psring in the page's language, or in English if the folder has no Chinese.
function printed(run, key) {
  const chinese = language === 'zh' && run[`${key}_zh`] && run[`${key}_zh`].length;
  return {said: run[chinese ? `${key}_zh` : key] || [], lang: chinese ? 'zh-CN' : 'en'};
}

// The last paragraph of a prediction is its verdict.
const lastParagraph = (text) => text.trim().split(/\n\s*\n/).pop().replace(/\n/g, language === 'zh' ? '' : ' ');

function drawAnswer(parent, run) {
  const predicted = printed(run, 'predicted'), findings = printed(run, 'findings');
  const verdict = (run.table && run.table[language].verdict) || (predicted.said.length && lastParagraph(predicted.said)) || benchLead(run);
  const [first, ...others] = verdict ? [verdict, ...findings.said] : findings.said;
  if (first) parent.append(make('p', {class: 'lead', id: 'lead', lang: verdict ? null : findings.lang}, first));
  const {state, why} = trustOf(run);
  if (state) parent.append(make('p', {id: 'trust', class: `badge ${state}`}, make('strong', {}, t(`trust_${state}`)), ` ${why}`));
  drawSplit(parent, run);
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

// Whether the run's times can be trusted: {state: valid, limited, simulated or invalid; why}.
function trustOf(run) {
  const rows = rowsOf(run), manifest = run.manifest || {};
  if (!rows.length) return {};
  const named = (list) => (list.length === rows.length ? t('every_row') : list.map(rowName).join(', '));
  const invalid = rows.filter((row) => row.valid === false);
  if (invalid.length) {
    const disturbed = d3.max(invalid, (row) => row.foreign_cpu_pct) || 0, gpus = invalid.some((row) => /not a measurement/.test(row.note || ''));
    return {state: 'invalid', why: gpus ? t('trust_gpus', named(invalid)) : t('trust_disturbed', named(invalid), brief(disturbed))};
  }
  if (run.predicted) {
    const outside = rows.filter((row) => /extrapolated/.test(row.note || ''));
    const all = outside.length >= rows.filter((row) => row.plain !== 'none').length;
    return {state: 'simulated', why: t(!outside.length ? 'trust_predicted' : all ? 'trust_all_outside' : 'trust_outside', named(outside))};
  }
  if (rows.some((row) => row.time_scale > 1)) return {state: 'simulated', why: t('trust_scaled', d3.max(rows, (row) => row.time_scale))};
  if (allSimulated) return {state: 'simulated', why: t('trust_virtual')};
  const several = rows.filter((row) => row.workers > 1), timed = rows.filter((row) => row.rounds.step_ms && row.rounds.step_ms.length);
  const rounds = d3.min(timed, (row) => row.repeats) || 0, limits = [];
  const turns = several.filter((row) => crowded(run, row));
  if (turns.length) limits.push(t('trust_turns', named(turns), (manifest.machine || {}).cores || '?'));
  if (several.length && several.every((row) => row.shaping === 'none' || !row.shaping)) limits.push(t('trust_loopback'));
  if (timed.length && rounds < 2) limits.push(t('trust_one_round'));
  if (run.one_launch) return {state: 'limited', why: t('trust_records')};  // of trainer --record
  if (limits.length) return {state: 'limited', why: limits.join(' ')};
  return {state: 'valid', why: t('trust_fine', rounds, brief(d3.max(rows, (row) => row.foreign_cpu_pct) || 0))};
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
