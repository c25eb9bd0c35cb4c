// Drawings whose figures are read back: from what marks say, and from where they stand between the axes'
// ticks.
#include "experiments/report/chart_svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace psring {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

double Value(const std::string& text) {
  double value = NAN;
  EXPECT_TRUE(absl::SimpleAtod(text, &value)) << text;
  return value;
}

// All matches of `pattern`, their groups as numbers.
std::vector<std::vector<double>> Figures(const std::string& svg, const std::string& pattern) {
  std::vector<std::vector<double>> found;
  const std::regex expression(pattern);
  for (std::sregex_iterator at(svg.begin(), svg.end(), expression), end; at != end; ++at) {
    auto& groups = found.emplace_back();
    for (size_t i = 1; i < at->size(); ++i) groups.push_back(Value((*at)[i].str()));
  }
  return found;
}

// What a place on the drawing means, by the first and last tick of an axis.
class Axis {
 public:
  Axis(const std::string& svg, const std::string& name, const std::string& attribute, double shift) {
    const auto ticks = Figures(svg, absl::StrCat("<text[^>]* ", attribute, "=\"([-0-9.]+)\"[^>]*data-axis=\"",
                                                 name, "\" data-value=\"([^\"]+)\""));
    EXPECT_GE(ticks.size(), 2u);
    if (ticks.size() < 2) return;
    from_ = ticks.front()[0] + shift, low_ = ticks.front()[1];
    to_ = ticks.back()[0] + shift, high_ = ticks.back()[1];
  }
  double Of(double place) const { return low_ + (place - from_) / (to_ - from_) * (high_ - low_); }

 private:
  double from_ = 0, to_ = 1, low_ = 0, high_ = 1;
};

Chart Lines() {
  return {
      .id = "lines",
      .title = "Title",
      .caption = "Run 1. 5 repeats of 9 steps.",
      .x_label = "workers",
      .y_label = "ms",
      .whole_x = true,
      .series = {{.name = "ring",
                  .points = {{.x = 2, .y = 4, .low = 3, .high = 5, .repeats = {3.5, 4.5}}, {.x = 4, .y = 9}}},
                 {.name = "ring",
                  .points = {{.x = 2, .y = 3.3}, {.x = 4, .y = 8}},
                  .dashed = true,
                  .marks = false}}};
}

TEST(ChartSvg, APointStandsWhereTheAxesSay) {
  const std::string svg = ChartSvg(Lines());
  const Axis x(svg, "x", "x", 0), y(svg, "y", "y", -4);
  const auto marks = Figures(
      svg, "<circle cx=\"([0-9.]+)\" cy=\"([0-9.]+)\" r=\"4.5\"[^>]*data-x=\"([^\"]+)\" data-y=\"([^\"]+)\"");
  ASSERT_EQ(marks.size(), 2u);
  for (const auto& mark : marks) {
    EXPECT_THAT(x.Of(mark[0]), DoubleNear(mark[2], 0.01));
    EXPECT_THAT(y.Of(mark[1]), DoubleNear(mark[3], 0.02));
  }
  EXPECT_EQ(marks[1][3], 9);
}

TEST(ChartSvg, TheIntervalAndEveryRepeatAreDrawn) {
  const std::string svg = ChartSvg(Lines());
  const Axis y(svg, "y", "y", -4);
  const auto interval = Figures(
      svg,
      "y1=\"([0-9.]+)\" x2=\"[0-9.]+\" y2=\"([0-9.]+)\"[^>]*data-low=\"([^\"]+)\" data-high=\"([^\"]+)\"");
  ASSERT_EQ(interval.size(), 1u);
  EXPECT_THAT(y.Of(interval[0][0]), DoubleNear(3, 0.02));
  EXPECT_THAT(y.Of(interval[0][1]), DoubleNear(5, 0.02));
  const auto repeats = Figures(svg, "cy=\"([0-9.]+)\" r=\"2.2\"");
  ASSERT_EQ(repeats.size(), 2u);
  EXPECT_THAT(y.Of(repeats[0][0]), DoubleNear(3.5, 0.02));
}

