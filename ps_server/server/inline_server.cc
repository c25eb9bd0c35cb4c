#include "ps_server/server/inline_server.h"

#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "ps_server/server/checkpoint.h"

namespace psring {
namespace {

// The server's real clock must not end the job.
constexpr absl::Duration kForever = absl::Hours(24 * 365);

}  // namespace

// What one worker has received. All calls come from one thread.
class InlineServer::Inbox : public ReplySink {
 public:
  explicit Inbox(size_t buckets) : answers_(buckets), weights_(buckets) {}

  void Deliver(Reply reply) override {
    if (std::holds_alternative<message::Admitted>(reply.message)) {
      admitted_ = true;
    } else if (const auto* answer = std::get_if<message::Answer>(&reply.message)) {
      const size_t bucket = static_cast<size_t>(answer->bucket);
      answers_[bucket] = *answer;
      weights_[bucket] = std::move(reply.weights);
      ++received_;
    } else if (const auto* chunk = std::get_if<message::Weights>(&reply.message);
               chunk != nullptr && fetching_) {  // ignores the initial weights, which all workers have
      weights_[static_cast<size_t>(chunk->bucket)] = std::move(reply.weights);
    }
  }
  void Proceed() override {}  // the memory is not limited
  void Abort(const absl::Status& why) override { failure_ = why; }

  const absl::Status& failure() const { return failure_; }
  void set_fetching(bool fetching) { fetching_ = fetching; }
  bool TakeAdmitted() { return std::exchange(admitted_, false); }
  bool complete() const { return received_ == answers_.size() && received_ > 0; }
  // The answers of a complete() exchange.
  std::vector<message::Answer> Take() {
    received_ = 0;
    return answers_;
  }
  Snapshot TakeWeights(size_t bucket) { return std::exchange(weights_[bucket], {}); }

 private:
  std::vector<message::Answer> answers_;  // by bucket
  std::vector<Snapshot> weights_;         // by bucket
  size_t received_ = 0;
  bool admitted_ = false;
  bool fetching_ = false;
  absl::Status failure_;
};

InlineServer::InlineServer(const ServerJob& job, Device& device)
    : job_(job), server_(device, {.workers = job.workers, .timeout = kForever, .staging_bytes = SIZE_MAX}) {}

absl::Status InlineServer::Begin(Span weights) {
  PSRING_ASSIGN_OR_RETURN(lane_, server_.NewLane());
  for (int worker = 0; worker < job_.workers; ++worker) {
    inboxes_.push_back(std::make_shared<Inbox>(job_.buckets.size()));
    PSRING_RETURN_IF_ERROR(server_.Join({.worker = worker, .job = job_}, inboxes_.back()));
    if (worker != 0) continue;
    for (const Bucket& bucket : job_.buckets) {
      message::InitialWeights message{.bucket = bucket.index};
      const Span part = weights.Slice(bucket.first, bucket.count);
      do {
        const Bytes chunk(static_cast<const std::byte*>(part.data) + message.offset,
                          ChunkLength(part.bytes(), message.offset));
        server_.Receive(0, &InboxOf(0), message, {.pieces = {&chunk, 1}}, *lane_);
        message.offset += chunk.size();
      } while (message.offset < part.bytes());
    }
  }
  return Failure(0);
}

absl::Status InlineServer::Push(int worker, int64_t step, int64_t samples, int bucket, ConstSpan gradient) {
  // Whole and in place, like the gradient of a worker that shares memory.
  const Bytes bytes(static_cast<const std::byte*>(gradient.data), gradient.bytes());
  server_.Receive(
      worker, &InboxOf(worker),
      message::Gradient{
          .bucket = bucket, .step = step, .samples = samples, .incarnation = server_.incarnation()},
      {.pieces = {&bytes, 1}, .stays = true}, *lane_);
  return Failure(worker);
}

absl::StatusOr<bool> InlineServer::Announce(int worker, int64_t step) {
  server_.Receive(worker, &InboxOf(worker),
                  message::Announcement{.step = step, .incarnation = server_.incarnation()}, {}, *lane_);
  PSRING_RETURN_IF_ERROR(Failure(worker));
  return InboxOf(worker).TakeAdmitted();
}

std::vector<InlineServer::Answer> InlineServer::TakeAnswers() {
  std::vector<Answer> answers;
  for (size_t worker = 0; worker < inboxes_.size(); ++worker) {
    if (!inboxes_[worker]->complete()) continue;
    const std::vector<message::Answer> buckets = inboxes_[worker]->Take();
    Answer& answer = answers.emplace_back(Answer{.worker = static_cast<int>(worker),
                                                 .step = buckets.front().step,
                                                 .version = buckets.front().version,
                                                 .dropped = buckets.front().dropped});
    for (const message::Answer& bucket : buckets) answer.staleness.push_back(bucket.staleness);
  }
  return answers;
}

void InlineServer::CopyWeights(int worker, Span to) {
  for (const Bucket& bucket : job_.buckets) {
    const Snapshot snapshot = InboxOf(worker).TakeWeights(static_cast<size_t>(bucket.index));
    PSRING_CHECK(snapshot.weights.count == bucket.count);
    const Span part = to.Slice(bucket.first, bucket.count);
    if (part.bytes() > 0) std::memcpy(part.data, snapshot.weights.data, part.bytes());
  }
}

absl::Status InlineServer::Fetch(Span weights) {
  InboxOf(0).set_fetching(true);
  server_.Receive(0, &InboxOf(0), message::Fetch{}, {}, *lane_);
  InboxOf(0).set_fetching(false);
  PSRING_RETURN_IF_ERROR(Failure(0));
  CopyWeights(0, weights);
  return absl::OkStatus();
}

absl::Status InlineServer::Failure(int worker) { return InboxOf(worker).failure(); }

absl::StatusOr<std::unique_ptr<InlineServer>> InlineServer::Start(const ServerJob& job, Span weights,
                                                                  Device& device) {
  std::unique_ptr<InlineServer> server(new InlineServer(job, device));
  PSRING_RETURN_IF_ERROR(server->Begin(weights));
  return server;
}

}  // namespace psring
