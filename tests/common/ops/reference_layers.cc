// The families of ops other than products.
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/ops/cpu_layers.h"
#include "tests/common/ops/reference_ops.h"

namespace psring {
namespace {

struct Statistics {
  double mean, inverse;
};
Statistics StatisticsOf(const float* x, int width, double epsilon) {
  double sum = 0, squares = 0;
  for (int c = 0; c < width; ++c) sum += x[c];
  const double mean = sum / width;
  for (int c = 0; c < width; ++c) squares += (x[c] - mean) * (x[c] - mean);
  return {mean, 1 / std::sqrt(squares / width + epsilon)};
}

// A head of a sample: element d of row i of the queries (0), keys (1) or values (2), and of the output.
struct ReferenceHead {
  const AttentionShape& s;
  int sample, head;
  size_t In(int which, int i, int d) const {
    return ((size_t(sample) * s.context + i) * 3 + which) * s.width() + head * s.head_size + d;
  }
  size_t Out(int i, int d) const {
    return (size_t(sample) * s.context + i) * s.width() + head * s.head_size + d;
  }
  double Score(const float* qkv, int i, int j) const {
    double dot = 0;
    for (int d = 0; d < s.head_size; ++d) dot += double{qkv[In(0, i, d)]} * qkv[In(1, j, d)];
    return dot / std::sqrt(double(s.head_size));
  }
  // Subtracted from scores, so that exp cannot overflow.
  double Highest(const float* qkv, int i) const {
    double highest = Score(qkv, i, 0);
    for (int j = 1; j <= i; ++j) highest = std::max(highest, Score(qkv, i, j));
    return highest;
  }
};

template <typename F>
void ForEachHead(const AttentionShape& s, const F& f) {
  for (int sample = 0; sample < s.batch; ++sample) {
    for (int head = 0; head < s.heads; ++head) f(ReferenceHead{s, sample, head});
  }
}

void AddTo(float& to, double value) { to = static_cast<float>(to + value); }

// The vectors of a sample: 0 is a, the others are b's.
struct Vectors {
  const float *a, *b;
  size_t width;
  const float* operator[](int i) const { return i == 0 ? a : b + static_cast<size_t>(i - 1) * width; }
};

// visit(output, i, j) for each product of vectors i and j that is an output.
template <typename Visit>
void ForEachProduct(const DotShape& s, const Visit& visit) {
  size_t at = static_cast<size_t>(s.width);
  for (int j = 1; j <= s.others; ++j) {
    if (s.kind == Dots::kFirstWithOthers) {
      visit(static_cast<size_t>(2 * j - 1), 0, j);
    } else {
      for (int i = 0; i < j; ++i) visit(at++, i, j);
    }
  }
}

class ReferenceNormalization : public NormalizationOps {
 public:
  void LayerNormForward(const LayerNormShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                        Span statistics, Stream& stream) override {
    RunOnCpu(stream, [=] {
      for (int row = 0; row < s.rows; ++row) {
        const size_t at = size_t(row) * s.width;
        const auto [mean, inverse] = StatisticsOf(x.floats() + at, s.width, s.epsilon);
        for (int c = 0; c < s.width; ++c)
          y.floats()[at + c] = static_cast<float>((x.floats()[at + c] - mean) * inverse * weight.floats()[c] +
                                                  bias.floats()[c]);
        statistics.floats()[row] = static_cast<float>(mean);
        statistics.floats()[s.rows + row] = static_cast<float>(inverse);
      }
    });
  }
  void LayerNormBackward(const LayerNormShape& s, ConstSpan x, ConstSpan weight, ConstSpan /*statistics*/,
                         ConstSpan dy, Span dx, bool add, Span dweight, Span dbias, Stream& stream) override {
    RunOnCpu(stream, [=] {
      std::vector<double> dweight_sum(s.width), dbias_sum(s.width);
      for (int row = 0; row < s.rows; ++row) {
        const size_t at = size_t(row) * s.width;
        const auto [mean, inverse] = StatisticsOf(x.floats() + at, s.width, s.epsilon);
        const auto normal = [&, mean = mean, inverse = inverse](int c) {
          return (x.floats()[at + c] - mean) * inverse;
        };
        const auto g = [&](int c) { return double{dy.floats()[at + c]} * weight.floats()[c]; };
        double g_mean = 0, gn_mean = 0;
        for (int c = 0; c < s.width; ++c) {
          g_mean += g(c) / s.width;
          gn_mean += g(c) * normal(c) / s.width;
          dweight_sum[c] += dy.floats()[at + c] * normal(c);
          dbias_sum[c] += dy.floats()[at + c];
        }
        for (int c = 0; c < s.width; ++c) {
          float& to = dx.floats()[at + c];
          if (!add) to = 0;
          AddTo(to, (g(c) - g_mean - normal(c) * gn_mean) * inverse);
        }
      }
      std::copy(dweight_sum.begin(), dweight_sum.end(), dweight.floats());
      std::copy(dbias_sum.begin(), dbias_sum.end(), dbias.floats());
    });
  }
};

class ReferenceBatchNorm : public BatchNormOps {
 public:
  void Statistics(const BatchNormShape& s, ConstSpan x, Span statistics, Stream& stream) override {
    PSRING_CHECK(s.rows > 0);
    RunOnCpu(stream, [=] {
      std::vector<float> column(s.rows);
      for (int c = 0; c < s.channels; ++c) {
        for (int row = 0; row < s.rows; ++row) column[row] = x.floats()[size_t(row) * s.channels + c];
        const auto [mean, inverse] = StatisticsOf(column.data(), s.rows, 0);
        statistics.floats()[c] = static_cast<float>(mean);
        statistics.floats()[s.channels + c] = static_cast<float>(1 / (inverse * inverse));
      }
    });
  }
  void UpdateRunning(const BatchNormShape& s, float momentum, ConstSpan statistics, Span running,
                     Stream& stream) override {
    RunOnCpu(stream, [=] {
      const double unbiased = s.rows > 1 ? double(s.rows) / (s.rows - 1) : 1;
      for (int i = 0; i < 2 * s.channels; ++i) {
        const double value = statistics.floats()[i] * (i < s.channels ? 1 : unbiased);
        running.floats()[i] =
            static_cast<float>((1 - double{momentum}) * running.floats()[i] + momentum * value);
      }
    });
  }
  void Forward(const BatchNormShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
               ConstSpan statistics, Span y, Stream& stream) override {
    RunOnCpu(stream, [=] {
      for (size_t i = 0; i < x.count; ++i) {
        const size_t c = i % s.channels;
        const double deviation = std::sqrt(double{statistics.floats()[s.channels + c]} + s.epsilon);
        double value = (double{x.floats()[i]} - statistics.floats()[c]) / deviation * weight.floats()[c] +
                       bias.floats()[c];
        if (residual.data != nullptr) value += residual.floats()[i];
        y.floats()[i] = static_cast<float>(s.relu ? std::max(value, 0.0) : value);
      }
    });
  }
  void BackwardSums(const BatchNormShape& s, ConstSpan x, ConstSpan statistics, ConstSpan y, Span dy,
                    Span dweight, Span dbias, Stream& stream) override {
    RunOnCpu(stream, [=] {
      std::vector<double> weight_sum(s.channels), bias_sum(s.channels);
      for (size_t i = 0; i < x.count; ++i) {
        const size_t c = i % s.channels;
        const double deviation = std::sqrt(double{statistics.floats()[s.channels + c]} + s.epsilon);
        if (s.relu && !(y.floats()[i] > 0)) dy.floats()[i] = 0;
        weight_sum[c] += dy.floats()[i] * (double{x.floats()[i]} - statistics.floats()[c]) / deviation;
        bias_sum[c] += dy.floats()[i];
      }
      std::copy(weight_sum.begin(), weight_sum.end(), dweight.floats());
      std::copy(bias_sum.begin(), bias_sum.end(), dbias.floats());
    });
  }
  void BackwardInput(const BatchNormShape& s, ConstSpan x, ConstSpan weight, ConstSpan statistics,
                     ConstSpan dy, ConstSpan dweight, ConstSpan dbias, Span dx, Stream& stream) override {
    RunOnCpu(stream, [=] {
      for (size_t i = 0; i < x.count; ++i) {
        const size_t c = i % s.channels;
        const double deviation = std::sqrt(double{statistics.floats()[s.channels + c]} + s.epsilon);
        const double normal = (double{x.floats()[i]} - statistics.floats()[c]) / deviation;
        dx.floats()[i] = static_cast<float>(
            weight.floats()[c] / deviation *
            (dy.floats()[i] - double{dbias.floats()[c]} / s.rows - normal * dweight.floats()[c] / s.rows));
      }
    });
  }
};

class ReferenceAttention : public AttentionOps {
 public:
  void Forward(const AttentionShape& s, ConstSpan qkv, Span y, Span log_sum_exp, Stream& stream) override {
    RunOnCpu(stream, [=] {
      ForEachHead(s, [&](const ReferenceHead& head) {
        for (int i = 0; i < s.context; ++i) {
          const double highest = head.Highest(qkv.floats(), i);
          const auto exponential = [&](int j) { return std::exp(head.Score(qkv.floats(), i, j) - highest); };
          double sum = 0;
          for (int j = 0; j <= i; ++j) sum += exponential(j);
          for (int d = 0; d < s.head_size; ++d) {
            double value = 0;
            for (int j = 0; j <= i; ++j) value += exponential(j) / sum * qkv.floats()[head.In(2, j, d)];
            y.floats()[head.Out(i, d)] = static_cast<float>(value);
          }
          log_sum_exp.floats()[(size_t(head.sample) * s.heads + head.head) * s.context + i] =
              static_cast<float>(highest + std::log(sum));
        }
      });
    });
  }
  void Backward(const AttentionShape& s, ConstSpan qkv, ConstSpan /*y*/, ConstSpan /*log_sum_exp*/,
                ConstSpan dy, Span dqkv, Stream& stream) override {
    RunOnCpu(stream, [=] {
      const float *const in = qkv.floats(), *const d_out = dy.floats();
      std::vector<double> gradient(dqkv.count);
      ForEachHead(s, [&](const ReferenceHead& head) {
        for (int i = 0; i < s.context; ++i) {
          double sum = 0, dot = 0;
          std::vector<double> p(i + 1), dp(i + 1);
          const double highest = head.Highest(in, i);
          for (int j = 0; j <= i; ++j) sum += p[j] = std::exp(head.Score(in, i, j) - highest);
          for (int j = 0; j <= i; ++j) {
            p[j] /= sum;
            for (int d = 0; d < s.head_size; ++d) {
              dp[j] += double{d_out[head.Out(i, d)]} * in[head.In(2, j, d)];
              gradient[head.In(2, j, d)] += p[j] * d_out[head.Out(i, d)];
            }
            dot += p[j] * dp[j];
          }
          for (int j = 0; j <= i; ++j) {
            const double ds = p[j] * (dp[j] - dot) / std::sqrt(double(s.head_size));
            for (int d = 0; d < s.head_size; ++d) {
              gradient[head.In(0, i, d)] += ds * in[head.In(1, j, d)];
              gradient[head.In(1, j, d)] += ds * in[head.In(0, i, d)];
            }
          }
        }
      });
      std::copy(gradient.begin(), gradient.end(), dqkv.floats());
    });
  }

