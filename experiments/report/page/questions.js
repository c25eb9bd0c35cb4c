// A guess at the start of each part: the reader enters a number, then sees the run's value.

// {id: {unit, value, text, why}}, only questions for which the run has data.
function questionsOf(run) {
  const rows = rowsOf(run).filter((row) => row.workers > 1), list = {};
  const most = (keep) => rows.filter(keep).sort((a, b) => b.workers - a.workers)[0];
  const ask = (id, unit, value, texts, reasons) => {
    if (isNumber(value)) list[id] = {id, unit, value, text: t(`ask_${id}`, ...texts), why: t(`why_${id}`, ...reasons)};
  };
  const ring = most((row) => row.algorithm === 'ring' && row.payload_tx_bytes_per_worker > 0 && row.parameters > 0);
  if (ring) {
    ask('ring_bytes', 'MB', ring.payload_tx_bytes_per_worker / 1e6, [megabytes(ring.parameters * 4), ring.workers],
        [ring.workers, megabytes(ring.predicted_payload_bytes_per_worker)]);
  }
  const server = most((row) => row.plain === 'ps-sync' && row.server_payload_bytes > 0 && !summedServers(row) && row.parameters > 0);
  if (server) {
    const bytes = server.parameters * 4;
    ask('server_bytes', 'MB', server.server_payload_bytes / 1e6, [megabytes(bytes), server.workers, server.servers],
        [server.workers, server.servers, megabytes(2 * server.workers * bytes / (server.servers || 1))]);
  }
  const duel = duelsOf(run).concat(duelsOf(run, 'simulated')).sort((a, b) => b.workers - a.workers)[0];
  if (duel) ask('ratio', '×', duel.server / duel.ring, [duel.workers, placedText(duel)],
      [brief(duel.server), brief(duel.ring), isNumber(duel.theory) ? t('why_ratio_theory', brief(duel.theory)) : '', duel.basis ===
      'simulated' ? t('simulated_word') : t('measured')]);
  const stale = most((row) => row.plain === 'ps-async' && isNumber(row.staleness_mean));
  if (stale) ask('staleness', t('updates_word'), stale.staleness_mean, [stale.workers], [stale.workers - 1]);
  const waits = most((row) => communicates(row) && row.step_ms > 0 && row.exposed_comm_ms > 0 &&
      ['ring', 'ps-sync'].includes(row.plain));
  if (waits) ask('exposed', '%', 100 * waits.exposed_comm_ms / waits.step_ms, [waits.strategy, waits.workers],
      [brief(waits.exposed_comm_ms), brief(waits.step_ms), reasonOf(waits)]);
  const pair = asynchronousPair(run);
  if (pair) ask('speedup', '×', pair.row.samples_per_s / pair.waiting.samples_per_s, [pair.row.workers],
      [withThousands(pair.row.samples_per_s), withThousands(pair.waiting.samples_per_s), leadReason(pair)]);
  const bench = benchRows(run).filter((row) => row.collective === 'all_reduce' && /ring/.test(row.algorithm || '') &&
      isNumber(numberOf(row.out_of_place_busbw_gb_s)) && numberOf(row.out_of_place_algbw_gb_s) > 0)
      .sort((a, b) => b.size - a.size)[0];
  if (bench) ask('busbw', '×', numberOf(bench.out_of_place_busbw_gb_s) / numberOf(bench.out_of_place_algbw_gb_s), [bench.workers],
      [bench.workers, brief(numberOf(bench.out_of_place_algbw_gb_s)), brief(numberOf(bench.out_of_place_busbw_gb_s))]);
  return list;
}

// Draws the questions that the run can answer.
function askQuestions(parent, run, ...ids) {
  const known = questionsOf(run);
  for (const question of ids.map((id) => known[id]).filter(Boolean)) {
    const input = make('input', {type: 'number', step: 'any', id: `answer-${question.id}`, 'aria-label': question.text}),
        said = make('p', {class: 'note', id: `said-${question.id}`, 'aria-live': 'polite'});
    const reveal = () => {
      const given = numberOf(input.value), off = Math.abs(given - question.value) / Math.abs(question.value || 1);
      const verdict = given === null ? '' : t(off <= 0.1 ? 'ask_right' : off <= 0.35 ? 'ask_near' : 'ask_wrong');
      said.replaceChildren(make('strong', {}, `${verdict} ${t('ask_answer', brief(question.value), question.unit)} `), question.why);
    };
    const row = make('form', {class: 'controls'}, input, ` ${question.unit} `,
        make('button', {type: 'submit', id: `reveal-${question.id}`}, t('ask_reveal')));
    row.addEventListener('submit', (event) => { event.preventDefault(); reveal(); });
    parent.append(make('div', {class: 'question'}, make('p', {}, make('strong', {}, `${t('guess_first')} `), question.text), row, said));
  }
}
