#include "ring_worker/transports/farewell.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace psring {

void SayFarewell(int fd, absl::StatusCode code, const std::string& message) {
  Farewell farewell;
  farewell.code = static_cast<int32_t>(code);
  farewell.length = static_cast<uint32_t>(message.copy(farewell.message, sizeof farewell.message));
  (void)send(fd, &farewell, sizeof farewell, MSG_NOSIGNAL | MSG_DONTWAIT);
}

absl::Status ControlConnection::Hear() {
  while (received_ < sizeof farewell_) {
    const ssize_t n = recv(socket_.get(), reinterpret_cast<std::byte*>(&farewell_) + received_,
                           sizeof farewell_ - received_, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return absl::OkStatus();
    if (n <= 0) {
      return absl::UnavailableError(
          absl::StrCat("rank ", peer_, " closed its connection to rank ", rank_, "; its process has ended"));
    }
    received_ += n;
  }
  if (farewell_.magic != Farewell().magic) {
    return absl::DataLossError(
        absl::StrCat("rank ", peer_, " sent no farewell but ", absl::Hex(farewell_.magic)));
  }
  left_ = true;
  if (farewell_.code == 0) return absl::OkStatus();
  gave_up_ = true;
  const size_t length = std::min<size_t>(farewell_.length, sizeof farewell_.message);
  return absl::Status(static_cast<absl::StatusCode>(farewell_.code),
                      absl::string_view(farewell_.message, length));
}

}  // namespace psring
