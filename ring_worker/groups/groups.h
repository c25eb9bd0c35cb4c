// The factories that MakeProcessGroup calls, one backend per file; *_absent.cc replaces missing libraries.
#pragma once

#include <memory>

#include "ring_worker/groups/process_group.h"
#include "ring_worker/transports/transport.h"

namespace psring {

// scheduled.cc: psring's own backend, which runs a schedule over a transport.
BackendRow NativeBackend();
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeNativeGroup(Rendezvous& rendezvous,
                                                              const GroupOptions& options);
// Over any transport, which the group owns. `through_host`: see GroupInfo.
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeScheduledGroup(std::unique_ptr<Transport> transport,
                                                                 const GroupOptions& options,
                                                                 const std::string& through_host = "");

// gloo.cc, mpi.cc, nccl.cc or, if the library was not found, *_absent.cc.
BackendRow GlooBackend();
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeGlooGroup(Rendezvous& rendezvous,
                                                            const GroupOptions& options);
BackendRow MpiBackend();
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeMpiGroup(Rendezvous& rendezvous,
                                                           const GroupOptions& options);
BackendRow NcclBackend();
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeNcclGroup(Rendezvous& rendezvous,
                                                            const GroupOptions& options);

// Payload of one call of a library that does not report it: *derived* from what a bandwidth-optimal algorithm
// sends, averaged over the ranks: of M bytes 2(N-1)/N M for an all-reduce, otherwise (N-1)/N M, sent and
// received. Other algorithms may send more (recursive doubling: lg N M).
Traffic DerivedTraffic(const CollectiveCall& call, int ranks);

}  // namespace psring
