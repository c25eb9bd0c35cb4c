// What not waiting trades: progress against staleness, by how far a worker may lead. Simulated by psring with the
// servers' own waiting rules (waitingData); here it is only looked up.

const ruleText = (rule) => (rule === 'sync' ? t('rule_sync') : rule === 'async' ? t('rule_async') : t('rule_ssp', rule.replace('ssp:', '')));

function drawWaiting(parent, run, data) {
  if (!data || !data.workers) return;
  const i = Math.max(0, d3.bisectRight(data.workers, wish.most) - 1), workers = data.workers[i];
  const progress = data.progress[i][wish.spread], staleness = data.staleness[i][wish.spread], names = data.rules.map(ruleText);
  const rows = data.rules.map((rule, k) => ({run_id: run.run_id, basis: 'simulated', workers, computing: data.spreads[wish.spread], rule, chosen: k === wish.rule, steps_per_s: progress[k], staleness_mean: staleness[k]}));
  figure(parent, {id: 'waiting', title: t('waiting_title', workers), rows, height: 300,
    note: t('waiting_note', t('caption', run.run_id, '')) + ' ' + t('waiting_said', names[wish.rule], brief(100 * progress[wish.rule] / progress[0] - 100), brief(staleness[wish.rule])),
    legend: [{label: t('waiting_progress'), colour: 'var(--c0)', block: true}, {label: t('waiting_staleness'), colour: 'var(--c1)', block: true}],
    draw: (svg, width, height) => {
      const panel = (width - 20) / 2, band = d3.scale.ordinal().domain(d3.range(names.length)).rangeRoundBands([30, height - 12], 0.3), left = 92;
      const bars = (values, x0, colour, title, labels) => {
        const begin = x0 + (labels ? left : 8), x = d3.scale.linear().domain([0, d3.max(values) || 1]).range([0, (labels ? 2 * panel - left - panel * 0.85 : panel * 0.85) - 54]);
        svg.append('text').attr({x: begin, y: 16}).text(title);
        values.forEach((value, k) => {
          const chosen = k === wish.rule;
          if (labels) svg.append('text').attr({x: begin - 6, y: band(k) + band.rangeBand() / 2 + 4, 'text-anchor': 'end'}).style('font-weight', chosen ? 700 : 400).text(names[k]);
          svg.append('rect').attr({x: begin, y: band(k), width: Math.max(1, x(value)), height: band.rangeBand()}).style({fill: colour, opacity: chosen ? 1 : 0.4, stroke: chosen ? 'var(--ink)' : 'none', 'stroke-dasharray': '5 4'});
          svg.append('text').attr({x: begin + x(value) + 5, y: band(k) + band.rangeBand() / 2 + 4}).style('font-weight', chosen ? 700 : 400).text(brief(value));
        });
      };
      bars(progress, 0, 'var(--c0)', t('waiting_rate'), true);
      bars(staleness, 2 * panel - panel * 0.85 + 12, 'var(--c1)', t('waiting_updates'), false);
    }});
}
