// A worker's side of the parameter server: one exchange (push a bucket's gradient, get the weights it led to)
// at a time per bucket, many buckets in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/device/device.h"
#include "common/measure/trace.h"
#include "common/net/link_shaper.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

class ParameterServer;

struct Exchange {
  int bucket = 0;
  int64_t step = 0;
  int64_t samples = 0;   // in the gradient, which is their sum
  ConstSpan gradient;    // of the job's wire type; must stay as it is until `done` has run
  Span weights;          // written before `done` runs
  bool dropped = false;  // by another server's verdict: nothing is sent, and the weights come all the same
};

struct ExchangeResult {
  int64_t version = 0;    // of the weights that came back
  int64_t staleness = 0;  // version before this push's update minus the version its gradient was computed on
  std::vector<int64_t> server_staleness = {};  // of several servers: each one's, and `staleness` the most
  // Backup workers: the gradient came too late and has no part in the weights. All buckets of the step say
  // so, and the same version, which is the step to go on with. Otherwise that is the next.
  bool dropped = false;
  // The server came back from its death with older weights, of this version, which is the step to go back to;
  // nothing was written, and a Fetch brings the weights.
  bool went_back = false;
  bool on_gpu = false;  // the weights were written on the GPU, and not to the host's side
};

// How a worker's gradients and weights travel. kAuto: through shared memory where it turns out that worker
// and server have some in common (of GPUs where both compute on them, else of the host), else over gRPC.
enum class Payload { kAuto, kGrpc, kShared };
// From the value of --transport: "auto", "tcp" (gRPC) or "shm".
absl::StatusOr<Payload> ParsePayload(const std::string& transport);

// Memory of the caller's that other processes may map. `fd`: its file, of which `data` is the first byte.
// `on_gpu`: what of this stands on a GPU, at the same offsets, as a handle for other processes
// (cuda_sharing.h); empty: nothing does.
struct SharedSpan {
  Span span;
  int fd = -1;
  std::string on_gpu = {};
};

// Host memory only. PushPull and Fetch: one thread at a time; Abort: any thread.
class PsClient {
 public:
  using Done = std::function<void(absl::StatusOr<ExchangeResult>)>;

  virtual ~PsClient() = default;
  virtual std::string payload() const = 0;  // after Start: "grpc", "shm", "in_process", "cuda_ipc"

  // Before Start: where the gradients and weights of all buckets will stand. A server on this host then works
  // in this memory itself, without copies on the way; it may also do so for a moment after an exchange has
  // failed. The memory outlives the client. Where `payload` says "cuda_ipc" afterwards, a server on a GPU
  // reads gradients from the caller's GPU: they must be complete there when PushPull is called. The result
  // says on which side the weights are.
  virtual void ShareMemory(const SharedSpan& gradients, const SharedSpan& weights) = 0;

  // Before Start, on worker 0: what the optimizer begins with, each slot as large as the weights. The memory
  // outlives Start.
  virtual void BeginWith(std::vector<ConstSpan> slots) = 0;

  // Announces this worker. Worker 0's `weights` become version 0; the others' are overwritten with them.
  // Returns when all workers have joined; the error names those that have not by the deadline, or the field
  // of `job` that differs.
  virtual absl::Status Start(int worker, const ServerJob& job, Span weights, absl::Time deadline) = 0;
  // After Start: the first step to make. Above 0 where the job had begun before: then worker 0's weights are
  // the server's, too.
  virtual int64_t start_step() const = 0;

  // Enqueues and returns. Buckets of a step go in the same order on every worker; with backup workers nothing
  // is sent before the last of them is here. `done` runs once, on a
  // thread of the client, in the order of completion; it must not block. Errors: a lost server, another
  // worker's loss, a refused push.
  virtual void PushPull(const Exchange& exchange, Done done) = 0;

  // Waits until all workers have called it with this number (0: before the first step; 1: before what is
  // measured; 2: after the last step), or have left or are lost. Nobody waits at 0 and 1 where they were
  // passed before. A step: the server went back to it meanwhile, and so must this worker, after a Fetch. Call
  // it with no exchange in flight.
  virtual absl::StatusOr<std::optional<int64_t>> Barrier(int number, absl::Time deadline) = 0;

  // The server's current weights, whatever their version. Call it with no exchange in flight.
  virtual absl::Status Fetch(Span weights, absl::Time deadline) = 0;

  // For a checkpoint: likewise the weights (`slot` 0) or a slot of the optimizer, counted from 1
  // (OptimizerSlots). False: the server went back meanwhile, and these are of an earlier step; the next
  // exchange or Barrier says so, too.
  virtual absl::StatusOr<bool> FetchState(int slot, Span values, absl::Time deadline) = 0;

  // Says that this worker is done, so that its leaving is no loss. Call it with no exchange in flight.
  virtual absl::Status Leave(absl::Time deadline) = 0;

  virtual void Abort(absl::Status why) = 0;

  virtual Traffic traffic() const = 0;

  // For a client of several servers, which carries word from one to the others (MakeShardedPsClient). `heard`
  // gets what a server says that concerns them too: on a thread of the client, before anything that follows
  // from it; it must not block. Set it before Start. Every answer to Join is such a word.
  virtual void OnWord(std::function<void(const ChunkHeader&)> heard) = 0;
  // Sends a message without payload, where the server is not lost just now. From any thread.
  virtual void Tell(const ChunkHeader& word) = 0;
};

struct GrpcClientOptions {
  Payload payload = Payload::kAuto;
  // How long a push may wait for its answer, the time in which a lost server is looked for not counted.
  absl::Duration reply_timeout = absl::InfiniteDuration();
  // How long a server may be looked for that is lost before it has answered the Join; it then says so itself.
  absl::Duration patience = absl::ZeroDuration();
  // Where the server is to be found where it is not at its address any more; empty: nowhere else. On the
  // client's thread, and on that of Start.
  std::function<absl::StatusOr<std::string>()> find_again;
  LinkEnd link = {};  // this machine's; its shaper outlives the client
};

// To the server at "host:port", over gRPC. kShared: Start fails where the two share no memory. Programs that
// train call KeepFreedMemory() once (keep_freed_memory.h): it makes this client up to twice as fast.
std::unique_ptr<PsClient> MakeGrpcPsClient(const std::string& address, Payload payload = Payload::kAuto);
std::unique_ptr<PsClient> MakeGrpcPsClient(const std::string& address, GrpcClientOptions options);
// Straight into `server`, which must outlive it: the server minus the wire, for tests and for threads of one
// process.
std::unique_ptr<PsClient> MakeDirectPsClient(ParameterServer& server);

// One client of several servers, each of which holds a slice of every bucket (sharding.h). An exchange goes
// to all at once, and `done` runs when the last has answered, on that client's thread. Versions and staleness
// are kept by each server for itself: a result has the lowest version, the most staleness, and every
// server's. Errors name the server; the first ends the conversation with all, so that nobody waits for an
// answer that will not come.
//
// The servers do not know each other: what one decides for all (whose gradient is in a step, with backup
// workers; the norm of the whole gradient; to which step a synchronous job goes back) each worker carries to
// the others.
//
// `servers`: a client each, in the order of the servers' numbers; not started. With one it is that client.
std::unique_ptr<PsClient> MakeShardedPsClient(std::vector<std::unique_ptr<PsClient>> servers);

}  // namespace psring