  void ForwardBlock(const AttentionBlock& b, ConstSpan qkv, ConstSpan kv, Span y, Span log_sum_exp,
                    Stream& stream) override {
    RunOnCpu(stream, [=] {
      ForEachRow(b, [&](const BlockRow& row) {
        double sum = 0, highest = kNoKeys;
        for (int j = 0; j < row.visible; ++j) highest = std::max(highest, row.Score(qkv, kv, j));
        for (int j = 0; j < row.visible; ++j) sum += std::exp(row.Score(qkv, kv, j) - highest);
        float& log_sum = log_sum_exp.floats()[row.sum];
        const double own = highest + std::log(sum), most = std::max<double>(log_sum, own);
        const double both = most + std::log(std::exp(log_sum - most) + std::exp(own - most));
        for (int d = 0; d < b.head_size; ++d) {
          double value = 0;
          for (int j = 0; j < row.visible; ++j) {
            value += std::exp(row.Score(qkv, kv, j) - own) * kv.floats()[row.Of(1, j) + d];
          }
          float& element = y.floats()[row.out + d];
          element = static_cast<float>(element * std::exp(log_sum - both) + value * std::exp(own - both));
        }
        log_sum = static_cast<float>(both);
      });
    });
  }
  void BackwardBlock(const AttentionBlock& b, ConstSpan qkv, ConstSpan kv, ConstSpan y, ConstSpan log_sum_exp,
                     ConstSpan dy, Span dqkv, Span dkv, Stream& stream) override {
    RunOnCpu(stream, [=] {
      std::vector<double> gradient(dkv.count);
      ForEachRow(b, [&](const BlockRow& row) {
        double dot = 0;
        for (int d = 0; d < b.head_size; ++d)
          dot += double{dy.floats()[row.out + d]} * y.floats()[row.out + d];
        for (int j = 0; j < row.visible; ++j) {
          const double p = std::exp(row.Score(qkv, kv, j) - log_sum_exp.floats()[row.sum]);
          double dp = 0;
          for (int d = 0; d < b.head_size; ++d) {
            dp += double{dy.floats()[row.out + d]} * kv.floats()[row.Of(1, j) + d];
            gradient[row.Of(1, j) + d] += p * dy.floats()[row.out + d];
          }
          const double ds = p * (dp - dot) / std::sqrt(double(b.head_size));
          for (int d = 0; d < b.head_size; ++d) {
            AddTo(dqkv.floats()[row.in + d], ds * kv.floats()[row.Of(0, j) + d]);
            gradient[row.Of(0, j) + d] += ds * qkv.floats()[row.in + d];
          }
        }
      });
      const size_t width = size_t{2} * b.width();
      for (int sample = 0; sample < b.batch; ++sample) {
        const size_t first = (size_t(sample) * b.keys.rows + b.keys.first) * width;
        std::copy_n(gradient.begin() + first, b.keys.count * width, dkv.floats() + first);
      }
    });
  }

