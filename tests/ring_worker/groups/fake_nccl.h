// A libnccl without GPUs: a shared library with NCCL's name, which our code loads like the real one. Its
// ranks are threads of one process on the fake CUDA runtime. It computes sums, waits on the "GPU" for missing
// ranks, as NCCL's kernels do, and logs every call. As with communicators that do not block, a collective
// reaches its stream after the call, when the communicator's state becomes ncclSuccess. Collectives can be
// captured; sends do not wait for their receives. As with NCCL, destroying a communicator then waits until no
// graph contains them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/dynamic_library.h"

namespace psring {

// The test's interface to the library. Settings: "version" (NCCL's code), "later_version" (for the second and
// later callers; 0: the same), "init_hangs", "async_error" (a ncclResult_t that every communicator reports
// from now on).
class FakeNccl {
 public:
  static FakeNccl Load() {
    const absl::StatusOr<DynamicLibrary> library = DynamicLibrary::Open({"libnccl.so.2"});
    PSRING_CHECK(library.ok());
    FakeNccl fake;
    PSRING_CHECK(library->Bind("psringFakeNcclReset", fake.reset_).ok());
    PSRING_CHECK(library->Bind("psringFakeNcclSet", fake.set_).ok());
    PSRING_CHECK(library->Bind("psringFakeNcclLog", fake.log_).ok());
    return fake;
  }

  void Reset() { reset_(); }
  void Set(const char* what, int value) { set_(what, value); }
  // The calls of a rank in order, also those of its parts: "init of 2, blocking 0", "split", "all_reduce
  // 100", "broadcast 7, recorded", "send 5 to 1", "receive 5 from 1", "launch of a group of 3", "finalize",
  // "destroy", "abort"; and at init the variables that begin with NCCL_: "NCCL_ALGO=Ring".
  std::vector<std::string> Log(int rank) const {
    std::vector<std::string> lines;
    const std::string prefix = absl::StrCat(rank, " ");
    for (const absl::string_view line : absl::StrSplit(log_(), '\n', absl::SkipEmpty())) {
      if (absl::StartsWith(line, prefix)) lines.emplace_back(line.substr(prefix.size()));
    }
    return lines;
  }

 private:
  void (*reset_)();
  void (*set_)(const char* what, int value);
  const char* (*log_)();
};

}  // namespace psring
