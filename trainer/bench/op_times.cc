// Times each op of a transformer block, forward and backward, on one thread of a CPU:
// op_times [WIDTH [HEADS [CONTEXT [BATCH [CLASSES]]]]]. The default is gpt-nano's shape.
//
// "GB/s" counts the bytes that an op must read and write once, next to a copy of as many bytes; "GFLOP/s"
// counts the multiplications and additions of its products, for attention those below the diagonal, next to
// the largest linear layer. Medians over rounds; each round calls every op once, as a step does.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/cli/command_line.h"
#include "common/device/device.h"
#include "common/measure/collective_table.h"
#include "common/measure/trace.h"
#include "common/ops/ops.h"

namespace psring {
namespace {

constexpr int kRounds = 60, kWarmUp = 10;

struct Case {
  std::string name;
  double bytes, flops;
  std::function<void()> work;
  std::vector<double> seconds = {};
};

// float32 memory with small values.
class Arena {
 public:
  Span Get(size_t count) {
    memory_.push_back(std::make_unique<std::vector<float>>(count));
    for (size_t i = 0; i < count; ++i)
      (*memory_.back())[i] = static_cast<float>(i * 7919 % 1009) / 1009 - .5f;
    return {memory_.back()->data(), count};
  }

 private:
  std::vector<std::unique_ptr<std::vector<float>>> memory_;
};

struct Sizes {
  int width = 128, heads = 4, context = 64, batch = 12, classes = 73;
};

void AddLinear(const std::string& name, const LinearShape& s, LinearOps& ops, Arena& arena, Stream& stream,
               std::vector<Case>& cases) {
  const size_t outputs = size_t(s.batch) * s.outputs;
  const Span x = arena.Get(size_t(s.batch) * s.inputs), weight = arena.Get(size_t(s.outputs) * s.inputs),
             bias = arena.Get(s.outputs), y = arena.Get(outputs), dy = arena.Get(outputs),
             dx = arena.Get(x.count), dweight = arena.Get(weight.count), dbias = arena.Get(s.outputs);
  const Span saved = s.activation == Activation::kGelu ? arena.Get(outputs) : Span{};
  const double flops = 2.0 * s.batch * s.inputs * s.outputs;
  const double bytes = 4.0 * double(x.count + weight.count + y.count + saved.count);
  cases.push_back({name + " forward", bytes, flops,
                   [=, &ops, &stream] { ops.Forward(s, x, weight, bias, {}, y, saved, stream); }});
  cases.push_back({name + " input gradient", bytes, flops,
                   [=, &ops, &stream] { ops.BackwardInput(s, weight, saved, dy, dx, dbias, stream); }});
  cases.push_back({name + " weight gradient", bytes, flops,
                   [=, &ops, &stream] { ops.BackwardWeight(s, x, dy, dweight, stream); }});
}

absl::Status TimeOps(const Sizes& sizes) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const std::unique_ptr<Ops> ops = MakeOneDnnOps(/*threads=*/1);
  const std::unique_ptr<Stream> stream = device->NewStream(StreamKind::kCompute, "times");
  Arena arena;
  std::vector<Case> cases;
  const int rows = sizes.batch * sizes.context, width = sizes.width;
  const size_t count = size_t(rows) * width;
  const Span x = arena.Get(count), y = arena.Get(count), dy = arena.Get(count), dx = arena.Get(count);
  const double pass = 4.0 * double(count);
  cases.push_back({"copy", 2 * pass, 0, [&] { stream->Copy(y.data, x.data, x.bytes()); }});

  LinearOps& linear = *ops->families().linear;
  AddLinear("linear to 3 width", {rows, width, 3 * width}, linear, arena, *stream, cases);
  AddLinear("linear to 4 width", {rows, width, 4 * width}, linear, arena, *stream, cases);
  AddLinear("same with GELU", {rows, width, 4 * width, Activation::kGelu}, linear, arena, *stream, cases);

  NormalizationOps& normalization = *ops->families().normalization;
  const LayerNormShape norm = {rows, width};
  const Span weight = arena.Get(width), bias = arena.Get(width), statistics = arena.Get(size_t(2) * rows),
             dweight = arena.Get(width), dbias = arena.Get(width);
  cases.push_back({"layer norm forward", 2 * pass, 0,
                   [&] { normalization.LayerNormForward(norm, x, weight, bias, y, statistics, *stream); }});
  cases.push_back({"layer norm backward", 4 * pass, 0, [&] {
                     normalization.LayerNormBackward(norm, x, weight, statistics, dy, dx, /*add=*/true,
                                                     dweight, dbias, *stream);
                   }});

