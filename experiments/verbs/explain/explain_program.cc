#include "experiments/verbs/explain/explain_program.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "experiments/page/playback.h"

namespace psring {
namespace {

constexpr int kWidest = 110;

// "F3": forward of micro-batch 3; with several stages per rank "F3b": of its second one.
std::string CellOf(const StepAction& action, const StepProgram& program) {
  const char* const letter = action.kind == StepKind::kForward         ? "F"
                             : action.kind == StepKind::kBackward      ? "B"
                             : action.kind == StepKind::kBackwardInput ? "I"
                                                                       : "W";
  const bool has_chunks = program.stages() > program.ranks;
  return absl::StrCat(
      letter, action.micro_batch,
      has_chunks ? std::string(1, static_cast<char>('a' + action.stage / program.ranks)) : "");
}

// A line for each rank, a column for each unit of time; empty if too wide.
std::string TimelinesOf(const StepProgram& program, const Walk& walk) {
  const int width = static_cast<int>(
      CellOf({StepKind::kForward, program.stages() - 1, 0, program.micro_batches - 1}, program).size() + 1);
  if (walk.end_ns > (kWidest - 10) / width || program.stages() > 26 * program.ranks) return "";
  std::string text;
  for (int rank = 0; rank < program.ranks; ++rank) {
    text += TimelineOf(walk, rank, absl::StrFormat("rank %-4d", rank), width,
                       [&](const StepAction& action) { return CellOf(action, program); });
  }
  return text + "\n";
}

// Of a program without a flush: how old gradients are, and the versions that are kept, by rank.
std::string TextOfVersions(const PlayedProgram& played) {
  const auto& [program, walk] = played;
  std::vector<std::string> staleness, kept;
  for (int stage = 0; stage < std::min(program.stages(), kMaxPlayed); ++stage) {
    int most = 0;
    for (int m = 0; m < program.micro_batches; ++m) most = std::max(most, walk.Staleness(program, stage, m));
    staleness.push_back(absl::StrCat(most));
    kept.push_back(absl::StrCat(walk.kept_versions[stage]));
  }
  const std::string dots = program.stages() > kMaxPlayed ? ", ..." : "";
  return Wrap(Tr("Weights are updated without a flush; micro-batches per update: $0, updates per step: $1. A "
                 "micro-batch's backward pass reads the version of the weights that its forward pass has "
                 "read. By rank, its gradient is at most $2 updates old, and $3 versions are kept. Staleness "
                 "in theory: $4, on rank r. The pipeline drains at the end of a step only.",
                 program.update_every, program.updates(), absl::StrCat(absl::StrJoin(staleness, ", "), dots),
                 absl::StrCat(absl::StrJoin(kept, ", "), dots), program.one_late ? "1" : "p-1-r"),
              "");
}

std::string TableOf(const PlayedProgram& played) {
  const auto& [program, walk] = played;
  const std::string heads[] = {Tr("rank"), Tr("in flight"), Tr("with receives"), Tr("messages sent"),
                               Tr("idle")};
  std::string text = " ";
  for (const std::string& head : heads) absl::StrAppend(&text, " ", PadLeft(head, 13));
  text += "\n";
  for (int rank = 0; rank < program.ranks; ++rank) {
    int with_receives = 0, sent = 0;
    for (int stage = rank; stage < program.stages(); stage += program.ranks) {
      with_receives += std::max(walk.receive_slots[stage], walk.peak_live[stage]);
    }
    for (const StepNode& node : walk.nodes[rank]) {
      sent += node.action.kind == StepKind::kSendActivation || node.action.kind == StepKind::kSendGradient;
    }
    const double computing = static_cast<double>(played.computing(rank));
    absl::StrAppendFormat(&text, "  %13d %13d %13d %13d %12.1f%%\n", rank, played.in_flight(rank),
                          with_receives, sent, 100 - 100 * computing / static_cast<double>(walk.end_ns));
  }
  return text + "\n";
}

}  // namespace

std::string TimelineOf(const Walk& walk, int rank, const std::string& name, int width,
                       const std::function<std::string(const StepAction&)>& cell) {
  std::vector<std::string> cells(static_cast<size_t>(walk.end_ns), ".");
  bool any = false;
  for (size_t i = 0; i < walk.nodes[rank].size(); ++i) {
    const std::string text = cell(walk.nodes[rank][i].action);
    if (text.empty()) continue;
    for (int64_t at = walk.times[rank][i].begin_ns; at < walk.times[rank][i].end_ns; ++at) {
      cells[static_cast<size_t>(at)] = text;
      any = true;
    }
  }
  if (!any) return "";
  std::string line = absl::StrCat("  ", name);
  for (const std::string& drawn : cells) line += PadRight(drawn, width);
  return absl::StrCat(line.substr(0, line.find_last_not_of(' ') + 1), "\n");
}

absl::StatusOr<std::string> ExplainProgram(const std::string& name, int ranks, int micro_batches,
                                           const ProgramTable& rows) {
  PSRING_ASSIGN_OR_RETURN(const NamedProgram named, FindStepProgram(name, rows));
  if (named.row.one_rank) ranks = 1;
  PSRING_ASSIGN_OR_RETURN(const PlayedProgram played, PlayProgram(named, ranks, micro_batches));

  std::string text =
      Wrap(absl::StrCat(name, ", ", ranks == 1 ? Tr("1 worker") : Tr("$0 workers", ranks), ", ",
                        Tr("micro-batches: $0", micro_batches), ": ", Tr(named.row.summary)),
           "");
  absl::StrAppend(
      &text, "\n",
      Wrap(Tr("A column is the time of one forward pass (F) of a stage. A backward pass (B) takes "
              "two: one for the gradient of its input (I), one for that of its weights (W). "
              "Messages take no time here."),
           ""),
      "\n", TimelinesOf(played.program, played.walk));
  if (ranks <= kMaxPlayed) text += TableOf(played);
  text += Wrap(Tr("Bubble, the part of the step in which a rank computes nothing: $0% on average.",
                  absl::StrFormat("%.1f", 100 * played.walk.Bubble())),
               "");
  if (!played.program.flushes()) text += TextOfVersions(played);
  if (named.row.bubble != nullptr) {
    const bool holds = named.row.bubble(ranks, named.chunks, micro_batches).has_value();
    text += Wrap(
        holds ? Tr("Formula: $0, with p ranks, m micro-batches and V stages per rank.", named.row.formula)
              : Tr("The formula $0 does not hold for these numbers.", named.row.formula),
        "");
  }
  return text;
}

}  // namespace psring
