#include "tests/trainer/kept_training.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/kept_files.h"
#include "tests/ring_worker/fake_rendezvous.h"

namespace psring {

CheckpointBytes KeptBytes(const Files& files, int rank) {
  const auto file = [&](const std::string& name) {
    const auto found = files.find(name);
    return found == files.end() ? std::string() : found->second;
  };
  return {.path = "kept",
          .position = file(kPositionFile),
          .model = file(kModelFile),
          .optimizer = file(kOptimizerFile),
          .residual = file(WorkerFile(rank)),
          .has_optimizer = true};
}

std::vector<RankOutcome> RunKeeping(const TrainingOptions& options, int workers, const DataSplits& data,
                                    KeptSteps& kept, const Files* resume,
                                    const std::function<void(Worker&)>& adjust) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("psring-kept-", getpid());
  std::filesystem::create_directories(folder);
  const auto store = std::make_shared<FakeStore>();
  std::vector<std::unique_ptr<FakeRendezvous>> rendezvous(workers);
  std::vector<std::unique_ptr<WorkerParts>> parts(workers);
  std::vector<CheckpointBytes> from(workers);
  const bool each_alone =
      absl::StartsWith(options.strategy, "ps-async") || absl::StartsWith(options.strategy, "ps-ssp");
  auto outcomes = RunRanks(options, workers, data, [&](Worker& worker) {
    if (resume != nullptr) {
      from[worker.rank] = KeptBytes(*resume, worker.rank);
      worker.resume = &from[worker.rank];
    }
    if (workers > 1 && (options.wire != "float32" || each_alone)) {
      rendezvous[worker.rank] = std::make_unique<FakeRendezvous>(store, worker.rank, workers);
      std::vector<int> blind;
      parts[worker.rank] = WorkerParts::Meet(*rendezvous[worker.rank], folder.string(), blind).value();
      EXPECT_TRUE(blind.empty());
      worker.parts = parts[worker.rank].get();
    }
    worker.save = [&kept](int64_t step, const CheckpointContent& content) {
      KeptFiles files;
      const absl::Status written = content(files);
      kept[step] = Files(files.files.begin(), files.files.end());
      return written;
    };
    adjust(worker);
  });
  parts.clear();
  EXPECT_TRUE(std::filesystem::is_empty(folder));  // the ranks' parts are deleted
  std::filesystem::remove_all(folder);
  return outcomes;
}

}  // namespace psring
