#include <algorithm>
#include <cstddef>

#include "common/ops/cpu_kernels.h"
#include "common/ops/onednn_layers.h"

namespace psring::onednn {
namespace {

using ImageTag = dnnl::memory::format_tag;

using ConvType = dnnl::memory::data_type;
constexpr auto kFloat32 = ConvType::f32;
constexpr auto kDirect = dnnl::algorithm::convolution_direct;
constexpr auto kTraining = dnnl::prop_kind::forward_training;
const dnnl::memory::dims kStride = {1, 1}, kPadding = {0, 0};

Desc Input(const ConvShape& s, const Workplace& workplace) {
  return Desc({s.batch, s.in_channels, s.height, s.width}, workplace.activation_type(), ImageTag::nhwc);
}
Desc Output(const ConvShape& s, const Workplace& workplace) {
  return Desc({s.batch, s.out_channels, s.out_height(), s.out_width()}, workplace.activation_type(),
              ImageTag::nhwc);
}
Desc Filter(const ConvShape& s, ConvType type, ImageTag tag) {
  return Desc({s.out_channels, s.in_channels, s.kernel, s.kernel}, type, tag);
}
Desc PlainFilter(const ConvShape& s) { return Filter(s, kFloat32, ImageTag::ohwi); }
// Filters are small compared to activations: reordering them in every call is cheap.
Desc AnyFilter(const ConvShape& s, const Workplace& workplace) {
  return Filter(s, workplace.activation_type(), ImageTag::any);
}
Desc Bias(const ConvShape& s) { return Desc({s.out_channels}, kFloat32, ImageTag::a); }

size_t InputElements(const ConvShape& s) { return size_t(s.height) * s.width * s.in_channels; }
size_t OutputElements(const ConvShape& s) { return size_t(s.out_height()) * s.out_width() * s.out_channels; }

// As many pictures as fit with their gradients into a core's level 2 cache, for each thread; a divisor of the
// batch, so that one set of primitives suffices. (In NHWC a whole batch of the 32-64 layer takes 35 ms,
// groups of 1 to 8 pictures take 26 ms; with oneDNN's own blocked layout, 27 ms and 25 ms.)
ConvShape GroupOf(const ConvShape& shape, int threads, DType type) {
  constexpr size_t kCacheBytes = 2 << 20;
  const size_t picture_bytes = 2 * SizeOf(type) * (InputElements(shape) + OutputElements(shape));
  const size_t fitting = std::max<size_t>(1, kCacheBytes / picture_bytes) * threads;
  ConvShape group = shape;
  group.batch = static_cast<int>(std::min<size_t>(fitting, shape.batch));
  while (shape.batch % group.batch != 0) --group.batch;
  return group;
}

dnnl::convolution_backward_data::primitive_desc ConvDataGradient(const ConvShape& s, Workplace& w) {
  const Desc dx = Input(s, w), filter = AnyFilter(s, w), dy = Output(s, w);
  const auto forward = Describe<dnnl::convolution_forward>(w.engine(), {}, kTraining, kDirect, dx, filter, dy,
                                                           kStride, kPadding, kPadding);
  return DescribeBackward<dnnl::convolution_backward_data>(w.engine(), forward, kDirect, dx, filter, dy,
                                                           kStride, kPadding, kPadding);
}

dnnl::convolution_backward_weights::primitive_desc ConvFilterGradient(const ConvShape& s, Workplace& w) {
  const Desc x = Input(s, w), dfilter = Filter(s, kFloat32, ImageTag::any), dy = Output(s, w);
  const auto forward = Describe<dnnl::convolution_forward>(w.engine(), {}, kTraining, kDirect, x,
                                                           AnyFilter(s, w), dy, kStride, kPadding, kPadding);
  return DescribeBackward<dnnl::convolution_backward_weights>(w.engine(), forward, kDirect, x, dfilter, dy,
                                                              kStride, kPadding, kPadding);
}

}  // namespace

OrderedWeights::OrderedWeights(const Desc& plain, const Desc& ordered, bool back, Workplace& workplace)
    : memory_(ordered, workplace.engine()),
      reorder_(dnnl::reorder::primitive_desc(workplace.engine(), back ? ordered : plain, workplace.engine(),
                                             back ? plain : ordered, Attributes()),
               workplace) {}

ConvForward::ConvForward(const ConvShape& s, Workplace& workplace)
    : desc_(Describe<dnnl::convolution_forward>(workplace.engine(), Attributes(s.relu), kTraining, kDirect,
                                                Input(s, workplace), AnyFilter(s, workplace), Bias(s),
                                                Output(s, workplace), kStride, kPadding, kPadding)),
      convolve_(desc_, workplace),
      filter_(PlainFilter(s), desc_.weights_desc(), /*back=*/false, workplace) {}

void ConvForward::Run(const void* x, const float* weight, const float* bias, void* y) {
  filter_.FromPlain(weight);
  convolve_.Run(
      {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, filter_.data()}, {DNNL_ARG_BIAS, bias}, {DNNL_ARG_DST, y}});
}

