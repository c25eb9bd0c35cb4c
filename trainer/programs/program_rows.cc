#include "trainer/programs/program_rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/errors.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"

namespace psring {
namespace {

using Actions = std::vector<StepAction>;

void Add(Actions& actions, StepKind kind, int stage, int micro_batch) {
  actions.push_back({kind, stage, -1, micro_batch});
}

// Stage s is on rank s modulo `ranks`.
StepProgram Empty(const char* name, int ranks, int chunks, int micro_batches) {
  StepProgram program{name, ranks, micro_batches, {}, std::vector<Actions>(ranks)};
  for (int stage = 0; stage < ranks * chunks; ++stage) program.rank_of.push_back(stage % ranks);
  return program;
}

// Each micro-batch's backward follows its forward, so one micro-batch is in flight.
StepProgram SingleStage(int, int, int micro_batches) {
  StepProgram program = Empty("single_stage", 1, 1, micro_batches);
  for (int m = 0; m < micro_batches; ++m) {
    Add(program.actions[0], StepKind::kForward, 0, m);
    Add(program.actions[0], StepKind::kBackward, 0, m);
  }
  return program;
}

// All forwards, then all backwards (Huang et al. 2019).
StepProgram GPipe(int ranks, int, int micro_batches) {
  StepProgram program = Empty("gpipe", ranks, 1, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int m = 0; m < micro_batches; ++m) Add(program.actions[rank], StepKind::kForward, rank, m);
    for (int m = 0; m < micro_batches; ++m) Add(program.actions[rank], StepKind::kBackward, rank, m);
  }
  return program;
}

// Rank r runs p - 1 - r forwards ahead, then one forward and one backward in turn, so at most p - r
// micro-batches are in flight (PipeDream-Flush, Narayanan et al. 2021).
StepProgram OneForwardOneBackward(int ranks, int, int micro_batches) {
  StepProgram program = Empty("1f1b", ranks, 1, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    Actions& actions = program.actions[rank];
    const int ahead = std::min(ranks - 1 - rank, micro_batches);
    for (int m = 0; m < ahead; ++m) Add(actions, StepKind::kForward, rank, m);
    for (int m = 0; m < micro_batches; ++m) {
      if (m + ahead < micro_batches) Add(actions, StepKind::kForward, rank, m + ahead);
      Add(actions, StepKind::kBackward, rank, m);
    }
  }
  return program;
}

// 1F1B in which each stage updates its weights after every micro-batch, so that the gradient of stage s is
// p - 1 - s updates old (Narayanan et al. 2019).
StepProgram PipeDream(int ranks, int chunks, int micro_batches) {
  StepProgram program = OneForwardOneBackward(ranks, chunks, micro_batches);
  program.name = "pipedream";
  program.update_every = 1;
  return program;
}

// The same after p micro-batches, the fewest for which two versions suffice; all stages use the version
// before the newest, so that every gradient is one update old (PipeDream-2BW, Narayanan et al. 2021).
StepProgram PipeDream2Bw(int ranks, int chunks, int micro_batches) {
  StepProgram program = OneForwardOneBackward(ranks, chunks, micro_batches);
  program.name = "pipedream-2bw";
  program.update_every = ranks;
  program.one_late = true;
  return program;
}

// 1F1B whose weight gradients fill the bubble: on rank r they follow r micro-batches later, so that p
// micro-batches are in flight on every rank (ZB-H1, Qi et al. 2024).
StepProgram ZeroBubbleH1(int ranks, int, int micro_batches) {
  StepProgram program = Empty("zb-h1", ranks, 1, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    Actions& actions = program.actions[rank];
    const int ahead = std::min(ranks - 1 - rank, micro_batches);
    for (int m = 0; m < ahead; ++m) Add(actions, StepKind::kForward, rank, m);
    for (int m = 0; m < micro_batches + rank; ++m) {
      if (m + ahead < micro_batches) Add(actions, StepKind::kForward, rank, m + ahead);
      if (m < micro_batches) Add(actions, StepKind::kBackwardInput, rank, m);
      if (m >= rank) Add(actions, StepKind::kBackwardWeight, rank, m - rank);
    }
  }
  return program;
}

// A rank has every p-th stage, so that a micro-batch passes all ranks V times and the bubble is a V-th.
// Groups of at least p micro-batches pass one stage of a rank after the other (Narayanan et al. 2021). With
// fewer than p the next stage would wait for the one before; so a remainder is divided among the groups.
StepProgram Interleaved(int ranks, int chunks, int micro_batches) {
  StepProgram program = Empty("interleaved", ranks, chunks, micro_batches);
  const int groups = std::max(1, micro_batches / ranks);
  const int largest = (micro_batches + groups - 1) / groups;
  std::vector<std::pair<int, int>> order;  // chunk and micro-batch of the k-th forward
  for (int group = 0; group < groups; ++group) {
    const auto begin = [&](int of) { return static_cast<int>(int64_t{micro_batches} * of / groups); };
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int m = begin(group); m < begin(group + 1); ++m) order.emplace_back(chunk, m);
    }
  }
  const int total = static_cast<int>(order.size());
  for (int rank = 0; rank < ranks; ++rank) {
    Actions& actions = program.actions[rank];
    const int ahead = std::min(2 * (ranks - 1 - rank) + (chunks - 1) * largest, total);
    const auto forward = [&](int k) {
      Add(actions, StepKind::kForward, order[k].first * ranks + rank, order[k].second);
    };
    for (int k = 0; k < ahead; ++k) forward(k);
    for (int k = 0; k < total; ++k) {
      if (k + ahead < total) forward(k + ahead);
      Add(actions, StepKind::kBackward, (chunks - 1 - order[k].first) * ranks + rank, order[k].second);
    }
  }
  return program;
}

