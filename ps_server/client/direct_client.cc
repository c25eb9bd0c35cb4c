// The client in the server's process: passes the worker's memory to the server, in the same chunks.

#include <deque>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/measure/wires.h"
#include "ps_server/client/client_session.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/server/parameter_server.h"

namespace psring {
namespace {

// Events that the client's thread handles in order. The server adds some from other workers' threads, without
// waiting: all ranks may be threads of one process.
class Inbox : public ReplySink {
 public:
  struct Wake {};
  struct Proceeds {};  // the server can take the message for which Receive returned kNotYet
  struct Stop {};
  struct RowsToSend {
    message::ToServer message;
    std::shared_ptr<const std::vector<float>> payload;
  };
  using Event =
      std::variant<Exchange, message::ToServer, RowsToSend, Reply, absl::Status, Wake, Proceeds, Stop>;

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
  void Proceed() override { Put(Proceeds{}); }
  void Abort(const absl::Status& why) override { Put(why); }

 private:
  Mutex mutex_;
  CondVar arrived_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
};

class DirectClient : public OneServerClient {
 public:
  explicit DirectClient(ParameterServer& server) : server_(server) {}

  ~DirectClient() override {
    if (worker_ >= 0) server_.Disconnected(worker_, inbox_.get(), "its client was destroyed before it left");
    if (!thread_.joinable()) return;
    session_.Fail(absl::CancelledError("the client was destroyed"));
    inbox_->Put(Inbox::Stop{});
    thread_.join();
  }

  absl::Status Start(int worker, const ServerJob& job, const WorkerBuffers& memory,
                     MonotonicTime deadline) override {
    PSRING_CHECK(!thread_.joinable());
    PSRING_RETURN_IF_ERROR(session_.Begin(job, memory.weights));
    PSRING_ASSIGN_OR_RETURN(lane_, server_.NewLane());
    PSRING_RETURN_IF_ERROR(server_.Join({.worker = worker, .job = job}, inbox_));
    worker_ = worker;
    if (worker == 0) {
      for (size_t slot = memory.slots.size() + 1; slot-- > 0;) {  // the weights last: they start the job
        const ConstSpan values = slot > 0 ? memory.slots[slot - 1] : memory.weights;
        for (const Bucket& bucket : job.buckets) {
          outgoing_.push_back(
              {message::InitialWeights{.bucket = bucket.index, .slot = static_cast<int64_t>(slot)},
               values.Slice(bucket.first, bucket.count)});
        }
      }
      SendWhatIsTaken();
    }
    thread_ = std::thread([this] { Loop(); });
    return session_.Await(Question::kJoin, deadline + absl::Milliseconds(kServerSpeaksFirstMs),
                          "all workers to join");
  }

  void PushPull(const Exchange& exchange, Done done) override {
    switch (session_.Add(exchange, std::move(done))) {
      case ClientSession::ToSend::kAnnouncement:
        inbox_->Put(session_.Addressed(message::Announcement{.step = exchange.step}));
        break;
      case ClientSession::ToSend::kGradient:
        inbox_->Put(exchange);
        break;
      case ClientSession::ToSend::kNothing:
        inbox_->Put(Inbox::Wake{});  // it may have been refused
        break;
    }
  }

  absl::StatusOr<std::optional<int64_t>> Barrier(int number, MonotonicTime deadline) override {
    session_.ExpectAnswer();
    inbox_->Put(message::ToServer(message::Barrier{.number = number}));
    PSRING_RETURN_IF_ERROR(session_.Await(Question::kBarrier, deadline, "the other workers"));
    return session_.state().went_back_to;
  }

  absl::StatusOr<bool> Read(const ReadRequest& request, MonotonicTime deadline) override {
    session_.ExpectWeights(request.values, request.resumes);
    inbox_->Put(message::ToServer(message::Fetch{.slot = request.slot}));
    PSRING_RETURN_IF_ERROR(session_.Await(Question::kFetch, deadline, "the server's weights"));
    return !session_.state().went_back_to.has_value();
  }

  absl::Status Leave(MonotonicTime deadline) override {
    inbox_->Put(message::ToServer(message::Leave{}));
    return session_.Await(Question::kLeave, deadline, "the server to confirm that this worker leaves");
  }

