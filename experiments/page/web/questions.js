// Exercises: the reader enters a number or chooses, and sees whether it is right: first with a hint, after two tries with the
// solution. Answers are the run's figures or psring's cost models, never constants. Those that need no run are on every page.

// The lesson refers to these numbers (experiments/lecture).
const EXERCISES = {server_bytes: '1.1', server_time: '1.2', ring_rounds: '2.1', ring_bytes: '2.2', ring_limit: '2.3', busbw: '2.4',
    exposed: '3.1', hidden: '3.2', efficiency: '3.3', staleness: '4.1', speedup: '4.2', ratio: '5.1', small: '5.2'};

// Their answers follow from the plan and are the same on every machine; of a simulated run, all are.
const EXACT = ['server_bytes', 'ring_rounds', 'ring_bytes', 'ring_limit', 'busbw', 'small'];

const TRIES = 2;  // until the solution is shown

// The network of the exercise `small`, which needs no run: 8 workers, 4 kB, 1 ms, 1 Gbit/s.
const SMALL = {workers: 8, bytes: 4e3, latency: 1e-3, bandwidth: 1.25e8};

// Only a ring: hybrid's rows are on servers.
const isRing = (row) => row.algorithm === 'ring' && !(row.servers > 0);

const sameAnswer = (a, b) => Math.abs(a / b - 1) < 0.03;

