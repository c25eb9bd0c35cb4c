// Plays the steps of a pipeline by several programs, one below the other on a common clock. The actions and their times are those of
// psring's walk of each program (DATA.programs), in units: a forward pass of a stage.

const wordsOf = (text) => text.split(' ').filter(Boolean);

// {actions: [{rank, name, kind, begin, end}], sends: [{rank, to, name, at}]}; kind: F, B, I or W.
function actionsOf(program) {
  const {units} = DATA.programs;
  return {
    actions: program.actions.flatMap((text, rank) => wordsOf(text).map((word) => {
      const [name, begin] = word.split(':'), kind = /[FBIW]/.exec(name)[0];
      return {rank, name, kind, begin: +begin, end: +begin + units[kind]};
    })),
    sends: program.sends.flatMap((text, rank) => wordsOf(text).map((word) => {
      const [name, to, at] = word.split(/[>:]/);
      return {rank, to: +to, name, at: +at};
    })),
  };
}

// The program's units per unit of the clock: a stage of interleaved:V has 1/V of the layers.
const chunksOf = ({name}) => +(/:(\d+)$/.exec(name) || [0, 1])[1];

// At a time: what each rank computes (undefined: nothing), what was sent as this unit began, how many micro-batches each rank keeps, and
// the part of the time so far in which the ranks computed nothing.
function momentOf(program, {actions, sends}, time) {
  const unit = Math.floor(time + 1e-9), ranks = d3.range(program.ranks), begun = (action) => action.begin <= unit;
  const computed = d3.sum(actions, (action) => Math.max(0, Math.min(time, action.end) - action.begin));
  return {unit, sends: sends.filter((send) => send.at === unit), bubble: time > 0 ? 1 - computed / (program.ranks * Math.min(time, program.end)) : 0,
      computing: ranks.map((rank) => actions.find((action) => action.rank === rank && begun(action) && unit < action.end)),
      inFlight: ranks.map((rank) => d3.sum(actions, (action) => (action.rank !== rank ? 0 : action.kind === 'F' ? begun(action)
          : action.kind !== 'I' && begun(action) && action.end <= unit ? -1 : 0)))};
}

const played = {ranks: 4, micro_batches: 8};  // kept over redrawing

function drawPrograms(parent) {
  const all = DATA.programs.programs, panels = make('div', {class: 'programs'});
  let faces = [], end = 0;
  const control = clockwork('pipeline', {end: () => end, moments: () => d3.range(end + 1), draw: (time) => faces.forEach((face) => face(time)),
      text: (time) => t('program_clock', Math.floor(time + 1e-9), end)});
  const select = (key) => {
    const counts = unique(all.map((program) => program[key]));
    return labelled(t(`program_${key}`), choice(`pipeline-${key}`, counts, played[key], counts, (value) => { played[key] = +value; rebuild(); }));
  };
  function rebuild() {
    control.stop();
    panels.replaceChildren();
    const chosen = all.filter((program) => program.ranks === played.ranks && program.micro_batches === played.micro_batches);
    end = d3.max(chosen, (program) => Math.ceil(program.end / chunksOf(program)));
    faces = chosen.map((program) => drawProgram(panels, program, end));
    control.show(0);
  }
  parent.append(make('div', {class: 'controls', onkeydown: control.onkeydown}, select('ranks'), select('micro_batches'), ...control.buttons, control.clock),
      legend(['0F0', '0B0', '0W0'].map(actionRow).map(([, colour, , key]) => ({label: t(key), colour, block: true}))), panels,
      make('details', {}, make('summary', {}, t('how_to_read')), make('p', {class: 'note'}, t('program_intro')), make('p', {class: 'note'}, t('program_note')),
          make('p', {class: 'note'}, t('keys'))));
  rebuild();
}

// One program; `end`: of the longest. Returns what shows a point in time.
function drawProgram(parent, program, end) {
  const parsed = actionsOf(program), left = 56, row = 26, top = 4, height = 2 * top + program.ranks * row;
  const box = make('figure', {'data-program': program.name}, make('h3', {}, program.name), make('p', {class: 'note'}, inLanguage(program.summary)));
  parent.append(box);
  const width = Math.max(280, Math.min(820, box.clientWidth - 26)), x = d3.scale.linear().domain([0, end * chunksOf(program)]).range([left, width - 6]), yOf = (rank) => top + rank * row;
  const svg = d3.select(document.createElementNS('http://www.w3.org/2000/svg', 'svg')).attr('viewBox', `0 0 ${width} ${height}`)
      .attr('role', 'img').attr('aria-label', program.name);
  for (let rank = 0; rank < program.ranks; ++rank) {
    svg.append('text').attr({x: left - 6, y: yOf(rank) + row / 2 + 4, 'text-anchor': 'end'}).text(`${t('rank')} ${rank}`);
    svg.append('rect').attr({class: 'outline', x: left, y: yOf(rank) + 1, width: x(program.end) - left, height: row - 2});
  }
  const boxes = parsed.actions.map((action) => {
    const [, colour, ink] = actionRow(action.name), label = microBatch(action.name), room = x(action.end) - x(action.begin), group = svg.append('g');
    group.append('title').text(action.name);
    group.append('rect').attr({x: x(action.begin) + 0.5, y: yOf(action.rank) + 3, width: room - 1, height: row - 6}).style('fill', colour);
    if (room > textWidth(label)) group.append('text').attr({x: x(action.begin) + room / 2, y: yOf(action.rank) + row / 2 + 4, 'text-anchor': 'middle'})
        .style('fill', ink).text(label);
    return {...action, group};
  });
  const arrows = svg.append('g'), cursor = svg.append('line').attr({y1: 0, y2: height}).style({stroke: 'var(--ink)', 'stroke-width': 1.5});
  const counts = make('div', {class: 'counts'});
  box.append(svg.node(), counts);
  return (time) => {
    const now = Math.min(time * chunksOf(program), program.end), {unit, sends, bubble, computing, inFlight} = momentOf(program, parsed, now), done = unit >= program.end;
    for (const {begin, group} of boxes) group.style('display', begin < now || (begin === unit && !done) ? null : 'none');
    cursor.attr({x1: x(now), x2: x(now)});
    arrows.selectAll('*').remove();
    for (const {rank, to, name, at} of sends) drawArrow(arrows, x(at) - 5, yOf(rank) + row / 2, x(at) + 5, yOf(to) + row / 2, 'var(--exposed)', `${name} → ${to}`);
    counts.replaceChildren(...[
      t('program_computing', computing.map((action) => (action ? action.name : '–')).join(', ')),
      t('program_sent', sends.map(({name, rank, to}) => `${name} ${rank}→${to}`).join(', ') || '–'),
      t('program_in_flight', inFlight.join(', '), program.in_flight.join(', ')),
      t('program_bubble', (100 * bubble).toFixed(1)),
    ].map((text, i) => make('div', {class: done && i === 3 ? 'done' : ''}, text)));
  };
}

// Copy or cut.
function drawPipeline(parent, run) {
  askQuestions(parent, run, 'bubble', 'in_flight');
  paragraphs(parent, 'pipeline_cut', 'pipeline_batches', 'pipeline_programs');
  drawPrograms(parent);
}
