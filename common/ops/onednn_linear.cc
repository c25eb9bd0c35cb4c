#include <optional>

#include "common/ops/cpu_kernels.h"
#include "common/ops/onednn_layers.h"

namespace psring::onednn {
namespace {

using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

Desc Matrix(int rows, int columns, Type type, Tag tag = Tag::ab) { return Desc({rows, columns}, type, tag); }

// Plain layouts for float32: for the shapes of training (weights used once per step and direction) reordering
// the weights costs more than a blocked layout saves. bfloat16 weights must be converted anyway, so they get
// the best layout.
Desc WeightsFor(int rows, int columns, Type type, Tag plain) {
  return Matrix(rows, columns, type, type == Type::f32 ? plain : Tag::any);
}

// The type of activations, as oneDNN names it, and matrices of a layer's activations.
Type TypeOf(const Workplace& workplace) { return workplace.activation_type(); }
Desc LinearInput(const LinearShape& s, const Workplace& w) { return Matrix(s.batch, s.inputs, TypeOf(w)); }
Desc LinearOutput(const LinearShape& s, const Workplace& w) { return Matrix(s.batch, s.outputs, TypeOf(w)); }

// Without AVX-512, oneDNN's GEMM reads float32 matrices in place. Rows that are a multiple of 2 KiB apart
// share few sets of the cache, and the product takes 1.3 to 2.2 times as long (measured on Zen 3). So they
// are first copied with a space between them.
bool ReadsInPlace(const Workplace& w) {
  return w.activations() == DType::kFloat32 && BFloat16Support() == BFloat16::kNone;
}

constexpr int kBadColumns = 2048 / sizeof(float);
Desc SpacedRows(int rows, int columns) {
  constexpr int kSpace = 64 / sizeof(float);
  return Desc({rows, columns}, Type::f32,
              dnnl::memory::dims{columns + (columns % kBadColumns == 0 ? kSpace : 0), 1});
}

// With AVX-512, the inner product's weight gradient takes 1.1 to 1.5 times as long as a matmul if dy has many
// such rows and x is narrow. Otherwise the matmul takes up to 1.2 times as long (measured on Sapphire
// Rapids).
bool WeightGradientPrefersMatmul(const LinearShape& s, const Workplace& w) {
  return w.activations() == DType::kFloat32 && s.outputs % kBadColumns == 0 && s.batch >= 2048 &&
         s.inputs >= 256 && s.inputs <= 512 && s.outputs > 2 * s.inputs;
}

// The product of dy with a second matrix, which is first copied if the primitive needs another layout.
class GradientProduct {
 public:
  // The primitive's names for its arguments.
  struct Ids {
    int dy, right, result;
  };
  static constexpr Ids kOfMatmul = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};

  // `plain`: the layout in which Run gets the second matrix.
  GradientProduct(const dnnl::primitive_desc_base& desc, const Ids& ids, const Desc& plain,
                  Workplace& workplace)
      : ids_(ids), multiply_(desc, workplace) {
    const Desc right = desc.query_md(dnnl::query::exec_arg_md, ids.right);
    if (right != plain) right_.emplace(plain, right, /*back=*/false, workplace);
  }

  void Run(const void* dy, const void* right, void* result) {
    if (right_.has_value()) right_->FromPlain(right);
    multiply_.Run(
        {{ids_.dy, dy}, {ids_.right, right_.has_value() ? right_->data() : right}, {ids_.result, result}});
  }

 private:
  Ids ids_;
  Kernel multiply_;
  std::optional<OrderedWeights> right_;
};

// dx = dy weight.
GradientProduct LinearDataGradient(const LinearShape& s, Workplace& w) {
  const Desc plain = Matrix(s.outputs, s.inputs, Type::f32);
  if (ReadsInPlace(w)) {
    return GradientProduct(Describe<dnnl::matmul>(w.engine(), Attributes(), LinearOutput(s, w),
                                                  SpacedRows(s.outputs, s.inputs), LinearInput(s, w)),
                           GradientProduct::kOfMatmul, plain, w);
  }
  const Desc weight = WeightsFor(s.outputs, s.inputs, TypeOf(w), Tag::ab);
  const auto forward = Describe<dnnl::inner_product_forward>(
      w.engine(), {}, dnnl::prop_kind::forward_training, LinearInput(s, w), weight, LinearOutput(s, w));
  return GradientProduct(DescribeBackward<dnnl::inner_product_backward_data>(
                             w.engine(), forward, LinearInput(s, w), weight, LinearOutput(s, w)),
                         {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC}, plain, w);
}

// dweight = dy^T x.
GradientProduct LinearWeightGradient(const LinearShape& s, Workplace& w) {
  const Desc dweight = Matrix(s.outputs, s.inputs, Type::f32);
  if (ReadsInPlace(w) || WeightGradientPrefersMatmul(s, w)) {
    const Desc x = ReadsInPlace(w) ? SpacedRows(s.batch, s.inputs) : LinearInput(s, w);
    return GradientProduct(Describe<dnnl::matmul>(w.engine(), Attributes(),
                                                  Matrix(s.outputs, s.batch, Type::f32, Tag::ba), x, dweight),
                           GradientProduct::kOfMatmul, LinearInput(s, w), w);
  }
  const auto forward = Describe<dnnl::inner_product_forward>(
      w.engine(), {}, dnnl::prop_kind::forward_training, LinearInput(s, w),
      WeightsFor(s.outputs, s.inputs, TypeOf(w), Tag::ab), LinearOutput(s, w));
  return GradientProduct(DescribeBackward<dnnl::inner_product_backward_weights>(
                             w.engine(), forward, LinearInput(s, w), dweight, LinearOutput(s, w)),
                         {DNNL_ARG_DIFF_DST, DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS}, LinearInput(s, w), w);
}

// y = x w^T. A matmul is up to 20% faster here than an inner product.
dnnl::matmul::primitive_desc LinearProduct(const ForwardShape<LinearShape>& shape, Workplace& w) {
  const LinearShape& s = shape.layer;
  const Desc weights = WeightsFor(s.inputs, s.outputs, TypeOf(w), Tag::ba);
  const Desc y = LinearOutput(s, w);
  const dnnl::primitive_attr attributes = Attributes(s.activation, shape.has_residual ? &y : nullptr);
  if (!shape.has_bias) return Describe<dnnl::matmul>(w.engine(), attributes, LinearInput(s, w), weights, y);
  return Describe<dnnl::matmul>(w.engine(), attributes, LinearInput(s, w), weights,
                                Matrix(1, s.outputs, Type::f32), y);
}

class LinearForward {
 public:
  LinearForward(const ForwardShape<LinearShape>& shape, Workplace& workplace)
      : shape_(shape),
        type_(workplace.activations()),
        desc_(LinearProduct(shape, workplace)),
        multiply_(desc_, workplace) {
    if (type_ == DType::kFloat32) return;
    const LinearShape& s = shape.layer;
    weights_.emplace(Matrix(s.inputs, s.outputs, Type::f32, Tag::ba), desc_.weights_desc(), /*back=*/false,
                     workplace);
  }

