// The client of several servers (ps_client.h: MakeShardedPsClient). Private to sharded_client*.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/consistency/common_step.h"
#include "ps_server/protocol/sharding.h"

namespace psring {

class ShardedClient : public PsClient {
 public:
  explicit ShardedClient(std::vector<std::unique_ptr<PsClient>> servers)
      : common_(static_cast<int>(servers.size())), servers_(std::move(servers)) {}
  ~ShardedClient() override;

  // sharded_client.cc
  std::string payload() const override;
  void ShareMemory(const SharedSpan& gradients, const SharedSpan& weights) override;
  void BeginWith(std::vector<ConstSpan> slots) override;
  absl::Status Start(int worker, const ServerJob& job, Span weights, absl::Time deadline) override;
  int64_t start_step() const override { return start_step_; }
  void PushPull(const Exchange& exchange, Done done) override;
  absl::StatusOr<std::optional<int64_t>> Barrier(int number, absl::Time deadline) override;
  absl::Status Fetch(Span weights, absl::Time deadline) override;
  absl::StatusOr<bool> FetchState(int slot, Span values, absl::Time deadline) override;
  absl::Status Leave(absl::Time deadline) override;
  void Abort(absl::Status why) override { Fail(why); }
  Traffic traffic() const override;
  void OnWord(std::function<void(const ChunkHeader&)>) override {}  // nobody stands above
  void Tell(const ChunkHeader& word) override;

 private:
  // An exchange of all servers, until the last has answered.
  struct Joint {
    Joint(Done its_done, size_t servers) : done(std::move(its_done)), left(servers) {
      result.server_staleness.resize(servers);
    }
    const Done done;
    Mutex mutex;
    size_t left ABSL_GUARDED_BY(mutex);
    bool any ABSL_GUARDED_BY(mutex) = false;
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

  // While it lives, a thread of one server's client may turn to the others.
  class Speaking {
   public:
    explicit Speaking(ShardedClient& client);
    ~Speaking();

   private:
    ShardedClient& client_;
  };

  int count() const { return static_cast<int>(servers_.size()); }
  absl::Status Named(int server, const absl::Status& status) const;
  absl::Status failure();

  // Calls `call(server)` for all at once; the first error in time ends the others.
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

  // The server's slices: `visit(where in `part`, where in the whole, how many)`.
  template <typename Visit>
  void ForEachSlice(int server, const ServerJob& shard, std::vector<float>& part, const Visit& visit) const {
    for (size_t bucket = 0; bucket < shard.buckets.size(); ++bucket) {
      const BucketSlice& slice = slices_[server][bucket];
      visit(part.data() + shard.buckets[bucket].first, job_.buckets[bucket].first + slice.first, slice.count);
    }
  }
  using FetchPart = std::function<absl::Status(int server, Span part)>;
  absl::Status FetchParts(Span whole, const FetchPart& fetch);
  void Gather(int server, const ServerJob& shard, ConstSpan whole, std::vector<float>& part) const;
  void Scatter(int server, const ServerJob& shard, std::vector<float>& part, Span weights) const;
  void Send(int server, const Part& part);
  // On a thread of the server's client.
  void Arrived(int server, const Part& part, absl::StatusOr<ExchangeResult> result);
  HeldParts TakeHeldLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first failure counts. Ends the conversation with every server, and what was held for a verdict.
  void Fail(const absl::Status& why);

  // sharded_client_words.cc: what one server says, carried to the others. On the thread of that server's
  // client.
  void OnWordOf(int server, const ChunkHeader& word);
  // Adds up the servers' parts, in their order, and tells each the total. Where another worker was faster, a
  // part may come after the step's weights, and even among those of the next step.
  void OnPartOfNorm(int server, const ChunkHeader& word);
  // Tells the other servers the first one's verdict on a step, once, and then sends them what was held for
  // it.
  void Carry(const ChunkHeader& verdict);
  // A server begins: for the first time, after its death, or because it was told to go back. Or only this
  // worker's stream was broken.
  void OnJoined(int server, const ChunkHeader& word);

  // sharded_client_begin.cc: with which step this worker begins, and begins again.
  absl::Status AgreeOnStart(Span weights, absl::Time deadline);
  void OnBegin(int server, const ChunkHeader& word);
  // Whom to tell what, so that all begin at one step.
  struct Call {
    std::vector<int> servers;
    ChunkHeader word;
  };
  Call CallBackLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellToGoBack(const Call& call);
  // Its gradient has no part in anything; with which step its worker goes on is known once all servers agree.
  void GoBack(const std::shared_ptr<Joint>& joint);
  absl::Status AwaitAgreement(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  int worker_ = 0;
  ServerJob job_;
  std::vector<ConstSpan> slots_;                  // worker 0's, until Start has returned
  std::vector<std::vector<BucketSlice>> slices_;  // by server, by bucket
  bool carries_verdicts_ = false;                 // backup workers
  int64_t start_step_ = 0;

  Mutex mutex_;
  CondVar changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // once it is set, no word is listened to
  int speaking_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, NormParts> norms_ ABSL_GUARDED_BY(mutex_);  // by step
  std::optional<ChunkHeader> total_ ABSL_GUARDED_BY(mutex_);    // of the newest norm
  HeldParts held_ ABSL_GUARDED_BY(mutex_);                      // until the first server has decided
  bool started_ ABSL_GUARDED_BY(mutex_) = false;                // all servers have let this worker in
  bool goes_back_ ABSL_GUARDED_BY(mutex_) =
      false;  // until Fetch: what is pushed is of a step that is given up
  CommonStep common_ ABSL_GUARDED_BY(mutex_);
  Joints given_up_ ABSL_GUARDED_BY(mutex_);  // until all servers agree

  const std::vector<std::unique_ptr<PsClient>> servers_;  // last: their threads use the above
};

}  // namespace psring