// {id: {id, unit, value, text, hint, why, slips, choices, tolerance, exact}}, only exercises for which the run has data. slips:
// [{value, text}], wrong answers with an explanation. choices: [{value, text}], of which `value` is one. tolerance: relative; 3% for
// what is computed from rounded figures, more for what is estimated. `key`: of the texts.
function questionsOf(run) {
  const rows = rowsOf(run).filter((row) => row.workers > 1), list = {}, theory = DATA.theory;
  const simulated = rows.length > 0 && rows.every((row) => row.basis === 'simulated');
  const most = (keep) => rows.filter(keep).sort((a, b) => b.workers - a.workers)[0];
  const ask = (id, unit, value, texts, reasons, {slips = {}, choices, tolerance = 0.03, key = id} = {}) => {
    if (!isNumber(value) && !choices) return;
    list[id] = {id, unit, value, choices, tolerance, exact: simulated || EXACT.includes(id), text: t(`ask_${key}`, ...texts).trim(),
        hint: t(`hint_${key}`), why: t(`why_${key}`, ...reasons),
        slips: Object.entries(slips).filter(([, wrong]) => isNumber(wrong) && Math.abs(wrong / value - 1) > tolerance)
            .filter(([, wrong], i, all) => all.findIndex(([, other]) => sameAnswer(wrong, other)) === i)
            .map(([key, wrong]) => ({value: wrong, text: t(`slip_${key}`)}))};
  };

  const server = most((row) => row.plain === 'ps-sync' && row.server_payload_bytes > 0 && !summedServers(row) && row.parameters > 0 && !row.has_tables);
  if (server) {
    const bytes = server.parameters * 4, load = server.workers * bytes / (server.servers || 1);
    ask('server_bytes', 'MB', server.server_payload_bytes / 1e6, [megabytes(bytes), server.workers, server.servers],
        [server.workers, server.servers, megabytes(2 * load)], {slips: {one_direction: load / 1e6, one_worker: 2 * bytes / 1e6}});
    const through = serverGradients(server), rate = linkRate(run, server);
    if (through && rate) ask('server_time', 'ms', 1e3 * through * bytes / rate, [megabytes(bytes), megabytes(rate), server.workers, placedText(server)],
        [brief(through), brief(moving(server)), t(server.basis === 'simulated' ? 'simulated_word' : 'measured')],
        {slips: {one_gradient: 1e3 * bytes / rate, one_way: server.ps_schedule === 'serial' ? 500 * through * bytes / rate : null}});
  }
  const ring = most((row) => isRing(row) && row.payload_tx_bytes_per_worker > 0 && row.parameters > 0 && !row.has_tables);
  const workers = ring ? ring.workers : 4, rounds = DATA.schedules.schedules.find((s) => s.algorithm === 'ring' && s.ranks === workers);
  if (rounds) ask('ring_rounds', t('rounds_word'), rounds.rounds.length, [workers], [workers], {tolerance: 0, slips: {one_phase: workers - 1, n_rounds: workers}});
  if (ring) {
    const gradient = ring.parameters * 4e-6, share = (workers - 1) / workers;
    ask('ring_bytes', 'MB', ring.payload_tx_bytes_per_worker / 1e6, [megabytes(ring.parameters * 4), ring.workers],
        [ring.workers, megabytes(ring.predicted_payload_bytes_per_worker)], {slips: {one_phase: share * gradient, twice: 2 * gradient, whole: gradient}});
  }
  const limit = theory.schemes.ring[theory.workers.length - 1][1], multiples = [1, 2, theory.workers.length];
  const nearest = multiples.slice().sort((a, b) => Math.abs(a - limit) - Math.abs(b - limit))[0];
  ask('ring_limit', '', String(nearest), [theory.workers.length], [theory.workers.length, limit.toFixed(2)],
      {choices: multiples.map((n) => ({value: String(n), text: n === 1 ? 'M' : `${n} M`}))});
  const bench = benchRows(run).filter((row) => row.collective === 'all_reduce' && /ring/.test(row.algorithm || '') &&
      isNumber(numberOf(row.out_of_place_busbw_gb_s)) && numberOf(row.out_of_place_algbw_gb_s) > 0)
      .sort((a, b) => b.size - a.size)[0];
  if (bench) ask('busbw', '×', numberOf(bench.out_of_place_busbw_gb_s) / numberOf(bench.out_of_place_algbw_gb_s), [bench.workers],
      [bench.workers, brief(numberOf(bench.out_of_place_algbw_gb_s)), brief(numberOf(bench.out_of_place_busbw_gb_s))]);

  const waits = most((row) => communicates(row) && row.step_ms > 0 && row.exposed_comm_ms > 0 && ['ring', 'ps-sync'].includes(row.plain));
  if (waits) ask('exposed', '%', 100 * waits.exposed_comm_ms / waits.step_ms, [waits.strategy, waits.workers],
      [brief(waits.exposed_comm_ms), brief(waits.step_ms), reasonOf(run, waits)], {tolerance: 0.1});
  const hides = most((row) => isRing(row) && communicates(row) && communicationOf(row).all > 0 && row.compute_ms > 0);
  if (hides && communicationOf(hides).hidden < HARDLY * communicationOf(hides).all) {
    const {all} = communicationOf(hides), [shorter, longer] = [all, hides.compute_ms].sort(d3.ascending);
    ask('hidden', 'ms', shorter, [hides.workers, brief(hides.compute_ms), brief(all)], [brief(longer), reasonOf(run, hides)],
        {key: 'hidden_most', slips: {longer, both: shorter + longer}});
  } else if (hides) {
    const {all, hidden, exposed, waiting} = communicationOf(hides);
    ask('hidden', 'ms', hidden, [hides.workers, brief(all), brief(exposed + waiting)], [brief(hides.step_ms + hidden), brief(hides.step_ms)],
        {tolerance: 0.03 + 0.005 * (all + exposed + waiting) / hidden, slips: {the_exposed: exposed + waiting}});
  }
  const single = rowsOf(run).find((row) => row.plain === 'single' && row.samples_per_s > 0);
  const scaled = single && most((row) => isRing(row) && row.samples_per_s > 0 && isNumber(row.efficiency) && row.basis === single.basis);
  if (scaled) ask('efficiency', '%', 100 * scaled.efficiency, [scaled.workers, brief(scaled.samples_per_s), brief(single.samples_per_s)],
      [scaled.workers, brief(scaled.samples_per_s / single.samples_per_s)], {slips: {speedup: 100 * scaled.workers * scaled.efficiency}});

  const stale = most((row) => row.plain === 'ps-async' && isNumber(row.staleness_mean));
  if (stale) ask('staleness', t('updates_word'), stale.staleness_mean, [stale.workers], [stale.workers - 1], {tolerance: 0.05, slips: {own_update: stale.workers}});
  const pair = asynchronousPair(run);
  if (pair) ask('speedup', '×', pair.row.samples_per_s / pair.waiting.samples_per_s, [pair.row.workers, unevenText(pair.row)],
      [withThousands(pair.row.samples_per_s), withThousands(pair.waiting.samples_per_s), leadReason(pair)], {tolerance: 0.1});

  const duel = duelsOf(run).concat(duelsOf(run, 'simulated')).sort((a, b) => b.workers - a.workers)[0];
  if (duel) ask('ratio', '×', duel.server / duel.ring, [duel.workers, placedText(duel)],
      [brief(duel.server), brief(duel.ring), t(duel.basis === 'simulated' ? 'simulated_word' : 'measured')], {tolerance: 0.1});
  const cost = ([messages, link]) => messages * SMALL.latency + link * SMALL.bytes / SMALL.bandwidth;
  const times = {ring: cost(theory.schemes.ring[SMALL.workers - 1]), 'ps-sync': cost(theory.server.dedicated.serial[theory.servers.indexOf(1)][SMALL.workers - 1])};
  ask('small', '', times.ring < times['ps-sync'] ? 'ring' : 'ps-sync', [SMALL.workers, bytesText(SMALL.bytes), secondsText(SMALL.latency), bytesText(SMALL.bandwidth)],
      [secondsText(times.ring), theory.schemes.ring[SMALL.workers - 1][0], secondsText(times['ps-sync'])],
      {choices: [{value: 'ring', text: 'ring'}, {value: 'ps-sync', text: t('small_server')}]});
  return list;
}

