// A server that is called with the messages of its workers, without clients.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/device_factory/make_device.h"
#include "ps_server/server/parameter_server.h"
#include "tests/ps_server/test_job.h"

namespace psring {

// What a worker gets. It accepts parts of answers, or shares its memory with the server, or neither.
class TestSink : public ReplySink {
 public:
  enum class Delivery { kWhole, kParts, kInPlace };
  struct Delivered {
    Reply reply;
    std::vector<float> values;  // of [from, upto), at delivery

    const message::Answer& answer() const { return std::get<message::Answer>(reply.message); }
  };

  // In place: its gradient has `count` elements, all 1.
  explicit TestSink(Delivery manner = Delivery::kWhole, size_t count = 0) : manner_(manner) {
    if (manner == Delivery::kInPlace) memory_ = std::make_shared<std::vector<float>>(count, 1.0f);
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
  void Proceed() override {
    MutexLock lock(mutex_);
    may_proceed_ = true;
    changed_.NotifyAll();
  }
  void Abort(const absl::Status& why) override {
    MutexLock lock(mutex_);
    end_ = why;
    changed_.NotifyAll();
  }
  bool TakesParts() const override { return manner_ == Delivery::kParts; }
  std::shared_ptr<const void> Memory() const override { return memory_; }
  Place PlaceOf(int, size_t bytes) override {
    if (manner_ != Delivery::kInPlace) return {};
    weights_.resize(bytes / sizeof(float));
    return {.data = reinterpret_cast<std::byte*>(weights_.data())};
  }

  // The answers since the last call; their buckets.
  std::vector<Delivered> Take() {
    MutexLock lock(mutex_);
    return std::exchange(delivered_, {});
  }
  std::vector<int> TakeBuckets() {
    std::vector<int> buckets;
    for (const Delivered& delivered : Take()) buckets.push_back(delivered.answer().bucket);
    return buckets;
  }
  // False: not within ten seconds.
  bool AwaitProceed() {
    MutexLock lock(mutex_);
    const MonotonicTime deadline = MonotonicNow() + absl::Seconds(10);
    while (!may_proceed_ && MonotonicNow() < deadline) changed_.WaitUntil(mutex_, deadline);
    return std::exchange(may_proceed_, false);
  }
  std::string AwaitEnd() {
    MutexLock lock(mutex_);
    const MonotonicTime deadline = MonotonicNow() + absl::Seconds(10);
    while (end_.ok() && MonotonicNow() < deadline) changed_.WaitUntil(mutex_, deadline);
    return std::string(end_.message());
  }

  std::vector<float>& gradient() { return *memory_; }
  const std::vector<float>& weights() const { return weights_; }
  std::weak_ptr<std::vector<float>> ReleaseMemory() {
    std::weak_ptr<std::vector<float>> memory = memory_;
    memory_.reset();
    return memory;
  }

 private:
  const Delivery manner_;
  std::shared_ptr<std::vector<float>> memory_;  // of the gradient
  std::vector<float> weights_;
  Mutex mutex_;
  CondVar changed_;
  bool may_proceed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  std::vector<Delivered> delivered_ ABSL_GUARDED_BY(mutex_);
};

class ServerFixture : public ::testing::Test {
 protected:
  // All workers join, and worker 0 sends the initial weights. `deliveries`: by worker; empty: all kWhole.
  void Begin(const ServerJob& job, ServerOptions options = {},
             const std::vector<TestSink::Delivery>& deliveries = {}) {
    job_ = job;
    options.workers = job.workers;
    server_ = std::make_unique<ParameterServer>(*device_, options);
    lane_ = *server_->NewLane();
    sinks_.clear();
    for (int worker = 0; worker < job.workers; ++worker) {
      sinks_.push_back(std::make_shared<TestSink>(
          deliveries.empty() ? TestSink::Delivery::kWhole : deliveries[static_cast<size_t>(worker)],
          static_cast<size_t>(job.parameters)));
      ASSERT_EQ(Join(worker, /*again=*/false), absl::OkStatus());
    }
    initial_ = InitialWeights(job);
    for (const Bucket& bucket : job.buckets) {
      SendChunks(0, message::InitialWeights{.bucket = bucket.index},
                 std::span(initial_).subspan(bucket.first, bucket.count));
    }
  }
  absl::Status Join(int worker, bool again) {
    return server_->Join({.worker = worker, .job = job_, .session = 7u + worker, .again = again},
                         sinks_[worker]);
  }
  // The worker's stream breaks, and it opens another one.
  void Reconnect(int worker) {
    server_->Disconnected(worker, sinks_[worker].get(), "cut");
    sinks_[worker] = std::make_shared<TestSink>();
    ASSERT_EQ(Join(worker, /*again=*/true), absl::OkStatus());
  }
  Receipt Send(int worker, const message::ToServer& message, Bytes payload, bool stays = false) {
    return server_->Receive(worker, sinks_[worker].get(), message, {.pieces = {&payload, 1}, .stays = stays},
                            *lane_);
  }
  void SendChunks(int worker, message::ToServer message, std::span<const float> values) {
    const Bytes all = std::as_bytes(values);
    for (size_t offset = 0; offset < all.size(); offset += kChunkBytes) {
      message::SetOffset(message, offset);
      ASSERT_EQ(Send(worker, message, all.subspan(offset, ChunkLength(all.size(), offset))), Receipt::kTaken);
    }
  }
  message::Gradient GradientOf(int bucket, int64_t step) const {
    return {.bucket = bucket, .step = step, .samples = 1, .incarnation = server_->incarnation()};
  }
  // The worker's gradient of one sample with all elements 1: over the wire, or in shared memory.
  void Push(int worker, int bucket = 0, int64_t step = 0) {
    const message::Gradient message = GradientOf(bucket, step);
    if (sinks_[worker]->Memory() == nullptr) {
      return SendChunks(worker, message, std::vector<float>(job_.buckets[bucket].count, 1));
    }
    const Bytes whole = std::as_bytes(std::span(sinks_[worker]->gradient()));
    ASSERT_EQ(Send(worker, message, whole, /*stays=*/true), Receipt::kTaken);
  }

  std::unique_ptr<Device> device_ = *MakeDevice(PSRING_TEST_DEVICE);
  ServerJob job_;
  std::vector<float> initial_;
  std::vector<std::shared_ptr<TestSink>> sinks_;  // by worker
  std::unique_ptr<ParameterServer> server_;
  std::optional<Lane> lane_;
};

}  // namespace psring
