#include "experiments/host/link_ends.h"

#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/measure/trace.h"

namespace psring {
namespace {

// The first byte of a message or block says whether it is the last one.
constexpr char kMore = 0, kLast = 1;
constexpr size_t kMessage = 4;
constexpr size_t kEndBlock = 64 << 10;

double ElapsedSeconds(int64_t begin_ns) { return 1e-9 * static_cast<double>(MonotonicNanos() - begin_ns); }

absl::Status Broken(const char* call) {
  return absl::UnavailableError(absl::StrCat(
      call, ": ", errno == EAGAIN || errno == EWOULDBLOCK ? "nothing for 5 s" : strerror(errno)));
}

// Ends a measurement even if the other end still takes or sends a little.
class Limit {
 public:
  explicit Limit(double timeout) : timeout_(timeout) {}
  absl::Status Check() const {
    if (ElapsedSeconds(begin_ns_) <= timeout_) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("the other end has not finished after ", timeout_, " s"));
  }

 private:
  const int64_t begin_ns_ = MonotonicNanos();
  const double timeout_;
};

absl::Status Send(int socket, const char* data, size_t bytes, const Limit& limit) {
  while (bytes > 0) {
    PSRING_RETURN_IF_ERROR(limit.Check());
    const ssize_t sent = send(socket, data, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return Broken("send");
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return absl::OkStatus();
}

// Receives some bytes, at least one.
absl::StatusOr<size_t> ReceiveSome(int socket, char* data, size_t bytes) {
  const ssize_t got = recv(socket, data, bytes, 0);
  if (got == 0) return absl::UnavailableError("the other end closed the connection");
  if (got < 0) return Broken("receive");
  return static_cast<size_t>(got);
}

absl::Status Receive(int socket, char* data, size_t bytes, const Limit& limit) {
  for (size_t at = 0; at < bytes;) {
    PSRING_RETURN_IF_ERROR(limit.Check());
    PSRING_ASSIGN_OR_RETURN(const size_t got, ReceiveSome(socket, data + at, bytes - at));
    at += got;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<double> MeasureLatencyTo(int socket, double seconds, double timeout) {
  char message[kMessage] = {kMore};
  std::vector<double> round_trips;
  const Limit limit(timeout);
  for (const int64_t begin = MonotonicNanos(); ElapsedSeconds(begin) < seconds || round_trips.empty();) {
    const int64_t sent = MonotonicNanos();
    PSRING_RETURN_IF_ERROR(Send(socket, message, kMessage, limit));
    PSRING_RETURN_IF_ERROR(Receive(socket, message, kMessage, limit));
    round_trips.push_back(ElapsedSeconds(sent));
  }
  message[0] = kLast;
  PSRING_RETURN_IF_ERROR(Send(socket, message, kMessage, limit));
  // The median excludes round trips during which another process had the processor.
  const auto median = round_trips.begin() + static_cast<ptrdiff_t>(round_trips.size() / 2);
  std::nth_element(round_trips.begin(), median, round_trips.end());
  return *median / 2;
}

absl::Status EchoUntilDone(int socket, double timeout) {
  char message[kMessage];
  const Limit limit(timeout);
  while (true) {
    PSRING_RETURN_IF_ERROR(Receive(socket, message, kMessage, limit));
    if (message[0] != kMore) return absl::OkStatus();
    PSRING_RETURN_IF_ERROR(Send(socket, message, kMessage, limit));
  }
}

absl::StatusOr<double> ReceiveRate(int socket, double warmup, double seconds, double timeout) {
  std::vector<char> block(kEndBlock);
  const int64_t begin = MonotonicNanos();
  const Limit limit(timeout);
  double all = 0, counted = 0, from_s = warmup, until_s = warmup;
  bool last = false;
  while (!last) {
    for (size_t at = 0; at < kEndBlock;) {
      PSRING_RETURN_IF_ERROR(limit.Check());
      PSRING_ASSIGN_OR_RETURN(const size_t got, ReceiveSome(socket, block.data() + at, kEndBlock - at));
      at += got;
      all += static_cast<double>(got);
      const double now_s = ElapsedSeconds(begin);
      // Counting begins and ends with an arrival.
      if (now_s <= warmup) {
        from_s = now_s;
      } else if (now_s <= warmup + seconds) {
        counted += static_cast<double>(got);
        until_s = now_s;
      }
    }
    last = block[0] != kMore;
  }
  if (counted > 0 && until_s > from_s) return counted / (until_s - from_s);
  // One of the machines had other work to do.
  return all / ElapsedSeconds(begin);
}

absl::Status SendFor(int socket, double seconds, double timeout) {
  std::vector<char> block(kEndBlock, kMore);
  const Limit limit(timeout);
  for (const int64_t begin = MonotonicNanos(); ElapsedSeconds(begin) < seconds;) {
    PSRING_RETURN_IF_ERROR(Send(socket, block.data(), block.size(), limit));
  }
  block[0] = kLast;
  return Send(socket, block.data(), block.size(), limit);
}

}  // namespace psring
