// Exercises: the reader enters a number or chooses, and sees whether it is right: first with a hint, after two tries with the
// solution. psring finds the answers (page/exercises.h); these are the texts.

const TRIES = 2;  // until the solution is shown

// A ring of all workers: hybrid's rows are on servers, and a ring of other layouts has the ranks with the same part of the model.
const isRing = (row) => row.algorithm === 'ring' && !(row.servers > 0) && !row.program && !isDivided(row);

const sameAnswer = (a, b) => Math.abs(a / b - 1) < 0.03;

const basisText = (row) => t(row.basis === 'simulated' ? 'simulated_word' : 'measured');

// What the texts of an exercise state: [in the question, in the reasons, the unit], from its terms and rows.
const STATED = {
  server_bytes: (run, terms, row) => [[megabytes(4 * row.parameters), row.workers, row.servers],
      [row.workers, row.servers, megabytes(8 * row.workers * row.parameters / (row.servers || 1))], t('server_bytes_unit')],
  server_time: (run, [through, rate], row) => [[megabytes(4 * row.parameters), megabytes(rate), row.workers, placedText(row)],
      [brief(through), brief(moving(row)), basisText(row)], 'ms'],
  ring_rounds: (run, [workers]) => [[workers], [workers], t('rounds_word')],
  ring_bytes: (run, terms, row) => [[megabytes(4 * row.parameters), row.workers], [row.workers, megabytes(row.predicted_payload_bytes_per_worker)], 'MB'],
  ring_limit: (run, [workers, limit]) => [[workers], [workers, limit.toFixed(2)]],
  busbw: (run, [workers, ...rates]) => [[workers], [workers, ...rates.map(brief)], '×'],
  exposed: (run, terms, row) => [[row.strategy, row.workers], [brief(row.exposed_comm_ms), brief(row.step_ms), reasonOf(run, row)], '%'],
  hidden: (run, terms, row) => {
    const {all, hidden} = communicationOf(row);
    return [[row.workers, brief(all), brief(all - hidden)], [brief(row.step_ms + hidden), brief(row.step_ms)], 'ms'];
  },
  hidden_most: (run, terms, row) => {
    const {all} = communicationOf(row);
    return [[row.workers, brief(row.compute_ms), brief(all)], [brief(Math.max(all, row.compute_ms)), reasonOf(run, row)], 'ms'];
  },
  efficiency: (run, terms, row, single) => [[row.workers, brief(row.samples_per_s), brief(single.samples_per_s)],
      [row.workers, brief(row.samples_per_s / single.samples_per_s)], '%'],
  staleness: (run, terms, row) => [[row.workers], [row.workers - 1], t('updates_word')],
  speedup: (run, terms, row, waiting) => [[row.workers, unevenText(row)],
      [withThousands(row.samples_per_s), withThousands(waiting.samples_per_s), leadReason({row, waiting})], '×'],
  ratio: (run, terms, ring, server) => [[ring.workers, placedText(server)], [brief(moving(server)), brief(moving(ring)), basisText(server)], '×'],
  small: (run, [ring, messages, server, workers, bytes, latency, bandwidth]) => [[workers, bytesText(bytes), secondsText(latency), bytesText(bandwidth)],
      [secondsText(ring), messages, secondsText(server)]],
  bubble: (run, [stages, microBatches, computing, units]) => [[stages, microBatches], [stages, microBatches, computing, units], '%'],
  in_flight: (run, counts) => [counts, counts],
};
const CHOICES = {ring_limit: (value) => (value === '1' ? 'M' : `${value} M`), small: (value) => (value === 'ring' ? value : t('small_server'))};

// The run's exercises by id, with texts: choices are [{value, text}], slips [{value, text}], wrong answers with an explanation.
function questionsOf(run) {
  const rows = rowsOf(run);
  return Object.fromEntries(DATA.exercises[DATA.runs.indexOf(run)].map((found) => {
    const {id, texts, choices, slips} = found, [asked, reasons, unit = ''] = STATED[texts](run, found.terms, ...found.rows.map((place) => rows[place]));
    return [id, {...found, unit, text: t(`ask_${texts}`, ...asked).trim(), hint: t(`hint_${texts}`), why: t(`why_${texts}`, ...reasons),
        choices: choices.length ? choices.map((value) => ({value, text: CHOICES[id](value)})) : null,
        slips: slips.map(([key, value]) => ({value, text: t(`slip_${key}`)}))}];
  }));
}