  absl::Status Pull(int64_t step, absl::Span<const RowPull> pulls, MonotonicTime deadline) override {
    return session_.PullRows(step, pulls, deadline, "rows of the server's tables",
                             [this](const RowMessage<message::PullRows>& request) {
                               inbox_->Put(Inbox::RowsToSend{request.message, request.payload});
                             });
  }
  absl::Status Put(const RowPut& put, MonotonicTime deadline) override {
    return session_.PutRows(put, deadline, "the server to take rows",
                            [this](const RowMessage<message::InitialRows>& rows) {
                              inbox_->Put(Inbox::RowsToSend{rows.message, rows.payload});
                            });
  }
  void Push(int64_t step, int64_t samples, absl::Span<const RowPush> pushes) override {
    for (const auto& part : session_.PushRows(step, samples, pushes)) {
      inbox_->Put(Inbox::RowsToSend{part.message, part.payload});
    }
  }

  void Abort(absl::Status why) override { inbox_->Put(std::move(why)); }

  ClientStatus status() const override {
    return {.payload = "in_process",
            .wires = {kOneProcessWire},
            .start_step = session_.state().start_step,
            .traffic = session_.state().traffic};
  }

  void SetListener(std::function<void(const message::ToWorker&)> listener) override {
    session_.SetListener(std::move(listener));
  }
  void Send(const message::ToServer& message) override { inbox_->Put(session_.Addressed(message)); }

 private:
  // A message on its way out, chunk by chunk.
  struct Outgoing {
    message::ToServer message;
    ConstSpan data;
    uint64_t offset = 0;                                       // of the first byte that is not sent yet
    std::shared_ptr<const std::vector<float>> keep = nullptr;  // owns `data`
  };

  void Loop() {
    while (true) {
      Inbox::Event event = inbox_->Take();
      if (auto* exchange = std::get_if<Exchange>(&event)) {
        SendGradient(*exchange);
      } else if (auto* message = std::get_if<message::ToServer>(&event)) {
        outgoing_.push_back({*message, {}});
      } else if (auto* rows = std::get_if<Inbox::RowsToSend>(&event)) {
        outgoing_.push_back(
            {rows->message, {rows->payload->data(), rows->payload->size()}, 0, rows->payload});
      } else if (auto* reply = std::get_if<Reply>(&event)) {
        const Bytes bytes(static_cast<const std::byte*>(reply->weights.weights.data),
                          reply->weights.weights.bytes());
        if (absl::Status status = session_.OnMessage(reply->message, {&bytes, 1}); !status.ok()) {
          session_.Fail(status);
        }
        for (const Exchange& admitted : session_.TakeToSend()) SendGradient(admitted);
      } else if (auto* why = std::get_if<absl::Status>(&event)) {
        session_.Fail(*why);
        // The other workers lose this one. If the server itself has failed, it ignores this.
        server_.Disconnected(worker_, inbox_.get(), std::string(why->message()));
      } else if (std::holds_alternative<Inbox::Proceeds>(event)) {
        must_wait_ = false;
      }
      // Once an exchange has ended, its memory is the caller's again.
      if (!session_.state().failure.ok()) outgoing_.clear();
      if (!must_wait_) SendWhatIsTaken();
      session_.EndExchanges();
      if (std::holds_alternative<Inbox::Stop>(event)) return;
    }
  }

  void SendGradient(const Exchange& exchange) {
    const std::optional<message::Gradient> message = session_.BeginSending(exchange);
    if (message.has_value()) outgoing_.push_back({*message, exchange.gradient});
  }

  // Returns if the server has no memory: the thread then reads replies, whose memory the server may need.
  void SendWhatIsTaken() {
    while (!outgoing_.empty()) {
      auto& [message, data, offset, keep] = outgoing_.front();
      const Bytes chunk(static_cast<const std::byte*>(data.data) + offset, ChunkLength(data.bytes(), offset));
      message::SetOffset(message, offset);
      must_wait_ = server_.Receive(worker_, inbox_.get(), message, {.pieces = {&chunk, 1}}, *lane_) ==
                   Receipt::kNotYet;
      if (must_wait_) return;
      (void)keep;
      offset += chunk.size();
      if (offset == data.bytes()) outgoing_.pop_front();
    }
  }

  ParameterServer& server_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  ClientSession session_;
  std::optional<Lane> lane_;
  int worker_ = -1;
  std::deque<Outgoing> outgoing_;  // once the thread runs, used only by it
  bool must_wait_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<OneServerClient> MakeDirectPsClient(ParameterServer& server) {
  return std::make_unique<DirectClient>(server);
}

}  // namespace psring
