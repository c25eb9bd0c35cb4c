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

// `weight` in the layout of `ordered`; itself if the primitive reads plain weights.
const void* Ordered(std::optional<OrderedWeights>& ordered, const float* weight) {
  if (!ordered.has_value()) return weight;
  ordered->FromPlain(weight);
  return ordered->data();
}

// dx = dy weight.
dnnl::inner_product_backward_data::primitive_desc LinearDataGradient(const LinearShape& s, Workplace& w) {
  const Desc weight = WeightsFor(s.outputs, s.inputs, TypeOf(w), Tag::ab);
  const auto forward = Describe<dnnl::inner_product_forward>(
      w.engine(), {}, dnnl::prop_kind::forward_training, LinearInput(s, w), weight, LinearOutput(s, w));
  return DescribeBackward<dnnl::inner_product_backward_data>(w.engine(), forward, LinearInput(s, w), weight,
                                                             LinearOutput(s, w));
}

// dweight = dy^T x, dbias = column sums of dy.
dnnl::inner_product_backward_weights::primitive_desc LinearWeightGradients(const LinearShape& s,
                                                                           Workplace& w) {
  const Desc bias({s.outputs}, Type::f32, Tag::a);
  const auto forward = Describe<dnnl::inner_product_forward>(
      w.engine(), {}, dnnl::prop_kind::forward_training, LinearInput(s, w),
      WeightsFor(s.outputs, s.inputs, TypeOf(w), Tag::ab), bias, LinearOutput(s, w));
  return DescribeBackward<dnnl::inner_product_backward_weights>(w.engine(), forward, LinearInput(s, w),
                                                                Matrix(s.outputs, s.inputs, Type::f32), bias,
                                                                LinearOutput(s, w));
}

}  // namespace

// Forward is a matmul, which is up to 20% faster here than an inner product; backward is an inner product.
LinearForward::LinearForward(const LinearShape& s, Workplace& workplace)
    : desc_(Describe<dnnl::matmul>(workplace.engine(), Attributes(s.relu), LinearInput(s, workplace),
                                   WeightsFor(s.inputs, s.outputs, TypeOf(workplace), Tag::ba),
                                   Matrix(1, s.outputs, Type::f32), LinearOutput(s, workplace))),
      multiply_(desc_, workplace) {
  if (workplace.activations() == DType::kFloat32) return;
  weights_.emplace(Matrix(s.inputs, s.outputs, Type::f32, Tag::ba), desc_.weights_desc(), /*back=*/false,
                   workplace);
}

void LinearForward::Run(const void* x, const float* weight, const float* bias, void* y) {
  multiply_.Run({{DNNL_ARG_SRC, x},
                 {DNNL_ARG_WEIGHTS, Ordered(weights_, weight)},
                 {DNNL_ARG_BIAS, bias},
                 {DNNL_ARG_DST, y}});
}

LinearBackward::LinearBackward(const LinearShape& s, Workplace& workplace)
    : shape_(s),
      type_(workplace.activations()),
      desc_(LinearDataGradient(s, workplace)),
      data_(desc_, workplace),
      weights_(LinearWeightGradients(s, workplace), workplace) {
  if (type_ == DType::kFloat32) return;
  ordered_.emplace(Matrix(s.outputs, s.inputs, Type::f32), desc_.weights_desc(), /*back=*/false, workplace);
}

void LinearBackward::Run(const void* x, const float* weight, const void* y, void* dy, void* dx,
                         float* dweight, float* dbias) {
  if (shape_.relu) {
    const size_t count = size_t(shape_.batch) * shape_.outputs;
    cpu::MaskWhereZero({y, count, type_}, {dy, count, type_});
  }
  weights_.Run({{DNNL_ARG_SRC, x},
                {DNNL_ARG_DIFF_DST, dy},
                {DNNL_ARG_DIFF_WEIGHTS, dweight},
                {DNNL_ARG_DIFF_BIAS, dbias}});
  if (dx == nullptr) return;
  data_.Run(
      {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, Ordered(ordered_, weight)}, {DNNL_ARG_DIFF_SRC, dx}});
}

}  // namespace psring::onednn
