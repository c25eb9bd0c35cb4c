// --plan_of RUN: uses an earlier run's rounds, steps and samples instead of fitting them. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/plan/launches.h"
#include "experiments/plan/plan.h"

namespace psring {

struct RecordedPlan {
  int rounds = 0;  // completed
  int warmup_steps = 0, steps = 0;
  std::vector<LaunchNote> cost, accuracy;
};
// From the text of a manifest.json. InvalidArgument: it is not of compare or train, or has no rounds.
absl::StatusOr<RecordedPlan> RecordedPlanFromJson(const std::string& manifest);

// Copies recorded values into `plan` unless `asked` sets them. InvalidArgument names a configuration that the
// recorded run does not have.
absl::Status TakeRecordedPlan(const RecordedPlan& recorded, const CompareOptions& asked, Plan& plan);

}  // namespace psring
