// Kills workers of real trainings at random moments: the others continue or stop, as configured.
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "tests/experiments/start_psring.h"
#include "tests/experiments/training_processes.h"
#include "tests/has.h"
#include "tests/random_moments.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr int kWorkers = 3;
constexpr int64_t kSteps = 130;

// {strategy, --on_worker_loss, --servers}
class WorkerLossTest : public LaunchTest,
                       public testing::WithParamInterface<std::tuple<std::string, std::string, int>> {
 protected:
  std::string strategy() const { return std::get<0>(GetParam()); }
  bool goes_on() const { return std::get<1>(GetParam()) == "continue"; }
  int servers() const { return std::get<2>(GetParam()); }

  // Flags of a training with checkpoints, by which the test observes its progress.
  std::string Training() const {
    return absl::StrCat(
        "--strategy ", strategy(), " --on_worker_loss ", std::get<1>(GetParam()), " --servers ", servers(),
        " --model mlp-small --data synthetic --batch 16 --no_eval --jitter_ms 3 --timeout 30 --steps ",
        kSteps, " --checkpoint_every 10 --checkpoint_dir ", Folder("checkpoints"));
  }
  // Removes files of an earlier round.
  void Clear() const {
    for (const auto& entry : fs::directory_iterator(folder_)) fs::remove_all(entry.path());
  }
  // Waits for a random moment after a random checkpoint long before the end; false: the training has ended.
  bool ReachesSomeMoment(std::mt19937& random, StartedOnes& ones) const {
    const int64_t step = 10 + static_cast<int64_t>(random() % 40);
    const absl::Duration later = absl::Microseconds(random() % 30'000);  // up to three steps
    const bool there = WaitUntil(ones, [&] { return HasCheckpoint(Folder("checkpoints"), step); });
    absl::SleepFor(later);
    return there;
  }

  fs::path Record(const std::string& name) const {
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.path().filename() == name) return entry.path();
    }
    return {};
  }
  // Each server reports the lost worker and its step; the others made all steps and have the same weights.
  void ExpectTheOthersTrainedToTheEnd(int victim) const {
    for (int i = 0; i < servers(); ++i) {
      const auto server = ServerResultFromJson(Slurp(Record(absl::StrCat("result-server", i, ".json"))));
      ASSERT_TRUE(server.ok()) << server.status();
      ASSERT_EQ(server->lost_workers, std::vector<int64_t>{victim});
      const int64_t lost_at = server->lost_at_step.at(0);
      if (strategy() == "ps-sync") {
        // One bucket per step; the victim's last push may be complete.
        const int64_t others = (kWorkers - 1) * kSteps;
        EXPECT_TRUE(server->pushes == others + lost_at || server->pushes == others + lost_at + 1)
            << server->pushes << " pushes, lost at step " << lost_at;
      } else {  // the workers divide the steps; the victim's last one may be missing
        EXPECT_GE(server->pushes, kWorkers * kSteps - 1);
      }
    }
    std::optional<std::string> weights;
    for (int rank = 0; rank < kWorkers; ++rank) {
      const fs::path record = Record(absl::StrCat("result-rank", rank, ".json"));
      EXPECT_EQ(record.empty(), rank == victim) << rank;
      if (record.empty()) continue;
      const auto result = RankResultFromJson(Slurp(record)).value();
      EXPECT_EQ(weights.value_or(result.weights_hash), result.weights_hash);
      weights = result.weights_hash;
      EXPECT_LT(result.final_loss, 1.5) << "guessing has a loss of 2.3";
    }
  }
};

