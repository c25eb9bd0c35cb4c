// The two halves of ChartsOf (chart_data.h). Pure.
#pragma once

#include <vector>

#include "experiments/report/chart.h"
#include "experiments/report/run_rows.h"

namespace psring {

// row_charts.cc. Of the summaries' rows: pooled where there are several runs.
void AddPooledCharts(const std::vector<ChartRun>& runs, std::vector<Chart>& charts);
// One run's bars.
void AddBarCharts(const ChartRun& run, std::vector<Chart>& charts);

// file_charts.cc. Of the run's other files.
void AddFileCharts(const ChartRun& run, std::vector<Chart>& charts);

}  // namespace psring
