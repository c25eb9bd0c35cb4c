// The fault driver: real jobs under random faults. Each ends in time, and either as if undisturbed or with an
// error that names what died or is missing; nothing of it remains.
//
// PSRING_FAULTS is the number of faults, PSRING_FAULT_SEED the first fault's seed, PSRING_FAULT one kind.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/measure/records.h"
#include "tests/eventually.h"
#include "tests/experiments/slurp.h"
#include "tests/experiments/started.h"
#include "tests/faults/injection.h"
#include "tests/faults/job.h"
#include "tests/random_moments.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// kMissed: the job had ended before the fault.
enum class Ending { kNamed, kRecovered, kMissed, kFailed, kCount };
using Counts =
    std::map<std::pair<std::string, std::string>, std::array<int, static_cast<size_t>(Ending::kCount)>>;

class FaultsDriver : public LaunchTest {
 protected:
  std::string Undisturbed(const JobSetup& setup) {
    const std::string name = absl::StrCat(setup.kind.name, "-", setup.workers());
    std::string& weights = undisturbed_[name];
    if (!weights.empty()) return weights;
    FaultJob job({.kind = setup.kind, .nodes = setup.nodes, .per_node = setup.per_node},
                 Folder(absl::StrCat("undisturbed-", name)), FreePort());
    EXPECT_TRUE(job.AwaitEnd(kEnd) && job.Succeeded()) << job.Story();
    return weights = job.Weights();
  }

  // Why the job's success is wrong; empty: it is right.
  std::string CheckSuccess(const Fault& fault, FaultJob& job) {
    const JobKind& kind = fault.setup.kind;
    const std::string weights = job.Weights();
    if (absl::StrContains(weights, "different")) return absl::StrCat("ranks have ", weights);
    if (kind.same_bits && weights != Undisturbed(fault.setup)) return "other weights than an undisturbed run";
    return kind.asynchronous ? CheckPushes(job, fault) : "";
  }

  // Every push that the server answered counts once: the workers share a number of pushes, and each makes at
  // most one more.
  static std::string CheckPushes(const FaultJob& job, const Fault& fault) {
    const int workers = fault.setup.workers();
    std::error_code error;
    for (const auto& entry : fs::recursive_directory_iterator(job.run(), error)) {
      if (entry.path().filename() != "result-server0.json") continue;
      const auto server = ServerResultFromJson(Slurp(entry.path()));
      if (!server.ok()) return std::string(server.status().message());
      if (absl::StrContains(job.Story(), "all ranks are restarted"))
        return "";  // it counts its own pushes only
      // A lost worker's remaining steps may be nobody's.
      auto lost_workers = static_cast<int64_t>(server->lost_workers.size());
      if (fault.kind == FaultKind::kEndWorker) ++lost_workers;  // it has left
      const int64_t planned = workers * kFaultSteps;
      // A checkpoint may miss the count of a push that is in its weights.
      const int64_t made = server->pushes, uncounted = server->restarts * workers;
      const bool all = made >= planned - 1 - uncounted - lost_workers * kFaultSteps;
      if (all && made <= planned + (1 + server->restarts) * workers) return "";
      return absl::StrCat(made, " pushes of ", planned);
    }
    return "";
  }

