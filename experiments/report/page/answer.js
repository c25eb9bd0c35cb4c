// The answer: a sentence, a table of all rows, what was printed.

function leadOf(run) {
  const rows = rowsOf(run);
  const noneOf = (row) => rows.find((none) => none.plain === 'none' && none.workers === row.workers && none.basis === row.basis);
  const priced = rows.filter((row) => row.cost && isNumber(row.cost.ms) && row.workers > 1 && noneOf(row));
  const roomy = priced.filter((row) => !crowded(run, row));
  const counts = (roomy.length ? roomy : priced).map((row) => row.workers);
  if (counts.length) {
    const workers = Math.max(...counts);
    const none = noneOf(priced.find((row) => row.workers === workers));
    const costs = priced.filter((row) => row.workers === workers).map((row) => {
      const signed = (value) => (value >= 0 ? '+' : '−') + Math.abs(value).toFixed(1), ms = signed(row.cost.ms);
      return isNumber(row.cost.lo95) ? t('lead_cost_one', row.strategy, ms, signed(row.cost.lo95), signed(row.cost.hi95))
                                     : t('lead_cost_point', row.strategy, ms);
    });
    const text = t('lead_cost', workers, brief(none.step_ms), costs.join(language === 'zh' ? '；' : ', '));
    return roomy.length ? text : text + ' ' + t('lead_crowded');
  }
  if (run.predicted) return '';
  const row = rows.find((r) => isNumber(r.samples_per_s));
  if (row) {
    return t('lead_train', row.strategy, row.workers, language === 'zh' ? 'worker' : row.workers === 1 ? 'worker' : 'workers',
        withThousands(row.samples_per_s), brief(row.step_ms)) +
      (isNumber(row.test_accuracy) ? t('lead_accuracy', String(+row.test_accuracy.toFixed(4))) : '') + (language === 'zh' ? '。'
          : '.');
  }
  return benchLead(run);
}

// What psring wrote in the page's language; a folder may hold the English alone.
function printed(run, key) {
  const chinese = language === 'zh' && run[`${key}_zh`] && run[`${key}_zh`].length;
  return {said: run[chinese ? `${key}_zh` : key], lang: chinese ? 'zh' : 'en'};
}

function drawAnswer(parent, run) {
  const lead = leadOf(run);
  if (lead) parent.append(make('p', {class: 'lead', id: 'lead'}, lead));
  const rows = rowsOf(run);
  const invalid = rows.filter((row) => row.valid === false);
  if (invalid.length) {
    parent.append(make('p', {class: 'missing'}, t('invalid', invalid.length === rows.length ? t('every_row') : invalid.map(rowName)
        .join(', '))));
  }
  if (rows.length) parent.append(answerTable(rows));
  drawLedger(parent, run);
  const predicted = printed(run, 'predicted'), findings = printed(run, 'findings');
  if (predicted.said) parent.append(make('pre', {id: 'predicted', lang: predicted.lang}, predicted.said));
  if ((findings.said || []).length) {
    const list = make('ul', {id: 'findings', lang: findings.lang});
    for (const sentence of findings.said) list.append(make('li', {}, sentence));
    parent.append(make('h3', {}, t(findings.lang === language ? 'findings' : 'findings_english')), list);
  }
}

const TABLE = [
  ['col_samples', (r) => withThousands(r.samples_per_s)],
  ['col_interval', (r) => (isNumber(r.samples_per_s_lo95)
      ? `${withThousands(r.samples_per_s_lo95)}–${withThousands(r.samples_per_s_hi95)}` : '')],
  ['col_step', (r) => brief(r.step_ms)],
  ['col_compute', (r) => brief(r.compute_ms)],
  ['col_exposed', (r) => brief(r.exposed_comm_ms)],
  ['col_comm', (r) => brief(r.comm_busy_ms)],
  ['col_theory', (r) => brief(r.predicted_comm_ms)],
  ['col_sent', (r) => (isNumber(r.payload_tx_bytes_per_worker) ? (r.payload_tx_bytes_per_worker / 1e6).toFixed(2) : '')],
  ['col_stale', (r) => (isNumber(r.staleness_mean) ? r.staleness_mean.toFixed(2) : '')],
  ['col_accuracy', (r) => (isNumber(r.test_accuracy) ? r.test_accuracy.toFixed(4) : '')],
  ['col_basis', (r) => (r.basis === 'simulated' ? t('simulated_word') : '')],
  ['col_note', (r) => r.note || ''],
];

// Notes that are too long for a column stand below the table, numbered.
const LONG_NOTE = 64;

function answerTable(rows) {
  const shown = TABLE.filter(([, cell]) => rows.some((row) => cell(row) !== ''));
  const head = make('tr', {}, make('th', {scope: 'col'}, t('strategy')), make('th', {scope: 'col'}, t('workers')),
      ...shown.map(([key]) => make('th', {scope: 'col'}, asTaken(t(key)))));
  const body = make('tbody'), notes = make('ol', {class: 'note'});
  const below = (text) => (text.length <= LONG_NOTE ? text
      : (notes.append(make('li', {lang: 'en'}, text)), `→ ${notes.childElementCount}`));
  for (const row of rows) {
    body.append(make('tr', {}, make('th', {scope: 'row'}, row.strategy), make('td', {}, String(row.workers)),
        ...shown.map(([key, cell]) => make('td', {class: key}, key === 'col_note' ? below(cell(row)) : cell(row)))));
  }
  return make('div', {}, make('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': t('answer')},
    make('table', {id: 'summary-table'}, make('thead', {}, head), body)), notes.childElementCount ? notes : null,
        make('p', {class: 'note'}, t(allSimulated ? 'table_note_simulated' : 'table_note')));
}
