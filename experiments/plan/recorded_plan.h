// An earlier run's rounds, steps and samples in the place of fitted ones: --plan_of RUN. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/plan/launches.h"
#include "experiments/plan/plan.h"

namespace psring {

struct RecordedPlan {
  int rounds = 0;  // that were done
  int warmup_steps = 0, steps = 0;
  std::vector<LaunchNote> cost, accuracy;
};
// From the text of a manifest.json. InvalidArgument: it is none of a compare or train that ended.
absl::StatusOr<RecordedPlan> RecordedPlanFromJson(const std::string& manifest);

// Gives `plan` what was recorded, where `asked` leaves it open. InvalidArgument names a configuration that
// the recorded run did not have.
absl::Status TakeRecordedPlan(const RecordedPlan& recorded, const CompareOptions& asked, Plan& plan);

}  // namespace psring
