#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/base/parameters.h"
#include "common/base/read_file.h"
#include "common/base/shared_memory.h"
#include "tests/random_moments.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A size in MiB that holds `elements` floats.
double Mb(size_t elements) { return static_cast<double>(elements) * 4 / (1 << 20); }

using Ranges = std::vector<std::pair<size_t, size_t>>;

// First and count of each bucket of tensors that are ready from the last to the first, or in the order
// `ready`.
Ranges Plan(const std::vector<int>& tensors, size_t first_elements, size_t others_elements,
            const std::optional<std::vector<int>>& ready = {}) {
  ParameterLayout layout(/*alignment=*/1);
  for (const int count : tensors) layout.Add("t", {count});
  const BucketSizes sizes = {Mb(first_elements), Mb(others_elements)};
  Ranges ranges;
  for (const Bucket& bucket : ready ? PlanBuckets(layout, *ready, sizes) : PlanBuckets(layout, sizes)) {
    EXPECT_EQ(bucket.index, static_cast<int>(ranges.size()));
    ranges.emplace_back(bucket.first, bucket.count);
  }
  return ranges;
}

TEST(ParameterLayoutTest, TensorsBeginAtMultiplesOf64Bytes) {
  ParameterLayout layout;
  EXPECT_EQ(layout.Add("fc.weight", {3, 5}), 0);
  EXPECT_EQ(layout.Add("fc.bias", {16}), 1);
  EXPECT_EQ(layout.Add("none", {0}), 2);
  EXPECT_EQ(layout.Add("scale", {}), 3);
  const std::vector<Tensor>& tensors = layout.tensors();
  EXPECT_EQ(tensors[1].name, "fc.bias");
  EXPECT_EQ(tensors[1].first, 16);
  EXPECT_EQ(tensors[1].count, 16);
  EXPECT_EQ(tensors[1].space, 16);
  EXPECT_EQ(tensors[2].space, 0);
  EXPECT_EQ(tensors[3].first, 32);
  EXPECT_EQ(tensors[3].count, 1);
  EXPECT_EQ(tensors[3].space, 16);
  EXPECT_EQ(layout.count(), 48);
  EXPECT_EQ(layout.parameters(), 15 + 16 + 1);
}

TEST(ParameterLayoutTest, WithoutAlignmentTensorsAreContiguous) {
  ParameterLayout layout(/*alignment=*/1);
  layout.Add("fc.weight", {3, 5});
  layout.Add("fc.bias", {3});
  EXPECT_EQ(layout.tensors()[1].first, 15);
  EXPECT_EQ(layout.count(), 18);
  EXPECT_EQ(layout.parameters(), 18);
}

TEST(PlanBucketsTest, ABucketContainsThePaddingOfItsTensors) {
  ParameterLayout layout;
  for (const int count : {20, 5, 3}) layout.Add("t", {count});
  const std::vector<Bucket> buckets = PlanBuckets(layout, {Mb(8), Mb(100)});
  ASSERT_EQ(buckets.size(), 2);
  EXPECT_EQ(buckets[0].first, 32);
  EXPECT_EQ(buckets[0].count, 32);
  EXPECT_EQ(buckets[1].count, 32);
}

TEST(PlanBucketsTest, BucketsOfUnequalPartsOfATensorAreEqual) {
  for (const int rows : {1, 2}) {
    ParameterLayout layout;
    layout.Add("before", {4});
    const TensorPart part{.first = 1, .count = static_cast<size_t>(rows), .whole = 5, .most = 2};
    const Tensor& tensor = layout.tensors()[layout.Add("part", {rows, 20}, {}, part)];
    EXPECT_EQ(tensor.count, rows * 20);
    EXPECT_EQ(tensor.space, 48);
    EXPECT_EQ(tensor.whole_count(), 100);
    const std::vector<Bucket> buckets = PlanBuckets(layout, {Mb(45), Mb(100)});
    ASSERT_EQ(buckets.size(), 2);
    EXPECT_EQ(buckets[0].first, 16);
    EXPECT_EQ(buckets[0].count, 48);
    EXPECT_EQ(layout.parameters(), 4 + rows * 20);
  }
}

TEST(PlanBucketsTest, WholeTensorsFillBucketsFromTheLastOn) {
  EXPECT_EQ(Plan({100, 10, 20, 5}, 20, 60), (Ranges{{110, 25}, {0, 110}}));
  EXPECT_EQ(Plan({10, 10, 10, 10}, 10, 20), (Ranges{{30, 10}, {10, 20}, {0, 10}})) << "full at its size";
  EXPECT_EQ(Plan({1000, 1, 1000, 1}, 10, 10), (Ranges{{1001, 1001}, {0, 1001}})) << "a larger tensor";
  EXPECT_EQ(Plan({4, 3, 2}, 100, 100), (Ranges{{0, 9}})) << "a small model";
  EXPECT_EQ(Plan({4, 3, 2}, 0, 0), (Ranges{{7, 2}, {4, 3}, {0, 4}})) << "a bucket for each tensor";
  EXPECT_EQ(Plan({}, 1, 1), Ranges{});
  EXPECT_EQ(Plan({0, 0}, 0, 0), Ranges{});
  EXPECT_EQ(Plan({0, 4, 0}, 0, 0), (Ranges{{0, 4}}));
}

