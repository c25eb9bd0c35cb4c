// Payload between the GPUs of one host: a receiver's kernel reads the sender's memory and adds, without
// copies through the host. Between processes the memory is opened by CUDA IPC; between threads of one process
// it is accessed directly (peer access).
//
// *Control flow.* The hosts exchange where the values are and when they are ready: a sender records an event
// after its work in its stream, and sends the receiver the values' address and the event, over a host
// transport. The receiver makes its stream wait for that event, adds, records its own event, and sends it to
// the sender, whose stream waits for it before the memory is written again. Hosts wait for each other's
// messages on the thread that enqueues, with the transport's deadlines and error messages; no host waits for
// a GPU.
//
// *Why events, and not flags in memory that a kernel or the stream polls.* A stream waits for an event only
// after the event was recorded, so the awaited work was always enqueued before the wait. So all enqueued work
// ends, however GPUs and hardware queues are shared, and even if a rank gives up. A polling kernel would
// occupy a processor that its peer on the same GPU may need, a polling stream the hardware queue that its
// peer's stream may share, and both would need a release when a rank gives up. NVIDIA's sample of CUDA IPC
// works the same way. The price is a few microseconds of host time per round, which concurrent segments hide.
//
// *Limitation.* A process that is killed between sending its message and its GPU's work leaves peers' GPUs
// waiting: their hosts report it at the deadline, and the GPU work ends with their processes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/device/device.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/transports/transport.h"

namespace psring {

// Whether the ranks of a group can access each other's GPUs. Equal on every rank except for `same_process`.
struct GpuReach {
  std::string why_not;             // why they cannot; empty: they can
  bool some_apart = false;         // two ranks are in different processes
  bool shares_gpu = false;         // two ranks share a GPU
  std::vector<bool> same_process;  // by rank: whether it is in this rank's process
};

// Collective. `gpu`: this rank's; -1: it has none. `process`: equal for ranks of one process, and for no
// others. Enables peer access if it is needed.
absl::StatusOr<GpuReach> FindGpuReach(Rendezvous& rendezvous, int gpu, const std::string& process);

// A name that identifies this process.
std::string ThisProcess();

struct CudaIpcParts {
  int gpu = 0;
  GpuReach reach;
  absl::Duration timeout = absl::Seconds(60);
  // Host transports between the same ranks, for exclusive use: one per direction of the exchange, since a
  // transport needs sends and receives in one order.
  std::unique_ptr<Transport> exports, releases;
};
// For streams of this GPU only. "cuda_ipc", or "cuda_peer" if all ranks are threads of one process; "... on
// shared GPUs". FailedPrecondition in a build without CUDA. Also a DeviceWork.
absl::StatusOr<std::unique_ptr<Transport>> MakeCudaIpcTransport(CudaIpcParts parts);

}  // namespace psring
