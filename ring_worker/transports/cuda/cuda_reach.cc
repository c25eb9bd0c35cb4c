// Which ranks can access which GPUs. Tested with every peer when a group is made.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_device.h"
#include "common/cuda/cuda_stream.h"
#include "common/cuda/gpu_reduce.h"
#include "common/cuda_ops/cuda_reduce.h"
#include "common/net/host_identity.h"
#include "common/text/peer_text.h"
#include "ring_worker/transports/cuda/cuda_exports.h"
#include "ring_worker/transports/cuda/cuda_ipc.h"

namespace psring {
namespace {

constexpr char kSeparator = '|';
constexpr size_t kProbeValues = 64;

float ProbeValue(int rank, size_t i) {
  return static_cast<float>(static_cast<size_t>(rank) * kProbeValues + i + 1);
}

// A rank's description. Empty: it has no usable GPU.
struct Card {
  std::string kernel, process, unit;
  int gpu = -1;
  std::string memory, event;  // handles of a region and of an event, for testing
  uint64_t address = 0;       // of the region, in its process; 0: there is none
};

std::string CardText(const Card& card) {
  return absl::StrCat(card.kernel, "|", card.process, "|", card.unit, "|", card.gpu, "|", card.memory, "|",
                      card.event, "|", card.address);
}

absl::StatusOr<Card> ParseCard(int rank, const std::string& text) {
  if (text.empty()) return Card();
  const std::vector<std::string> words = absl::StrSplit(text, kSeparator);
  Card card;
  if (words.size() != 7 || !absl::SimpleAtoi(words[3], &card.gpu) ||
      !absl::SimpleAtoi(words[6], &card.address)) {
    return Internal("rank ", rank, " describes its GPU as: ", text);
  }
  card.kernel = words[0];
  card.process = words[1];
  card.unit = words[2];
  card.memory = words[4];
  card.event = words[5];
  return card;
}

// Failing to create handles is not an error if all ranks are threads of one process.
struct Probe {
  Buffer memory;
  ExportedEvents events;
};

absl::Status Offer(int rank, Device& device, Probe& probe, Card& card) {
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaSetDevice", cudaSetDevice(device.gpu())));
  PSRING_ASSIGN_OR_RETURN(probe.memory, device.Allocate(kProbeValues * sizeof(float)));
  std::vector<float> values;
  for (size_t i = 0; i < kProbeValues; ++i) values.push_back(ProbeValue(rank, i));
  const std::unique_ptr<Stream> stream = device.NewStream(StreamKind::kCompute, "probe");
  stream->Copy(probe.memory.data(), values.data(), probe.memory.bytes());
  PSRING_RETURN_IF_ERROR(stream->Synchronize());
  card.address = reinterpret_cast<uint64_t>(probe.memory.data());
  PSRING_ASSIGN_OR_RETURN(card.memory, ExportMemory(device, probe.memory));
  PSRING_RETURN_IF_ERROR(probe.events.Create(/*exported=*/true));
  const RemoteEvent& first = probe.events.all().front();
  card.event = absl::WebSafeBase64Escape({first.handle, sizeof(first.handle)});
  return absl::OkStatus();
}

// A kernel on `device` reads what rank `peer` offered at `memory`. Handles and peer access may be granted
// although the GPUs read wrong values from each other.
absl::Status CheckValues(Device& device, int peer, const void* memory) {
  PSRING_ASSIGN_OR_RETURN(const Buffer read, device.Allocate(kProbeValues * sizeof(float)));
  const std::unique_ptr<Stream> stream = device.NewStream(StreamKind::kCompute, "probe");
  CudaStream::From(*stream)->Enqueue("probe", [&](cudaStream_t queue) {
    return EnqueueReduce(ReduceOp::kSum, DType::kFloat32, kProbeValues, read.data(), &memory, 1, queue);
  });
  std::vector<float> values(kProbeValues);
  stream->Copy(values.data(), read.data(), read.bytes());
  PSRING_RETURN_IF_ERROR(stream->Synchronize());
  for (size_t i = 0; i < kProbeValues; ++i) {
    if (values[i] == ProbeValue(peer, i)) continue;
    return absl::FailedPreconditionError(
        "it reads other values than were written there; check the IOMMU and PCIe access control (ACS)");
  }
  return absl::OkStatus();
}

absl::Status ReachThread(Device& device, int rank, const Card& peer) {
  const int gpu = device.gpu();
  if (peer.gpu == gpu) return absl::OkStatus();
  int can = 0;
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, gpu, peer.gpu)));
  if (can == 0) {
    return FailedPrecondition("cuda:", gpu, " has no peer access to cuda:", peer.gpu);
  }
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaSetDevice", cudaSetDevice(gpu)));
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer.gpu, 0);
  absl::Status status = CudaStatus("cudaDeviceEnablePeerAccess", enabled);
  if (!status.ok() && enabled != cudaErrorPeerAccessAlreadyEnabled) return status;
  if (peer.address == 0) return absl::FailedPreconditionError("it has no memory to test");
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process
  return CheckValues(device, rank, reinterpret_cast<const void*>(peer.address));
}

