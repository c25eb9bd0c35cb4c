#include "tests/common/ops/reference_ops.h"

#include <algorithm>
#include <vector>

#include "common/ops/cpu_ops.h"

namespace psring {
namespace {

double Activate(Activation activation, double value) {
  if (activation == Activation::kGelu) return ReferenceGelu(value);
  return activation == Activation::kRelu ? std::max(value, 0.0) : value;
}

// A linear layer is a convolution of pictures of one pixel.
ConvShape AsConvolution(const LinearShape& s) {
  return {.batch = s.batch,
          .height = 1,
          .width = 1,
          .in_channels = s.inputs,
          .out_channels = s.outputs,
          .kernel = 1,
          .activation = s.activation};
}

// Visits a convolution: f(y's offset, x's offset, weight's offset, in_channels) for every output channel,
// output position and filter position; the offsets are those of input channel 0.
template <typename F>
void ForEachTap(const ConvShape& s, const F& f) {
  for (int n = 0; n < s.batch; ++n) {
    for (int h = 0; h < s.out_height(); ++h) {
      for (int w = 0; w < s.out_width(); ++w) {
        for (int o = 0; o < s.out_channels; ++o) {
          const size_t y_at = ((size_t(n) * s.out_height() + h) * s.out_width() + w) * s.out_channels + o;
          for (int i = 0; i < s.kernel; ++i) {
            for (int j = 0; j < s.kernel; ++j) {
              const int row = h * s.stride + i - s.padding, column = w * s.stride + j - s.padding;
              if (row < 0 || row >= s.height || column < 0 || column >= s.width) continue;
              const size_t x_at = ((size_t(n) * s.height + row) * s.width + column) * s.in_channels;
              const size_t weight_at = ((size_t(o) * s.kernel + i) * s.kernel + j) * s.in_channels;
              f(y_at, x_at, weight_at);
            }
          }
        }
      }
    }
  }
}

void StoreRounded(const std::vector<double>& from, float* to) {
  std::transform(from.begin(), from.end(), to, [](double value) { return static_cast<float>(value); });
}

class ReferenceConvolution : public ConvolutionOps {
 public:
  void Forward(const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
               Stream& stream) override {
    CheckForward(CountsOf(s), s.activation, x, weight, bias, y);
    RunOnCpu(stream, [=] {
      std::vector<double> sum(y.count);
      for (size_t i = 0; i < y.count; ++i)
        sum[i] = bias.data == nullptr ? 0 : bias.floats()[i % s.out_channels];
      ForEachTap(s, [&](size_t y_at, size_t x_at, size_t weight_at) {
        for (int c = 0; c < s.in_channels; ++c)
          sum[y_at] += double{x.floats()[x_at + c]} * weight.floats()[weight_at + c];
      });
      for (double& value : sum) value = Activate(s.activation, value);
      StoreRounded(sum, y.floats());
    });
  }

  void BackwardInput(const ConvShape& s, ConstSpan weight, ConstSpan saved, Span dy, Span dx, bool add,
                     Span dbias, Stream& stream) override {
    CheckBackwardInput(CountsOf(s), s.activation, weight, saved, dy, dx, dbias);
    RunOnCpu(stream, [=] {
      float* const d = dy.floats();
      for (size_t i = 0; s.activation == Activation::kRelu && i < dy.count; ++i)
        d[i] = saved.floats()[i] > 0 ? d[i] : 0;
      std::vector<double> dx_sum(dx.data == nullptr ? 0 : dx.count), dbias_sum(s.out_channels);
      for (size_t i = 0; i < dy.count; ++i) dbias_sum[i % s.out_channels] += d[i];
      if (dbias.data != nullptr) StoreRounded(dbias_sum, dbias.floats());
      if (dx.data == nullptr) return;
      if (add) std::copy_n(dx.floats(), dx.count, dx_sum.begin());
      ForEachTap(s, [&](size_t y_at, size_t x_at, size_t weight_at) {
        for (int c = 0; c < s.in_channels; ++c)
          dx_sum[x_at + c] += double{d[y_at]} * weight.floats()[weight_at + c];
      });
      StoreRounded(dx_sum, dx.floats());
    });
  }

  void BackwardWeight(const ConvShape& s, ConstSpan x, ConstSpan dy, Span dweight, Stream& stream) override {
    CheckBackwardWeight(CountsOf(s), x, dy, dweight);
    RunOnCpu(stream, [=] {
      std::vector<double> sum(dweight.count);
      ForEachTap(s, [&](size_t y_at, size_t x_at, size_t weight_at) {
        for (int c = 0; c < s.in_channels; ++c)
          sum[weight_at + c] += double{dy.floats()[y_at]} * x.floats()[x_at + c];
      });
      StoreRounded(sum, dweight.floats());
    });
  }
};

class ReferenceLinear : public LinearOps {
 public:
  void Forward(const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
               Span y, Span saved, Stream& stream) override {
    CheckForward(s, x, weight, bias, residual, y, saved);
    convolution_.Forward(AsConvolution(s), x, weight, bias, y, stream);
    if (s.activation == Activation::kGelu) {
      ConvShape linear = AsConvolution(s);
      linear.activation = Activation::kNone;
      convolution_.Forward(linear, x, weight, bias, saved, stream);
    }
    if (residual.data == nullptr) return;
    RunOnCpu(stream, [=] {
      for (size_t i = 0; i < y.count; ++i) y.floats()[i] += residual.floats()[i];
    });
  }
  void BackwardInput(const LinearShape& s, ConstSpan weight, ConstSpan saved, Span dy, Span dx, Span dbias,
                     Stream& stream) override {
    if (s.activation == Activation::kGelu) {
      RunOnCpu(stream, [=] {
        for (size_t i = 0; i < dy.count; ++i)
          dy.floats()[i] = static_cast<float>(dy.floats()[i] * ReferenceGeluSlope(saved.floats()[i]));
      });
    }
    convolution_.BackwardInput(AsConvolution(s), weight, saved, dy, dx, /*add=*/false, dbias, stream);
  }
  void BackwardWeight(const LinearShape& s, ConstSpan x, ConstSpan dy, Span dweight,
                      Stream& stream) override {
    convolution_.BackwardWeight(AsConvolution(s), x, dy, dweight, stream);
  }

 private:
  ReferenceConvolution convolution_;
};

class ReferenceOps : public CpuOps {
 public:
  ReferenceOps() {
    families_.linear = std::make_unique<ReferenceLinear>();
    families_.convolution = std::make_unique<ReferenceConvolution>();
    AddReferenceLayers(families_);
  }
  std::string name() const override { return "reference"; }
};

}  // namespace

std::unique_ptr<Ops> MakeReferenceOps() { return std::make_unique<ReferenceOps>(); }

}  // namespace psring
