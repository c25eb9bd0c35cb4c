// Measures the memory bandwidth of element-wise ops relative to a copy on the same device:
// op_bandwidth [DEVICE [MIB of a buffer]]. Counts the bytes that an op must read and write.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/cli/command_line.h"
#include "common/device/device.h"
#include "common/device_factory/make_device.h"
#include "common/device_factory/make_ops.h"
#include "common/ops/ops.h"
#include "experiments/stats/statistics.h"

namespace psring {
namespace {

constexpr int kRounds = 21;
constexpr int kCalls = 10;  // per case and round

struct Case {
  const char* name;
  int passes;  // number of times that a buffer is read or written
  std::function<void()> work;
  std::vector<double> seconds = {};
};

absl::Status Run(const std::string& spec, size_t bytes) {
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeDevice(spec));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, MakeUpdateOps(*device));
  const std::unique_ptr<Stream> stream = device->NewStream(StreamKind::kCompute, "bandwidth");
  std::vector<Buffer> buffers;
  for (int i = 0; i < 4; ++i) {
    PSRING_ASSIGN_OR_RETURN(Buffer buffer, device->Allocate(bytes));
    buffers.push_back(std::move(buffer));
  }
  const Span a = buffers[0].span(), b = buffers[1].span(), c = buffers[2].span(), d = buffers[3].span();
  const SgdStep sgd{1, 0};
  const MomentumStep momentum{1, 0, 0};
  const AdamStep adam{1, 0, 0, 0, 1, 1, 1};
  std::vector<Case> cases = {{"copy", 2, [&] { stream->Copy(a.data, b.data, bytes); }},
                             {"add", 3, [&] { ops->Add(a, b, *stream); }},
                             {"sgd", 3, [&] { ops->Apply(sgd, a, b, {}, *stream); }},
                             {"momentum", 5, [&] { ops->Apply(momentum, a, b, {c}, *stream); }},
                             {"adam", 7, [&] {
                                ops->Apply(adam, a, b, {c, d}, *stream);
                              }}};
  for (int round = -1; round < kRounds; ++round) {  // round -1 is a warm-up
    for (Case& one : cases) {
      int64_t begin = 0, end = 0;
      stream->Stamp(begin);
      for (int i = 0; i < kCalls; ++i) one.work();
      stream->Stamp(end);
      PSRING_RETURN_IF_ERROR(stream->Synchronize());
      if (round >= 0) one.seconds.push_back(1e-9 * static_cast<double>(end - begin) / kCalls);
    }
  }
  const auto rate = [&](const Case& one) {
    return static_cast<double>(one.passes) * static_cast<double>(bytes) / Quantile(one.seconds, 0.5) / 1e9;
  };
  std::printf("# %s, %zu MiB a buffer, median of %d rounds\n%-10s %10s %10s\n", device->name().c_str(),
              bytes >> 20, kRounds, "op", "GB/s", "of copy");
  for (const Case& one : cases) {
    std::printf("%-10s %10.1f %10.2f\n", one.name, rate(one), rate(one) / rate(cases.front()));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) {
  int mib = 256;
  if (argc > 3 || (argc == 3 && (!absl::SimpleAtoi(argv[2], &mib) || mib < 1 || mib > 1 << 16))) {
    return psring::Fail("op_bandwidth", "usage: op_bandwidth [DEVICE [MIB of a buffer, 1 to 65536]]", 2);
  }
  const absl::Status status = psring::Run(argc > 1 ? argv[1] : "auto", static_cast<size_t>(mib) << 20);
  const int code = status.ok() ? 0 : psring::Fail("op_bandwidth", std::string(status.message()));
  return psring::FinishOutput("op_bandwidth", code);
}
