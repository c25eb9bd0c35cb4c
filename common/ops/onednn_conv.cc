#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "common/kernels/reduce.h"
#include "common/ops/cpu_kernels.h"
#include "common/ops/onednn_layers.h"

namespace psring::onednn {
namespace {

using ImageTag = dnnl::memory::format_tag;

using ConvType = dnnl::memory::data_type;
constexpr auto kFloat32 = ConvType::f32;
constexpr auto kDirect = dnnl::algorithm::convolution_direct;
constexpr auto kTraining = dnnl::prop_kind::forward_training;

dnnl::memory::dims Stride(const ConvShape& s) { return {s.stride, s.stride}; }
dnnl::memory::dims Padding(const ConvShape& s) { return {s.padding, s.padding}; }

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

// Element `first` of `all`.
const void* PartOf(const void* all, size_t first, DType type) {
  return static_cast<const std::byte*>(all) + first * SizeOf(type);
}
void* PartOf(void* all, size_t first, DType type) {
  return static_cast<std::byte*>(all) + first * SizeOf(type);
}

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

dnnl::convolution_forward::primitive_desc ForwardConvolution(const ForwardShape<ConvShape>& shape,
                                                             Workplace& w) {
  const ConvShape& s = shape.layer;
  const dnnl::primitive_attr attributes = Attributes(s.activation);
  if (!shape.has_bias) {
    return Describe<dnnl::convolution_forward>(w.engine(), attributes, kTraining, kDirect, Input(s, w),
                                               AnyFilter(s, w), Output(s, w), Stride(s), Padding(s),
                                               Padding(s));
  }
  return Describe<dnnl::convolution_forward>(w.engine(), attributes, kTraining, kDirect, Input(s, w),
                                             AnyFilter(s, w), Bias(s), Output(s, w), Stride(s), Padding(s),
                                             Padding(s));
}

dnnl::convolution_backward_data::primitive_desc ConvDataGradient(const ConvShape& s, Workplace& w) {
  const Desc dx = Input(s, w), filter = AnyFilter(s, w), dy = Output(s, w);
  const auto forward = Describe<dnnl::convolution_forward>(w.engine(), {}, kTraining, kDirect, dx, filter, dy,
                                                           Stride(s), Padding(s), Padding(s));
  return DescribeBackward<dnnl::convolution_backward_data>(w.engine(), forward, kDirect, dx, filter, dy,
                                                           Stride(s), Padding(s), Padding(s));
}

dnnl::convolution_backward_weights::primitive_desc ConvFilterGradient(const ConvShape& s, Workplace& w) {
  const Desc x = Input(s, w), dfilter = Filter(s, kFloat32, ImageTag::any), dy = Output(s, w);
  const auto forward = Describe<dnnl::convolution_forward>(
      w.engine(), {}, kTraining, kDirect, x, AnyFilter(s, w), dy, Stride(s), Padding(s), Padding(s));
  return DescribeBackward<dnnl::convolution_backward_weights>(w.engine(), forward, kDirect, x, dfilter, dy,
                                                              Stride(s), Padding(s), Padding(s));
}

class ConvForward {
 public:
  ConvForward(const ForwardShape<ConvShape>& shape, Workplace& workplace)
      : has_bias_(shape.has_bias),
        desc_(ForwardConvolution(shape, workplace)),
        convolve_(desc_, workplace),
        filter_(PlainFilter(shape.layer), desc_.weights_desc(), /*back=*/false, workplace) {}

  void Run(const void* x, const float* weight, const float* bias, void* y) {
    filter_.FromPlain(weight);
    const Argument arguments[] = {
        {DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, filter_.data()}, {DNNL_ARG_DST, y}, {DNNL_ARG_BIAS, bias}};
    convolve_.Run(absl::MakeSpan(arguments, has_bias_ ? 4 : 3));
  }

 private:
  const bool has_bias_;
  dnnl::convolution_forward::primitive_desc desc_;
  Kernel convolve_;
  OrderedWeights filter_;
};

// Both backward passes process a few pictures at a time, which fit into the cache.
class ConvBackwardInput {
 public:
  ConvBackwardInput(const ConvShape& shape, Workplace& workplace)
      : shape_(shape),
        group_shape_(GroupOf(shape, workplace.threads(), workplace.activations())),
        workplace_(workplace),
        group_bias_(shape.out_channels) {}