TEST(PlanBucketsTest, TheMlpsFirstBucketIsReadyAfterTwoLayers) {
  ParameterLayout layout;
  layout.Add("fc1.weight", {1024, 784});
  layout.Add("fc1.bias", {1024});
  layout.Add("fc2.weight", {1024, 1024});
  layout.Add("fc2.bias", {1024});
  layout.Add("fc3.weight", {10, 1024});
  layout.Add("fc3.bias", {10});
  const std::vector<Bucket> buckets = PlanBuckets(layout, {});
  ASSERT_EQ(buckets.size(), 2);
  EXPECT_EQ(buckets[0].first, layout.tensors()[2].first);
  EXPECT_EQ(buckets[1].first, 0);
}

TEST(PlanBucketsTest, BucketsCoverEveryElementOnceFromTheEnd) {
  std::mt19937 generator(TestSeed());
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int> tensors(generator() % 12);
    size_t end = 0;
    for (int& count : tensors) end += count = static_cast<int>(generator() % 50);
    for (const auto& [first, count] : Plan(tensors, generator() % 60, generator() % 120)) {
      EXPECT_GT(count, 0);
      EXPECT_EQ(first + count, end);
      end = first;
    }
    EXPECT_EQ(end, 0);
  }
}

TEST(PlanBucketsByReadiness, AdjacentTensorsThatAreReadyTogetherAreOneBucket) {
  EXPECT_EQ(Plan({100, 10, 20, 5}, 20, 60, {{3, 2, 1, 0}}), Plan({100, 10, 20, 5}, 20, 60)) << "usual order";
  EXPECT_EQ(Plan({30, 30, 30}, 10, 10, {{0, 2, 1}}), (Ranges{{0, 30}, {60, 30}, {30, 30}}));
  EXPECT_EQ(Plan({10, 10, 10, 10}, 20, 20, {{2, 3, 0, 1}}), (Ranges{{20, 20}, {0, 20}})) << "in any order";
  EXPECT_EQ(Plan({10, 10, 10, 10}, 20, 20, {{1, 3, 0, 2}}), (Ranges{{10, 10}, {30, 10}, {0, 10}, {20, 10}}))
      << "others get buckets in the order of readiness";
}

TEST(PlanBucketsByReadiness, EveryOrderCoversEveryElementOnce) {
  std::mt19937 generator(TestSeed() + 1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int> tensors(generator() % 12), ready;
    size_t all = 0;
    for (int& count : tensors) all += count = static_cast<int>(generator() % 50);
    for (size_t i = 0; i < tensors.size(); ++i) ready.push_back(static_cast<int>(i));
    std::shuffle(ready.begin(), ready.end(), generator);
    std::vector<int> covered(all);
    for (const auto& [first, count] : Plan(tensors, generator() % 60, generator() % 120, ready)) {
      EXPECT_GT(count, 0);
      for (size_t i = first; i < first + count; ++i) ++covered[i];
    }
    EXPECT_EQ(covered, std::vector<int>(all, 1));
  }
}

TEST(TensorsInOrder, FollowsTheRangesWithTheLastTensorOfEachFirst) {
  ParameterLayout layout(/*alignment=*/1);
  for (const int count : {4, 3, 0, 2, 5}) layout.Add("t", {count});
  EXPECT_EQ(TensorsInOrder(layout, {{0, 14}}), (std::vector<int>{4, 3, 2, 1, 0}));
  EXPECT_EQ(TensorsInOrder(layout, {{0, 4}, {7, 7}, {4, 3}}), (std::vector<int>{0, 4, 3, 2, 1}));
}

TEST(MonotonicTime, IsOrderedAndSaturates) {
  const MonotonicTime now = MonotonicNow(), later = now + absl::Seconds(1);
  EXPECT_LT(now, later);
  EXPECT_EQ(later - now, absl::Seconds(1));
  EXPECT_EQ(later - absl::Seconds(1), now);
  EXPECT_EQ(std::min(MonotonicTime::InfiniteFuture(), later), later);
  EXPECT_LT(MonotonicTime::InfinitePast(), MonotonicTime());
  EXPECT_EQ(MonotonicTime::InfiniteFuture() - absl::Hours(1), MonotonicTime::InfiniteFuture());
  EXPECT_EQ(now + absl::InfiniteDuration(), MonotonicTime::InfiniteFuture());
  EXPECT_EQ(MonotonicTime::InfiniteFuture() - now, absl::InfiniteDuration());
}

TEST(MonotonicTime, OfAnyValueEndsAWait) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  for (const MonotonicTime past : {MonotonicTime::InfinitePast(), MonotonicTime() - absl::Seconds(1),
                                   MonotonicTime(), MonotonicNow() - absl::Nanoseconds(1)}) {
    EXPECT_FALSE(never.WaitUntil(mutex, past));
  }
  const MonotonicTime soon = MonotonicNow() + absl::Milliseconds(2);
  while (never.WaitUntil(mutex, soon)) {
  }
  EXPECT_GE(MonotonicNow(), soon);
}

