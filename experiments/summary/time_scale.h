// --scale K: a run whose links and replayed computing are K times slower, with all times divided by K. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/summary/summarise.h"
#include "experiments/texts/phrase.h"

namespace psring {

// Divides all times in `records` by `scale`. Processor time for adding and copying was not slowed, so it
// is underestimated by a factor of `scale`.
void DivideTimes(double scale, RunRecords& records);

// Converts wires measured on links `scale` times slower to the wires that they represent.
Wires DivideTimes(double scale, Wires wires);

// What the rows' times mean, part of Findings. Empty without --scale.
std::vector<std::string> ScaleFindings(const std::vector<SummaryRow>& rows,
                                       Language language = Language::kEnglish);

}  // namespace psring
