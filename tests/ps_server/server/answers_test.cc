// Answers to an update: sent in parts while the rest is computed, or written to a worker's memory. Gradients
// in shared memory are read in place.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/ps_server/server/server_fixture.h"

namespace psring {
namespace {

using Delivery = TestSink::Delivery;

constexpr size_t kCount = 3 * kChunkBytes / sizeof(float) + 10;

class AnswersTest : public ServerFixture {
 protected:
  void Begin(const std::vector<Delivery>& deliveries, const JobOptions& options = {}) {
    ServerFixture::Begin(MakeJob(static_cast<int>(deliveries.size()), {kCount}, options),
                         {.on_worker_loss = OnWorkerLoss::kContinue}, deliveries);
  }
  // The weights after one update with this mean gradient (all elements are equal).
  std::vector<float> WeightsAfter(float mean) const {
    std::vector<float> weights = initial_;
    const float rate = static_cast<float>(job_.schedule.base);
    for (float& weight : weights) weight -= rate * mean;
    return weights;
  }
};

TEST_F(AnswersTest, PartsAreInOrderAndFinalWhenSent) {
  Begin({Delivery::kParts, Delivery::kWhole, Delivery::kParts});
  size_t most_parts = 0;
  constexpr int kSteps = 20;  // all parts of a step may leave at once if threads are late
  for (int step = 0; step < kSteps; ++step) {
    for (const int worker : {0, 1, 2}) Push(worker, 0, step);
    std::vector<std::vector<float>> got(3);
    for (const int worker : {0, 1, 2}) {
      const std::vector<TestSink::Delivered> delivered = sinks_[worker]->Take();
      size_t next = 0;
      for (const TestSink::Delivered& part : delivered) {
        EXPECT_EQ(part.reply.from, next);
        EXPECT_EQ(part.reply.from % kChunkBytes, 0u);
        EXPECT_EQ(part.answer().version, step + 1);
        next = part.reply.upto;
        got[worker].insert(got[worker].end(), part.values.begin(), part.values.end());
      }
      EXPECT_EQ(next, SIZE_MAX) << "the last part reaches the end";
      if (worker == 1) {
        EXPECT_EQ(delivered.size(), 1u);
      }
      most_parts = std::max(most_parts, delivered.size());
    }
    if (step == 0) {
      EXPECT_EQ(got[1], WeightsAfter(1));
    }
    EXPECT_EQ(got[0], got[1]);
    EXPECT_EQ(got[2], got[1]);
  }
  EXPECT_GT(most_parts, 1u);
  EXPECT_EQ(server_->stats().pushes, 3 * kSteps) << "an answer with several parts counts once";
}

TEST_F(AnswersTest, ThereAreNoPartsIfAnswersAreHeldOrCopied) {
  for (const std::string consistency : {"sync", "async"}) {
    Begin({Delivery::kParts, Delivery::kParts},
          {.consistency = consistency, .serial = consistency == "sync"});
    for (const int worker : {0, 1}) Push(worker);
    for (const int worker : {0, 1}) EXPECT_EQ(sinks_[worker]->Take().size(), 1u) << consistency;
  }
}

TEST_F(AnswersTest, TheUpdateReadsAndWritesSharedMemory) {
  for (const bool deterministic : {false, true}) {
    for (const double clip_norm : {0.0, 1e9}) {
      Begin({Delivery::kInPlace, Delivery::kParts, Delivery::kInPlace},
            {.deterministic = deterministic, .clip_norm = clip_norm});
      Push(0);
      Push(1);
      // Not allowed for workers; shows that the gradient was not copied.
      sinks_[0]->gradient().assign(kCount, 4);
      Push(2);
      const std::vector<float> expected = WeightsAfter((4 + 1 + 1) / 3.0f);
      EXPECT_LT(RelativeDistance(sinks_[0]->weights(), expected), 1e-6);
      EXPECT_EQ(sinks_[0]->weights(), sinks_[2]->weights());
      for (const int worker : {0, 2}) {
        const std::vector<TestSink::Delivered> delivered = sinks_[worker]->Take();
        ASSERT_EQ(delivered.size(), 1u);
        EXPECT_TRUE(delivered[0].reply.in_place);
        EXPECT_EQ(delivered[0].answer().shared->bytes, kCount * sizeof(float));
      }
      std::vector<float> by_wire;
      for (const TestSink::Delivered& part : sinks_[1]->Take()) {
        by_wire.insert(by_wire.end(), part.values.begin(), part.values.end());
      }
      EXPECT_EQ(by_wire, sinks_[0]->weights());
    }
  }
}

TEST_F(AnswersTest, MoreThanFourSharedGradientsAreAddedOnArrival) {
  Begin(std::vector<Delivery>(6, Delivery::kInPlace));
  for (int worker = 0; worker < 5; ++worker) Push(worker);
  for (int worker = 0; worker < 5; ++worker) sinks_[worker]->gradient().assign(kCount, 7);
  Push(5);
  EXPECT_LT(RelativeDistance(sinks_[3]->weights(), WeightsAfter((4 * 7 + 2) / 6.0f)), 1e-6);
}

TEST_F(AnswersTest, TheMemoryOfALostWorkerIsKeptUntilItsPushIsApplied) {
  Begin({Delivery::kInPlace, Delivery::kInPlace});
  Push(0);
  server_->Disconnected(0, sinks_[0].get(), "gone");
  const std::weak_ptr<std::vector<float>> memory = sinks_[0]->ReleaseMemory();
  EXPECT_FALSE(memory.expired());
  Push(1);
  // A complete push counts even if its worker was lost.
  EXPECT_LT(RelativeDistance(sinks_[1]->weights(), WeightsAfter(1)), 1e-6);
  EXPECT_TRUE(memory.expired());
}

}  // namespace
}  // namespace psring
