// Rows of a comparison of ring and ps-sync with 4 workers, for tests of sentences about them.
#pragma once

#include <string>
#include <vector>

#include "experiments/analysis/summarise.h"
#include "tests/experiments/test_catalog.h"

namespace psring {

inline constexpr double kGradientBytes = 4 * 25'000'000.0;  // of a gradient
inline const Wires kGigabitWires{.latency_s = 1e-4, .bytes_per_s = 0.125e9, .add_s_per_byte = 1e-10};

// A row on links of 1 Gbit/s with 32 samples per worker and step.
inline SummaryRow TimedRow(const std::string& strategy, int workers, double step_ms, double spread = 0.001) {
  SummaryRow row{.run_id = "run", .configuration = TestConfiguration(strategy, workers)};
  row.measured_cost = true;
  row.rounds = 3;
  row.link = {.shaping = Shaping::kUserspace, .bits_per_s = 1e9};
  row.mean.step_ms = step_ms;
  row.mean.compute_ms = 100;
  row.mean.samples_per_s = 32e3 * workers / step_ms;
  for (const double factor : {1 - spread, 1.0, 1 + spread}) {
    row.round_samples_per_s.push_back(factor * row.mean.samples_per_s);
    row.round_step_ms.push_back(step_ms / factor);
  }
  row.sample.bucket_elements = {25'000'000};
  return row;
}

// ps-async with workers of these speeds, twice as fast as a step of 200 ms.
inline SummaryRow UnevenRow(const std::vector<double>& samples_per_s) {
  SummaryRow row = TimedRow("ps-async", static_cast<int>(samples_per_s.size()), 100);
  for (const double speed : samples_per_s)
    row.mean.workers.push_back({.rank = static_cast<int>(row.mean.workers.size()),
                                .samples_per_s = speed,
                                .step_ms = 32e3 / speed,
                                .staleness_mean = 3,
                                .staleness_theory = 3});
  row.mean.staleness_mean = 3;
  return row;
}

// single, none, ring, ps-sync.
inline std::vector<SummaryRow> RowsOfFour(double ring_ms, double server_ms, double spread = 0.001) {
  std::vector<SummaryRow> rows = {TimedRow("single", 1, 100), TimedRow("none", 4, 100),
                                  TimedRow("ring", 4, ring_ms, spread),
                                  TimedRow("ps-sync", 4, server_ms, spread)};
  rows[2].predicted_comm_ms = 1200;
  rows[3].predicted_comm_ms = 3200;
  return rows;
}

// The same with 4 workers on 2 cores, which compute in twice the time; and `none` with 2 workers.
inline std::vector<SummaryRow> OversubscribedRowsOfFour(double ring_ms, double server_ms) {
  std::vector<SummaryRow> rows = RowsOfFour(ring_ms, server_ms);
  rows[1] = TimedRow("none", 4, 200);
  for (size_t i = 1; i < rows.size(); ++i) {
    rows[i].configuration.oversubscribed = true;
    rows[i].mean.compute_ms = 200;
  }
  rows.push_back(TimedRow("none", 2, 100));
  return rows;
}

}  // namespace psring
