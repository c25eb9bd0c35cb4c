// A worker's side of the protocol (protocol/protocol.md), independent of the transport: which exchanges
// are in flight, where received weights go, and what has been answered. GrpcClient uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/measure/trace.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/protocol/row_messages.h"

namespace psring {

// What the worker waits for.
enum class Question { kJoin, kBarrier, kFetch, kLeave, kRows };

// OnMessage, PlaceOf, TakeToSend and EndExchanges are called by one of the client's own threads at a time;
// the other functions by any.
class ClientSession {
 public:
  // Once, before anything else. `weights`: where the initial weights go.
  absl::Status Begin(const ServerJob& job, Span weights);
  const ServerJob& job() const { return job_; }
  // Where the values of a Fetch go, until Await(kFetch) returns. See PsClient::ReadRequest.
  void ExpectWeights(Span weights, bool resumes);

  // See OneServerClient. Once, before Begin.
  void SetListener(std::function<void(const message::ToWorker&)> listener) {
    listener_ = std::move(listener);
  }

  // What the client has to send next.
  enum class ToSend { kNothing, kGradient, kAnnouncement };

  // Adds an exchange. If it is not possible, or the session has failed, returns kNothing, and the caller must
  // call EndExchanges. With backup workers, kAnnouncement after the last bucket of a step.
  ToSend Add(const Exchange& exchange, PsClient::Done done);

  // The message with which to send an exchange now. nullopt if the exchange has ended, is being sent already,
  // or its server is lost (TakeToSend returns it after reconnecting).
  std::optional<message::Gradient> BeginSending(const Exchange& exchange);

  // The message for the server's current incarnation.
  message::ToServer Addressed(message::ToServer message) const;

  // `on_gpu`: the message's weights are on the GPU already. An error means that the server violates the
  // protocol.
  absl::Status OnMessage(const message::ToWorker& message, Pieces payload, bool on_gpu = false);

  // Where the next `bytes` of an answer go: a transport that receives them there before it calls OnMessage
  // saves a copy. nullopt: the exchange needs no answer any more. Errors as above.
  absl::StatusOr<std::optional<std::byte*>> PlaceOf(const message::Answer& chunk, size_t bytes);

  // The exchanges to send now, in this order, because the server has admitted them, has reset their bucket,
  // or is connected again.
  std::vector<Exchange> TakeToSend();

  // Sends requests for rows, or initial rows (PartsOf), as many at a time as the server accepts (MostPulls),
  // and waits for the answers.
  absl::Status AskForRows(std::vector<RowMessage> parts, MonotonicTime deadline, const std::string& whom,
                          const std::function<void(const RowMessage&)>& send);
  // The messages of PsClient::Push, which are counted as sent.
  std::vector<RowMessage> PushRows(int64_t step, int64_t samples, absl::Span<const RowPush> pushes);

  // The stream has ended. Nothing is sent until the next Welcome.
  void OnLost();

  struct State {
    bool connected = false;                  // since the last Welcome
    std::optional<absl::Duration> patience;  // how long to try to reconnect; from the first Welcome
    int64_t start_step = 0;                  // from the first Welcome
    int64_t epoch = 0;                       // the server's, from the last Welcome
    std::optional<int64_t> went_back_to;     // the server's step, until ExpectWeights with `resumes`
    absl::Status failure;                    // the first one
    int64_t answers = 0;                     // to exchanges and questions
    Traffic traffic;
  };
  State state() const;
  // Names a push that has been in flight for longer than `timeout`; empty if there is none.
  std::string Overdue(absl::Duration timeout) const;

  // The first failure is kept. Wakes waiting threads; exchanges end with the next EndExchanges.
  void Fail(const absl::Status& why);
  // The server has answered the question, or will not answer it any more.
  void OnAnswered(Question question);
  // Runs `done` for exchanges that end without an answer: all of them if the session has failed.
  void EndExchanges();

  // Waits for the server's answer: OK, or the failure. `whom` completes the error "waited ... for". After an
  // error no weights are written any more.
  absl::Status Await(Question question, MonotonicTime deadline, const std::string& whom);
  // Call before asking: the next Await then ignores earlier answers.
  void ExpectAnswer();

 private:
  struct Pending {
    Exchange exchange;
    PsClient::Done done;
    uint64_t received = 0;
    bool sent = false;  // to the server's current incarnation, for the current sum
    MonotonicTime since;
  };

  // A request for rows that has not been answered.
  struct AskedRows {
    int bucket = 0;
    int64_t step = 0;
    size_t sent_bytes = 0;
    float* values = nullptr;
    size_t floats = 0;
  };

  bool IsBucket(int bucket) const { return bucket >= 0 && static_cast<size_t>(bucket) < job_.buckets.size(); }
  absl::Status OnWeights(const message::Weights& chunk, Pieces payload);
  absl::Status OnAnswer(const message::Answer& chunk, Pieces payload, bool on_gpu);
  absl::Status OnAdmitted(const message::Admitted& admitted);
  absl::Status OnReset(const message::Reset& reset);
  absl::Status OnRows(const message::Rows& rows, Pieces payload);
  void AddAskedLocked(RowMessage& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the message with `went_back` as this worker sees it.
  message::Welcome OnWelcome(message::Welcome welcome);

  ServerJob job_;
  bool announces_ = false;   // backup workers, for the server that decides
  bool each_alone_ = false;  // each push is an update by itself
  std::function<void(const message::ToWorker&)> listener_ = [](const message::ToWorker&) {};
  mutable Mutex mutex_;
  CondVar changed_;
  State state_ ABSL_GUARDED_BY(mutex_);
  std::optional<Question> answered_ ABSL_GUARDED_BY(mutex_);
  Span weights_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> weights_received_ ABSL_GUARDED_BY(mutex_);       // by bucket
  std::vector<std::optional<Pending>> pending_ ABSL_GUARDED_BY(mutex_);  // by bucket
  std::vector<Exchange> announced_ ABSL_GUARDED_BY(mutex_);              // of this step, not admitted yet
  std::vector<Exchange> to_send_ ABSL_GUARDED_BY(mutex_);
  struct Ended {
    PsClient::Done done;
    absl::StatusOr<ExchangeResult> result;
  };
  std::vector<Ended> ended_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> resets_ ABSL_GUARDED_BY(mutex_);             // by bucket
  std::map<int64_t, AskedRows> asked_rows_ ABSL_GUARDED_BY(mutex_);  // by request
  int64_t next_request_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t newest_step_ ABSL_GUARDED_BY(mutex_) = -1;  // of an exchange
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;  // ever: an answer may then arrive twice
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
};

// How long a client waits beyond its deadline, so that the server's error, which names who is missing,
// arrives first.
inline constexpr int kServerErrorGraceMs = 2000;

}  // namespace psring
