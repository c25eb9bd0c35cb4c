// The updates of an asynchronous server in order, and the version on which each gradient was computed, from the order of
// arrivals that the server recorded.

const lensChoice = {launch: null, update: null};
const LENS_UPDATES = 36;  // shown at a time

function drawUpdates(parent, run) {
  const launches = (run.arrivals || []).filter((l) => l && Array.isArray(l.pushes) && l.pushes.length && l.workers > 1);
  const expected = rowsOf(run).some((row) => row.pushes && row.workers > 1 && row.basis !== 'simulated');
  if (!launches.length) return expected ? parent.append(make('p', {}, t('lens_lost'))) : undefined;
  const launch = launches.find((l) => l.name === lensChoice.launch) || launches[launches.length - 1];
  const pushes = launch.pushes.map(([worker, on, creates]) => ({worker, on, creates, stale: creates - 1 - on}));
  if (lensChoice.launch !== launch.name || lensChoice.update === null || lensChoice.update > pushes.length) {
    lensChoice.launch = launch.name;
    lensChoice.update = Math.min(pushes.length, 3 * launch.workers + 1);
  }
  const names = launches.map((l) => l.name);
  const select = choice('lens-launch', names, launch.name, names, (name) => {
    Object.assign(lensChoice, {launch: name, update: null});
    parent.replaceChildren();
    drawUpdates(parent, run);
    document.getElementById('lens-launch').focus();
  });
  const said = make('p', {id: 'lens-said', 'aria-live': 'polite'}), chart = make('div', {class: 'grid'});
  const slider = make('input', {type: 'range', id: 'lens-update', min: 1, max: pushes.length, value: lensChoice.update,
      oninput: (event) => show(+event.target.value)});
  const step = (by) => show(Math.max(1, Math.min(pushes.length, lensChoice.update + by)));
  function show(update) {
    lensChoice.update = update;
    slider.value = update;
    const push = pushes[update - 1], between = pushes.filter((p) => p.creates > push.on && p.creates < push.creates);
    said.textContent = t('lens_said', push.creates, push.worker, push.on, push.stale,
      push.stale ? t('lens_between', between.map((p) => p.worker).join(', ')) : t('lens_fresh')) + ' ' +
      t('lens_mean', launch.updates, launch.staleness_mean.toFixed(2), launch.workers - 1, launch.staleness_max);
    chart.replaceChildren();
    drawLensChart(chart, run, launch, pushes, push);
  }
  parent.append(make('p', {}, t('lens_intro')), make('div', {class: 'controls'}, labelled(t('launch'), select),
    button('lens-back', t('lens_back'), () => step(-1)), labelled(t('lens_update'), slider),
    button('lens-next', t('lens_next'), () => step(1)), button('lens-play', t('go'), () => {
      const at = lensChoice.update;
      step(1);
      const move = () => {
        if (!chart.isConnected || lensChoice.update !== at + moved || lensChoice.update >= pushes.length || moved > 40) return;
        ++moved;
        step(1);
        setTimeout(move, 600);
      };
      let moved = 1;
      setTimeout(move, 600);
    })), said, chart);
  show(lensChoice.update);
}

function drawLensChart(parent, run, launch, pushes, chosen) {
  const first = Math.max(1, Math.min(chosen.creates - Math.round(LENS_UPDATES * 0.7), pushes.length - LENS_UPDATES + 1)),
      last = Math.min(pushes.length, first + LENS_UPDATES - 1);
  const shown = pushes.filter((p) => p.creates >= first && p.on <= last), colour = (worker) => `var(--c${worker % 8})`,
      row = Math.max(16, Math.min(34, 260 / launch.workers));
  figure(parent, {id: 'lens-chart', wide: true, title: t('lens_title', launch.name), height: 66 + row * launch.workers,
    note: t('lens_note', launch.records, ofRun(run)),
    rows: pushes.map((p) => ({run_id: run.run_id, launch: launch.name, records: launch.records, update: p.creates, worker: p.worker,
        computed_on_version: p.on, creates_version: p.creates, staleness: p.stale})),
    draw: (svg, width, height) => {
      const x = d3.scale.linear().domain([first - 1, last + 0.5]).range([84, width - 14]).clamp(true),
          y = (worker) => 16 + row * (worker + 0.5);
      svg.append('g').attr('class', 'axis').attr('transform', `translate(0,${height - 40})`)
          .call(d3.svg.axis().scale(x).orient('bottom').ticks(Math.min(18, width / 50))
          .tickFormat((v) => (v === Math.floor(v) ? String(v) : '')).tickSize(-(height - 52)));
      svg.append('text').attr({x: width - 14, y: height - 6, 'text-anchor': 'end'}).text(t('lens_axis'));
      for (let worker = 0; worker < launch.workers; ++worker) svg.append('text')
          .attr({x: 76, y: y(worker) + 4, 'text-anchor': 'end'}).text(`${t('worker')} ${worker}`);
      const within = (p) => p.creates > chosen.on && p.creates < chosen.creates;
      svg.append('rect').attr({x: x(chosen.on), y: 12, width: Math.max(0, x(chosen.creates) - x(chosen.on)), height: height - 52})
          .style({fill: colour(chosen.worker), opacity: 0.13});
      for (const p of shown) {
        const mine = p === chosen, faint = !mine && !within(p);
        svg.append('line').attr({x1: x(p.on) + 3, x2: x(p.creates), y1: y(p.worker), y2: y(p.worker)})
            .style({stroke: colour(p.worker), 'stroke-width': mine ? 5 : 2, opacity: faint ? 0.4 : 1});
        if (p.creates > last) continue;
        svg.append('circle').attr({cx: x(p.creates), cy: y(p.worker), r: mine ? 7 : within(p) ? 6 : 4})
            .style({fill: colour(p.worker), stroke: mine || within(p) ? 'var(--ink)' : 'none', 'stroke-width': 1.5, opacity: faint
            ? 0.5 : 1})
          .append('title').text(t('lens_dot', p.creates, p.worker, p.on, p.stale));
      }
    }});
}
