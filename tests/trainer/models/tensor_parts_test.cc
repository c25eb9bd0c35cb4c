// The parts of a model that ranks have which divide its matrices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <type_traits>
#include <vector>

#include "absl/strings/match.h"
#include "common/kernels/sixteen_bits.h"
#include "common/ops/ops.h"
#include "tests/has.h"
#include "tests/ring_worker/groups/group_checks.h"
#include "tests/ring_worker/mesh.h"
#include "trainer/data/sources.h"
#include "trainer/layers/tensor_axis.h"
#include "trainer/layers/vocabulary_loss.h"
#include "trainer/models/model_stages.h"
#include "trainer/models/replayed_model.h"
#include "trainer/pipeline/model_part.h"

namespace psring {
namespace {

constexpr int kVocabulary = 11;  // no number of ranks divides it

class TensorParts : public testing::Test {
 protected:
  static TrainingOptions Options() {
    TrainingOptions options{.model = "gpt-nano"};
    options.layers = 2;
    options.width = 16;
    options.heads = 4;
    options.context = 8;
    return options;
  }
  std::unique_ptr<Model> Whole() { return *row_.make(TextSpec(8, kVocabulary), *ops_); }
  absl::StatusOr<std::unique_ptr<Model>> Part(const TensorPlace& place, int vocabulary = kVocabulary) {
    PSRING_ASSIGN_OR_RETURN(const ModelRow::Make make, MakerOfPart(row_, /*dropout=*/0, place));
    return make(TextSpec(8, vocabulary), *ops_);
  }
  absl::StatusOr<ModelPart> Divided(const TensorPlace& place, int position = 0,
                                    std::vector<size_t> cuts = {}) {
    const auto make = [&](const TensorPlace& at) {
      return at.ranks == 1 ? absl::StatusOr<std::unique_ptr<Model>>(Whole()) : Part(at);
    };
    return CutModel(make, cuts, {.position = position, .positions = static_cast<int>(cuts.size()) + 1},
                    place);
  }

  std::unique_ptr<Ops> ops_ = MakeOneDnnOps(/*threads=*/1);
  const ModelRow row_ = *ModelOf(Options());
};

TEST_F(TensorParts, HaveTheInitialWeightsOfTheWholeModel) {
  const std::vector<float> expected = Whole()->InitialWeights(7);
  for (const int ranks : {2, 4}) {
    std::vector<float> weights(expected.size());
    size_t elements = 0, largest = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const ModelPart part = Divided({.rank = rank, .ranks = ranks}).value();
      const std::vector<float> own = part.model->InitialWeights(7);
      const PositionPart& at = part.parts[part.rank];
      ASSERT_EQ(at.parameters, own.size());
      EXPECT_EQ(own.size(), rank > 0 ? largest : own.size())
          << "every rank has the space of the largest share";
      PutPart(at.of_parameters, own.data(), weights.data());
      std::vector<float> taken(own.size());
      TakePart(at.of_parameters, expected.data(), taken.data());
      EXPECT_EQ(taken, own);
      elements += own.size();
      largest = std::max(largest, own.size());
    }
    EXPECT_EQ(weights, expected) << ranks << " ranks";
    EXPECT_LT(static_cast<double>(largest), 1.25 * static_cast<double>(expected.size()) / ranks);
    EXPECT_LT(static_cast<double>(elements), 1.25 * static_cast<double>(expected.size()));
  }
}

TEST_F(TensorParts, OfStagesHaveTheInitialWeightsOfTheWholeModel) {
  const std::unique_ptr<Model> whole = Whole();
  const std::vector<float> expected = whole->InitialWeights(7);
  const std::vector<size_t> points = whole->CutPoints();
  std::vector<float> weights(expected.size());
  size_t shared = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const ModelPart part =
        Divided({.rank = rank % 2, .ranks = 2}, /*position=*/rank / 2, {points[points.size() / 2]}).value();
    EXPECT_EQ(part.rank, static_cast<size_t>(rank));
    ASSERT_EQ(part.parts.size(), 4);
    EXPECT_EQ(part.tied.size(), 1) << "the share of the words' vectors";
    EXPECT_TRUE(std::ranges::is_sorted(part.counted_elsewhere, {}, &ParameterRange::first));
    for (const ParameterRange& range : part.counted_elsewhere) shared += range.count;
    const std::vector<float> own = part.model->InitialWeights(7);
    PutPart(part.parts[part.rank].of_parameters, own.data(), weights.data());
  }
  EXPECT_EQ(weights, expected);
  size_t copied = 0;  // the norms, biases after sums and positions once; the words' vectors once more
  const ModelPart uncut = Divided({.rank = 0, .ranks = 2}).value();
  for (const Tensor& tensor : uncut.model->parameters().tensors()) {
    if (!tensor.is_part()) copied += tensor.count;
  }
  EXPECT_EQ(shared, copied + whole->parameters().tensors()[0].count);
}

