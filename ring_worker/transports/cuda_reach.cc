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
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_device.h"
#include "common/cuda/cuda_sharing.h"
#include "common/cuda/gpu_reduce.h"
#include "common/net/host_identity.h"
#include "ring_worker/transports/cuda_ipc.h"
#include "ring_worker/transports/cuda_loans.h"

namespace psring {
namespace {

constexpr char kSeparator = '|';

// A rank's description. Empty: it has no usable GPU.
struct Card {
  std::string kernel, process, unit;
  int gpu = -1;
  std::string memory, event;  // handles of a region and of an event, for testing
};

std::string CardText(const Card& card) {
  return absl::StrCat(card.kernel, "|", card.process, "|", card.unit, "|", card.gpu, "|", card.memory, "|",
                      card.event);
}

absl::StatusOr<Card> ParseCard(int rank, const std::string& text) {
  if (text.empty()) return Card();
  const std::vector<std::string> words = absl::StrSplit(text, kSeparator);
  Card card;
  if (words.size() != 6 || !absl::SimpleAtoi(words[3], &card.gpu)) {
    return absl::InternalError(absl::StrCat("rank ", rank, " describes its GPU as: ", text));
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
  LentEvents events;
};

absl::Status Offer(Device& device, Probe& probe, Card& card) {
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaSetDevice", cudaSetDevice(device.gpu())));
  PSRING_ASSIGN_OR_RETURN(probe.memory, device.Allocate(256));
  PSRING_ASSIGN_OR_RETURN(card.memory, ExportMemory(device, probe.memory));
  PSRING_RETURN_IF_ERROR(probe.events.Create(/*exported=*/true));
  const Moment& first = probe.events.all().front();
  card.event = absl::BytesToHexString({first.handle, sizeof(first.handle)});
  return absl::OkStatus();
}

absl::Status ReachThread(int gpu, const Card& peer) {
  if (peer.gpu == gpu) return absl::OkStatus();
  int can = 0;
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, gpu, peer.gpu)));
  if (can == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuda:", gpu, " has no peer access to cuda:", peer.gpu));
  }
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaSetDevice", cudaSetDevice(gpu)));
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer.gpu, 0);
  if (enabled == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  return enabled == cudaErrorPeerAccessAlreadyEnabled ? absl::OkStatus()
                                                      : CudaStatus("cudaDeviceEnablePeerAccess", enabled);
}

absl::Status ReachProcess(Device& device, const Card& mine, const Card& peer) {
  if (peer.kernel != mine.kernel) return absl::FailedPreconditionError("they are on different hosts");
  if (peer.memory.empty() || peer.event.empty() || mine.memory.empty()) {
    return absl::FailedPreconditionError("CUDA gives no IPC handles here");
  }
  PSRING_RETURN_IF_ERROR(ImportMemory(device, peer.memory, 256).status());
  cudaIpcEventHandle_t handle = {};
  const std::string bytes = absl::HexStringToBytes(peer.event);
  if (bytes.size() != sizeof(handle.reserved)) return absl::InternalError("not a handle of an event");
  std::memcpy(handle.reserved, bytes.data(), sizeof(handle.reserved));
  cudaEvent_t event = nullptr;
  const cudaError_t opened = cudaIpcOpenEventHandle(&event, handle);
  if (opened != cudaSuccess) {
    (void)cudaGetLastError();
    return CudaStatus("cudaIpcOpenEventHandle", opened);
  }
  cudaEventDestroy(event);
  return absl::OkStatus();
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
      if (absl::Status offered = Offer(*device, probe, mine); !offered.ok()) {
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
    const absl::Status reached =
        card.process == process ? ReachThread(gpu, card) : ReachProcess(*device, mine, card);
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
    if (reach.why_not.empty()) reach.why_not = one;
  }
  std::sort(units.begin(), units.end());
  reach.shares_gpu = std::adjacent_find(units.begin(), units.end()) != units.end();
  return reach;
}

}  // namespace psring
