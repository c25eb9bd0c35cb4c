// Upper limits of this host: only the work that a collective cannot avoid. The processes that measure the
// collectives also measure these, in turn with them.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/net/tls/member_socket.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/bench/bench_barrier.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {

enum class LimitKind {
  kCopy,    // every rank copies one private buffer into another, at the same time
  kShared,  // the minimum of memory accesses if every rank reads and writes every other's buffer
  kTcp,     // every rank sends to the next rank and receives from the previous one, over loopback TCP
  kUnix,    // the same over unix sockets
};
const char* Name(LimitKind kind);  // "copy", "shared", "tcp", "unix"

// In kShared, with S bytes a rank and N ranks, each rank
//   all-reduce      adds up its N-th part of all N buffers and writes the sum into all of them
//   reduce-scatter  adds up its N-th part of all N buffers into its own
//   all-gather      copies the other ranks' parts into its own buffer
//   broadcast       copies the buffer of rank 0 into its own
//   all-to-all      copies its part of all N buffers into a private one
// between two barriers. In kTcp and kUnix each link carries BusFactor(collective) x S bytes: what a ring
// sends over each of its links, without its rounds. Each rank sends from one private buffer of S bytes and
// receives into another, as a collective does. So S x BusFactor / time is a busbw for all three kinds.
class HostLimits {
 public:
  // Collective. `copy_*` are this rank's private buffers, `shared` its shared one. All have at least the
  // largest size, and have been touched.
  static absl::StatusOr<std::unique_ptr<HostLimits>> Make(Rendezvous& rendezvous, HostBarrier& barrier,
                                                          const Buffer& copy_from, const Buffer& copy_to,
                                                          const Buffer& shared, absl::Duration timeout);

  // Collective with the same arguments; `bytes` is the collective's size. Overwrites the buffers.
  absl::Status Run(LimitKind kind, Collective collective, size_t bytes);

 private:
  struct Links {
    MemberSocket next, before;  // this rank's sockets to the next rank and from the previous one
  };

  HostLimits(Rendezvous& rendezvous, HostBarrier& barrier, absl::Duration timeout)
      : rank_(rendezvous.options().rank),
        ranks_(rendezvous.options().world_size),
        barrier_(barrier),
        timeout_(timeout) {}
  // `family`: AF_INET or AF_UNIX.
  static absl::StatusOr<Links> Connect(Rendezvous& rendezvous, int family, absl::Duration timeout);
  absl::Status RunShared(Collective collective, size_t bytes);
  absl::Status RunLinks(Links& links, Collective collective, size_t bytes);

  const int rank_, ranks_;
  HostBarrier& barrier_;
  const absl::Duration timeout_;
  void* copy_from_ = nullptr;
  void* copy_to_ = nullptr;
  SharedBuffers shared_;
  Links tcp_, unix_;
};

}  // namespace psring
