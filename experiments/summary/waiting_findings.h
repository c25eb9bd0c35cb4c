// What synchrony costs and what asynchrony costs, in plain words. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/summary/summarise.h"
#include "experiments/texts/phrase.h"

namespace psring {

// Nothing where no workers were disturbed: then waiting is a matter of the machine, not of the strategies.
std::vector<std::string> WaitingFindings(const std::vector<SummaryRow>& rows,
                                         Language language = Language::kEnglish);

}  // namespace psring
