#include "experiments/report/chart_svg.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "experiments/report/svg_parts.h"

namespace psring {
namespace {

using svg::Brief;
using svg::ByteText;
using svg::Escaped;
using svg::kColours;
using svg::kFaint;
using svg::kInk;
using svg::kLine;
using svg::LineFrom;
using svg::MarkAt;
using svg::Places;
using svg::Scale;
using svg::Text;
using svg::Title;

constexpr double kWidth = 760, kPlotHeight = 300, kLeft = 74, kRight = 22, kLineHeight = 16;
constexpr size_t kCaptionWidth = 118;

struct LegendEntry {
  std::string label;
  const char* colour;
  std::string mark;  // empty: a block
  bool dashed = false;
};

const std::string& ColourName(const ChartSeries& series) {
  return series.colour_of.empty() ? series.name : series.colour_of;
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {}

  std::string Draw() {
    absl::StrAppend(&body_, Text(12, 22, "start", chart_.title, " font-size=\"15\" font-weight=\"600\""));
    y_ = 34;
    if (!chart_.series.empty()) {
      DrawLines();
    } else if (!chart_.spans.empty()) {
      DrawTimeline();
    } else if (chart_.upright) {
      DrawHistogram();
    } else {
      DrawBars();
    }
    DrawCaption();
    return absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %.0f\" width=\"%g\" height=\"%.0f\" "
        "role=\"img\" aria-label=\"%s\" font-family=\"system-ui, 'Noto Sans', sans-serif\" font-size=\"12\" "
        "fill=\"%s\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n%s</svg>\n",
        kWidth, y_, kWidth, y_, Escaped(chart_.title), kInk, body_);
  }

 private:
  // Over the plot, in as many lines as it takes.
  void DrawLegend(const std::vector<LegendEntry>& entries) {
    double x = 12;
    for (const LegendEntry& entry : entries) {
      const double width = 40 + 6.9 * static_cast<double>(entry.label.size());
      if (x > 12 && x + width > kWidth - kRight) {
        x = 12;
        y_ += kLineHeight;
      }
      const double middle = y_ + 6;
      if (entry.mark.empty()) {
        absl::StrAppendFormat(&body_,
                              "<rect x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"10\" fill=\"%s\"/>\n", x + 4,
                              middle - 5, entry.colour);
      } else {
        absl::StrAppend(&body_, LineFrom(x, middle, x + 24, middle, entry.colour, 2,
                                         entry.dashed ? " stroke-dasharray=\"5 4\"" : ""));
        if (entry.mark != "none") {
          absl::StrAppend(&body_, MarkAt(entry.mark, x + 12, middle, entry.colour, false, "", ""));
        }
      }
      absl::StrAppend(&body_, Text(x + 29, middle + 4, "start", entry.label));
      x += width;
    }
    y_ += kLineHeight + 14;
  }

  void DrawCaption() {
    std::string line;
    const auto flush = [&] {
      if (line.empty()) return;
      absl::StrAppend(&body_, Text(12, y_ + 12, "start", line, " font-size=\"11\" fill=\"#5a6370\""));
      y_ += 15;
      line.clear();
    };
    for (absl::string_view word : absl::StrSplit(chart_.caption, ' ', absl::SkipEmpty())) {
      if (line.size() + word.size() + 1 > kCaptionWidth) flush();
      absl::StrAppend(&line, line.empty() ? "" : " ", word);
    }
    flush();
    y_ += 12;
  }

  // The frame of a plot with an upright value axis; moves y_ below it.
  void DrawAxes(const Scale& x, const Scale& y, const std::vector<std::pair<double, std::string>>& x_ticks) {
    for (const double tick : AxisTicks(y.low, y.high, 6)) {
      absl::StrAppend(&body_, LineFrom(x.from, y(tick), x.to, y(tick), kLine, 1));
      absl::StrAppend(&body_, TickText(x.from - 6, y(tick) + 4, "end", "y", tick, Brief(tick)));
    }
    absl::StrAppend(&body_, LineFrom(x.from, y.from, x.to, y.from, kFaint, 1));
    for (const auto& [value, text] : x_ticks) {
      absl::StrAppend(&body_, LineFrom(x(value), y.from, x(value), y.from + 4, kFaint, 1));
      absl::StrAppend(&body_, TickText(x(value), y.from + 18, "middle", "x", value, text));
    }
    absl::StrAppend(&body_, Text(x.to, y.from + 34, "end", chart_.x_label));
    absl::StrAppend(&body_, Text(12, y.to - 8, "start", chart_.y_label));
    y_ = y.from + 42;
  }

