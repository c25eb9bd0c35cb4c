// Normalization, attention, embeddings, GELU and the loss, of every implementation of Ops that has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/kernels/attention.h"
#include "common/kernels/elementwise_math.h"
#include "tests/common/ops/ops_fixture.h"

namespace psring {
namespace {

Results LayerNorm(Ops& ops, const LayerNormShape& s, const Memory& m, bool add) {
  NormalizationOps& family = *ops.families().normalization;
  const size_t count = size_t(s.rows) * s.width;
  const Tensor x = m.PutActivations(count, 1), weight = m.Put(Random(s.width, 2)),
               bias = m.Put(Random(s.width, 3)), y = m.ResultActivations(count),
               statistics = m.Result(size_t{2} * s.rows), dy = m.PutActivations(count, 4),
               dx = add ? m.PutActivations(count, 5) : m.ResultActivations(count),
               dweight = m.Result(s.width), dbias = m.Result(s.width);
  family.LayerNormForward(s, x.span(), weight.span(), bias.span(), y.span(), statistics.span(), m.stream);
  family.LayerNormBackward(s, x.span(), weight.span(), statistics.span(), dy.span(), dx.span(), add,
                           dweight.span(), dbias.span(), m.stream);
  return {y.floats(), statistics.floats(), dx.floats(), dweight.floats(), dbias.floats()};
}

Results Attend(Ops& ops, const AttentionShape& s, const Memory& m) {
  AttentionOps& family = *ops.families().attention;
  const size_t count = size_t(s.batch) * s.context * s.width();
  const Tensor qkv = m.PutActivations(3 * count, 1), y = m.ResultActivations(count),
               log_sum_exp = m.Result(size_t(s.batch) * s.heads * s.context), dy = m.PutActivations(count, 2),
               dqkv = m.ResultActivations(3 * count);
  family.Forward(s, qkv.span(), y.span(), log_sum_exp.span(), m.stream);
  family.Backward(s, qkv.span(), y.span(), log_sum_exp.span(), dy.span(), dqkv.span(), m.stream);
  return {y.floats(), log_sum_exp.floats(), dqkv.floats()};
}

// A block, after another one that has left the same y and log_sum_exp everywhere.
Results AttendToBlock(Ops& ops, const AttentionBlock& b, const Memory& m) {
  AttentionOps& family = *ops.families().attention;
  const size_t count = size_t(b.batch) * b.queries.rows * b.width(),
               key_count = size_t(b.batch) * b.keys.rows * b.width(),
               sums = size_t(b.batch) * b.heads * b.queries.rows;
  const Tensor qkv = m.PutActivations(3 * count, 1), kv = m.PutActivations(2 * key_count, 2),
               y = m.PutActivations(count, 3), log_sum_exp = m.Put(Random(sums, 4)),
               dy = m.PutActivations(count, 5), dqkv = m.PutActivations(3 * count, 6),
               dkv = m.PutActivations(2 * key_count, 7);
  family.ForwardBlock(b, qkv.span(), kv.span(), y.span(), log_sum_exp.span(), m.stream);
  family.BackwardBlock(b, qkv.span(), kv.span(), y.span(), log_sum_exp.span(), dy.span(), dqkv.span(),
                       dkv.span(), m.stream);
  return {y.floats(), log_sum_exp.floats(), dqkv.floats(), dkv.floats()};
}

// The result of Attend, by blocks of these numbers of queries and of keys.
Results AttendInBlocks(Ops& ops, const AttentionShape& s, int queries, int keys, const Memory& m) {
  AttentionOps& family = *ops.families().attention;
  const size_t count = size_t(s.batch) * s.context * s.width(), width = s.width();
  const Floats all = Exact(3 * count, 1);
  Floats key_values;
  for (size_t row = 0; row < count / width; ++row) {
    key_values.insert(key_values.end(), &all[(3 * row + 1) * width], &all[(3 * row + 1) * width] + 2 * width);
  }
  const Tensor qkv(m.device, m.stream, all, m.type), kv(m.device, m.stream, key_values, m.type),
      y(m.device, m.stream, Floats(count), m.type),
      dy = m.PutActivations(count, 2), dqkv(m.device, m.stream, Floats(3 * count), m.type),
      dkv = m.ResultActivations(2 * count),
      log_sum_exp = m.Put(Floats(size_t(s.batch) * s.heads * s.context, kNoKeys));
  const auto for_each_block = [&](const auto& f) {
    for (int key = 0; key < s.context; key += keys) {
      for (int query = 0; query < s.context; query += queries) {
        f(AttentionBlock{.batch = s.batch,
                         .heads = s.heads,
                         .head_size = s.head_size,
                         .queries = {s.context, query, std::min(queries, s.context - query)},
                         .keys = {s.context, key, std::min(keys, s.context - key)},
                         .offset = query - key});
      }
    }
  };
  for_each_block([&](const AttentionBlock& block) {
    family.ForwardBlock(block, qkv.span(), kv.span(), y.span(), log_sum_exp.span(), m.stream);
  });
  Floats gradient(3 * count);
  for_each_block([&](const AttentionBlock& block) {
    family.BackwardBlock(block, qkv.span(), kv.span(), y.span(), log_sum_exp.span(), dy.span(), dqkv.span(),
                         dkv.span(), m.stream);
    const Floats of_block = dkv.floats();
    for (int sample = 0; sample < s.batch; ++sample) {
      for (int j = block.keys.first; j < block.keys.first + block.keys.count; ++j) {
        const size_t row = size_t(sample) * s.context + j;
        for (size_t i = 0; i < 2 * width; ++i) {
          gradient[(3 * row + 1) * width + i] += of_block[2 * row * width + i];
        }
      }
    }
  });
  const Floats queries_gradient = dqkv.floats();
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += queries_gradient[i];
  return {y.floats(), log_sum_exp.floats(), gradient};
}

Results Embed(Ops& ops, const EmbeddingShape& s, const Memory& m, bool add) {
  EmbeddingOps& family = *ops.families().embedding;
  std::vector<int32_t> indices(s.count);
  const int rows = s.all > 0 ? s.all : s.rows;
  for (int i = 0; i < s.count; ++i) indices[i] = i * i % rows;  // some more often than once
  const OnDevice<int32_t> there(m.device, m.stream, indices);
  const size_t table_count = size_t(s.rows) * s.width, positions_count = size_t(s.context) * s.width;
  const Tensor table = m.Put(Random(table_count, 1)), positions = m.Put(Random(positions_count, 2)),
               y = m.ResultActivations(size_t(s.count) * s.width),
               dy = m.PutActivations(size_t(s.count) * s.width, 3),
               dtable = add ? m.Put(Random(table_count, 4)) : m.Result(table_count),
               dpositions = m.Result(positions_count);
  family.Forward(s, there.data(), table.span(), positions.span(), y.span(), m.stream);
  family.Backward(s, there.data(), dy.span(), dtable.span(), dpositions.span(), add, m.stream);
  return {y.floats(), dtable.floats(), dpositions.floats()};
}

struct LinearCase {
  Activation activation;
  bool has_bias, has_residual;
};

Results RunLinear(Ops& ops, int batch, int inputs, int outputs, const LinearCase& with, const Memory& m) {
  LinearOps& family = *ops.families().linear;
  const LinearShape s{batch, inputs, outputs, with.activation};
  const LayerCounts sizes = CountsOf(s);
  const Tensor x = m.PutActivations(sizes.x, 1), weight = m.Put(Exact(sizes.weight, 2)),
               bias = m.Put(Exact(sizes.bias, 3)), residual = m.PutActivations(sizes.y, 5),
               y = m.ResultActivations(sizes.y), saved = m.ResultActivations(sizes.y),
               dy = m.PutActivations(sizes.y, 4), dx = m.ResultActivations(sizes.x),
               dweight = m.Result(sizes.weight), dbias = m.Result(sizes.bias);
  const auto if_has = [](bool has, const Tensor& tensor) { return has ? tensor.span() : Span{}; };
  const bool gelu = with.activation == Activation::kGelu;
  family.Forward(s, x.span(), weight.span(), if_has(with.has_bias, bias), if_has(with.has_residual, residual),
                 y.span(), if_has(gelu, saved), m.stream);
  family.BackwardInput(s, weight.span(), if_has(gelu, saved), dy.span(), dx.span(),
                       if_has(with.has_bias, dbias), m.stream);
  family.BackwardWeight(s, x.span(), dy.span(), dweight.span(), m.stream);
  return {y.floats(),       gelu ? saved.floats() : Floats(),         dy.floats(), dx.floats(),
          dweight.floats(), with.has_bias ? dbias.floats() : Floats()};
}

class TransformerOpsTest : public OpsTest {};

INSTANTIATE_TEST_SUITE_P(All, TransformerOpsTest, testing::ValuesIn(AllImplementations()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(TransformerOpsTest, LayerNormAgreesWithTheReference) {
  SKIP_WITHOUT(normalization);
  for (const int rows : {0, 1, 7}) {
    for (const int width : {1, 3, 16, 37, 128, 385}) {
      for (const bool add : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << width << (add ? ", added" : ""));
        // A row of one value has no deviation: without this epsilon its gradient is a rounding error,
        // amplified.
        const LayerNormShape shape{rows, width, width == 1 ? 1.0f : 1e-5f};
        ExpectLikeTheReference([&](Ops& ops, const Memory& m) { return LayerNorm(ops, shape, m, add); });
      }
    }
  }
}

TEST_P(TransformerOpsTest, AttentionAgreesWithTheReference) {
  SKIP_WITHOUT(attention);
  for (const AttentionShape& shape : {AttentionShape{1, 1, 1, 1},
                                      {2, 3, 2, 5},
                                      {1, 17, 3, 8},
                                      {2, 64, 2, 32},
                                      {1, 65, 1, 16},
                                      {1, 150, 2, 33},
                                      {0, 4, 2, 3}}) {
    SCOPED_TRACE(testing::Message() << "batch " << shape.batch << ", context " << shape.context << ", "
                                    << shape.heads << " heads of " << shape.head_size);
    ExpectLikeTheReference([&](Ops& ops, const Memory& m) { return Attend(ops, shape, m); });
  }
}

TEST_P(TransformerOpsTest, AttentionToABlockAgreesWithTheReferenceAtAllOffsets) {
  SKIP_WITHOUT(attention);
  for (int offset = -21; offset <= 37; ++offset) {
    SCOPED_TRACE(testing::Message() << "offset " << offset);
    const AttentionBlock block{.batch = 2,
                               .heads = 2,
                               .head_size = 5,
                               .queries = {24, 3, 20},
                               .keys = {39, 2, 35},
                               .offset = offset};
    ExpectLikeTheReference([&](Ops& ops, const Memory& m) { return AttendToBlock(ops, block, m); });
  }
  for (const auto& [queries, keys, offset] : {std::tuple(1, 1, 0),
                                              {1, 200, 199},
                                              {33, 130, 70},
                                              {130, 33, 10},
                                              {64, 64, 64},
                                              {0, 4, 0},
                                              {4, 0, 9}}) {
    SCOPED_TRACE(testing::Message() << queries << " queries, " << keys << " keys, offset " << offset);
    const AttentionBlock block{.batch = 1,
                               .heads = 3,
                               .head_size = 16,
                               .queries = {queries, 0, queries},
                               .keys = {keys, 0, keys},
                               .offset = offset};
    ExpectLikeTheReference([&](Ops& ops, const Memory& m) { return AttendToBlock(ops, block, m); });
  }
}

TEST_P(TransformerOpsTest, AttentionInBlocksEqualsTheSquareUpToRounding) {
  SKIP_WITHOUT(attention);
  const AttentionShape shape{2, 40, 2, 8};
  const Results square = Attend(*ops_, shape, memory());
  for (const int queries : {1, 7, 16, 20, 40}) {
    for (const int keys : {1, 9, 16, 20, 40}) {
      SCOPED_TRACE(testing::Message() << queries << " queries, " << keys << " keys");
      // In bfloat16 each block rounds y and the gradient of the queries.
      const float tolerance = Tolerance() * (ops_->activations() == DType::kFloat32 ? 1.0f : 4.0f);
      ExpectAllNear(AttendInBlocks(*ops_, shape, queries, keys, memory()), square, tolerance);
    }
  }
}

TEST_P(TransformerOpsTest, AttentionDoesNotDependOnLaterPositions) {
  SKIP_WITHOUT(attention);
  const AttentionShape shape{1, 40, 2, 8};
  const size_t row = 3 * 16;
  Floats values = Random(40 * row, 1);
  const auto output = [&] {
    const Tensor qkv(*device_, *stream_, values, ops_->activations()),
        y(*device_, *stream_, Floats(40 * 16), ops_->activations());
    const auto log_sum_exp = Put(Floats(2 * 40));
    ops_->families().attention->Forward(shape, qkv.span(), y.span(), log_sum_exp.span(), *stream_);
    return y.floats();
  };
  const Floats before = output();
  for (size_t i = 21 * row; i < values.size(); ++i) values[i] += 5;
  const Floats after = output();
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 21 * 16, after.begin()));
  EXPECT_NE(before, after);
}

TEST_P(TransformerOpsTest, AttentionToLargeScoresIsFinite) {
  SKIP_WITHOUT(attention);
  const AttentionShape shape{1, 70, 1, 4};
  Floats values(70 * 12, 1.0f);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 12 < 8 ? 100 * std::sin(float(i)) : float(i % 5);
  const Tensor qkv(*device_, *stream_, values, ops_->activations()),
      y(*device_, *stream_, Floats(70 * 4), ops_->activations()),
      dqkv(*device_, *stream_, Floats(70 * 12), ops_->activations());
  const auto log_sum_exp = Put(Floats(70));
  ops_->families().attention->Forward(shape, qkv.span(), y.span(), log_sum_exp.span(), *stream_);
  ops_->families().attention->Backward(shape, qkv.span(), y.span(), log_sum_exp.span(), y.span(), dqkv.span(),
                                       *stream_);
  for (const float value : y.floats()) ASSERT_TRUE(value >= 0 && value <= 4) << value;  // a mean of values
  for (const float value : dqkv.floats()) ASSERT_TRUE(std::isfinite(value));
}

TEST_P(TransformerOpsTest, EmbeddingsAgreeWithTheReference) {
  SKIP_WITHOUT(embedding);
  for (const EmbeddingShape& shape :
       {EmbeddingShape{0, 5, 4, 2}, EmbeddingShape{1, 1, 1, 1}, EmbeddingShape{12, 7, 33, 4},
        EmbeddingShape{30, 100, 16}, EmbeddingShape{12, 3, 33, 4, 2, 7},  // rows of a larger table
        EmbeddingShape{30, 40, 16, 0, 60, 100}}) {
    for (const bool add : {false, true}) {
      SCOPED_TRACE(testing::Message() << shape.count << " of " << shape.rows << " x " << shape.width);
      ExpectLikeTheReference([&](Ops& ops, const Memory& m) { return Embed(ops, shape, m, add); });
    }
  }
}

TEST_P(TransformerOpsTest, AnIndexOutsideTheTableIsAnErrorWithItsPosition) {
  SKIP_WITHOUT(embedding);
  for (const int32_t bad : {-1, 5, 1'000'000'000}) {
    const auto stream = device_->NewStream(StreamKind::kCompute, "bad index");
    const OnDevice<int32_t> indices(*device_, *stream, {4, bad, 0});
    const auto table = Put(Floats(5 * 2)), dtable = Put(Floats(5 * 2));
    const Tensor y(*device_, *stream, Floats(6), ops_->activations());
    EmbeddingOps& embedding = *ops_->families().embedding;
    embedding.Forward({3, 5, 2}, indices.data(), table.span(), {}, y.span(), *stream);
    const std::string what = absl::StrCat("index ", bad, " at position 1 is outside a table of 5 rows");
    EXPECT_TRUE(absl::StrContains(stream->Synchronize().message(), what)) << stream->Synchronize();
    const auto backward = device_->NewStream(StreamKind::kCompute, "bad index");
    embedding.Backward({3, 5, 2}, indices.data(), y.span(), dtable.span(), {}, true, *backward);
    EXPECT_TRUE(absl::StrContains(backward->Synchronize().message(), what)) << backward->Synchronize();
  }
}

TEST_P(TransformerOpsTest, LinearLayersWithGeluOrResidualsAgreeWithTheReference) {
  for (const int batch : {1, 5, 16}) {
    for (const auto& [inputs, outputs] : {std::pair{1, 1}, {3, 5}, {32, 128}, {17, 33}}) {
      for (const LinearCase& with : {LinearCase{Activation::kGelu, true, false},
                                     {Activation::kNone, false, true},
                                     {Activation::kNone, true, true}}) {
        SCOPED_TRACE(testing::Message() << batch << " x " << inputs << "-" << outputs << ", residual "
                                        << with.has_residual << ", bias " << with.has_bias);
        ExpectLikeTheReference(
            [&](Ops& ops, const Memory& m) { return RunLinear(ops, batch, inputs, outputs, with, m); });
      }
    }
  }
}

TEST_P(TransformerOpsTest, CrossEntropyOfManyClassesAgreesWithTheReference) {
  for (const int classes : {1, 7, 10, 15, 16, 73, 1000}) {
    // On GPUs, also more samples than partial sums, and counts that do not divide.
    const std::vector<int> batches = classes == 7 ? std::vector{3, 63, 64, 65, 1000} : std::vector{0, 1, 5};
    for (const int batch : batches) {
      SCOPED_TRACE(testing::Message() << batch << " x " << classes);
      std::vector<int32_t> labels(batch);
      for (int i = 0; i < batch; ++i) labels[i] = i == 2 ? kIgnoredLabel : i * 31 % classes;
      Floats losses, rights;  // computed in float32 for all types
      const auto run = [&](Ops& ops, const Memory& m) -> Results {
        const Tensor logits = m.PutActivations(size_t(batch) * classes, 1);
        const Tensor dlogits = m.ResultActivations(size_t(batch) * classes);
        const OnDevice<int32_t> there(m.device, m.stream, labels);
        const OnDevice<double> loss(m.device, m.stream, {0});
        const OnDevice<int64_t> correct(m.device, m.stream, {0});
        ops.families().loss->SoftmaxCrossEntropy(batch, classes, logits.span(), there.data(), dlogits.span(),
                                                 loss.data(), correct.data(), m.stream);
        losses.push_back(static_cast<float>(loss.Get()[0]));
        rights.push_back(static_cast<float>(correct.Get()[0]));
        return {dlogits.floats()};
      };
      ExpectLikeTheReference(run);
      ExpectNear({losses[0]}, {losses[1]});
      EXPECT_EQ(rights[0], rights[1]);
    }
  }
}

TEST_P(TransformerOpsTest, SameInputsGiveTheSameBits) {
  const auto other = Make();
  const Memory m = memory();
  const auto all = [&](Ops& ops) {
    Results results = RunLinear(ops, 9, 20, 40, {Activation::kGelu, true, false}, m);
    const auto append = [&](Results more) { results.insert(results.end(), more.begin(), more.end()); };
    if (ops.families().normalization != nullptr) append(LayerNorm(ops, {9, 77}, m, true));
    if (ops.families().attention != nullptr) append(Attend(ops, {3, 80, 3, 20}, m));
    if (ops.families().embedding != nullptr) append(Embed(ops, {50, 9, 21, 10}, m, true));
    return results;
  };
  const Results first = all(*ops_);
  EXPECT_EQ(all(*ops_), first);
  EXPECT_EQ(all(*other), first);
}

TEST(TransformerKernels, AttentionOfEveryInstructionSetAgreesWithTheReference) {
  const AttentionShape shape{1, 83, 2, 20};
  const size_t count = size_t{83} * 40;
  Floats qkv = Random(3 * count, 1), dy = Random(count, 2), y(count), log_sum_exp(2 * 83), dqkv(3 * count);
  const auto stream = MakeCpuDevice()->NewStream(StreamKind::kCompute, "reference");
  const auto ops = MakeReferenceOps();
  AttentionOps& reference = *ops->families().attention;
  reference.Forward(shape, ViewOf(qkv), ViewOf(y), ViewOf(log_sum_exp), *stream);
  reference.Backward(shape, ViewOf(qkv), ViewOf(y), ViewOf(log_sum_exp), ViewOf(dy), ViewOf(dqkv), *stream);
  const cpu::AttentionKernels* all[3];
  for (int set = cpu::SupportedAttentionKernels(all) - 1; set >= 0; --set) {
    SCOPED_TRACE(testing::Message() << "instruction set " << set);
    Floats y_here(count), log_sum_exp_here(2 * 83), dqkv_here(3 * count),
        scratch(cpu::AttentionScratch(83, 83, 20));
    const auto rows = [](float* data, int matrices, int which) {
      return cpu::AttentionRows{.data = data + 40 * which, .row = 40 * matrices, .sample = 0};
    };
    const cpu::Attention attention{.heads = 2,
                                   .head_size = 20,
                                   .is_bfloat16 = false,
                                   .queries = 83,
                                   .keys = 83,
                                   .q = rows(qkv.data(), 3, 0),
                                   .k = rows(qkv.data(), 3, 1),
                                   .v = rows(qkv.data(), 3, 2),
                                   .y = rows(y_here.data(), 1, 0),
                                   .log_sum_exp = log_sum_exp_here.data(),
                                   .log_sum_rows = 83,
                                   .dy = rows(dy.data(), 1, 0),
                                   .dq = rows(dqkv_here.data(), 3, 0),
                                   .dk = rows(dqkv_here.data(), 3, 1),
                                   .dv = rows(dqkv_here.data(), 3, 2)};
    for (const int head : {1, 0}) all[set]->forward(attention, head, scratch.data());
    for (const int head : {1, 0}) all[set]->backward(attention, head, scratch.data());
    ExpectAllNear({y_here, log_sum_exp_here, dqkv_here}, {y, log_sum_exp, dqkv});
  }
}

TEST(ElementwiseMath, ExpHasTheStatedError) {
  double worst = 0;
  for (double x = -87; x <= 88; x += 1e-3) {
    const float rounded = static_cast<float>(x);
    const double exact = std::exp(double{rounded});
    worst = std::max(worst, std::abs(elementwise::Exp(rounded) - exact) / exact);
  }
  EXPECT_LE(worst, 2.5e-7);
  EXPECT_EQ(elementwise::Exp(0), 1);
  EXPECT_EQ(elementwise::Exp(-1000), 0);
  EXPECT_EQ(elementwise::Exp(INFINITY), elementwise::Exp(88));
  EXPECT_TRUE(std::isnan(elementwise::Exp(std::nanf(""))));
}

TEST(ElementwiseMath, GeluAndItsSlopeHaveTheStatedError) {
  for (double x = -30; x <= 30; x += 1e-3) {
    const float u = static_cast<float>(x);
    ASSERT_NEAR(elementwise::Gelu(u), ReferenceGelu(u), 5e-7 * (1 + std::abs(u))) << u;
    ASSERT_NEAR(elementwise::GeluSlope(u), ReferenceGeluSlope(u), 5e-7 * (1 + std::abs(u))) << u;
  }
}

}  // namespace
}  // namespace psring
