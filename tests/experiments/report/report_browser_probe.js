// Runs in the page, in front of its own scripts: notes what goes wrong, then does what a reader would, and leaves what it
// saw in the document for the test to read.
const seen = {errors: [], violations: 0};
addEventListener('error', (event) => seen.errors.push(String(event.message)));
addEventListener('securitypolicyviolation', () => ++seen.violations);
console.error = (...words) => seen.errors.push(words.join(' '));

// Frames on the clock of the timers, which the browser lets run ahead.
window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 50);
window.cancelAnimationFrame = clearTimeout;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

function readPage() {
  const texts = (selector) => [...document.querySelectorAll(selector)].map((element) => element.textContent);
  return {
    title: document.title, lead: texts('#lead').join(), command: texts('#command').join(), headings: texts('h2, h3'), not_drawn: texts('#main .missing'),
    table: [...document.querySelectorAll('#summary-table tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent)),
    figures: Object.fromEntries([...document.querySelectorAll('figure[id]')].map((figure) => [figure.id, figure.rows])),
  };
}

async function playToTheEnd() {
  document.getElementById('restart').click();
  document.getElementById('player').click();
  for (let i = 0; i < 600 && (player.playing || player.time === 0); ++i) await sleep(100);
  return [...document.querySelectorAll('#play figure')].map((figure) => ({algorithm: figure.dataset.algorithm, done: (figure.querySelector('.done') || {}).textContent || ''}));
}

// What the stepper's scores come to, for every number of ranks.
function scores() {
  return DATA.schedules.schedules.map((schedule) => {
    const played = score(schedule);
    return {algorithm: schedule.algorithm, ranks: schedule.ranks, seconds: played.end,
      complete: played.holdings.every((row) => row.every((set) => set.length === schedule.ranks))};
  });
}

async function visit() {
  seen.english = readPage();
  seen.wish = {bandwidth: wish.bandwidth, latency: wish.latency, adding: wish.adding, gradient: wish.gradient};
  seen.scores = scores();
  seen.played = await playToTheEnd();
  document.getElementById('restart').click();
  document.getElementById('next').click();
  seen.after_one_round = player.time;
  document.getElementById('back').click();
  seen.after_back = player.time;
  const ranks = document.getElementById('ranks');
  for (const option of [...ranks.options]) { ranks.value = option.value; ranks.dispatchEvent(new Event('change')); }
  seen.sliders = [];
  // Machines with a link each, servers on machines of their own: every number counts there.
  const apart = () => {
    const medium = document.getElementById('tick-medium'), placement = document.getElementById('placement');
    if (medium && medium.checked) medium.click();
    placement.value = 'dedicated';
    placement.dispatchEvent(new Event('change'));
  };
  for (const id of [...document.querySelectorAll('#theory input[type=range]')].map((input) => input.id)) {
    const drawn = () => JSON.stringify(document.getElementById('curves').rows);
    const states = [];
    apart();
    for (const end of ['min', 'max']) {
      const input = document.getElementById(id);
      input.value = input[end];
      input.dispatchEvent(new Event('input'));
      states.push(drawn());
    }
    seen.sliders.push({id, moves: states[0] !== states[1]});
    document.getElementById('reset').click();
  }
  for (const select of document.querySelectorAll('#charts select, #timeline select')) {
    for (const option of [...select.options]) {
      const again = document.getElementById(select.id);
      again.value = option.value;
      again.dispatchEvent(new Event('change'));
    }
  }
  document.getElementById('language').click();
  seen.chinese = readPage();
  document.getElementById('theme').click();
  seen.svg_bytes = [...document.querySelectorAll('figure[id] svg')].filter((svg) => !svg.closest('.legend')).map((svg) => svgText(svg).length);
  seen.untranslated = Object.entries(TEXTS).filter(([, pair]) => pair.length !== 2 || !pair[0] || !pair[1]).map(([key]) => key);
  seen.requests = performance.getEntriesByType('resource').length;
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