// The victim is not rank 0, which has the server beside it.
TEST_P(WorkerLossTest, RanksStartedByHandReportALostWorker) {
  AtRandomMoments(1, [&](std::mt19937& random) {
    Clear();
    StartedOnes ranks;
    for (int rank = 0; rank < kWorkers; ++rank) {
      ranks.push_back(StartTrainer(absl::StrCat("--progress none --rendezvous file://", folder_,
                                                "/meet --record ", Folder("records"), " ", Training()),
                                   {absl::StrCat("RANK=", rank), absl::StrCat("WORLD_SIZE=", kWorkers)}));
    }
    ASSERT_TRUE(ReachesSomeMoment(random, ranks)) << ranks[0]->Story();
    const int victim = 1 + static_cast<int>(random() % (kWorkers - 1));
    ranks[static_cast<size_t>(victim)]->Signal(SIGKILL);
    ASSERT_TRUE(WaitForAll(ranks));
    const std::string lost = absl::StrCat("worker ", victim, " was lost");
    EXPECT_THAT(ranks[0]->errors(), Has(lost)) << ranks[0]->Story();  // printed by the server
    for (int rank = 0; rank < kWorkers; ++rank) {
      const Started& one = *ranks[static_cast<size_t>(rank)];
      if (rank == victim) continue;
      EXPECT_EQ(one.Succeeded(), goes_on()) << one.Story();
      if (!goes_on()) {
        EXPECT_THAT(one.errors(), Has(absl::StrCat("trainer: rank ", rank), lost)) << one.Story();
      }
    }
    if (goes_on()) ExpectTheOthersTrainedToTheEnd(victim);
  });
}

TEST_P(WorkerLossTest, PsringReportsALostWorker) {
  AtRandomMoments(1, [&](std::mt19937& random) {
    Clear();
    StartedOnes psring;
    psring.push_back(StartPsring(
        absl::StrCat("train --workers ", kWorkers, " --link none --out ", Folder("run"), " ", Training())));
    ASSERT_TRUE(ReachesSomeMoment(random, psring)) << psring[0]->Story();
    const int victim = static_cast<int>(random() % kWorkers);
    SignalProcess(Folder("run"), absl::StrCat("rank ", victim), SIGKILL);
    ASSERT_TRUE(WaitForAll(psring));
    const Started& run = *psring[0];
    EXPECT_EQ(run.Succeeded(), goes_on()) << run.Story();
    const std::string killed = absl::StrCat("rank ", victim, " was killed by SIGKILL");
    EXPECT_THAT(goes_on() ? run.output() : run.errors(), Has(killed)) << run.Story();
    EXPECT_TRUE(TrainingProcesses(Folder("run")).empty());
    if (!goes_on()) return;
    ExpectTheOthersTrainedToTheEnd(victim);
    EXPECT_THAT(Slurp(Record("summary.csv")), Has(absl::StrCat("worker ", victim, " lost at step ")));
  });
}

