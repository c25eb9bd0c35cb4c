#include "experiments/predict/constants.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace psring {

const std::vector<ConstantInfo>& ConstantInfos() {
  static const auto& infos = *new std::vector<ConstantInfo>{
      {"fraction", 0.9, 0.05, 1, 0.5, "share of the links' rate that the program gets",
       [](double value, Cluster& cluster, PredictOptions&) { cluster.fraction = value; }},
      {"latency_us", 25, 1, 3000, 1, "of a message between machines, in microseconds",
       [](double value, Cluster& cluster, PredictOptions&) { cluster.latency_s = 1e-6 * value; }},
      {"compute_cv", 0.03, 1e-3, 0.5, 1, "coefficient of variation of computing between machines",
       [](double value, Cluster&, PredictOptions& options) {
         options.variation = {.kind = ComputeVariation::Kind::kNormal, .cv = value};
       }},
      {"sender_loss", 0.02, 1e-4, 2, 1.5, "loss of goodput per further sender into one port",
       [](double value, Cluster& cluster, PredictOptions&) { cluster.sender_loss = value; }},
      {"node_loss", 0.05, 1e-4, 2, 1.5, "loss of goodput per doubling of the machines",
       [](double value, Cluster& cluster, PredictOptions&) { cluster.node_loss = value; }},
      {"server_worker_ns", 0.2, 1e-3, 20, 1.5,
       "a server's time per byte that a worker pushes or pulls, in ns",
       [](double value, Cluster& cluster, PredictOptions&) {
         cluster.server_worker_s_per_byte = 1e-9 * value;
       }},
      {"barrier_us", 100, 1, 1e5, 1.5, "a round of the barrier after a step, in microseconds",
       [](double value, Cluster& cluster, PredictOptions&) { cluster.barrier_s = 1e-6 * value; }},
  };
  return infos;
}

const ConstantInfo& ConstantInfoOf(const std::string& name) {
  for (const ConstantInfo& info : ConstantInfos()) {
    if (name == info.name) return info;
  }
  PSRING_CHECK(false);  // names come from the registry
  return ConstantInfos().front();
}

void Apply(const Constants& constants, Cluster& cluster, PredictOptions& options) {
  for (const auto& [name, value] : constants) ConstantInfoOf(name).apply(value, cluster, options);
}

std::string ConstantsText(const Constants& constants) {
  return absl::StrJoin(constants, ", ", [](std::string* out, const auto& constant) {
    absl::StrAppendFormat(out, "%s %.3g", constant.first, constant.second);
  });
}

}  // namespace psring
