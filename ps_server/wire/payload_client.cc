#include "ps_server/wire/payload_client.h"

#include <poll.h>

#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/net/tcp_socket.h"

namespace psring {
namespace {

// How long to wait for the server's reason on the gRPC stream after the payload connection is lost.
constexpr absl::Duration kForReason = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<PayloadClient>> PayloadClient::Start(MemberSocket socket, User& user) {
  std::unique_ptr<PayloadClient> client(new PayloadClient(std::move(socket), user));
  if (!client->waker_.valid()) return ResourceExhausted("out of file descriptors");
  client->thread_ = std::thread([client = client.get()] { client->Run(); });
  return client;
}

PayloadClient::~PayloadClient() {
  stopping_ = true;
  waker_.Wake();
  if (thread_.joinable()) thread_.join();
}

void PayloadClient::Send(const message::ToServer& message, Bytes data, std::shared_ptr<const void> keep,
                         uint64_t after) {
  outgoing_.Add(
      {.message = message, .data = data, .keep = std::move(keep), .after = after, .upto = data.size()});
  waker_.Wake();
}

void PayloadClient::CountHandled() {
  ++handled_;
  waker_.Wake();
}

void PayloadClient::Run() {
  while (!stopping_) {
    if (const absl::Status status = Turn(); !status.ok()) return Lose(status);
    Wait();
  }
}

absl::Status PayloadClient::Turn() {
  PSRING_RETURN_IF_ERROR(outgoing_.Write(socket_));
  return Read();
}

absl::Status PayloadClient::Read() {
  if (!is_held_ && !socket_.may_read()) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(const bool has_header, socket_.ReceiveHeader());
  if (!has_header) return absl::OkStatus();
  is_held_ = socket_.header().after > handled_;
  if (is_held_) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(const bool complete, user_.OnPayload(socket_));
  if (complete) socket_.Next();
  return absl::OkStatus();
}

void PayloadClient::Wait() {
  const bool writes = !outgoing_.empty();
  const short events = static_cast<short>((is_held_ ? 0 : POLLIN) | (writes ? POLLOUT : 0));
  pollfd waits[] = {{waker_.fd(), POLLIN, 0}, {is_held_ && !writes ? -1 : socket_.fd(), events, 0}};
  const bool busy = (!is_held_ && socket_.may_read()) || (writes && socket_.may_write());
  if (poll(waits, 2, busy ? 0 : -1) <= 0) return;
  if (waits[0].revents != 0) waker_.Clear();
  socket_.Notice(waits[1].revents);
}

void PayloadClient::Lose(const absl::Status& why) {
  outgoing_.Close();
  const MonotonicTime until = MonotonicNow() + kForReason;
  while (absl::IsUnavailable(why) && !stopping_ && MonotonicNow() < until) {
    waker_.Clear();
    pollfd waiting = {waker_.fd(), POLLIN, 0};
    if (!stopping_) (void)poll(&waiting, 1, PollTimeoutMs(until));
  }
  if (!stopping_) user_.OnPayloadEnd(why);
}

}  // namespace psring