  AttentionOps& attention = *ops->families().attention;
  const AttentionShape heads = {sizes.batch, sizes.context, sizes.heads, width / sizes.heads};
  const Span qkv = arena.Get(3 * count), dqkv = arena.Get(3 * count),
             log_sum_exp = arena.Get(size_t(rows) * sizes.heads);
  const double product = double(rows) * (sizes.context + 1) * width;  // 2 flops, half of the scores
  cases.push_back({"attention forward", 4 * pass, 2 * product,
                   [&] { attention.Forward(heads, qkv, y, log_sum_exp, *stream); }});
  cases.push_back({"attention backward", 8 * pass, 5 * product,
                   [&] { attention.Backward(heads, qkv, y, log_sum_exp, dy, dqkv, *stream); }});

  const Span logits = arena.Get(size_t(rows) * sizes.classes), dlogits = arena.Get(logits.count);
  std::vector<int32_t> labels(static_cast<size_t>(rows));
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int32_t>(i) % sizes.classes;
  double loss = 0;
  int64_t correct = 0;
  cases.push_back({"cross-entropy", 8.0 * double(logits.count), 0, [&] {
                     ops->families().loss->SoftmaxCrossEntropy(rows, sizes.classes, logits, labels.data(),
                                                               dlogits, &loss, &correct, *stream);
                   }});

  EmbeddingOps& embedding = *ops->families().embedding;
  const EmbeddingShape lookup = {rows, sizes.classes, width, sizes.context};
  const Span table = arena.Get(size_t(sizes.classes) * width),
             positions = arena.Get(size_t(sizes.context) * width), dtable = arena.Get(table.count),
             dpositions = arena.Get(positions.count);
  cases.push_back({"embedding forward", 3 * pass, 0,
                   [&] { embedding.Forward(lookup, labels.data(), table, positions, y, *stream); }});
  cases.push_back({"embedding backward", 5 * pass, 0, [&] {
                     embedding.Backward(lookup, labels.data(), dy, dtable, dpositions, /*add=*/true, *stream);
                   }});

  const DropoutShape dropped = {sizes.batch, size_t(sizes.context) * width, .1, 0};
  const std::vector<uint64_t> seeds(static_cast<size_t>(sizes.batch), 1);
  cases.push_back({"dropout and residual", 3 * pass, 0,
                   [&] { ops->families().dropout->Apply(dropped, seeds.data(), x, dx, y, *stream); }});
  cases.push_back({"dropout backward", 2 * pass, 0,
                   [&] { ops->families().dropout->Apply(dropped, seeds.data(), dy, {}, dx, *stream); }});

  for (int round = -kWarmUp; round < kRounds; ++round) {
    for (Case& one : cases) {
      const int64_t begin = MonotonicNanos();
      one.work();
      if (round >= 0) one.seconds.push_back(1e-9 * static_cast<double>(MonotonicNanos() - begin));
    }
  }
  PSRING_RETURN_IF_ERROR(stream->Synchronize());
  std::printf("# width %d, %d heads, context %d, batch %d, %d classes; one thread, float32; medians of %d\n",
              width, sizes.heads, sizes.context, sizes.batch, sizes.classes, kRounds);
  std::printf("%-34s %10s %8s %8s\n", "op", "us", "GB/s", "GFLOP/s");
  for (const Case& one : cases) {
    const double seconds = Median(one.seconds);
    std::printf("%-34s %10.1f %8.1f %8.1f\n", one.name.c_str(), seconds * 1e6, one.bytes / seconds / 1e9,
                one.flops / seconds / 1e9);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) {
  psring::Sizes sizes;
  int* const places[] = {&sizes.width, &sizes.heads, &sizes.context, &sizes.batch, &sizes.classes};
  bool valid = argc <= 6;
  for (int i = 1; valid && i < argc; ++i) {
    valid = absl::SimpleAtoi(argv[i], places[i - 1]) && *places[i - 1] > 0 && *places[i - 1] <= 65536;
  }
  if (!valid || sizes.width % sizes.heads != 0) {
    return psring::Fail(
        "op_times",
        "usage: op_times [WIDTH [HEADS, a divisor of it [CONTEXT [BATCH [CLASSES]]]]], each 1 to "
        "65536",
        2);
  }
  const absl::Status status = psring::TimeOps(sizes);
  const int code = status.ok() ? 0 : psring::Fail("op_times", std::string(status.message()));
  return psring::FinishOutput("op_times", code);
}