// The traffic of the busiest link in one exchange of the row's servers, in gradients; undefined without a model.
function serverGradients({placement, ps_schedule, servers, workers}) {
  const ways = DATA.theory.server[placement || 'rank0'], by = ways && ways[ps_schedule === 'serial' ? 'serial' : 'pipelined'][DATA.theory.servers.indexOf(servers)];
  return by && by[workers - 1] && by[workers - 1][1];
}

const given = new Map();  // run and exercise -> the reader's answers as text, in order

const triesOf = (run, id) => given.get(`${run.run_id} ${id}`) || [];

// {state: right, near or wrong, slip}; state is empty without an answer.
function judge({value, choices, tolerance, slips}, text) {
  if (!text) return {state: ''};
  if (choices) return {state: text === value ? 'right' : 'wrong'};
  const number = numberOf(text), off = number === null ? Infinity : Math.abs(number - value) / Math.abs(value || 1);
  if (off <= tolerance) return {state: 'right'};
  const slip = slips.find((wrong) => sameAnswer(number, wrong.value));
  return {state: tolerance > 0 && !slip && off <= 0.35 ? 'near' : 'wrong', slip};
}

function showScore(run) {
  const known = Object.values(questionsOf(run)), states = known.map((question) => judge(question, triesOf(run, question.id).slice(-1)[0]).state);
  const answered = states.filter(Boolean).length, save = document.getElementById('save-answers');
  document.getElementById('score').textContent = answered ? t('score', states.filter((state) => state === 'right').length, answered, known.length)
      : t('score_none', known.length);
  save.hidden = !answered;
  save.onclick = () => download(`answers-${run.run_id}.json`, 'application/json', answersText(run));
}

// Draws the exercises that the run can answer.
function askQuestions(parent, run, ...ids) {
  const known = questionsOf(run);
  for (const question of ids.map((id) => known[id]).filter(Boolean)) {
    const {id, unit, value, choices} = question, attributes = {id: `answer-${id}`, 'aria-label': question.text};
    const input = choices ? make('select', attributes, make('option', {value: ''}, ''), ...choices.map((c) => make('option', {value: c.value}, c.text)))
        : make('input', {type: 'number', step: 'any', ...attributes});
    const said = make('p', {class: 'note', id: `said-${id}`, 'aria-live': 'polite'});
    const reveal = () => {
      const tries = triesOf(run, id), {state, slip} = judge(question, input.value), solved = state === 'right' || tries.length >= TRIES;
      const answer = choices ? choices.find((c) => c.value === value).text : brief(value);
      const words = [state && t(`ask_${state}`), slip && slip.text, solved ? t('ask_answer', `${answer} ${unit}`.trim()) : !slip && question.hint];
      said.replaceChildren(make('strong', {}, `${words.filter(Boolean).join(' ')} `.replace(/ +/g, ' ')), solved ? question.why : '');
    };
    const row = make('form', {class: 'controls'}, input, ` ${unit} `, make('button', {type: 'submit', id: `reveal-${id}`}, t('ask_reveal')));
    row.addEventListener('submit', (event) => {
      event.preventDefault();
      const tries = triesOf(run, id);
      if (input.value && input.value !== tries[tries.length - 1]) given.set(`${run.run_id} ${id}`, [...tries, input.value]);
      reveal();
      showScore(run);
    });
    if (triesOf(run, id).length) {
      input.value = triesOf(run, id).slice(-1)[0];
      reveal();
    }
    parent.append(make('div', {class: 'question'}, make('p', {}, make('strong', {}, `${t('exercise', question.number)} `), question.text,
        make('span', {class: 'note'}, ` (${t(question.exact ? 'ask_exact' : 'ask_yours')})`)), row, said));
  }
}

// What the reader answered, for `psring report --grade`.
function answersText(run) {
  const answers = Object.values(questionsOf(run)).filter(({id}) => triesOf(run, id).length)
      .map(({id, number}) => ({exercise: number, id, tries: triesOf(run, id)}));
  return `${JSON.stringify({run_id: run.run_id, started_utc: (run.manifest || {}).started_utc || null, answers}, null, 1)}\n`;
}
