#include "tests/ps_server/direct_client.h"

#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/measure/wires.h"
#include "ps_server/client/session_client.h"

namespace psring {
namespace {

// Events that the client's thread runs in order. The server adds some from other workers' threads, without
// waiting: all ranks may be threads of one process.
class Inbox : public ReplySink {
 public:
  struct Owner {
    std::function<void(const Reply&)> on_reply;
    std::function<void()> on_proceed;
    std::function<void(const absl::Status&)> on_abort;
  };
  explicit Inbox(Owner owner) : owner_(std::move(owner)) {}

  void Put(std::function<void()> event) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    arrived_.NotifyOne();
  }
  std::function<void()> Take() {
    MutexLock lock(mutex_);
    while (events_.empty()) arrived_.Wait(mutex_);
    std::function<void()> event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  void Deliver(Reply reply) override {
    Put([this, reply = std::move(reply)] { owner_.on_reply(reply); });
  }
  void Proceed() override { Put(owner_.on_proceed); }
  void Abort(const absl::Status& why) override {
    Put([this, why] { owner_.on_abort(why); });
  }

 private:
  const Owner owner_;
  Mutex mutex_;
  CondVar arrived_;
  std::deque<std::function<void()>> events_ ABSL_GUARDED_BY(mutex_);
};

class DirectClient : public SessionClient {
 public:
  explicit DirectClient(ParameterServer& server) : server_(server) {}

  ~DirectClient() override {
    if (worker_ >= 0) server_.Disconnected(worker_, inbox_.get(), "its client was destroyed before it left");
    if (!thread_.joinable()) return;
    session_.Fail(absl::CancelledError("the client was destroyed"));
    inbox_->Put([this] { stops_ = true; });
    thread_.join();
  }

  absl::Status Start(int worker, const ServerJob& job, const WorkerBuffers& memory,
                     MonotonicTime deadline) override {
    PSRING_CHECK(!thread_.joinable());
    PSRING_RETURN_IF_ERROR(session_.Begin(job, memory.weights));
    PSRING_ASSIGN_OR_RETURN(lane_, server_.NewLane());
    PSRING_RETURN_IF_ERROR(server_.Join({.worker = worker, .job = job}, inbox_));
    worker_ = worker;
    for (size_t slot = memory.slots.size() + 1; worker == 0 && slot-- > 0;) {
      const ConstSpan values =
          slot > 0 ? memory.slots[slot - 1] : memory.weights;  // last: they start the job
      for (const Bucket& bucket : job.buckets) {
        outgoing_.push_back(
            {message::InitialWeights{.bucket = bucket.index, .slot = static_cast<int64_t>(slot)},
             values.Slice(bucket.first, bucket.count)});
      }
    }
    SendWhatIsTaken();
    thread_ = std::thread([this] { Loop(); });
    return session_.Await(Question::kJoin, deadline + absl::Milliseconds(kServerErrorGraceMs),
                          "all workers to join");
  }

  void PushPull(const Exchange& exchange, Done done) override {
    const ClientSession::ToSend to_send = session_.Add(exchange, std::move(done));
    if (to_send == ClientSession::ToSend::kAnnouncement) {
      return Send(message::Announcement{.step = exchange.step});
    }
    inbox_->Put([this, exchange, sends = to_send == ClientSession::ToSend::kGradient] {
      if (sends) SendGradient(exchange);  // otherwise it may have been refused
    });
  }

  void Abort(absl::Status why) override { inbox_->Abort(why); }

  ClientStatus status() const override {
    return {.payload = "in_process",
            .wires = {kOneProcessWire},
            .start_step = session_.state().start_step,
            .traffic = session_.state().traffic};
  }

  void Send(const message::ToServer& message) override {
    inbox_->Put([this, message = session_.Addressed(message)] { outgoing_.push_back({message, {}}); });
  }

 private:
  // A message on its way out, chunk by chunk.
  struct Outgoing {
    message::ToServer message;
    ConstSpan data;
    uint64_t offset = 0;                                       // of the first byte that is not sent yet
    std::shared_ptr<const std::vector<float>> keep = nullptr;  // owns `data`
  };

  absl::Status Ask(Question question, const message::ToServer& message, MonotonicTime deadline,
                   const std::string& whom) override {
    session_.ExpectAnswer();
    Send(message);
    return session_.Await(question, deadline, whom);
  }
  absl::Status AskForRows(std::vector<RowMessage> parts, MonotonicTime deadline,
                          const std::string& whom) override {
    return session_.AskForRows(std::move(parts), deadline, whom,
                               [this](const RowMessage& part) { SendRows(part); });
  }
  void SendRows(const RowMessage& rows) override {
    inbox_->Put([this, rows] {
      outgoing_.push_back({rows.message, {rows.payload->data(), rows.payload->size()}, 0, rows.payload});
    });
  }

  void Loop() {
    while (!stops_) {
      inbox_->Take()();
      // Once an exchange has ended, its memory is the caller's again.
      if (!session_.state().failure.ok()) outgoing_.clear();
      if (!must_wait_) SendWhatIsTaken();
      session_.EndExchanges();
    }
  }

  void OnReply(const Reply& reply) {
    const ConstSpan weights = reply.weights.weights;
    const Bytes bytes(static_cast<const std::byte*>(weights.data), weights.bytes());
    if (absl::Status status = session_.OnMessage(reply.message, {&bytes, 1}); !status.ok()) {
      session_.Fail(status);
    }
    for (const Exchange& admitted : session_.TakeToSend()) SendGradient(admitted);
  }

  void OnAbort(const absl::Status& why) {
    session_.Fail(why);
    // The other workers lose this one. If the server itself has failed, it ignores this.
    server_.Disconnected(worker_, inbox_.get(), std::string(why.message()));
  }

  void SendGradient(const Exchange& exchange) {
    const std::optional<message::Gradient> message = session_.BeginSending(exchange);
    if (message.has_value()) outgoing_.push_back({*message, exchange.gradient});
  }

  // Returns if the server has no memory: the thread then reads replies, whose memory the server may need.
  void SendWhatIsTaken() {
    while (!outgoing_.empty()) {
      Outgoing& front = outgoing_.front();
      const Bytes chunk(static_cast<const std::byte*>(front.data.data) + front.offset,
                        ChunkLength(front.data.bytes(), front.offset));
      message::SetOffset(front.message, front.offset);
      must_wait_ = server_.Receive(worker_, inbox_.get(), front.message, {.pieces = {&chunk, 1}}, *lane_) ==
                   Receipt::kNotYet;
      if (must_wait_) return;
      front.offset += chunk.size();
      if (front.offset == front.data.bytes()) outgoing_.pop_front();
    }
  }

  ParameterServer& server_;
  const std::shared_ptr<Inbox> inbox_ =
      std::make_shared<Inbox>(Inbox::Owner{.on_reply = [this](const Reply& reply) { OnReply(reply); },
                                           .on_proceed = [this] { must_wait_ = false; },
                                           .on_abort = [this](const absl::Status& why) { OnAbort(why); }});
  std::optional<Lane> lane_;
  int worker_ = -1;
  std::deque<Outgoing> outgoing_;  // once the thread runs, used only by it
  bool must_wait_ = false;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<OneServerClient> MakeDirectPsClient(ParameterServer& server) {
  return std::make_unique<DirectClient>(server);
}

}  // namespace psring
