// Real servers that are killed at random moments and started again with the same folder.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ps_server/protocol/pieces.h"
#include "tests/ps_server/server_process.h"
#include "tests/ps_server/test_job.h"
#include "tests/random_moments.h"
#include "tests/test_folder.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<PsClient> NewClient(Rendezvous& rendezvous, int servers, bool own_connection) {
  std::vector<std::unique_ptr<OneServerClient>> clients;
  for (int server = 0; server < servers; ++server) {
    const auto find = [&rendezvous, server] {
      return rendezvous.Get(absl::StrCat("ps/", server), absl::StrCat("server ", server));
    };
    auto address = find();
    for (int i = 0; i < 100 && !address.ok(); ++i) {  // the server died before it had published its address
      absl::SleepFor(absl::Milliseconds(100));
      address = find();
    }
    EXPECT_TRUE(address.ok()) << address.status();
    clients.push_back(
        MakeGrpcPsClient(address.value_or(""), {.secret = TestSecret(),
                                                .payload = own_connection ? Payload::kGrpc : Payload::kAuto,
                                                .own_connection = own_connection,
                                                .patience = absl::Seconds(20),
                                                .find_again = find}));
  }
  return MakeShardedPsClient(std::move(clients));
}

ServerJob Job(int workers, const std::string& consistency) {
  return MakeJob(workers, {1000, 3 * kChunkBytes / sizeof(float) + 3, 70},
                 {.consistency = consistency, .deterministic = true});
}

// What the workers tell the thread that kills their servers, and the other way round.
struct Progress {
  std::atomic<int64_t> steps_made = 0;  // of all workers, repeated ones included
  std::atomic<bool> hold = true;  // the workers must not end the job: its servers would not be started again
  std::atomic<int> held = 0;      // workers whose last push is answered
};

// From the step at which the worker is admitted to the end, following its servers when they go back.
absl::Status Train(TestWorker& worker, int64_t steps, Progress& progress) {
  PSRING_RETURN_IF_ERROR(worker.Start());
  int64_t step = worker.client->status().start_step;
  while (true) {
    while (step < steps) {
      PSRING_RETURN_IF_ERROR(worker.Advance(step));
      ++progress.steps_made;
      progress.steps_made.notify_all();
    }
    ++progress.held;
    progress.held.notify_all();
    progress.hold.wait(true);
    PSRING_ASSIGN_OR_RETURN(const std::optional<int64_t> back, worker.client->Barrier(2, Soon()));
    if (!back.has_value()) break;
    step = *back;
    PSRING_RETURN_IF_ERROR(worker.Fetch());
  }
  PSRING_RETURN_IF_ERROR(worker.Fetch());
  return worker.client->Leave(Soon());
}

// Servers of one job, each of which can be killed and started again.
class Servers {
 public:
  Servers(int servers, int workers, std::vector<std::string> flags)
      : workers_(workers), flags_(std::move(flags)), rendezvous_(MeetIn(*store_)) {
    children_.resize(servers);
    for (int server = 0; server < servers; ++server) Start(server);
  }

  int count() const { return static_cast<int>(children_.size()); }
  Rendezvous& rendezvous() { return *rendezvous_; }
  void Start(int server) {
    std::vector<std::string> flags = {"--checkpoint_dir", folder_, "--record", folder_, "--timeout", "20"};
    flags.insert(flags.end(), flags_.begin(), flags_.end());
    children_[server] =
        std::make_unique<Child>(ServerCommand(PS_SERVER_BINARY, *store_, workers_, flags, server, count()));
  }
  void End(int server, int signal) {
    children_[server]->Signal(signal);
    // After SIGTERM it gives its workers five seconds.
    EXPECT_EQ(children_[server]->Wait(), 128 + signal) << children_[server]->both();
  }
  // Kills a random server three times, each time after a random number of steps, and starts it again. The
  // last time may be after the last push.
  void KillThreeTimes(std::mt19937& random, Progress& progress) {
    for (const int64_t base : {0, 25, 50}) {
      const int64_t at = base + static_cast<int64_t>(random() % 25);
      for (int64_t made = progress.steps_made; made < at; made = progress.steps_made) {
        progress.steps_made.wait(made);
      }
      for (int held = 0; base == 50 && random() % 2 == 0 && (held = progress.held) < workers_;) {
        progress.held.wait(held);
      }
      const int victim = static_cast<int>(random() % children_.size());
      End(victim, random() % 16 == 0 ? SIGTERM : SIGKILL);
      if (base == 50) {
        progress.hold = false;
        progress.hold.notify_all();
      }
      Start(victim);
    }
  }
  // All servers end with exit code 0.
  void ExpectNormalEnd() {
    for (const auto& child : children_) EXPECT_EQ(child->Wait(), 0) << child->both();
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_NE(entry.path().extension(), ".checkpoint") << "of a job that has ended normally";
    }
  }

 private:
  const int workers_;
  const std::vector<std::string> flags_;
  const TestFolder made_;
  const std::string folder_ = made_.path();
  std::unique_ptr<RendezvousServer> store_ = NewStore();
  std::unique_ptr<Rendezvous> rendezvous_;
  std::vector<std::unique_ptr<Child>> children_;
};

