#include <omp.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/ops/cpu_ops.h"
#include "common/ops/onednn_layers.h"
#include "common/ops/step_products.h"

namespace psring {
namespace {

std::string Name(const LinearShape& s) {
  return absl::StrCat("linear layer ", s.inputs, "-", s.outputs, ", batch ", s.batch);
}
std::string Name(const onednn::LinearForwardShape& s) { return Name(s.layer); }
std::string Name(const ConvShape& s) {
  return absl::StrCat("convolution ", s.kernel, "x", s.kernel, " ", s.in_channels, "-", s.out_channels,
                      " on ", s.height, "x", s.width, ", batch ", s.batch);
}

std::string Name(const onednn::ConvForwardShape& s) { return Name(s.layer); }

// Layers of one kind, by shape; each is created when it is first used. Borrows the workplace.
template <typename Shape, typename Layer>
class Layers {
 public:
  explicit Layers(onednn::Workplace& workplace) : workplace_(workplace) {}

  // Calls `work` with the layer of this shape. Converts oneDNN's exceptions to a status.
  template <typename Work>
  void Enqueue(const Shape& shape, Stream& stream, Work work) {
    stream.Run([this, shape, work = std::move(work)] {
      // Of the thread that runs the stream, which may not be the caller.
      omp_set_num_threads(workplace_.threads());
      try {
        std::unique_ptr<Layer>& layer = layers_[shape];
        if (layer == nullptr) layer = std::make_unique<Layer>(shape, workplace_);
        work(*layer);
      } catch (const dnnl::error& error) {
        return absl::InternalError(absl::StrCat("oneDNN: ", Name(shape), ": ", error.what()));
      }
      return absl::OkStatus();
    });
  }

 private:
  onednn::Workplace& workplace_;
  std::map<Shape, std::unique_ptr<Layer>> layers_;
};

// What the backward passes of `Family`, linear layers or convolutions, share.
template <typename Family, typename Shape, typename InputLayer, typename WeightLayer>
class OneDnnBackward : public Family {
 public:
  void BackwardWeight(const Shape& shape, ConstSpan x, ConstSpan dy, Span dweight, Stream& stream) override {
    CheckBackwardWeight(shape, x, dy, dweight);
    CheckTypes(type_, {x, dy});
    weight_.Enqueue(shape, stream, [=](WeightLayer& layer) { layer.Run(x.data, dy.data, dweight.floats()); });
  }

 protected:
  explicit OneDnnBackward(onednn::Workplace& workplace)
      : type_(workplace.activations()), input_(workplace), weight_(workplace) {}
  DType type() const { return type_; }

  // `more`: further arguments of the layer's Run.
  template <typename... More>
  void EnqueueInput(const Shape& shape, ConstSpan weight, ConstSpan saved, Span dy, Span dx, Span dbias,
                    Stream& stream, More... more) {
    CheckBackwardInput(shape, weight, saved, dy, dx, dbias);
    CheckTypes(type_, {saved, dy, dx});
    input_.Enqueue(shape, stream, [=](InputLayer& layer) {
      layer.Run(weight.floats(), saved.data, dy.data, dx.data, dbias.floats(), more...);
    });
  }

 private:
  const DType type_;
  Layers<Shape, InputLayer> input_;
  Layers<Shape, WeightLayer> weight_;
};

class OneDnnLinear : public OneDnnBackward<LinearOps, LinearShape, onednn::LinearBackwardInput,
                                           onednn::LinearBackwardWeight> {
 public:
  explicit OneDnnLinear(onednn::Workplace& workplace) : OneDnnBackward(workplace), forward_(workplace) {}

  void Forward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
               Span y, Span saved, Stream& stream) override {
    CheckForward(shape, x, weight, bias, residual, y, saved);
    CheckTypes(type(), {x, residual, y, saved});
    const onednn::LinearForwardShape key = {shape, bias.data != nullptr, residual.data != nullptr};
    forward_.Enqueue(key, stream, [=](onednn::LinearForward& layer) {
      layer.Run(x.data, weight.floats(), bias.floats(), residual.data, y.data, saved.data);
    });
  }

  void BackwardInput(const LinearShape& shape, ConstSpan weight, ConstSpan saved, Span dy, Span dx,
                     Span dbias, Stream& stream) override {
    EnqueueInput(shape, weight, saved, dy, dx, dbias, stream);
  }

 private:
  Layers<onednn::LinearForwardShape, onednn::LinearForward> forward_;
};

class OneDnnConvolution : public OneDnnBackward<ConvolutionOps, ConvShape, onednn::ConvBackwardInput,
                                                onednn::ConvBackwardWeight> {
 public:
  explicit OneDnnConvolution(onednn::Workplace& workplace) : OneDnnBackward(workplace), forward_(workplace) {}

  void Forward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
               Stream& stream) override {
    CheckForward(shape, x, weight, bias, y);
    CheckTypes(type(), {x, y});
    forward_.Enqueue({shape, bias.data != nullptr}, stream, [=](onednn::ConvForward& layer) {
      layer.Run(x.data, weight.floats(), bias.floats(), y.data);
    });
  }

