// The resident memory of a trainer process does not grow with its steps.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "tests/trainer/main/trainer_process.h"

namespace psring {
namespace {

// What one step may add: its spans in the trace (4 to 8 of 48 bytes, until the trace is full), its block in
// the loss history (48 bytes, until that is full) and its begin (16 bytes). This is 290 to 480 bytes; 100 to
// 450 were measured. The bound is about twice that. A GEMM buffer that is lost in each step takes 16 to
// 140 KiB.
constexpr int64_t kMaxKbPerStep = 1;

// The record of steps of a rank, a pipe. It holds a page, so the rank is at most about 30 steps ahead.
class StepPipe {
 public:
  StepPipe(const fs::path& records, int rank) {
    const std::string pipe = records / absl::StrCat("steps-rank", rank, ".jsonl");
    EXPECT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    steps_ = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    EXPECT_GE(steps_, 0);
    fcntl(steps_, F_SETPIPE_SZ, 4096);
  }
  ~StepPipe() { close(steps_); }
  StepPipe(const StepPipe&) = delete;

  int fd() const { return steps_; }
  int64_t steps() const { return read_; }
  // Reads what is in the pipe. False when the rank has ended.
  bool Read() {
    char text[4096];
    const ssize_t got = read(steps_, text, sizeof text);
    if (got > 0) read_ += std::count(text, text + got, '\n');
    return got != 0;
  }

 private:
  int steps_ = -1;
  int64_t read_ = 0;
};

int64_t ResidentKb(const Child& child) {
  std::ifstream status(absl::StrCat("/proc/", child.pid(), "/status"));
  for (std::string word; status >> word;) {
    int64_t kb = 0;
    if (word == "VmRSS:" && status >> kb) return kb;
  }
  return 0;
}

using Pipes = std::vector<std::unique_ptr<StepPipe>>;

// Reads until every rank has made `steps` steps. False if a rank has ended before that, or after a minute.
bool ReadSteps(Pipes& ranks, int64_t steps) {
  const MonotonicTime deadline = MonotonicNow() + absl::Minutes(1);
  const auto is_behind = [steps](const std::unique_ptr<StepPipe>& rank) { return rank->steps() < steps; };
  while (std::any_of(ranks.begin(), ranks.end(), is_behind)) {
    std::vector<pollfd> pipes;
    for (const auto& rank : ranks) pipes.push_back({.fd = rank->fd(), .events = POLLIN});
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - MonotonicNow());
    if (left_ms <= 0 || poll(pipes.data(), pipes.size(), static_cast<int>(left_ms)) <= 0) return false;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (pipes[rank].revents != 0 && !ranks[rank]->Read()) return false;
    }
  }
  return true;
}

struct Training {
  std::string flags;
  int ranks = 1;
  int64_t warm_up_steps = 100;
  int64_t measured_steps = 300;
};

class TrainerMemory : public TrainerProcess {
 protected:
  // `records`: the name of the record folder.
  void ExpectNoGrowth(const Training& training, const std::string& records = "records") {
    fs::create_directory(dir_ / records);
    const std::string flags =
        absl::StrCat("--data synthetic --no_eval --epochs 100000 --lr 0.0001 ", training.flags);
    Pipes pipes;
    Children ranks;
    for (int rank = 0; rank < training.ranks; ++rank) {
      pipes.push_back(std::make_unique<StepPipe>(dir_ / records, rank));
      ranks.push_back(training.ranks > 1
                          ? StartTrainer(rank, training.ranks, flags)
                          : StartAlone(absl::StrCat("--record ", (dir_ / records).string(), " ", flags),
                                       {"OMP_NUM_THREADS=1"}));
    }
    ASSERT_TRUE(ReadSteps(pipes, training.warm_up_steps)) << ranks[0]->errors();
    std::vector<int64_t> before;
    for (const auto& rank : ranks) before.push_back(ResidentKb(*rank));
    ASSERT_TRUE(ReadSteps(pipes, training.warm_up_steps + training.measured_steps)) << ranks[0]->errors();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const int64_t after = ResidentKb(*ranks[rank]);
      ASSERT_GT(after, 0);
      EXPECT_LE(after - before[rank], kMaxKbPerStep * training.measured_steps)
          << "KiB of rank " << rank << ", which has " << after;
    }
  }
};

// Whether a freed buffer of oneDNN can be used again depends on the addresses of allocations modulo 128 (see
// Workplace in common/ops/onednn_kernel.h). Longer names of the record folder shift them.
TEST_F(TrainerMemory, DoesNotGrowForAnyLayoutOfTheHeap) {
  for (int length = 1; length < 128; length += 16) {
    SCOPED_TRACE(length);
    ExpectNoGrowth({.flags = "--strategy single --model mlp --width 576 --batch 4"},
                   std::string(length, 'x'));
  }
}

TEST_F(TrainerMemory, DoesNotGrowInThousandsOfSteps) {
  ExpectNoGrowth({.flags = "--model mlp-small --batch 32", .warm_up_steps = 500, .measured_steps = 3000});
}

TEST_F(TrainerMemory, DoesNotGrowWithConvolutions) { ExpectNoGrowth({.flags = "--model cnn --batch 1"}); }

TEST_F(TrainerMemory, DoesNotGrowInARing) {
  ExpectNoGrowth(
      {.flags = "--strategy ring --model mlp-small --batch 8", .ranks = 2, .measured_steps = 1000});
}

}  // namespace
}  // namespace psring
