#include "common/rendezvous/job_failure.h"

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/text/peer_text.h"

namespace psring {
namespace {

constexpr char kFailure[] = "failure";

}  // namespace

void TellFailure(Rendezvous& rendezvous, const std::string& failure) {
  (void)rendezvous.Set(kFailure, failure);
}

absl::Status WithToldFailure(Rendezvous& rendezvous, const absl::Status& status) {
  if (status.ok() || absl::IsDeadlineExceeded(status)) return status;
  const absl::StatusOr<std::optional<std::string>> told = rendezvous.TryGet(kFailure, "a failure");
  if (!told.ok() || !told->has_value()) return status;
  return absl::Status(status.code(), absl::StrCat("ended because of ", PeerText(**told)));
}

}  // namespace psring
