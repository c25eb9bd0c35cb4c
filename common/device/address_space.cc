#include "common/device/address_space.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

// Libraries, and the stacks and heaps of threads. Measured with 3 ranks of the MLP on 2 cores, by reducing
// the limit until a job failed.
constexpr size_t kBase = size_t{1280} << 20;

}  // namespace

std::optional<AddressSpace> LimitOfAddressSpace() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const size_t used = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return AddressSpace{.limit = limit.rlim_cur,
                      .left = limit.rlim_cur - std::min<size_t>(limit.rlim_cur, used)};
}

absl::Status CheckAddressSpace() {
  const std::optional<AddressSpace> space = LimitOfAddressSpace();
  if (!space.has_value() || space->limit >= kBase) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this process may use ", space->limit >> 20, " MiB of address space, and psring needs about ",
      kBase >> 20, " MiB and the memory of its job; run: ulimit -v unlimited"));
}

}  // namespace psring
