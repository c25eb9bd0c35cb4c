// The client of several servers (ps_client.h: MakeShardedPsClient). Private to sharded_client*.cc.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/consistency/common_step.h"
#include "ps_server/protocol/sharding.h"

namespace psring {

class ShardedClient : public PsClient {
 public:
  explicit ShardedClient(std::vector<std::unique_ptr<OneServerClient>> servers)
      : held_(servers.size()), common_(static_cast<int>(servers.size())), servers_(std::move(servers)) {}
  ~ShardedClient() override;

  // sharded_client.cc
  absl::Status Start(int worker, const ServerJob& job, const WorkerBuffers& memory,
                     MonotonicTime deadline) override;
  void PushPull(const Exchange& exchange, Done done) override;
  absl::StatusOr<std::optional<int64_t>> Barrier(int number, MonotonicTime deadline) override;
  absl::StatusOr<bool> Read(const ReadRequest& request, MonotonicTime deadline) override;
  absl::Status Leave(MonotonicTime deadline) override;
  void Abort(absl::Status why) override { Fail(why); }
  ClientStatus status() const override;

  // sharded_client_rows.cc: row r is row r / servers of server r % servers.
  absl::Status Pull(int64_t step, absl::Span<const RowPull> pulls, MonotonicTime deadline) override;
  void Push(int64_t step, int64_t samples, absl::Span<const RowPush> pushes) override;
  absl::Status Put(const RowPut& put, MonotonicTime deadline) override;

 private:
  // An exchange of all servers, until the last has answered.
  struct Joint {
    Joint(Done its_done, size_t servers) : done(std::move(its_done)), left(servers) {
      result.server_staleness.resize(servers);
    }
    const Done done;
    Mutex mutex;
    size_t left ABSL_GUARDED_BY(mutex);
    ExchangeResult result ABSL_GUARDED_BY(mutex);
    absl::Status failure ABSL_GUARDED_BY(mutex);
  };
  using Joints = std::vector<std::shared_ptr<Joint>>;
  struct NormParts {
    std::vector<double> parts;  // by server
    size_t arrived = 0;
  };
  struct Part {
    Exchange exchange;
    std::shared_ptr<Joint> joint;
  };
  using HeldParts = std::vector<std::vector<Part>>;  // by server

  // While the result exists, a thread of one server's client may use the others.
  auto Relaying() {
    const auto add = [this](int one) {
      MutexLock lock(mutex_);
      relaying_ += one;
      changed_.NotifyAll();
    };
    add(1);
    return absl::Cleanup([add] { add(-1); });
  }

  int count() const { return static_cast<int>(servers_.size()); }
  size_t WidthOf(int table) const;
  absl::Status Named(int server, const absl::Status& status) const;
  absl::Status failure();

  // Calls `call(server)` for all servers concurrently; the first error aborts the others.
  template <typename Call>
  absl::Status OnEach(const Call& call) {
    std::vector<std::thread> threads;
    for (int server = 0; server < count(); ++server) {
      threads.emplace_back([this, &call, server] {
        if (absl::Status status = Named(server, call(server)); !status.ok()) Fail(status);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return failure();
  }

  // The server's slices of all parameters, from `whole` to `part` and back.
  void Gather(int server, const ServerJob& shard, ConstSpan whole, std::vector<float>& part) const;
  void Scatter(int server, const ServerJob& shard, const std::vector<float>& part, Span whole) const;
  void Send(int server, const Part& part);
  // On a thread of the server's client.
  void Arrived(int server, const Part& part, absl::StatusOr<ExchangeResult> result);
  HeldParts TakeHeldLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first failure is kept. Ends the session with every server, and exchanges held for a verdict.
  void Fail(const absl::Status& why);

  // sharded_client_relay.cc. Messages of one server relayed to the others, on the thread of that server's
  // client.
  void OnMessage(int server, const message::ToWorker& message);
  // Adds up the servers' parts, in the order of servers, and sends each server the total. If another worker
  // was faster, a part may arrive after the step's weights, even among those of the next step.
  void OnNormPart(int server, const message::NormPart& part);
  // Sends the other servers the first one's verdict on a step, once, and then what was held for it.
  void Relay(const message::Announcement& verdict);
  // A server begins: for the first time, after a restart, or after a Rewind. Or this worker has reconnected.
  void OnWelcome(int server, const message::Welcome& welcome);

  // Determines the step with which this worker begins, at the start and after going back.
  absl::Status AgreeOnStart(Span weights, MonotonicTime deadline);
  void OnBegin(int server, const message::Welcome& welcome);
  // The Rewind to send, and its servers, so that all begin at one step.
  struct RewindCall {
    std::vector<int> servers;
    message::Rewind message;
  };
  RewindCall RewindsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // While goes_back_: whether the step to go back to is known, and the step.
  bool AgreedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return each_alone_ || common_.agreed(); }
  int64_t StepLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return each_alone_ ? next_step_ : common_.step();
  }
  void SendRewinds(const RewindCall& call);
  // Ends an exchange whose gradient is in no update, once all servers agree on the worker's next step.
  void GoBack(const std::shared_ptr<Joint>& joint);
  absl::Status AwaitAgreement(MonotonicTime deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  int worker_ = 0;
  ServerJob job_;
  std::vector<std::vector<BucketSlice>> slices_;  // by server, by bucket
  bool relays_verdicts_ = false;                  // backup workers
  bool each_alone_ = false;                       // each push is an update by itself
  int64_t start_step_ = 0;

  Mutex mutex_;
  CondVar changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // once set, messages are ignored
  int relaying_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, NormParts> norms_ ABSL_GUARDED_BY(mutex_);       // by step
  std::optional<message::NormTotal> total_ ABSL_GUARDED_BY(mutex_);  // the newest
  HeldParts held_ ABSL_GUARDED_BY(mutex_);                           // until the first server has decided
  bool started_ ABSL_GUARDED_BY(mutex_) = false;                     // this worker has joined all servers
  bool goes_back_ ABSL_GUARDED_BY(mutex_) = false;  // until Read: pushes are of an abandoned step
  CommonStep common_ ABSL_GUARDED_BY(mutex_);       // unless each_alone_
  // each_alone_: of the newest exchange; while goes_back_, the first step that a server lacks.
  int64_t next_step_ ABSL_GUARDED_BY(mutex_) = 0;
  Joints abandoned_ ABSL_GUARDED_BY(mutex_);  // until all servers agree

  const std::vector<std::unique_ptr<OneServerClient>> servers_;  // last: their threads use the above
};

}  // namespace psring
