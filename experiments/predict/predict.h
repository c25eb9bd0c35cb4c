// `psring predict`: looks the strategies up, predicts every case, writes the summary, says what it means.
#pragma once

#include "experiments/predict/flags.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/progress.h"

namespace psring {

// Returns the exit code.
int RunPredict(const PredictFlags& flags, const Interrupt& interrupt, Display& display);

}  // namespace psring