  void Run(const void* x, const float* weight, const float* bias, const void* residual, void* y,
           void* saved) {
    if (weights_.has_value()) weights_->FromPlain(weight);
    const LinearShape& s = shape_.layer;
    const bool gelu = s.activation == Activation::kGelu;
    Argument arguments[5] = {{DNNL_ARG_SRC, x},
                             {DNNL_ARG_WEIGHTS, weights_.has_value() ? weights_->data() : weight},
                             {DNNL_ARG_DST, gelu ? saved : y}};
    size_t count = 3;
    if (shape_.has_bias) arguments[count++] = {DNNL_ARG_BIAS, bias};
    if (shape_.has_residual) arguments[count++] = {kAddedArgument, residual};
    multiply_.Run(absl::MakeSpan(arguments, count));
    const size_t outputs = size_t(s.batch) * s.outputs;
    if (gelu) cpu::Gelu({saved, outputs, type_}, {y, outputs, type_});
  }

 private:
  const ForwardShape<LinearShape> shape_;
  const DType type_;
  dnnl::matmul::primitive_desc desc_;
  Kernel multiply_;
  std::optional<OrderedWeights> weights_;  // if the primitive cannot read them directly
};

class LinearBackwardInput {
 public:
  LinearBackwardInput(const LinearShape& shape, Workplace& workplace)
      : shape_(shape), workplace_(workplace) {}

  void Run(const float* weight, const void* saved, void* dy, void* dx, float* dbias) {
    const size_t count = size_t(shape_.batch) * shape_.outputs;
    const DType type = workplace_.activations();
    const Span gradient = {dy, count, type};
    if (shape_.activation == Activation::kGelu) {
      cpu::GeluGradientAndSum({saved, count, type}, gradient, shape_.outputs, dbias);
    } else if (dbias != nullptr) {
      const bool relu = shape_.activation == Activation::kRelu;
      cpu::MaskAndSum({relu ? saved : nullptr, count, type}, gradient, shape_.outputs, dbias);
    }
    if (dx == nullptr) return;
    if (!product_.has_value()) product_.emplace(LinearDataGradient(shape_, workplace_));
    product_->Run(dy, weight, dx);
  }

 private:
  const LinearShape shape_;
  Workplace& workplace_;
  std::optional<GradientProduct> product_;  // created when a dx is first requested
};

class LinearBackwardWeight {
 public:
  LinearBackwardWeight(const LinearShape& shape, Workplace& workplace)
      : product_(LinearWeightGradient(shape, workplace)) {}
  void Run(const void* x, const void* dy, float* dweight) { product_.Run(dy, x, dweight); }

 private:
  GradientProduct product_;
};

class Linear : public BackwardOps<LinearOps, LinearShape, LinearBackwardInput, LinearBackwardWeight> {
 public:
  explicit Linear(Workplace& workplace) : BackwardOps(workplace), forward_(workplace) {}

  void Forward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
               Span y, Span saved, Stream& stream) override {
    CheckForward(shape, x, weight, bias, residual, y, saved);
    CheckTypes(type(), {x, residual, y, saved});
    forward_.Enqueue({shape, bias.data != nullptr, residual.data != nullptr}, stream,
                     [=](LinearForward& layer) {
                       layer.Run(x.data, weight.floats(), bias.floats(), residual.data, y.data, saved.data);
                     });
  }
  void BackwardInput(const LinearShape& shape, ConstSpan weight, ConstSpan saved, Span dy, Span dx,
                     Span dbias, Stream& stream) override {
    EnqueueInput(shape, weight, saved, dy, dx, dbias, stream);
  }

 private:
  Layers<ForwardShape<LinearShape>, LinearForward> forward_;
};

}  // namespace

std::unique_ptr<LinearOps> MakeLinear(Workplace& workplace) { return std::make_unique<Linear>(workplace); }

std::string NameOf(const LinearShape& s) {
  return absl::StrCat("linear layer ", s.inputs, "-", s.outputs, ", batch ", s.batch);
}

}  // namespace psring::onednn
