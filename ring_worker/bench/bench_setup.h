// What one rank of a benchmark holds while it measures: its device, buffers, groups, barrier and limits.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/bench/bench_barrier.h"
#include "ring_worker/bench/bench_limits.h"
#include "ring_worker/bench/bench_run.h"
#include "ring_worker/bench/bench_values.h"
#include "ring_worker/groups/process_group.h"

namespace psring {

// One thread at a time.
class BenchSetup {
 public:
  // Both must outlive the setup.
  BenchSetup(const BenchOptions& options, Rendezvous& rendezvous);

  // Collective. Opens the device, allocates and touches the buffers and makes the groups.
  absl::Status Open();
  // A barrier over all ranks; uses none of the measured groups if all ranks are on one host.
  absl::Status Meet();
  // Notifies the other ranks that this one has failed.
  void Abort(const absl::Status& why);

  const BenchOptions& options() const { return options_; }
  Rendezvous& rendezvous() const { return rendezvous_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const Device& device() const { return *device_; }
  bool on_gpu() const { return !device_->host_reads_memory(); }
  Stream& stream() const { return *stream_; }
  HostLimits* limits() const { return limits_.get(); }  // null unless the options ask for limits
  ProcessGroup* group(size_t combination) const { return group_of_[combination]; }
  CallBuffers buffers(BufferKind kind) const;  // null pointers if the kind is not measured

  // `data` lies in a buffer. On a GPU, FillBuffer and PoisonBuffer write to a host copy and upload it;
  // Download fills that copy and Seen returns it.
  absl::Status FillBuffer(const TestValues& values, size_t first, Span data);
  absl::Status PoisonBuffer(Span data);
  absl::Status Download(Span data);
  Span Seen(Span data) const { return on_gpu() ? Span{mirror_.data(), data.count, data.type} : data; }

 private:
  struct Buffers {
    Buffer send, receive;
  };

  Buffers& BuffersOf(BufferKind kind) { return buffers_[static_cast<size_t>(kind)]; }
  absl::Status OpenDevice();
  absl::Status AllocateBuffers();
  absl::StatusOr<ProcessGroup*> GroupOf(const Combination& combination);
  absl::Status Upload(Span data);

  const BenchOptions& options_;
  Rendezvous& rendezvous_;
  const int rank_, ranks_;
  const std::unique_ptr<Device> host_;
  std::unique_ptr<Device> device_;  // whose memory is measured
  std::unique_ptr<Stream> stream_;
  Buffer mirror_;  // host copy of a GPU buffer
  // Declared before the groups: memory that is registered with a group must outlive it.
  std::array<Buffers, std::size(kBufferKinds)> buffers_;  // by kind; empty unless a combination uses the kind
  std::unique_ptr<HostBarrier> barrier_;                  // null if the ranks are on several hosts
  std::unique_ptr<HostLimits> limits_;
  std::map<std::tuple<std::string, std::string, std::string>, std::unique_ptr<ProcessGroup>> groups_;
  std::vector<ProcessGroup*> group_of_;  // by combination
};

}  // namespace psring
