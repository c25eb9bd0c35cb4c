// Progress and staleness by the allowed lead of a worker. psring simulates them with the servers' own waiting rules; the
// page only looks them up.

const ruleText = (rule) => (rule === 'sync' ? t('rule_sync') : rule === 'async' ? t('rule_async')
    : t('rule_ssp', rule.replace('ssp:', '')));

// The choice of the lead and of the workers' speeds.
const waitingControls = (update) => make('div', {class: 'controls'},
    stepSlider('bound', DATA.waiting.rules.map(ruleText), () => wish.rule, (i) => { wish.rule = i; }, update),
    labelled(t('spread'), choice('spread', DATA.waiting.spreads.map((_, i) => i), wish.spread,
        DATA.waiting.spreads.map((name) => t(`spread_${name}`)), (value) => { wish.spread = +value; update(); })));

function drawWaiting(parent, run, data) {
  const i = Math.max(0, d3.bisectRight(data.workers, wish.most) - 1), workers = data.workers[i];
  const progress = data.progress[i][wish.spread], staleness = data.staleness[i][wish.spread],
      most = data.staleness_max[i][wish.spread], names = data.rules.map(ruleText);
  const rows = data.rules.map((rule, k) => ({run_id: run.run_id, basis: 'simulated', workers, computing: data.spreads[wish.spread],
      rule, chosen: k === wish.rule, steps_per_s: progress[k], staleness_mean: staleness[k], staleness_max: most[k]}));
  figure(parent, {id: 'waiting', wide: true, title: t('waiting_title', workers), rows, height: 300,
    note: t('waiting_note', ofRun(run)) + ' ' + t('waiting_said', names[wish.rule],
        brief(100 * progress[wish.rule] / progress[0] - 100), brief(staleness[wish.rule]), most[wish.rule]),
    legend: [{label: t('waiting_progress'), colour: 'var(--c0)', block: true},
        {label: t('waiting_staleness'), colour: 'var(--c1)', block: true}],
    draw: (svg, width, height) => {
      // Side by side, or stacked on narrow screens.
      const narrow = width < 440, half = narrow ? height / 2 : height, left = 92;
      const bars = (values, tips, x0, y0, room, colour, title, labels) => {
        const band = d3.scale.ordinal().domain(d3.range(names.length)).rangeRoundBands([y0 + 26, y0 + half - 6], 0.3),
            x = d3.scale.linear().domain([0, d3.max(tips || values) || 1]).range([0, room]);
        svg.append('text').attr({x: x0, y: y0 + 14}).text(title);
        values.forEach((value, k) => {
          const chosen = k === wish.rule, weight = chosen ? 700 : 400, middle = band(k) + band.rangeBand() / 2 + 4;
          if (labels) svg.append('text').attr({x: x0 - 6, y: middle, 'text-anchor': 'end'}).style('font-weight', weight)
              .text(names[k]);
          svg.append('rect').attr({x: x0, y: band(k), width: Math.max(1, x(value)), height: band.rangeBand()})
              .style({fill: colour, opacity: chosen ? 1 : 0.4, stroke: chosen ? 'var(--ink)' : 'none', 'stroke-dasharray': '5 4'});
          if (tips) svg.append('rect').attr({class: 'outline', x: x0, y: band(k), width: Math.max(1, x(tips[k])),
              height: band.rangeBand()}).style('stroke', colour);
          svg.append('text').attr({x: x0 + x(tips ? tips[k] : value) + 5, y: middle}).style('font-weight', weight)
              .text(tips ? `${brief(value)} / ${brief(tips[k])}` : brief(value));
        });
      };
      const room = narrow ? width - left - 80 : (width - left - 150) / 2;
      bars(progress, null, left, 0, room, 'var(--c0)', t('waiting_rate'), true);
      bars(staleness, most, narrow ? left : left + room + 70, narrow ? half : 0, room, 'var(--c1)', t('waiting_updates'), narrow);
    }});
}