  std::pair<Ending, std::string> Run(const Fault& fault, const std::string& folder) {
    const auto failed = [](const std::string& why) { return std::pair(Ending::kFailed, why); };
    FaultJob job(fault.setup, folder, FreePort());
    Injection injection(fault);
    const bool applied = injection.Apply(job);
    const bool ended = job.AwaitEnd(kEnd);
    const std::string story = job.Story();
    if (!ended) return failed(absl::StrCat("it did not end\n", story));
    const bool node_died = applied && fault.kind == FaultKind::kKillNode;
    const bool launcher_died = applied && fault.kind == FaultKind::kKillLauncher;
    // The kernel ends the processes of a launcher that was killed.
    if (launcher_died || node_died) {
      (void)Eventually([&] { return job.Processes().empty(); }, absl::Seconds(20));
    }
    if (const std::string remains = job.Remains(launcher_died || node_died); !remains.empty()) {
      return failed(absl::StrCat("remains:", remains, "\n", story));
    }
    if (launcher_died) return {Ending::kNamed, ""};
    for (const char* crash : {"SIGABRT", "SIGSEGV", "SIGBUS", "Check failed", "terminate called"}) {
      if (absl::StrContains(story, crash)) return failed(absl::StrCat("it crashed\n", story));
    }
    const Promise promise = PromiseOf(fault);
    if (job.Succeeded()) {
      const std::string wrong = promise.may_recover || !applied ? CheckSuccess(fault, job) : "it succeeded";
      const Ending right = applied ? Ending::kRecovered : Ending::kMissed;
      return {wrong.empty() ? right : Ending::kFailed, absl::StrCat(wrong, "\n", story)};
    }
    if (promise.must_recover && applied) return failed(absl::StrCat("it did not recover\n", story));
    for (const std::string& line : job.LastLines()) {
      bool named = false;
      for (const std::string& name : promise.names) named |= absl::StrContains(line, name);
      if (!named) return failed(absl::StrCat("this last line names nobody: ", line, "\n", story));
    }
    return {Ending::kNamed, ""};
  }

  static void PrintTable(const Counts& counts) {
    std::printf("%-20s %-10s %6s %10s %7s %7s\n", "fault", "job", "named", "recovered", "missed", "failed");
    for (const auto& [row, endings] : counts) {
      std::printf("%-20s %-10s %6d %10d %7d %7d\n", row.first.c_str(), row.second.c_str(), endings[0],
                  endings[1], endings[2], endings[3]);
    }
  }

 private:
  static constexpr absl::Duration kEnd = absl::Seconds(150);
  std::map<std::string, std::string> undisturbed_;
};

TEST_F(FaultsDriver, EveryJobEndsAndNamesTheCauseOrRecovers) {
  const int64_t faults = FromEnvironment("PSRING_FAULTS", kQuickFaultKinds);
  const int64_t first = FromEnvironment("PSRING_FAULT_SEED", 1);
  const char* const only = std::getenv("PSRING_FAULT");
  const int kinds = faults <= kQuickFaultKinds ? kQuickFaultKinds : kFaultKinds;
  Counts counts;
  for (int64_t i = 0; i < faults; ++i) {
    const int64_t seed = first + i;
    auto kind = static_cast<FaultKind>((seed - 1) % kinds);
    for (int one = 0; only != nullptr && one < kFaultKinds; ++one) {
      if (NameOf(static_cast<FaultKind>(one)) == only) kind = static_cast<FaultKind>(one);
    }
    std::mt19937 random(static_cast<uint32_t>(seed));
    const Fault fault = Draw(kind, random);
    const bool mounts = fault.setup.shell.size() > 1;
    if (mounts && std::system("unshare --user --map-root-user --mount true 2>/dev/null") != 0) {
      std::printf("PSRING_FAULT_SEED=%lld: %s: skipped, namespaces are not permitted\n",
                  static_cast<long long>(seed), fault.Text().c_str());
      continue;
    }
    const std::string folder = Folder(absl::StrCat("job-", seed));
    const MonotonicTime begin = MonotonicNow();
    const auto [ending, why] = Run(fault, folder);
    static const char* const kEndings[] = {"named", "recovered", "missed", "FAILED"};
    std::printf("PSRING_FAULT_SEED=%lld: %s: %s after %.1f s\n", static_cast<long long>(seed),
                fault.Text().c_str(), kEndings[static_cast<size_t>(ending)],
                absl::ToDoubleSeconds(MonotonicNow() - begin));
    std::fflush(stdout);
    EXPECT_NE(ending, Ending::kFailed)
        << "PSRING_FAULTS=1 PSRING_FAULT='" << NameOf(kind) << "' PSRING_FAULT_SEED=" << seed << ": "
        << fault.Text() << ": " << why;
    ++counts[{NameOf(kind), fault.setup.kind.name}][static_cast<size_t>(ending)];
    fs::remove_all(folder);
  }
  PrintTable(counts);
}

}  // namespace
}  // namespace psring
