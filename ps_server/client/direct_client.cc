// The client without a wire: hands the server its worker's memory, cut into the same chunks.

#include <deque>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "ps_server/client/client_session.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/server/parameter_server.h"

namespace psring {
namespace {

// What the client's thread has to do, in order. The server fills it too, from other workers' threads, so
// nobody ever waits for another worker while holding something up: all ranks may be threads of one process.
class Inbox : public ReplySink {
 public:
  struct Poke {};
  struct GoOn {};  // there is room for what the server did not take
  struct Stop {};
  using Event = std::variant<Exchange, ChunkHeader, Reply, absl::Status, Poke, GoOn, Stop>;

  void Put(Event event) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    arrived_.NotifyOne();
  }
  // Waits without a deadline of its own: the client's destructor always sends Stop.
  Event Take() {
    MutexLock lock(mutex_);
    while (events_.empty()) arrived_.Wait(mutex_);
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  void Deliver(Reply reply) override { Put(std::move(reply)); }
  void Proceed() override { Put(GoOn{}); }
  void Abort(const absl::Status& why) override { Put(why); }

 private:
  Mutex mutex_;
  CondVar arrived_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
};

class DirectClient : public PsClient {
 public:
  explicit DirectClient(ParameterServer& server) : server_(server) {}

  ~DirectClient() override {
    if (worker_ >= 0) server_.Disconnected(worker_, inbox_.get(), "its client was destroyed before it left");
    if (!thread_.joinable()) return;
    session_.Fail(absl::CancelledError("the client was destroyed"));
    inbox_->Put(Inbox::Stop{});
    thread_.join();
  }

  std::string payload() const override { return "in_process"; }

  void ShareMemory(const SharedSpan&, const SharedSpan&) override {}  // one process has all of it in common

  void BeginWith(std::vector<ConstSpan> slots) override { slots_ = std::move(slots); }

  absl::Status Start(int worker, const ServerJob& job, Span weights, absl::Time deadline) override {
    PSRING_CHECK(!thread_.joinable());
    PSRING_RETURN_IF_ERROR(session_.Begin(job, weights));
    PSRING_ASSIGN_OR_RETURN(lane_, server_.NewLane());
    PSRING_RETURN_IF_ERROR(server_.Join({.worker = worker, .job = job}, inbox_));
    worker_ = worker;
    if (worker == 0) {
      for (size_t slot = slots_.size() + 1; slot-- > 0;) {  // the weights last: with them the job may start
        const ConstSpan values = slot > 0 ? slots_[slot - 1] : weights;
        for (const Bucket& bucket : job.buckets) {
          outgoing_.push_back(
              {{.kind = MessageKind::kWeights, .bucket = bucket.index, .step = static_cast<int64_t>(slot)},
               values.Slice(bucket.first, bucket.count)});
        }
      }
      SendWhatIsTaken();
    }
    thread_ = std::thread([this] { Loop(); });
    return session_.Await(MessageKind::kJoin, deadline + absl::Milliseconds(kServerSpeaksFirstMs),
                          "all workers to join");
  }

  void PushPull(const Exchange& exchange, Done done) override {
    switch (session_.Add(exchange, std::move(done))) {
      case ClientSession::ToSend::kAnnouncement:
        inbox_->Put(session_.Addressed({.kind = MessageKind::kAnnounce, .step = exchange.step}));
        break;
      case ClientSession::ToSend::kGradient:
        inbox_->Put(exchange);
        break;
      case ClientSession::ToSend::kNothing:
        inbox_->Put(Inbox::Poke{});  // it may have been refused
        break;
    }
  }

  int64_t start_step() const override { return session_.start_step(); }

  absl::StatusOr<std::optional<int64_t>> Barrier(int number, absl::Time deadline) override {
    session_.ExpectAnswer();
    inbox_->Put(ChunkHeader{.kind = MessageKind::kBarrier, .step = number});
    PSRING_RETURN_IF_ERROR(session_.Await(MessageKind::kBarrier, deadline, "the other workers"));
    return session_.went_back_to();
  }

