// NCCL's collectives. On a GPU's streams they run in stream order like other GPU work, so that buckets
// overlap with backward and no thread waits before the step's end; nccl_communicator.h explains how failures
// are detected.
//
// Host memory, which the host benchmark uses, is copied through device buffers of the group; info().transport
// then contains "staged".
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/mutex.h"
#include "common/cuda/cuda_stream.h"
#include "common/text/peer_text.h"
#include "ring_worker/groups/groups.h"
#include "ring_worker/groups/nccl_communicator.h"
#include "ring_worker/groups/nccl_environment.h"
#include "ring_worker/groups/nccl_library.h"
#include "ring_worker/transports/cuda/cuda_ipc.h"

namespace psring {
namespace {

constexpr ncclDataType_t kTypes[] = {ncclFloat32, ncclBfloat16, ncclFloat16};  // by DType
constexpr ncclRedOp_t kOps[] = {ncclSum, ncclAvg, ncclMin, ncclMax};           // by ReduceOp

// Device memory that grows to the requested size.
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

class NcclGroup final : public LibraryGroup {
 public:
  // `variables`: the environment of the group and its parts.
  NcclGroup(GroupInfo info, int gpu, std::shared_ptr<NcclCommunicator> communicator, Variables variables)
      : LibraryGroup(std::move(info)),
        gpu_(gpu),
        variables_(std::move(variables)),
        communicator_(std::move(communicator)) {}

