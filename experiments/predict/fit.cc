#include "experiments/predict/fit.h"

#include <cmath>
#include <map>
#include <optional>

#include "common/base/check.h"

namespace psring {
namespace {

constexpr double kRowsSpread = 0.05, kGrid = 0.02;

class Search {
 public:
  Search(const std::vector<FitRow>& rows, const std::vector<std::string>& names, const Constants& start)
      : rows_(rows) {
    for (const std::string& name : names) {
      const ConstantInfo& info = ConstantInfoOf(name);
      const auto given = start.find(name);
      axes_.push_back({&info, given == start.end() ? info.start : given->second});
    }
  }

  absl::StatusOr<Constants> Run() {
    Place place(axes_.size(), 0);
    PSRING_ASSIGN_OR_RETURN(std::optional<double> best, Error(place));
    PSRING_CHECK(best.has_value());
    for (int step = 32; step >= 1; step /= 2) {
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t axis = 0; axis < axes_.size(); ++axis) {
          for (const int by : {step, -step}) {
            Place other = place;
            other[axis] += by;
            PSRING_ASSIGN_OR_RETURN(const std::optional<double> error, Error(other));
            if (!error || *error >= *best - 1e-9) continue;
            best = error;
            place = other;
            moved = true;
            break;
          }
        }
      }
    }
    return At(place);
  }

 private:
  using Place = std::vector<int>;
  struct Axis {
    const ConstantInfo* info;
    double start;
  };

  Constants At(const Place& place) const {
    Constants constants;
    for (size_t axis = 0; axis < axes_.size(); ++axis) {
      constants[axes_[axis].info->name] = axes_[axis].start * std::exp(kGrid * place[axis]);
    }
    return constants;
  }

  // nullopt: outside the constants' limits.
  absl::StatusOr<std::optional<double>> Error(const Place& place) {
    if (const auto at = known_.find(place); at != known_.end()) return at->second;
    const Constants constants = At(place);
    double sum = 0;
    for (const Axis& axis : axes_) {
      const double value = constants.at(axis.info->name);
      if (value < axis.info->least || value > axis.info->most) return std::optional<double>();
      sum += std::pow(std::log(value / axis.info->start) / axis.info->spread, 2);
    }
    for (const FitRow& row : rows_) {
      PSRING_ASSIGN_OR_RETURN(const double predicted, row.predict(constants));
      sum += std::pow(std::log(predicted / row.measured) / kRowsSpread, 2);
    }
    known_[place] = sum;
    return std::optional<double>(sum);
  }

  const std::vector<FitRow>& rows_;
  std::vector<Axis> axes_;
  std::map<Place, double> known_;
};

}  // namespace

absl::StatusOr<Constants> Fit(const std::vector<FitRow>& rows, const std::vector<std::string>& names,
                              const Constants& start) {
  return Search(rows, names, start).Run();
}

}  // namespace psring
