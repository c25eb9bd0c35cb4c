// Buckets that one event completes are one call of a group that joins calls; results are the same.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "tests/trainer/cluster.h"

namespace psring {
namespace {

// Like NCCL's group, but executes the calls one by one.
class JoiningGroup : public ProcessGroup {
 public:
  explicit JoiningGroup(ProcessGroup& group) : ProcessGroup(InfoOf(group)), group_(group) {}

  void Abort(absl::Status why) override { group_.Abort(std::move(why)); }
  Traffic traffic() const override { return group_.traffic(); }
  absl::Status Barrier(Stream& stream) override { return group_.Barrier(stream); }
  int most_together() const { return most_together_; }

 private:
  static GroupInfo InfoOf(const ProcessGroup& group) {
    GroupInfo info = group.info();
    info.joins_calls = true;
    return info;
  }

  absl::Status Enqueue(const CollectiveCall& call, Stream& stream) override {
    return call.collective == Collective::kBroadcast ? group_.Broadcast(call.out, call.root, stream)
                                                     : group_.AllReduce(call.in, call.out, call.op, stream);
  }
  absl::Status EnqueueTogether(const std::vector<CollectiveCall>& calls, Stream& stream) override {
    most_together_ = std::max<int>(most_together_, static_cast<int>(calls.size()));
    return ProcessGroup::EnqueueTogether(calls, stream);
  }
  absl::StatusOr<std::unique_ptr<ProcessGroup>> MakePart(Rendezvous*, int, int) override {
    return absl::UnimplementedError("no parts");
  }

  ProcessGroup& group_;
  std::atomic<int> most_together_ = 0;
};

TEST(Together, BucketsReadyAtOnceAreOneCallWithTheSameResults) {
  for (const double clip_norm : {0.0, .3}) {
    TrainingOptions options = SmallOptions("ring");
    options.model = "mlp-small";
    options.bucket_mb = .0001;  // a tensor each: a layer's weights and bias are ready at once
    options.check_replicas = true;
    options.clip_norm = clip_norm;
    const auto apart = RunRanks(options, 2, SmallData());
    std::vector<std::unique_ptr<JoiningGroup>> groups(2);
    const auto together = TrainRanks(options, 2, SmallData(), [&](Worker& worker) {
      groups[worker.rank] = std::make_unique<JoiningGroup>(*worker.group);
      worker.group = groups[worker.rank].get();
    });
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_GT(groups[rank]->most_together(), 1);
      EXPECT_EQ(together[rank].weights, apart[rank].weights);
      ASSERT_EQ(together[rank].steps.size(), apart[rank].steps.size());
      for (const StepRecord& step : together[rank].steps) {
        ASSERT_EQ(step.buckets.size(), apart[rank].steps[0].buckets.size());
        for (const BucketRecord& bucket : step.buckets) {
          EXPECT_GT(bucket.ready_ns, 0);
          EXPECT_LE(bucket.ready_ns, bucket.begin_ns);
          EXPECT_LE(bucket.begin_ns, bucket.end_ns);
        }
      }
    }
  }
}

}  // namespace
}  // namespace psring
