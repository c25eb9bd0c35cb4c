#include "common/net/link_shaper.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/measure/trace.h"

namespace psring {
namespace {

constexpr double kWirePerPayload = 1514.0 / 1448.0;
constexpr size_t kPiece = 32 << 10;      // bytes that a connection moves in its turn
constexpr size_t kHeldBack = 256 << 10;  // most bytes that a direction of a connection buffers
constexpr int64_t kSecondNs = 1'000'000'000, kLongestSleepNs = kSecondNs / 10;
constexpr absl::Duration kSendPatience = absl::Seconds(5);

}  // namespace

int64_t LinkClock::NowNs() { return MonotonicNanos(); }

int64_t LinkClock::SleepNs(int64_t next_ns) {
  return std::clamp<int64_t>(next_ns - MonotonicNanos(), 0, kLongestSleepNs);
}

TokenBucket::TokenBucket(double bits_per_s, int64_t burst_bytes)
    : ns_per_byte_(bits_per_s > 0 ? 8e9 / bits_per_s : 0),
      burst_ns_(static_cast<int64_t>(static_cast<double>(burst_bytes) * ns_per_byte_)) {}

void TokenBucket::Take(int64_t now_ns, int64_t bytes) {
  full_ns_ = std::max(full_ns_, now_ns) + static_cast<int64_t>(static_cast<double>(bytes) * ns_per_byte_);
  ready_ns_ = full_ns_ - burst_ns_;
}

// One direction of a connection: the data that was read, and when it may be sent.
struct LinkShaper::Flow {
  struct Piece {
    int64_t ready_ns = 0;
    std::vector<char> bytes;
    size_t sent = 0;
  };

  int from = -1, to = -1;
  TokenBucket* bucket = nullptr;
  int64_t latency_ns = 0;
  size_t most_held = kHeldBack;

  std::deque<Piece> pieces;
  size_t held = 0;
  bool readable = true, writable = true;  // until a call fails with EAGAIN; then poll() decides
  bool ended = false;                     // nothing more will arrive
  bool closed = false;                    // and everything has been sent

  bool may_read() const { return !ended && held < most_held; }
};

struct LinkShaper::Pair {
  FileDescriptor tcp, ours;
  Flow out, in;
};

LinkShaper::LinkShaper(const LinkShape& shape, std::unique_ptr<LinkClock> clock)
    : shape_(shape),
      latency_ns_(static_cast<int64_t>(shape.latency_s * 1e9)),
      clock_(std::move(clock)),
      out_(shape.bits_per_s, shape.burst_bytes),
      in_(shape.bits_per_s, shape.burst_bytes) {
  PSRING_CHECK(wake_.valid());
  thread_ = std::thread([this] { Run(); });
}

LinkShaper::~LinkShaper() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    close_by_ = MonotonicNow() + kSendPatience;
  }
  PSRING_CHECK(wake_.Wake());
  thread_.join();
}