 private:
  // A query of a head that attends to `visible` keys, at least 1: where its elements begin.
  struct BlockRow {
    const AttentionBlock& b;
    int visible;
    size_t in, out, sum;
    size_t keys;  // the first one's
    size_t Of(int which, int j) const { return keys + (size_t{2} * j + which) * b.width(); }
    double Score(ConstSpan qkv, ConstSpan kv, int j) const {
      double dot = 0;
      for (int d = 0; d < b.head_size; ++d) dot += double{qkv.floats()[in + d]} * kv.floats()[Of(0, j) + d];
      return dot / std::sqrt(double(b.head_size));
    }
  };
  template <typename F>
  static void ForEachRow(const AttentionBlock& b, const F& f) {
    for (int sample = 0; sample < b.batch; ++sample) {
      for (int head = 0; head < b.heads; ++head) {
        for (int i = 0; i < b.queries.count; ++i) {
          const int visible = std::min(i + b.offset + 1, b.keys.count);
          if (visible <= 0) continue;
          const size_t row = size_t(sample) * b.queries.rows + b.queries.first + i;
          const size_t keys = size_t(sample) * b.keys.rows + b.keys.first, of_head = head * b.head_size;
          f(BlockRow{b, visible, 3 * row * b.width() + of_head, row * b.width() + of_head,
                     (size_t(sample) * b.heads + head) * b.queries.rows + b.queries.first + i,
                     2 * keys * b.width() + of_head});
        }
      }
    }
  }
};

class ReferenceEmbedding : public EmbeddingOps {
 public:
  void Forward(const EmbeddingShape& s, const int32_t* indices, ConstSpan table, ConstSpan positions, Span y,
               Stream& stream) override {
    stream.Run([=] {
      for (int i = 0; i < s.count; ++i) {
        if (indices[i] < 0 || indices[i] >= RowsOfAll(s)) return IndexOutside(s, i, indices[i]);
        for (int c = 0; c < s.width; ++c) {
          float value = Has(s, indices[i]) ? table.floats()[size_t(indices[i] - s.first) * s.width + c] : 0;
          if (s.context > 0) value += positions.floats()[size_t(i % s.context) * s.width + c];
          y.floats()[size_t(i) * s.width + c] = value;
        }
      }
      return absl::OkStatus();
    });
  }
  void Backward(const EmbeddingShape& s, const int32_t* indices, ConstSpan dy, Span dtable, Span dpositions,
                bool add, Stream& stream) override {
    stream.Run([=] {
      if (!add) std::fill_n(dtable.floats(), dtable.count, 0.0f);
      if (s.context > 0) std::fill_n(dpositions.floats(), dpositions.count, 0.0f);
      for (int i = 0; i < s.count; ++i) {
        if (indices[i] < 0 || indices[i] >= RowsOfAll(s)) return IndexOutside(s, i, indices[i]);
        for (int c = 0; c < s.width; ++c) {
          const float value = dy.floats()[size_t(i) * s.width + c];
          if (Has(s, indices[i])) dtable.floats()[size_t(indices[i] - s.first) * s.width + c] += value;
          if (s.context > 0) dpositions.floats()[size_t(i % s.context) * s.width + c] += value;
        }
      }
      return absl::OkStatus();
    });
  }

