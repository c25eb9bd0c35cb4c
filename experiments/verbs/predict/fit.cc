#include "experiments/verbs/predict/fit.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace psring {

const std::vector<ConstantInfo>& ConstantInfos() {
  static const auto& infos = *new std::vector<ConstantInfo>{
      {"fraction", 0.9, 0.05, 1, 0.5,
       [](double value, Cluster& cluster, PredictOptions&) { cluster.fraction = value; }},
      {"latency_us", 25, 1, 3000, 1,
       [](double value, Cluster& cluster, PredictOptions&) { cluster.latency_s = 1e-6 * value; }},
      {"compute_cv", 0.03, 1e-3, 0.5, 1,
       [](double value, Cluster&, PredictOptions& options) {
         options.variation = {.kind = ComputeVariation::Kind::kNormal, .cv = value};
       }},
      {"node_loss", 0.05, 1e-4, 2, 1.5,
       [](double value, Cluster& cluster, PredictOptions&) { cluster.node_loss = value; }},
      {"server_worker_ns", 0.2, 1e-3, 20, 1.5,
       [](double value, Cluster& cluster, PredictOptions&) {
         cluster.server_worker_s_per_byte = 1e-9 * value;
       }},
      {"barrier_us", 100, 1, 1e5, 1.5,
       [](double value, Cluster& cluster, PredictOptions&) { cluster.barrier_s = 1e-6 * value; }},
      // Half of Linux's largest receive buffer (tcp_rmem), the rest being overhead.
      {"window_mb", 3, 0.01, 4096, 0.4,
       [](double value, Cluster& cluster, PredictOptions&) {
         const double limit = value * (1 << 20) / (2 * cluster.latency_s);
         double& connection = cluster.connection_bytes_per_s;
         if (limit < (connection > 0 ? connection : cluster.link_bytes_per_s)) connection = limit;
       }},
  };
  return infos;
}

const ConstantInfo* FindConstant(const std::string& name) {
  for (const ConstantInfo& info : ConstantInfos()) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

void Apply(const Constants& constants, Cluster& cluster, PredictOptions& options) {
  for (const auto& [name, value] : constants) FindConstant(name)->apply(value, cluster, options);
}

std::vector<std::string> FittedCauses() { return {"compute_cv", "fraction", "node_loss"}; }

std::string ConstantsText(const Constants& constants) {
  return absl::StrJoin(constants, ", ", [](std::string* out, const auto& constant) {
    absl::StrAppendFormat(out, "%s %.3g", constant.first, constant.second);
  });
}

StepSeconds PredictedStepOf(Workload workload, const PredictCase& point, const Cluster& cluster,
                            const PredictOptions& options) {
  return [=, workload = std::move(workload)](const Constants& constants) -> absl::StatusOr<double> {
    Cluster network = cluster;
    PredictOptions fitted = options;
    Apply(constants, network, fitted);
    PSRING_ASSIGN_OR_RETURN(const Prediction prediction, Predictor(workload, fitted).Predict(point, network));
    return prediction.step;
  };
}

absl::StatusOr<Constants> Fit(const std::vector<FitRow>& rows, const std::vector<std::string>& names,
                              const std::vector<Constants>& others) {
  constexpr double kRowsSpread = 0.05, kGrid = 0.02;
  using Place = std::vector<int>;  // by name: steps of the grid from the start
  const auto constants_at = [&](const Place& place) {
    Constants constants;
    for (size_t i = 0; i < names.size(); ++i) {
      constants[names[i]] = FindConstant(names[i])->start * std::exp(kGrid * place[i]);
    }
    return constants;
  };
  std::map<Place, double> known;
  // Infinity outside the constants' limits.
  const auto error_at = [&](const Place& place) -> absl::StatusOr<double> {
    if (const auto at = known.find(place); at != known.end()) return at->second;
    const Constants constants = constants_at(place);
    double sum = 0;
    for (const std::string& name : names) {
      const ConstantInfo& info = *FindConstant(name);
      const double value = constants.at(name);
      if (value < info.least || value > info.most) return INFINITY;
      sum += std::pow(std::log(value / info.start) / info.spread, 2);
    }
    for (const FitRow& row : rows) {
      PSRING_ASSIGN_OR_RETURN(const double predicted, row.predict(constants));
      sum += std::pow(std::log(predicted / row.measured) / kRowsSpread, 2);
    }
    return known[place] = sum;
  };
  const auto descend = [&](Place& best) -> absl::StatusOr<double> {
    PSRING_ASSIGN_OR_RETURN(double least, error_at(best));
    for (int step = 32; step >= 1; step /= 2) {
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < names.size(); ++i) {
          for (const int by : {step, -step}) {
            Place place = best;
            place[i] += by;
            PSRING_ASSIGN_OR_RETURN(const double error, error_at(place));
            if (error >= least - 1e-9) continue;
            least = error;
            best = place;
            moved = true;
            break;
          }
        }
      }
    }
    return least;
  };
  Place best(names.size(), 0);
  PSRING_ASSIGN_OR_RETURN(double least, descend(best));
  for (const Constants& other : others) {
    Place place(names.size(), 0);
    for (size_t i = 0; i < names.size(); ++i) {
      if (!other.contains(names[i])) continue;
      place[i] =
          static_cast<int>(std::lround(std::log(other.at(names[i]) / FindConstant(names[i])->start) / kGrid));
    }
    PSRING_ASSIGN_OR_RETURN(const double error, descend(place));
    if (error >= least) continue;
    least = error;
    best = std::move(place);
  }
  return constants_at(best);
}

absl::StatusOr<CheckedFit> FitAndCheck(const std::vector<FitRow>& rows,
                                       const std::vector<std::string>& names) {
  std::vector<FitRow> kept;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(kept),
               [](const FitRow& row) { return !row.withheld; });
  CheckedFit fit;
  PSRING_ASSIGN_OR_RETURN(fit.without, Fit(kept, names));
  PSRING_ASSIGN_OR_RETURN(fit.all, Fit(rows, names));
  for (const FitRow& row : rows) {
    PSRING_ASSIGN_OR_RETURN(const double predicted, row.predict(fit.without));
    fit.rows.push_back({row.label, row.size, row.measured, predicted, row.withheld});
  }
  return fit;
}

}  // namespace psring