TEST(ChartSvg, TheoryIsADashedLineThroughItsPoints) {
  const std::string svg = ChartSvg(Lines());
  const Axis y(svg, "y", "y", -4);
  const auto path = Figures(svg, "<path d=\"M[0-9.]+,([0-9.]+)L[0-9.]+,([0-9.]+)\"[^>]*stroke-dasharray");
  ASSERT_EQ(path.size(), 1u);
  EXPECT_THAT(y.Of(path[0][0]), DoubleNear(3.3, 0.02));
  EXPECT_THAT(y.Of(path[0][1]), DoubleNear(8, 0.02));
}

TEST(ChartSvg, ALogarithmicAxisKeepsItsTicksAndPointsTogether) {
  Chart chart = Lines();
  chart.log_x = chart.bytes_x = true;
  chart.series = {
      {.name = "gloo", .points = {{.x = 1024, .y = 1}, {.x = 4096, .y = 2}, {.x = 1048576, .y = 3}}}};
  const std::string svg = ChartSvg(chart);
  EXPECT_THAT(svg, HasSubstr(">4 KiB<"));
  const auto ticks = Figures(svg, "<text x=\"([0-9.]+)\"[^>]*data-axis=\"x\" data-value=\"([^\"]+)\"");
  ASSERT_EQ(ticks.size(), 3u);
  // A fifth of the way in logarithms.
  EXPECT_THAT((ticks[1][0] - ticks[0][0]) / (ticks[2][0] - ticks[0][0]), DoubleNear(0.2, 0.001));
}

TEST(ChartSvg, BarsAreAsLongAsTheirParts) {
  Chart chart{.title = "Bars", .caption = "", .x_label = "ms", .y_label = ""};
  chart.parts = {"compute", "exposed"};
  chart.bars = {{"ring × 2", {6, 2}, 7.0}, {"ps × 2", {5, 0}, std::nullopt}};
  const std::string svg = ChartSvg(chart);
  const Axis x(svg, "x", "x", 0);
  const auto bars = Figures(svg, "<rect x=\"([0-9.]+)\"[^>]*width=\"([0-9.]+)\"[^>]*data-value=\"([^\"]+)\"");
  ASSERT_EQ(bars.size(), 4u);
  EXPECT_THAT(x.Of(bars[0][0]), DoubleNear(0, 0.01));
  EXPECT_THAT(x.Of(bars[0][0] + bars[0][1]), DoubleNear(6, 0.02));
  EXPECT_THAT(x.Of(bars[1][0] + bars[1][1]), DoubleNear(8, 0.02));  // stacked
  EXPECT_EQ(bars[3][2], 0);
  const auto mark = Figures(svg, "<line x1=\"([0-9.]+)\"[^>]*data-mark=\"([^\"]+)\"");
  ASSERT_EQ(mark.size(), 1u);
  EXPECT_THAT(x.Of(mark[0][0]), DoubleNear(7, 0.02));
}

TEST(ChartSvg, ABarsIntervalIsAWhiskerAroundItsEnd) {
  Chart chart{.title = "Bars", .caption = "", .x_label = "ms", .y_label = ""};
  chart.parts = {"compute"};
  chart.bars = {{"ring × 2", {6}, std::nullopt, std::pair(5.5, 9.0)}, {"none × 2", {5}, std::nullopt}};
  const std::string svg = ChartSvg(chart);
  const Axis x(svg, "x", "x", 0);
  const auto whiskers = Figures(
      svg, "<line x1=\"([0-9.]+)\"[^>]*x2=\"([0-9.]+)\"[^>]*data-low=\"([^\"]+)\" data-high=\"([^\"]+)\"");
  ASSERT_EQ(whiskers.size(), 1u);
  EXPECT_THAT(x.Of(whiskers[0][0]), DoubleNear(5.5, 0.02));
  EXPECT_THAT(x.Of(whiskers[0][1]), DoubleNear(9, 0.02));  // the axis reaches that far
  EXPECT_EQ(whiskers[0][2], 5.5);
  EXPECT_EQ(whiskers[0][3], 9);
}

