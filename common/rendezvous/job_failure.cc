#include "common/rendezvous/job_failure.h"

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/text/peer_text.h"

namespace psring {
namespace {

constexpr char kFailure[] = "failure";

}  // namespace

void PublishFailure(Rendezvous& rendezvous, const std::string& failure) {
  (void)rendezvous.Set(kFailure, failure);
}

absl::Status WithReportedFailure(Rendezvous& rendezvous, const absl::Status& status) {
  if (status.ok() || absl::IsDeadlineExceeded(status)) return status;
  const absl::StatusOr<std::optional<std::string>> published = rendezvous.TryGet(kFailure, "a failure");
  if (!published.ok() || !published->has_value()) return status;
  return absl::Status(status.code(), absl::StrCat("ended because of ", PeerText(**published)));
}

}  // namespace psring
