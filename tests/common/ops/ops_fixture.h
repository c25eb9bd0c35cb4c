// The implementations of Ops that tests run, and the fixture of a test of one of them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/cuda/cuda_device.h"
#include "common/cuda_ops/cuda_ops.h"
#include "common/device_factory/make_ops.h"
#include "common/kernels/reduce.h"
#include "common/ops/ops.h"
#include "tests/common/ops/ops_testing.h"
#include "tests/common/ops/reference_ops.h"

namespace psring {

using MadeOps = absl::StatusOr<std::unique_ptr<Ops>>;

inline const Implementation kImplementations[] = {
    {"Reference", [](Device&) -> MadeOps { return MakeReferenceOps(); }},
    {"OneDnn", [](Device&) -> MadeOps { return MakeOneDnnOps(1); }},
#if !defined(__SANITIZE_THREAD__)  // does not see the synchronization inside the OpenMP runtime
    {"OneDnnOnTwoThreads", [](Device&) -> MadeOps { return MakeOneDnnOps(2); }},
#endif
    {"GpuInLoops",
     [](Device& device) -> MadeOps { return MakeGpuOps(device, std::make_unique<HostMath>()); }},
    // Two or three pictures at a time, of most shapes.
    {"GpuInLoopsWithLittleScratch",
     [](Device& device) -> MadeOps {
       return MakeGpuOps(device, std::make_unique<HostMath>(), {.scratch_bytes = 20'000});
     }},
    {"GpuInLoopsWithALibraryOfConvolutions",
     [](Device& device) -> MadeOps {
       return MakeGpuOps(device, std::make_unique<HostMath>(/*convolves=*/true));
     }},
    {"Cuda", [](Device& device) { return MakeCudaOps(device); }, /*on_gpu=*/true},
};

inline constexpr GpuOpsOptions kBFloat16Activations = {.activations = DType::kBFloat16};

inline const Implementation kReducedImplementations[] = {
    {"OneDnnBFloat16",
     [](Device&) -> MadeOps {
       if (BFloat16Support() == BFloat16::kNone) return absl::InvalidArgumentError("no AVX-512");
       return MakeOneDnnOps(1, DType::kBFloat16);
     }},
    {"GpuInLoopsBFloat16",
     [](Device& device) -> MadeOps {
       return MakeGpuOps(device, std::make_unique<HostMath>(), kBFloat16Activations);
     }},
    {"GpuInLoopsBFloat16WithLittleScratch",
     [](Device& device) -> MadeOps {
       return MakeGpuOps(device, std::make_unique<HostMath>(),
                         {.activations = DType::kBFloat16, .scratch_bytes = 5000});
     }},
    {"GpuInLoopsBFloat16WithALibraryOfConvolutions",
     [](Device& device) -> MadeOps {
       return MakeGpuOps(device, std::make_unique<HostMath>(/*convolves=*/true), kBFloat16Activations);
     }},
    {"CudaBFloat16", [](Device& device) { return MakeCudaOps(device, Precision::kBFloat16); },
     /*on_gpu=*/true},
    {"CudaTf32", [](Device& device) { return MakeCudaOps(device, Precision::kTf32); }, /*on_gpu=*/true},
};

// Both lists.
inline std::vector<Implementation> AllImplementations() {
  std::vector<Implementation> all(std::begin(kImplementations), std::end(kImplementations));
  all.insert(all.end(), std::begin(kReducedImplementations), std::end(kReducedImplementations));
  return all;
}

using Results = std::vector<Floats>;

inline void ExpectAllNear(const Results& actual, const Results& expected, float tolerance = 2e-5f) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "result " << i);
    ExpectNear(actual[i], expected[i], tolerance);
  }
}

class OpsTest : public testing::TestWithParam<Implementation> {
 protected:
  ~OpsTest() override {
    if (stream_ == nullptr) return;  // skipped
    EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
  }

  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Device>> device =
        GetParam().on_gpu ? MakeCudaDevice(0) : absl::StatusOr<std::unique_ptr<Device>>(MakeCpuDevice());
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *std::move(device);
    MadeOps ops = GetParam().make(*device_);
    // A processor or a GPU that is older than the type.
    if (absl::IsInvalidArgument(ops.status())) GTEST_SKIP() << ops.status().message();
    ops_ = *std::move(ops);
    stream_ = device_->NewStream(StreamKind::kCompute, "test");
  }

  std::unique_ptr<Ops> Make() { return GetParam().make(*device_).value(); }

  template <typename T>
  OnDevice<T> Put(const std::vector<T>& values) {
    return OnDevice<T>(*device_, *stream_, values);
  }

  Memory memory() const { return {*device_, *stream_, ops_->activations()}; }

  // What an op rounds: its results in bfloat16, or the factors of its products in tf32.
  float Tolerance() const {
    if (ops_->activations() != DType::kFloat32) return 1.0f / 128;
    return absl::StrContains(ops_->name(), "tf32") ? 1e-3f : 2e-5f;
  }

  // `run(ops, memory)` of the implementation and of the reference.
  template <typename Run>
  void ExpectLikeTheReference(const Run& run, float tolerance) {
    const auto cpu = MakeCpuDevice();
    const auto stream = cpu->NewStream(StreamKind::kCompute, "reference");
    ExpectAllNear(run(*ops_, memory()), run(*MakeReferenceOps(), Memory{*cpu, *stream}), tolerance);
  }
  template <typename Run>
  void ExpectLikeTheReference(const Run& run) {
    ExpectLikeTheReference(run, Tolerance());
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;
};

// An implementation that lacks the family is skipped, visibly.
#define SKIP_WITHOUT(family) \
  if (ops_->families().family == nullptr) GTEST_SKIP() << ops_->name() << " has no ops of " #family

}  // namespace psring
