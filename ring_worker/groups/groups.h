// What the backends of process_group.cc share: one file per backend; *_absent.cc replaces missing libraries.
#pragma once

#include <memory>
#include <utility>

#include "common/base/mutex.h"
#include "ring_worker/groups/process_group.h"
#include "ring_worker/transports/transport.h"

namespace psring {

// scheduled.cc: psring's own backend, which runs a schedule over a transport.
BackendRow NativeBackend();
// Over any transport, which the group owns. `through_host`: see GroupInfo.
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeScheduledGroup(std::unique_ptr<Transport> transport,
                                                                 const GroupOptions& options,
                                                                 const std::string& through_host = "");

// gloo.cc, mpi.cc, nccl.cc or, if the library was not found, *_absent.cc.
BackendRow GlooBackend();
BackendRow MpiBackend();
BackendRow NcclBackend();

// A group of another library, which does not report its payload.
class LibraryGroup : public ProcessGroup {
 public:
  Traffic traffic() const final {
    MutexLock lock(mutex_);
    return traffic_;
  }

 protected:
  explicit LibraryGroup(GroupInfo info) : ProcessGroup(std::move(info)) {}

  // Payload of one call: *derived* from what a bandwidth-optimal algorithm sends, averaged over the ranks: of
  // M bytes 2(N-1)/N M for an all-reduce, otherwise (N-1)/N M, sent and received. Other algorithms may send
  // more (recursive doubling: lg N M).
  Traffic DerivedTraffic(const CollectiveCall& call) const;
  void Count(const Traffic& traffic) {
    MutexLock lock(mutex_);
    traffic_ = traffic_ + traffic;
  }
  // After the library has computed the mean as a sum, in host memory: divides it, and counts the traffic.
  void FinishOnHost(const CollectiveCall& call);

 private:
  mutable Mutex mutex_;
  Traffic traffic_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
