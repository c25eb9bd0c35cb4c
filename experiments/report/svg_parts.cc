#include "experiments/report/svg_parts.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace psring::svg {

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string Brief(double value) {
  if (!std::isfinite(value)) return "";
  if (std::abs(value) < 10000) return absl::StrFormat("%.4g", value);
  std::string digits = absl::StrFormat("%.0f", value);
  for (int at = static_cast<int>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

std::string ByteText(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return absl::StrFormat("%.4g %s", bytes, kUnits[unit]);
}

std::string Text(double x, double y, const char* anchor, const std::string& text, const char* more) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y, anchor, more,
                         Escaped(text));
}

std::string LineFrom(double x1, double y1, double x2, double y2, const char* colour, double width,
                     const char* more) {
  return absl::StrFormat(
      "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" stroke=\"%s\" stroke-width=\"%g\"%s/>\n", x1, y1,
      x2, y2, colour, width, more);
}

std::string MarkAt(const std::string& mark, double x, double y, const char* colour, bool hollow,
                   const std::string& inside, const std::string& data) {
  constexpr double r = 4.5;
  std::string shape;
  const auto polygon = [&](const std::vector<std::pair<double, double>>& corners) {
    return absl::StrCat("<polygon points=\"",
                        absl::StrJoin(corners, " ",
                                      [&](std::string* out, const std::pair<double, double>& corner) {
                                        absl::StrAppendFormat(out, "%.2f,%.2f", x + r * corner.first,
                                                              y + r * corner.second);
                                      }),
                        "\"");
  };
  std::string end = "</polygon>\n";
  if (mark == "circle") {
    shape = absl::StrFormat("<circle cx=\"%.2f\" cy=\"%.2f\" r=\"%g\"", x, y, r);
    end = "</circle>\n";
  } else if (mark == "square") {
    shape = polygon({{-.9, -.9}, {.9, -.9}, {.9, .9}, {-.9, .9}});
  } else if (mark == "triangle") {
    shape = polygon({{0, -1.2}, {1.1, .8}, {-1.1, .8}});
  } else if (mark == "diamond") {
    shape = polygon({{0, -1.3}, {1.1, 0}, {0, 1.3}, {-1.1, 0}});
  } else if (mark == "down") {
    shape = polygon({{0, 1.2}, {1.1, -.8}, {-1.1, -.8}});
  } else {
    shape = polygon({{-.4, -1.2},
                     {.4, -1.2},
                     {.4, -.4},
                     {1.2, -.4},
                     {1.2, .4},
                     {.4, .4},
                     {.4, 1.2},
                     {-.4, 1.2},
                     {-.4, .4},
                     {-1.2, .4},
                     {-1.2, -.4},
                     {-.4, -.4}});
  }
  return absl::StrCat(shape, " fill=\"", hollow ? "#ffffff" : colour, "\" stroke=\"", colour,
                      "\" stroke-width=\"1.5\"", data, ">", inside, end);
}

std::string Title(const std::string& text) { return absl::StrCat("<title>", Escaped(text), "</title>"); }

}  // namespace psring::svg
