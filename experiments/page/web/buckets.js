// The effect of the bucket size in theory: bucket b is ready at r_b, costs c_b, and ends at e_b = max(r_b, e_(b-1)) + c_b.
// The time after the backward pass is exposed. Gradients become ready evenly over the backward pass, which is two thirds
// of the computation. The first bucket is smaller, as in psring.

const FIRST_BUCKET = 1048576;

function exposedSeconds(bucketBytes, cost) {
  const backward = wish.compute * 2 / 3, sizes = [Math.min(FIRST_BUCKET, bucketBytes, wish.gradient)];
  const count = Math.ceil((wish.gradient - sizes[0]) / bucketBytes);
  // With thousands of equal buckets, the sum of their costs is accurate enough.
  if (count > 3000) return Math.max(0, count * cost(bucketBytes) - backward);
  for (let left = wish.gradient - sizes[0]; left > 0.5; left -= bucketBytes) sizes.push(Math.min(left, bucketBytes));
  let ready = 0, end = 0;
  for (const size of sizes) {
    ready += size / wish.gradient * backward;
    end = Math.max(ready, end) + cost(size);
  }
  return Math.max(0, end - backward);
}

function drawBuckets(parent, run, theoryData) {
  const sizes = d3.range(49).map((i) => SLIDERS.bucket.low * Math.pow(SLIDERS.bucket.high / SLIDERS.bucket.low, i / 48));
  const workers = wish.most, schemes = [['ring', 'ring', (bytes) => ringSeconds(theoryData, workers, bytes)],
      ['ps-sync', 'ps-sync', (bytes) => serverSeconds(theoryData, workers, bytes)]];
  const curves = schemes.map(([name, label, cost]) => ({name, label, cost,
      points: sizes.map((size) => ({size, ms: 1e3 * exposedSeconds(size, cost)}))}));
  const here = curves.map((curve) => ({...curve, ms: 1e3 * exposedSeconds(wish.bucket, curve.cost)}));
  const rows = curves.flatMap(({name, points}, i) => [...points, {size: wish.bucket, ms: here[i].ms}].map(({size, ms}) => (
    {run_id: run.run_id, basis: 'derived', scheme: name, workers, bucket_bytes: Math.round(size), exposed_ms: ms})));
  figure(parent, {id: 'buckets', wide: true, title: t('bucket_title', workers), rows, height: 300,
    note: t('bucket_note', SLIDERS.bucket.text(wish.bucket), brief(wish.compute * 1e3),
        here.map((curve) => `${curve.label} ${brief(curve.ms)} ms`).join(', '), captionOf(run)),
    draw: (svg, width, height) => {
      const high = d3.max(rows, (row) => row.exposed_ms) || 1;
      const x = d3.scale.log().domain([SLIDERS.bucket.low, SLIDERS.bucket.high]), y = d3.scale.linear().domain([0, high * 1.08]);
      const plot = axes(svg, width, height, x, y, {xLabel: t('bucket'), yLabel: t('exposed_ms'), xFormat: bytesText,
          right: labelWidth(curves.map((curve) => curve.label), width), xTicks: [1e5, 1e6, 1e7, 1e8, 1e9]});
      for (const {name, points} of curves) drawCurve(plot, points, (p) => x(p.size), (p) => y(p.ms), name);
      directLabels(plot, x.range()[1] + 2, [20, height - 44], curves.map(({name, label, points}) => ({name, text: label, y: y(points[points.length - 1].ms)})));
      plot.append('line').attr({x1: x(wish.bucket), x2: x(wish.bucket), y1: y.range()[0], y2: y.range()[1]})
          .style({stroke: 'var(--ink)'});
      for (const curve of here) mark(plot, markOf(curve.name), x(wish.bucket), y(curve.ms), colourOf(curve.name), true,
          `${curve.label}: ${brief(curve.ms)} ms`);
    }});
}