ConvBackward::Data::Data(const ConvShape& s, Workplace& workplace)
    : desc(ConvDataGradient(s, workplace)),
      convolve(desc, workplace),
      filter(PlainFilter(s), desc.weights_desc(), /*back=*/false, workplace) {}

ConvBackward::Weights::Weights(const ConvShape& s, Workplace& workplace)
    : desc(ConvFilterGradient(s, workplace)),
      convolve(desc, workplace),
      filter_sum(PlainFilter(s), desc.diff_weights_desc(), /*back=*/true, workplace),
      filter(desc.diff_weights_desc(), workplace.engine()),
      bias(s.out_channels) {}

ConvBackward::ConvBackward(const ConvShape& shape, Workplace& workplace)
    : shape_(shape),
      group_shape_(GroupOf(shape, workplace.threads(), workplace.activations())),
      workplace_(workplace),
      weights_(group_shape_, workplace) {}

void ConvBackward::Run(const void* x, const float* weight, const void* y, void* dy, void* dx, float* dweight,
                       float* dbias) {
  if (dx != nullptr) {
    if (!data_.has_value()) data_.emplace(group_shape_, workplace_);
    data_->filter.FromPlain(weight);
  }
  const DType type = workplace_.activations();
  const size_t x_step = InputElements(shape_) * group_shape_.batch;
  const size_t y_step = OutputElements(shape_) * group_shape_.batch;
  const int groups = shape_.batch / group_shape_.batch;
  const auto x_of = [&](const void* all, int group) {
    return static_cast<const std::byte*>(all) + group * x_step * SizeOf(type);
  };
  const auto y_of = [&](const void* all, int group) {
    return static_cast<const std::byte*>(all) + group * y_step * SizeOf(type);
  };
  float* const group_filter = static_cast<float*>(weights_.filter.get_data_handle());
  for (int group = 0; group < groups; ++group) {
    const void* const group_dy = y_of(dy, group);
    const bool first = group == 0;
    cpu::MaskAndSum({shape_.relu ? y_of(y, group) : nullptr, y_step, type},
                    {const_cast<void*>(group_dy), y_step, type}, shape_.out_channels,
                    first ? dbias : weights_.bias.data());
    weights_.convolve.Run({{DNNL_ARG_SRC, x_of(x, group)},
                           {DNNL_ARG_DIFF_DST, group_dy},
                           {DNNL_ARG_DIFF_WEIGHTS, first ? weights_.filter_sum.floats() : group_filter}});
    if (!first) {
      cpu::Add(weights_.filter_sum.count(), weights_.filter_sum.floats(), group_filter);
      cpu::Add(weights_.bias.size(), dbias, weights_.bias.data());
    }
    if (dx != nullptr) {
      data_->convolve.Run({{DNNL_ARG_DIFF_DST, group_dy},
                           {DNNL_ARG_WEIGHTS, data_->filter.data()},
                           {DNNL_ARG_DIFF_SRC, x_of(dx, group)}});
    }
  }
  weights_.filter_sum.ToPlain(dweight);
}

}  // namespace psring::onednn
