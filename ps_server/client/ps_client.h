// A worker's interface to its parameter servers: pushes a bucket's gradient and gets the updated weights.
// Each bucket has at most one exchange in flight; many buckets may.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/device/device.h"
#include "common/measure/trace.h"
#include "common/net/job_secret.h"
#include "common/net/link_shaper.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/row_messages.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

struct Exchange {
  int bucket = 0;
  int64_t step = 0;
  int64_t samples = 0;   // in the gradient, which is summed over them
  ConstSpan gradient;    // of the job's wire type; must not change until `done` has run
  Span weights;          // written before `done` runs
  bool dropped = false;  // by another server's verdict: nothing is sent, but weights are received
};

struct ExchangeResult {
  int64_t version = 0;    // of the received weights
  int64_t staleness = 0;  // version before this push's update minus the version its gradient was computed on
  std::vector<int64_t> server_staleness = {};  // of each of several servers; `staleness` is the maximum
  // Backup workers: the gradient came too late and is in no update. The same in all buckets of the step, with
  // the same version, which is the step to continue with. Otherwise continue with the next step.
  bool dropped = false;
  // The server restarted with older weights, of this version, which is the step to go back to. Nothing was
  // written; Fetch returns the weights.
  bool went_back = false;
  bool on_gpu = false;  // the weights were written on the GPU, and not to the host's memory
};

// How gradients and weights travel. kAuto: through shared memory if worker and server have some in common (of
// GPUs if both compute on them, else of the host), else over gRPC.
enum class Payload { kAuto, kGrpc, kShared };
// From the value of --transport: "auto", "tcp" (gRPC) or "shm".
absl::StatusOr<Payload> ParsePayload(const std::string& transport);

// Memory of the caller that other processes may map. `fd`: its file, of which `data` is the first byte.
// `on_gpu`: a handle of GPU memory with the same contents at the same offsets (cuda_device.h); empty: none.
struct SharedSpan {
  Span span;
  int fd = -1;
  std::string on_gpu = {};
};

// A worker's memory at the start.
struct WorkerBuffers {
  Span weights;  // worker 0: version 0. Other workers: overwritten with it
  // Worker 0: initial slots of the optimizer, each as large as the weights; empty: zero. Used only by Start.
  std::vector<ConstSpan> slots = {};
  // All gradients and weights of later exchanges. A server on this host reads and writes them without copies,
  // possibly for a moment after an exchange has failed; the memory outlives the client. If the payload is
  // "cuda_ipc", a server on a GPU reads gradients from the caller's GPU: they must be complete there when
  // PushPull is called. `fd` -1: not shared.
  SharedSpan shared_gradients = {}, shared_weights = {};
};

struct ClientStatus {
  // "grpc", "tcp" (its own connection), "shm", "cuda_ipc"; several servers may be "mixed"
  std::string_view payload;
  absl::InlinedVector<std::string_view, 4> wires = {};  // of all servers, each once (common/measure/wires.h)
  // The first step to make. Above 0 if the job had begun before; then worker 0's weights are the server's.
  int64_t start_step = 0;
  Traffic traffic;
};

// Host memory only. Abort, status: any thread. Others: one thread at a time.
class PsClient {
 public:
  using Done = std::function<void(absl::StatusOr<ExchangeResult>)>;

  virtual ~PsClient() = default;

  // Joins the job. Returns when all workers have joined; the error names those that have not by the deadline,
  // or the field of `job` that differs.
  virtual absl::Status Start(int worker, const ServerJob& job, const WorkerBuffers& memory,
                             MonotonicTime deadline) = 0;

  // Enqueues and returns. All workers push the buckets of a step in the same order; with backup workers
  // nothing is sent before the last one. `done` runs once, on a thread of the client, in the order of
  // completion; it must not block. Errors: a lost server, the loss of another worker, a refused push.
  virtual void PushPull(const Exchange& exchange, Done done) = 0;
  // Likewise, but waits for the answer; the server's timeout ends the wait.
  absl::Status PushPullAndWait(const Exchange& exchange) {
    Mutex mutex;
    CondVar changed;
    std::optional<absl::Status> outcome;
    PushPull(exchange, [&](const absl::StatusOr<ExchangeResult>& result) {
      MutexLock lock(mutex);
      outcome = result.status();
      changed.NotifyAll();
    });
    MutexLock lock(mutex);
    while (!outcome.has_value()) changed.Wait(mutex);
    return *outcome;
  }

