#include "ring_worker/transport.h"

#include "absl/strings/str_cat.h"

namespace psring {

std::string ToString(const Tag& tag) {
  return absl::StrCat("call ", tag.call, ", round ", tag.round, ", segment ", tag.segment);
}

std::string ToString(const CallInfo& call) {
  return absl::StrCat("call ", call.number, ", ", call.operation, " of ", call.elements, " elements");
}

}  // namespace psring
