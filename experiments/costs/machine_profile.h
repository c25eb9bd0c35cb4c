// The cost model's parameters a, B and g of a machine, fitted to its benchmark, with intervals. Pure except
// for LoadMachineProfile.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/stats/statistics.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

// A parameter and its 95% confidence interval, which can be unbounded (B, if no size was large enough).
struct Fitted {
  double value = 0;
  Interval interval;
};

struct MachineProfile {
  std::string source;     // the benchmark's file
  std::string transport;  // "tcp", "shm"
  Fitted latency_s, bytes_per_s, add_s_per_byte;
  double link_bytes_per_s = 0;  // measured between machines, one pair at a time; 0: one machine
  // By --server_wire, from rounds of one synchronous server over TCP: B of these rounds. Wires with fewer
  // than four measured cases, or times that do not grow with the size, are absent.
  std::map<std::string, Fitted> server_bytes_per_s;
  double r_squared = 0;  // of the fit to the times
  int points = 0;
  std::vector<std::string> undetermined;  // parameters that the data do not determine ("g"); set to 0
};

struct ProfilePoint {
  Scheme scheme;
  int workers = 2;
  double bytes = 0, seconds = 0;
};

// Least squares of the relative error of t = messages a + bytes / B + added g (TermsOf). Negative and
// indistinguishable parameters are set to 0. `shared_medium`: all ranks are on one host and share the rate B.
// InvalidArgument: fewer than four points, or B is not determined.
absl::StatusOr<MachineProfile> FitProfile(const std::vector<ProfilePoint>& points, bool shared_medium);

// From the native all-reduces in a benchmark's JSON, and its servers' rounds. With several transports: tcp,
// else the first.
// InvalidArgument: not a benchmark, or too few points.
absl::StatusOr<MachineProfile> ProfileOfBench(const std::string& source, const std::string& json);

// A server host's time per byte that a worker pushes or pulls: both ends of a connection move each byte, and
// take half of its time each (*derived*). 0: the profile has no rounds over this wire.
double ServerSecondsPerByte(const MachineProfile& profile, const std::string& server_wire);

// Fits a profile to a bench.json, also of a run's folder.
absl::StatusOr<MachineProfile> LoadMachineProfile(const std::string& path);

// The parameters and the quality of the fit, in a few sentences.
std::string Describe(const MachineProfile& profile);

}  // namespace psring
