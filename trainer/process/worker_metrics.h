// A worker's figures for --metrics_port. One thread counts, any thread reads, without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "common/measure/records.h"

namespace psring {

class WorkerMetrics {
 public:
  WorkerMetrics(int rank, const std::string& strategy) : rank_(rank), strategy_(strategy) {}

  // After every step, from the training thread.
  void Count(const StepRecord& step);
  // OpenMetrics. From any thread; while a step is being counted, some figures may not include it.
  std::string Text() const;

 private:
  // Only one thread writes, so no atomic read-modify-write is needed.
  template <typename Number>
  static void Add(std::atomic<Number>& sum, Number value) {
    sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }

  static constexpr size_t kStepBounds = 14, kStalenessBounds = 12;

  const int rank_;
  const std::string strategy_;
  std::atomic<uint64_t> steps_{0}, samples_{0}, dropped_{0}, tx_bytes_{0}, rx_bytes_{0};
  std::atomic<double> loss_{0}, compute_s_{0}, wait_s_{0}, comm_s_{0}, step_s_{0}, staleness_sum_{0};
  std::array<std::atomic<uint64_t>, kStepBounds + 1> step_counts_{};
  std::array<std::atomic<uint64_t>, kStalenessBounds + 1> staleness_counts_{};
};

}  // namespace psring