constexpr int kTrainers = 2;
constexpr int64_t kTrainedSteps = 40;

// Trains with `count` servers, which are killed. `check`: of the weights at the end.
template <typename Check>
void TrainWhileServersAreKilled(const ServerJob& job, int count, bool own_connection, std::mt19937& random,
                                const Check& check) {
  Servers servers(count, kTrainers, {"--checkpoint_every", absl::StrCat(1 + random() % 7)});
  Progress progress;
  std::thread workers([&] {
    ForEachRank(kTrainers, [&](int rank) {
      TestWorker worker(job, rank, NewClient(servers.rendezvous(), count, own_connection));
      EXPECT_EQ(Train(worker, kTrainedSteps, progress), absl::OkStatus());
      check(worker.weights);
    });
  });
  servers.KillThreeTimes(random, progress);
  workers.join();
  servers.ExpectNormalEnd();
}

TEST(DeathsTest, WithKilledServersSynchronousWeightsEqualAnUninterruptedRun) {
  AtRandomMoments(1, [](std::mt19937& random) {
    for (const auto& [count, own_connection] :
         {std::pair(2, false), std::pair(3, false), std::pair(1, true)}) {
      SCOPED_TRACE(absl::StrCat(count, " servers", own_connection ? ", own connections" : ""));
      ServerJob job = Job(kTrainers, "sync");
      if (random() % 3 == 0) job.clip_norm = 3;
      TrainWhileServersAreKilled(job, count, own_connection, random, [&](const std::vector<float>& weights) {
        if (count == 1 || job.clip_norm == 0) {
          EXPECT_EQ(weights, TrainAlone(job, kTrainedSteps));
        } else {  // the parts of the norm are added in another order
          EXPECT_LT(RelativeDistance(weights, TrainAlone(job, kTrainedSteps)), 1e-6);
        }
      });
    }
  });
}

// The weights after every push of every worker, in any order.
std::vector<float> WithEveryPush(const ServerJob& job, int64_t steps) {
  std::vector<float> weights = InitialWeights(job);
  for (int worker = 0; worker < job.workers; ++worker) {
    for (int64_t step = 0; step < steps; ++step) {
      const std::vector<float> gradient = Gradient(job, worker, step);
      const double rate = job.schedule.base / static_cast<double>(Samples(worker, step));
      for (size_t i = 0; i < weights.size(); ++i) weights[i] -= static_cast<float>(rate * gradient[i]);
    }
  }
  return weights;
}

// Each shard continues from its own checkpoint, independently of the others.
TEST(DeathsTest, KilledAsynchronousServersApplyEveryPushExactlyOnce) {
  AtRandomMoments(1, [](std::mt19937& random) {
    for (const auto& [consistency, count] : {std::pair("async", 2), std::pair("ssp:2", 1)}) {
      const bool own_connection = random() % 2 == 0;
      SCOPED_TRACE(absl::StrCat(consistency, ", ", count, " servers"));
      ServerJob job = Job(kTrainers, consistency);
      job.deterministic = false;
      job.serial = random() % 2 == 0;
      job.optimizer.kind = OptimizerKind::kSgd;
      TrainWhileServersAreKilled(job, count, own_connection, random, [&](const std::vector<float>& weights) {
        EXPECT_LT(RelativeDistance(weights, WithEveryPush(job, kTrainedSteps)), 1e-5);
      });
    }
  });
}

}  // namespace
}  // namespace psring
