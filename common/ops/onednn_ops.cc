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
std::string Name(const ConvShape& s) {
  return absl::StrCat("convolution ", s.kernel, "x", s.kernel, " ", s.in_channels, "-", s.out_channels,
                      " on ", s.height, "x", s.width, ", batch ", s.batch);
}

class OneDnnOps : public CpuOps {
 public:
  OneDnnOps(int threads, DType activations) : workplace_(threads, activations) {
    PSRING_CHECK(threads > 0);
    PSRING_CHECK(activations == DType::kFloat32 ||
                 (activations == DType::kBFloat16 && BFloat16Support() != BFloat16::kNone));
  }

  std::string name() const override {
    return activations() == DType::kFloat32 ? "onednn" : "onednn, bfloat16";
  }
  DType activations() const override { return workplace_.activations(); }

  onednn::Workplace& workplace() { return workplace_; }

  void LinearForward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                     Stream& stream) override {
    Forward(linear_forward_, shape, x, weight, bias, y, stream);
  }
  void LinearBackward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy, Span dx,
                      Span dweight, Span dbias, Stream& stream) override {
    Backward(linear_backward_, shape, x, weight, y, dy, dx, dweight, dbias, stream);
  }
  void ConvForward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                   Stream& stream) override {
    Forward(conv_forward_, shape, x, weight, bias, y, stream);
  }
  void ConvBackward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy, Span dx,
                    Span dweight, Span dbias, Stream& stream) override {
    Backward(conv_backward_, shape, x, weight, y, dy, dx, dweight, dbias, stream);
  }

 private:
  template <typename Shape, typename Layer>
  using Layers = std::map<Shape, std::unique_ptr<Layer>>;

  template <typename Shape, typename Layer>
  void Forward(Layers<Shape, Layer>& layers, const Shape& shape, ConstSpan x, ConstSpan weight,
               ConstSpan bias, Span y, Stream& stream) {
    CheckForward(shape, x, weight, bias, y);
    PSRING_CHECK(x.type == activations() && y.type == activations());
    Enqueue(layers, shape, stream,
            [=](Layer& layer) { layer.Run(x.data, weight.floats(), bias.floats(), y.data); });
  }

  template <typename Shape, typename Layer>
  void Backward(Layers<Shape, Layer>& layers, const Shape& shape, ConstSpan x, ConstSpan weight, ConstSpan y,
                Span dy, Span dx, Span dweight, Span dbias, Stream& stream) {
    CheckForward(shape, x, weight, dbias, y);
    CheckBackward(x, weight, y, dy, dx, dweight);
    for (const DType type : {x.type, y.type, dy.type, dx.data == nullptr ? dy.type : dx.type}) {
      PSRING_CHECK(type == activations());
    }
    Enqueue(layers, shape, stream, [=](Layer& layer) {
      layer.Run(x.data, weight.floats(), y.data, dy.data, dx.data, dweight.floats(), dbias.floats());
    });
  }

  // Calls `work` with the layer of this shape, which is created on first use. Converts oneDNN's exceptions to
  // a status.
  template <typename Shape, typename Layer, typename Work>
  void Enqueue(Layers<Shape, Layer>& layers, const Shape& shape, Stream& stream, Work work) {
    stream.Run([this, &layers, shape, work = std::move(work)] {
      omp_set_num_threads(
          workplace_.threads());  // of the thread that runs the stream, which may not be the caller
      try {
        std::unique_ptr<Layer>& layer = layers[shape];
        if (layer == nullptr) layer = std::make_unique<Layer>(shape, workplace_);
        work(*layer);
      } catch (const dnnl::error& error) {
        return absl::InternalError(absl::StrCat("oneDNN: ", Name(shape), ": ", error.what()));
      }
      return absl::OkStatus();
    });
  }

  // Declared first: the layers borrow it.
  onednn::Workplace workplace_;
  Layers<LinearShape, onednn::LinearForward> linear_forward_;
  Layers<LinearShape, onednn::LinearBackward> linear_backward_;
  Layers<ConvShape, onednn::ConvForward> conv_forward_;
  Layers<ConvShape, onednn::ConvBackward> conv_backward_;
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
