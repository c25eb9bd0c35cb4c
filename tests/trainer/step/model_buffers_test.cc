// Buffers at the beginning, and when training goes back to an earlier step.
#include "trainer/step/model_buffers.h"

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