absl::Status ReachProcess(Device& device, const Card& mine, int rank, const Card& peer) {
  if (peer.kernel != mine.kernel) return absl::FailedPreconditionError("they are on different hosts");
  if (peer.memory.empty() || peer.event.empty() || mine.memory.empty()) {
    return absl::FailedPreconditionError("CUDA gives no IPC handles here");
  }
  PSRING_ASSIGN_OR_RETURN(const Buffer theirs,
                          ImportMemory(device, peer.memory, kProbeValues * sizeof(float)));
  PSRING_RETURN_IF_ERROR(CheckValues(device, rank, theirs.data()));
  cudaIpcEventHandle_t handle = {};
  std::string bytes;
  if (!absl::WebSafeBase64Unescape(peer.event, &bytes) || bytes.size() != sizeof(handle.reserved)) {
    return absl::InternalError("not a handle of an event");
  }
  std::memcpy(handle.reserved, bytes.data(), sizeof(handle.reserved));
  cudaEvent_t event = nullptr;
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaIpcOpenEventHandle", cudaIpcOpenEventHandle(&event, handle)));
  return CudaStatus("cudaEventDestroy", cudaEventDestroy(event));
}

}  // namespace

std::string ThisProcess() { return absl::StrCat(BootId(), " ", NamespaceId("pid"), " ", getpid()); }

absl::StatusOr<GpuReach> FindGpuReach(Rendezvous& rendezvous, int gpu, const std::string& process) {
  const int rank = rendezvous.options().rank;
  std::unique_ptr<Device> device;
  Probe probe;
  Card mine;
  std::string why;
  if (gpu >= 0) {
    absl::StatusOr<std::unique_ptr<Device>> made = MakeCudaDevice(gpu);
    if (made.ok()) {
      device = *std::move(made);
      mine = {.kernel = BootId(), .process = process, .unit = device->unit(), .gpu = gpu};
      if (absl::Status offered = Offer(rank, *device, probe, mine); !offered.ok()) {
        mine.memory.clear();  // other processes will report it
        mine.event.clear();
      }
    }
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                          rendezvous.Exchange("gpu reach", device != nullptr ? CardText(mine) : ""));
  GpuReach reach;
  std::vector<std::string> units;
  std::vector<int> without;
  for (size_t peer = 0; peer < texts.size(); ++peer) {
    PSRING_ASSIGN_OR_RETURN(const Card card, ParseCard(static_cast<int>(peer), texts[peer]));
    if (card.gpu < 0) {
      without.push_back(static_cast<int>(peer));
      continue;
    }
    reach.same_process.push_back(card.process == process);
    reach.some_apart |= card.process != process;
    units.push_back(card.unit);
    if (device == nullptr || static_cast<int>(peer) == rank) continue;
    const absl::Status reached = card.process == process
                                     ? ReachThread(*device, static_cast<int>(peer), card)
                                     : ReachProcess(*device, mine, static_cast<int>(peer), card);
    if (!reached.ok() && why.empty()) {
      why = absl::StrCat("rank ", rank, "'s GPU does not reach rank ", peer, "'s: ", reached.message());
    }
  }
  if (!without.empty()) {
    reach.why_not = absl::StrCat("rank ", without.front(), " has no GPU");
  } else if (texts.size() > static_cast<size_t>(gpu::kMaxTerms)) {
    reach.why_not = absl::StrCat("there are more than ", gpu::kMaxTerms, " ranks");
  }
  if (units.empty()) return reach;  // no rank has a GPU
  // When this returns all ranks have tested, and the offered memory may be freed.
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all, rendezvous.Exchange("gpu reached", why));
  for (const std::string& one : all) {
    if (reach.why_not.empty()) reach.why_not = PeerText(one);
  }
  std::sort(units.begin(), units.end());
  reach.shares_gpu = std::adjacent_find(units.begin(), units.end()) != units.end();
  return reach;
}

}  // namespace psring
