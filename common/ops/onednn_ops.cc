#include <omp.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/ops/cpu_ops.h"
#include "common/ops/onednn_layers.h"

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
  OneDnnOps(int threads, DType activations) : threads_(threads), workplace_(activations) {
    PSRING_CHECK(threads > 0);
    PSRING_CHECK(activations == DType::kFloat32 ||
                 (activations == DType::kBFloat16 && BFloat16Support() != BFloat16::kNone));
  }

  std::string name() const override {
    return activations() == DType::kFloat32 ? "onednn" : "onednn, bfloat16";
  }
  DType activations() const override { return workplace_.activations(); }

  void LinearForward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                     Stream& stream) override {
    CheckForward(shape, x, weight, bias, y);
    CheckTypes(x, y);
    Enqueue(stream, shape, [=, this] {
      Layer(linear_forward_, shape, workplace_).Run(x.data, weight.floats(), bias.floats(), y.data);
    });
  }

  void LinearBackward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy, Span dx,
                      Span dweight, Span dbias, Stream& stream) override {
    CheckForward(shape, x, weight, dbias, y);
    CheckBackward(x, weight, y, dy, dx, dweight);
    CheckTypes(x, y);
    CheckTypes(dy, dx.data == nullptr ? ConstSpan(dy) : ConstSpan(dx));
    Enqueue(stream, shape, [=, this] {
      Layer(linear_backward_, shape, workplace_)
          .Run(x.data, weight.floats(), y.data, dy.data, dx.data, dweight.floats(), dbias.floats());
    });
  }

  void ConvForward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                   Stream& stream) override {
    CheckForward(shape, x, weight, bias, y);
    CheckTypes(x, y);
    Enqueue(stream, shape, [=, this] {
      Layer(conv_forward_, shape, workplace_).Run(x.data, weight.floats(), bias.floats(), y.data);
    });
  }

  void ConvBackward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy, Span dx,
                    Span dweight, Span dbias, Stream& stream) override {
    CheckForward(shape, x, weight, dbias, y);
    CheckBackward(x, weight, y, dy, dx, dweight);
    CheckTypes(x, y);
    CheckTypes(dy, dx.data == nullptr ? ConstSpan(dy) : ConstSpan(dx));
    Enqueue(stream, shape, [=, this] {
      Layer(conv_backward_, shape, threads_, workplace_)
          .Run(x.data, weight.floats(), y.data, dy.data, dx.data, dweight.floats(), dbias.floats());
    });
  }

 private:
  void CheckTypes(ConstSpan a, ConstSpan b) const {
    PSRING_CHECK(a.type == activations() && b.type == activations());
  }

  // The layer of this shape, created on first use.
  template <typename Shape, typename L, typename... Args>
  static L& Layer(std::map<Shape, std::unique_ptr<L>>& layers, const Shape& shape, Args&&... args) {
    std::unique_ptr<L>& layer = layers[shape];
    if (layer == nullptr) layer = std::make_unique<L>(shape, args...);
    return *layer;
  }

  // Converts oneDNN's exceptions to a status.
  template <typename Shape, typename Work>
  void Enqueue(Stream& stream, const Shape& shape, Work work) {
    stream.Run([threads = threads_, shape, work = std::move(work)] {
      omp_set_num_threads(
          threads);  // applies to the thread that runs the stream, which may not be the caller
      try {
        work();
      } catch (const dnnl::error& error) {
        return absl::InternalError(absl::StrCat("oneDNN: ", Name(shape), ": ", error.what()));
      }
      return absl::OkStatus();
    });
  }

  const int threads_;
  // Declared first: the layers borrow it.
  onednn::Workplace workplace_;
  std::map<LinearShape, std::unique_ptr<onednn::LinearForward>> linear_forward_;
  std::map<LinearShape, std::unique_ptr<onednn::LinearBackward>> linear_backward_;
  std::map<ConvShape, std::unique_ptr<onednn::ConvForward>> conv_forward_;
  std::map<ConvShape, std::unique_ptr<onednn::ConvBackward>> conv_backward_;
};

}  // namespace

BFloat16 BFloat16Support() {
  const auto has = [](dnnl::cpu_isa isa) {
    return (static_cast<int>(dnnl::get_effective_cpu_isa()) & static_cast<int>(isa)) == static_cast<int>(isa);
  };
  if (has(dnnl::cpu_isa::avx512_core_bf16)) return BFloat16::kNative;
  return has(dnnl::cpu_isa::avx512_core) ? BFloat16::kEmulated : BFloat16::kNone;
}

std::unique_ptr<Ops> MakeOneDnnOps(int threads, DType activations) {
  return std::make_unique<OneDnnOps>(threads, activations);
}

}  // namespace psring