TEST(ChartSvg, AHistogramStandsOverItsNumbersWithItsLine) {
  Chart chart{.title = "Staleness", .caption = "", .x_label = "staleness", .y_label = "share"};
  chart.upright = true;
  chart.bars = {{"0", {0.25}, std::nullopt}, {"1", {0.5}, std::nullopt}, {"2", {0.25}, std::nullopt}};
  chart.line = {"N-1", 3};
  const std::string svg = ChartSvg(chart);
  const Axis x(svg, "x", "x", 0);
  const auto bars = Figures(
      svg, "<rect x=\"([0-9.]+)\"[^>]*width=\"([0-9.]+)\"[^>]*data-x=\"([^\"]+)\" data-value=\"([^\"]+)\"");
  ASSERT_EQ(bars.size(), 3u);
  for (const auto& bar : bars) EXPECT_THAT(x.Of(bar[0] + bar[1] / 2), DoubleNear(bar[2], 0.02));
  EXPECT_THAT(x.Of(Figures(svg, "<line x1=\"([0-9.]+)\"[^>]*data-mark")[0][0]), DoubleNear(3, 0.02));
}

TEST(ChartSvg, ATimelineHasARowForEachRankAndKind) {
  Chart chart{.title = "Step", .caption = "", .x_label = "ms", .y_label = ""};
  chart.spans = {{.rank = 0, .what = "forward", .begin = 0, .length = 2},
                 {.rank = 0, .what = "communication", .label = "1", .begin = 2, .length = 8},
                 {.rank = 1, .what = "forward", .begin = 0.5, .length = 2}};
  const std::string svg = ChartSvg(chart);
  const Axis x(svg, "x", "x", 0);
  const auto spans =
      Figures(svg,
              "<rect x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\"[^>]*data-rank=\"([^\"]+)\" "
              "data-x=\"([^\"]+)\" data-value=\"([^\"]+)\"");
  ASSERT_EQ(spans.size(), 3u);
  for (const auto& span : spans) {
    EXPECT_THAT(x.Of(span[0]), DoubleNear(span[4], 0.02));
    EXPECT_THAT(x.Of(span[0] + span[2]), DoubleNear(span[4] + span[5], 0.05));
  }
  EXPECT_NE(spans[0][1], spans[1][1]);
  EXPECT_THAT(svg, HasSubstr(">rank 1<"));
}

TEST(ChartSvg, NothingInATextIsMarkup) {
  Chart chart = Lines();
  chart.title = chart.caption = chart.series[0].name = "<script>\"'&";
  const std::string svg = ChartSvg(chart);
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_THAT(svg, HasSubstr("&lt;script&gt;&quot;&#39;&amp;"));
}

TEST(ChartSvg, OnePointOrEqualPointsAreDrawnToo) {
  for (const bool log : {false, true}) {
    Chart chart = Lines();
    chart.log_x = log;
    chart.series = {{.name = "ring", .points = {{.x = 2, .y = 0}}}};
    EXPECT_THAT(ChartSvg(chart), Not(HasSubstr("nan")));
    EXPECT_THAT(ChartSvg(chart), Not(HasSubstr("inf")));
  }
}

TEST(ChartSvg, TicksAreRoundNumbers) {
  EXPECT_THAT(AxisTicks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(AxisTicks(0.3, 1.1, 4), ElementsAre(DoubleNear(0.4, 1e-9), DoubleNear(0.6, 1e-9),
                                                  DoubleNear(0.8, 1e-9), DoubleNear(1, 1e-9)));
  EXPECT_THAT(AxisTicks(1, 1, 5), ElementsAre());
  EXPECT_THAT(AxisTicks(0, INFINITY, 5), ElementsAre());
}

TEST(ChartCsv, CellsAreQuotedWhereTheyMustBe) {
  Chart chart;
  chart.columns = {"a", "b"};
  chart.rows = {{"1", "x, \"y\""}, {"", "2"}};
  EXPECT_EQ(ChartCsv(chart), "a,b\n1,\"x, \"\"y\"\"\"\n,2\n");
}

}  // namespace
}  // namespace psring
