// Where weights and gradient are, and buffers at the beginning and when training goes back.
#include "trainer/step/model_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/trainer/cluster.h"

namespace psring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class WeightMemoryTest : public testing::Test {
 protected:
  const std::unique_ptr<Device> device_ = MakeCpuDevice();
  Trace trace_{0};
  Worker worker_{.device = *device_, .data = SmallData(), .trace = trace_};
};

TEST_F(WeightMemoryTest, IsPrivateUnlessSomebodyReadsItInPlace) {
  for (const bool server_shares : {false, true}) {
    const auto memory =
        WeightMemory::Create(worker_, {.weights = 32, .gradient = 16, .server_shares = server_shares})
            .value();
    const TrainingState state = memory->State();
    EXPECT_EQ(state.weights.device.count, 32);
    EXPECT_EQ(state.gradient.device.count, 16);
    EXPECT_TRUE(state.weights.is_one());
    EXPECT_TRUE(state.gradient.is_one());
    EXPECT_EQ(state.weights_fd >= 0, server_shares);
    EXPECT_EQ(state.gradient_fd >= 0, server_shares);
    EXPECT_EQ(state.weights_on_gpu, "");
  }
}

TEST_F(WeightMemoryTest, WhatTheGroupSendsOutlivesIt) {
  for (const bool sends_weights : {false, true}) {
    std::vector<Buffer> registered;  // outlives the group
    const Connections connections = Connect(FindStrategy("ring").value(), 2, absl::Seconds(60));
    worker_.group = connections.group(0);
    worker_.registered = &registered;
    auto memory =
        WeightMemory::Create(worker_, {.weights = 16, .gradient = 16, .group_sends_weights = sends_weights})
            .value();
    ASSERT_EQ(registered.size(), 1);
    EXPECT_EQ(registered[0].data(), memory->gradient().device.data);
    const void* const weights = memory->weights().device.data;
    EXPECT_EQ(memory->State().weights_fd >= 0, sends_weights);
    memory.reset();
    ASSERT_EQ(registered.size(), sends_weights ? 2 : 1);
    if (sends_weights) {
      EXPECT_EQ(registered[1].data(), weights);
    }
  }
}

class ModelBuffersTest : public testing::Test {
 protected:
  ModelBuffersTest() {
    worker_.on_note = [this](const std::string& note) { notes_.push_back(note); };
    layout_.AddBuffer("running_mean", {2}, 0);
    layout_.AddBuffer("running_var", {2}, 1);
  }
  std::unique_ptr<ModelBuffers> Make(const ParameterLayout& layout, int64_t kept_every) {
    return ModelBuffers::Create(worker_, layout, *compute_, kept_every).value();
  }
  // The values that all have before `step`.
  static std::vector<float> At(int step) { return std::vector<float>(4, static_cast<float>(step)); }

  const std::unique_ptr<Device> device_ = MakeCpuDevice();
  const std::unique_ptr<Stream> compute_ = device_->NewStream(StreamKind::kCompute, "compute");
  Trace trace_{0};
  Worker worker_{.device = *device_, .data = SmallData(), .trace = trace_};
  ParameterLayout layout_;
  std::vector<std::string> notes_;
};

TEST_F(ModelBuffersTest, BeginWithInitialValuesOrThoseOfACheckpoint) {
  const auto buffers = Make(layout_, 0);
  ASSERT_TRUE(buffers->Load({}).ok());
  EXPECT_THAT(buffers->OnHost().value(), ElementsAre(0, 0, 1, 1));
  ASSERT_TRUE(buffers->Load({2, 3, 4, 5}).ok());
  EXPECT_THAT(buffers->OnHost().value(), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(buffers->statistics(), nullptr) << "each rank has its own";
}

TEST_F(ModelBuffersTest, TrainingGoesBackToTheNewestKeptSteps) {
  const auto buffers = Make(layout_, /*kept_every=*/2);
  for (int step = 1; step <= 8; ++step) {
    ASSERT_TRUE(buffers->Load(At(step)).ok());
    ASSERT_TRUE(buffers->Keep(step).ok());
  }
  for (const int step : {8, 6, 4}) {
    ASSERT_TRUE(buffers->Restore(step).ok());
    EXPECT_EQ(buffers->OnHost().value(), At(step));
  }
  EXPECT_THAT(notes_, IsEmpty());
  ASSERT_TRUE(buffers->Restore(6).ok());  // going back has removed later copies
  EXPECT_EQ(buffers->OnHost().value(), At(4));
  EXPECT_EQ(notes_.size(), 1);
}

TEST_F(ModelBuffersTest, TheFirstStepIsKept) {
  const auto buffers = Make(layout_, /*kept_every=*/5);
  ASSERT_TRUE(buffers->Load(At(3)).ok());
  ASSERT_TRUE(buffers->Keep(3).ok());
  ASSERT_TRUE(buffers->Load(At(4)).ok());
  ASSERT_TRUE(buffers->Keep(4).ok());
  ASSERT_TRUE(buffers->Restore(3).ok());
  EXPECT_EQ(buffers->OnHost().value(), At(3));
  ASSERT_TRUE(buffers->Restore(2).ok());
  EXPECT_EQ(notes_.size(), 1) << "nothing before it";
}

TEST_F(ModelBuffersTest, AModelWithoutBuffersHasNone) {
  const ParameterLayout none;
  const auto buffers = Make(none, 1);
  EXPECT_TRUE(buffers->Load({}).ok());
  EXPECT_TRUE(buffers->Keep(1).ok());
  EXPECT_TRUE(buffers->Restore(1).ok());
  EXPECT_THAT(buffers->OnHost().value(), IsEmpty());
  EXPECT_EQ(buffers->view().device.bytes(), 0);
  EXPECT_THAT(notes_, IsEmpty());
}

}  // namespace
}  // namespace psring
