// Describes this machine, measures how much of its processors other programs use, and finds other psrings
// that measure at the same time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"

namespace psring {

// Cloud machines of different generations share a name such as "AMD EPYC", so results also state the others.
struct Processor {
  std::string name;                            // "AMD EPYC"
  int family = -1, model = -1, stepping = -1;  // -1: /proc/cpuinfo does not state it (not x86)
  std::string instruction_sets;                // those that matter for training: "avx2 fma avx512f"
};

// Of the first processor in the text of /proc/cpuinfo. Pure.
Processor ParseProcessor(const std::string& cpuinfo);

// "AMD EPYC (family 25, model 1, stepping 1; avx2 fma)". Empty if nothing is known. Pure.
std::string ProcessorText(const Processor& processor);

struct Machine {
  int cores = 1;  // available to this process, by its affinity and its control groups' quota
  Processor processor;
  int64_t memory_mb = 0;
  std::string system;  // "Debian GNU/Linux 12 (bookworm)"
  std::string kernel;  // "6.1.0-18-amd64"
  std::string host;
  std::string gpu_convolutions;  // the library for convolutions: "cudnn 9.19.0", "cublaslt"; empty: no GPU
};
Machine DescribeMachine();

// Other programs using more than this share of the processors disturb a measurement.
inline constexpr double kMaxForeignCpuPct = 33;

// Seconds in which the processors `cpus` ran any process, from the text of /proc/stat. Interrupts do not
// count: most of them handle the experiment's own packets and are charged to no process. Pure.
double BusySeconds(const std::string& proc_stat, const std::vector<int>& cpus, double ticks_per_second);

// The share of the processors that other programs used between construction and Percent(): all busy time
// minus that of this process and its children. Children count once they have been waited for.
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

// From construction on, others find this process. It has a socket with an abstract name, which all users and
// all containers with this network see, and which the kernel removes when the process ends, however it ends.
// A container with its own network is not found; its use of the processors is (ForeignCpu).
class MeasuringNow {
 public:
  MeasuringNow();

  // Process IDs of the others, ascending, as they see themselves.
  std::vector<int> Others() const;

 private:
  std::string own_;        // the name of socket_
  FileDescriptor socket_;  // not valid if the system permits none
  FileDescriptor names_;   // /proc/net/unix of the network in which this process started
};

// The process IDs in the names of MeasuringNow's sockets, except `own`, from the text of /proc/net/unix,
// ascending and distinct. Pure.
std::vector<int> MeasuringProcesses(const std::string& proc_net_unix, const std::string& own);

// Names by device number. The error states why there are none: no CUDA in this build, no driver, no device.
absl::StatusOr<std::vector<std::string>> FindGpus();

}  // namespace psring
