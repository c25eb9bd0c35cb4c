// A chart as data: what chart_svg draws and chart_csv writes down.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace psring {

struct ChartPoint {
  double x = 0, y = 0;
  std::optional<double> low, high;  // an interval around y
  std::vector<double> repeats;      // single measurements behind it
  bool hollow = false;
};

// A line through points. A name keeps its colour and mark in every chart.
struct ChartSeries {
  std::string name;
  std::string colour_of = "";  // whose colour it has; empty: its own name's
  std::vector<ChartPoint> points = {};
  bool dashed = false;  // theory, or simulated
  bool marks = true;    // else the line alone
};

// A bar whose parts are stacked; `mark`: a value to hold it against.
struct ChartBar {
  std::string name;
  std::vector<double> parts;
  std::optional<double> mark;
  std::optional<std::pair<double, double>> interval = {};  // around the end of all parts
};

// A stretch of a timeline.
struct ChartSpan {
  double rank = 0;
  std::string what, label;  // the kind, and what is written on it
  double begin = 0, length = 0;
};

struct Chart {
  std::string id;              // a file's name: "communication"
  std::string title, caption;  // caption: what it shows, repeats, interval, run
  std::string x_label, y_label;
  bool log_x = false;
  bool zero_y = true;               // the upright axis begins at 0
  bool bytes_x = false;             // ticks in powers of two: "4 KiB"
  bool whole_x = false;             // only whole numbers are marked
  std::vector<ChartSeries> series;  // lines and points; empty: bars
  std::vector<ChartBar> bars;
  std::vector<std::string> parts;                      // the bars' parts by name, for the legend
  std::optional<std::pair<std::string, double>> line;  // upright, over a histogram: {"N-1", 3}
  std::vector<ChartSpan> spans;                        // a timeline
  bool upright = false;  // bars stand side by side at x = 0, 1, 2, ...: a histogram
  // The same as a table: the columns' names, and a text a cell.
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

}  // namespace psring