TEST_F(TensorParts, TensorsThatAreNotDividedCountOnceInTheNorm) {
  const ModelPart first = Divided({.rank = 0, .ranks = 2}).value();
  EXPECT_TRUE(first.counted_elsewhere.empty());
  const ModelPart second = Divided({.rank = 1, .ranks = 2}).value();
  std::vector<size_t> counted;
  for (const ParameterRange& range : second.counted_elsewhere) counted.push_back(range.first);
  std::vector<size_t> expected;
  for (const Tensor& tensor : second.model->parameters().tensors()) {
    const bool is_divided =
        absl::StrContains(tensor.name, "wte") || absl::StrContains(tensor.name, "c_attn") ||
        absl::StrContains(tensor.name, "c_fc") || absl::StrContains(tensor.name, "c_proj.weight");
    EXPECT_EQ(tensor.is_part(), is_divided) << tensor.name;
    if (!is_divided) expected.push_back(tensor.first);
  }
  EXPECT_EQ(counted, expected);
}

TEST_F(TensorParts, ThoseThatCannotBeAreRejected) {
  EXPECT_THAT(Part({.rank = 0, .ranks = 4}, /*vocabulary=*/3).status(),
              Fails(absl::StatusCode::kInvalidArgument, "--tp 4: a vocabulary of 3 tokens"));
  EXPECT_THAT(MakerOfPart(**FindModel("cnn"), 0, {.rank = 0, .ranks = 2}).status(),
              Fails(absl::StatusCode::kInvalidArgument, "cnn cannot be divided"));
}

TEST(TensorPlace, SharesCoverEverythingOnce) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int count : {7, 8, 65, 50257}) {
      int next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const TensorPlace::Share share = TensorPlace{.rank = rank, .ranks = ranks}.ShareOf(count);
        EXPECT_EQ(share.first, next);
        EXPECT_LE(std::abs(share.count - count / ranks), 1);
        next += share.count;
      }
      EXPECT_EQ(next, count);
    }
  }
}

// A column part of [3][4] and a row part of [2][3][2].
TEST(PartOf, FindsTheElementsOfAPart) {
  ParameterLayout whole(/*alignment=*/1), part(/*alignment=*/1);
  whole.Add("columns", {3, 4});
  whole.Add("rows", {6, 2});
  part.Add("columns", {3, 2}, {}, {.outer = 3, .first = 1, .count = 2, .whole = 4});
  part.Add("rows", {2, 2}, {}, {.outer = 2, .first = 2, .count = 1, .whole = 3});
  const LayoutPart ranges = PartOf(whole.tensors(), part.tensors()).value();
  std::vector<float> values(whole.count()), own(part.count());
  std::iota(values.begin(), values.end(), 0.0f);
  TakePart(ranges, values.data(), own.data());
  EXPECT_EQ(own, (std::vector<float>{1, 2, 5, 6, 9, 10, 12 + 4, 12 + 5, 12 + 10, 12 + 11}));
  whole.Add("other", {4});
  part.Add("other", {2}, {}, {.outer = 1, .first = 0, .count = 2, .whole = 5});
  EXPECT_THAT(PartOf(whole.tensors(), part.tensors()).status(),
              Fails(absl::StatusCode::kInvalidArgument, "tensor other"));
}

