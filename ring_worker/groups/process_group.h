// Collectives over a fixed set of ranks; every rank makes the same calls in the same order.
//
// Return means enqueued: work put on `stream` afterwards sees the result; errors surface at the stream's
// Synchronize or at an event recorded behind the call, and name the peer where that is known.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/device/device.h"
#include "common/measure/trace.h"
#include "common/reduce/reduce.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {

class LinkShaper;

// What a group is, in words that tables and manifests print.
struct GroupInfo {
  int rank = 0;
  int size = 1;
  std::string backend;    // "native", "gloo", "mpi", "nccl"
  std::string algorithm;  // of all-reduce: "ring"
  std::string transport;  // "shm", "tcp", "shm+tcp", "in_process", "cuda_ipc"
  // Among the ranks of this group that stand on this host, and in its network: which one, of how many. Known
  // where MakeProcessGroup or Split made the group.
  int local_rank = 0;
  int local_size = 1;
  bool on_gpu = false;       // takes memory of its rank's GPU as it is; else host memory alone
  bool joins_calls = false;  // AllReduceTogether is more than its calls in a row
  // Calls on a GPU's compute stream may be recorded (recorded_work.h): by all ranks or by none, and each rank
  // replays its recording when the others do; what was recorded must be gone before the group. Where several
  // ranks are threads of a process, launching a recording may wait for another's: then it is not for use.
  bool recordable = false;
  std::string through_host = {};  // why it does not, where it was told of a GPU and might have
};

// For Split: takes part, and is in none of the groups.
inline constexpr int kNoColor = -1;

struct CollectiveCall {
  Collective collective;
  ConstSpan in;
  Span out;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
};

// When a round of a schedule was under way on this rank: from its first transfer's start until its last was
// there. Where a buffer is cut into segments, rounds overlap.
struct RoundTime {
  int round;                         // of the schedule; those in which the rank does nothing are left out
  int64_t begin_ns = 0, end_ns = 0;  // MonotonicNanos
};

// One thread at a time calls everything but Abort.
class ProcessGroup {
 public:
  virtual ~ProcessGroup();

  const GroupInfo& info() const { return info_; }
  int rank() const { return info_.rank; }
  int size() const { return info_.size; }
  int local_rank() const { return info_.local_rank; }
  int local_size() const { return info_.local_size; }

  // `in` and `out` have one count and type; they are the same memory or do not overlap. Counts are in
  // elements; InvalidArgument where they do not fit together.
  absl::Status AllReduce(ConstSpan in, Span out, ReduceOp op, Stream& stream);
  // In place, each as AllReduce, in this order; where the backend can they start together, and what is put on
  // `stream` between them would only part them.
  absl::Status AllReduceTogether(const std::vector<Span>& data, ReduceOp op, Stream& stream);
  // `in` holds size() times as many elements as `out`; this rank gets the rank()-th part of the sum. `out`
  // may be that part of `in`; then the rest of `in` keeps its values.
  absl::Status ReduceScatter(ConstSpan in, Span out, ReduceOp op, Stream& stream);
  // `out` holds size() times as many elements as `in`, rank r's as its r-th part. `in` may be this rank's
  // part of `out`.
  absl::Status AllGather(ConstSpan in, Span out, Stream& stream);
  absl::Status Broadcast(Span data, int root, Stream& stream);
  // Every rank hears of every other.
  absl::Status Barrier(Stream& stream);

  // The ranks that give the same `color` become a group of their own, numbered in the order of `key`, of
  // equal keys in the order of this group, as MPI_Comm_split has it. Every rank calls it, kNoColor or not,
  // while no call of this group is under way; with kNoColor there is no group to get, and null comes back.
  // The part has the whole's backend, algorithm and options, and memory must be registered with it anew; the
  // whole, and the rendezvous that it was made by, outlive it. Errors name the ranks that do not come;
  // FailedPrecondition: the group was made without a rendezvous.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key);

