// A server on a GPU reads gradients from its workers' GPU memory and writes weights to it; gRPC carries only
// control messages. Uses the fake CUDA runtime (tests/common/cuda/fake_cuda.h), whose device memory the host
// cannot access.
#include <gtest/gtest.h>

#include <limits>

#include "common/cuda/cuda_device.h"
#include "common/device/host_view.h"
#include "common/device_factory/make_device.h"
#include "ps_server/wire/service.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/ps_server/test_job.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

// Before anything else: pointers of other ranks are invalid.
const bool kOpensElsewhere = TheFakeCuda().opens_elsewhere = true;

const std::vector<size_t> kSizes = {3, kChunkBytes / sizeof(float) + 77, 5000};

// A worker whose gradient and weights are on the GPU, with host buffers of both, as in a trainer.
class GpuWorker {
 public:
  GpuWorker(const ServerJob& job, int rank, Device& device, const std::string& address,
            Payload payload = Payload::kAuto)
      : job_(job),
        rank_(rank),
        weights_(*device.Allocate(job.parameters * sizeof(float))),
        gradient_(*device.Allocate(job.parameters * sizeof(float))),
        host_weights_(*device.AllocateOnHost(weights_.bytes())),
        host_gradient_(*device.AllocateOnHost(weights_.bytes())),
        stream_(device.NewStream(StreamKind::kCompute, "worker")),
        client_(MakeGrpcPsClient(address, {.secret = TestSecret(), .payload = payload})) {
    memory_ = {
        .weights = host_weights_.span(),
        .shared_gradients = {host_gradient_.span(), host_gradient_.shared_fd(),
                             *ExportMemory(device, gradient_)},
        .shared_weights = {host_weights_.span(), host_weights_.shared_fd(), *ExportMemory(device, weights_)}};
  }

  absl::Status Start() {
    const std::vector<float> initial = InitialWeights(job_);
    std::copy(initial.begin(), initial.end(), host_weights_.span().floats());
    return client_->Start(rank_, job_, memory_, Soon());
  }

  // The weights after one exchange of every bucket.
  absl::StatusOr<std::vector<float>> Step(int64_t step, const std::vector<float>& gradient) {
    const bool on_gpu = client_->status().payload == "cuda_ipc";
    // The buffers that must not be used contain NaN.
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(host_gradient_.span().floats(), gradient.size(), nan);
    std::fill_n(host_weights_.span().floats(), gradient.size(), nan);
    if (on_gpu) {
      stream_->Copy(gradient_.data(), gradient.data(), gradient_.bytes());
      PSRING_RETURN_IF_ERROR(stream_->Synchronize());
    } else {
      std::copy(gradient.begin(), gradient.end(), host_gradient_.span().floats());
    }
    std::vector<Exchange> exchanges;
    for (const Bucket& bucket : job_.buckets) {
      exchanges.push_back({.bucket = bucket.index,
                           .step = step,
                           .samples = Samples(rank_, step),
                           .gradient = host_gradient_.span().Slice(bucket.first, bucket.count),
                           .weights = host_weights_.span().Slice(bucket.first, bucket.count)});
    }
    PSRING_ASSIGN_OR_RETURN(const std::vector<ExchangeResult> results, ExchangeAll(*client_, exchanges));
    for (const ExchangeResult& result : results) EXPECT_EQ(result.on_gpu, on_gpu);
    std::vector<float> weights(gradient.size());
    stream_->Copy(weights.data(), on_gpu ? weights_.data() : host_weights_.data(), weights_.bytes());
    PSRING_RETURN_IF_ERROR(stream_->Synchronize());
    return weights;
  }

  PsClient& client() { return *client_; }

 private:
  const ServerJob job_;
  const int rank_;
  const Buffer weights_, gradient_, host_weights_, host_gradient_;
  const std::unique_ptr<Stream> stream_;
  WorkerBuffers memory_;
  const std::unique_ptr<PsClient> client_;  // destroyed first: the server writes to the buffers
};

struct Serving {
  Serving(Device& device, const ServerOptions& options) : server(device, options) {
    auto started = Service::Start(server, {.secret = TestSecret()});
    PSRING_CHECK(started.ok());
    service = std::move(*started);
  }
  ParameterServer server;
  std::unique_ptr<Service> service;
};

class CudaIpcTest : public ::testing::Test {
 protected:
  ~CudaIpcTest() override {
    TheFakeCuda().handles_open = true;
    TheFakeCuda().closes_slowly = false;
    EXPECT_EQ(TheFakeCuda().opened, 0) << "all opened handles are closed";
  }
  const std::unique_ptr<Device> gpu_ = *MakeDevice("cuda"), cpu_ = MakeCpuDevice();
};

