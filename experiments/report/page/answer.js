// The answer: the findings and the table as psring computed them; nothing is computed here.

// Sentences that psring wrote, in the page's language; a folder may contain English only.
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
    parent.append(make('p', {class: 'missing'}, t('invalid', invalid.length === rows.length ? t('every_row') : invalid.map(rowName)
        .join(', '))));
  }
  if (run.table) parent.append(answerTable(run.table[language]));
  drawLedger(parent, run);
  if (predicted.said.length) parent.append(make('pre', {id: 'predicted', lang: predicted.lang}, predicted.said));
  if (others.length) {
    const list = make('ul', {id: 'findings', lang: findings.lang});
    for (const sentence of others) list.append(make('li', {}, sentence));
    parent.append(make('h3', {}, t(findings.lang === language ? 'findings' : 'findings_english')), list);
  }
}

// Notes that are too long for a column are numbered below the table.
const LONG_NOTE = 64;

// {columns: [{heading, mark}], rows: [[cell]], legend: [sentence]}; the first column names the row, the last is its note.
function answerTable({columns, rows, legend}) {
  const body = make('tbody'), notes = make('ol', {class: 'note'});
  const below = (text) => (text.length <= LONG_NOTE ? text
      : (notes.append(make('li', {lang: 'en'}, text)), `→ ${notes.childElementCount}`));
  for (const [name, ...cells] of rows) {
    const note = cells.pop();
    body.append(make('tr', {}, make('th', {scope: 'row'}, name), ...cells.map((cell) => make('td', {}, cell)),
        make('td', {class: 'col_note'}, below(note))));
  }
  return make('div', {}, make('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': t('answer')},
    make('table', {id: 'summary-table'},
        make('thead', {}, make('tr', {}, ...columns.map(({heading, mark}) => make('th', {scope: 'col'}, `${heading} ${mark}`)))), body)),
    notes.childElementCount ? notes : null, make('p', {class: 'note'}, legend.join(' ')));
}
