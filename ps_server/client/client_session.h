// A worker's half of the conversation in messages.h, whatever carries it: which exchanges are in flight,
// where the weights go that come back, and what the conversation has come to. Both clients stand on it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/measure/trace.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/protocol/messages.h"

namespace psring {

// OnChunk, TakeToSend and EndExchanges are called by the client's own thread; the other methods by any.
class ClientSession {
 public:
  // Once, before anything else. `weights`: where Join's weights go.
  absl::Status Begin(const ServerJob& job, Span weights);
  const ServerJob& job() const { return job_; }
  // Where Fetch's weights go, until Await(kFetch) returns. `goes_on`: with them the worker goes on, also
  // where the server went back.
  void ExpectWeights(Span weights, bool goes_on = true);

  // See PsClient. Once, before Begin.
  void OnWord(std::function<void(const ChunkHeader&)> heard) { heard_ = std::move(heard); }

  // What the client has to send next.
  enum class ToSend { kNothing, kGradient, kAnnouncement };

  // Notes an exchange. Where it does not fit, or the session has failed, nothing is to be sent, and
  // EndExchanges is due. With backup workers the last bucket of a step asks for the announcement of them all.
  ToSend Add(const Exchange& exchange, PsClient::Done done);

  // How an exchange is to be sent now. Nothing where it is not to be: it has ended, its server is lost (it
  // comes up in TakeToSend once there is one again), or somebody else sends it already.
  std::optional<ChunkHeader> BeginSending(const Exchange& exchange);

  // A message for the server as it is now.
  ChunkHeader Addressed(ChunkHeader word) const;

  // Takes what the server says. An error means that it does not follow the conversation.
  absl::Status OnChunk(const ChunkHeader& header, Pieces payload);

  // The exchanges that are to be sent now, in this order, because the server has admitted them, asks for them
  // once more, or is there again.
  std::vector<Exchange> TakeToSend();

  // The stream is gone. Nothing is sent until the next Join is answered.
  void OnLost();
  // Since the last answer to Join.
  bool connected() const;
  // For so long the session may be taken up again after its stream was lost, says the server; nothing before
  // its first answer.
  std::optional<absl::Duration> patience() const;
  int64_t start_step() const;
  // Of the server, as it has told last.
  int64_t epoch() const;
  // A push that has been in flight for longer than `timeout`, in words; empty where there is none.
  std::string Overdue(absl::Duration timeout) const;

  // The first failure counts. Wakes those that wait; exchanges end with the next EndExchanges.
  void Fail(const absl::Status& why);
  absl::Status failure() const;
  // Exchanges and questions that were answered so far.
  int64_t answers() const;
  // As if the server had answered a question of that kind.
  void TakeForAnswered(MessageKind kind);
  // Ends the exchanges that have come to an end without an answer: all of them once the session has failed.
  void EndExchanges();

  // Waits for the server's answer of this kind: OK, or the failure. `whom` completes "waited too long for
  // ...". After an error no weights are written any more.
  absl::Status Await(MessageKind kind, absl::Time deadline, const std::string& whom);
  // An answer that came before does not count for the next Await.
  void ExpectAnswer();
  // Where the server went back meanwhile: the step. Until the next ExpectWeights with which the worker goes
  // on.
  std::optional<int64_t> went_back_to() const;

  Traffic traffic() const;

 private:
  struct Pending {
    Exchange exchange;
    PsClient::Done done;
    uint64_t received = 0;
    bool sent = false;  // to the server as it is now, into the sum as it is now
    absl::Time since;
  };

  absl::Status OnWeights(const ChunkHeader& header, Pieces payload);
  absl::Status OnExchange(const ChunkHeader& header, Pieces payload);

  absl::Status OnAdmitted(const ChunkHeader& header);
  absl::Status OnReset(const ChunkHeader& header);
  void OnJoined(const ChunkHeader& header);

  ServerJob job_;
  bool announces_ = false;  // backup workers, at the server that decides
  std::function<void(const ChunkHeader&)> heard_ = [](const ChunkHeader&) {};
  mutable Mutex mutex_;
  CondVar changed_;
  int64_t answers_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::optional<MessageKind> answered_ ABSL_GUARDED_BY(mutex_);
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
  std::vector<uint64_t> resets_ ABSL_GUARDED_BY(mutex_);  // by bucket
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;  // ever: an answer may then come twice
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t start_step_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Duration> patience_ ABSL_GUARDED_BY(mutex_);
  std::optional<int64_t> went_back_to_ ABSL_GUARDED_BY(mutex_);
  Traffic traffic_ ABSL_GUARDED_BY(mutex_);
};

// How long a client waits beyond its deadline for the server to say first whom it misses.
inline constexpr int kServerSpeaksFirstMs = 2000;

}  // namespace psring
