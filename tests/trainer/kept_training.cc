#include "tests/trainer/kept_training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "common/io/safetensors.h"
#include "tests/decode_safetensors.h"
#include "tests/kept_files.h"
#include "tests/ring_worker/fake_rendezvous.h"
#include "tests/test_folder.h"

namespace psring {

namespace {

void SaveIn(KeptSteps& kept, Worker& worker) {
  worker.save = [&kept](int64_t step, const CheckpointContent& content) {
    KeptFiles files;
    const absl::Status written = content(files);
    kept[step] = Files(files.files.begin(), files.files.end());
    return written;
  };
}

}  // namespace

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
  const TestFolder folder;
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
      parts[worker.rank] = WorkerParts::Meet(*rendezvous[worker.rank], folder.path(), blind).value();
      EXPECT_TRUE(blind.empty());
      worker.parts = parts[worker.rank].get();
    }
    SaveIn(kept, worker);
    adjust(worker);
  });
  parts.clear();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));  // the ranks' parts are deleted
  return outcomes;
}

std::vector<RankOutcome> KeepReplicas(const TrainingOptions& options, int replicas, const DataSplits& data,
                                      KeptSteps& kept, const Files* resume) {
  if (ReplicaRanks(options) == 1) return RunKeeping(options, replicas, data, kept, resume);
  std::vector<CheckpointBytes> from(static_cast<size_t>(replicas * ReplicaRanks(options)));
  return RunPipelines(options, replicas, data, [&](Worker& worker) {
    if (resume != nullptr) {
      CheckpointBytes& bytes = from[static_cast<size_t>(worker.trace.rank())];
      bytes = KeptBytes(*resume);
      worker.resume = &bytes;
    }
    SaveIn(kept, worker);
  });
}

void ExpectAdamUpdate(const Files& from, const Files& to, int64_t updates) {
  EXPECT_EQ(DecodePosition(KeptBytes(to))->updates, updates);
  std::map<std::string, std::vector<float>> before, after;
  for (const auto& [files, values] : {std::pair{&from, &before}, {&to, &after}}) {
    for (const char* file : {kModelFile, kOptimizerFile}) {
      std::vector<NamedTensor> tensors = DecodeSafetensors(files->at(file)).value();
      for (NamedTensor& tensor : tensors) (*values)[tensor.name] = std::move(tensor.values);
    }
  }
  const double correction1 = 1 - std::pow(.9, updates), correction2 = 1 - std::pow(.999, updates);
  int changed = 0;
  double worst = 0;
  for (const auto& [name, was] : before) {
    if (!after.contains("exp_avg." + name)) continue;
    for (size_t i = 0; i < was.size(); ++i) {
      const double mean = after["exp_avg." + name][i];
      if (after[name][i] == was[i] || mean == before["exp_avg." + name][i]) continue;
      const double variance = after["exp_avg_sq." + name][i];
      const double update = .01 * (mean / correction1) / (std::sqrt(variance / correction2) + 1e-8);
      worst = std::max(worst, std::abs(was[i] - after[name][i] - update));
      ++changed;
    }
  }
  EXPECT_GT(changed, 1000);
  EXPECT_LT(worst, 1e-6);
}

}  // namespace psring