  void BackwardInput(const ConvShape& shape, ConstSpan weight, ConstSpan saved, Span dy, Span dx, bool add,
                     Span dbias, Stream& stream) override {
    EnqueueInput(shape, weight, saved, dy, dx, dbias, stream, add);
  }

 private:
  Layers<onednn::ConvForwardShape, onednn::ConvForward> forward_;
};

class OneDnnOps : public CpuOps {
 public:
  OneDnnOps(int threads, DType activations) : CpuOps(activations), workplace_(threads, activations) {
    PSRING_CHECK(threads > 0);
    PSRING_CHECK(activations == DType::kFloat32 ||
                 (activations == DType::kBFloat16 && BFloat16Support() != BFloat16::kNone));
    families_.linear = std::make_unique<OneDnnLinear>(workplace_);
    families_.convolution = std::make_unique<OneDnnConvolution>(workplace_);
    families_.loss = MakeCpuLoss(activations);
    families_.normalization = MakeCpuNormalization(activations);
    families_.attention = MakeCpuAttention(activations, threads);
    families_.embedding = MakeCpuEmbedding(activations);
    families_.dropout = MakeCpuDropout(activations);
    families_.batch_norm = MakeCpuBatchNorm(activations);
    families_.bags = MakeCpuBags(activations);
    families_.dots = MakeCpuDots(activations);
  }
  ~OneDnnOps() override { families_ = {}; }  // before the workplace that they borrow

  std::string name() const override {
    return activations() == DType::kFloat32 ? "onednn" : "onednn, bfloat16";
  }
  DType activations() const override { return workplace_.activations(); }

  onednn::Workplace& workplace() { return workplace_; }

 private:
  onednn::Workplace workplace_;
};

class OneDnnProducts : public StepProducts {
 public:
  explicit OneDnnProducts(int threads) : ops_(threads, DType::kFloat32) { ops_.workplace().Record(&calls_); }

  Ops& ops() override { return ops_; }

  absl::Status Repeat() override {
    ops_.workplace().Record(nullptr);
    std::erase_if(calls_, [](const onednn::Call& call) { return !call.kernel->is_product(); });
    omp_set_num_threads(ops_.workplace().threads());
    try {
      for (const onednn::Call& call : calls_) call.kernel->Run(call.arguments);
    } catch (const dnnl::error& error) {
      return absl::InternalError(absl::StrCat("oneDNN: ", error.what()));
    }
    ops_.workplace().Record(&calls_);
    return absl::OkStatus();
  }

 private:
  OneDnnOps ops_;
  std::vector<onednn::Call> calls_;
};

}  // namespace

BFloat16 BFloat16Support() {
  const auto has = [](dnnl::cpu_isa isa) {
    return (static_cast<int>(dnnl::get_effective_cpu_isa()) & static_cast<int>(isa)) == static_cast<int>(isa);
  };
  if (has(dnnl::cpu_isa::avx512_core_bf16)) return BFloat16::kNative;
  return has(dnnl::cpu_isa::avx512_core) ? BFloat16::kEmulated : BFloat16::kNone;
}

std::unique_ptr<StepProducts> MakeStepProducts(int threads) {
  return std::make_unique<OneDnnProducts>(threads);
}

std::unique_ptr<Ops> MakeOneDnnOps(int threads, DType activations) {
  return std::make_unique<OneDnnOps>(threads, activations);
}

}  // namespace psring

namespace psring::onednn {

void Workplace::Reserve(size_t bytes) {
  if (bytes <= bytes_) return;
  const auto size = static_cast<dnnl::memory::dim>(bytes);
  scratch_ = dnnl::memory({{size}, dnnl::memory::data_type::u8, dnnl::memory::format_tag::a}, engine_);
  bytes_ = bytes;
}

Kernel::Kernel(const dnnl::primitive_desc_base& desc, Workplace& workplace)
    : desc_(desc), primitive_(desc.get()), workplace_(workplace) {
  workplace_.Reserve(desc_.scratchpad_desc().get_size());
}

void Kernel::Run(absl::Span<const Argument> arguments) {
  if (workplace_.calls() != nullptr)
    workplace_.calls()->push_back({this, {arguments.begin(), arguments.end()}});
  for (const Argument& argument : arguments) {
    Memory(argument.id).set_data_handle(const_cast<void*>(argument.data));
  }
  Memory(DNNL_ARG_SCRATCHPAD).set_data_handle(workplace_.scratch());
  primitive_.execute(workplace_.stream(), memories_);
  workplace_.stream().wait();
}

dnnl::memory& Kernel::Memory(int id) {
  const auto found = memories_.find(id);
  if (found != memories_.end()) return found->second;
  const dnnl::memory::desc desc = desc_.query_md(dnnl::query::exec_arg_md, id);
  return memories_.emplace(id, dnnl::memory(desc, workplace_.engine(), DNNL_MEMORY_NONE)).first->second;
}

}  // namespace psring::onednn
