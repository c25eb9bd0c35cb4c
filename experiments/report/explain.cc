#include "experiments/report/explain.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "experiments/compare/wrap.h"
#include "experiments/report/playback.h"

namespace psring {
namespace {

constexpr int kWidestTable = 110;

// "0+1", "0..3" for neighbours, "all", "-" for nothing.
std::string HoldingText(uint64_t holding, int ranks) {
  if (holding == 0) return "-";
  if (ranks > 1 && std::popcount(holding) == ranks) return "all";
  std::vector<std::string> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    if ((holding >> rank & 1) == 0) continue;
    int last = rank;
    while (last + 1 < ranks && (holding >> (last + 1) & 1) != 0) ++last;
    if (last - rank >= 2) {
      parts.push_back(absl::StrCat(rank, "..", last));
    } else {
      for (int r = rank; r <= last; ++r) parts.push_back(absl::StrCat(r));
    }
    rank = last;
  }
  return absl::StrJoin(parts, "+");
}

std::string ChunksText(const Hop& hop) {
  if (hop.chunk_count == 1) return absl::StrCat("chunk ", hop.first_chunk);
  return absl::StrCat("chunks ", hop.first_chunk, " to ", hop.first_chunk + hop.chunk_count - 1);
}

// A number of chunks as a part of the buffer: "0.75 M".
std::string Part(int64_t chunks, const Schedule& schedule) {
  return absl::StrFormat("%.4g M", static_cast<double>(chunks) / schedule.chunks());
}

std::string BytesText(int64_t chunks, const Schedule& schedule, int64_t bytes) {
  return absl::StrFormat("%.4g MB",
                         static_cast<double>(chunks) / schedule.chunks() * static_cast<double>(bytes) / 1e6);
}

// What one end says of a hop: what came, and what stands there after the round.
std::string HopText(const Hop& hop, const Playback& after, const Schedule& schedule) {
  std::vector<std::string> sums;
  for (int chunk = hop.first_chunk; chunk < hop.first_chunk + hop.chunk_count; ++chunk) {
    const std::string text = HoldingText(after.Holding(hop.to, chunk), schedule.ranks());
    if (sums.empty() || sums.back() != text) sums.push_back(text);
  }
  return absl::StrFormat("  %2d -> %-2d  %-12s  %s; then %s\n", hop.from, hop.to, ChunksText(hop),
                         hop.adds ? "added to what is there" : "put in its place", absl::StrJoin(sums, ", "));
}

std::string HoldingsTable(const Playback& playback, const Schedule& schedule) {
  std::vector<std::string> cells;
  size_t width = 3;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    for (int chunk = 0; chunk < schedule.chunks(); ++chunk) {
      cells.push_back(HoldingText(playback.Holding(rank, chunk), schedule.ranks()));
      width = std::max(width, cells.back().size());
    }
  }
  if (12 + schedule.chunks() * static_cast<int>(width + 2) > kWidestTable) return "";
  std::string text = "     chunk";
  for (int chunk = 0; chunk < schedule.chunks(); ++chunk) absl::StrAppendFormat(&text, "  %*d", width, chunk);
  text += "\n";
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    absl::StrAppendFormat(&text, "  rank %3d", rank);
    for (int chunk = 0; chunk < schedule.chunks(); ++chunk) {
      absl::StrAppendFormat(&text, "  %*s", width, cells[rank * schedule.chunks() + chunk]);
    }
    text += "\n";
  }
  return text;
}

// "each 0.25 M (1.049 MB)", or by rank where they differ.
std::string PerRank(const std::vector<int64_t>& chunks, const Schedule& schedule, int64_t bytes) {
  if (std::ranges::min(chunks) == std::ranges::max(chunks)) {
    return absl::StrCat("each ", Part(chunks.front(), schedule), " (",
                        BytesText(chunks.front(), schedule, bytes), ")");
  }
  std::vector<std::string> parts;
  for (size_t rank = 0; rank < chunks.size(); ++rank) {
    parts.push_back(absl::StrCat("rank ", rank, " ", Part(chunks[rank], schedule)));
  }
  return absl::StrJoin(parts, ", ");
}

