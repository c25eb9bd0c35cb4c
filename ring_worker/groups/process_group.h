// Collectives over a fixed set of ranks; every rank makes the same calls in the same order.
//
// A call returns when it is enqueued: later work on `stream` sees the result. The stream's Synchronize, or an
// event recorded after the call, returns errors, which name the peer if it is known.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/device/device.h"
#include "common/kernels/reduce.h"
#include "common/measure/trace.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {

class LinkShaper;

// A description of a group for tables and manifests.
struct GroupInfo {
  int rank = 0;
  int size = 1;
  std::string backend;                  // "native", "gloo", "mpi", "nccl"
  std::string algorithm;                // of GroupOptions::collective: "ring", "hierarchical:4"
  std::string transport;                // "shm", "tcp", "shm+tcp", "cuda_ipc"
  std::vector<std::string> wires = {};  // of this rank's payload (common/measure/wires.h)
  // This rank's number among the group's ranks on this host and in its network namespace, and their number.
  // Set by MakeProcessGroup and Split.
  int local_rank = 0;
  int local_size = 1;
  bool on_gpu = false;       // accepts memory of its rank's GPU; otherwise only host memory
  bool joins_calls = false;  // AllReduceTogether is faster than the separate calls
  // Calls on a GPU's compute stream may be recorded (recorded_work.h), by all ranks or by none. Ranks replay
  // together, and recordings must be destroyed before the group. Not if several ranks are threads of one
  // process: launching one rank's recording may wait for another's.
  bool recordable = false;
  std::string through_host = {};  // why on_gpu is false although it was given a GPU
};

// For Split: takes part without joining any of the groups.
inline constexpr int kNoColor = -1;

struct CollectiveCall {
  Collective collective;
  ConstSpan in;
  Span out;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
};

// When a round of a schedule was in progress on this rank: from the start of its first transfer until the end
// of its last. With several segments rounds overlap.
struct RoundTime {
  int round;                         // of the schedule; rounds without transfers of this rank are omitted
  int64_t begin_ns = 0, end_ns = 0;  // MonotonicNanos
};

// Everything except Abort is called by one thread at a time.
class ProcessGroup {
 public:
  virtual ~ProcessGroup();

  const GroupInfo& info() const { return info_; }
  int rank() const { return info_.rank; }
  int size() const { return info_.size; }
  int local_rank() const { return info_.local_rank; }
  int local_size() const { return info_.local_size; }

  // `in` and `out` have the same count and type; they are the same memory or do not overlap. Counts are in
  // elements; InvalidArgument if they do not match.
  absl::Status AllReduce(ConstSpan in, Span out, ReduceOp op, Stream& stream);
  // In-place AllReduce calls, in this order. Backends that support it start them together (joins_calls).
  absl::Status AllReduceTogether(const std::vector<Span>& data, ReduceOp op, Stream& stream);
  // `in` holds size() times as many elements as `out`; this rank gets the rank()-th part of the sum. `out`
  // may be that part of `in`; then the rest of `in` keeps its values.
  absl::Status ReduceScatter(ConstSpan in, Span out, ReduceOp op, Stream& stream);
  // `out` holds size() times as many elements as `in`, with rank r's as its r-th part. `in` may be this
  // rank's part of `out`.
  absl::Status AllGather(ConstSpan in, Span out, Stream& stream);
  absl::Status Broadcast(Span data, int root, Stream& stream);
  // `in` and `out` have the same type and count, a multiple of size(), and do not overlap. Of size() equal
  // blocks, rank i's j-th becomes rank j's i-th.
  absl::Status AllToAll(ConstSpan in, Span out, Stream& stream);
  // Work on `stream` after this waits until every rank has reached its Barrier.
  virtual absl::Status Barrier(Stream& stream) = 0;

  // Ranks that pass the same `color` form a new group, ordered by `key` and then by their order in this
  // group, as in MPI_Comm_split. Collective, also for kNoColor (which returns null), while no call of this
  // group is in progress. The part has this group's backend, algorithm and options; memory must be registered
  // with it separately. This group and its rendezvous must outlive the part. Errors name missing ranks;
  // FailedPrecondition: the group was made without a rendezvous.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key);

  // From any thread: every pending and later call fails with `why`.
  virtual void Abort(absl::Status why) = 0;

  // Payload bytes so far, exact for psring's own backend; derived from the algorithm for others.
  virtual Traffic traffic() const = 0;

 protected:
  explicit ProcessGroup(GroupInfo info) : info_(std::move(info)) {}

  // The counts and types of `call` have been checked.
  virtual absl::Status Enqueue(const CollectiveCall& call, Stream& stream) = 0;
  virtual absl::Status EnqueueTogether(const std::vector<CollectiveCall>& calls, Stream& stream);
  // Collective; `part` is null for a rank of kNoColor, which gets null.
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> MakePart(Rendezvous* part, int color, int key) = 0;

