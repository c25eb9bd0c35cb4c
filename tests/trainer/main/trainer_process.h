// Trainers and servers as processes, as a launcher starts them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/child.h"
#include "tests/eventually.h"
#include "tests/has.h"
#include "tests/test_folder.h"
#include "tests/test_secret.h"

namespace psring {

namespace fs = std::filesystem;

using Children = std::vector<std::unique_ptr<Child>>;

inline void ExpectSuccess(Child& child) { EXPECT_EQ(child.Wait(), 0) << child.errors(); }
inline void ExpectSuccess(const Children& children) {
  for (const auto& child : children) ExpectSuccess(*child);
}
// The child fails with one line that contains `parts`. `code`: -1 for any.
inline void ExpectOneLine(Child& child, const std::vector<std::string>& parts, int code = -1) {
  const int ended_with = child.Wait();
  const std::string errors = child.errors();
  EXPECT_TRUE(code < 0 ? ended_with > 0 : ended_with == code) << ended_with << ": " << errors;
  EXPECT_EQ(std::ranges::count(errors, '\n'), 1) << errors;
  for (const std::string& part : parts) EXPECT_THAT(errors, Has(part));
}

// Waits until the process, started with --progress json, has made a step.
inline bool MakesSteps(const Child& trainer) {
  return Eventually([&] { return trainer.output().find("\"step\"") != std::string::npos; });
}

class TrainerProcess : public testing::Test {
 protected:
  TrainerProcess() : store_(*RendezvousServer::Start("127.0.0.1", 0, TestSecret())) {}

  std::string Rendezvous() const { return absl::StrCat("tcp://127.0.0.1:", store_->port()); }

  std::vector<std::string> Environment(int rank, int world_size) const {
    return {absl::StrCat("RANK=", rank), absl::StrCat("LOCAL_RANK=", rank),
            absl::StrCat("WORLD_SIZE=", world_size), "PSRING_STORE_HOSTED=1", "OMP_NUM_THREADS=1"};
  }

  // `per_machine`: the ranks of each machine, all of which are this one.
  std::unique_ptr<Child> StartTrainer(int rank, int world_size, const std::string& flags,
                                      int per_machine = 0) {
    std::vector<std::string> arguments = {PSRING_TRAINER, "--rendezvous", Rendezvous(), "--record",
                                          (dir_ / "records").string()};
    for (const auto flag : absl::StrSplit(flags, ' ')) arguments.emplace_back(flag);
    std::vector<std::string> environment = Environment(rank, world_size);
    if (per_machine > 0) {
      environment[1] = absl::StrCat("LOCAL_RANK=", rank % per_machine);
      environment.push_back(absl::StrCat("LOCAL_WORLD_SIZE=", per_machine));
    }
    return std::make_unique<Child>(arguments, environment);
  }
  std::unique_ptr<Child> StartServer(int server, int servers, int workers) {
    return std::make_unique<Child>(
        std::vector<std::string>{PSRING_PS_SERVER, "--workers", absl::StrCat(workers), "--server",
                                 absl::StrCat(server), "--servers", absl::StrCat(servers), "--rendezvous",
                                 Rendezvous(), "--record", dir_.string()},
        Environment(0, workers));
  }
  Children StartTrainers(int ranks, const std::string& flags, int per_machine = 0) {
    Children trainers;
    for (int rank = 0; rank < ranks; ++rank)
      trainers.push_back(StartTrainer(rank, ranks, flags, per_machine));
    return trainers;
  }
  // A job of its own, in which all succeed.
  void RunJob(int ranks, int servers, const std::string& flags) {
    MeetAnew();
    Children children;
    for (int server = 0; server < servers; ++server) children.push_back(StartServer(server, servers, ranks));
    for (auto& trainer : StartTrainers(ranks, flags)) children.push_back(std::move(trainer));
    ExpectSuccess(children);
  }
  // With a store for another job.
  void MeetAnew() { store_ = *RendezvousServer::Start("127.0.0.1", 0, TestSecret()); }
  // Without a rendezvous.
  std::unique_ptr<Child> StartAlone(const std::string& flags, std::vector<std::string> environment = {}) {
    std::vector<std::string> arguments = {PSRING_TRAINER};
    for (const auto flag : absl::StrSplit(flags, ' ')) arguments.emplace_back(flag);
    return std::make_unique<Child>(arguments, environment);
  }

  RankResult Result(int rank, const std::string& records = "records") const {
    const fs::path file = dir_ / records / absl::StrCat("result-rank", rank, ".json");
    return RankResultFromJson(ReadFile(file.string()).value()).value();
  }

  ServerResult Served(int server) const {
    return ServerResultFromJson(
               ReadFile((dir_ / absl::StrCat("result-server", server, ".json")).string()).value_or(""))
        .value();
  }
  std::vector<StepRecord> StepsOf(int rank) const {
    std::ifstream file(dir_ / "records" / absl::StrCat("steps-rank", rank, ".jsonl"));
    std::vector<StepRecord> steps;
    for (std::string line; std::getline(file, line);) steps.push_back(StepRecordFromJson(line).value());
    return steps;
  }
  // Of one process, which records where others do.
  RankResult TrainAlone(const std::string& flags) {
    ExpectSuccess(*StartAlone(absl::StrCat(flags, " --record ", (dir_ / "records").string())));
    return Result(0);
  }

  // Elements of the gradient that are sent, the padding between tensors included.
  static int64_t SentElements(const RankResult& result) {
    return std::accumulate(result.bucket_elements.begin(), result.bucket_elements.end(), int64_t{0});
  }

  const TestFolder folder_;
  const fs::path dir_ = folder_.path();
  std::unique_ptr<RendezvousServer> store_;
};

inline constexpr char kShort[] = " --model mlp-small --data synthetic --steps 6 --batch 16 --check_replicas";

}  // namespace psring
