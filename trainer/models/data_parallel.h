// The algorithm of torch.nn.DataParallel, with its traffic: one process with a replica and a thread per
// device. All transfers are from or to device 0.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "trainer/models/model.h"

namespace psring {

struct DataParallelOptions {
  int replicas = 1;
  int max_batch = 1;  // of all replicas together
  int max_share = 1;  // of one replica
  SampleSpec samples;
  Clock clock = MonotonicNanos;
};

// Forward distributes the batch from device 0, copies the weights to the other replicas, computes on all,
// gathers the outputs on device 0 and computes the loss there. Backward distributes the outputs' gradients,
// computes on all, and adds the replicas' gradients on device 0, in order. Replica 0 is on device 0: its data
// is not moved.
//
// In training only replica 0 updates buffers, as in PyTorch.
//
// Share r of N of a batch of n has n / N samples, and one more if r < n % N; shares are consecutive.
class DataParallel : public Model {
 public:
  // One replica: a model and its Ops.
  struct Parts {
    std::unique_ptr<Ops> ops;
    std::unique_ptr<Model> model;
  };

  // `make` is called once per replica. `device` stands for all devices, as a CPU does; `ops` is device 0's.
  // Both are borrowed.
  static absl::StatusOr<std::unique_ptr<DataParallel>> Create(
      const DataParallelOptions& options, Device& device, Ops& ops,
      const std::function<absl::StatusOr<Parts>()>& make);

  const ParameterLayout& parameters() const override { return replicas_[0].parts.model->parameters(); }
  // The gradients of all replicas are added at the end.
  size_t layers() const override { return 1; }
  std::vector<ReadyRange> CompleteAfterLayers() const override { return {{0, parameters().count()}}; }
  std::vector<float> InitialWeights(uint64_t seed) const override {
    return replicas_[0].parts.model->InitialWeights(seed);
  }
  // values[0] has all outputs, and their gradients.
  absl::StatusOr<Activations> NewActivations(int max_batch, Keep keep, Device& device) const override;
  absl::StatusOr<Span> ForwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                                   Activations& activations, Stream& stream) override;
  absl::Status Loss(const Batch& batch, Activations& activations, BatchScore* score, Stream& stream) override;
  absl::Status BackwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                            Activations& activations, Span gradient, Stream& stream) override;

  // Bytes and times since the last call. After Synchronize.
  DataParallelFigures Take();

 private:
  struct Replica {
    Parts parts;
    std::unique_ptr<Stream> lane;  // null for replica 0, which uses the caller's
    Buffer weights, gradient;
    std::vector<Buffer> inputs;
    Batch batch;    // of the last forward
    int first = 0;  // its first sample in the entire batch
    Span outputs;
    absl::Status status;  // of its last work
  };

  DataParallel(const DataParallelOptions& options, Ops& ops) : options_(options), ops_(ops) {}

  // Per sample.
  size_t OutputElements() const { return size_t{1} * options_.samples.labels * options_.samples.classes; }
  Activations& OwnOf(const Replica& replica, Activations& activations) const {
    return activations.replicas[static_cast<size_t>(&replica - replicas_.data())];
  }
  // The first sample of `replica`'s share, and the number of samples.
  std::pair<int, int> ShareOf(int batch, size_t replica) const;
  // Runs `work(replica, stream)` for every replica on its thread; later work of `stream` follows all of it.
  absl::Status OnAll(Stream& stream,
                     const std::function<absl::Status(Replica& replica, Stream& stream)>& work);
  // `all`, with the replica's weights, buffers and samples.
  static ModelState StateOf(const Replica& replica, const ModelState& all);
  // The place of a replica's outputs among all.
  Span PlaceOf(const Activations& activations, int batch, size_t replica) const;
  // Adds to `ms`, unless it is null, the stream's time since the last call.
  void Charge(double* ms, Stream& stream);

  const DataParallelOptions options_;
  Ops& ops_;
  std::vector<Replica> replicas_;
  DataParallelFigures figures_;
  int64_t charged_ns_ = 0;
};

}  // namespace psring
