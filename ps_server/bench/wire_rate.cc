#include "ps_server/bench/wire_rate.h"

#include <atomic>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/device/device.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/server/parameter_server.h"
#include "ps_server/wire/service.h"

namespace psring {
namespace {

constexpr size_t kFloats = 1 << 20;
constexpr absl::Duration kLongestRound = absl::Seconds(30);
constexpr int64_t kWarmUpRounds = 2, kLeastRounds = 3;

// What the workers' threads share.
class RateRounds {
 public:
  RateRounds(int workers, absl::Duration time) : time_(time) {
    job_.workers = workers;
    job_.buckets = {{0, 0, kFloats}};
    job_.parameters = kFloats;
    job_.optimizer.kind = OptimizerKind::kSgd;
    job_.schedule.base = 1;
  }

  absl::Status RunWorker(int rank, PsClient& client) {
    std::vector<float> weights(kFloats), gradient(kFloats);
    const ConstSpan pushed = {gradient.data(), kFloats};
    const Span pulled = {weights.data(), kFloats};
    PSRING_RETURN_IF_ERROR(client.Start(rank, job_, {.weights = pulled}, MonotonicNow() + kLongestRound));
    // Worker 0 chooses the last round before its push, without which no worker gets an answer.
    for (int64_t round = 0; round <= last_; ++round) {
      if (rank == 0) Choose(round);
      const absl::Status status =
          client.PushPullAndWait({.step = round, .samples = 1, .gradient = pushed, .weights = pulled});
      if (!status.ok()) {
        client.Abort(status);
        return status;
      }
      if (rank == 0) end_ = MonotonicNow();
    }
    return client.Leave(MonotonicNow() + kLongestRound);
  }

  double bytes_per_s() const {
    const double bytes = 2.0 * sizeof(float) * kFloats * job_.workers;
    return bytes * static_cast<double>(last_ + 1 - kWarmUpRounds) / absl::ToDoubleSeconds(end_ - begin_);
  }

 private:
  void Choose(int64_t round) {
    const MonotonicTime now = MonotonicNow();
    if (round == kWarmUpRounds) begin_ = now;
    if (round + 1 >= kWarmUpRounds + kLeastRounds && now - begin_ >= time_) last_ = round;
  }

  const absl::Duration time_;
  ServerJob job_;
  std::atomic<int64_t> last_ = std::numeric_limits<int64_t>::max();
  MonotonicTime begin_, end_;  // worker 0
};

}  // namespace

absl::StatusOr<double> MeasureWireRate(const std::string& wire, int workers, absl::Duration time) {
  const JobSecret secret = JobSecret::Random();
  const std::unique_ptr<Device> device = MakeCpuDevice();
  ParameterServer server(*device, {.workers = workers, .timeout = kLongestRound});
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Service> service, Service::Start(server, {.secret = secret}));
  RateRounds rounds(workers, time);
  std::vector<absl::Status> outcomes(static_cast<size_t>(workers));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<PsClient> client =
          MakeGrpcPsClient(service->address(), {.secret = secret,
                                                .payload = Payload::kGrpc,
                                                .own_connection = wire == "stream",
                                                .reply_timeout = kLongestRound});
      outcomes[static_cast<size_t>(rank)] = rounds.RunWorker(rank, *client);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& outcome : outcomes) PSRING_RETURN_IF_ERROR(outcome);
  return rounds.bytes_per_s();
}

}  // namespace psring
