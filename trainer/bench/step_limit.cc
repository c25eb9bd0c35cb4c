// Compares the training step of one process with its lower limit, the time of only its matrix products and
// convolutions: step_limit [MODEL [BATCH [ROUNDS]]]. CPU, one thread, float32, the model's optimizer,
// synthetic pictures, or the default data of models that read others. A transformer's products are those of
// its linear layers, without those inside attention; a recommendation model's those of its MLPs.
//
// Real steps and products alternate in blocks in one process, so that both see the same machine. Prints a
// line of JSON: medians over all counted steps, the median over rounds of the ratio of a round's medians, and
// the fastest step and products, which other programs disturb least.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/device/device.h"
#include "common/device_factory/make_device.h"
#include "common/measure/collective_table.h"
#include "common/measure/trace.h"
#include "common/ops/step_products.h"
#include "trainer/data/sources.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/model.h"
#include "trainer/models/replayed_model.h"
#include "trainer/step/train_loop.h"
#include "trainer/tables/touched_rows.h"

namespace psring {
namespace {

constexpr int kBlock = 6;       // steps, and repetitions of the products, in a round
constexpr int kNotCounted = 2;  // at the beginning of each block: they bring their memory into the cache

struct Options {
  std::string model = "mlp";
  int batch = 128;
  int rounds = 20;
};

double Lowest(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

// The products of one step of a model, on memory of its own.
class Products {
 public:
  static absl::StatusOr<std::unique_ptr<Products>> Create(const ModelRow& row, const Dataset& data, int batch,
                                                          Device& device) {
    auto made = std::make_unique<Products>();
    made->products_ = MakeStepProducts(/*threads=*/1);
    PSRING_ASSIGN_OR_RETURN(made->model_, row.make(data.spec(), made->products_->ops()));
    if (made->model_->parameters().count() == 0) {
      return InvalidArgument("the model ", row.name, " has no matrix products or convolutions");
    }
    PSRING_ASSIGN_OR_RETURN(made->activations_, made->model_->NewActivations(batch, Keep::kAll, device));
    PSRING_ASSIGN_OR_RETURN(made->memory_, BatchMemory::Create(data.spec(), batch, device));
    const std::vector<float> initial = made->model_->InitialWeights(/*seed=*/1);
    PSRING_ASSIGN_OR_RETURN(made->weights_, device.Allocate(initial.size() * sizeof(float)));
    PSRING_ASSIGN_OR_RETURN(made->gradient_, device.Allocate(initial.size() * sizeof(float)));
    std::vector<int64_t> indices(static_cast<size_t>(batch));
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i);
    const std::unique_ptr<Stream> stream = device.NewStream(StreamKind::kCompute, "products");
    stream->Copy(made->weights_.data(), initial.data(), made->weights_.bytes());
    PSRING_ASSIGN_OR_RETURN(const Batch loaded, made->memory_.Load(data, indices, *stream));
    ModelState state{.weights = made->weights_.span()};
    std::optional<TouchedRows> rows;
    if (!made->model_->parameters().tables().empty()) {
      rows.emplace(made->model_->parameters(), data.spec());
      PSRING_RETURN_IF_ERROR(rows->Plan(data, {indices}));
      rows->ReadZeros();
      state.rows = &*rows;
      state.lookups = &rows->batch(0);
    }
    PSRING_RETURN_IF_ERROR(
        made->model_->Forward(state, loaded, made->activations_, made->memory_.score(), *stream));
    PSRING_RETURN_IF_ERROR(
        made->model_->Backward(state, loaded, made->activations_, made->gradient_.span(), *stream));
    PSRING_RETURN_IF_ERROR(stream->Synchronize());
    return made;
  }

  absl::Status Repeat() { return products_->Repeat(); }

 private:
  std::unique_ptr<StepProducts> products_;  // the model borrows its ops
  std::unique_ptr<Model> model_;
  Activations activations_;
  BatchMemory memory_;
  Buffer weights_, gradient_;
};

absl::Status Run(const Options& options) {
  TrainingOptions training;
  training.model = options.model;
  PSRING_RETURN_IF_ERROR(ApplyModel(training));
  PSRING_ASSIGN_OR_RETURN(const ModelRow* const row, FindModel(options.model));
  DataSplits data;
  if (training.data != "fashion-mnist") {
    PSRING_ASSIGN_OR_RETURN(data, DataOf(training));
  } else {
    training.data = "synthetic";
    training.lr = .01;
    data = MakeSyntheticData({.train = 16 * int64_t{options.batch}, .test = 1}, /*seed=*/1);
  }
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeDevice("cpu"));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Products> products,
                          Products::Create(*row, data.train, options.batch, *device));
  training.device = "cpu";
  training.batch = options.batch;
  training.steps = int64_t{kBlock} * options.rounds;
  training.warmup_steps = kBlock;
  training.evaluate = false;

  Trace trace(/*rank=*/0);
  Worker worker{.device = *device, .data = data, .trace = trace};
  std::vector<double> step_ms, limit_ms, ratios, steps_of_round;
  absl::Status status;
  worker.on_step = [&](const StepRecord& record) {
    const int64_t in_block = record.step % kBlock;
    if (in_block >= kNotCounted) steps_of_round.push_back(record.step_ms);
    if (in_block + 1 < kBlock) return;
    std::vector<double> products_of_round;
    for (int i = 0; i < kBlock && status.ok(); ++i) {
      const int64_t begin = MonotonicNanos();
      status = products->Repeat();
      if (i >= kNotCounted) products_of_round.push_back(static_cast<double>(MonotonicNanos() - begin) / 1e6);
    }
    if (!record.warmup) {
      ratios.push_back(Median(steps_of_round) / Median(products_of_round));
      step_ms.insert(step_ms.end(), steps_of_round.begin(), steps_of_round.end());
      limit_ms.insert(limit_ms.end(), products_of_round.begin(), products_of_round.end());
    }
    steps_of_round.clear();
  };
  worker.objection = [&] { return status; };
  PSRING_RETURN_IF_ERROR(RunWorker(training, worker).status());
  std::printf(
      "{\"model\": \"%s\", \"batch\": %d, \"threads\": 1, \"rounds\": %d, \"step_ms\": %.3f, "
      "\"limit_ms\": %.3f, \"step_over_limit\": %.3f, \"fastest_step_ms\": %.3f, "
      "\"fastest_limit_ms\": %.3f}\n",
      options.model.c_str(), options.batch, options.rounds, Median(step_ms), Median(limit_ms), Median(ratios),
      Lowest(step_ms), Lowest(limit_ms));
  return absl::OkStatus();
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) {
  psring::Options options;
  if (argc > 1) options.model = argv[1];
  const bool valid = argc <= 4 && (argc < 3 || absl::SimpleAtoi(argv[2], &options.batch)) &&
                     (argc < 4 || absl::SimpleAtoi(argv[3], &options.rounds)) && options.batch > 0 &&
                     options.batch <= 1 << 14 && options.rounds > 0 && options.rounds <= 10000;
  if (!valid) {
    return psring::Fail("step_limit", "usage: step_limit [MODEL [BATCH, 1 to 16384 [ROUNDS, 1 to 10000]]]",
                        2);
  }
  const absl::Status status = psring::Run(options);
  const int code = status.ok() ? 0 : psring::Fail("step_limit", std::string(status.message()));
  return psring::FinishOutput("step_limit", code);
}
