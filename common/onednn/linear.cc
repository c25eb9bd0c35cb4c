#include "common/cpu_kernels.h"
#include "common/onednn/layers.h"

namespace psring::onednn {
namespace {

using Tag = dnnl::memory::format_tag;

Desc Matrix(int rows, int columns, Tag tag = Tag::ab) {
  return Desc({rows, columns}, dnnl::memory::data_type::f32, tag);
}

}  // namespace

// Plain layouts throughout: on the shapes of training (weights used once a step and direction) reordering the
// weights costs more than a blocked layout saves. Forward is a matmul, which is up to a fifth faster here
// than an inner product; backward is not.
LinearForward::LinearForward(const LinearShape& s, Workplace& workplace)
    : multiply_(
          DescribeMatMul(workplace.engine(), Matrix(s.batch, s.inputs), Matrix(s.inputs, s.outputs, Tag::ba),
                         Matrix(1, s.outputs), Matrix(s.batch, s.outputs), s.relu),
          workplace) {}

void LinearForward::Run(const float* x, const float* weight, const float* bias, float* y) {
  multiply_.Run({{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_BIAS, bias}, {DNNL_ARG_DST, y}});
}

LinearBackward::LinearBackward(const LinearShape& s, Workplace& workplace)
    : shape_(s),
      data_(DescribeLinearBackwardData(workplace.engine(), Matrix(s.batch, s.inputs),
                                       Matrix(s.outputs, s.inputs), Matrix(s.batch, s.outputs)),
            workplace),
      weights_(DescribeLinearBackwardWeights(
                   workplace.engine(), Matrix(s.batch, s.inputs), Matrix(s.outputs, s.inputs),
                   Desc({s.outputs}, dnnl::memory::data_type::f32, Tag::a), Matrix(s.batch, s.outputs)),
               workplace) {}

void LinearBackward::Run(const float* x, const float* weight, const float* y, float* dy, float* dx,
                         float* dweight, float* dbias) {
  if (shape_.relu) cpu::MaskWhereZero(size_t(shape_.batch) * shape_.outputs, y, dy);
  weights_.Run({{DNNL_ARG_SRC, x},
                {DNNL_ARG_DIFF_DST, dy},
                {DNNL_ARG_DIFF_WEIGHTS, dweight},
                {DNNL_ARG_DIFF_BIAS, dbias}});
  if (dx != nullptr) {
    data_.Run({{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DIFF_SRC, dx}});
  }
}

}  // namespace psring::onednn
