// Plays all-reduces side by side on one clock. The rounds come from psring's schedules. A round takes
// a + (bytes of its busiest link)/B + (bytes that the busiest rank adds) g, in that order, with one link per rank. On the
// run's clock it takes its time in the run's trace.

// The end of each round of this schedule in the run's trace, in seconds; null if unknown.
function tracedEnds(run, schedule) {
  const launch = ((run.trace && run.trace.launches) || []).find((l) => l && l.algorithm === schedule.algorithm &&
      l.workers === schedule.ranks && Array.isArray(l.rounds_ms) && l.rounds_ms.length === schedule.rounds.length);
  return launch ? launch.rounds_ms.map((ms) => ms * 1e-3) : null;
}

// The rounds of a schedule with their times: [{begin, move, add, end, hops, before, after, sent, received, busiest}]. before,
// after: [rank][chunk] -> how often it contains each rank's values. `traced`: the end of each round, or null; the terms of
// a round keep their proportions.
function score(schedule, traced) {
  const chunk = wish.gradient / schedule.chunks;
  let holdings = d3.range(schedule.ranks).map((rank) => d3.range(schedule.chunks)
      .map(() => d3.range(schedule.ranks).map((of) => (of === rank ? 1 : 0))));
  const sent = d3.range(schedule.ranks).map(() => 0), received = sent.slice(), rounds = [];
  let now = 0;
  schedule.rounds.forEach((hops, index) => {
    const begin = now, before = holdings, out = sent.map(() => 0), taken = sent.map(() => 0);
    holdings = before.map((row) => row.map((counts) => counts.slice()));
    for (const [from, to, first, count, adds] of hops) {
      out[from] += count;
      taken[to] += count;
      for (let c = first; c < first + count; ++c) holdings[to][c] = before[from][c].map((times, of) => times + (adds
          ? holdings[to][c][of] : 0));
    }
    const most = d3.max(out.concat(taken)), link = most * chunk / wish.bandwidth;
    const adding = schedule.added[index] * chunk * wish.adding, computed = wish.latency + link + adding;
    const scale = traced ? (traced[index] - begin) / computed : 1, end = traced ? traced[index] : begin + computed;
    const move = begin + wish.latency * scale, add = move + link * scale;
    out.forEach((n, rank) => { sent[rank] += n * chunk; received[rank] += taken[rank] * chunk; });
    const busiest = hops.map(([from, to]) => out[from] === most || taken[to] === most);  // counted in the bytes term
    rounds.push({begin, move, add, end, hops, busiest, before, after: holdings, sent: sent.slice(),
        received: received.slice()});
    now = end;
  });
  return {schedule, rounds, end: now, holdings, traced: traced !== null};
}

// Every chunk of every rank contains each rank's values exactly once.
const summed = (counts) => counts.every((times) => times === 1);
const fulfilled = (played) => played.holdings.every((row) => row.every(summed));

// By the stepper's name, kept over redrawing.
const players = {};

// Buttons and a slider that play drawings on one clock, from 0 to end(): {stop, show, buttons, clock, onkeydown}. `moments()`: where the
// buttons stop, increasing; `draw(time)` draws; `text(time)`: the clock. `id`: a prefix of the controls.
function clockwork(id, {end, moments, draw, text}) {
  const player = players[id] = players[id] || {};
  cancelAnimationFrame(player.frame);
  Object.assign(player, {time: 0, playing: false, frame: 0});
  const clockText = make('output', {id: `${id}-clock-text`});
  const clock = make('input', {type: 'range', id: `${id}-clock`, min: 0, max: 1000, value: 0,
      oninput: (event) => { stop(); show(end() * event.target.value / 1000); }});
  const playButton = button(`${id}-player`, t('go'), () => (player.playing ? stop() : start()));

  function show(time) {
    player.time = Math.max(0, Math.min(time, end()));
    clock.value = end() > 0 ? Math.round(1000 * player.time / end()) : 0;
    clockText.textContent = text(player.time);
    clock.setAttribute('aria-valuetext', clockText.textContent);
    draw(player.time);
  }
  function stop() {
    player.playing = false;
    cancelAnimationFrame(player.frame);
    playButton.textContent = t('go');
  }
  function start() {
    if (player.time >= end()) show(0);
    player.playing = true;
    playButton.textContent = t('pause');
    const whole = 16000;  // playing time in ms
    let last = null;
    const advance = (stamp) => {
      if (!player.playing) return;
      if (last !== null) show(player.time + end() * (stamp - last) / whole);
      last = stamp;
      if (player.time >= end()) return stop();
      player.frame = requestAnimationFrame(advance);
    };
    player.frame = requestAnimationFrame(advance);
  }
  function jump(forward) {
    stop();
    const gap = end() * 1e-9;
    const next = forward ? moments().find((m) => m > player.time + gap) : moments().reverse().find((m) => m < player.time - gap);
    show(next === undefined ? (forward ? end() : 0) : next);
  }
  return {stop, show, clock: labelled(t('clock'), clock, ' ', clockText),
      buttons: [playButton, button(`${id}-back`, t('step_back'), () => jump(false)), button(`${id}-next`, t('step_on'), () => jump(true)),
          button(`${id}-restart`, t('restart'), () => { stop(); show(0); })],
      onkeydown: (event) => {
        if (event.target.tagName !== 'BUTTON') return;
        if (event.key === 'ArrowRight') jump(true);
        if (event.key === 'ArrowLeft') jump(false);
      }};
}

