// Runs in the page before its own scripts: records errors, uses the controls as far as `visitor` says, and leaves what it saw
// in the document for the test. The test defines `visitor`: 'reads', 'answers' (the exercises), 'uses all' or 'axe', which
// lists the findings of axe-core.
const seen = {errors: [], violations: 0};
addEventListener('error', (event) => seen.errors.push(String(event.message)));
addEventListener('securitypolicyviolation', () => ++seen.violations);
console.error = (...words) => seen.errors.push(words.join(' '));

// Frames follow the timers, which the browser runs in virtual time.
window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 400);
window.cancelAnimationFrame = clearTimeout;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const element = (id) => document.getElementById(id);
const textOf = (id) => (element(id) || {}).textContent || '';
const send = (target, type, value) => { if (value !== undefined) target.value = value; target.dispatchEvent(new Event(type)); };

function readPage() {
  const texts = (selector) => [...document.querySelectorAll(selector)].map((found) => found.textContent);
  return {
    title: document.title, lead: texts('#title, #lead').join(' '), subtitle: texts('#subtitle').join(), stamp: texts('#stamp').join(), facts: texts('#facts dd'), speeds: [...document.querySelectorAll('#speeds tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent)), said: texts('main, header').join(' '),  command: texts('#command').join(), trust: texts('#trust').join(), trust_state: (element('trust') || {}).className || '', headings: texts('h2, h3'), not_drawn: texts('#main .missing'),
    table: [...document.querySelectorAll('#summary-table tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent)),
    here: [...document.querySelectorAll('.here')].map((found) => ({key: found.dataset.key, text: found.textContent, facts: found.facts})),
    reasons: [...document.querySelectorAll('#overlap-table tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent)),
    factors: [...document.querySelectorAll('#ratios tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent)),
    glossary: texts('#glossary tbody th'),
    footnotes: texts('#footnotes li'),
    step_rows: texts('#step .row'),
    network: {note: textOf('network-note'), head: texts('#network-rates thead th'),
      cells: [...document.querySelectorAll('#network-rates tbody tr')].map((row) => [...row.cells].map((cell) => ({text: cell.textContent, title: cell.title})))},
    beside: [...document.querySelectorAll('#beside tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent)),
    pool: {lead: texts('#machines-lead').join(), winners: texts('#winners li'), left_out: texts('#left-out li'),
      ...Object.fromEntries(['spread-table', 'each-machine-table'].map((id) => [id,
          [...document.querySelectorAll(`#${id} tbody tr`)].map((row) => [...row.cells].map((cell) => cell.textContent))]))},
    figures: Object.fromEntries([...document.querySelectorAll('figure[id]')].map((figure) => [figure.id, figure.rows])),
    captions: Object.fromEntries([...document.querySelectorAll('figure[id]')].map((figure) => [figure.id, (figure.querySelector('figcaption .note') || {}).textContent || ''])),
    buttons: Object.fromEntries([...document.querySelectorAll('figure[id]')].map((figure) => [figure.id, [...figure.querySelectorAll('.buttons button')].map((button) => button.textContent).join(' ')])),
  };
}

async function playToTheEnd() {
  element('ring-all').click();
  element('ring-restart').click();
  element('ring-player').click();
  const player = players.ring;
  for (let i = 0; i < 600 && (player.playing || player.time === 0); ++i) await sleep(100);
  return [...document.querySelectorAll('#ring figure[data-algorithm]')].map((figure) => ({algorithm: figure.dataset.algorithm, done: (figure.querySelector('.done') || {}).textContent || ''}));
}

// The stepper's final state for every number of ranks, and its times.
function scores() {
  return DATA.schedules.schedules.map((schedule) => {
    const played = score(schedule, null), traced = tracedEnds(DATA.runs[chosenRun], schedule);
    return {algorithm: schedule.algorithm, ranks: schedule.ranks, seconds: played.end, holdings: played.holdings, complete: fulfilled(played),
      traced: traced ? score(schedule, traced).rounds.map((round) => [round.begin, round.end]) : null};
  });
}

// Draws a curve by keyboard and by pointer, then reveals the answer.
function guessACurve() {
  if (!element('guess')) return null;
  const handles = () => [...document.querySelectorAll('#guess .handle')], value = (handle) => +handle.getAttribute('aria-valuetext').match(/([\d.,]+) ms$/)[1].replace(/,/g, '');
  const first = value(handles()[0]);
  handles()[0].dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowUp', bubbles: true}));
  const result = {keyboard: value(handles()[0]) > first, before: element('guess').rows.filter((row) => row.basis === 'measured').length};
  const svg = document.querySelector('#guess > svg'), box = svg.getBoundingClientRect(), last = handles().pop(), was = value(last);
  const point = {bubbles: true, clientX: box.left + box.width * 0.97, clientY: box.top + box.height * 0.15};
  svg.dispatchEvent(new PointerEvent('pointerdown', point));
  svg.dispatchEvent(new PointerEvent('pointerup', point));
  result.pointer = value(last) > was;
  element('guess-reveal').click();
  result.measured = element('guess').rows.filter((row) => row.basis === 'measured');
  result.said = textOf('guess-said');
  return result;
}

// Answers every exercise wrongly twice and in all known ways, then rightly.
function askEverything() {
  return Object.values(questionsOf(DATA.runs[chosenRun])).map(({id, value, choices, slips}) => {
    const answer = (given) => {
      send(element(`answer-${id}`), 'input', String(given));
      element(`reveal-${id}`).click();
      return textOf(`said-${id}`);
    };
    const wrong = answer(choices ? choices.find((choice) => choice.value !== value).value : 3 * value + 1);
    const twice = choices ? null : answer(4 * value + 2);
    const number = element(`answer-${id}`).closest('.question').querySelector('strong').textContent;
    return {id, number, value, wrong, twice, slips: slips.map((slip) => ({text: slip.text, said: answer(slip.value)})), said: answer(value), score: textOf('score'),
      text: element(`answer-${id}`).getAttribute('aria-label')};
  });
}

// What askEverything has answered, as a file for the lecturer.
function handIn() {
  const run = DATA.runs[chosenRun];
  return {file: answersText(run), marks: Object.fromEntries(Object.values(questionsOf(run)).map(({id, exact}) => [id, exact])),
    hidden: element('save-answers').hidden};
}

// With separate links and dedicated servers, every slider has an effect.
function moveSliders() {
  const medium = element('tick-medium');
  if (medium && medium.checked) medium.click();
  send(element('placement'), 'change', 'dedicated');
  return ['bandwidth', 'latency', 'gradient', 'most_workers', 'servers', 'bucket', 'bound'].map((name) => {
    const drawn = () => JSON.stringify(['curves', 'map', 'buckets', 'waiting'].map((figure) => element(figure).rows)), states = [];
    const input = element(`slider-${name}`), was = input.value;
    for (const end of ['min', 'max']) {
      send(input, 'input', input[end]);
      states.push(drawn());
    }
    send(input, 'input', was);
    return {id: input.id, moves: states[0] !== states[1]};
  });
}

function walkThroughTheLens() {
  if (!element('lens-update')) return null;
  const slider = element('lens-update');
  send(slider, 'input', slider.min);
  const first = textOf('lens-said');
  element('lens-next').click();
  return {first, second: textOf('lens-said'), rows: element('lens-chart').rows};
}

// Every program unit by unit, and what the panels say at the begin and after a unit.
function playPrograms() {
  const said = () => [...document.querySelectorAll('#pipeline .counts')].map((counts) => [...counts.children].map((line) => line.textContent));
  element('pipeline-restart').click();
  const begin = said();
  element('pipeline-next').click();
  const next = said(), boxes = [...document.querySelectorAll('#pipeline figure')].map((figure) => [...figure.querySelectorAll('svg g')].filter((group) => group.style.display !== 'none' && group.querySelector('rect')).length);
  return {begin, next, boxes, programs: DATA.programs.programs.map((program) => {
    const parsed = actionsOf(program), moments = d3.range(program.end + 1).map((time) => momentOf(program, parsed, time));
    return {...program, played: moments[program.end].bubble, sent: d3.sum(moments, (moment) => moment.sends.length), left: moments[program.end].inFlight,
      most: d3.range(program.ranks).map((rank) => d3.max(moments, (moment) => moment.inFlight[rank])),
      computed: d3.sum(moments, (moment) => moment.computing.filter(Boolean).length)};
  })};
}

function chooseEverything() {
  for (const select of document.querySelectorAll('#charts select, #overlap select, #asynchronous select, #theory select, #ring select, #pipeline select')) {
    const before = select.value;
    for (const option of [...[...select.options].map((o) => o.value), before]) {
      if (element(select.id)) send(element(select.id), 'change', option);
    }
  }
}

async function findings() {
  document.querySelectorAll('details').forEach((details) => { details.open = true; });
  await sleep(900);
  const {violations} = await axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'], resultTypes: ['violations']});
  return violations.map(({id, nodes}) => `${id}: ${nodes.map((node) => node.target.join(' ')).join(', ')}`);
}

async function visit() {
  document.querySelectorAll('details.part').forEach((part) => { part.open = true; });
  await sleep(900);  // until the parts are drawn
  if (visitor === 'axe') {
    seen.axe = [await findings()];
    element('language').click();
    element('theme').click();
    seen.axe.push(await findings());
    return;
  }
  seen.english = readPage();
  const ids = [...document.querySelectorAll('[id]')].map((with_id) => with_id.id);
  seen.ids_given_twice = ids.filter((id, i) => ids.indexOf(id) !== i);
  const clock = element('step-clock'), pale = () => [...document.querySelectorAll('#step > svg rect')].filter((rect) => +rect.style.opacity < 0.5).length;
  if (clock) seen.pale = [0, Math.floor(clock.max / 2), clock.max].map((moment) => { send(clock, 'input', String(moment)); return {time: textOf('step-clock-text'), spans: pale()}; });
  if (visitor === 'answers') Object.assign(seen, {questions: askEverything(), handed_in: handIn()});
  if (visitor === 'uses all') await useEverything();
  element('language').click();
  await sleep(100);
  seen.chinese = readPage();
  seen.guess_chinese = textOf('guess-said');
  element('theme').click();
  seen.svg_bytes = [...document.querySelectorAll('figure[id] svg')].filter((svg) => !svg.closest('.legend')).map((svg) => svgText(svg).length);
  seen.untranslated = Object.keys(TEXTS).filter((key) => !TEXTS[key] || !DATA.texts[key]);
  // A text that is missing shows its key.
  seen.wordless = [...document.querySelectorAll('#main *, nav *, header *')].filter((found) => !found.closest('table, pre, [lang]') && !found.children.length)
    .map((found) => found.textContent).filter((text) => /^[a-z]+_[a-z_]+$/.test(text));
  seen.requests = performance.getEntriesByType('resource').length;
}

async function useEverything() {
  seen.wish = {bandwidth: wish.bandwidth, latency: wish.latency, adding: wish.adding, gradient: wish.gradient};
  seen.arrows = Object.fromEntries(((DATA.runs[chosenRun].trace || {}).launches || []).map((launch) => [launch.name, launch.arrows.length]));
  const drawnAt = (type, span) => { span.dispatchEvent(new MouseEvent(type, {bubbles: true})); return document.querySelectorAll('#step .arrow').length; };
  const spans = [...document.querySelectorAll('#step > svg g rect')], gridLines = () => document.querySelectorAll('#step .axis .tick').length && document.querySelector('#step .axis .tick').textContent;
  seen.arrows_drawn = {before: document.querySelectorAll('#step .arrow').length, most: Math.max(...spans.map((span) => { const most = drawnAt('mouseover', span); drawnAt('mouseout', span); return most; })),
    after: document.querySelectorAll('#step .arrow').length};
  const wheel = (deltaY) => { const box = document.querySelector('#step > svg').getBoundingClientRect(); document.querySelector('#step > svg').dispatchEvent(new WheelEvent('wheel', {deltaY, cancelable: true, clientX: box.left + box.width * 0.8, clientY: box.top + 20})); return gridLines(); };
  if (spans.length) seen.zoom = {whole: gridLines(), in: wheel(-1) && wheel(-1) && wheel(-1), out: wheel(1) && wheel(1) && wheel(1) && wheel(1)};
  seen.trace_link = [...document.querySelectorAll('#step a')].map((link) => link.getAttribute('href')).join();
  seen.scores = scores();
  seen.played = await playToTheEnd();
  const player = players.ring;
  element('ring-restart').click();
  element('ring-next').click();
  seen.after_one_round = player.time;
  seen.phases = [...document.querySelectorAll('#ring figure[data-algorithm=ring] .counts')].map((counts) => counts.textContent);
  seen.lit = document.querySelectorAll('#ring .terms .lit').length;
  element('ring-back').click();
  seen.after_back = player.time;
  const ranks = element('ring-ranks');
  for (const option of [...ranks.options].map((o) => o.value).concat('4')) send(ranks, 'change', option);
  if (element('ring-traced')) {
    send(ranks, 'change', String(seen.scores.find((played) => played.traced).ranks));
    element('ring-traced').click();
    // Round by round: the clock when each ends.
    seen.traced_clock = [];
    for (;;) {
      const before = player.time;
      element('ring-next').click();
      if (player.time === before) break;
      seen.traced_clock.push(player.time);
    }
    seen.traced_panels = [...document.querySelectorAll('#ring .clock')].map((clock) => clock.textContent);
    element('ring-traced').click();
  }
  seen.sliders = moveSliders();
  seen.lens = walkThroughTheLens();
  seen.guess = guessACurve();
  seen.programs = playPrograms();
  seen.questions = askEverything();
  chooseEverything();
  element('reset').click();
  for (const run of [...DATA.runs.keys(), 0]) send(element('run'), 'change', String(run));
}

addEventListener('load', async () => {
  try {
    await visit();
  } catch (error) {
    seen.errors.push(`probe: ${error.stack || error}`);
  }
  const text = JSON.stringify(seen).replace(/[^ -~]|[<>&]/g, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
  document.body.replaceChildren(Object.assign(document.createElement('pre'), {textContent: `PROBE${text}EBORP`}));
});