  ~NcclGroup() override {
    (void)cudaSetDevice(gpu_);
    communicator_.reset();
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void Abort(absl::Status why) override { communicator_->Abort(std::move(why)); }

  // An all-reduce of one byte.
  absl::Status Barrier(Stream& stream) override {
    stream.Run([this]() -> absl::Status {
      PSRING_RETURN_IF_ERROR(Prepare());
      PSRING_RETURN_IF_ERROR(staged_in_.Reserve(1));
      PSRING_RETURN_IF_ERROR(
          communicator_->Start("barrier", stream_, [this](const NcclLibrary& nccl, ncclComm_t comm) {
            return nccl.AllReduce(staged_in_.data(), staged_in_.data(), 1, ncclUint8, ncclMax, comm, stream_);
          }));
      return communicator_->Wait();
    });
    return absl::OkStatus();
  }

 private:
  absl::Status Enqueue(const CollectiveCall& call, Stream& stream) override {
    CudaStream* const on_gpu = CudaStream::From(stream);
    if (on_gpu == nullptr) {
      stream.Run([this, call] { return ThroughDevice(call); });
      return absl::OkStatus();
    }
    on_gpu->Watch(communicator_);
    on_gpu->Enqueue("nccl collective", [this, call, on_gpu](cudaStream_t queue) {
      return Start(call, call.in.data, call.out.data, queue, on_gpu->recording());
    });
    return absl::OkStatus();
  }

  // One launch for all calls: an NCCL group.
  absl::Status EnqueueTogether(const std::vector<CollectiveCall>& calls, Stream& stream) override {
    CudaStream* const on_gpu = CudaStream::From(stream);
    if (on_gpu == nullptr || calls.size() < 2) return ProcessGroup::EnqueueTogether(calls, stream);
    on_gpu->Watch(communicator_);
    on_gpu->Enqueue("nccl group call", [this, calls, on_gpu](cudaStream_t queue) {
      return StartTogether(calls, queue, on_gpu->recording());
    });
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> MakePart(Rendezvous* part, int color, int key) override {
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaSetDevice", cudaSetDevice(gpu_)));
    const ScopedVariables variables(variables_);
    if (part == nullptr) {
      PSRING_RETURN_IF_ERROR(communicator_->Split(NCCL_SPLIT_NOCOLOR, key, {}).status());
      return nullptr;
    }
    GroupInfo of_part = info();
    of_part.rank = part->options().rank;
    of_part.size = part->options().world_size;
    PSRING_ASSIGN_OR_RETURN(auto communicator, communicator_->Split(color, key, part->options()));
    return std::make_unique<NcclGroup>(std::move(of_part), gpu_, std::move(communicator), variables_);
  }

  absl::Status ThroughDevice(const CollectiveCall& call) {
    PSRING_RETURN_IF_ERROR(Prepare());
    // In-place forms stay in place: NCCL's have the same layout as ours.
    PSRING_RETURN_IF_ERROR(staged_in_.Reserve(call.in.bytes()));
    PSRING_RETURN_IF_ERROR(staged_out_.Reserve(call.out.bytes()));
    PSRING_RETURN_IF_ERROR(CudaStatus(
        "cudaMemcpyAsync",
        cudaMemcpyAsync(staged_in_.data(), call.in.data, call.in.bytes(), cudaMemcpyDefault, stream_)));
    PSRING_RETURN_IF_ERROR(Start(call, staged_in_.data(), staged_out_.data(), stream_));
    PSRING_RETURN_IF_ERROR(communicator_->Wait());
    // Only now: a copy to pageable memory would block in the driver until the collective is done.
    return CudaStatus("cudaMemcpy",
                      cudaMemcpy(call.out.data, staged_out_.data(), call.out.bytes(), cudaMemcpyDefault));
  }

  // For host memory: the stream of its device buffers.
  absl::Status Prepare() {
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaSetDevice", cudaSetDevice(gpu_)));
    if (stream_ != nullptr) return absl::OkStatus();
    return CudaStatus("cudaStreamCreate", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

  ncclResult_t Tell(const NcclLibrary& nccl, ncclComm_t comm, const CollectiveCall& call, const void* in,
                    void* out, cudaStream_t stream) {
    const ncclDataType_t type = kTypes[static_cast<size_t>(call.in.type)];
    const ncclRedOp_t op = kOps[static_cast<size_t>(call.op)];
    switch (call.collective) {
      case Collective::kAllReduce:
        return nccl.AllReduce(in, out, call.in.count, type, op, comm, stream);
      case Collective::kReduceScatter:
        return nccl.ReduceScatter(in, out, call.out.count, type, op, comm, stream);
      case Collective::kAllGather:
        return nccl.AllGather(in, out, call.in.count, type, comm, stream);
      case Collective::kBroadcast:
        return nccl.Broadcast(in, out, call.in.count, type, call.root, comm, stream);
      case Collective::kAllToAll:
        return ExchangeBlocks(nccl, comm, call, in, out, stream);
    }
    return ncclInternalError;
  }

  // NCCL's documented form of an all-to-all: a group of a send and a receive for each rank.
  ncclResult_t ExchangeBlocks(const NcclLibrary& nccl, ncclComm_t comm, const CollectiveCall& call,
                              const void* in, void* out, cudaStream_t stream) const {
    const ncclDataType_t type = kTypes[static_cast<size_t>(call.in.type)];
    const size_t count = call.in.count / static_cast<size_t>(size());
    const size_t bytes = count * SizeOf(call.in.type);
    ncclResult_t result = nccl.GroupStart();
    for (int i = 0; i < size() && (result == ncclSuccess || result == ncclInProgress); ++i) {
      const size_t at = static_cast<size_t>(i) * bytes;
      result = nccl.Send(static_cast<const char*>(in) + at, count, type, i, comm, stream);
      if (result != ncclSuccess && result != ncclInProgress) break;
      result = nccl.Recv(static_cast<char*>(out) + at, count, type, i, comm, stream);
    }
    const ncclResult_t ended = nccl.GroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? ended : result;
  }

  static std::string What(const CollectiveCall& call) {
    return absl::StrCat(Name(call.collective), " of ", call.in.count, " ", Name(call.in.type), " elements");
  }

  // Now, or at each replay of `recording`.
  absl::Status Start(const CollectiveCall& call, const void* in, void* out, cudaStream_t stream,
                     const std::shared_ptr<CudaRecording>& recording = nullptr) {
    if (std::max(call.in.count, call.out.count) == 0) return absl::OkStatus();
    return StartOrRecord(
        What(call), DerivedTraffic(call), stream, recording,
        [&](const NcclLibrary& nccl, ncclComm_t comm) { return Tell(nccl, comm, call, in, out, stream); });
  }

  absl::Status StartTogether(const std::vector<CollectiveCall>& calls, cudaStream_t stream,
                             const std::shared_ptr<CudaRecording>& recording) {
    const std::string what = absl::StrCat("group call of ", calls.size(), ", the first an ", What(calls[0]));
    Traffic traffic;
    for (const CollectiveCall& call : calls) traffic = traffic + DerivedTraffic(call);
    const auto start = [&](const NcclLibrary& nccl, ncclComm_t comm) {
      ncclResult_t result = nccl.GroupStart();
      for (const CollectiveCall& call : calls) {
        if (result != ncclSuccess && result != ncclInProgress) break;
        if (call.in.count > 0) result = Tell(nccl, comm, call, call.in.data, call.out.data, stream);
      }
      // A started NCCL group must be ended, or the thread's next call would belong to it.
      const ncclResult_t ended = nccl.GroupEnd();
      return result == ncclSuccess || result == ncclInProgress ? ended : result;
    };
    return StartOrRecord(what, traffic, stream, recording, start);
  }

  absl::Status StartOrRecord(const std::string& what, const Traffic& traffic, cudaStream_t stream,
                             const std::shared_ptr<CudaRecording>& recording,
                             const NcclCommunicator::Call& call) {
    if (recording == nullptr) {
      PSRING_RETURN_IF_ERROR(communicator_->Start(what, stream, call));
      Count(traffic);
      return absl::OkStatus();
    }
    PSRING_RETURN_IF_ERROR(communicator_->Record(what, call));
    NoteRecorded(what, traffic, recording);
    return absl::OkStatus();
  }

  // One event after each replay marks the end of all its collectives.
  void NoteRecorded(const std::string& what, const Traffic& traffic,
                    const std::shared_ptr<CudaRecording>& recording) {
    if (recorded_in_.lock() != recording) {
      recorded_in_ = recording;
      recorded_ = std::make_shared<Recorded>(Recorded{.first = what});
      recording->behind.push_back([this, all = recorded_](cudaStream_t stream) {
        Count(all->traffic);
        return communicator_->Launched(
            absl::StrCat(all->first, all->calls > 1 ? " and the others" : "", ", repeated from a recording,"),
            stream);
      });
    }
    ++recorded_->calls;
    recorded_->traffic = recorded_->traffic + traffic;
  }

  const int gpu_;
  const Variables variables_;
  std::shared_ptr<NcclCommunicator> communicator_;
  cudaStream_t stream_ = nullptr;
  StagingBuffer staged_in_, staged_out_;
  // Our collectives in the current or last recording.
  struct Recorded {
    std::string first;
    int calls = 0;
    Traffic traffic = {};
  };
  std::weak_ptr<CudaRecording> recorded_in_;
  std::shared_ptr<Recorded> recorded_;
};

std::string Variable(const char* name) {
  const char* const value = getenv(name);
  return value != nullptr ? value : "";
}

// A name that no other GPU has.
absl::StatusOr<std::string> GpuName(int gpu) {
  cudaDeviceProp properties = {};
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, gpu)));
  return absl::BytesToHexString({properties.uuid.bytes, sizeof(properties.uuid.bytes)});
}

// Whether two ranks share a GPU. They then appear to NCCL as separate hosts, by an environment variable of
// the process, so they must be separate processes.
absl::StatusOr<bool> SharesGpu(Rendezvous& rendezvous, const std::string& name) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> cards,
                          rendezvous.Exchange("nccl gpus", absl::StrCat(name, " ", ThisProcess())));
  std::map<std::string, int> by_card, by_gpu;
  bool shares = false;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    const auto [other, is_new] = by_card.try_emplace(cards[rank], static_cast<int>(rank));
    if (!is_new) {
      return FailedPrecondition(
          "ranks ", other->second, " and ", rank,
          " are threads of one process on one GPU, which NCCL does not support; start a process for "
          "each rank, or choose --backend native");
    }
    const std::string gpu = cards[rank].substr(0, cards[rank].find(' '));
    shares |= !by_gpu.try_emplace(gpu, static_cast<int>(rank)).second;
  }
  return shares;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeNcclGroup(Rendezvous& rendezvous,
                                                            const GroupOptions& options) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0) {
    (void)cudaGetLastError();
    return FailedPrecondition(
        "NCCL needs a GPU: no CUDA driver was found, or no device (",
        error == cudaSuccess ? "no device" : cudaGetErrorString(error),
        "); install NVIDIA's driver and check it with nvidia-smi, or choose another backend");
  }
  PSRING_ASSIGN_OR_RETURN(const NcclLibrary nccl, LoadNccl());
  const int rank = rendezvous.options().rank;
  const int size = rendezvous.options().world_size;
  const int gpu = options.gpu >= 0 ? options.gpu : rendezvous.options().local_rank % devices;
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaSetDevice", cudaSetDevice(gpu)));
  PSRING_ASSIGN_OR_RETURN(const std::string name, GpuName(gpu));
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> versions,
                          rendezvous.Exchange("nccl version", nccl.version));
  for (int other = 0; other < size; ++other) {
    if (versions[other] == nccl.version) continue;
    return FailedPrecondition("rank ", rank, " has NCCL ", nccl.version, ", and rank ", other, " has NCCL ",
                              PeerText(versions[other]), "; install the same on all machines");
  }
  PSRING_ASSIGN_OR_RETURN(const bool shares, SharesGpu(rendezvous, name));
  const std::string algorithm = options.algorithm.empty() ? "default" : options.algorithm;
  const bool sockets = options.transport == "tcp";
  const Variables settings = NcclVariables(
      {.ring = algorithm == "ring",
       .sockets = sockets,
       .loopback = absl::StartsWith(options.bind_host, "127.") || options.bind_host == "localhost",
       .shares_gpu = shares,
       .rank = rank});
  PSRING_RETURN_IF_ERROR(Prefixed(KeepForThisProcess(settings), "rank ", rank, ": "));
  const ScopedVariables variables(settings);

  ncclUniqueId id = {};
  if (rank == 0) PSRING_RETURN_IF_ERROR(nccl.ToStatus("ncclGetUniqueId", nccl.GetUniqueId(&id)));
  PSRING_ASSIGN_OR_RETURN(
      const std::vector<std::string> ids,
      rendezvous.Exchange("nccl group",
                          rank == 0 ? std::string(id.internal, sizeof(id.internal)) : std::string()));
  const std::string& bytes = ids[0];
  if (bytes.size() != sizeof(id.internal)) return absl::InternalError("rank 0 sent no NCCL id");
  std::memcpy(id.internal, bytes.data(), bytes.size());

  auto communicator = std::make_shared<NcclCommunicator>(nccl, rendezvous.options(), options.timeout);
  PSRING_RETURN_IF_ERROR(communicator->Connect(id));
  const std::string transport =
      absl::StrCat("nccl ", nccl.version, sockets || shares ? " tcp" : "", options.gpu < 0 ? " staged" : "",
                   shares ? " on shared GPUs" : "");
  return std::make_unique<NcclGroup>(GroupInfo{.rank = rank,
                                               .size = size,
                                               .backend = "nccl",
                                               .algorithm = algorithm,
                                               .transport = transport,
                                               .wires = {NcclWire(&Variable)},
                                               .on_gpu = options.gpu >= 0,
                                               .joins_calls = options.gpu >= 0,
                                               .recordable = options.gpu >= 0},
                                     gpu, std::move(communicator), settings);
}

}  // namespace

BackendRow NcclBackend() {
  return {.name = "nccl",
          .summary = "NVIDIA's NCCL, between GPUs",
          .algorithms =
              [](Collective collective) {
                // The default is a ring, as with other backends.
                return collective == Collective::kAllReduce ? std::vector<std::string>{"default", "ring"}
                                                            : std::vector<std::string>{"default"};
              },
          .transports = {"auto", "tcp"},
          .make = MakeNcclGroup};
}

}  // namespace psring