  // `add`: to dx.
  void Run(const float* weight, const void* saved, void* dy, void* dx, float* dbias, bool add) {
    if (dx != nullptr) {
      if (!data_.has_value()) data_.emplace(group_shape_, workplace_);
      data_->filter.FromPlain(weight);
    }
    const DType type = workplace_.activations();
    const size_t x_step = InputElements(shape_) * group_shape_.batch;
    const size_t y_step = OutputElements(shape_) * group_shape_.batch;
    if (dx != nullptr && add && !data_->summand.has_value()) {
      data_->summand.emplace(data_->desc.diff_src_desc(), workplace_.engine());
    }
    const bool relu = shape_.activation == Activation::kRelu;
    for (int group = 0; group < shape_.batch / group_shape_.batch; ++group) {
      void* const group_dy = PartOf(dy, group * y_step, type);
      if (dbias != nullptr) {
        cpu::MaskAndSum({relu ? PartOf(saved, group * y_step, type) : nullptr, y_step, type},
                        {group_dy, y_step, type}, shape_.out_channels,
                        group == 0 ? dbias : group_bias_.data());
        if (group > 0) cpu::Add(group_bias_.size(), dbias, group_bias_.data());
      }
      if (dx != nullptr) {
        void* const group_dx = PartOf(dx, group * x_step, type);
        void* const to = add ? data_->summand->get_data_handle() : group_dx;
        data_->convolve.Run({{DNNL_ARG_DIFF_DST, group_dy},
                             {DNNL_ARG_WEIGHTS, data_->filter.data()},
                             {DNNL_ARG_DIFF_SRC, to}});
        if (add) {
          const void* const summands[] = {group_dx, to};
          cpu::Reduce(ReduceOp::kSum, type, x_step, group_dx, summands, 2);
        }
      }
    }
  }

 private:
  struct Data {
    Data(const ConvShape& s, Workplace& workplace)
        : desc(ConvDataGradient(s, workplace)),
          convolve(desc, workplace),
          filter(PlainFilter(s), desc.weights_desc(), /*back=*/false, workplace) {}
    dnnl::convolution_backward_data::primitive_desc desc;
    Kernel convolve;
    OrderedWeights filter;
    std::optional<dnnl::memory> summand;  // the gradient of a group, if it is added to dx
  };

  const ConvShape shape_;
  const ConvShape group_shape_;  // of the pictures that are processed together
  Workplace& workplace_;
  std::vector<float> group_bias_;
  std::optional<Data> data_;  // created when a dx is first requested: a first layer never needs it
};

class ConvBackwardWeight {
 public:
  ConvBackwardWeight(const ConvShape& shape, Workplace& workplace)
      : shape_(shape),
        group_shape_(GroupOf(shape, workplace.threads(), workplace.activations())),
        workplace_(workplace),
        desc_(ConvFilterGradient(group_shape_, workplace)),
        convolve_(desc_, workplace),
        filter_sum_(PlainFilter(shape), desc_.diff_weights_desc(), /*back=*/true, workplace),
        group_filter_(desc_.diff_weights_desc(), workplace.engine()) {}

  void Run(const void* x, const void* dy, float* dweight) {
    const DType type = workplace_.activations();
    const size_t x_step = InputElements(shape_) * group_shape_.batch;
    const size_t y_step = OutputElements(shape_) * group_shape_.batch;
    float* const group_filter = static_cast<float*>(group_filter_.get_data_handle());
    for (int group = 0; group < shape_.batch / group_shape_.batch; ++group) {
      convolve_.Run({{DNNL_ARG_SRC, PartOf(x, group * x_step, type)},
                     {DNNL_ARG_DIFF_DST, PartOf(dy, group * y_step, type)},
                     {DNNL_ARG_DIFF_WEIGHTS, group == 0 ? filter_sum_.floats() : group_filter}});
      if (group > 0) cpu::Add(filter_sum_.count(), filter_sum_.floats(), group_filter);
    }
    filter_sum_.ToPlain(dweight);
  }

 private:
  const ConvShape shape_;
  const ConvShape group_shape_;
  Workplace& workplace_;
  dnnl::convolution_backward_weights::primitive_desc desc_;
  Kernel convolve_;
  OrderedWeights filter_sum_;  // over the groups so far; float32
  dnnl::memory group_filter_;
};

class Convolution : public BackwardOps<ConvolutionOps, ConvShape, ConvBackwardInput, ConvBackwardWeight> {
 public:
  explicit Convolution(Workplace& workplace) : BackwardOps(workplace), forward_(workplace) {}

  void Forward(const ConvShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
               Stream& stream) override {
    CheckForward(CountsOf(shape), shape.activation, x, weight, bias, y);
    CheckTypes(type(), {x, y});
    forward_.Enqueue({shape, bias.data != nullptr}, stream,
                     [=](ConvForward& layer) { layer.Run(x.data, weight.floats(), bias.floats(), y.data); });
  }
  void BackwardInput(const ConvShape& shape, ConstSpan weight, ConstSpan saved, Span dy, Span dx, bool add,
                     Span dbias, Stream& stream) override {
    EnqueueInput(shape, weight, saved, dy, dx, dbias, stream, add);
  }

 private:
  Layers<ForwardShape<ConvShape>, ConvForward> forward_;
};

}  // namespace

std::unique_ptr<ConvolutionOps> MakeConvolution(Workplace& workplace) {
  return std::make_unique<Convolution>(workplace);
}

std::string NameOf(const ConvShape& s) {
  return absl::StrCat("convolution ", s.kernel, "x", s.kernel, " ", s.in_channels, "-", s.out_channels,
                      " on ", s.height, "x", s.width, ", batch ", s.batch);
}

}  // namespace psring::onednn