// The schedules `names` side by side, the others on request.
function drawStepper(parent, run, id, names) {
  const schedules = DATA.schedules.schedules, offered = (s) => s.ranks === wish.ranks && (players[id].all || names.includes(s.algorithm));
  const counts = unique(schedules.map((s) => s.ranks));
  if (!counts.includes(wish.ranks)) wish.ranks = counts.includes(4) ? 4 : counts[0];
  const panels = make('div', {class: 'panels'});
  const rankChoice = choice(`${id}-ranks`, counts, wish.ranks, counts, (value) => { wish.ranks = +value; rebuild(); });
  let scores = [], faces = [], end = 0;
  const {stop, show, buttons, clock, onkeydown} = clockwork(id, {end: () => end, draw: (time) => faces.forEach((face) => face.show(time)),
      moments: () => unique([0, end, ...scores.flatMap((s) => s.rounds.map((round) => round.end))]).sort(d3.ascending),
      text: (time) => t('time_now', brief(time * 1e3), brief(end * 1e3))});
  // Keeps the panels, which have thousands of elements, while the schedules are the same.
  function rebuild() {
    stop();
    const before = scores.map((s) => s.schedule);
    scores = schedules.filter(offered).map((s) => score(s, wish.measured ? tracedEnds(run, s) : null));
    end = d3.max(scores, (s) => s.end) || 0;
    if (scores.length !== before.length || scores.some((s, i) => s.schedule !== before[i])) {
      panels.replaceChildren();
      faces = scores.map((s) => drawPanel(panels, s));
    }
    scores.forEach((s, i) => faces[i].replay(s));
    show(0);
  }

  parent.append(make('div', {class: 'controls', onkeydown}, labelled(t('workers'), rankChoice),
      schedules.some((s) => names.includes(s.algorithm) && tracedEnds(run, s)) ? tick('traced', 'measured', rebuild, `${id}-traced`) : null,
      ...buttons, button(`${id}-all`, t(players[id].all ? 'fewer' : 'others'), (event) => {
        players[id].all = !players[id].all;
        event.target.textContent = t(players[id].all ? 'fewer' : 'others');
        rebuild();
      }), clock),
  panels, make('details', {}, make('summary', {}, t('how_to_read')), make('p', {class: 'note'}, t('play_intro')),
      make('p', {class: 'note'}, t('letters')), make('p', {class: 'note'}, t('play_clock')), make('p', {class: 'note'}, t('keys'))));
  rebuild();
}

// The name of a round's phase: rounds that add, then rounds that copy.
function phaseOf({has_root: tree}, round) {
  const adds = round.hops.some((hop) => hop[4]);
  return t(adds ? tree ? 'phase_reduce' : 'phase_scatter' : tree ? 'phase_broadcast' : 'phase_gather');
}