  std::string TickText(double x, double y, const char* anchor, const char* axis, double value,
                       const std::string& text) {
    const std::string more =
        absl::StrFormat(" fill=\"%s\" data-axis=\"%s\" data-value=\"%.17g\"", kFaint, axis, value);
    return Text(x, y, anchor, text, more.c_str());
  }

  // Those of an x axis: byte sizes, the values that occur, or round ones.
  std::vector<std::pair<double, std::string>> XTicks(const Scale& x, std::vector<double> values) const {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    std::vector<std::pair<double, std::string>> ticks;
    if (chart_.bytes_x || chart_.log_x || (chart_.whole_x && values.size() <= 12)) {
      const size_t each = (values.size() + 9) / 10;
      for (size_t i = 0; i < values.size(); i += std::max<size_t>(1, each)) {
        ticks.emplace_back(values[i], chart_.bytes_x ? ByteText(values[i]) : Brief(values[i]));
      }
      return ticks;
    }
    for (const double tick : AxisTicks(x.low, x.high, 7)) {
      if (!chart_.whole_x || tick == std::floor(tick)) ticks.emplace_back(tick, Brief(tick));
    }
    return ticks;
  }

  void DrawLines() {
    std::vector<LegendEntry> legend;
    std::vector<double> across;
    double low = chart_.zero_y ? 0 : std::numeric_limits<double>::infinity(), high = chart_.zero_y ? 0 : -low;
    std::vector<std::string> names;
    for (const ChartSeries& series : chart_.series) {
      if (std::find(names.begin(), names.end(), series.name) == names.end()) names.push_back(series.name);
      legend.push_back({series.marks || !series.dashed ? series.name : absl::StrCat(series.name, ", theory"),
                        places_.Colour(ColourName(series)),
                        series.marks ? places_.Mark(series.name) : std::string("none"), series.dashed});
      for (const ChartPoint& point : series.points) {
        across.push_back(point.x);
        low = std::min({low, point.y, point.low.value_or(point.y)});
        high = std::max({high, point.y, point.high.value_or(point.y)});
        for (const double repeat : point.repeats) high = std::max(high, repeat);
      }
    }
    if (!(high >= low)) low = high = 0;  // no points
    DrawLegend(legend);
    const double first = across.empty() ? 0 : std::ranges::min(across),
                 last = across.empty() ? 1 : std::ranges::max(across);
    Scale x{.low = chart_.log_x ? first : first - (chart_.whole_x ? 0.4 : 0),
            .high = chart_.log_x ? last : last + (chart_.whole_x ? 0.4 : 0),
            .from = kLeft,
            .to = kWidth - kRight,
            .log = chart_.log_x};
    if (chart_.log_x && !(x.high > x.low)) x.low /= 2, x.high *= 2;
    if (!(x.high > x.low)) x.high = x.low + 1;
    y_ += 16;
    const Scale y{.low = low,
                  .high = high > low ? low + (high - low) * 1.06 : low + 1,
                  .from = y_ + kPlotHeight,
                  .to = y_};
    DrawAxes(x, y, XTicks(x, across));
    for (const ChartSeries& series : chart_.series) {
      // Side by side where points of one number of workers would cover each other.
      const double place =
          static_cast<double>(std::find(names.begin(), names.end(), series.name) - names.begin());
      const double aside = chart_.whole_x && !chart_.log_x
                               ? (place - (static_cast<double>(names.size()) - 1) / 2) *
                                     std::min(9.0, 60.0 / static_cast<double>(names.size()))
                               : 0;
      DrawSeries(series, x, y, aside);
    }
  }

  void DrawSeries(const ChartSeries& series, const Scale& x, const Scale& y, double aside) {
    const char* colour = places_.Colour(ColourName(series));
    std::string path;
    for (const ChartPoint& point : series.points) {
      absl::StrAppendFormat(&path, "%s%.2f,%.2f", path.empty() ? "M" : "L", x(point.x) + aside, y(point.y));
    }
    if (series.points.size() > 1) {
      absl::StrAppendFormat(&body_, "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\"%s/>\n",
                            path, colour, series.dashed ? " stroke-dasharray=\"5 4\"" : "");
    }
    for (const ChartPoint& point : series.points) {
      const double at = x(point.x) + aside;
      for (const double repeat : point.repeats) {
        absl::StrAppendFormat(&body_,
                              "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"2.2\" fill=\"%s\" opacity=\"0.45\"/>\n",
                              at, y(repeat), colour);
      }
      if (point.low && point.high) {
        absl::StrAppend(
            &body_,
            LineFrom(
                at, y(*point.low), at, y(*point.high), colour, 2,
                absl::StrFormat(" data-low=\"%.17g\" data-high=\"%.17g\"", *point.low, *point.high).c_str()));
      }
      std::string says = absl::StrFormat("%s: %s, %s", series.name, Brief(point.x), Brief(point.y));
      if (point.low && point.high)
        absl::StrAppend(&says, " (", Brief(*point.low), " to ", Brief(*point.high), ")");
      const std::string data = absl::StrFormat(" data-series=\"%s\" data-x=\"%.17g\" data-y=\"%.17g\"",
                                               Escaped(series.name), point.x, point.y);
      if (series.marks) {
        absl::StrAppend(&body_, MarkAt(places_.Mark(series.name), at, y(point.y), colour, point.hollow,
                                       Title(says), data));
      } else if (series.points.size() == 1) {
        absl::StrAppend(&body_, LineFrom(at - 7, y(point.y), at + 7, y(point.y), colour, 2));
      }
    }
  }

