// --scale K: a run whose links and replayed computing are K times slower, with all times divided by K. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/summary/summarise.h"
#include "experiments/texts/phrase.h"

namespace psring {

// Divides all times in `records` by `scale`. Processor time that does not depend on the links, such as
// adding and copying, was not slowed, so it then counts as 1/`scale` of itself.
void DivideTimes(double scale, RunRecords& records);

// The wires that those measured on links `scale` times slower stand for.
Wires DivideTimes(double scale, Wires wires);

// What the rows' times mean, part of Findings. Empty without --scale.
std::vector<std::string> ScaleFindings(const std::vector<SummaryRow>& rows,
                                       Language language = Language::kEnglish);

}  // namespace psring