class ReadFileTest : public testing::Test {
 protected:
  ReadFileTest() { folder_.Put("file", "12345"); }

  std::string Path(const std::string& name) const { return folder_ / name; }

  const TestFolder folder_;
};

TEST_F(ReadFileTest, ReadsARegularFile) {
  EXPECT_EQ(ReadFile(Path("file")).value(), "12345");
  EXPECT_EQ(ReadFile(Path("file"), 5).value(), "12345");
  EXPECT_TRUE(absl::IsNotFound(ReadFile(Path("absent")).status()));
}

TEST_F(ReadFileTest, NamesTheFileItsSizeAndTheLimit) {
  EXPECT_EQ(ReadFile(Path("file"), 4).status().message(),
            absl::StrCat("cannot read ", Path("file"), ": it has 5 bytes; the limit is 4"));
}

TEST_F(ReadFileTest, ALargeFileOfNoContentIsNotAllocated) {
  fs::resize_file(Path("file"), uint64_t{1} << 42);
  EXPECT_TRUE(absl::StrContains(ReadFile(Path("file")).status().message(), "4398046511104 bytes"));
}

TEST_F(ReadFileTest, ReadsFilesOfTheKernelUpToTheLimit) {
  EXPECT_TRUE(absl::StrContains(ReadFile("/proc/self/status").value(), "VmHWM"));
  EXPECT_EQ(ReadFile("/proc/self/status", 10).status().message(),
            "cannot read /proc/self/status: it has more than 10 bytes; the limit is 10");
}

TEST_F(ReadFileTest, RejectsWhatIsNotARegularFileWithoutWaiting) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", Path("link"));
  for (const auto& [path, kind] :
       {std::pair(Path("fifo"), "a FIFO"), std::pair(Path("link"), "a device"),
        std::pair(Path(""), "a folder"), std::pair(std::string("/dev/zero"), "a device")}) {
    EXPECT_EQ(ReadFile(path).status().message(),
              absl::StrCat("cannot read ", path, ": it is ", kind, ", not a regular file"));
  }
}

TEST_F(ReadFileTest, FollowsALinkOnlyIfItMay) {
  fs::create_symlink("file", Path("link"));
  EXPECT_EQ(ReadFile(Path("link")).value(), "12345");
  EXPECT_EQ(ReadFile(Path("link"), 5, SymbolicLinks::kReject).status().message(),
            absl::StrCat("cannot read ", Path("link"), ": it is a symbolic link"));
}

TEST(SharedMemoryTest, BothMappingsHaveTheSameContents) {
  const SharedMemory one = *SharedMemory::Create(10'000);
  const SharedMemory other = *SharedMemory::Adopt(dup(one.fd()), 10'000, /*prefault=*/true);
  one.data()[9'999] = std::byte{7};
  EXPECT_EQ(other.data()[9'999], std::byte{7});
}

TEST(SharedMemoryTest, NobodyCanChangeItsSize) {
  const SharedMemory memory = *SharedMemory::Create(10'000);
  EXPECT_NE(ftruncate(memory.fd(), 0), 0);
  EXPECT_NE(ftruncate(memory.fd(), 20'000), 0);
  EXPECT_EQ(memory.data()[9'999], std::byte{0});
}

TEST(SharedMemoryTest, AFileThatIsTooSmallOrMayShrinkIsNotAdopted) {
  const auto adopted = [](int fd, size_t bytes) {
    return SharedMemory::Adopt(fd, bytes, /*prefault=*/false).status().ToString();
  };
  const SharedMemory memory = *SharedMemory::Create(4096);
  EXPECT_EQ(adopted(dup(memory.fd()), 4096), "OK");
  EXPECT_THAT(adopted(dup(memory.fd()), 4097), HasSubstr("it is shared memory of 4096 bytes, not of 4097"));
  EXPECT_THAT(adopted(dup(memory.fd()), 0), HasSubstr("not of 0"));
  EXPECT_THAT(adopted(dup(memory.fd()), ~size_t{0}), HasSubstr("not of 18446744073709551615"));
  const int not_sealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(not_sealed, 4096), 0);
  EXPECT_THAT(adopted(not_sealed, 4096), HasSubstr("not shared memory that keeps its size"));
  std::string path = ::testing::TempDir() + "/shared-memory-XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  unlink(path.c_str());
  ASSERT_EQ(ftruncate(file, 4096), 0);
  EXPECT_THAT(adopted(file, 4096), HasSubstr("not shared memory that keeps its size"));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_THAT(adopted(ends[0], 4096), HasSubstr("not shared memory that keeps its size"));
  EXPECT_THAT(adopted(ends[1], 4096), HasSubstr("not shared memory that keeps its size"));
}

}  // namespace
}  // namespace psring
