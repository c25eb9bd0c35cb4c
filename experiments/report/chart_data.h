// The charts of runs, from the same data as the page has. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/report/chart.h"
#include "experiments/report/run_data.h"

namespace psring {

// Of several runs communication, throughput and efficiency are pooled, a point a run; the other charts are
// each run's own, their id beginning with the run's. What a run has no figures for has no chart.
std::vector<Chart> ChartsOf(const std::vector<RunData>& runs);

// A chart's id as the name of a file: letters, digits, . and _ stay, all else becomes a dash.
std::string FileName(const std::string& id);

}  // namespace psring