  absl::Status Fetch(Span weights, absl::Time deadline) override {
    session_.ExpectWeights(weights);
    inbox_->Put(ChunkHeader{.kind = MessageKind::kFetch});
    return session_.Await(MessageKind::kFetch, deadline, "the server's weights");
  }

  absl::StatusOr<bool> FetchState(int slot, Span values, absl::Time deadline) override {
    session_.ExpectWeights(values, /*goes_on=*/false);
    inbox_->Put(ChunkHeader{.kind = MessageKind::kFetch, .step = slot});
    PSRING_RETURN_IF_ERROR(session_.Await(MessageKind::kFetch, deadline, "the server's state"));
    return !session_.went_back_to().has_value();
  }

  absl::Status Leave(absl::Time deadline) override {
    inbox_->Put(ChunkHeader{.kind = MessageKind::kLeave});
    return session_.Await(MessageKind::kLeave, deadline, "the server to take note of our leaving");
  }

  void Abort(absl::Status why) override { inbox_->Put(std::move(why)); }

  Traffic traffic() const override { return session_.traffic(); }

  void OnWord(std::function<void(const ChunkHeader&)> heard) override { session_.OnWord(std::move(heard)); }
  void Tell(const ChunkHeader& word) override { inbox_->Put(session_.Addressed(word)); }

 private:
  // A message on its way out, chunk by chunk.
  struct Outgoing {
    ChunkHeader header;
    ConstSpan data;
  };

  void Loop() {
    while (true) {
      Inbox::Event event = inbox_->Take();
      if (auto* exchange = std::get_if<Exchange>(&event)) {
        Send(*exchange);
      } else if (auto* word = std::get_if<ChunkHeader>(&event)) {
        outgoing_.push_back({*word, {}});
      } else if (auto* reply = std::get_if<Reply>(&event)) {
        const Bytes bytes(static_cast<const std::byte*>(reply->weights.weights.data),
                          reply->weights.weights.bytes());
        if (absl::Status status = session_.OnChunk(reply->header, {&bytes, 1}); !status.ok()) {
          session_.Fail(status);
        }
        for (const Exchange& admitted : session_.TakeToSend()) Send(admitted);
      } else if (auto* why = std::get_if<absl::Status>(&event)) {
        session_.Fail(*why);
        // A worker that gives up is lost to the others. Where the server itself has failed, it knows.
        server_.Disconnected(worker_, inbox_.get(), std::string(why->message()));
      } else if (std::holds_alternative<Inbox::GoOn>(event)) {
        held_up_ = false;
      }
      // Once an exchange has ended, its memory is the caller's again.
      if (!session_.failure().ok()) outgoing_.clear();
      if (!held_up_) SendWhatIsTaken();
      session_.EndExchanges();
      if (std::holds_alternative<Inbox::Stop>(event)) return;
    }
  }

  void Send(const Exchange& exchange) {
    const std::optional<ChunkHeader> header = session_.BeginSending(exchange);
    if (header.has_value()) outgoing_.push_back({*header, exchange.gradient});
  }

  // Replies are read all the while: the server may need the memory that they take up.
  void SendWhatIsTaken() {
    while (!outgoing_.empty()) {
      auto& [header, data] = outgoing_.front();
      const Bytes chunk(static_cast<const std::byte*>(data.data) + header.offset,
                        ChunkLength(data.bytes(), header.offset));
      held_up_ = server_.Receive(worker_, inbox_.get(), header, {&chunk, 1}, *lane_) == Receipt::kNotYet;
      if (held_up_) return;
      header.offset += chunk.size();
      if (header.offset == data.bytes()) outgoing_.pop_front();
    }
  }

  ParameterServer& server_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  ClientSession session_;
  std::optional<Lane> lane_;
  int worker_ = -1;
  std::vector<ConstSpan> slots_;   // worker 0's, until Start has returned
  std::deque<Outgoing> outgoing_;  // the thread's own, once it runs
  bool held_up_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<PsClient> MakeDirectPsClient(ParameterServer& server) {
  return std::make_unique<DirectClient>(server);
}

}  // namespace psring
