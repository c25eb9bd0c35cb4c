#include "ring_worker/transports/transport.h"

#include "absl/strings/str_cat.h"
#include "common/base/errors.h"
#include "common/text/peer_text.h"
#include "ring_worker/transports/frame.h"

namespace psring {

std::string ToString(const Tag& tag) {
  return absl::StrCat("call ", tag.call, ", round ", tag.round, ", segment ", tag.segment);
}

std::string ToString(const CallInfo& call) {
  // It may be a peer's.
  const std::string operation = PeerText({call.operation, strnlen(call.operation, sizeof call.operation)});
  return absl::StrCat("call ", call.number, ", ", operation, " (", Name(call.op), ") of ", call.elements, " ",
                      Name(call.type), call.root == 0 ? "" : absl::StrCat(" from rank ", call.root));
}

std::string ToString(const FrameHeader& header) {
  return absl::StrCat(ToString(header.call), " (round ", header.round, ", segment ", header.segment, ", ",
                      header.bytes, " bytes)");
}

absl::Status FramesDiffer(int peer, const FrameHeader& theirs, int rank, const FrameHeader& ours) {
  return FailedPrecondition("the calls of the ranks differ: rank ", peer, " is in ", ToString(theirs),
                            ", rank ", rank, " in ", ToString(ours));
}

}  // namespace psring