TEST_F(TensorParts, RowsThatRanksDoNotDivideAreRejected) {
  TrainingOptions options = Options();
  options.context = 6;
  const ModelRow row = *ModelOf(options);
  const auto status = [&](int ranks) {
    const auto make = MakerOfPart(row, /*dropout=*/.1, {.rank = 0, .ranks = ranks, .divides_rows = true});
    return (*make)(TextSpec(6, kVocabulary), *ops_).status();
  };
  EXPECT_EQ(status(2), absl::OkStatus());
  EXPECT_THAT(status(4), Fails(absl::StatusCode::kInvalidArgument,
                               "--sequence_parallel: 4 ranks do not divide a context of 6 tokens"));
}

// Between the layers that divide matrices, a rank keeps its own rows, and also sends these to another stage.
TEST_F(TensorParts, ThatDivideRowsKeepLess) {
  const auto bytes = [&](const TensorPlace& place) {
    const auto model = Part(place).value();
    return model->NewActivations(/*max_batch=*/4, Keep::kAll, HostDevice()).value().bytes();
  };
  const TensorPlace sums{.rank = 1, .ranks = 4};
  TensorPlace parts = sums;
  parts.divides_rows = true;
  EXPECT_LT(static_cast<double>(bytes(parts)), .6 * static_cast<double>(bytes(sums)));
  const auto whole = Part(sums).value(), own = Part(parts).value();
  EXPECT_EQ(whole->PieceBytes(4), 0);
  EXPECT_EQ(own->PieceBytes(4), 2 * 4 * 8 * 16 * sizeof(float)) << "two times all rows of a batch";
  ASSERT_EQ(own->CutPoints(), whole->CutPoints());
  for (const size_t layer : own->CutPoints()) {
    EXPECT_EQ(4 * own->BoundaryElements(layer), whole->BoundaryElements(layer));
  }
}

struct LossOfRows {
  double loss = 0;
  int64_t correct = 0;
};

// Of `ranks` that divide the classes, expects the loss of all classes, which it returns, and its gradient:
// elements may differ by this part of theirs.
template <typename T>
LossOfRows ExpectLossOfAllClasses(int ranks, const std::vector<T>& logits, const std::vector<int32_t>& labels,
                                  float tolerance) {
  constexpr DType kType = std::is_same_v<T, float> ? DType::kFloat32 : DType::kBFloat16;
  const int rows = static_cast<int>(labels.size());
  const auto ops = MakeOneDnnOps(/*threads=*/1, kType);
  const auto of_all = HostDevice().NewStream(StreamKind::kCompute, "test");
  std::vector<T> gradient = logits;
  LossOfRows expected;
  const Span span{gradient.data(), gradient.size(), kType};
  ops->families().loss->SoftmaxCrossEntropy(rows, kVocabulary, span, labels.data(), span, &expected.loss,
                                            &expected.correct, *of_all);
  EXPECT_EQ(of_all->Synchronize(), absl::OkStatus());
  ExpectGroups(ranks, {}, [&](ProcessGroup& group, Stream& stream) -> absl::Status {
    TensorAxis axis(group, HostDevice());
    const TensorPlace place{.rank = group.rank(), .ranks = ranks, .axis = &axis};
    const auto [first, count] = place.ShareOf(kVocabulary);
    std::vector<T> own;
    for (int row = 0; row < rows; ++row) {
      const auto begin = logits.begin() + row * kVocabulary + first;
      own.insert(own.end(), begin, begin + count);
    }
    VocabularyLoss loss(place, kVocabulary);
    LossOfRows result;
    PSRING_RETURN_IF_ERROR(loss.Run(rows, {own.data(), own.size(), kType}, labels.data(), &result.loss,
                                    &result.correct, stream));
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    EXPECT_NEAR(result.loss, expected.loss, 1e-5 * expected.loss);
    EXPECT_EQ(result.correct, expected.correct);
    for (int row = 0; row < rows; ++row) {
      for (int c = 0; c < count; ++c) {
        const float wanted = elementwise::Load(gradient[static_cast<size_t>(row * kVocabulary + first + c)]);
        EXPECT_NEAR(elementwise::Load(own[static_cast<size_t>(row * count + c)]), wanted,
                    tolerance * std::abs(wanted) + 1e-6)
            << row << " " << c;
      }
    }
    const TensorAxis::Times times = axis.Take();
    EXPECT_EQ(times.waits.size(), 2);
    EXPECT_EQ(times.busy, times.waits);
    return absl::OkStatus();
  });
  return expected;
}

