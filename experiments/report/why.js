// The two things to take home, each with this run's own numbers put in: what one server costs beside a ring, and what
// asynchrony trades.

function drawWhyServer(parent, run) {
  const bytes = gradientOf(run), workers = d3.max(rowsOf(run).filter((row) => row.workers > 1), (row) => row.workers);
  parent.append(make('h3', {}, t('why_title')), make('p', {id: 'why'}, t('why')));
  if (bytes && workers) {
    parent.append(make('p', {id: 'why-here'}, t('why_here', workers, megabytes(bytes), megabytes(2 * workers * bytes),
        megabytes(2 * (workers - 1) / workers * bytes), brief(workers * workers / (workers - 1)))));
  }
}

// The run's asynchronous row of most workers that has a synchronous one beside it.
function asynchronousPair(run) {
  const rows = rowsOf(run).filter((row) => row.workers > 1 && row.samples_per_s > 0).sort((a, b) => b.workers - a.workers);
  return rows.filter((row) => row.plain === 'ps-async')
      .map((row) => ({row, waiting: rows.find((r) => r.plain === 'ps-sync' && r.workers === row.workers && r.basis === row.basis)}))
      .find((pair) => pair.waiting);
}

function drawWhyAsynchronous(parent, run) {
  const pair = asynchronousPair(run);
  parent.append(make('h3', {}, t('async_title')), make('p', {id: 'async-why'}, t('async_why')));
  if (!pair) return;
  const {row, waiting} = pair;
  parent.append(make('p', {id: 'async-here'}, t('async_here', row.workers, withThousands(row.samples_per_s),
      withThousands(waiting.samples_per_s), isNumber(row.staleness_mean) ? row.staleness_mean.toFixed(2)
      : '?') + (row.basis === 'simulated' ? ` (${t('simulated_word')})` : '') +
    (isNumber(row.test_accuracy) && isNumber(waiting.test_accuracy)
        ? t('async_accuracy', row.test_accuracy.toFixed(4), waiting.test_accuracy.toFixed(4)) : '')));
}