std::optional<double> NoBubble(int, int, int) { return 0; }
std::optional<double> FlushBubble(int ranks, int chunks, int micro_batches) {
  if (chunks > 1 && micro_batches % ranks != 0) return std::nullopt;
  return (ranks - 1.) / (static_cast<double>(chunks) * micro_batches + ranks - 1);
}
std::optional<double> ZeroBubbleH1Bubble(int ranks, int, int micro_batches) {
  if (micro_batches < ranks) return std::nullopt;
  return (ranks - 1.) / (3. * micro_batches + ranks - 1);
}

}  // namespace

const ProgramTable& ProgramRows() {
  static const auto& rows = *new ProgramTable{
      {.name = "single_stage",
       .summary = TrNoop("the whole model on one rank; each micro-batch's backward follows its forward"),
       .make = SingleStage,
       .one_rank = true,
       .bubble = NoBubble,
       .formula = "0"},
      {.name = "gpipe",
       .summary = TrNoop("all forwards, then all backwards; every micro-batch is in flight"),
       .make = GPipe,
       .bubble = FlushBubble,
       .formula = "(p-1)/(m+p-1)"},
      {.name = "1f1b",
       .summary = TrNoop("one forward and one backward in turn; rank r has p-r micro-batches in flight"),
       .make = OneForwardOneBackward,
       .bubble = FlushBubble,
       .formula = "(p-1)/(m+p-1)"},
      {.name = "interleaved",
       .summary = TrNoop("1F1B with V stages per rank: a V-th of the bubble, V times the messages"),
       .make = Interleaved,
       .takes_chunks = true,
       .bubble = FlushBubble,
       .formula = "(p-1)/(V m+p-1)"},
      {.name = "zb-h1",
       .summary =
           TrNoop("1F1B whose weight gradients fill the bubble; p micro-batches are in flight on every rank"),
       .make = ZeroBubbleH1,
       .divides_backward = true,
       .bubble = ZeroBubbleH1Bubble,
       .formula = "(p-1)/(3m+p-1)"},
      {.name = "pipedream",
       .summary = TrNoop("1F1B without a flush: each stage updates its weights after every micro-batch, and "
                         "rank r keeps p-r versions of them for those in flight"),
       .make = PipeDream,
       .asynchronous = true,
       .bubble = FlushBubble,
       .formula = "(p-1)/(m+p-1)"},
      {.name = "pipedream-2bw",
       .summary = TrNoop("1F1B without a flush: weights are updated after every p micro-batches, and those "
                         "in flight read the version before; each rank keeps two"),
       .make = PipeDream2Bw,
       .asynchronous = true,
       .bubble = FlushBubble,
       .formula = "(p-1)/(m+p-1)"}};
  return rows;
}

std::string NamedProgram::name() const {
  return row.takes_chunks ? absl::StrCat(row.name, ":", chunks) : row.name;
}

absl::StatusOr<NamedProgram> FindStepProgram(const std::string& name, const ProgramTable& rows) {
  constexpr int kMaxChunks = 1024;
  const std::string base = name.substr(0, name.find(':'));
  std::vector<std::string> known;
  for (const ProgramRow& row : rows) {
    known.push_back(row.display_name());
    if (base != row.name) continue;
    NamedProgram program{row};
    if (!row.takes_chunks) {
      if (name == base) return program;
      return InvalidArgument("program '", name, "': ", base, " takes no number");
    }
    if (name == base || !absl::SimpleAtoi(name.substr(base.size() + 1), &program.chunks) ||
        program.chunks < 1 || program.chunks > kMaxChunks) {
      return InvalidArgument("program '", name, "': ", known.back(), " needs a whole number from 1 to ",
                             kMaxChunks, " (V: stages per rank), as in ", base, ":2");
    }
    return program;
  }
  return UnknownName(TrNoop("program"), name, known);
}

absl::StatusOr<StepProgram> MakeStepProgram(const NamedProgram& program, int ranks, int micro_batches) {
  constexpr int64_t kMaxActions = int64_t{1} << 26;
  const char* const name = program.row.name;
  if (ranks < 1 || micro_batches < 1) {
    return InvalidArgument("program ", name, " needs at least 1 rank and 1 micro-batch");
  }
  if (program.row.one_rank && ranks > 1) {
    return InvalidArgument("program ", name, " is for 1 rank, not ", ranks);
  }
  if (int64_t{3} * program.chunks * ranks > kMaxActions / micro_batches) {
    return InvalidArgument("program ", name, " with ", ranks, " ranks and ", micro_batches,
                           " micro-batches has more than ", kMaxActions, " actions");
  }
  return program.row.make(ranks, program.chunks, micro_batches);
}

}  // namespace psring
