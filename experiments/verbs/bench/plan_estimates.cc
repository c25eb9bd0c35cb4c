// The sizes and names of a plan, where its processes run, and what they need.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/errors.h"
#include "common/text/translate.h"
#include "experiments/verbs/bench/plan.h"

namespace psring {
namespace {

constexpr size_t kMaxSizes = 1000;

// One machine runs any number of workers.
NodeLayout OfWorkers(NodeLayout layout, int workers) {
  if (layout.nodes == 1) layout.per_node = workers;
  layout.processes = workers;
  return layout;
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> SizesOf(const SizeSweep& sweep) {
  if (!sweep.list.empty()) {
    if (std::set<uint64_t>(sweep.list.begin(), sweep.list.end()).size() == sweep.list.size())
      return sweep.list;
    return absl::InvalidArgumentError("--sizes names a size twice");
  }
  if (sweep.least > sweep.most) {
    return InvalidTr("--minbytes $0 is above --maxbytes $1", sweep.least, sweep.most);
  }
  if (sweep.step_bytes > 0 && sweep.step_factor > 0) {
    return InvalidTr("--stepbytes and --stepfactor exclude each other");
  }
  const uint64_t factor = sweep.step_bytes > 0    ? 0
                          : sweep.step_factor > 0 ? sweep.step_factor
                                                  : kDefaultFactor;
  if (factor == 1) return InvalidTr("--stepfactor 1 does not grow");
  std::vector<uint64_t> sizes;
  for (uint64_t size = sweep.least; size <= sweep.most;) {
    sizes.push_back(size);
    if (sizes.size() > kMaxSizes) {
      return InvalidArgument("more than ", kMaxSizes, " sizes; use a larger step");
    }
    if (factor > 0 && size == 0) break;
    size = factor > 0 ? size * factor : size + sweep.step_bytes;
  }
  return sizes;
}

std::string BenchCombination::name() const {
  return absl::StrCat(collective, ", ", backend, algorithm.empty() ? "" : " ", algorithm, " over ", transport,
                      push_pull() ? "" : absl::StrCat(", ", buffers, " buffers"), ", ", workers,
                      workers == 1 ? " worker" : " workers");
}

std::string BenchLaunch::name() const {
  std::string count = absl::StrCat(workers, workers == 1 ? " worker" : " workers");
  switch (kind) {
    case BenchLaunchKind::kPlain:
      return count;
    case BenchLaunchKind::kMpirun:
      return absl::StrCat(count, " (mpirun, ", mpi_transport, ")");
    case BenchLaunchKind::kPushPull:
      return absl::StrCat(count, " (parameter server)");
  }
  return count;
}

int MostOnAMachine(const NodeLayout& layout, int workers) {
  return OfWorkers(layout, workers).ProcessesOn(0);
}

NodeLayout BenchPlan::LayoutOf(int workers) const { return OfWorkers(layout, workers); }

uint64_t BenchMemoryBytes(const BenchPlan& plan) {
  uint64_t most = 0, all_sizes = 0;
  for (const uint64_t size : plan.sizes) all_sizes += size;
  for (const BenchLaunch& launch : plan.launches) {
    const uint64_t workers = static_cast<uint64_t>(MostOnAMachine(plan.layout, launch.workers));
    uint64_t bytes = 0;
    if (launch.kind == BenchLaunchKind::kPushPull) {
      // Weights and gradients at each worker and at the server; every size is a bucket.
      bytes = (2 * workers + 2) * all_sizes;
      // A second set of weights per worker, and the server's buffers for fused rounds.
      if (launch.limits) bytes += workers * all_sizes + (2 * workers + 3) * std::ranges::max(plan.sizes);
    } else {
      std::set<std::string> kinds;
      for (const size_t i : launch.combinations) kinds.insert(plan.combinations[i].buffers);
      const uint64_t pairs = launch.limits ? 2 : kinds.size();
      bytes = workers * pairs * 2 * std::ranges::max(plan.sizes);
    }
    most = std::max(most, bytes);
  }
  return most;
}

double ExpectedBenchSeconds(const BenchPlan& plan, const BenchRequest& request, int cores,
                            double bytes_per_s) {
  double seconds = 0;
  const double passes = static_cast<double>(request.types.size() * request.ops.size());
  for (const BenchLaunch& launch : plan.launches) {
    const int here = MostOnAMachine(plan.layout, launch.workers);
    const double per_core = std::max(1.0, static_cast<double>(here) / cores);
    const double kinds = 2 * static_cast<double>(launch.combinations.size()) +
                         (launch.limits ? (launch.kind == BenchLaunchKind::kPushPull ? 1 : 4) : 0);
    const bool over_memory = std::ranges::all_of(
        launch.combinations, [&](size_t index) { return plan.combinations[index].transport == "shm"; });
    // Star and one-shot send the data of all workers through one link.
    const double over_links = bytes_per_s / std::max(1, launch.workers);
    const double rate = over_memory ? 2e9 : bytes_per_s > 0 ? std::min(0.7e9, over_links) : 0.7e9;
    double size_seconds = 0;
    for (const uint64_t size : plan.sizes) {
      const double call = per_core * (100e-6 + static_cast<double>(size) / rate);
      const double turn = std::max(200e-6, call);
      const double checks = request.checks * per_core * static_cast<double>(size) / 0.3e9;
      size_seconds +=
          kinds * (plan.iterations * (turn + call) + (request.warmup + request.checks) * call + checks);
    }
    seconds += 1 + per_core * 0.2 + passes * size_seconds;
  }
  return plan.rounds * seconds;
}

}  // namespace psring
