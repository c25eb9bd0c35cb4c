#include "experiments/engine/failure.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/cli/command_line.h"
#include "common/text/translate.h"

namespace psring {

int ReportFailure(const std::string& verb, const absl::Status& status, Display& display) {
  display.Clear();
  const bool bad_input =
      absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
  return Fail(absl::StrCat("psring ", verb), std::string(status.message()), bad_input ? 2 : 1);
}

int EndOfVerb(const std::string& verb, const absl::Status& status, bool keeps_nothing, Display& display) {
  if (status.ok()) return 0;
  const bool says_more = absl::StrContains(status.message(), "; ");
  if (!keeps_nothing || !absl::IsCancelled(status) || says_more ||
      !absl::StartsWith(status.message(), "interrupted")) {
    return ReportFailure(verb, status, display);
  }
  return ReportFailure(verb, absl::CancelledError(Tr("$0; nothing was kept", status.message())), display);
}

}  // namespace psring
