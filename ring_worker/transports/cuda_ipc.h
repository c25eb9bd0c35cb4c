// Payload between the GPUs of one host: a receiver's kernel reads the sender's memory and adds, and nothing
// passes through the host. Between processes the memory is opened by CUDA IPC, between threads of one process
// it is reached as it is (peer access).
//
// *Who is told what.* The host says where and when: a sender records an event behind what it has told its
// stream, and then tells the receiver, over a transport of the host's, where the values stand and which event
// it was. The receiver lets its stream wait for that event, adds, records an event of its own, and tells the
// sender, whose stream waits for it before the memory is written again. Hosts wait for each other's word,
// with the deadlines and the names of their transport, on the thread that enqueues; nobody waits for a GPU.
//
// *Why events, and not flags in memory that a kernel or the stream polls.* A stream waits for an event only
// after the event was recorded, so whatever is waited for was told to a GPU before the wait was: however GPUs
// and hardware queues are shared, and whoever gives up, everything that was told to a GPU comes to its end.
// A polling kernel would hold a processor that its peer on the same GPU may need, a polling stream the
// hardware queue that its peer's stream may share, and both would need a release when a rank gives up. It is
// also what NVIDIA's own sample of CUDA IPC does. The price is a few microseconds of the hosts' in each
// round, which the segments that are on their way together hide.
//
// *Limit.* A process that is killed between its word and its GPU's work leaves peers' GPUs waiting: their
// hosts say so at the deadline, and their processes end when they are told to.
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

// How the ranks of a group reach each other's GPUs. The same on every rank but for `same_process`.
struct GpuReach {
  std::string why_not;             // not at all, because of this; empty: they do
  bool some_apart = false;         // two ranks are in different processes
  bool shares_gpu = false;         // two ranks have one GPU
  std::vector<bool> same_process;  // as this rank, by rank
};

// Every rank calls it. `gpu`: of this rank; -1: it has none. `process`: equal for ranks of one process, and
// for no others. Enables peer access where that is how it is done.
absl::StatusOr<GpuReach> FindGpuReach(Rendezvous& rendezvous, int gpu, const std::string& process);

// A name that only threads of this process have.
std::string ThisProcess();

struct CudaIpcParts {
  int gpu = 0;
  GpuReach reach;
  absl::Duration timeout = absl::Seconds(60);
  // Of the host, between the same ranks, and of nobody else's use: one for each direction of the talk, since
  // a transport wants sends and receives in one order.
  std::unique_ptr<Transport> loans, returns;
};
// Works on streams of this GPU alone. "cuda_ipc", or "cuda_peer" where all ranks are threads of one process;
// "... on shared GPUs". FailedPrecondition in a build without CUDA.
absl::StatusOr<std::unique_ptr<Transport>> MakeCudaIpcTransport(CudaIpcParts parts);

}  // namespace psring