std::string GoalText(Collective collective, int root) {
  switch (collective) {
    case Collective::kAllReduce:
      return "Every rank begins with its own values in all chunks and shall end with the sum over all ranks "
             "in all of them.";
    case Collective::kReduceScatter:
      return "Every rank begins with its own values in all chunks; rank r shall end with the sum over all "
             "ranks in chunk r. What its other chunks hold then counts for nothing.";
    case Collective::kAllGather:
      return "Rank r begins with its values in chunk r alone; every rank shall end with all chunks.";
    case Collective::kBroadcast:
      return absl::StrCat("Rank ", root, " begins with its values; every rank shall end with them.");
  }
  return "";
}

std::string TheoryText(const ExplainFlags& flags, const Schedule& schedule, Collective collective,
                       const PlayedTraffic& traffic) {
  std::string text =
      "\nWhat it costs, with a seconds for a message, B bytes/s of a link in each direction, g "
      "seconds to add a byte:\n";
  absl::StrAppendFormat(&text, "  counted from these rounds    %d a + %s/B + %s g\n", traffic.rounds,
                        Part(traffic.busiest_link, schedule), Part(traffic.most_added, schedule));
  const FormulaText* formula = collective == Collective::kAllReduce ? FormulaOf(flags.algorithm) : nullptr;
  if (formula != nullptr) {
    absl::StrAppendFormat(&text, "  theory                       %s + %s + %s\n", formula->latency,
                          formula->bytes, formula->adding);
  }
  text += Wrap(
      "a: rounds follow each other, so each costs a message's latency. B: in each round the busiest "
      "link decides. g: in each round the rank that adds most decides.",
      "  ");
  if (flags.algorithm == "double-binary-tree" && formula != nullptr) {
    text += Wrap(
        "Theory's row is for many segments that follow each other on the trees, which keeps all links "
        "busy; played in one piece, as here, the two trees cost more.",
        "  ");
  }
  if (flags.algorithm == "halving-doubling" && formula != nullptr &&
      !std::has_single_bit(unsigned(schedule.ranks()))) {
    text += Wrap(
        "Theory's row is for powers of two; the ranks beyond fold into others first, which costs "
        "about 2a + 2M/B more.",
        "  ");
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> Explain(const ExplainFlags& flags) {
  PSRING_ASSIGN_OR_RETURN(const Collective collective, ParseCollective(flags.collective));
  if (flags.shape.ranks > kMostPlayed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "explain takes at most ", kMostPlayed, " workers; nobody reads the rounds of ", flags.shape.ranks));
  }
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Schedule> schedule,
                          MakeSchedule(flags.algorithm, collective, flags.shape));
  const char* summary = "";
  for (const ScheduleRow& row : ScheduleRows()) {
    if (flags.algorithm == row.name) summary = row.summary;
  }
  Playback playback(*schedule, collective, flags.shape.root);
  std::string text =
      absl::StrFormat("%s %s, %d %s: %s\n\n", flags.algorithm, flags.collective, flags.shape.ranks,
                      flags.shape.ranks == 1 ? "worker" : "workers", summary);
  text +=
      Wrap(absl::StrFormat(
               "The buffer of M = %.4g MB is cut into %d %s. %s A sum is written as the ranks whose "
               "values are in it. All transfers of a round are under way together; what is sent is what "
               "stood there before the round.",
               static_cast<double>(flags.bytes) / 1e6, schedule->chunks(),
               schedule->chunks() == 1 ? "chunk" : "equal chunks", GoalText(collective, flags.shape.root)),
           "");
  if (playback.rounds() == 0) text += "\nOne rank has nothing to exchange: no rounds.\n";
  while (!playback.done()) {
    const int round = playback.next_round();
    const std::vector<Hop> hops = playback.Step();
    absl::StrAppendFormat(&text, "\nround %d of %d\n", round + 1, playback.rounds());
    for (const Hop& hop : hops) text += HopText(hop, playback, *schedule);
    absl::StrAppend(
        &text, HoldingsTable(playback, *schedule),
        Wrap(absl::StrCat("sent so far: ", PerRank(playback.traffic().sent, *schedule, flags.bytes)), "  "));
  }
  absl::StrAppend(&text, "\n",
                  playback.Fulfilled() ? "At the end every rank has what was promised.\n"
                                       : "At the end some rank does NOT have what was promised: a bug.\n");
  if (playback.rounds() > 0) {
    text +=
        Wrap(absl::StrCat("received: ", PerRank(playback.traffic().received, *schedule, flags.bytes)), "  ");
  }
  return text + TheoryText(flags, *schedule, collective, playback.traffic());
}

}  // namespace psring
