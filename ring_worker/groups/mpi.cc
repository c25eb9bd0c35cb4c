// MPI's collectives: its blocking calls, in stream order. A group that was split, and its parts, use
// non-blocking calls, because several of them may be in progress at a time. Abort and a call beyond its
// deadline end the job, because MPI offers no other way to make every rank return.
#include <mpi.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/measure/wires.h"
#include "ring_worker/groups/groups.h"
#include "ring_worker/groups/mpi_algorithms.h"
#include "ring_worker/groups/mpi_session.h"

namespace psring {
namespace {

// MPI counts in int; longer buffers are reduced in pieces.
constexpr size_t kMaxElements = size_t{1} << 30;

std::vector<std::string> MpiAlgorithms(Collective collective) {
  return collective == Collective::kAllReduce ? MpiAllReduceAlgorithms()
                                              : std::vector<std::string>{"default"};
}

// MPI has no 16-bit floats, so they are sent as integers and combined by this function. `in` belongs to the
// lower rank, so the order is in, then inout.
template <ReduceOp op, DType type>
void Combine(void* in, void* inout, int* count, MPI_Datatype*) {
  const void* sources[] = {in, inout};
  cpu::Reduce(op, type, size_t(*count), inout, sources, 2);
}

template <DType type>
MPI_User_function* CombineOf(ReduceOp op) {
  return op == ReduceOp::kMin   ? Combine<ReduceOp::kMin, type>
         : op == ReduceOp::kMax ? Combine<ReduceOp::kMax, type>
                                : Combine<ReduceOp::kSum, type>;
}

struct Reduction {
  MPI_Datatype type;
  MPI_Op op;
};

bool BuffersOverlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const char* first = static_cast<const char*>(a);
  const char* second = static_cast<const char*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

// Creates a communicator with `make`, whose all-reduce uses `algorithm`.
absl::StatusOr<MPI_Comm> MakeCommunicator(const char* what, const std::string& algorithm,
                                          absl::Duration timeout, const std::function<int(MPI_Comm&)>& make) {
  MPI_Comm comm = MPI_COMM_NULL;
  absl::Status chosen;
  PSRING_RETURN_IF_ERROR(MpiSession::OfThisProcess().Run({.what = what}, timeout, [&] {
    const MpiAlgorithm forced(algorithm, MpiAlgorithm::During::kMaking);
    chosen = forced.status();
    if (!chosen.ok()) return int{MPI_SUCCESS};
    const int code = make(comm);
    if (code == MPI_SUCCESS && comm != MPI_COMM_NULL) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    return code;
  }));
  PSRING_RETURN_IF_ERROR(chosen);
  return comm;
}

class MpiGroup final : public LibraryGroup {
 public:
  // `part`: of the ranks, if another group was split.
  MpiGroup(GroupInfo info, MPI_Comm comm, absl::Duration timeout, const RendezvousOptions* part = nullptr)
      : LibraryGroup(std::move(info)), comm_(comm), timeout_(timeout), takes_turns_(part != nullptr) {
    if (part != nullptr && size() == 2) peer_ = part->JobRank(1 - rank());
  }

  ~MpiGroup() override {
    if (session_.broken()) return;  // the peers would not take part
    for (MPI_Op& op : ops_) {
      if (op != MPI_OP_NULL) MPI_Op_free(&op);
    }
    (void)session_.Run({.what = "MPI_Comm_free"}, timeout_, [this] { return MPI_Comm_free(&comm_); });
  }

  void Abort(absl::Status why) override {
    session_.EndJob(absl::StrCat("rank ", rank(), ": ", std::string(why.message())));
  }

  absl::Status Barrier(Stream& stream) override {
    stream.Run([this] {
      const MpiWait wait = {.what = "barrier", .peer = peer_, .ranks = size()};
      if (!takes_turns_) return session_.Run(wait, timeout_, [this] { return MPI_Barrier(comm_); });
      return InTurns(wait, [this](MPI_Request* request) { return MPI_Ibarrier(comm_, request); });
    });
    return absl::OkStatus();
  }

