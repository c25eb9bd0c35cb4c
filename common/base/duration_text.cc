#include "common/base/duration_text.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace psring {
namespace {

struct Unit {
  const char* names;  // separated by commas
  double seconds;
};
constexpr Unit kUnits[] = {{"ns,nsec,nanosecond,nanoseconds", 1e-9},
                           {"us,usec,usecs,microsecond,microseconds,µs,μs", 1e-6},
                           {"ms,msec,msecs,millisecond,milliseconds", 1e-3},
                           {"s,sec,secs,second,seconds", 1},
                           {"m,min,mins,minute,minutes", 60},
                           {"h,hr,hrs,hour,hours", 3600},
                           {"d,day,days", 86400}};

std::optional<double> SecondsOf(absl::string_view name) {
  for (const Unit& unit : kUnits) {
    for (const absl::string_view known : absl::StrSplit(unit.names, ',')) {
      if (name == known) return unit.seconds;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<absl::Duration> ParseDurationText(const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  absl::string_view rest = absl::StripAsciiWhitespace(lower);
  absl::Duration sum = absl::ZeroDuration();
  if (rest.empty()) return std::nullopt;
  while (!rest.empty()) {
    const size_t digits = std::min(rest.find_first_not_of("0123456789."), rest.size());
    double number = 0;
    if (!absl::SimpleAtod(rest.substr(0, digits), &number)) return std::nullopt;
    rest = absl::StripLeadingAsciiWhitespace(rest.substr(digits));
    const size_t letters = std::min(rest.find_first_of("0123456789. "), rest.size());
    const std::optional<double> unit = SecondsOf(rest.substr(0, letters));
    if (!unit) return std::nullopt;
    sum += absl::Seconds(number * *unit);
    rest = absl::StripLeadingAsciiWhitespace(rest.substr(letters));
  }
  return sum;
}

}  // namespace psring
