// The reader draws communication time against number of workers, starting at the first measured point, and is then shown
// the measurement and the theory.

const guess = {run: null, strategy: null, values: new Map(), revealed: false};  // values: workers -> ms

// Strategies with a measured first point. [{name, server, first, measured: [{x, y, low, high}], counts, theory}]
function guessable(run, theoryData) {
  const rows = rowsOf(run).filter((row) => communicates(row) && !row.has_tables && moving(row) > 0);
  return unique(rows.map((row) => row.strategy)).map((name) => {
    const here = rows.filter((row) => row.strategy === name).sort((a, b) => a.workers - b.workers);
    const measured = here.map((row) => {
      const [low, high] = d3.extent(repeatedMoving(run, row));
      return {x: row.workers, y: moving(row), low, high};
    });
    const counts = unique([...measured.map((p) => p.x), 2, 4, 8, 2 * measured[0].x].filter((n) => n >= measured[0].x))
        .sort(d3.ascending);
    return {name, server: here[0].servers > 0, first: measured[0], measured, counts, theory: counts.map((n) => ({x: n, y: theoryOf(here, n, run, theoryData)}))
        .filter((p) => isNumber(p.y))};
  }).filter((entry) => entry.counts.length > 1 && (entry.measured.length > 1 || entry.theory.length > 1));
}

// Theory in ms: from the run's row if there is one, else the scheme's cost terms with the run's numbers.
function theoryOf(rows, workers, run, theoryData) {
  const own = rows.find((row) => row.workers === workers && isNumber(row.predicted_comm_ms)), like = rows[0],
      scheme = theoryData.schemes[like.plain];
  if (own) return own.predicted_comm_ms;
  if (!scheme && like.plain !== 'ps-sync') return null;
  const kept = {...wish};
  resetWish(run);
  const terms = (scheme || serverTerms(theoryData))[workers - 1], ms = terms ? 1e3 * seconds(terms, scheme ? 0 : serverAdds())
      : null;
  Object.assign(wish, kept);
  return ms;
}

// Growth between two points: p in N^p.
const growth = (a, b) => Math.log(b.y / a.y) / Math.log(b.x / a.x);

function guessVerdict(entry) {
  const truth = entry.measured.length > 1 ? entry.measured : entry.theory,
      whose = t(entry.measured.length < 2 ? 'guess_theory' : allSimulated ? 'simulated_word' : 'measured');
  const points = truth.filter((p) => p.x > entry.first.x && guess.values.has(p.x));
  const each = points.map((p) => t('guess_point', p.x, brief(guess.values.get(p.x)), brief(p.y), whose))
      .join(t('semicolon'));
  const last = points[points.length - 1];
  if (!last) return '';
  const drawn = growth(entry.first, {x: last.x, y: guess.values.get(last.x)}), really = growth(entry.first, last);
  const word = Math.abs(drawn - really) < 0.25 ? 'guess_close' : drawn > really ? 'guess_steep' : 'guess_flat';
  return `${each}. ${t(word, Math.max(0, drawn).toFixed(1), really.toFixed(1))} ${t(entry.server ? 'guess_why_server' : 'guess_why_ring')}`;
}

function drawGuess(parent, run, theoryData) {
  const entries = guessable(run, theoryData);
  if (!entries.length) return;
  const entry = entries.find((e) => e.name === guess.strategy) || entries[0],
      redraw = (id) => { parent.replaceChildren(); drawGuess(parent, run, theoryData); document.getElementById(id).focus(); };
  if (guess.strategy !== entry.name || guess.run !== run.run_id) begin(entry);
  function begin(with_entry) {
    Object.assign(guess, {run: run.run_id, strategy: with_entry.name,
        values: new Map(with_entry.counts.map((n) => [n, with_entry.first.y])), revealed: false});
  }
  parent.append(make('p', {}, t('guess_intro', entry.first.x, brief(entry.first.y))), make('div', {class: 'controls'},
    labelled(t('strategy'), choice('guess-strategy', entries.map((e) => e.name), entry.name, entries.map((e) => e.name),
        (value) => { begin(entries.find((e) => e.name === value)); redraw('guess-strategy'); })),
    button('guess-reveal', t('guess_reveal'),
        () => { guess.revealed = true; redraw('guess-again'); }),
    button('guess-again', t('guess_again'), () => { begin(entry); redraw('guess-again'); })));
  const said = make('p', {id: 'guess-said', 'aria-live': 'polite'}, guess.revealed ? guessVerdict(entry) : t('guess_keys'));
  const ratio = entry.counts[entry.counts.length - 1] / entry.first.x;
  const revealedTop = guess.revealed ? d3.max([...entry.measured, ...entry.theory], (p) => p.high || p.y) : 0;
  const top = Math.max(entry.first.y * ratio * 1.3, revealedTop, d3.max([...guess.values.values()])) * 1.05;
  const shownRows = () => [...guess.values].map(([workers, ms]) => ({run_id: run.run_id, strategy: entry.name, workers,
      basis: workers === entry.first.x ? 'given' : 'drawn', ms}))
    .concat(guess.revealed ? entry.measured.map((p) => ({run_id: run.run_id, strategy: entry.name, workers: p.x, basis: allSimulated ? 'simulated' : 'measured',
        ms: p.y})) : []);
  const box = figure(parent, {id: 'guess', wide: true, title: t('guess_title', entry.name), note: captionOf(run), height: 340,
      rows: shownRows(),
    legend: [{label: t('guess_drawn'), colour: 'var(--c3)', mark: 'circle'},
        {label: t(allSimulated ? 'simulated_word' : 'measured'), colour: colourOf(entry.name), mark: markOf(entry.name)},
        {label: t('theory_line'), colour: colourOf(entry.name), dashed: true}],
    draw: (svg, width, height) => drawGuessChart(svg, width, height, entry, top, () => { box.rows = shownRows(); })});
  parent.append(said);
}

