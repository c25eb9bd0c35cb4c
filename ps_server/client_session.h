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
#include "common/mutex.h"
#include "common/trace.h"
#include "ps_server/messages.h"
#include "ps_server/ps_client.h"

namespace psring {

// OnChunk, TakeAdmitted and FailPending are called by the client's own thread; the other methods by any.
class ClientSession {
 public:
  // Once, before anything else. `weights`: where Join's weights go.
  absl::Status Begin(const ServerJob& job, Span weights);
  const ServerJob& job() const { return job_; }
  // Where Fetch's weights go, until Await(kFetch) returns.
  void ExpectWeights(Span weights);

  // See PsClient. Once, before Begin.
  void OnWord(std::function<void(const ChunkHeader&)> heard) { heard_ = std::move(heard); }

  // What the client has to send next.
  enum class ToSend { kNothing, kGradient, kAnnouncement };

  // Notes an exchange. Where it does not fit, or the session has failed, nothing is to be sent, and
  // FailPending is due. With backup workers the last bucket of a step asks for the announcement of them all.
  ToSend Add(const Exchange& exchange, PsClient::Done done);

  // Takes what the server says. An error means that it does not follow the conversation.
  absl::Status OnChunk(const ChunkHeader& header, Pieces payload);

  // The exchanges whose gradients the server has admitted since the last call: to be sent now, in this order.
  std::vector<Exchange> TakeAdmitted();

  // The first failure counts. Wakes those that wait; exchanges end with the next FailPending.
  void Fail(const absl::Status& why);
  absl::Status failure() const;
  // Ends the exchanges that cannot be: all of them once the session has failed.
  void FailPending();

  // Waits for the server's answer of this kind: OK, or the failure. `whom` completes "waited too long for
  // ...". After an error no weights are written any more.
  absl::Status Await(MessageKind kind, absl::Time deadline, const std::string& whom);

  Traffic traffic() const;

 private:
  struct Pending {
    Exchange exchange;
    PsClient::Done done;
    uint64_t received = 0;
  };

  absl::Status OnWeights(const ChunkHeader& header, Pieces payload);
  absl::Status OnExchange(const ChunkHeader& header, Pieces payload);

  absl::Status OnAdmitted(const ChunkHeader& header);

  ServerJob job_;
  bool announces_ = false;  // backup workers, at the server that decides
  std::function<void(const ChunkHeader&)> heard_ = [](const ChunkHeader&) {};
  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::optional<MessageKind> answered_ ABSL_GUARDED_BY(mutex_);
  Span weights_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> weights_received_ ABSL_GUARDED_BY(mutex_);       // by bucket
  std::vector<std::optional<Pending>> pending_ ABSL_GUARDED_BY(mutex_);  // by bucket
  std::vector<Exchange> announced_ ABSL_GUARDED_BY(mutex_);              // of this step, not admitted yet
  std::vector<Exchange> admitted_ ABSL_GUARDED_BY(mutex_);
  struct Refused {
    PsClient::Done done;
    absl::Status why;
  };
  std::vector<Refused> refused_ ABSL_GUARDED_BY(mutex_);
  Traffic traffic_ ABSL_GUARDED_BY(mutex_);
};

// How long a client waits beyond its deadline for the server to say first whom it misses.
inline constexpr int kServerSpeaksFirstMs = 2000;

}  // namespace psring