absl::StatusOr<FileDescriptor> LinkShaper::Wrap(FileDescriptor tcp) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) != 0) {
    return Unavailable("cannot open a socket: ", strerror(errno));
  }
  FileDescriptor theirs(sockets[0]);
  fcntl(tcp.get(), F_SETFL, fcntl(tcp.get(), F_GETFL) | O_NONBLOCK);
  auto pair = std::make_unique<Pair>();
  pair->ours = FileDescriptor(sockets[1]);
  pair->tcp = std::move(tcp);
  if (shape_.bits_per_s > 0) {
    // The shaper limits the rate; the congestion control must not pace as well.
    (void)setsockopt(pair->tcp.get(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  }
  // Buffers the bytes that the link carries during one latency.
  const double under_way = shape_.latency_s * (shape_.bits_per_s > 0 ? shape_.bits_per_s : 1e11) / 8;
  pair->out = {.from = pair->ours.get(),
               .to = pair->tcp.get(),
               .bucket = &out_,
               .latency_ns = latency_ns_,
               .most_held = kHeldBack + static_cast<size_t>(std::min(under_way, 64e6))};
  pair->in = {.from = pair->tcp.get(), .to = pair->ours.get(), .bucket = &in_};
  {
    MutexLock lock(mutex_);
    added_.push_back(std::move(pair));
  }
  PSRING_CHECK(wake_.Wake());
  return theirs;
}

absl::Status LinkShaper::Shape(MemberSocket& socket) {
  PSRING_ASSIGN_OR_RETURN(FileDescriptor wrapped, Wrap(socket.TakeDescriptor()));
  socket.SetDescriptor(std::move(wrapped));
  return absl::OkStatus();
}

void LinkShaper::Run() {
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  std::vector<pollfd> polled;
  while (true) {
    {
      MutexLock lock(mutex_);
      for (auto& pair : added_) pairs_.push_back(std::move(pair));
      added_.clear();
      if (closing_ && (pairs_.empty() || MonotonicNow() >= close_by_)) return;
    }
    int64_t next_ns = INT64_MAX;
    const bool moved = Turn(next_ns);
    std::erase_if(pairs_, [](const auto& pair) { return pair->out.closed && pair->in.closed; });
    if (moved) continue;
    polled.assign(1, {wake_.fd(), POLLIN, 0});
    for (const auto& pair : pairs_) {
      for (const Flow* flow : {&pair->out, &pair->in}) {
        polled.push_back({flow->may_read() && !flow->readable ? flow->from : -1, POLLIN, 0});
        polled.push_back({!flow->writable && !flow->closed ? flow->to : -1, POLLOUT, 0});
      }
    }
    const int64_t left = clock_->SleepNs(next_ns);
    const timespec timeout = {.tv_sec = left / kSecondNs, .tv_nsec = left % kSecondNs};
    if (ppoll(polled.data(), polled.size(), &timeout, nullptr) <= 0) continue;
    if (polled[0].revents != 0) wake_.Clear();
    size_t at = 1;
    for (const auto& pair : pairs_) {
      for (Flow* flow : {&pair->out, &pair->in}) {
        flow->readable |= polled[at++].revents != 0;
        flow->writable |= polled[at++].revents != 0;
      }
    }
  }
}

bool LinkShaper::Turn(int64_t& next_ns) {
  bool moved = false;
  const size_t count = pairs_.size();
  for (const bool out : {true, false}) {
    size_t& first = out ? first_out_ : first_in_;
    for (size_t i = 0, begin = first; i < count; ++i) {
      const size_t index = (begin + i) % count;
      Flow& flow = out ? pairs_[index]->out : pairs_[index]->in;
      moved |= Fill(flow);
      if (!Pour(flow, clock_->NowNs(), next_ns)) continue;
      first = (index + 1) % count;  // a flow that waits for a token gets the next one
      moved = true;
    }
  }
  return moved;
}

bool LinkShaper::Fill(Flow& flow) {
  if (!flow.may_read() || !flow.readable) return false;
  Flow::Piece piece;
  piece.bytes.resize(kPiece);
  const ssize_t got = recv(flow.from, piece.bytes.data(), piece.bytes.size(), 0);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && errno == EAGAIN) {
    flow.readable = false;
    return false;
  }
  if (got <= 0) {  // an error ends the flow; its reader sees the end
    flow.ended = true;
    return true;
  }
  piece.bytes.resize(static_cast<size_t>(got));
  piece.ready_ns = flow.latency_ns > 0 ? clock_->NowNs() + flow.latency_ns : 0;
  flow.held += piece.bytes.size();
  flow.pieces.push_back(std::move(piece));
  return true;
}

bool LinkShaper::Pour(Flow& flow, int64_t now_ns, int64_t& next_ns) {
  if (flow.closed) return false;
  if (flow.pieces.empty()) {
    if (!flow.ended) return false;
    shutdown(flow.to, SHUT_WR);
    flow.closed = true;
    return true;
  }
  if (!flow.writable) return false;
  Flow::Piece& piece = flow.pieces.front();
  const int64_t ready_ns = std::max(piece.ready_ns, flow.bucket->ReadyNs());
  if (ready_ns > now_ns) {
    next_ns = std::min(next_ns, ready_ns);
    return false;
  }
  const ssize_t sent =
      send(flow.to, piece.bytes.data() + piece.sent, piece.bytes.size() - piece.sent, MSG_NOSIGNAL);
  if (sent < 0 && errno == EINTR) return true;
  if (sent < 0 && errno == EAGAIN) {
    flow.writable = false;
    return false;
  }
  if (sent < 0) {  // the reader is gone: drop the data and notify the writer
    flow.pieces.clear();
    flow.held = 0;
    flow.ended = flow.closed = true;
    shutdown(flow.from, SHUT_RD);
    shutdown(flow.to, SHUT_RDWR);
    return true;
  }
  flow.bucket->Take(now_ns, static_cast<int64_t>(static_cast<double>(sent) * kWirePerPayload));
  piece.sent += static_cast<size_t>(sent);
  flow.held -= static_cast<size_t>(sent);
  if (piece.sent == piece.bytes.size()) flow.pieces.pop_front();
  return true;
}

}  // namespace psring