 private:
  static bool Has(const EmbeddingShape& s, int32_t index) {
    return index >= s.first && index < s.first + s.rows;
  }
};

class ReferenceDropout : public DropoutOps {
 public:
  void Apply(const DropoutShape& s, const uint64_t* seeds, ConstSpan x, ConstSpan residual, Span y,
             Stream& stream) override {
    RunOnCpu(stream, [=] {
      for (size_t i = 0; i < y.count; ++i) {
        const bool keeps =
            seeds == nullptr || DropoutMask(s, seeds[i / s.elements]).Keeps(s.first + i % s.elements);
        const double scale = seeds == nullptr ? 1 : 1 / (1 - s.probability);
        const double added = residual.data == nullptr ? 0 : residual.floats()[i];
        y.floats()[i] = static_cast<float>(added + (keeps ? x.floats()[i] * scale : 0));
      }
    });
  }
};

class ReferenceLoss : public LossOps {
 public:
  void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const int32_t* labels, Span dlogits,
                           double* loss_sum, int64_t* correct, Stream& stream) override {
    CheckLoss(batch, classes, logits, dlogits);
    stream.Run([=] {
      for (int row = 0; row < batch; ++row) {
        const int label = labels[row];
        const bool ignored = label == kIgnoredLabel;
        if (!ignored && (label < 0 || label >= classes)) return LabelOutside(classes, row, label);
        const float* const z = logits.floats() + size_t(row) * classes;
        const float* const best = std::max_element(z, z + classes);
        const double highest = *best;
        double sum = 0;
        for (int c = 0; c < classes; ++c) sum += std::exp(z[c] - highest);
        if (!ignored) {
          *loss_sum += std::log(sum) - (z[label] - highest);
          *correct += best - z == label;
        }
        if (dlogits.data == nullptr) continue;
        float* const d = dlogits.floats() + size_t(row) * classes;
        for (int c = 0; c < classes; ++c)
          d[c] = ignored ? 0 : static_cast<float>(std::exp(z[c] - highest) / sum - (c == label ? 1 : 0));
      }
      return absl::OkStatus();
    });
  }
};

class ReferenceBags : public BagOps {
 public:
  void Forward(const BagShape& s, const int32_t* at, ConstSpan values, Span y, Stream& stream) override {
    stream.Run([=] {
      const size_t width = static_cast<size_t>(s.width);
      for (int sample = 0; sample < s.batch; ++sample) {
        for (int bag = 0; bag < s.bags; ++bag) {
          for (size_t c = 0; c < width; ++c) {
            double sum = 0;
            for (int k = 0; k < s.per_bag; ++k) {
              const int lookup = sample * s.lookups + s.first + bag * s.per_bag + k;
              const int32_t row = at[lookup];
              if (row < 0 || row >= s.rows) return RowOutside(s.rows, lookup, row);
              sum += values.floats()[static_cast<size_t>(row) * width + c];
            }
            const size_t to = static_cast<size_t>(sample) * s.all_bags + s.first_bag + bag;
            y.floats()[to * width + c] = static_cast<float>(sum);
          }
        }
      }
      return absl::OkStatus();
    });
  }
  void Backward(int width, const RowGroups& groups, ConstSpan dy, Span gradient, Stream& stream) override {
    RunOnCpu(stream, [=] {
      const size_t columns = static_cast<size_t>(width);
      for (size_t i = 0; i < groups.slots.size(); ++i) {
        for (size_t c = 0; c < columns; ++c) {
          double sum = 0;
          for (int32_t k = groups.begin[i]; k < groups.begin[i + 1]; ++k)
            sum += dy.floats()[static_cast<size_t>(groups.bags[static_cast<size_t>(k)]) * columns + c];
          gradient.floats()[static_cast<size_t>(groups.slots[i]) * columns + c] += static_cast<float>(sum);
        }
      }
    });
  }
};

class ReferenceDots : public DotOps {
 public:
  void Forward(const DotShape& s, ConstSpan a, ConstSpan b, Span y, Stream& stream) override {
    RunOnCpu(stream, [=] {
      const size_t width = static_cast<size_t>(s.width), outputs = s.outputs();
      for (size_t sample = 0; sample < static_cast<size_t>(s.batch); ++sample) {
        const Vectors vectors{a.floats() + sample * width,
                              b.floats() + sample * static_cast<size_t>(s.others) * width, width};
        float* const to = y.floats() + sample * outputs;
        std::fill_n(to, outputs, 0.0f);
        if (s.kind == Dots::kAllPairs) std::copy_n(vectors.a, width, to);
        ForEachProduct(s, [&](size_t output, int i, int j) {
          double sum = 0;
          for (size_t c = 0; c < width; ++c) sum += double{vectors[i][c]} * vectors[j][c];
          to[output] = static_cast<float>(sum);
        });
      }
    });
  }
  void Backward(const DotShape& s, ConstSpan a, ConstSpan b, ConstSpan dy, Span da, Span db,
                Stream& stream) override {
    RunOnCpu(stream, [=] {
      const size_t width = static_cast<size_t>(s.width), others = static_cast<size_t>(s.others);
      for (size_t sample = 0; sample < static_cast<size_t>(s.batch); ++sample) {
        const Vectors vectors{a.floats() + sample * width, b.floats() + sample * others * width, width};
        const float* const d = dy.floats() + sample * s.outputs();
        std::vector<double> sums((others + 1) * width);
        if (s.kind == Dots::kAllPairs) std::copy_n(d, width, sums.begin());
        ForEachProduct(s, [&](size_t output, int i, int j) {
          for (size_t c = 0; c < width; ++c) {
            sums[static_cast<size_t>(i) * width + c] += double{d[output]} * vectors[j][c];
            sums[static_cast<size_t>(j) * width + c] += double{d[output]} * vectors[i][c];
          }
        });
        for (size_t c = 0; c < width; ++c) da.floats()[sample * width + c] = static_cast<float>(sums[c]);
        for (size_t c = 0; c < others * width; ++c)
          db.floats()[sample * others * width + c] = static_cast<float>(sums[width + c]);
      }
    });
  }
};

}  // namespace

double ReferenceGelu(double u) {
  return u / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (u + 0.044715 * u * u * u)));
}

double ReferenceGeluSlope(double u) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (u + 0.044715 * u * u * u));
  return (1 + t) / 2 + u / 2 * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * u * u);
}

void AddReferenceLayers(OpFamilies& families) {
  families.loss = std::make_unique<ReferenceLoss>();
  families.normalization = std::make_unique<ReferenceNormalization>();
  families.attention = std::make_unique<ReferenceAttention>();
  families.embedding = std::make_unique<ReferenceEmbedding>();
  families.dropout = std::make_unique<ReferenceDropout>();
  families.batch_norm = std::make_unique<ReferenceBatchNorm>();
  families.bags = std::make_unique<ReferenceBags>();
  families.dots = std::make_unique<ReferenceDots>();
}

}  // namespace psring
