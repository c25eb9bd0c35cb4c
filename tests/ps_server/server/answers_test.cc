// Answers to an update: sent in parts while the rest is computed, or written to a worker's memory. Gradients
// in shared memory are read in place.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/devices/make_device.h"
#include "ps_server/server/parameter_server.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

constexpr size_t kPerChunk = kChunkBytes / sizeof(float);
constexpr size_t kCount = 3 * kPerChunk + 10;

// A worker that accepts parts, or one whose memory the server shares.
class Answers : public ReplySink {
 public:
  enum class Delivery { kParts, kWhole, kInPlace };
  struct Delivered {
    Reply reply;
    std::vector<float> values;  // of [from, upto), at delivery

    const message::Answer& answer() const { return std::get<message::Answer>(reply.message); }
  };

  explicit Answers(Delivery delivery) : delivery_(delivery) {
    if (delivery == Delivery::kInPlace) memory_ = std::make_shared<std::vector<float>>(kCount, 1.0f);
  }
  void Deliver(Reply reply) override {
    if (!std::holds_alternative<message::Answer>(reply.message)) return;
    Delivered delivered{.reply = std::move(reply)};
    const ConstSpan weights = delivered.reply.weights.weights;
    const size_t end = std::min(delivered.reply.upto, weights.bytes());
    if (!delivered.reply.in_place) {
      delivered.values.assign(weights.floats() + delivered.reply.from / sizeof(float),
                              weights.floats() + end / sizeof(float));
    }
    MutexLock lock(mutex_);
    delivered_.push_back(std::move(delivered));
  }
  void Proceed() override {}
  void Abort(const absl::Status&) override {}
  bool TakesParts() const override { return delivery_ == Delivery::kParts; }
  std::shared_ptr<const void> Memory() const override { return memory_; }
  Place PlaceOf(int, size_t bytes) override {
    if (delivery_ != Delivery::kInPlace) return {};
    weights_.resize(bytes / sizeof(float));
    return {.data = reinterpret_cast<std::byte*>(weights_.data())};
  }

  std::vector<Delivered> Take() {
    MutexLock lock(mutex_);
    return std::exchange(delivered_, {});
  }
  std::vector<float>& gradient() { return *memory_; }
  const std::vector<float>& weights() const { return weights_; }
  std::weak_ptr<std::vector<float>> LetGo() {
    std::weak_ptr<std::vector<float>> memory = memory_;
    memory_.reset();
    return memory;
  }

 private:
  const Delivery delivery_;
  std::shared_ptr<std::vector<float>> memory_;  // of the gradient
  std::vector<float> weights_;
  Mutex mutex_;
  std::vector<Delivered> delivered_ ABSL_GUARDED_BY(mutex_);
};

class AnswersTest : public ::testing::Test {
 protected:
  void Begin(const std::vector<Answers::Delivery>& deliveries, ServerJob change = {}) {
    const int workers = static_cast<int>(deliveries.size());
    job_ = MakeJob(workers, {kCount});
    job_.consistency = change.consistency;
    job_.deterministic = change.deterministic;
    job_.serial = change.serial;
    job_.clip_norm = change.clip_norm;
    server_ = std::make_unique<ParameterServer>(
        *device_, ServerOptions{.workers = workers, .on_worker_loss = OnWorkerLoss::kContinue});
    lane_ = *server_->NewLane();
    for (int worker = 0; worker < workers; ++worker) {
      inboxes_.push_back(std::make_shared<Answers>(deliveries[worker]));
      ASSERT_EQ(server_->Join({.worker = worker, .job = job_}, inboxes_.back()), absl::OkStatus());
    }
    initial_ = InitialWeights(job_);
    SendChunks(0, initial_, message::InitialWeights{});
  }
  void SendChunks(int worker, const std::vector<float>& values, message::ToServer message) {
    const Bytes all = std::as_bytes(std::span(values));
    for (size_t offset = 0; offset < all.size(); offset += kChunkBytes) {
      const Bytes chunk = all.subspan(offset, ChunkLength(all.size(), offset));
      message::SetOffset(message, offset);
      ASSERT_EQ(server_->Receive(worker, inboxes_[worker].get(), message, {.pieces = {&chunk, 1}}, *lane_),
                Receipt::kTaken);
    }
  }
  // Its gradient of one sample: over the wire, or in shared memory.
  void Push(int worker, int64_t step = 0) {
    const message::Gradient message{.step = step, .samples = 1, .incarnation = server_->incarnation()};
    if (inboxes_[worker]->Memory() == nullptr)
      return SendChunks(worker, std::vector<float>(kCount, 1), message);
    const Bytes whole = std::as_bytes(std::span(inboxes_[worker]->gradient()));
    ASSERT_EQ(server_->Receive(worker, inboxes_[worker].get(), message,
                               {.pieces = {&whole, 1}, .stays = true}, *lane_),
              Receipt::kTaken);
  }
  // The weights after one update with this mean gradient (all elements are equal).
  std::vector<float> WeightsAfter(float mean) const {
    std::vector<float> weights = initial_;
    const float rate = static_cast<float>(job_.schedule.base);
    for (float& weight : weights) weight -= rate * mean;
    return weights;
  }