function drawGuessChart(svg, width, height, entry, top, changed) {
  const colour = colourOf(entry.name), counts = entry.counts;
  const x = d3.scale.linear().domain([counts[0] - 0.3, counts[counts.length - 1] + 0.3]), y = d3.scale.linear().domain([0, top]);
  const plot = axes(svg, width, height, x, y, {xLabel: t('workers'), yLabel: t('ms'), xTicks: counts});
  svg.attr('role', 'group');  // its points can be dragged
  const drawn = plot.append('path').style({fill: 'none', stroke: 'var(--c3)', 'stroke-width': 3, 'stroke-linejoin': 'round'});
  const free = counts.slice(1), handles = new Map();
  const show = () => {
    drawn.attr('d', d3.svg.line()(counts.map((n) => [x(n), y(guess.values.get(n))])));
    for (const [n, handle] of handles) handle.attr({cy: y(guess.values.get(n)), 'aria-valuenow': Math.round(guess.values.get(n)),
        'aria-valuetext': `${t('workers')} ${n}: ${brief(guess.values.get(n))} ms`});
  };
  const set = (n, ms) => { if (!guess.revealed) { guess.values.set(n, Math.max(0, Math.min(top, ms))); show(); changed(); } };
  for (const n of free) {
    handles.set(n, plot.append('circle')
        .attr({cx: x(n), r: 9, tabindex: 0, role: 'slider', class: 'handle', 'data-workers': n,
        'aria-label': `${t('guess_drawn')}, ${n} ${t('workers')}`, 'aria-valuemin': 0, 'aria-valuemax': Math.round(top)})
      .style({fill: 'var(--c3)', stroke: 'var(--ground)', 'stroke-width': 2}).on('keydown', () => {
        const by = {ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 5, PageDown: -5}[d3.event.key];
        if (!by) return;
        d3.event.preventDefault();
        set(n, guess.values.get(n) + by * top / 50);
      }));
  }
  if (guess.revealed) {
    const line = d3.svg.line().x((p) => x(p.x)).y((p) => y(p.y));
    plot.append('path').attr('class', 'theory').attr('d', line(entry.theory))
        .style({fill: 'none', stroke: colour, 'stroke-width': 2});
    plot.append('path').attr('d', line(entry.measured)).style({fill: 'none', stroke: colour, 'stroke-width': 2});
    for (const p of entry.measured) {
      if (isNumber(p.low)) plot.append('line').attr({x1: x(p.x), x2: x(p.x), y1: y(p.low), y2: y(p.high)})
          .style({stroke: colour, 'stroke-width': 3});
      mark(plot, markOf(entry.name), x(p.x), y(p.y), colour, false, `${p.x}: ${brief(p.y)} ms`);
    }
  } else {
    mark(plot, markOf(entry.name), x(entry.first.x), y(entry.first.y), colour, false,
        `${entry.first.x}: ${brief(entry.first.y)} ms`);
  }
  // Dragging anywhere on the chart moves the point with the nearest number of workers.
  let drawing = false;
  const node = svg.node(), follow = (event) => {
    const box = node.getBoundingClientRect(), px = (event.clientX - box.left) * width / box.width,
        py = (event.clientY - box.top) * height / box.height;
    const nearest = free.slice().sort((a, b) => Math.abs(x(a) - px) - Math.abs(x(b) - px))[0];
    set(nearest, y.invert(py));
  };
  node.style.touchAction = guess.revealed ? '' : 'pan-y';
  node.addEventListener('pointerdown', (event) => {
    if (guess.revealed) return;
    drawing = true;
    if (event.isTrusted) node.setPointerCapture(event.pointerId);
    follow(event);
  });
  node.addEventListener('pointermove', (event) => { if (drawing) follow(event); });
  for (const end of ['pointerup', 'pointercancel']) node.addEventListener(end, () => { drawing = false; });
  show();
}