  void DrawBars() {
    std::vector<LegendEntry> legend;
    // Parts have the page's colours in its order; the rest of a step is grey.
    for (size_t i = 0; i < chart_.parts.size(); ++i) legend.push_back({chart_.parts[i], PartColour(i), ""});
    DrawLegend(legend);
    double most = 0, longest = 0;
    for (const ChartBar& bar : chart_.bars) {
      double sum = 0;
      for (const double part : bar.parts) sum += part;
      most = std::max({most, sum, bar.mark.value_or(0), bar.interval ? bar.interval->second : 0});
      longest = std::max(longest, static_cast<double>(bar.name.size()));
    }
    const double left = std::min(300.0, 6.6 * longest + 22), height = 18, gap = 7;
    const Scale x{.low = 0, .high = most > 0 ? most * 1.02 : 1, .from = left, .to = kWidth - kRight};
    const double bottom = y_ + static_cast<double>(chart_.bars.size()) * (height + gap) + gap;
    for (const double tick : AxisTicks(0, x.high, 7)) {
      absl::StrAppend(&body_, LineFrom(x(tick), y_, x(tick), bottom, kLine, 1));
      absl::StrAppend(&body_, TickText(x(tick), bottom + 16, "middle", "x", tick, Brief(tick)));
    }
    double top = y_ + gap;
    for (const ChartBar& bar : chart_.bars) {
      absl::StrAppend(&body_, Text(left - 6, top + height - 5, "end", bar.name));
      double from = 0;
      for (size_t i = 0; i < bar.parts.size(); ++i) {
        const std::string part = i < chart_.parts.size() ? chart_.parts[i] : "";
        absl::StrAppendFormat(&body_,
                              "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%g\" fill=\"%s\" "
                              "data-bar=\"%s\" data-part=\"%s\" "
                              "data-value=\"%.17g\">%s</rect>\n",
                              x(from), top, std::max(0.0, x(from + bar.parts[i]) - x(from)), height,
                              PartColour(i), Escaped(bar.name), Escaped(part), bar.parts[i],
                              Title(absl::StrCat(bar.name, ": ", part, " ", Brief(bar.parts[i]))));
        from += bar.parts[i];
      }
      if (bar.mark) {
        absl::StrAppend(&body_, LineFrom(x(*bar.mark), top - 3, x(*bar.mark), top + height + 3, kInk, 2.5,
                                         absl::StrFormat(" data-mark=\"%.17g\"", *bar.mark).c_str()));
      }
      if (bar.interval)
        DrawWhisker(x(bar.interval->first), x(bar.interval->second), top + height / 2, *bar.interval);
      top += height + gap;
    }
    absl::StrAppend(&body_, Text(x.to, bottom + 32, "end", chart_.x_label));
    y_ = bottom + 40;
  }

  // Over a bar that lies: its interval, with ends that are seen where it has no width.
  void DrawWhisker(double from, double to, double y, const std::pair<double, double>& interval) {
    const std::string data =
        absl::StrFormat(" data-low=\"%.17g\" data-high=\"%.17g\"", interval.first, interval.second);
    absl::StrAppend(&body_, LineFrom(from, y, to, y, kInk, 1.5, data.c_str()));
    for (const double end : {from, to}) absl::StrAppend(&body_, LineFrom(end, y - 4, end, y + 4, kInk, 1.5));
  }

  const char* PartColour(size_t part) const {
    constexpr const char* kParts[] = {"#0072b2", "#d55e00", "#b9bfc7", "#009e73"};
    return kParts[part % std::size(kParts)];
  }

