// A chart as a drawing of its own: axes, points with their intervals, lines, legend, caption. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/report/chart.h"

namespace psring {

// An SVG document. Every mark says its figures: in a <title>, and as data-x and data-y (data-value of a bar's
// part), so that a figure can be read back. Texts are escaped, whatever they hold.
std::string ChartSvg(const Chart& chart);

// The same as CSV: RFC 4180, a header first.
std::string ChartCsv(const Chart& chart);

// Values to mark on an axis from `low` to `high`, at most about `count`: multiples of 1, 2 or 5 times a power
// of ten. Empty where the range is none.
std::vector<double> AxisTicks(double low, double high, int count);

}  // namespace psring
