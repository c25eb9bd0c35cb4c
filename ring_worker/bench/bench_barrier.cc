#include "ring_worker/bench/bench_barrier.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/device/control_groups.h"
#include "common/net/host_identity.h"
#include "common/rendezvous/rendezvous_store.h"

namespace psring {
namespace {

constexpr int kSpins = 4000;  // about 20 us, if there is a core for each rank
constexpr int kYieldsBetweenLooks = 256;
constexpr int kLooksBeforeSleep = 64;  // then the wait sleeps

// Identifies the running kernel and the PID namespace.
std::string HostIdentity() { return absl::StrCat(BootId(), " ", NamespaceId("pid")); }

absl::Status MapError(int rank, absl::string_view why) {
  return FailedPrecondition("cannot see the memory of rank ", rank, ": ", why);
}

absl::StatusOr<SharedMemory> MapOne(int rank, const std::string& card) {
  const std::vector<std::string> fields = absl::StrSplit(card, ' ');
  size_t bytes = 0;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[2], &bytes)) {
    return Internal("rank ", rank, " published invalid memory: ", card);
  }
  const std::string path = absl::StrCat("/proc/", fields[0], "/fd/", fields[1]);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return MapError(rank, strerror(errno));
  absl::StatusOr<SharedMemory> memory = SharedMemory::Adopt(fd, bytes, /*prefault=*/false);
  if (!memory.ok()) return MapError(rank, memory.status().message());
  return memory;
}

}  // namespace

absl::StatusOr<bool> OnOneHost(Rendezvous& rendezvous) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                          rendezvous.Exchange("bench host", HostIdentity()));
  return std::all_of(hosts.begin(), hosts.end(), [&](const std::string& host) { return host == hosts[0]; });
}

absl::StatusOr<SharedBuffers> SharedBuffers::Map(Rendezvous& rendezvous, const std::string& name,
                                                 const Buffer& mine) {
  PSRING_CHECK(mine.shared_fd() >= 0);
  PSRING_ASSIGN_OR_RETURN(
      const std::vector<std::string> cards,
      rendezvous.Exchange(absl::StrCat("shared ", name),
                          absl::StrCat(getpid(), " ", mine.shared_fd(), " ", mine.bytes())));
  SharedBuffers buffers;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    PSRING_ASSIGN_OR_RETURN(buffers.maps_.emplace_back(), MapOne(static_cast<int>(rank), cards[rank]));
  }
  // No rank may continue, and possibly end, before all have mapped its memory.
  PSRING_RETURN_IF_ERROR(rendezvous.Exchange(absl::StrCat("mapped ", name), "").status());
  return buffers;
}

// On its own pair of cache lines, because processors prefetch the adjacent line.
struct alignas(128) HostBarrier::Slot {
  std::atomic<uint64_t> arrivals;
  std::atomic<uint32_t> gave_up;  // set after `reason`
  char reason[512];
};

absl::StatusOr<std::unique_ptr<HostBarrier>> HostBarrier::Make(Rendezvous& rendezvous, Device& device,
                                                               absl::Duration timeout) {
  const int ranks = rendezvous.options().world_size;
  std::unique_ptr<HostBarrier> barrier(new HostBarrier(rendezvous.options().rank, ranks, timeout));
  PSRING_ASSIGN_OR_RETURN(barrier->mine_, device.AllocateShared(sizeof(Slot)));
  PSRING_ASSIGN_OR_RETURN(barrier->slots_, SharedBuffers::Map(rendezvous, "barrier", barrier->mine_));
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> pids,
                          rendezvous.Exchange("barrier pid", absl::StrCat(getpid())));
  for (const std::string& text : pids) {
    int pid = 0;
    barrier->processes_.emplace_back(
        absl::SimpleAtoi(text, &pid) ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1);
  }
  barrier->spins_ = UsableCores() >= ranks ? kSpins : 0;
  return barrier;
}

HostBarrier::Slot& HostBarrier::slot(int rank) const { return *reinterpret_cast<Slot*>(slots_.of(rank)); }

bool HostBarrier::Arrived(int rank) const {
  return slot(rank).arrivals.load(std::memory_order_acquire) >= epoch_;
}

absl::Status HostBarrier::Wait() {
  slot(rank_).arrivals.store(++epoch_, std::memory_order_release);
  MonotonicTime deadline = MonotonicTime::InfiniteFuture();
  int64_t turns = 0;
  for (int peer = 0; peer < ranks_; ++peer) {
    while (!Arrived(peer)) {
      if (turns++ < spins_) {
        SpinPause();
        continue;
      }
      sched_yield();
      if (turns % kYieldsBetweenLooks != 0) continue;
      if (deadline == MonotonicTime::InfiniteFuture()) deadline = MonotonicNow() + timeout_;
      PSRING_RETURN_IF_ERROR(Look(deadline));
      if (turns > spins_ + kYieldsBetweenLooks * kLooksBeforeSleep) {
        turns += kYieldsBetweenLooks - 1;  // the next turn checks again
        const timespec moment{0, 200'000};
        nanosleep(&moment, nullptr);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status HostBarrier::Look(MonotonicTime deadline) const {
  std::vector<pollfd> ends;
  std::vector<int> missing, ended;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (Arrived(peer)) continue;
    missing.push_back(peer);
    ends.push_back({processes_[static_cast<size_t>(peer)].get(), POLLIN, 0});
  }
  // A rank that gave a reason is reported before one that has ended, because it is closer to the cause.
  for (const int peer : missing) {
    if (slot(peer).gave_up.load(std::memory_order_acquire) == 0) continue;
    return absl::UnavailableError(slot(peer).reason);
  }
  poll(ends.data(), ends.size(), 0);
  for (size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].revents != 0 && !Arrived(missing[i]) &&
        slot(missing[i]).gave_up.load(std::memory_order_acquire) == 0) {
      ended.push_back(missing[i]);
    }
  }
  if (!ended.empty()) {
    return Unavailable("the process of ", RanksText(ended), " has ended, and rank ", rank_, " waits for it");
  }
  if (MonotonicNow() < deadline) return absl::OkStatus();
  return DeadlineExceeded("rank ", rank_, " waited ", SecondsText(timeout_), " for ", RanksText(missing),
                          " before a timed call");
}

void HostBarrier::GiveUp(const absl::Status& why) {
  Slot& mine = slot(rank_);
  const std::string reason(why.message());
  const size_t length = std::min(reason.size(), sizeof(mine.reason) - 1);
  std::memcpy(mine.reason, reason.data(), length);
  mine.reason[length] = 0;
  mine.gave_up.store(1, std::memory_order_release);
}

}  // namespace psring
