// The part of experiment.h for a run that ends without results.
#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "experiments/compare/experiment.h"
#include "experiments/texts/errors.h"

namespace psring {

absl::Status Experiment::WithoutResults(const absl::Status& status) const {
  if (!absl::IsCancelled(status)) return status;
  const std::string message(status.message());
  const size_t line = std::min(message.find('\n'), message.size());  // then --resume of a checkpoint
  return absl::CancelledError(absl::StrCat(message.substr(0, line),
                                           "; there are no results; the logs are in ", folder_.path(),
                                           message.substr(line)));
}

absl::Status WithNothingKept(const absl::Status& status) {
  const bool says_more = absl::StrContains(status.message(), "; ");
  if (!absl::IsCancelled(status) || says_more || !absl::StartsWith(status.message(), "interrupted"))
    return status;
  return absl::CancelledError(absl::StrCat(status.message(), "; nothing was kept"));
}

int ReportFailure(const std::string& verb, const absl::Status& status, Display& display) {
  display.Clear();
  int code = 1;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
      code = 2;
      break;
    default:
      break;
  }
  return Fail(display.language(), absl::StrCat("psring ", verb), std::string(status.message()), code);
}

}  // namespace psring