 private:
  friend absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeProcessGroup(Rendezvous& rendezvous,
                                                                        const struct GroupOptions& options);
  // Determines local_rank and local_size.
  absl::Status MeetBy(Rendezvous& rendezvous);

  GroupInfo info_;
  Rendezvous* rendezvous_ = nullptr;
  std::unique_ptr<Rendezvous> own_rendezvous_;  // a part's
};

// What psring's own groups offer beyond ProcessGroup; callers ask by dynamic_cast.
class MemoryRegistration {
 public:
  // Lets peers of this host read `buffer` in place, if the transport supports it and the buffer is shared
  // memory (Device::AllocateShared); otherwise it has no effect, and the memory is copied. Not collective.
  // Unregister the buffer before freeing it, while no call on any rank uses it; peers unmap it when the group
  // ends.
  virtual absl::Status Register(const Buffer& buffer) = 0;
  virtual void Unregister(const Buffer& buffer) = 0;

 protected:
  ~MemoryRegistration() = default;
};

class RoundRecording {
 public:
  // From the next call on, appends the rounds of each call's schedule to `rounds` as they begin, in stream
  // order; null: stops. Call it while no call is in progress.
  virtual void NoteRounds(std::vector<RoundTime>* rounds) = 0;

 protected:
  ~RoundRecording() = default;
};

// Beside `in` and `out`, ReduceScatter needs memory for sums, because the rest of `in` keeps its values.
class ScatterScratch {
 public:
  // For calls with up to `bytes` of `in`, which would otherwise allocate it. Call it while no call is in
  // progress.
  virtual absl::Status ReserveScratch(size_t bytes) = 0;
  // All that was allocated; the same.
  virtual size_t scratch_bytes() const = 0;

 protected:
  ~ScatterScratch() = default;
};

// The ranks of the part of `color`, in its order. Pure.
std::vector<int> RanksOfPart(const std::vector<int>& colors, const std::vector<int>& keys, int color);

struct GroupOptions {
  std::string backend = "native";
  // Which `algorithm` is for. Collectives that it does not offer use another one.
  Collective collective = Collective::kAllReduce;
  // Empty: the backend's default ("ring"; others choose themselves). native: "hierarchical" groups the ranks
  // of a host that share memory, "hierarchical:4" four consecutive ranks.
  std::string algorithm;
  // native: auto (cuda_ipc between GPUs that can access each other; otherwise shm on one host, tcp between
  // hosts), shm, tcp, cuda_ipc; mpi: auto, shm, tcp (chosen when mpirun starts the job); gloo: auto, tcp
  // (both are TCP); nccl: auto (NCCL chooses), tcp
  std::string transport = "auto";
  std::string bind_host = "127.0.0.1";         // an address of this machine that the other ranks can reach
  absl::Duration timeout = absl::Seconds(60);  // of a call without progress
  // Native only.
  size_t segment_bytes = 0;  // the size of a transfer; 0: the transport's default
  // Above 0: each so many consecutive ranks are a host, for the algorithm "hierarchical"; with transport auto
  // only these share memory.
  int ranks_per_node = 0;
  bool is_part = false;  // made by Split: a ring if "hierarchical" needs another number of ranks
  const ScheduleTable* schedules = nullptr;  // null: ScheduleRows()
  int gpu = -1;                              // native, nccl: the GPU of this rank's memory; -1: host memory
  LinkShaper* shaper = nullptr;              // limits the rate of payload over TCP; outlives the group
};

// Collective with the same options. Waits for all ranks, at most as long as the rendezvous does, which must
// outlive the group and its parts. NotFound: no such backend, or not in this build (names what to install);
// InvalidArgument: an algorithm or transport that the backend lacks (lists those it has).
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeProcessGroup(Rendezvous& rendezvous,
                                                               const GroupOptions& options);

struct BackendRow {
  const char* name;
  const char* summary = "";
  const char* missing = "";  // what to install if this build lacks it
  // Values of --algorithm for a collective; empty if the backend lacks the collective.
  std::vector<std::string> (*algorithms)(Collective) = [](Collective) { return std::vector<std::string>(); };
  std::vector<std::string> transports = {};
  // Called by MakeProcessGroup. Null: not in this build.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> (*make)(Rendezvous&, const GroupOptions&) = nullptr;

  bool available() const { return make != nullptr; }
};
const std::vector<BackendRow>& Backends();

// The errors of MakeProcessGroup that follow from the options only.
absl::Status CheckGroupOptions(const GroupOptions& options, Collective collective);

}  // namespace psring
