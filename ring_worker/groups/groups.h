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

}  // namespace psring
