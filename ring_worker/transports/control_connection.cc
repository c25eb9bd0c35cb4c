#include "ring_worker/transports/control_connection.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/errors.h"
#include "common/text/peer_text.h"

namespace psring {

void SendNotice(MemberSocket& control, const Notice& notice) {
  ControlMessage sent;
  sent.waits_for = notice.waits_for;
  sent.code = static_cast<int32_t>(notice.code);
  sent.length = static_cast<uint32_t>(notice.message.copy(sent.message, sizeof sent.message));
  (void)control.Send(&sent, sizeof sent);
}

absl::Status ControlConnection::Receive() {
  while (!left_) {
    const absl::StatusOr<size_t> n =
        socket_->Receive(reinterpret_cast<std::byte*>(&message_) + received_, sizeof message_ - received_);
    if (!n.ok()) {
      return Unavailable("rank ", peer_, " closed its connection to rank ", rank_, "; its process has ended");
    }
    received_ += *n;
    if (received_ < sizeof message_) return absl::OkStatus();
    received_ = 0;
    if (message_.magic != ControlMessage().magic) {
      return DataLoss("rank ", peer_, " sent an invalid control message that begins with ",
                      absl::Hex(message_.magic));
    }
    const std::string text =
        PeerText({message_.message, std::min<size_t>(message_.length, sizeof message_.message)});
    if (message_.waits_for >= 0) {
      if (waits_for_ >= 0) {
        return DataLoss("rank ", peer_, " says twice for whom it waits");
      }
      waits_for_ = message_.waits_for;
      waits_text_ = text;
      continue;
    }
    left_ = true;
    if (message_.code == 0) return absl::OkStatus();
    gave_up_ = true;
    return absl::Status(static_cast<absl::StatusCode>(message_.code), text);
  }
  return absl::OkStatus();
}

}  // namespace psring