// The others finish, and psring ends the worker that no longer responds.
TEST_F(LaunchTest, AFrozenWorkerDoesNotLoseTheResultOfTheOthers) {
  struct Frozen {
    std::string name, flags;
    int nodes = 1;
    int victim = 0;
    StartedOnes psring = {};
  };
  Frozen jobs[] = {{"async", "--strategy ps-async --max_restarts 1", 1, 1},
                   {"first", "--strategy ps-async", 1, 0},
                   {"ssp", "--strategy ps-ssp:2", 1, 2},
                   {"backup", "--strategy ps-backup:1 --on_worker_loss continue", 1, 2},
                   {"nodes", "--strategy ps-async", 2, 2}};
  for (Frozen& job : jobs) {
    const std::string training = absl::StrCat(
        "train ", job.flags,
        " --model mlp-small --data synthetic --batch 16 --no_eval --jitter_ms 3 --steps 200 --timeout 7",
        job.name == "backup"
            ? ""  // its checkpoints need every worker
            : " --checkpoint_every 10 --checkpoint_dir " + Folder(job.name + "-checkpoints"));
    const std::string out = absl::StrCat(" --out ", Folder(job.name));
    fs::create_directories(Folder(job.name + "-tmp"));
    const int port = FreePort();
    for (int node = 0; node < job.nodes; ++node) {
      const std::string where = job.nodes == 1 ? absl::StrCat(" --workers ", kWorkers, " --link none")
                                               : absl::StrCat(" --nproc_per_node 2", OnLoopback(node, port));
      job.psring.push_back(StartPsring(absl::StrCat(training, where, node == 0 ? out : ""),
                                       {absl::StrCat("TMPDIR=", Folder(job.name + "-tmp"))}));
    }
  }
  const auto trains = [&](const Frozen& job) {
    if (job.name != "backup") return HasCheckpoint(Folder(job.name + "-checkpoints"), 10);
    std::error_code error;
    for (const auto& entry : fs::recursive_directory_iterator(Folder(job.name), error)) {
      if (entry.path().filename() == "steps-rank0.jsonl") return entry.file_size(error) > 0;
    }
    return false;
  };
  // Each soon after it begins to train, whichever is first.
  std::set<std::string> frozen;
  const auto freeze = [&](const Frozen& job) {
    for (const std::string& records : {Folder(job.name), Folder(job.name + "-tmp")}) {
      SignalProcess(records, absl::StrCat("rank ", job.victim), SIGSTOP);
    }
    frozen.insert(job.name);
  };
  ASSERT_TRUE(Eventually([&] {
    for (const Frozen& job : jobs) {
      for (const auto& one : job.psring) one->Look();
      if (!frozen.contains(job.name) && trains(job)) freeze(job);
    }
    return frozen.size() == std::size(jobs);
  }));
  for (Frozen& job : jobs) {
    SCOPED_TRACE(job.name);
    ExpectSuccess(job.psring);
    const std::string lost = absl::StrCat("rank ", job.victim, " no longer responded");
    const Started& its_node = *job.psring.back();
    EXPECT_THAT(its_node.output(), Has(lost)) << its_node.Story();
    std::string summary;
    for (const auto& entry : fs::recursive_directory_iterator(Folder(job.name))) {
      if (entry.path().filename() == "summary.csv") summary = Slurp(entry.path());
    }
    EXPECT_THAT(summary, Has(absl::StrCat("worker ", job.victim, " lost at step ")));
  }
}

// With a ring and servers, ranks that wait for each other do not blame each other.
TEST_F(LaunchTest, AServerThatDoesNotRespondIsNamed) {
  const std::string tables = " --model dlrm-small --width 8 --data zipf:300:1";
  const std::vector<std::string> kinds = {"--strategy hybrid --servers 1" + tables,
                                          "--strategy hybrid --servers 2 --transport tcp" + tables,
                                          "--strategy ps-sync --model mlp-small --data synthetic",
                                          "--strategy ps-async --model mlp-small --data synthetic"};
  StartedOnes jobs;
  for (size_t i = 0; i < kinds.size(); ++i)
    jobs.push_back(
        StartPsring(absl::StrCat("train ", kinds[i], " --workers ", kWorkers,
                                 " --link none --batch 16 --no_eval --jitter_ms 3 --steps 2000 --timeout 7",
                                 " --checkpoint_every 10 --checkpoint_dir ", Folder(absl::StrCat("to", i)),
                                 " --out ", Folder(absl::StrCat("run", i)))));
  for (size_t i = 0; i < kinds.size(); ++i) {
    ASSERT_TRUE(WaitUntil(*jobs[i], [&] { return HasCheckpoint(Folder(absl::StrCat("to", i)), 10); }))
        << jobs[i]->Story();
    SignalProcess(Folder(absl::StrCat("run", i)), "server", SIGSTOP);
  }
  ASSERT_TRUE(WaitForAll(jobs));
  for (const auto& job : jobs) {
    EXPECT_FALSE(job->Succeeded());
    EXPECT_THAT(job->errors(), Has("parameter server at ")) << job->Story();
  }
}

std::string NameOfLoss(const testing::TestParamInfo<WorkerLossTest::ParamType>& info) {
  return std::string(std::get<0>(info.param) == "ps-sync" ? "Sync" : "Async") +
         (std::get<1>(info.param) == "stop" ? "Stop" : "Continue");
}
INSTANTIATE_TEST_SUITE_P(Modes, WorkerLossTest,
                         testing::Values(std::tuple("ps-sync", "continue", 2),
                                         std::tuple("ps-async", "continue", 1),
                                         std::tuple("ps-sync", "stop", 1), std::tuple("ps-async", "stop", 1)),
                         NameOfLoss);

}  // namespace
}  // namespace psring
