// hybrid as processes: a ring over TCP or shared memory, and the rows of tables over gRPC.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "tests/has.h"
#include "tests/trainer/main/trainer_process.h"

namespace psring {
namespace {

constexpr int kSteps = 6, kWidth = 8;
constexpr char kClicks[] =
    " --model dlrm-small --data zipf:300:1 --width 8 --optimizer adagrad --lr 0.01 --steps 6 --batch 16";

class HybridProcess : public TrainerProcess {
 protected:
  // Of one process with `workers` micro-batches.
  RankResult Single(int workers) {
    return TrainAlone(absl::StrCat("--strategy single --reference_workers ", workers, kClicks));
  }
};

TEST_F(HybridProcess, EqualsOneProcessAndCountsEveryByte) {
  for (const auto& [workers, servers, flags] : {std::tuple{2, 1, "--deterministic --transport tcp"},
                                                {2, 2, "--deterministic --transport shm"},
                                                {3, 1, "--server_placement dedicated"},
                                                {3, 2, "--transport tcp --server_wire stream"},
                                                {3, 2, "--transport tcp"}}) {
    SCOPED_TRACE(absl::StrCat(workers, " workers, ", servers, " servers, ", flags));
    const RankResult single = Single(workers);
    RunJob(workers, servers, absl::StrCat("--strategy hybrid --servers ", servers, " ", flags, kClicks));
    const RankResult result = Result(0);
    ASSERT_EQ(result.curve.size(), 1);
    ASSERT_EQ(single.curve.size(), 1);
    if (workers == 2) {
      EXPECT_EQ(result.weights_hash, single.weights_hash);
      EXPECT_EQ(result.curve[0].test_loss, single.curve[0].test_loss);
    } else {  // a ring of three adds chunks in other orders
      EXPECT_NEAR(result.curve[0].test_loss, single.curve[0].test_loss, 1e-4);
    }
    EXPECT_EQ(result.algorithm, "ring");
    EXPECT_EQ(result.transport, absl::StrContains(flags, "tcp") ? "tcp" : "shm");
    EXPECT_EQ(result.wires.back(), absl::StrContains(flags, "stream") ? "TCP" : "gRPC over TCP");

    uint64_t sent = 0, received = 0;
    for (int rank = 0; rank < workers; ++rank) {
      EXPECT_EQ(Result(rank).weights_hash, result.weights_hash);
      const std::vector<StepRecord> steps = StepsOf(rank);
      ASSERT_EQ(steps.size(), kSteps);
      for (const StepRecord& step : steps) {
        sent += step.payload_tx_bytes;
        received += step.payload_rx_bytes;
      }
    }
    const uint64_t dense =
        kSteps * 2 * static_cast<uint64_t>(workers - 1) * 4 * static_cast<uint64_t>(SentElements(result));
    const uint64_t rows = (received - dense) / (4 * kWidth);
    EXPECT_GT(rows, 0);
    EXPECT_EQ(received, dense + rows * 4 * kWidth);
    EXPECT_EQ(sent, dense + rows * 4 * (2 + kWidth));

    // The servers have also answered the rows of the test data, whose number is in neither record.
    uint64_t to_servers = 0, from_servers = 0;
    for (int server = 0; server < servers; ++server) {
      const ServerResult served = Served(server);
      EXPECT_EQ(served.pushes, 0) << "of buckets";
      to_servers += served.payload_rx_bytes;
      from_servers += served.payload_tx_bytes;
    }
    const uint64_t evaluated = (from_servers - rows * 4 * kWidth) / (4 * kWidth);
    EXPECT_EQ(from_servers, (rows + evaluated) * 4 * kWidth);
    EXPECT_EQ(to_servers, rows * 4 * (2 + kWidth) + evaluated * 4);
  }
}

TEST_F(HybridProcess, StartsItsServersItself) {
  const RankResult single = Single(2);
  for (const char* placement : {"--servers 2", "--server_placement colocated"}) {
    ExpectSuccess(*StartAlone(absl::StrCat("--strategy hybrid --ranks_per_process 2 ", placement,
                                           " --record ", (dir_ / "both").string(), kClicks)));
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(Result(rank, "both").weights_hash, single.weights_hash);
    fs::remove_all(dir_ / "both");
  }
}

TEST_F(HybridProcess, ItsCheckpointContinuesWithServersThatHaveAllParameters) {
  const std::string first = (dir_ / "first").string(), second = (dir_ / "second").string();
  ExpectSuccess(*StartAlone(absl::StrCat("--strategy hybrid --ranks_per_process 2 --servers 2 ",
                                         "--checkpoint_every 3 --checkpoint_dir ", first, kClicks)));
  ExpectSuccess(*StartAlone(
      absl::StrCat("--strategy ps-sync --deterministic --ranks_per_process 2 --servers 3 --resume ", first,
                   "/step3 --checkpoint_dir ", second, kClicks)));
  for (const char* name : {"/step6/model.safetensors", "/step6/optimizer.safetensors"})
    EXPECT_TRUE(ReadFile(second + name).value() == ReadFile(first + name).value()) << name;
  // A table of another size.
  std::string more = kClicks;
  more.replace(more.find("zipf:300"), 8, "zipf:400");
  const auto other =
      StartAlone(absl::StrCat("--strategy hybrid --ranks_per_process 2 --servers 2 --resume ", first, more));
  EXPECT_EQ(other->Wait(), 1);
  EXPECT_THAT(other->errors(), Has("it is of another model: tables.0.weight is [300,8]"));
}

TEST_F(HybridProcess, IsRejectedInOneLine) {
  struct Case {
    std::string flags;
    int code;
    std::string message;
  };
  for (const Case& bad : std::vector<Case>{
           {"--strategy hybird", 2, "did you mean 'hybrid'"},
           {"--strategy parallax", 2, "psring calls it 'hybrid'"},
           {"--strategy hybrid:2", 2, "hybrid takes no number"},
           {absl::StrCat("--strategy hybrid", kClicks), 1, "needs --rendezvous"},
           {"--strategy hybrid --ps_schedule serial", 2, "does not support --ps_schedule serial"},
           {"--strategy hybrid --on_worker_loss continue", 2, "does not support --on_worker_loss continue"},
           {"--strategy hybrid --clock virtual", 2, "does not support --clock virtual"},
           {"--strategy hybrid --local_aggregation", 2, "--local_aggregation is for ps-sync"},
           {"--strategy hybrid --staleness_lr inverse", 2, "--staleness_lr is for asynchronous"},
           {"--strategy hybrid --reference_workers 2", 2, "--reference_workers is for --strategy single"},
       }) {
    SCOPED_TRACE(bad.flags);
    ExpectOneLine(*StartAlone(bad.flags), {bad.message}, bad.code);
  }
  // Without a launcher that asks first, the ranks learn it from the model.
  const auto ranks =
      StartAlone("--strategy hybrid --ranks_per_process 2 --model mlp-small --data synthetic --steps 2");
  EXPECT_EQ(ranks->Wait(), 1);
  EXPECT_THAT(ranks->errors(), Has("--strategy hybrid needs a model with tables of rows, such as "
                                   "dlrm-small; use ring for mlp-small"));
}

// While the others wait in the ring or for rows.
class HybridLosses : public HybridProcess {
 protected:
  // Kills the server or rank 2 in the middle of training; every other rank must end with one of `names`.
  void ExpectTheEnd(bool kills_server, const std::vector<std::string>& names) {
    const auto server = StartServer(0, 1, 3);
    const auto ranks = StartTrainers(
        3,
        "--strategy hybrid --progress json --model dlrm-small --data zipf:300:1 --width 8 --optimizer sgd "
        "--steps 1000000 --batch 16");
    ASSERT_TRUE(MakesSteps(*ranks[2])) << ranks[2]->errors();
    (kills_server ? *server : *ranks[2]).Signal(SIGKILL);
    const MonotonicTime begin = MonotonicNow();
    for (size_t rank = 0; rank < (kills_server ? 3u : 2u); ++rank) {
      EXPECT_EQ(ranks[rank]->Wait(), 1);
      const std::string errors = ranks[rank]->errors();
      EXPECT_TRUE(std::ranges::any_of(names, [&](const std::string& name) {
        return absl::StrContains(errors, name);
      })) << errors;
    }
    EXPECT_LT(MonotonicNow() - begin, absl::Seconds(40)) << "before --timeout, which is 60 s";
  }
};

TEST_F(HybridLosses, AKilledRankEndsTheJobWithItsName) { ExpectTheEnd(false, {"rank 2", "worker 2"}); }

TEST_F(HybridLosses, AKilledServerEndsTheJobWithItsName) { ExpectTheEnd(true, {"parameter server"}); }

}  // namespace
}  // namespace psring