  // Waits until all workers have called it with this number (0: before the first step; 1: before the measured
  // steps; 2: after the last step), or have left or are lost. Does not wait at 0 and 1 if the job has passed
  // them before. Returns a step if the server went back to it; this worker must then do the same, after a
  // Fetch. No exchange may be in flight.
  virtual absl::StatusOr<std::optional<int64_t>> Barrier(int number, MonotonicTime deadline) = 0;

  // Reads the server's weights (`slot` 0) or a slot of the optimizer (from 1, OptimizerSlots). `resumes`: the
  // worker continues with them, also if the server went back. False: the server went back and the worker has
  // not resumed, so the values are of an earlier step; the next exchange or Barrier reports it too. No
  // exchange may be in flight.
  struct ReadRequest {
    Span values;
    int slot = 0;
    bool resumes = false;
  };
  virtual absl::StatusOr<bool> Read(const ReadRequest& request, MonotonicTime deadline) = 0;
  // The current weights, of any version, to continue with.
  absl::Status Fetch(Span weights, MonotonicTime deadline) {
    return Read({.values = weights, .resumes = true}, deadline).status();
  }

  // Leaves the job, so that the end of this process is not a loss. No exchange may be in flight.
  virtual absl::Status Leave(MonotonicTime deadline) = 0;

  virtual void Abort(absl::Status why) = 0;

  virtual ClientStatus status() const = 0;  // after Start

  // For a job with tables, of which it has no row anywhere else: a worker pulls the rows that its next batch
  // looks up, and pushes their gradient. After Start.

  // Synchronous servers answer with the rows after the updates of all steps before `step`; others with the
  // current ones. Waits for the answer.
  virtual absl::Status Pull(int64_t step, absl::Span<const RowPull> pulls, MonotonicTime deadline) = 0;
  // The gradient of step `step`, a sum over `samples` samples, at most once per table. Copies the rows and
  // returns; a failure is returned by a later call. Synchronous: every worker calls it once in every step.
  virtual void Push(int64_t step, int64_t samples, absl::Span<const RowPush> pushes) = 0;
  // Worker 0, before the first step of a job with `row_arrays`: the next rows of a table and slot, in order
  // and without gaps. Waits until the servers have them. All pulls wait for the last row.
  virtual absl::Status Put(const RowPut& put, MonotonicTime deadline) = 0;
};

// A client of one server. With several servers, a ShardedClient relays messages between them.
class OneServerClient : public PsClient {
 public:
  // `listener` gets the messages that concern other servers too: Welcome, Admitted, NormPart and Left. It
  // runs on a thread of the client, before anything that follows from the message, and must not block. Set
  // before Start.
  virtual void SetListener(std::function<void(const message::ToWorker&)> listener) = 0;
  // Sends a message without payload, unless the server is lost at the moment. Any thread.
  virtual void Send(const message::ToServer& message) = 0;
};

struct GrpcClientOptions {
  JobSecret secret;  // of the server's job
  Payload payload = Payload::kAuto;
  // Gradients and weights that are not in shared memory are on a TCP connection of their own, instead of
  // gRPC's stream.
  bool own_connection = false;
  // The server's --timeout. A push waits twice as long for its answer, not counting the time spent
  // reconnecting, so that the server can name a missing worker first.
  absl::Duration reply_timeout = absl::InfiniteDuration();
  // How long to reconnect to a server that is lost before its Welcome, which contains the duration.
  absl::Duration patience = absl::ZeroDuration();
  // Returns the server's current address if it has moved; empty: it does not move. Runs on the client's
  // thread, and on the thread of Start.
  std::function<absl::StatusOr<std::string>()> find_again;
  LinkEnd link = {};  // of this machine; its shaper outlives the client
};

// For the server that published `address`. kShared: Start fails if the two share no memory. Training programs
// should call KeepFreedMemory() once (common/base/own_process.h): it makes this client up to twice as fast.
std::unique_ptr<OneServerClient> MakeGrpcPsClient(const std::string& address, GrpcClientOptions options);

// One client of several servers, each with a slice of every bucket (sharding.h). An exchange goes to all
// servers at once; `done` runs when the last has answered, on that client's thread. Each server keeps its own
// versions and staleness: a result has the version of the first, the highest staleness, and the staleness of
// each server. Errors name the server; the first one ends the sessions with all.
//
// The servers do not know each other. Each worker relays what one server decides for all: which gradients are
// in a step (backup workers), the norm of the whole gradient, the step to which a synchronous job goes back.
//
// `servers`: one client per server, in order, not started. With one server, returns its client.
std::unique_ptr<PsClient> MakeShardedPsClient(std::vector<std::unique_ptr<OneServerClient>> servers);

}  // namespace psring
