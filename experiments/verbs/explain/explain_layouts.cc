#include "experiments/verbs/explain/explain_layouts.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/costs/sequence_costs.h"
#include "experiments/costs/sharded_costs.h"
#include "experiments/layouts/layout_price.h"
#include "experiments/simulator/program_durations.h"
#include "experiments/verbs/explain/explain_program.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/program_rows.h"
#include "trainer/programs/walk_program.h"

namespace psring {
namespace {

constexpr int kUnits = 3, kMaxDrawn = 2;

// Columns of an action: half of an all-reduce takes as long as the forward pass of a unit.
int64_t ColumnsOf(const StrategyRow& strategy, StepKind kind) {
  return kind == StepKind::kForward ? 1 : kind == StepKind::kBackward ? 2 : HalvesOf(strategy, kind);
}

const char* LetterOf(StepKind kind) {
  return kind == StepKind::kForward          ? "F"
         : kind == StepKind::kBackward       ? "B"
         : kind == StepKind::kUnshard        ? "G"
         : kind == StepKind::kReduceGradient ? "R"
                                             : "U";
}

// A line for computation, one for gathering weights if there is any, and one for reducing and updating.
std::string DrawingOf(const StrategyRow& strategy, int replicas, int micro_batches) {
  const StepProgram compute =
      MakeStepProgram(FindStepProgram("single_stage").value(), 1, micro_batches).value();
  ModelCut cut{.units = {kUnits}, .bucket_ends = {std::vector<int>(replicas > 1 ? kUnits : 0)}};
  std::iota(cut.bucket_ends[0].rbegin(), cut.bucket_ends[0].rend(), 0);
  const StepProgram program = LowerProgram(compute, cut,
                                           {.reduce_always = strategy.shards_gradients,
                                            .shard_weights = strategy.shards_weights && replicas > 1})
                                  .value();
  GivenDurations durations([&](int, const StepAction& action) { return ColumnsOf(strategy, action.kind); });
  const Walk walk = WalkProgram(program, &durations).value();
  std::string text;
  for (const auto& [lane, name] : {std::pair(StepLane::kCompute, Tr("compute")),
                                   {StepLane::kGather, Tr("gather")},
                                   {StepLane::kReduce, Tr("reduce")}}) {
    text += TimelineOf(walk, 0, PadRight(name, 10), 3, [&, lane = lane](const StepAction& action) {
      return LaneOf(action.kind) == lane ? absl::StrCat(LetterOf(action.kind), action.unit) : "";
    });
  }
  return text;
}

std::string StateTable(const StrategyRow& strategy, int replicas) {
  std::string text = PadRight(Tr("bytes per parameter"), 40);
  for (const char* head : {TrNoop("weights"), TrNoop("gradients"), TrNoop("optimizer"), TrNoop("total")}) {
    text += PadLeft(Tr(head), 12);
  }
  text += "\n";
  for (const auto& [name, bytes] : {std::pair(std::string("float32"), AdamBytes::Float32()),
                                    {Tr("16 bits with float32 master weights"), AdamBytes::SixteenBits()}}) {
    const StateBytes state = ShardedStateOf(strategy, replicas, 1, bytes);
    absl::StrAppend(&text, "  ", PadRight(name, 38));
    for (const double value : {state.weights, state.gradients, state.optimizer, state.total()}) {
      text += PadLeft(ThreeDigits(value), 12);
    }
    text += "\n";
  }
  return text;
}

// What --dp_shard changes, with figures for two copies.
std::string Hybrid(const StrategyRow& strategy, int replicas, int micro_batches) {
  std::string text =
      Tr("Hybrid sharding, --dp_shard S: each S consecutive workers, such as those of a node, have one copy "
         "of the state, so that S takes the place of N above. Once per step each shard's gradients are added "
         "up over the C = N/S copies: a worker sends 2 (C-1)/C times 1/S of the model's size in addition, "
         "and only that between copies.");
  if (replicas >= 4 && replicas % 2 == 0) {
    const double part = strategy.SentPart(1, micro_batches, /*reshards=*/true, {replicas / 2, 2});
    text += Tr(" With S = $0 that is $1 in all.", replicas / 2,
               ThreeDigits(2 * (replicas - 1.) / replicas * part));
  }
  return Wrap(text, "");
}

}  // namespace

std::string ExplainShards(const StrategyRow& strategy, int replicas, int micro_batches) {
  const int drawn = std::min(micro_batches, kMaxDrawn);
  const auto sent = [&](const StrategyRow& of, int count) {
    return ThreeDigits(2 * (replicas - 1.) / replicas * of.SentPart(1, count));
  };
  const char* const formula = strategy.shards_weights     ? "3 M (N-1)/N"
                              : strategy.shards_gradients ? "(M+1) (N-1)/N"
                                                          : "2 (N-1)/N";
  std::string text = absl::StrCat(
      Wrap(
          Tr("A step of a model of $0 units with micro-batches: $1. A column is the time of a unit's forward "
             "pass (F); backward (B) takes two. G: an all-gather of the unit's weights; R: the reduction of "
             "its gradient; U: the update of its weights and, with zero1 and zero2, their all-gather.",
             kUnits, drawn),
          ""),
      "\n", DrawingOf(strategy, replicas, drawn), "\n",
      Wrap(Tr("What a worker keeps with Adam, without the buffers of units that are gathered or reduced:"),
           ""),
      StateTable(strategy, replicas), "\n",
      Wrap(Tr("A worker sends $0 times the model's size in a step: with N = $1 workers and M = $2 "
              "micro-batches $3; without shards $4.",
              formula, replicas, micro_batches, sent(strategy, micro_batches),
              sent(ShardingStrategies().front(), micro_batches)),
           ""));
  if (strategy.shards_weights) {
    text += Wrap(Tr("That is the most: units that two passes in a row need are not gathered again, and with "
                    "--reshard never each is gathered once a step."),
                 "");
  }
  if (strategy.shards_gradients) {
    text += Wrap(Tr("Fewer and larger micro-batches send less: with one, $0.", sent(strategy, 1)), "");
  }
  return text + Hybrid(strategy, replicas, micro_batches);
}

std::string ExplainTensorParallel(int ranks) {
  constexpr int kDrawnRanks = 4;
  std::string text = Wrap(
      absl::StrCat(kTensorParallel, ", ", ranks == 1 ? Tr("1 worker") : Tr("$0 workers", ranks), ": ",
                   Tr("tensor parallelism (Megatron-LM): every rank computes a part of each matrix product")),
      "");
  absl::StrAppend(
      &text, "\n",
      Wrap(
          Tr("Two matrices in a row are divided as a pair: the first, A, by columns, so that each rank "
             "computes some of the outputs from the whole input x; the second, B, by rows, so that each rank "
             "needs only these, and the sum over the ranks is the result y. Attention is divided by heads in "
             "the same way, and embedding and loss by the vocabulary."),
          ""),
      "\n");
  for (int rank = 0; rank < std::min(ranks, kDrawnRanks); ++rank) {
    const std::string part = absl::StrCat(rank + 1, "/", ranks);
    absl::StrAppend(&text, "  rank ", PadRight(absl::StrCat(rank), 4), "x -> A ",
                    PadRight(Tr("columns $0", part), 14), " -> GeLU -> B ", PadRight(Tr("rows $0", part), 12),
                    " -> + -> y\n");
  }
  if (ranks > kDrawnRanks) absl::StrAppend(&text, "  ...\n");
  const std::vector<double> widths = {3, 1, 4, 4};  // of queries, keys and values; output; MLP
  const TensorHalves halves = TensorHalvesOf(/*outputs=*/2, /*inputs=*/2, /*sequence_parallel=*/true);
  absl::StrAppend(
      &text, "\n",
      Wrap(
          Tr("A layer and micro-batch need $0 all-reduces (+) of the activation of b s h values, two in "
             "forward and two in backward, for b samples of s tokens and a width of h: a rank sends $0 * 2 "
             "(t-1)/t times as much, here $1. In forward nothing else runs meanwhile, so the ranks need fast "
             "links, as inside a node.",
             kAllReducesPerLayer, ThreeDigits(2. * kAllReducesPerLayer * (ranks - 1) / ranks)),
          ""),
      Wrap(Tr("A rank keeps 1/t of the matrices, of their gradients and of their optimizer state. Per token "
              "and layer it keeps 4 h + 12 h/t activations for backward, here $0 h instead of $1 h.",
              ThreeDigits(KeptValuesPerToken(1, widths, ranks)),
              ThreeDigits(KeptValuesPerToken(1, widths, 1))),
           ""),
      Wrap(
          Tr("With --sequence_parallel it keeps 1/t of all activations, here $0 h: each + leaves a rank only "
             "the sums of its own tokens, and the ranks gather all tokens before A, in backward once more. A "
             "layer then needs $1 halves of an all-reduce instead of $2.",
             ThreeDigits(KeptValuesPerToken(1, widths, ranks, /*sequence_parallel=*/true)),
             halves.forward + halves.backward, 2 * kAllReducesPerLayer),
          ""),
      Wrap(Tr("To see which layout it suits: psring predict --layouts auto"), ""));
  return text;
}

std::string ExplainContextParallel(int ranks) {
  constexpr int kDrawnRanks = 4;
  constexpr SequenceSpeed kExample = {.flops_per_s = 1e11, .bytes_per_s = 10e9 / 8};
  std::string text =
      Wrap(absl::StrCat(
               kContextParallel, ", ", ranks == 1 ? Tr("1 worker") : Tr("$0 workers", ranks), ": ",
               Tr("context parallelism: every rank has all weights, and some positions of each sequence")),
           "");
  absl::StrAppend(&text, "\n",
                  Wrap(Tr("A sequence is cut into 2 C chunks. Rank r has chunk r and, from the end, "
                          "chunk r (#), so that all ranks have as many pairs of a query and an earlier "
                          "key. Only attention needs other positions: in step i of C a rank computes its "
                          "queries' block with the keys and values of the rank i before it, while they "
                          "travel on (ring). Blocks are merged by the logarithms of their sums of "
                          "exponentials."),
                       ""),
                  "\n");
  for (int rank = 0; rank < std::min(ranks, kDrawnRanks); ++rank) {
    std::string chunks(2 * static_cast<size_t>(std::min(ranks, kDrawnRanks)), '.');
    chunks[static_cast<size_t>(rank)] = chunks[chunks.size() - 1 - static_cast<size_t>(rank)] = '#';
    if (ranks > kDrawnRanks) chunks.insert(chunks.size() / 2, " ... ");
    absl::StrAppend(&text, "  rank ", PadRight(absl::StrCat(rank), 4), chunks, "\n");
  }
  if (ranks > kDrawnRanks) absl::StrAppend(&text, "  ...\n");
  absl::StrAppend(
      &text, "\n",
      Wrap(Tr("With one chunk per rank (contiguous) all wait for the rank whose queries see most keys: "
              "attention has C/(2C-1) of the speed, here $0%.",
              absl::StrFormat("%.0f", 100 * ContiguousShare(ranks))),
           ""),
      Wrap(Tr("For a layer and micro-batch of b s h values, b samples of s tokens and a width of h, a "
              "rank sends 6 (C-1)/C times as much in forward and backward, here $0. With ulysses, two "
              "all-to-alls that give each rank all positions of its share of the heads, 8 (C-1)/C^2, here "
              "$1; but nothing else runs meanwhile, and C must divide the heads.",
              ThreeDigits(RingValues(ranks)), ThreeDigits(UlyssesValues(ranks))),
           ""),
      Wrap(Tr("Of F flop/s, links of W bytes/s and values of B bytes, computing hides the ring's "
              "messages from F B/W tokens per rank on: $0 for 100 Gflop/s and 10 Gbit/s in float32. Ring "
              "waits less than ulysses from (1 - 2/C) of that on, here $1 (derived).",
              ThreeDigits(RingHiddenFrom(kExample)), ThreeDigits(RingPaysFrom(ranks, kExample))),
           ""),
      Wrap(Tr("A rank keeps 1/C of the activations, and up to 10 h values per token of its own for the "
              "exchange, which all layers share. All D C ranks of D replicas add up gradients, and "
              "zero1, zero2 and fsdp shard over all of them."),
           ""));
  return text;
}

}  // namespace psring