 private:
  absl::Status Enqueue(const CollectiveCall& call, Stream& stream) override {
    if (call.collective != Collective::kAllReduce && call.collective != Collective::kBroadcast &&
        std::max(call.in.count, call.out.count) > size_t{INT_MAX}) {
      return InvalidArgument("mpi ", Name(call.collective), " of more than ", INT_MAX,
                             " elements: MPI's counts have 32 bits");
    }
    stream.Run([this, call, number = ++calls_] { return Execute(call, number); });
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> MakePart(Rendezvous* part, int color, int key) override {
    PSRING_ASSIGN_OR_RETURN(
        const MPI_Comm comm,
        MakeCommunicator("MPI_Comm_split", info().algorithm, timeout_, [&](MPI_Comm& made) {
          return MPI_Comm_split(comm_, part == nullptr ? MPI_UNDEFINED : color, key, &made);
        }));
    takes_turns_ = true;
    if (part == nullptr) return nullptr;
    GroupInfo of_part = info();
    of_part.rank = part->options().rank;
    of_part.size = part->options().world_size;
    return std::make_unique<MpiGroup>(of_part, comm, timeout_, &part->options());
  }

  absl::Status Execute(const CollectiveCall& call, uint64_t number) {
    const MpiWait wait = {Name(call.collective), call.in.count, call.in.type, number, peer_, size()};
    if (call.collective == Collective::kAllReduce || call.collective == Collective::kBroadcast) {
      for (size_t done = 0; done < call.in.count; done += kMaxElements) {
        CollectiveCall piece = call;
        piece.in = call.in.Slice(done, std::min(kMaxElements, call.in.count - done));
        piece.out = call.out.Slice(done, piece.in.count);
        PSRING_RETURN_IF_ERROR(RunOne(piece, wait));
      }
    } else {
      if (WritesAside(call) && aside_.size() < call.out.bytes()) aside_.resize(call.out.bytes());
      PSRING_RETURN_IF_ERROR(RunOne(call, wait));
      if (WritesAside(call)) std::memcpy(call.out.data, aside_.data(), call.out.bytes());
    }
    FinishOnHost(call);
    return absl::OkStatus();
  }

  absl::Status RunOne(const CollectiveCall& call, const MpiWait& wait) {
    // MPI's algorithms can be chosen for the blocking all-reduce only.
    if (takes_turns_ && (call.collective != Collective::kAllReduce || info().algorithm == "default")) {
      return InTurns(wait, [&](MPI_Request* request) { return Call(call, request); });
    }
    PSRING_RETURN_IF_ERROR(session_.Run(wait, timeout_, [&] { return Call(call, nullptr); }));
    return refused_;
  }

  template <typename Begin>
  absl::Status InTurns(const MpiWait& wait, const Begin& begin) {
    MPI_Request request = MPI_REQUEST_NULL;
    return session_.RunInTurns(
        wait, timeout_, [&] { return begin(&request); },
        [&](bool& done) {
          int is_done = 0;
          const int code = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
          done = is_done != 0;
          return code;
        });
  }

  // With `request` the call does not block.
  int Call(const CollectiveCall& call, MPI_Request* request) {
    const Reduction reduction = ReductionOf(call.in.type, call.op);
    const MPI_Datatype type = reduction.type;
    const int count = static_cast<int>(call.in.count), out_count = static_cast<int>(call.out.count);
    void* const out = WritesAside(call) ? aside_.data() : call.out.data;
    switch (call.collective) {
      case Collective::kAllReduce: {
        const void* const in = call.in.data == out ? MPI_IN_PLACE : call.in.data;
        if (request != nullptr) return MPI_Iallreduce(in, out, count, type, reduction.op, comm_, request);
        const MpiAlgorithm forced(info().algorithm, MpiAlgorithm::During::kCalls);
        refused_ = forced.status();
        if (!refused_.ok()) return MPI_SUCCESS;
        return MPI_Allreduce(in, out, count, type, reduction.op, comm_);
      }
      case Collective::kReduceScatter:
        return request != nullptr
                   ? MPI_Ireduce_scatter_block(call.in.data, out, out_count, type, reduction.op, comm_,
                                               request)
                   : MPI_Reduce_scatter_block(call.in.data, out, out_count, type, reduction.op, comm_);
      case Collective::kAllGather: {
        const void* const mine = static_cast<const char*>(out) + size_t(rank()) * call.in.bytes();
        const void* const in = call.in.data == mine ? MPI_IN_PLACE : call.in.data;
        return request != nullptr ? MPI_Iallgather(in, count, type, out, count, type, comm_, request)
                                  : MPI_Allgather(in, count, type, out, count, type, comm_);
      }
      case Collective::kBroadcast:
        if (request == nullptr) return MPI_Bcast(out, count, type, call.root, comm_);
        // A message of a channel.
        if (size() == 2 && rank() == call.root)
          return MPI_Isend(out, count, type, 1 - rank(), /*tag=*/0, comm_, request);
        if (size() == 2) return MPI_Irecv(out, count, type, call.root, /*tag=*/0, comm_, request);
        return MPI_Ibcast(out, count, type, call.root, comm_, request);
      case Collective::kAllToAll: {
        const int block = count / size();
        return request != nullptr ? MPI_Ialltoall(call.in.data, block, type, out, block, type, comm_, request)
                                  : MPI_Alltoall(call.in.data, block, type, out, block, type, comm_);
      }
    }
    return MPI_ERR_INTERN;
  }

  // MPI_IN_PLACE would write the result of a reduce-scatter to the beginning of the buffer. Here the output
  // may be this rank's part of the input, which MPI does not allow; so the result is first written to aside_.
  static bool WritesAside(const CollectiveCall& call) {
    return call.collective == Collective::kReduceScatter &&
           BuffersOverlap(call.in.data, call.in.bytes(), call.out.data, call.out.bytes());
  }

  // MPI computes the mean as a sum.
  Reduction ReductionOf(DType type, ReduceOp op) {
    if (type == DType::kFloat32) {
      return {MPI_FLOAT, op == ReduceOp::kMin ? MPI_MIN : op == ReduceOp::kMax ? MPI_MAX : MPI_SUM};
    }
    if (op == ReduceOp::kMean) op = ReduceOp::kSum;
    MPI_Op& made = ops_[size_t(type) * 4 + size_t(op)];
    if (made == MPI_OP_NULL) {
      MPI_Op_create(
          type == DType::kBFloat16 ? CombineOf<DType::kBFloat16>(op) : CombineOf<DType::kFloat16>(op),
          /*commute=*/1, &made);
    }
    return {MPI_UINT16_T, made};
  }

  MpiSession& session_ = MpiSession::OfThisProcess();
  MPI_Comm comm_;
  const absl::Duration timeout_;
  bool takes_turns_;  // other groups' calls may be in progress at the same time
  int peer_ = -1;     // see MpiWait
  uint64_t calls_ = 0;
  std::vector<MPI_Op> ops_ = std::vector<MPI_Op>(3 * 4, MPI_OP_NULL);  // by type and op, created when needed
  std::vector<char> aside_;
  absl::Status refused_;  // the algorithm was rejected by this MPI
};

// `transport`: MpiSession::TransportOfJob().
const char* WireOf(const std::string& transport) {
  if (transport == "shm") return kMpiSharedMemoryWire;
  return transport == "tcp" ? kMpiTcpWire : kMpiWire;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeMpiGroup(Rendezvous& rendezvous,
                                                           const GroupOptions& options) {
  const int rank = rendezvous.options().rank;
  const int size = rendezvous.options().world_size;
  const std::string algorithm = options.algorithm.empty() ? "default" : options.algorithm;
  // MPI_Init waits for all ranks without naming missing ones; this exchange does.
  PSRING_RETURN_IF_ERROR(rendezvous.Exchange("mpi group", algorithm).status());
  MpiSession& session = MpiSession::OfThisProcess();
  PSRING_RETURN_IF_ERROR(session.Start(rank, size, options.timeout));

  const std::string started_with = MpiSession::TransportOfJob();
  if (options.transport != "auto" && options.transport != started_with) {
    return FailedPrecondition("transport ", options.transport,
                              " was asked for, but mpirun started this job with ", started_with,
                              "; MPI takes its transport from mpirun, and psring sets it there");
  }
  PSRING_ASSIGN_OR_RETURN(const MPI_Comm comm,
                          MakeCommunicator("MPI_Comm_dup", algorithm, options.timeout, [](MPI_Comm& made) {
                            return MPI_Comm_dup(MPI_COMM_WORLD, &made);
                          }));
  // By default MPI uses shared memory between the ranks of one host; between hosts it does not report the
  // transport. The wire states only what mpirun enforces.
  const std::string transport =
      started_with == "auto" && session.all_ranks_on_one_host() ? "shm" : started_with;
  return std::make_unique<MpiGroup>(
      GroupInfo{rank, size, "mpi", algorithm, transport, {WireOf(started_with)}}, comm, options.timeout);
}

}  // namespace

BackendRow MpiBackend() {
  return {.name = "mpi",
          .summary = "the MPI that this build found; its job is started by mpirun",
          .algorithms = MpiAlgorithms,
          .transports = {"auto", "shm", "tcp"},
          .make = MakeMpiGroup};
}

}  // namespace psring
