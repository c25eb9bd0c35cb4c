// Measured against predicted steps: the residuals of `compare --predict`.

const LEDGER = [
  ['col_step', (row) => row.figures.step_ms], ['ledger_predicted', (row) => row.prediction.step_ms],
      ['ledger_residual', (row) => row.prediction.residual.ms],
  ['ledger_computing', (row) => row.prediction.residual.computing_ms],
      ['ledger_waiting', (row) => row.prediction.residual.waiting_ms],
  ['ledger_update', (row) => row.prediction.residual.update_ms],
      ['ledger_congestion', (row) => row.prediction.residual.congestion_ms],
  ['ledger_scheduling', (row) => row.prediction.residual.scheduling_ms],
      ['ledger_unexplained', (row) => row.prediction.residual.unexplained_ms],
];

function drawLedger(parent, run) {
  const rows = (run.summary || []).filter((row) => row && row.figures && row.prediction && row.prediction.residual);
  if (!rows.length) return;
  const signed = (value, i) => (!isNumber(value) ? '' : i < 2 ? brief(value)
      : `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(1)}`);
  const head = make('tr', {}, make('th', {scope: 'col'}, t('strategy')), make('th', {scope: 'col'}, t('workers')),
      ...LEDGER.map(([key]) => make('th', {scope: 'col'}, t(key))));
  const body = make('tbody');
  for (const row of rows) {
    const name = row.figures.servers > 1 ? `${row.figures.strategy}, ${row.figures.servers} ${t('servers_word')}`
        : String(row.figures.strategy);
    body.append(make('tr', {}, make('th', {scope: 'row'}, name), make('td', {}, String(row.figures.workers)),
        ...LEDGER.map(([, value], i) => make('td', {}, signed(value(row), i)))));
  }
  parent.append(make('h3', {}, t('ledger_title')), make('div',
      {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': t('ledger_title')},
    make('table', {id: 'ledger'}, make('thead', {}, head), body)), make('p', {class: 'note'}, t('ledger_note')));
}