  std::unique_ptr<Device> device_ = *MakeDevice("cpu");
  ServerJob job_;
  std::vector<float> initial_;
  std::vector<std::shared_ptr<Answers>> inboxes_;
  std::unique_ptr<ParameterServer> server_;
  std::optional<Lane> lane_;
};

using Delivery = Answers::Delivery;

TEST_F(AnswersTest, PartsAreInOrderAndFinalWhenSent) {
  Begin({Delivery::kParts, Delivery::kWhole, Delivery::kParts});
  size_t most_parts = 0;
  constexpr int kSteps = 20;  // all parts of a step may leave at once if threads are late
  for (int step = 0; step < kSteps; ++step) {
    for (const int worker : {0, 1, 2}) Push(worker, step);
    std::vector<std::vector<float>> got(3);
    for (const int worker : {0, 1, 2}) {
      const std::vector<Answers::Delivered> delivered = inboxes_[worker]->Take();
      size_t next = 0;
      for (const Answers::Delivered& part : delivered) {
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
    inboxes_.clear();
    Begin({Delivery::kParts, Delivery::kParts},
          {.consistency = consistency, .serial = consistency == "sync"});
    for (const int worker : {0, 1}) Push(worker);
    for (const int worker : {0, 1}) EXPECT_EQ(inboxes_[worker]->Take().size(), 1u) << consistency;
  }
}

TEST_F(AnswersTest, TheUpdateReadsAndWritesSharedMemory) {
  for (const bool deterministic : {false, true}) {
    for (const double clip_norm : {0.0, 1e9}) {
      inboxes_.clear();
      Begin({Delivery::kInPlace, Delivery::kParts, Delivery::kInPlace},
            {.deterministic = deterministic, .clip_norm = clip_norm});
      Push(0);
      Push(1);
      // Not allowed for workers; shows that the gradient was not copied.
      inboxes_[0]->gradient().assign(kCount, 4);
      Push(2);
      const std::vector<float> expected = WeightsAfter((4 + 1 + 1) / 3.0f);
      EXPECT_LT(RelativeDistance(inboxes_[0]->weights(), expected), 1e-6);
      EXPECT_EQ(inboxes_[0]->weights(), inboxes_[2]->weights());
      for (const int worker : {0, 2}) {
        const std::vector<Answers::Delivered> delivered = inboxes_[worker]->Take();
        ASSERT_EQ(delivered.size(), 1u);
        EXPECT_TRUE(delivered[0].reply.in_place);
        EXPECT_EQ(delivered[0].answer().shared->bytes, kCount * sizeof(float));
      }
      std::vector<float> by_wire;
      for (const Answers::Delivered& part : inboxes_[1]->Take()) {
        by_wire.insert(by_wire.end(), part.values.begin(), part.values.end());
      }
      EXPECT_EQ(by_wire, inboxes_[0]->weights());
    }
  }
}

TEST_F(AnswersTest, MoreThanFourSharedGradientsAreAddedOnArrival) {
  Begin(std::vector<Delivery>(6, Delivery::kInPlace));
  for (int worker = 0; worker < 5; ++worker) Push(worker);
  for (int worker = 0; worker < 5; ++worker) inboxes_[worker]->gradient().assign(kCount, 7);
  Push(5);
  EXPECT_LT(RelativeDistance(inboxes_[3]->weights(), WeightsAfter((4 * 7 + 2) / 6.0f)), 1e-6);
}

TEST_F(AnswersTest, TheMemoryOfALostWorkerIsKeptUntilItsPushIsApplied) {
  Begin({Delivery::kInPlace, Delivery::kInPlace});
  Push(0);
  server_->Disconnected(0, inboxes_[0].get(), "gone");
  const std::weak_ptr<std::vector<float>> memory = inboxes_[0]->LetGo();
  EXPECT_FALSE(memory.expired());
  Push(1);
  // A complete push counts even if its worker was lost.
  EXPECT_LT(RelativeDistance(inboxes_[1]->weights(), WeightsAfter(1)), 1e-6);
  EXPECT_TRUE(memory.expired());
}

}  // namespace
}  // namespace psring
