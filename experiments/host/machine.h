// What this machine is, and how much of it others take while we measure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace psring {

struct Machine {
  int cores = 1;  // that this process may use: affinity, and a container's quota
  std::string cpu_model;
  int64_t memory_mb = 0;
  std::string system;  // "Debian GNU/Linux 12 (bookworm)"
  std::string kernel;  // "6.1.0-18-amd64"
  std::string host;
  std::string gpu_convolutions;  // who computes them: "cudnn 9.19.0", "cublaslt"; empty: no GPU
};
Machine DescribeMachine();

// Above this share of the processors, others disturb a measurement. Half of two cores is 25%.
inline constexpr double kMostForeignCpuPct = 33;

// Seconds in which the processors `cpus` ran processes of anybody, from the text of /proc/stat. Interrupts do
// not count: most of them move the experiment's own packets, which no process is charged for. Pure.
double BusySeconds(const std::string& proc_stat, const std::vector<int>& cpus, double ticks_per_second);

// The share of the processors that others used between its construction and Percent(): everything that was
// busy, minus this process and its children. Children count once they have been waited for, so ask after
// that.
class ForeignCpu {
 public:
  ForeignCpu();
  double Percent() const;

 private:
  struct Sample {
    double busy_s = 0, ours_s = 0, wall_s = 0;
  };
  static Sample Take(const std::vector<int>& cpus);

  std::vector<int> cpus_;
  Sample start_;
};

}  // namespace psring
