#include "ps_server/wire/payload_streams.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {
namespace {

constexpr size_t kMaxUnclaimed = 1024;  // for their Joins
constexpr absl::Duration kUnclaimedKept = absl::Minutes(1);
constexpr short kBroken = POLLHUP | POLLERR | POLLNVAL;
constexpr char kAccepted = '+';

}  // namespace

// A thread and its connections.
class PayloadLoop {
 public:
  explicit PayloadLoop(Lane lane) : lane_(std::move(lane)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~PayloadLoop() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    Wake();
    thread_.join();
  }

  void Add(std::shared_ptr<PayloadStream> stream) {
    {
      MutexLock lock(mutex_);
      added_.push_back(std::move(stream));
    }
    Wake();
  }
  void Wake() { waker_.Wake(); }
  bool valid() const { return waker_.valid(); }

  size_t users = 0;  // connections so far; guarded by PayloadStreams

 private:
  void Run() {
    std::list<std::shared_ptr<PayloadStream>> streams;
    std::vector<pollfd> waits;
    bool stopping = false;
    while (!stopping) {
      {
        MutexLock lock(mutex_);
        streams.splice(streams.end(), added_);
        stopping = stopping_;
      }
      waits.assign(1, {waker_.fd(), POLLIN, 0});
      bool busy = false;
      for (auto at = streams.begin(); at != streams.end();) {
        PayloadStream& stream = **at;
        if (stopping || !stream.Turn(lane_)) {
          stream.Close();
          at = streams.erase(at);
          continue;
        }
        busy |= stream.is_ready();
        waits.push_back({stream.socket_.fd(), stream.events(), 0});
        ++at;
      }
      if (stopping || poll(waits.data(), waits.size(), busy ? 0 : -1) <= 0) continue;
      if (waits[0].revents != 0) waker_.Clear();
      size_t at = 1;
      for (const auto& stream : streams) stream->Notice(waits[at++].revents);
    }
  }

  Lane lane_;
  const PollWaker waker_{};
  Mutex mutex_;
  std::list<std::shared_ptr<PayloadStream>> added_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the other members
};

bool PayloadStream::is_open() const {
  char unused = 0;
  return recv(socket_.fd(), &unused, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

void PayloadStream::Begin(std::shared_ptr<Owner> owner) {
  owner_ = std::move(owner);
  chunk_.resize(kChunkBytes);
  loop_.Add(shared_from_this());
}

void PayloadStream::Send(Reply reply, uint64_t after) {
  const ConstSpan weights = reply.weights.weights;
  outgoing_.Add({.message = reply.message,
                 .data = {static_cast<const std::byte*>(weights.data), weights.bytes()},
                 .keep = std::move(reply.weights.keep),
                 .after = after,
                 .from = reply.from,
                 .upto = std::min(reply.upto, weights.bytes())});
  loop_.Wake();
}

void PayloadStream::Wake() {
  woken_ = true;
  loop_.Wake();
}

void PayloadStream::End() {
  ended_ = true;
  loop_.Wake();
}

PayloadStream::Unread PayloadStream::unread() const {
  Unread unread;
  outgoing_.ForEach([&unread](const auto& entry) {
    const bool is_rows = std::holds_alternative<message::Rows>(entry.message);
    if (!entry.is_whole() || (!is_rows && !std::holds_alternative<message::Answer>(entry.message))) return;
    ++unread.answers;
    unread.rows += is_rows ? 1 : 0;
  });
  return unread;
}

bool PayloadStream::Turn(Lane& lane) {
  if (ended_) return false;
  absl::Status status = outgoing_.Write(socket_);
  if (status.ok()) status = Read(lane);
  if (status.ok()) return true;
  owner_->OnPayloadEnd(status);
  return false;
}

absl::Status PayloadStream::Read(Lane& lane) {
  if (is_held_) {
    if (is_broken_) return Unavailable("payload: the connection ended");
    if (!woken_.exchange(false)) return absl::OkStatus();
  } else {
    if (!socket_.may_read()) return absl::OkStatus();
    PSRING_ASSIGN_OR_RETURN(bool complete, socket_.ReceiveHeader());
    if (!complete) return absl::OkStatus();
    PSRING_ASSIGN_OR_RETURN(complete, socket_.ReceivePayload(chunk_.data()));
    if (!complete) return absl::OkStatus();
    PSRING_RETURN_IF_ERROR(FromFields(socket_.header().fields, message_));
  }
  const Bytes payload(chunk_.data(), socket_.header().bytes);
  is_held_ = owner_->OnPayload(message_, socket_.header().after, payload, lane) == Receipt::kNotYet;
  if (!is_held_) socket_.Next();
  return absl::OkStatus();
}

short PayloadStream::events() const {
  return static_cast<short>((is_held_ ? 0 : POLLIN) | (outgoing_.empty() ? 0 : POLLOUT));
}

void PayloadStream::Notice(short found) {
  is_broken_ |= is_held_ && (found & kBroken) != 0;
  socket_.Notice(found);
}

bool PayloadStream::is_ready() const {
  if (is_held_ ? woken_ || is_broken_ : socket_.may_read()) return true;
  return socket_.may_write() && !outgoing_.empty();
}

void PayloadStream::Close() {
  ended_ = true;
  outgoing_.Close();
  socket_ = PayloadSocket(MemberSocket());
  owner_.reset();
}

PayloadStreams::PayloadStreams(ParameterServer& server, int threads) : server_(server), threads_(threads) {}

PayloadStreams::~PayloadStreams() {
  std::list<Waiting> waiting;
  std::vector<std::unique_ptr<PayloadLoop>> loops;
  MutexLock lock(mutex_);
  waiting.swap(waiting_);
  loops.swap(loops_);
}

absl::StatusOr<PayloadLoop*> PayloadStreams::LeastLoop() {
  if (loops_.size() < static_cast<size_t>(threads_)) {
    PSRING_ASSIGN_OR_RETURN(Lane lane, server_.NewLane());
    auto loop = std::make_unique<PayloadLoop>(std::move(lane));
    if (!loop->valid()) return ResourceExhausted("out of file descriptors");
    loops_.push_back(std::move(loop));
  }
  return std::ranges::min_element(loops_, {}, [](const auto& loop) { return loop->users; })->get();
}

void PayloadStreams::Add(uint64_t number, MemberSocket socket) {
  MutexLock lock(mutex_);
  const MonotonicTime oldest = MonotonicNow() - kUnclaimedKept;
  std::erase_if(waiting_, [&](const Waiting& one) { return one.since < oldest || !one.stream->is_open(); });
  if (waiting_.size() >= kMaxUnclaimed) return;
  const absl::StatusOr<PayloadLoop*> loop = LeastLoop();
  if (!loop.ok()) return;  // the worker gets an error, because its connection is closed
  ++(*loop)->users;
  (void)socket.Send(&kAccepted, 1);  // fits into an empty buffer
  waiting_.push_back({number, std::make_shared<PayloadStream>(std::move(socket), **loop), MonotonicNow()});
}

std::shared_ptr<PayloadStream> PayloadStreams::Take(uint64_t number) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(waiting_, number, &Waiting::number);
  if (found == waiting_.end()) return nullptr;
  std::shared_ptr<PayloadStream> stream = std::move(found->stream);
  waiting_.erase(found);
  return stream;
}

}  // namespace psring
