// The ops implemented by definition: the reference for testing the fast ones. Sums are kept in double
// precision.
#include <algorithm>
#include <vector>

#include "common/base/check.h"
#include "common/ops/cpu_ops.h"

namespace psring {
namespace {

double Activate(bool relu, double value) { return relu ? std::max(value, 0.0) : value; }

// A linear layer is a convolution of pictures of one pixel.
ConvShape AsConvolution(const LinearShape& s) {
  return {.batch = s.batch,
          .height = 1,
          .width = 1,
          .in_channels = s.inputs,
          .out_channels = s.outputs,
          .kernel = 1,
          .relu = s.relu};
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
              const size_t x_at = ((size_t(n) * s.height + h + i) * s.width + w + j) * s.in_channels;
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

class ReferenceOps : public CpuOps {
 public:
  std::string name() const override { return "reference"; }

  void LinearForward(const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                     Stream& stream) override {
    ConvForward(AsConvolution(s), x, weight, bias, y, stream);
  }

  void LinearBackward(const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy, Span dx,
                      Span dweight, Span dbias, Stream& stream) override {
    ConvBackward(AsConvolution(s), x, weight, y, dy, dx, dweight, dbias, stream);
  }

  void ConvForward(const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                   Stream& stream) override {
    CheckForward(s, x, weight, bias, y);
    Run(stream, [=] {
      std::vector<double> sum(y.count);
      for (size_t i = 0; i < y.count; ++i) sum[i] = bias.floats()[i % s.out_channels];
      ForEachTap(s, [&](size_t y_at, size_t x_at, size_t weight_at) {
        for (int c = 0; c < s.in_channels; ++c) {
          sum[y_at] += double{x.floats()[x_at + c]} * weight.floats()[weight_at + c];
        }
      });
      for (double& value : sum) value = Activate(s.relu, value);
      StoreRounded(sum, y.floats());
    });
  }

  void ConvBackward(const ConvShape& s, ConstSpan x, ConstSpan weight, ConstSpan y, Span dy, Span dx,
                    Span dweight, Span dbias, Stream& stream) override {
    CheckForward(s, x, weight, dbias, y);
    CheckBackward(x, weight, y, dy, dx, dweight);
    Run(stream, [=] {
      for (size_t i = 0; s.relu && i < dy.count; ++i) dy.floats()[i] = y.floats()[i] > 0 ? dy.floats()[i] : 0;
      std::vector<double> dx_sum(dx.data == nullptr ? 0 : dx.count), dweight_sum(dweight.count),
          dbias_sum(dbias.count);
      for (size_t i = 0; i < dy.count; ++i) dbias_sum[i % s.out_channels] += dy.floats()[i];
      ForEachTap(s, [&](size_t y_at, size_t x_at, size_t weight_at) {
        const double d = dy.floats()[y_at];
        for (int c = 0; c < s.in_channels; ++c) {
          dweight_sum[weight_at + c] += d * x.floats()[x_at + c];
          if (!dx_sum.empty()) dx_sum[x_at + c] += d * weight.floats()[weight_at + c];
        }
      });
      StoreRounded(dx_sum, dx.floats());
      StoreRounded(dweight_sum, dweight.floats());
      StoreRounded(dbias_sum, dbias.floats());
    });
  }
};

}  // namespace

std::unique_ptr<Ops> MakeReferenceOps() { return std::make_unique<ReferenceOps>(); }

}  // namespace psring
