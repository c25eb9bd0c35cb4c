#include "ring_worker/transports/control_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace psring {

void SendFinalMessage(int fd, absl::StatusCode code, const std::string& message, int waits_for) {
  FinalMessage final_message;
  final_message.waits_for = waits_for;
  final_message.code = static_cast<int32_t>(code);
  final_message.length =
      static_cast<uint32_t>(message.copy(final_message.message, sizeof final_message.message));
  (void)send(fd, &final_message, sizeof final_message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

absl::Status ControlConnection::Receive() {
  while (received_ < sizeof message_) {
    const ssize_t n = recv(socket_.get(), reinterpret_cast<std::byte*>(&message_) + received_,
                           sizeof message_ - received_, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return absl::OkStatus();
    if (n <= 0) {
      return absl::UnavailableError(
          absl::StrCat("rank ", peer_, " closed its connection to rank ", rank_, "; its process has ended"));
    }
    received_ += n;
  }
  if (message_.magic != FinalMessage().magic) {
    return absl::DataLossError(absl::StrCat(
        "rank ", peer_, " sent an invalid final message that begins with ", absl::Hex(message_.magic)));
  }
  left_ = true;
  if (message_.code == 0 || message_.waits_for >= 0) return absl::OkStatus();
  gave_up_ = true;
  return absl::Status(static_cast<absl::StatusCode>(message_.code), text());
}

std::string ControlConnection::text() const {
  return {message_.message, std::min<size_t>(message_.length, sizeof message_.message)};
}

}  // namespace psring
