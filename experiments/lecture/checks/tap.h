// Results in the Test Anything Protocol, version 13, which graders and CI systems read. Pure.
#pragma once

#include <string>
#include <vector>

namespace psring {

struct TapPoint {
  std::string name;     // what was checked
  std::string failure;  // what is wrong, in words; empty: it passed
  std::string hint;     // at a failure, may be empty
};

bool AllPassed(const std::vector<TapPoint>& points);
// The plan, a line "ok 1 - NAME" or "not ok 1 - FAILURE" for each point, and lines "# hint: HINT".
std::string TapText(const std::vector<TapPoint>& points);

}  // namespace psring