  void DrawHistogram() {
    double most = 0;
    for (const ChartBar& bar : chart_.bars) most = std::max(most, bar.parts.empty() ? 0 : bar.parts.front());
    const double count = static_cast<double>(chart_.bars.size());
    if (chart_.line) DrawLegend({{chart_.line->first, kInk, "none", true}});
    y_ += 16;
    const Scale x{.low = -0.7,
                  .high = std::max(count - 1, chart_.line ? chart_.line->second : 0) + 0.7,
                  .from = kLeft,
                  .to = kWidth - kRight};
    const Scale y{.low = 0, .high = most > 0 ? most * 1.06 : 1, .from = y_ + kPlotHeight, .to = y_};
    std::vector<std::pair<double, std::string>> ticks;
    for (const double tick : AxisTicks(0, x.high, 10)) {
      if (tick == std::floor(tick)) ticks.emplace_back(tick, Brief(tick));
    }
    DrawAxes(x, y, ticks);
    for (size_t i = 0; i < chart_.bars.size(); ++i) {
      const double value = chart_.bars[i].parts.empty() ? 0 : chart_.bars[i].parts.front();
      absl::StrAppendFormat(
          &body_,
          "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" data-x=\"%d\" "
          "data-value=\"%.17g\">%s</rect>\n",
          x(static_cast<double>(i) - 0.35), y(value), x(0.7) - x(0), y(0) - y(value), PartColour(0), i, value,
          Title(absl::StrCat(i, ": ", Brief(value))));
    }
    if (chart_.line) {
      absl::StrAppend(
          &body_,
          LineFrom(
              x(chart_.line->second), y.to, x(chart_.line->second), y.from, kInk, 2,
              absl::StrFormat(" stroke-dasharray=\"5 4\" data-mark=\"%.17g\"", chart_.line->second).c_str()));
    }
  }

  // A row a rank and kind; kinds in the order of their appearance.
  void DrawTimeline() {
    std::vector<std::string> kinds;
    std::map<std::pair<double, size_t>, std::vector<const ChartSpan*>> rows;
    double begin = chart_.spans.front().begin, end = begin;
    for (const ChartSpan& span : chart_.spans) {
      const auto kind = std::find(kinds.begin(), kinds.end(), span.what);
      rows[{span.rank, static_cast<size_t>(kind - kinds.begin())}].push_back(&span);
      if (kind == kinds.end()) kinds.push_back(span.what);
      begin = std::min(begin, span.begin);
      end = std::max(end, span.begin + span.length);
    }
    std::vector<LegendEntry> legend;
    for (size_t i = 0; i < kinds.size(); ++i)
      legend.push_back({kinds[i], kColours[i % std::size(kColours)], ""});
    DrawLegend(legend);
    constexpr double kHeight = 15;
    const Scale x{.low = begin, .high = end > begin ? end : begin + 1, .from = kLeft, .to = kWidth - kRight};
    const double bottom = y_ + static_cast<double>(rows.size()) * (kHeight + 3) + 6;
    for (const double tick : AxisTicks(x.low, x.high, 8)) {
      absl::StrAppend(&body_, LineFrom(x(tick), y_, x(tick), bottom, kLine, 1));
      absl::StrAppend(&body_, TickText(x(tick), bottom + 16, "middle", "x", tick, Brief(tick)));
    }
    double top = y_ + 3, said = -1;
    for (const auto& [row, spans] : rows) {
      if (row.first != said)
        absl::StrAppend(&body_, Text(kLeft - 6, top + 12, "end", absl::StrCat("rank ", row.first)));
      said = row.first;
      for (const ChartSpan* span : spans) {
        const double width = std::max(0.5, x(span->begin + span->length) - x(span->begin));
        absl::StrAppendFormat(
            &body_,
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%g\" fill=\"%s\" stroke=\"#ffffff\" "
            "stroke-width=\"0.5\" data-rank=\"%g\" data-x=\"%.17g\" data-value=\"%.17g\">%s</rect>\n",
            x(span->begin), top, width, kHeight, kColours[row.second % std::size(kColours)], span->rank,
            span->begin, span->length,
            Title(absl::StrFormat("%s %s: %s ms", span->what, span->label, Brief(span->length))));
        if (!span->label.empty() && width > 9) {
          absl::StrAppend(&body_, Text(x(span->begin) + width / 2, top + 12, "middle", span->label,
                                       " font-size=\"10\" fill=\"#ffffff\""));
        }
      }
      top += kHeight + 3;
    }
    absl::StrAppend(&body_, Text(x.to, bottom + 32, "end", chart_.x_label));
    y_ = bottom + 40;
  }

  const Chart& chart_;
  Places places_;
  std::string body_;
  double y_ = 0;  // below what is drawn
};

}  // namespace

std::vector<double> AxisTicks(double low, double high, int count) {
  if (!(high > low) || !std::isfinite(low) || !std::isfinite(high) || count < 1) return {};
  const double rough = (high - low) / count, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  for (double n = std::ceil(low / step - 1e-9); n * step <= high * (1 + 1e-12); ++n) {
    ticks.push_back(n == 0 ? 0 : n * step);  // never -0
  }
  return ticks;
}

std::string ChartSvg(const Chart& chart) { return Drawing(chart).Draw(); }

}  // namespace psring
