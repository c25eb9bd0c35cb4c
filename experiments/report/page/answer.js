// The answer: findings, table and residuals as psring wrote them into the run folder.

// The sentences of psring in the page's language, or in English if the folder has no Chinese.
function printed(run, key) {
  const chinese = language === 'zh' && run[`${key}_zh`] && run[`${key}_zh`].length;
  return {said: run[chinese ? `${key}_zh` : key] || [], lang: chinese ? 'zh' : 'en'};
}

function drawAnswer(parent, run) {
  const predicted = printed(run, 'predicted'), findings = printed(run, 'findings');
  const [lead, ...others] = findings.said.length ? findings.said : [benchLead(run)];
  if (lead) parent.append(make('p', {class: 'lead', id: 'lead', lang: findings.lang}, lead));
  const rows = rowsOf(run), invalid = rows.filter((row) => row.valid === false);
  if (invalid.length) {
    const names = invalid.length === rows.length ? t('every_row') : invalid.map(rowName).join(', ');
    parent.append(make('p', {class: 'missing'}, t('invalid', names)));
  }
  if (run.table) parent.append(answerTable(run.table[language]));
  drawResiduals(parent, run);
  if (predicted.said.length) parent.append(make('pre', {id: 'predicted', lang: predicted.lang}, predicted.said));
  if (others.length) {
    parent.append(make('h3', {}, t(findings.lang === language ? 'findings' : 'findings_english')),
        make('ul', {id: 'findings', lang: findings.lang}, ...others.map((sentence) => make('li', {}, sentence))));
  }
}

// Longer notes become numbered notes below the table.
const LONG_NOTE = 64;

// {columns: [{heading, mark}], rows: [[cell]], legend: [sentence]}. The first column is the row's name, the last its note.
function answerTable({columns, rows, legend}) {
  const notes = make('ol', {class: 'note'});
  const below = (text) => (text.length <= LONG_NOTE ? text
      : (notes.append(make('li', {lang: 'en'}, text)), `→ ${notes.childElementCount}`));
  const table = scrollTable({id: 'summary-table'}, t('answer'), columns.map(({heading, mark}) => `${heading} ${mark}`),
      rows.map(([name, ...cells]) => [rowHead(name), ...cells.slice(0, -1), make('td', {class: 'col_note'}, below(cells.pop()))]));
  return make('div', {}, table, notes.childElementCount ? notes : null, make('p', {class: 'note'}, legend.join(' ')));
}

// Measured and predicted steps, with the components of the difference (`compare --predict`).
const RESIDUAL_PARTS = ['computing', 'waiting', 'update', 'congestion', 'scheduling', 'unexplained'];

function drawResiduals(parent, run) {
  const rows = (run.summary || []).filter((row) => row && row.figures && row.prediction && row.prediction.residual);
  if (!rows.length) return;
  const signed = (value) => (isNumber(value) ? `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(1)}` : '');
  const heads = [t('strategy'), t('workers'), t('col_step'), ...['predicted', 'residual', ...RESIDUAL_PARTS]
      .map((part) => t(`residual_${part}`))];
  parent.append(make('h3', {}, t('residual_title')), scrollTable({id: 'residuals'}, t('residual_title'), heads,
      rows.map(({figures, prediction: {step_ms, residual}}) => [rowHead(withServers(figures)), String(figures.workers),
        brief(figures.step_ms), brief(step_ms), signed(residual.ms),
        ...RESIDUAL_PARTS.map((part) => signed(residual[`${part}_ms`]))])), make('p', {class: 'note'}, t('residual_note')));
}