// Of some rows the highest logit occurs several times, on one rank or on several.
TEST(VocabularyLoss, IsThatOfAllClassesOnEveryRank) {
  constexpr int kRows = 40;
  std::vector<float> logits;
  std::vector<int32_t> labels;
  for (int row = 0; row < kRows; ++row) {
    for (int c = 0; c < kVocabulary; ++c) logits.push_back(float((row * 7 + c * 5) % 6) * 3 - 8);
    labels.push_back(row % 9 == 0 ? kIgnoredLabel : (row * 3) % kVocabulary);
  }
  for (const int ranks : {2, 3, 4}) {
    const LossOfRows expected = ExpectLossOfAllClasses(ranks, logits, labels, /*tolerance=*/0);
    EXPECT_GT(expected.correct, 0);
    EXPECT_LT(expected.correct, kRows / 2);
  }
}

// Logits and gradients are rounded once, as those of all classes.
TEST(VocabularyLoss, Of16BitsIsThatOfAllClasses) {
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no bfloat16 on this processor";
  using Half = elementwise::BFloat16;
  std::vector<Half> logits;
  std::vector<int32_t> labels;
  for (int row = 0; row < 12; ++row) {
    // The label's probability is close to 1 in some rows, where its gradient has few of the bits.
    for (int c = 0; c < kVocabulary; ++c) {
      logits.push_back(
          elementwise::Store<Half>(c == row % kVocabulary ? 3.0f + float(row) : .25f * float(c)));
    }
    labels.push_back(row == 5 ? kIgnoredLabel : row % kVocabulary);
  }
  (void)ExpectLossOfAllClasses(2, logits, labels, /*tolerance=*/1.0f / 128);
}

TEST(VocabularyLoss, ALabelThatNoRankHasIsAnError) {
  const auto statuses = RunGroups(2, {}, [](ProcessGroup& group, Stream& stream) {
    TensorAxis axis(group, HostDevice());
    const TensorPlace place{.rank = group.rank(), .ranks = 2, .axis = &axis};
    std::vector<float> own(static_cast<size_t>(place.ShareOf(kVocabulary).count));
    const int32_t label = kVocabulary;
    LossOfRows result;
    VocabularyLoss loss(place, kVocabulary);
    const absl::Status run =
        loss.Run(1, {own.data(), own.size()}, &label, &result.loss, &result.correct, stream);
    return run.ok() ? stream.Synchronize() : run;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, "label 11 of row 0 is none of 11 classes"));
  }
}