TEST_F(CudaIpcTest, TrainingHasTheSameResultAsOverTheWire) {
  const int freed_while_open = TheFakeCuda().freed_while_open;
  TheFakeCuda().closes_slowly = true;
  for (const std::string consistency : {"sync", "async", "ssp:1"}) {
    for (const bool deterministic : {false, true}) {
      if (deterministic && consistency != "sync") continue;
      const int workers =
          consistency == "sync" ? 3 : 1;  // steps of several asynchronous workers have no order
      SCOPED_TRACE(consistency + (deterministic ? ", deterministic" : ""));
      const ServerJob job =
          MakeJob(workers, kSizes, {.consistency = consistency, .deterministic = deterministic});
      Serving serving(*gpu_, {.workers = workers, .timeout = absl::Seconds(30)});
      std::vector<std::vector<float>> ends(workers);
      constexpr int64_t kSteps = 3;
      ForEachRank(workers, [&](int rank) {
        // The last worker shares no memory.
        const bool near = rank == 0 || rank < workers - 1;
        GpuWorker worker(job, rank, *gpu_, serving.service->address(),
                         near ? Payload::kAuto : Payload::kGrpc);
        ASSERT_EQ(worker.Start(), absl::OkStatus());
        EXPECT_EQ(worker.client().status().payload, near ? "cuda_ipc" : "grpc");
        for (int64_t step = 0; step < kSteps; ++step) {
          const auto weights = worker.Step(step, Gradient(job, rank, step));
          ASSERT_TRUE(weights.ok()) << weights.status();
          ends[rank] = *weights;
        }
        EXPECT_EQ(worker.client().Leave(Soon()), absl::OkStatus());
      });
      const std::vector<float> alone = TrainAlone(job, kSteps);
      for (const std::vector<float>& end : ends) {
        if (deterministic || workers == 1) {
          EXPECT_EQ(end, alone);
        } else {
          EXPECT_LT(RelativeDistance(end, alone), 1e-6);
        }
      }
    }
  }
  EXPECT_EQ(TheFakeCuda().freed_while_open, freed_while_open) << "workers wait until the server closed them";
}

TEST_F(CudaIpcTest, NonFiniteElementsAreRejectedWithTheirIndex) {
  for (const std::string consistency : {"sync", "async"}) {
    const ServerJob job = MakeJob(1, kSizes, {.consistency = consistency});
    Serving serving(*gpu_, {.workers = 1, .timeout = absl::Seconds(30)});
    GpuWorker worker(job, 0, *gpu_, serving.service->address());
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    std::vector<float> gradient = Gradient(job, 0, 0);
    gradient[job.buckets[1].first + kSizes[1] - 1] = std::numeric_limits<float>::infinity();
    const absl::Status status = worker.Step(0, gradient).status();
    EXPECT_NE(status.message().find(absl::StrCat("NaN or infinite at element ", kSizes[1] - 1)),
              std::string::npos)
        << status;
  }
}

TEST_F(CudaIpcTest, HostMemoryIsSharedIfTheGpuIsNotReachable) {
  const ServerJob job = MakeJob(1, kSizes);
  for (const bool on_gpu : {true, false}) {
    TheFakeCuda().handles_open = !on_gpu;
    Serving serving(on_gpu ? *gpu_ : *cpu_, {.workers = 1, .timeout = absl::Seconds(30)});
    GpuWorker worker(job, 0, *gpu_, serving.service->address());
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    EXPECT_EQ(worker.client().status().payload, "shm");
    const auto weights = worker.Step(0, Gradient(job, 0, 0));
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(*weights, TrainAlone(job, 1));
    EXPECT_EQ(worker.client().Leave(Soon()), absl::OkStatus());
  }
}

TEST_F(CudaIpcTest, HostMemoryIsSharedOnRequest) {
  const ServerJob job = MakeJob(1, kSizes);
  Serving serving(*gpu_, {.workers = 1, .timeout = absl::Seconds(30)});
  GpuWorker worker(job, 0, *gpu_, serving.service->address(), Payload::kShared);
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  EXPECT_EQ(worker.client().status().payload, "shm");
  EXPECT_EQ(*worker.Step(0, Gradient(job, 0, 0)), TrainAlone(job, 1));
  EXPECT_EQ(worker.client().Leave(Soon()), absl::OkStatus());
}

}  // namespace
}  // namespace psring
