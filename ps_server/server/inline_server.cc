#include "ps_server/server/inline_server.h"

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ps_server/server/parameter_server.h"

namespace psring {
namespace {

// Nobody waits in real time, so nobody can be late.
constexpr absl::Duration kForever = absl::Hours(24 * 365);

// What one worker has heard. All calls come from the one thread there is.
class Ear : public ReplySink {
 public:
  explicit Ear(size_t buckets) : answered_(buckets), weights_(buckets) {}

  void Deliver(Reply reply) override {
    switch (reply.header.kind) {
      case MessageKind::kAnnounce:
        admitted_ = true;
        break;
      case MessageKind::kExchange: {
        const size_t bucket = static_cast<size_t>(reply.header.bucket);
        answered_[bucket] = reply.header;
        weights_[bucket] = std::move(reply.weights);
        ++heard_;
        break;
      }
      case MessageKind::kWeights:  // also at the beginning, when all hold the same already
        if (fetching_) weights_[static_cast<size_t>(reply.header.bucket)] = std::move(reply.weights);
        break;
      default:
        break;
    }
  }
  void Proceed() override {}  // there is memory for all
  void Abort(const absl::Status& why) override { failure_ = why; }

  const absl::Status& failure() const { return failure_; }
  void set_fetching(bool fetching) { fetching_ = fetching; }
  bool TakeAdmitted() { return std::exchange(admitted_, false); }
  bool complete() const { return heard_ == answered_.size() && heard_ > 0; }
  // What complete() exchange there was.
  std::vector<ChunkHeader> Take() {
    heard_ = 0;
    return answered_;
  }
  Snapshot TakeWeights(size_t bucket) { return std::exchange(weights_[bucket], {}); }

 private:
  std::vector<ChunkHeader> answered_;  // by bucket
  std::vector<Snapshot> weights_;      // by bucket
  size_t heard_ = 0;
  bool admitted_ = false;
  bool fetching_ = false;
  absl::Status failure_;
};

class Server : public InlineServer {
 public:
  Server(const ServerJob& job, Device& device)
      : job_(job),
        server_(device, {.workers = job.workers, .timeout = kForever, .staging_bytes = SIZE_MAX}) {}

  absl::Status Begin(Span weights) {
    PSRING_ASSIGN_OR_RETURN(lane_, server_.NewLane());
    for (int worker = 0; worker < job_.workers; ++worker) {
      ears_.push_back(std::make_shared<Ear>(job_.buckets.size()));
      PSRING_RETURN_IF_ERROR(server_.Join({.worker = worker, .job = job_}, ears_.back()));
      if (worker != 0) continue;
      for (const Bucket& bucket : job_.buckets) {
        ChunkHeader header{.kind = MessageKind::kWeights, .bucket = bucket.index};
        const Span part = weights.Slice(bucket.first, bucket.count);
        do {
          const Bytes chunk(static_cast<const std::byte*>(part.data) + header.offset,
                            ChunkLength(part.bytes(), header.offset));
          server_.Receive(0, &EarOf(0), header, {&chunk, 1}, *lane_);
          header.offset += chunk.size();
        } while (header.offset < part.bytes());
      }
    }
    return Failure(0);
  }

  absl::Status Push(int worker, int64_t step, int64_t samples, int bucket, ConstSpan gradient) override {
    // Whole and in place, as a worker of the same host offers it.
    const Bytes bytes(static_cast<const std::byte*>(gradient.data), gradient.bytes());
    server_.Receive(worker, &EarOf(worker),
                    {.kind = MessageKind::kExchange,
                     .bucket = bucket,
                     .step = step,
                     .samples = samples,
                     .incarnation = server_.incarnation(),
                     .shared = true},
                    {&bytes, 1}, *lane_);
    return Failure(worker);
  }

  absl::StatusOr<bool> Announce(int worker, int64_t step) override {
    server_.Receive(worker, &EarOf(worker),
                    {.kind = MessageKind::kAnnounce, .step = step, .incarnation = server_.incarnation()}, {},
                    *lane_);
    PSRING_RETURN_IF_ERROR(Failure(worker));
    return EarOf(worker).TakeAdmitted();
  }

  std::vector<Answer> TakeAnswers() override {
    std::vector<Answer> answers;
    for (size_t worker = 0; worker < ears_.size(); ++worker) {
      if (!ears_[worker]->complete()) continue;
      const std::vector<ChunkHeader> buckets = ears_[worker]->Take();
      Answer& answer = answers.emplace_back(Answer{.worker = static_cast<int>(worker),
                                                   .step = buckets.front().step,
                                                   .version = buckets.front().version,
                                                   .dropped = buckets.front().dropped});
      for (const ChunkHeader& bucket : buckets) answer.staleness.push_back(bucket.staleness);
    }
    return answers;
  }

  void CopyWeights(int worker, Span to) override {
    for (const Bucket& bucket : job_.buckets) {
      const Snapshot snapshot = EarOf(worker).TakeWeights(static_cast<size_t>(bucket.index));
      PSRING_CHECK(snapshot.weights.count == bucket.count);
      const Span part = to.Slice(bucket.first, bucket.count);
      if (part.bytes() > 0) std::memcpy(part.data, snapshot.weights.data, part.bytes());
    }
  }

  absl::Status Fetch(Span weights) override {
    EarOf(0).set_fetching(true);
    server_.Receive(0, &EarOf(0), {.kind = MessageKind::kFetch}, {}, *lane_);
    EarOf(0).set_fetching(false);
    PSRING_RETURN_IF_ERROR(Failure(0));
    CopyWeights(0, weights);
    return absl::OkStatus();
  }

  ServerResult Result() const override {
    const ServerStats stats = server_.stats();
    return {.pushes = stats.pushes,
            .payload_rx_bytes = stats.payload.payload_rx_bytes,
            .payload_tx_bytes = stats.payload.payload_tx_bytes,
            .staleness_histogram = stats.staleness_histogram,
            .dropped_gradients = stats.dropped_gradients,
            .peak_memory_mb = PeakMemoryMb()};
  }

 private:
  Ear& EarOf(int worker) { return *ears_[static_cast<size_t>(worker)]; }
  absl::Status Failure(int worker) { return EarOf(worker).failure(); }

  const ServerJob job_;
  std::vector<std::shared_ptr<Ear>> ears_;  // by worker
  ParameterServer server_;
  std::optional<Lane> lane_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<InlineServer>> InlineServer::Start(const ServerJob& job, Span weights,
                                                                  Device& device) {
  auto server = std::make_unique<Server>(job, device);
  PSRING_RETURN_IF_ERROR(server->Begin(weights));
  return server;
}

}  // namespace psring