TEST(TensorAxis, GathersOwnPartsAndAddsThemUp) {
  constexpr int kRanks = 3;
  constexpr size_t kOwn = 500;
  ExpectGroups(kRanks, {}, [](ProcessGroup& group, Stream& stream) -> absl::Status {
    TensorAxis axis(group, HostDevice());
    EXPECT_EQ(axis.reserved_bytes(), 0);
    const size_t bytes = TensorAxis::kPieces * 6016;  // a multiple of 64 from 1500 floats on
    PSRING_RETURN_IF_ERROR(axis.Reserve(bytes));
    EXPECT_EQ(axis.reserved_bytes(), TensorAxis::ReservedBytes(bytes));
    const Span all = axis.Piece(0, kRanks * kOwn, DType::kFloat32),
               other = axis.Piece(1, kRanks * kOwn, DType::kFloat32);
    EXPECT_EQ(static_cast<std::byte*>(all.data) + bytes / 2, static_cast<std::byte*>(other.data));
    const std::vector<float> own(kOwn, static_cast<float>(group.rank() + 1));
    std::vector<float> sums(kOwn), later(kOwn);
    PSRING_RETURN_IF_ERROR(axis.Gather({own.data(), kOwn}, all, stream));
    PSRING_RETURN_IF_ERROR(axis.SumOwn(all, {sums.data(), kOwn}, stream));
    PSRING_RETURN_IF_ERROR(axis.BeginGather({own.data(), kOwn}, other, stream));
    axis.Finish(stream);
    PSRING_RETURN_IF_ERROR(axis.BeginSumOwn(other, {later.data(), kOwn}, stream));
    axis.Finish(stream);
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    for (size_t i = 0; i < kRanks * kOwn; ++i) {
      EXPECT_EQ(all.floats()[i], static_cast<float>(i / kOwn + 1));
      EXPECT_EQ(other.floats()[i], all.floats()[i]);
    }
    EXPECT_EQ(sums, std::vector<float>(kOwn, static_cast<float>(kRanks * (group.rank() + 1))));
    EXPECT_EQ(later, sums);
    EXPECT_EQ(axis.reserved_bytes(), TensorAxis::ReservedBytes(bytes)) << "sums needed no more";
    const TensorAxis::Times times = axis.Take();
    EXPECT_EQ(times.waits.size(), 4);
    EXPECT_EQ(times.busy.size(), 6);
    return absl::OkStatus();
  });
}

TEST(TensorPlace, PartsOfABatchCoverItsRowsOnce) {
  const TensorPlace whole{.rank = 1, .ranks = 2}, part{.rank = 1, .ranks = 2, .divides_rows = true};
  EXPECT_EQ(whole.OwnRows(8), 8);
  EXPECT_EQ(whole.FirstRow(24), 0);
  EXPECT_EQ(part.OwnRows(8), 4);
  EXPECT_EQ(part.FirstRow(3 * 4), 12) << "in the middle of the second of three samples";
}

TEST(TensorAxis, AddsUpWhileTheStreamComputes) {
  ExpectGroups(3, {}, [](ProcessGroup& group, Stream& stream) -> absl::Status {
    TensorAxis axis(group, HostDevice());
    std::vector<float> values(1000, static_cast<float>(group.rank() + 1)), other(10, 2.0f);
    PSRING_RETURN_IF_ERROR(axis.BeginSum({values.data(), values.size()}, stream));
    float computed = 0;
    stream.Run([&computed] {
      computed = 1;
      return absl::OkStatus();
    });
    axis.Finish(stream);
    PSRING_RETURN_IF_ERROR(axis.Highest({other.data(), other.size()}, stream));
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    EXPECT_EQ(values, std::vector<float>(1000, 6.0f));
    EXPECT_EQ(other, std::vector<float>(10, 2.0f));
    EXPECT_EQ(computed, 1);
    const TensorAxis::Times times = axis.Take();
    EXPECT_EQ(times.busy.size(), 3);  // also the two waits
    for (const auto& [begin_ns, end_ns] : times.busy) EXPECT_LE(begin_ns, end_ns);
    EXPECT_TRUE(axis.Take().busy.empty());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace psring
