// After the first calls a collective over shared memory allocates no memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "tests/ring_worker/mesh.h"

namespace {
std::atomic<int64_t> allocations = 0;
}  // namespace

// Counts every allocation through `new`, which containers and std::function use. Not inlined, because the
// compiler would warn about free() of memory from new.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace psring {
namespace {

int64_t PageFaultsOfThisThread() {
  rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

class SteadyStateTest : public testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(SteadyStateTest, CallsAllocateNoMemoryAndCauseNoPageFaults) {
  const auto [algorithm, shared] = GetParam();
  constexpr int kRanks = 2, kWarmUps = 5, kCalls = 50;
  constexpr size_t kCount = 1 << 20;
  std::vector<int64_t> faults(kRanks);
  int64_t allocated = 0;
  RunRanks(
      "shm", kRanks, {.algorithm = algorithm}, [&, shared = shared](ProcessGroup& group, Stream& stream) {
        const std::unique_ptr<Device> device = MakeCpuDevice();
        const Buffer buffer = *(shared ? device->AllocateShared(4 * kCount) : device->Allocate(4 * kCount));
        const Buffer other = *device->Allocate(4 * kCount);
        std::memset(other.data(), 0, other.bytes());  // maps the pages
        auto& memory = dynamic_cast<MemoryRegistration&>(group);
        PSRING_RETURN_IF_ERROR(memory.Register(buffer));
        const Span data = buffer.span();
        int64_t before = 0, faults_before = 0;
        for (int call = 0; call < kWarmUps + kCalls; ++call) {
          if (call == kWarmUps) {
            PSRING_RETURN_IF_ERROR(group.Barrier(stream));
            before = allocations;
            faults_before = PageFaultsOfThisThread();
          }
          PSRING_RETURN_IF_ERROR(group.AllReduce(data, data, ReduceOp::kSum, stream));
          PSRING_RETURN_IF_ERROR(group.AllToAll(data, other.span(), stream));
        }
        PSRING_RETURN_IF_ERROR(group.Barrier(stream));
        faults[group.rank()] = PageFaultsOfThisThread() - faults_before;
        if (group.rank() == 0) allocated = allocations - before;
        PSRING_RETURN_IF_ERROR(group.Barrier(stream));
        memory.Unregister(buffer);
        return stream.Synchronize();
      });
  EXPECT_EQ(allocated, 0);
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(faults[rank], 0) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(All, SteadyStateTest,
                         testing::Combine(testing::ValuesIn(AlgorithmsFor(Collective::kAllReduce)),
                                          testing::Bool()),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + (std::get<1>(info.param) ? "_shared" : "_private");
                         });

}  // namespace
}  // namespace psring