  // Lets peers of this host read `buffer` in place, where the transport can and the buffer is shared memory
  // (Device::AllocateShared); else nothing happens: such memory works too, through a copy. Not a
  // collective. Before the buffer is freed it is to be unregistered, and no call that uses it may be under
  // way on any rank; peers give the memory back when the group ends.
  virtual absl::Status Register(const Buffer& buffer);
  virtual void Unregister(const Buffer& buffer);

  // From now on each call appends its schedule's rounds, as they begin, to `rounds`, from the stream's work;
  // null: no more. While no call is under way. Other people's libraries do not say: of them nothing comes.
  virtual void NoteRounds(std::vector<RoundTime>* rounds);

  // From any thread: every waiting and later call fails with `why`.
  virtual void Abort(absl::Status why) = 0;

  // Payload bytes so far, exact where the backend is ours; derived from its algorithm where it is not.
  virtual Traffic traffic() const = 0;

 protected:
  explicit ProcessGroup(GroupInfo info) : info_(std::move(info)) {}

  // The counts and types of `call` have been checked.
  virtual absl::Status Enqueue(const CollectiveCall& call, Stream& stream) = 0;
  virtual absl::Status EnqueueTogether(const std::vector<CollectiveCall>& calls, Stream& stream);
  virtual absl::Status EnqueueBarrier(Stream& stream) = 0;
  // Every rank comes here at once; `part` is null for one of kNoColor, which gets null.
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> MakePart(Rendezvous* part, int color, int key) = 0;

 private:
  friend absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeProcessGroup(Rendezvous& rendezvous,
                                                                        const struct GroupOptions& options);
  // Finds out who shares this host.
  absl::Status MeetBy(Rendezvous& rendezvous);

  GroupInfo info_;
  Rendezvous* rendezvous_ = nullptr;
  std::unique_ptr<Rendezvous> own_rendezvous_;  // a part's
};

// Which ranks make up the part of `color`, in its order. Pure.
std::vector<int> RanksOfPart(const std::vector<int>& colors, const std::vector<int>& keys, int color);

struct GroupOptions {
  std::string backend = "native";
  std::string algorithm;  // empty: the backend's default ("ring"; others choose themselves)
  // native: auto (between GPUs that reach each other cuda_ipc; else shm on one host, tcp between hosts), shm,
  // tcp, cuda_ipc; mpi: auto, shm, tcp (chosen when mpirun starts the job); gloo: tcp; nccl: auto (as it
  // chooses), tcp
  std::string transport = "auto";
  std::string bind_host = "127.0.0.1";         // an address of this machine that the other ranks can reach
  absl::Duration timeout = absl::Seconds(60);  // of a call without progress
  // Native only.
  size_t segment_bytes = 0;  // a chunk is moved in pieces of this size; 0: what suits the transport
  int sockets_per_peer = 1;
  int socket_buffer_bytes = 0;  // 0: the kernel chooses, and adapts
  // Ranks on a node, for the hierarchical algorithm; with transport auto they share memory, and others do
  // not. 0: those of one host.
  int ranks_per_node = 0;
  const ScheduleTable* schedules = nullptr;  // null: ScheduleRows()
  int gpu = -1;                  // native, nccl: the GPU that this rank's memory is on; -1: it is the host's
  LinkShaper* shaper = nullptr;  // the link that payload over TCP goes through; outlives the group
};

// Every rank calls it with the same options. Waits for all of them, at most as long as the rendezvous does,
// which must outlive the group's parts.
// NotFound: no such backend, or not in this build (says what to install); InvalidArgument: an algorithm or
// transport that the backend does not have (lists those it has).
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeProcessGroup(Rendezvous& rendezvous,
                                                               const GroupOptions& options);

struct BackendRow {
  const char* name;
  const char* summary;
  bool available;       // in this build
  const char* missing;  // what to install where it is not
  // Algorithms that --algorithm takes for a collective; empty where the backend lacks the collective.
  std::vector<std::string> (*algorithms)(Collective collective);
  std::vector<std::string> transports;
};
const std::vector<BackendRow>& Backends();

// What MakeProcessGroup would refuse by looking at the options alone.
absl::Status CheckGroupOptions(const GroupOptions& options, Collective collective);

}  // namespace psring