// The traffic of the busiest link in one exchange of the row's servers, in gradients; undefined without a model.
function serverGradients({placement, ps_schedule, servers, workers}) {
  const ways = DATA.theory.server[placement || 'rank0'], by = ways && ways[ps_schedule === 'serial' ? 'serial' : 'pipelined'][DATA.theory.servers.indexOf(servers)];
  return by && by[workers - 1] && by[workers - 1][1];
}

// Bytes per second of a link, one direction: as measured before the run, else as given; null without links.
function linkRate(run, row) {
  const {wires} = (run.manifest || {}).link || {};
  if (wires && wires.mb_per_s > 0) return wires.mb_per_s * 1e6;
  return row.link_mbps > 0 ? row.link_mbps * 1e6 / 8 : null;
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
      const words = [state && t(`ask_${state}`), slip && slip.text, solved ? t('ask_answer', answer, unit) : !slip && question.hint];
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
    parent.append(make('div', {class: 'question'}, make('p', {}, make('strong', {}, `${t('exercise', EXERCISES[id])} `), question.text,
        make('span', {class: 'note'}, ` (${t(question.exact ? 'ask_exact' : 'ask_yours')})`)), row, said));
  }
}

// Runs are named after their folders, so several may have one name.
const startOf = (run) => (run.manifest || {}).started_utc || null;

// What the reader answered, for grading.
function answersText(run) {
  const answers = Object.keys(questionsOf(run)).filter((id) => triesOf(run, id).length)
      .map((id) => ({exercise: EXERCISES[id], id, tries: triesOf(run, id)}));
  return `${JSON.stringify({run_id: run.run_id, started_utc: startOf(run), answers}, null, 1)}\n`;
}

// Judges files of answersText, [{name, text}], by this page's runs: [{name, run_id, right, exercises: [{exercise, state, tries,
// expected}]}], or {name, why} if a file is not one of a run on this page. A state is that of the best of the first tries; 'none': no
// answer. Files are untrusted.
function gradesOf(files) {
  return files.map(({name, text}) => {
    let file = null;
    try { file = JSON.parse(text); } catch (error) { /* as a file of something else */ }
    const run = file && DATA.runs.find((one) => one.run_id === file.run_id && startOf(one) === file.started_utc), list = file && Array.isArray(file.answers) ? file.answers : [];
    if (!run) return {name, why: t('grade_unknown')};
    const exercises = Object.values(questionsOf(run)).map((question) => {
      const own = list.find((answer) => answer && answer.id === question.id);
      const tries = own && Array.isArray(own.tries) ? own.tries.slice(0, TRIES).map((one) => String(one).slice(0, 20)) : [];
      const states = tries.map((one) => judge(question, one).state);
      return {exercise: EXERCISES[question.id], state: ['right', 'near', 'wrong'].find((state) => states.includes(state)) || 'none', tries,
          expected: question.choices ? question.value : +question.value.toPrecision(4)};
    });
    return {name, run_id: run.run_id, right: exercises.filter(({state}) => state === 'right').length, exercises};
  });
}

// The grades in the Test Anything Protocol: a point for each file and exercise.
function gradesTap(grades) {
  const points = grades.flatMap(({name, why, exercises}) => why ? [[false, `${name}: ${why}`]] : exercises.map(({exercise, state, tries, expected}) =>
    [state === 'right', `${name} ${exercise}${state === 'right' ? '' : `: ${tries.join(', ') || t('grade_none')}; ${t('grade_expected', expected)}`}`]));
  return [`TAP version 13`, `1..${points.length}`, ...points.map(([right, text], i) => `${right ? 'ok' : 'not ok'} ${i + 1} - ${text.replace(/\s+/g, ' ')}`), ''].join('\n');
}

// For the lecturer: grades the files of a class.
function drawGrading(parent) {
  const result = make('div', {id: 'grades'});
  const show = (grades) => result.replaceChildren(
      scrollTable({id: 'grades-table'}, t('grade'), [t('grade_file'), t('ask_right')],
          grades.map(({name, why, right, exercises}) => [rowHead(name), why || `${right} / ${exercises.length}`])),
      button('grades-json', 'JSON', () => download('grades.json', 'application/json', `${JSON.stringify(grades, null, 1)}\n`)), ' ',
      button('grades-tap', 'TAP', () => download('grades.tap', 'text/plain', gradesTap(grades))));
  const input = make('input', {type: 'file', id: 'answer-files', multiple: '', accept: '.json', onchange: async () =>
    show(gradesOf(await Promise.all([...input.files].map(async (file) => ({name: file.name.replace(/\.json$/, ''), text: await file.text()})))))});
  parent.append(make('details', {}, make('summary', {}, t('grade')), make('p', {class: 'note'}, t('grade_note')), labelled(t('grade_files'), input), result));
}
