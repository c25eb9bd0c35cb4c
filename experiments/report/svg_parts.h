// What chart drawings are made of: numbers as text, scales, elements of SVG. Texts are escaped. Pure.
#pragma once

#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <string>

namespace psring::svg {

// Okabe and Ito's, which people who confuse red and green can tell apart; the page's, on white.
inline constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#b4508b",
                                           "#b87700", "#3a97c9", "#6f6a00", "#555b63"};
inline constexpr const char* kInk = "#1b1f24";
inline constexpr const char* kFaint = "#5a6370";
inline constexpr const char* kLine = "#d0d5dc";
inline constexpr const char* kMarks[] = {"circle", "square", "triangle", "diamond", "cross", "down"};

std::string Escaped(const std::string& text);
// About four digits: 0.0123, 1.234, 12,300.
std::string Brief(double value);
std::string ByteText(double bytes);

// Strategies that psring is about keep their place, as on the page; others follow in the order of the chart.
class Places {
 public:
  Places() {
    for (const char* name : {"ring", "ps-sync", "ps-async", "star", "direct", "halving-doubling",
                             "double-binary-tree", "none"}) {
      Of(name);
    }
  }
  size_t Of(const std::string& name) { return places_.emplace(name, places_.size()).first->second; }
  const char* Colour(const std::string& name) { return kColours[Of(name) % std::size(kColours)]; }
  const char* Mark(const std::string& name) {
    const size_t place = Of(name);
    return kMarks[(place + place / std::size(kColours)) % std::size(kMarks)];
  }

 private:
  std::map<std::string, size_t> places_;
};

// A value's place on the drawing.
struct Scale {
  double low = 0, high = 1, from = 0, to = 1;
  bool log = false;
  double operator()(double value) const {
    const double share = log ? (std::log(value) - std::log(low)) / (std::log(high) - std::log(low))
                             : (value - low) / (high - low);
    return from + share * (to - from);
  }
};

// Elements; `more`: further attributes.
std::string Text(double x, double y, const char* anchor, const std::string& text, const char* more = "");
std::string LineFrom(double x1, double y1, double x2, double y2, const char* colour, double width,
                     const char* more = "");
// `inside`: elements within the mark's, such as a Title.
std::string MarkAt(const std::string& mark, double x, double y, const char* colour, bool hollow,
                   const std::string& inside, const std::string& data);
std::string Title(const std::string& text);

}  // namespace psring::svg
