// NCCL's collectives, on a CUDA stream of the group's own; the work of our stream waits for them on the host,
// by looking: an event never answers where a peer is gone, and NCCL's own error is only told to who asks.
//
// Device memory is used where it lies. Host memory goes through a device buffer that the group keeps, and
// info().transport says so. "ring" is NCCL pinned to its ring by NCCL_ALGO, which NCCL reads while it makes a
// communicator; the variable is set for just that long.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdlib.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/mutex.h"
#include "ring_worker/groups/derived_traffic.h"
#include "ring_worker/groups/groups.h"

namespace psring {
namespace {

constexpr absl::Duration kSpin = absl::Microseconds(200);  // then it sleeps between looks
constexpr absl::Duration kLook = absl::Microseconds(50);

absl::Status CudaStatus(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", cudaGetErrorString(error)));
}

absl::Status NcclStatus(const std::string& what, ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", ncclGetErrorString(result)));
}

ncclDataType_t TypeOf(DType type) {
  switch (type) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat16:
      return ncclFloat16;
  }
  return ncclFloat32;
}

ncclRedOp_t OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kMean:
      return ncclAvg;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
  }
  return ncclSum;
}

// An environment variable for as long as this lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = getenv(name); old != nullptr) old_ = old;
    setenv(name, value, 1);
  }
  ~ScopedVariable() {
    if (old_) {
      setenv(name_, old_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* const name_;
  std::optional<std::string> old_;
};

// Device memory that grows to what is asked for.
class StagingBuffer {
 public:
  ~StagingBuffer() { cudaFree(data_); }
  absl::Status Reserve(size_t bytes) {
    if (bytes <= bytes_) return absl::OkStatus();
    cudaFree(data_);
    data_ = nullptr;
    bytes_ = 0;
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaMalloc", cudaMalloc(&data_, bytes)));
    bytes_ = bytes;
    return absl::OkStatus();
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

bool IsOnDevice(const void* pointer) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(GroupInfo info, int device, absl::Duration timeout)
      : ProcessGroup(std::move(info)), device_(device), timeout_(timeout) {}

  // With all ranks; the communicator is usable when it returns OK.
  absl::Status Connect(const ncclUniqueId& id) {
    const absl::Time deadline = absl::Now() + timeout_;
    PSRING_RETURN_IF_ERROR(Prepare());
    return Pinned([&](ncclConfig_t* config) -> absl::Status {
      PSRING_RETURN_IF_ERROR(
          NcclStatus("ncclCommInitRankConfig", ncclCommInitRankConfig(&comm_, size(), id, rank(), config)));
      return Poll("the other ranks' communicators", deadline, [this] { return NcclIsIdle(); });
    });
  }

  ~NcclGroup() override {
    (void)cudaSetDevice(device_);
    if (comm_ != nullptr && Aborted().ok()) {
      const absl::Time deadline = absl::Now() + timeout_;
      if (NcclStatus("", ncclCommFinalize(comm_)).ok() &&
          Poll("the end of the communicator", deadline, [this] { return NcclIsIdle(); }).ok()) {
        ncclCommDestroy(comm_);
        comm_ = nullptr;
      }
    }
    GiveUp();
    if (done_ != nullptr) cudaEventDestroy(done_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // Whoever waits sees it at its next look; the communicator itself is ended by the thread that uses it.
  void Abort(absl::Status why) override {
    MutexLock lock(mutex_);
    if (aborted_.ok()) aborted_ = why.ok() ? absl::CancelledError("aborted") : std::move(why);
  }

  Traffic traffic() const override {
    MutexLock lock(mutex_);
    return traffic_;
  }

 private:
  absl::Status Enqueue(const CollectiveCall& call, Stream& stream) override {
    stream.Run([this, call] {
      const absl::Status status = Execute(call);
      if (status.ok()) {
        MutexLock lock(mutex_);
        traffic_ = traffic_ + DerivedTraffic(call, size());
        return status;
      }
      Abort(status);
      GiveUp();
      return status;
    });
    return absl::OkStatus();
  }

  // A byte of everybody's.
  absl::Status EnqueueBarrier(Stream& stream) override {
    stream.Run([this] {
      const absl::Status status = [this] {
        PSRING_RETURN_IF_ERROR(Ready());
        PSRING_RETURN_IF_ERROR(staged_in_.Reserve(1));
        return Collect("barrier", [this] {
          return ncclAllReduce(staged_in_.data(), staged_in_.data(), 1, ncclUint8, ncclMax, comm_, stream_);
        });
      }();
      if (status.ok()) return status;
      Abort(status);
      GiveUp();
      return status;
    });
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> MakePart(Rendezvous* part, int color, int key) override {
    PSRING_RETURN_IF_ERROR(Ready());
    GroupInfo of_part = info();
    of_part.rank = part != nullptr ? part->options().rank : 0;
    of_part.size = part != nullptr ? part->options().world_size : 1;
    auto group = std::make_unique<NcclGroup>(of_part, device_, timeout_);
    if (part != nullptr) PSRING_RETURN_IF_ERROR(group->Prepare());
    const absl::Time deadline = absl::Now() + timeout_;
    PSRING_RETURN_IF_ERROR(Pinned([&](ncclConfig_t* config) -> absl::Status {
      PSRING_RETURN_IF_ERROR(NcclStatus(
          "ncclCommSplit",
          ncclCommSplit(comm_, part != nullptr ? color : NCCL_SPLIT_NOCOLOR, key, &group->comm_, config)));
      // Only when the whole is done with it the part is there.
      PSRING_RETURN_IF_ERROR(Poll("split", deadline, [this] { return NcclIsIdle(); }));
      if (part == nullptr) return absl::OkStatus();
      return group->Poll("split", deadline, [&] { return group->NcclIsIdle(); });
    }));
    if (part == nullptr) return nullptr;
    return group;
  }

  absl::Status Execute(const CollectiveCall& call) {
    PSRING_RETURN_IF_ERROR(Ready());
    if (std::max(call.in.count, call.out.count) == 0) return absl::OkStatus();
    const std::string what =
        absl::StrCat(Name(call.collective), " of ", call.in.count, " ", Name(call.in.type), " elements");
    if (IsOnDevice(call.in.data) && IsOnDevice(call.out.data)) {
      return Collect(what, [&] { return Start(call, call.in.data, call.out.data); });
    }
    // A part of the other stays one: NCCL's in-place forms have the same places as ours.
    PSRING_RETURN_IF_ERROR(staged_in_.Reserve(call.in.bytes()));
    PSRING_RETURN_IF_ERROR(staged_out_.Reserve(call.out.bytes()));
    PSRING_RETURN_IF_ERROR(CudaStatus(
        "cudaMemcpyAsync",
        cudaMemcpyAsync(staged_in_.data(), call.in.data, call.in.bytes(), cudaMemcpyDefault, stream_)));
    PSRING_RETURN_IF_ERROR(Collect(what, [&] { return Start(call, staged_in_.data(), staged_out_.data()); }));
    // Only now: a copy to pageable memory would stand in the driver until the collective is done.
    PSRING_RETURN_IF_ERROR(CudaStatus(
        "cudaMemcpyAsync",
        cudaMemcpyAsync(call.out.data, staged_out_.data(), call.out.bytes(), cudaMemcpyDefault, stream_)));
    return WaitForStream(what);
  }

  ncclResult_t Start(const CollectiveCall& call, const void* in, void* out) {
    const ncclDataType_t type = TypeOf(call.in.type);
    switch (call.collective) {
      case Collective::kAllReduce:
        return ncclAllReduce(in, out, call.in.count, type, OpOf(call.op), comm_, stream_);
      case Collective::kReduceScatter:
        return ncclReduceScatter(in, out, call.out.count, type, OpOf(call.op), comm_, stream_);
      case Collective::kAllGather:
        return ncclAllGather(in, out, call.in.count, type, comm_, stream_);
      case Collective::kBroadcast:
        return ncclBroadcast(in, out, call.in.count, type, call.root, comm_, stream_);
    }
    return ncclInternalError;
  }

  absl::Status Prepare() {
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaSetDevice", cudaSetDevice(device_)));
    PSRING_RETURN_IF_ERROR(
        CudaStatus("cudaStreamCreate", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)));
    return CudaStatus("cudaEventCreate", cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
  }

  // `make` makes a communicator of this group's algorithm.
  absl::Status Pinned(const std::function<absl::Status(ncclConfig_t*)>& make) const {
    std::optional<ScopedVariable> pinned;
    if (info().algorithm == "ring") pinned.emplace("NCCL_ALGO", "Ring");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return make(&config);
  }

  absl::Status Ready() {
    PSRING_RETURN_IF_ERROR(Aborted());
    return CudaStatus("cudaSetDevice", cudaSetDevice(device_));
  }

  // Starts a collective and waits until it is done.
  absl::Status Collect(const std::string& what, const std::function<ncclResult_t()>& start) {
    const absl::Time deadline = absl::Now() + timeout_;
    PSRING_RETURN_IF_ERROR(NcclStatus(Named(what), start()));
    PSRING_RETURN_IF_ERROR(Poll(what, deadline, [this] { return NcclIsIdle(); }));
    return WaitForStream(what);
  }

  absl::Status WaitForStream(const std::string& what) {
    const absl::Time deadline = absl::Now() + timeout_;
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaEventRecord", cudaEventRecord(done_, stream_)));
    return Poll(what, deadline, [this]() -> absl::StatusOr<bool> {
      PSRING_RETURN_IF_ERROR(NcclIsIdle().status());
      const cudaError_t state = cudaEventQuery(done_);
      if (state == cudaErrorNotReady) return false;
      PSRING_RETURN_IF_ERROR(CudaStatus("cudaEventQuery", state));
      return true;
    });
  }

  // Whether NCCL has taken in all it was told; its error, where a communicator has one.
  absl::StatusOr<bool> NcclIsIdle() {
    ncclResult_t state = ncclSuccess;
    PSRING_RETURN_IF_ERROR(NcclStatus("ncclCommGetAsyncError", ncclCommGetAsyncError(comm_, &state)));
    if (state != ncclSuccess && state != ncclInProgress) {
      return absl::UnavailableError(absl::StrCat(ncclGetErrorString(state), ": ", ncclGetLastError(comm_)));
    }
    return state == ncclSuccess;
  }

  absl::Status Poll(const std::string& what, absl::Time deadline,
                    const std::function<absl::StatusOr<bool>()>& over) {
    const absl::Time begin = absl::Now();
    while (true) {
      PSRING_RETURN_IF_ERROR(Aborted());
      const absl::StatusOr<bool> done = over();
      if (!done.ok()) {
        return absl::Status(done.status().code(), absl::StrCat(Named(what), ": ", done.status().message()));
      }
      if (*done) return absl::OkStatus();
      const absl::Time now = absl::Now();
      if (now > deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(Named(what), " was not done after ", absl::FormatDuration(timeout_),
                         "; at least one of the other ", size() - 1, " ranks has not come"));
      }
      if (now > begin + kSpin) absl::SleepFor(kLook);
    }
  }

  std::string Named(const std::string& what) const { return absl::StrCat("rank ", rank(), ": nccl ", what); }

  absl::Status Aborted() const {
    MutexLock lock(mutex_);
    return aborted_;
  }

  // Makes NCCL's kernels on the device return; by the thread that uses the communicator.
  void GiveUp() {
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  const int device_;
  const absl::Duration timeout_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
  StagingBuffer staged_in_, staged_out_;
  mutable Mutex mutex_;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  Traffic traffic_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

BackendRow NcclBackend() {
  return {.name = "nccl",
          .summary = "NVIDIA's NCCL, between GPUs",
          .available = true,
          .missing = "",
          .algorithms =
              [](Collective collective) {
                // The others' default is a ring as well, where NCCL has no choice.
                return collective == Collective::kAllReduce ? std::vector<std::string>{"default", "ring"}
                                                            : std::vector<std::string>{"default"};
              },
          .transports = {"auto"}};
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeNcclGroup(Rendezvous& rendezvous,
                                                            const GroupOptions& options) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL needs a GPU: no CUDA driver was found, or no device (",
                     error == cudaSuccess ? "no device" : cudaGetErrorString(error),
                     "); install NVIDIA's driver and check it with nvidia-smi, or choose another backend"));
  }
  const int rank = rendezvous.options().rank;
  const int size = rendezvous.options().world_size;
  ncclUniqueId id = {};
  if (rank == 0) PSRING_RETURN_IF_ERROR(NcclStatus("ncclGetUniqueId", ncclGetUniqueId(&id)));
  PSRING_ASSIGN_OR_RETURN(
      const std::vector<std::string> ids,
      rendezvous.Exchange("nccl group", rank == 0 ? absl::BytesToHexString({id.internal, sizeof(id.internal)})
                                                  : std::string()));
  const std::string bytes = absl::HexStringToBytes(ids[0]);
  if (bytes.size() != sizeof(id.internal)) return absl::InternalError("rank 0 sent no id of NCCL's");
  std::memcpy(id.internal, bytes.data(), bytes.size());
  const std::string algorithm = options.algorithm.empty() ? "default" : options.algorithm;
  // Until there are devices of ours whose memory is a GPU's, what comes here is host memory.
  auto group = std::make_unique<NcclGroup>(GroupInfo{rank, size, "nccl", algorithm, "nccl, staged"},
                                           rendezvous.options().local_rank % devices, options.timeout);
  PSRING_RETURN_IF_ERROR(group->Connect(id));
  return group;
}

}  // namespace psring
