// What the rows mean, and what they do not, in a few plain sentences. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/summary/summarise.h"
#include "experiments/texts/phrase.h"

namespace psring {

// A sentence or two each. A winner is named only where the interval of the paired ratio excludes 1 over
// enough rounds; and none between server and ring as far as networks go, since all of it ran over one
// loopback.
std::vector<std::string> Findings(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires,
                                  int cores, Language language = Language::kEnglish);

}  // namespace psring