// One schedule. Returns {replay: sets the times, show: shows a point in time}.
function drawPanel(parent, {schedule}) {
  const ranks = schedule.ranks, chunks = schedule.chunks;
  let played, rounds;  // set by replay
  const width = 340, left = 52, top = 20, cellWidth = (width - left - 8) / chunks,
      cellHeight = Math.max(16, Math.min(34, 250 / ranks));
  const height = top + ranks * cellHeight + 6;
  const svg = d3.select(document.createElementNS('http://www.w3.org/2000/svg', 'svg')).attr('viewBox', `0 0 ${width} ${height}`)
      .attr('role', 'img').attr('aria-label', schedule.algorithm);
  const xOf = (chunk) => left + chunk * cellWidth, yOf = (rank) => top + rank * cellHeight;
  for (let chunk = 0; chunk < chunks; ++chunk) svg.append('text')
      .attr({x: xOf(chunk) + cellWidth / 2, y: 13, 'text-anchor': 'middle', class: 'faint'}).text(chunk);
  const cells = [];
  for (let rank = 0; rank < ranks; ++rank) {
    svg.append('text').attr({x: left - 6, y: yOf(rank) + cellHeight / 2 + 4, 'text-anchor': 'end'}).text(`${t('rank')} ${rank}`);
    for (let chunk = 0; chunk < chunks; ++chunk) {
      const cell = {stripes: []}, inner = (cellWidth - 4) / ranks;
      for (let of = 0; of < ranks; ++of) cell.stripes.push(svg.append('rect')
          .attr({x: xOf(chunk) + 2 + of * inner, y: yOf(rank) + 2, width: inner, height: cellHeight - 4})
          .style('fill', `var(--c${of % 8})`));
      cell.frame = svg.append('rect')
          .attr({class: 'outline', x: xOf(chunk) + 1, y: yOf(rank) + 1, width: cellWidth - 2, height: cellHeight - 2});
      cells.push(cell);
    }
  }
  const flying = svg.append('g');
  const terms = schedule.formula.map((term, i) => make('span', {title: t(['term_latency', 'term_bytes', 'term_adding'][i])}, term));
  const counts = make('div', {class: 'counts'}), clockNote = make('p', {class: 'note clock'});
  const said = (pair) => (inLanguage(pair) ? make('p', {class: 'note'}, inLanguage(pair)) : null);
  parent.append(make('figure', {'data-algorithm': schedule.algorithm}, make('h3', {}, schedule.algorithm),
      said(schedule.summary), make('p', {class: 'terms'}, terms[0], ' + ', terms[1], ' + ', terms[2]), svg.node(),
      counts, clockNote, said(schedule.note)));

  const replay = (score) => {
    played = score;
    rounds = score.rounds;
    clockNote.textContent = t(played.traced ? 'clock_traced' : 'clock_computed', brief(played.end * 1e3));
  };
  const show = (time) => {
    const index = rounds.findIndex((round) => time < round.end - 1e-15), done = index < 0;
    const round = rounds[done ? rounds.length - 1 : index];
    const shown = done ? round.after : time >= round.add ? round.after : round.before;
    cells.forEach((cell, i) => {
      const set = shown[Math.floor(i / chunks)][i % chunks];
      cell.stripes.forEach((stripe, of) => stripe.style('opacity', set[of] > 0 ? 1 : 0));
      cell.frame.style({stroke: summed(set) ? 'var(--ink)' : 'var(--line)', 'stroke-width': summed(set) ? 2 : 1});
    });
    const share = done ? 1 : Math.max(0, Math.min(1, (time - round.move) / (round.add - round.move || 1)));
    flying.selectAll('*').remove();
    if (!done && time < round.add) {
      round.hops.forEach(([from, to, first, count], i) => {
        const fromY = yOf(from) + cellHeight / 2, toY = yOf(to) + cellHeight / 2, y = fromY + (toY - fromY) * share;
        const middle = xOf(first) + count * cellWidth / 2, side = to > from ? 5 : -5;
        // Transfers counted by the highlighted term have its colour.
        const counts = time < round.move || round.busiest[i];
        flying.append('line').attr({x1: middle + side, x2: middle + side, y1: fromY, y2: toY})
            .style({stroke: 'var(--ink)', 'stroke-width': 1, opacity: 0.55});
        flying.append('rect').attr({x: middle + side - count * cellWidth * 0.3, y: y - 6, width: count * cellWidth * 0.6,
            height: 12, rx: 3}).style({fill: counts ? 'var(--mark)' : 'var(--ground)', stroke: 'var(--ink)', 'stroke-width': 1.5});
        flying.append('path').attr('transform', `translate(${middle + side},${y}) rotate(${to > from ? 180 : 0})`)
            .attr('d', d3.svg.symbol().type('triangle-up').size(30)()).style('fill', counts ? '#000' : 'var(--ink)');
      });
    }
    const lit = done ? -1 : time < round.move ? 0 : time < round.add ? 1 : 2;
    terms.forEach((term, i) => term.classList.toggle('lit', i === lit));
    const before = done ? round : rounds[index - 1], zero = round.sent.map(() => 0);
    const grow = (list, from) => d3.max(list.map((bytes, rank) => from[rank] + (bytes - from[rank]) * share));
    const sent = grow(round.sent, before && !done ? before.sent : zero),
        received = grow(round.received, before && !done ? before.received : zero);
    counts.replaceChildren(
      make('div', {}, t('round_of', done ? rounds.length : index + 1, rounds.length) + (done ? '' : ` (${phaseOf(schedule, round)})`) + ' · ' + t('time_now',
          brief(Math.min(time, played.end) * 1e3), brief(played.end * 1e3))),
      make('div', {}, t('sent_most', megabytes(sent), megabytes(received))),
      ...(done ? [make('div', {class: 'done'}, (fulfilled(played) ? '✓ ' : '✗ ') + t('finished'))] : []));
  };
  return {replay, show};
}
