// What torch.nn.DataParallel does, with its traffic: one process, a replica of the model and a thread for
// each device, and device 0 in the middle of everything.
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
  int max_batch = 1;       // of all replicas together
  int max_share = 1;       // of one replica
  size_t sample_elements;  // of the inputs
  int classes = 1;
  Clock clock = MonotonicNanos;
};

// A model like any other to whoever trains it. Its Forward deals the batch out from device 0, copies the
// weights to the other replicas, lets all compute, gathers their outputs on device 0 and takes the loss
// there. Its Backward deals out the outputs' gradients, lets all compute, and adds the replicas' gradients on
// device 0, in order. Replica 0 is device 0's: what it reads and writes is not moved.
//
// Share r of N of a batch of n is n / N samples, and one more where r < n % N, one share behind the other.
class DataParallel : public Model {
 public:
  // One replica: its model and the Ops that it computes with.
  struct Parts {
    std::unique_ptr<Ops> ops;
    std::unique_ptr<Model> model;
  };

  // `make` is called once a replica. `device` is all of the devices, as a CPU is; `ops` is device 0's. Both
  // are borrowed.
  static absl::StatusOr<std::unique_ptr<DataParallel>> Create(
      const DataParallelOptions& options, Device& device, Ops& ops,
      const std::function<absl::StatusOr<Parts>()>& make);

  const ParameterLayout& parameters() const override { return replicas_[0].parts.model->parameters(); }
  std::vector<float> InitialWeights(uint64_t seed) const override {
    return replicas_[0].parts.model->InitialWeights(seed);
  }
  void Forward(ConstSpan weights, const Batch& batch, BatchScore* score, Stream& stream) override;
  ConstSpan Outputs(ConstSpan weights, const Batch& batch, Stream& stream) override;
  Span OutputGradient(int batch) override;
  void Backward(ConstSpan weights, const Batch& batch, Span gradient, Stream& stream,
                const GradientReady& ready) override;

  // Bytes and times since the last call, of everything that the stream has done. After Synchronize.
  DataParallelFigures Take();

 private:
  struct Replica {
    Parts parts;
    std::unique_ptr<Stream> lane;  // replica 0 computes on the caller's
    Buffer weights, gradient, inputs;
    Batch batch;  // of the last Outputs
    ConstSpan outputs;
  };

  DataParallel(const DataParallelOptions& options, Ops& ops) : options_(options), ops_(ops) {}

  // The samples of `replica`'s share: the first, and how many.
  std::pair<int, int> ShareOf(int batch, size_t replica) const;
  // Every replica does `work(replica, stream)` on its thread; later work of `stream` sees all of it.
  void OnAll(Stream& stream, const std::function<void(Replica& replica, Stream& stream)>& work);
  // What the stream did since the last such call took this long.
  void Charge(double& ms, Stream& stream);

  const DataParallelOptions options_;
  Ops& ops_;
  std::vector<Replica> replicas_;
  Buffer outputs_, output_gradient_;  // gathered
  DataParallelFigures figures_;
  int64_t charged_ns_ = 0;
};

}  // namespace psring
