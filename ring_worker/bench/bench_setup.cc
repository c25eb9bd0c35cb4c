#include "ring_worker/bench/bench_setup.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/own_process.h"
#include "common/cuda/cuda_device.h"
#include "common/device_factory/make_device.h"

namespace psring {
namespace {

// If there is a core for each rank, pins the calling thread to its own: after a call that sleeps, the kernel
// tends to wake a rank on its peer's core, and a call that spins then waits for the core.
void KeepToOwnCore(int rank, int ranks) {
  const std::vector<int> cores = AllowedCores();
  if (static_cast<int>(cores.size()) < ranks) return;
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(cores[static_cast<size_t>(rank)], &own);
  sched_setaffinity(0, sizeof(own), &own);  // failing to pin is not an error
}

// Page-aligned, on pages of the default size, like memory from malloc.
absl::StatusOr<Buffer> AllocatePlain(size_t bytes) {
  void* const data = std::aligned_alloc(4096, (bytes / 4096 + 1) * 4096);
  if (data == nullptr) return ResourceExhausted("no memory for ", bytes, " bytes");
  return Buffer(data, bytes, [](void* p) { std::free(p); });
}

}  // namespace

BenchSetup::BenchSetup(const BenchOptions& options, Rendezvous& rendezvous)
    : options_(options),
      rendezvous_(rendezvous),
      rank_(rendezvous.options().rank),
      ranks_(rendezvous.options().world_size),
      host_(MakeCpuDevice()) {}

absl::Status BenchSetup::OpenDevice() {
  PSRING_ASSIGN_OR_RETURN(device_, MakeDevice(DeviceOfRank(options_.device, rendezvous_.options().local_rank,
                                                           CudaDeviceCount())));
  stream_ = device_->NewStream(StreamKind::kCompute, "bench");
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> units,
                          rendezvous_.Exchange("bench device", device_->unit()));
  for (int rank = 0; rank < ranks_ && !options_.oversubscribe; ++rank) {
    if (units[rank].empty() ||
        std::find(units.begin(), units.begin() + rank, units[rank]) == units.begin() + rank) {
      continue;
    }
    return FailedPrecondition(
        "rank ", rank,
        " would share its GPU with another; start fewer ranks, or give --oversubscribe (shows "
        "that it works, not how fast)");
  }
  return absl::OkStatus();
}

absl::Status BenchSetup::AllocateBuffers() {
  const size_t bytes = std::max<size_t>(64, *std::max_element(options_.bytes.begin(), options_.bytes.end()));
  if (on_gpu()) {
    PSRING_ASSIGN_OR_RETURN(mirror_, device_->AllocateOnHost(bytes));
  }
  for (const BufferKind kind : kBufferKinds) {
    const bool wanted = (options_.limits && kind != BufferKind::kHuge) ||
                        std::any_of(options_.combinations.begin(), options_.combinations.end(),
                                    [&](const Combination& c) { return c.buffers == kind; });
    if (!wanted) continue;
    for (Buffer* buffer : {&BuffersOf(kind).send, &BuffersOf(kind).receive}) {
      PSRING_ASSIGN_OR_RETURN(*buffer, kind == BufferKind::kShared ? device_->AllocateShared(bytes)
                                       : kind == BufferKind::kHuge || on_gpu() ? device_->Allocate(bytes)
                                                                               : AllocatePlain(bytes));
      PSRING_RETURN_IF_ERROR(PoisonBuffer(buffer->span()));  // maps the pages
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ProcessGroup*> BenchSetup::GroupOf(const Combination& combination) {
  std::unique_ptr<ProcessGroup>& group =
      groups_[{combination.backend, combination.algorithm, combination.transport}];
  if (group == nullptr) {
    GroupOptions options = OptionsOfGroup(options_, combination);
    options.gpu = device_->gpu();
    absl::StatusOr<std::unique_ptr<ProcessGroup>> made = MakeProcessGroup(rendezvous_, options);
    if (!made.ok()) {
      groups_.erase({combination.backend, combination.algorithm, combination.transport});
      return Prefixed(made.status(), Describe(combination), ": ");
    }
    group = *std::move(made);
  }
  if (on_gpu() && !group->info().on_gpu) {
    return FailedPrecondition(
        Describe(combination), " works in the host's memory",
        group->info().through_host.empty() ? "" : absl::StrCat(", since ", group->info().through_host),
        "; omit --device");
  }
  return group.get();
}

absl::Status BenchSetup::Open() {
  PSRING_RETURN_IF_ERROR(OpenDevice());
  PSRING_RETURN_IF_ERROR(AllocateBuffers());
  PSRING_ASSIGN_OR_RETURN(const bool one_host, OnOneHost(rendezvous_));
  if (one_host) {
    PSRING_ASSIGN_OR_RETURN(barrier_, HostBarrier::Make(rendezvous_, *host_, options_.group.timeout));
  }
  for (const Combination& combination : options_.combinations) {
    PSRING_ASSIGN_OR_RETURN(group_of_.emplace_back(), GroupOf(combination));
    if (combination.buffers != BufferKind::kShared) continue;
    auto* const memory = dynamic_cast<MemoryRegistration*>(group_of_.back());
    if (memory == nullptr) continue;
    PSRING_RETURN_IF_ERROR(memory->Register(BuffersOf(BufferKind::kShared).send));
    PSRING_RETURN_IF_ERROR(memory->Register(BuffersOf(BufferKind::kShared).receive));
  }
  if (options_.limits) {
    if (!one_host) return absl::FailedPreconditionError("limits are of one host; these ranks are on several");
    PSRING_ASSIGN_OR_RETURN(limits_,
                            HostLimits::Make(rendezvous_, *barrier_, BuffersOf(BufferKind::kPrivate).send,
                                             BuffersOf(BufferKind::kPrivate).receive,
                                             BuffersOf(BufferKind::kShared).receive, options_.group.timeout));
  }
  // After the groups are made, so that threads started by a backend keep their affinity.
  if (one_host && options_.pin) KeepToOwnCore(rank_, ranks_);
  return absl::OkStatus();
}

absl::Status BenchSetup::Meet() {
  if (barrier_ != nullptr) return barrier_->Wait();
  if (groups_.empty()) return rendezvous_.Exchange("bench meeting", "").status();
  PSRING_RETURN_IF_ERROR(groups_.begin()->second->Barrier(*stream_));
  return stream_->Synchronize();
}

void BenchSetup::Abort(const absl::Status& why) {
  if (barrier_ != nullptr) barrier_->GiveUp(why);
  for (auto& [key, group] : groups_) group->Abort(why);
}

CallBuffers BenchSetup::buffers(BufferKind kind) const {
  const Buffers& buffers = buffers_[static_cast<size_t>(kind)];
  return {buffers.send.data(), buffers.receive.data()};
}

absl::Status BenchSetup::FillBuffer(const TestValues& values, size_t first, Span data) {
  values.Fill(rank_, first, Seen(data));
  return Upload(data);
}

absl::Status BenchSetup::PoisonBuffer(Span data) {
  Poison(Seen(data));
  return Upload(data);
}

absl::Status BenchSetup::Upload(Span data) {
  if (!on_gpu()) return absl::OkStatus();
  stream_->Copy(data.data, mirror_.data(), data.bytes());
  return stream_->Synchronize();
}

absl::Status BenchSetup::Download(Span data) {
  if (!on_gpu()) return absl::OkStatus();
  stream_->Copy(mirror_.data(), data.data, data.bytes());
  return stream_->Synchronize();
}

}  // namespace psring
