#include "experiments/verbs/explain/explain.h"

#include <algorithm>
#include <bit>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/cli/wrap.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"
#include "experiments/page/glossary.h"
#include "experiments/page/playback.h"

namespace psring {
namespace {

constexpr int kWidestTable = 110;

// `chunks` as a share of the buffer of M bytes: "0.75 M".
std::string Part(int64_t chunks, const Schedule& schedule) {
  return absl::StrFormat("%.4g M", static_cast<double>(chunks) / schedule.chunks());
}

std::string BytesText(int64_t chunks, const Schedule& schedule, int64_t bytes) {
  return absl::StrFormat("%.4g MB",
                         static_cast<double>(chunks) / schedule.chunks() * static_cast<double>(bytes) / 1e6);
}

// Explains one schedule.
class Explanation {
 public:
  Explanation(const ExplainFlags& flags, const ScheduleRow& row, const Schedule& schedule,
              Collective collective)
      : flags_(flags), row_(row), schedule_(schedule), collective_(collective) {}

  std::string Text() const {
    Playback playback(schedule_, collective_, flags_.shape.root);
    std::string text = absl::StrCat(
        flags_.algorithm, " ", flags_.collective, ", ",
        flags_.shape.ranks == 1 ? Tr("1 worker") : Tr("$0 workers", flags_.shape.ranks),
        // The summary is about sums, if the schedule makes any.
        collective_ == Collective::kAllToAll && row_.cost != nullptr ? ""
                                                                     : absl::StrCat(": ", Tr(row_.summary)),
        "\n\n");
    text +=
        Wrap(Tr("The buffer of M = $0 MB is divided into $1. $2 A sum is written as the ranks "
                "whose values it contains. All transfers of a round run at the same time and send "
                "the values as they were before the round.",
                absl::StrFormat("%.4g", static_cast<double>(flags_.bytes) / 1e6),
                schedule_.chunks() == 1 ? Tr("1 chunk") : Tr("$0 equal chunks", schedule_.chunks()), Goal()),
             "");
    if (playback.rounds() == 0) {
      absl::StrAppend(&text, "\n", Tr("A single rank has nothing to exchange, so there are no rounds."),
                      "\n");
    }
    while (!playback.done()) {
      const int round = playback.next_round();
      const std::vector<Hop> hops = playback.Step();
      absl::StrAppend(&text, "\n", Tr("round $0 of $1", round + 1, playback.rounds()), "\n");
      for (const Hop& hop : hops) text += HopText(hop, playback);
      absl::StrAppend(&text, HoldingsTable(playback),
                      Wrap(Tr("sent so far: $0", PerRank(playback.traffic().sent)), "  "));
    }
    absl::StrAppend(
        &text, "\n",
        playback.Fulfilled()
            ? Tr("At the end every rank has the required result.")
            : Tr("At the end at least one rank does NOT have the required result. This is a bug."),
        "\n");
    if (playback.rounds() > 0) text += Wrap(Tr("received: $0", PerRank(playback.traffic().received)), "  ");
    return text + TheoryText(playback.traffic());
  }

 private:
  std::string Goal() const {
    const std::map<Collective, const char*> goals = {
        {Collective::kAllReduce, TrNoop("Every rank starts with its own values in all chunks and must end "
                                        "with the sum over all ranks in every chunk.")},
        {Collective::kReduceScatter,
         TrNoop("Every rank starts with its own values in all chunks; rank r must end with the sum over all "
                "ranks in chunk r. Its other chunks are then unspecified.")},
        {Collective::kAllGather,
         TrNoop("Rank r starts with only chunk r; every rank must end with all chunks.")},
        {Collective::kBroadcast, TrNoop("Only rank $0 starts with values; every rank must end with them.")},
        {Collective::kAllToAll,
         TrNoop("A rank's chunk c starts with its values for the rank c places after it, and must end with "
                "the values for it from the rank c places before it; after the last rank comes rank 0.")}};
    return Tr(goals.at(collective_), flags_.shape.root);
  }

  // "0+1", "0..3" for consecutive ranks, "all", "-" for none.
  std::string HoldingText(uint64_t holding) const {
    const int ranks = schedule_.ranks();
    if (holding == 0) return "-";
    if (ranks > 1 && std::popcount(holding) == ranks) return Tr("all");
    std::vector<std::string> parts;
    for (int rank = 0; rank < ranks; ++rank) {
      if ((holding >> rank & 1) == 0) continue;
      int last = rank;
      while (last + 1 < ranks && (holding >> (last + 1) & 1) != 0) ++last;
      if (last > rank) {
        parts.push_back(absl::StrCat(rank, last == rank + 1 ? "+" : "..", last));
      } else {
        parts.push_back(absl::StrCat(rank));
      }
      rank = last;
    }
    return absl::StrJoin(parts, "+");
  }

  // Describes a hop: the data received, and the content of the receiver's chunk after the round.
  std::string HopText(const Hop& hop, const Playback& after) const {
    std::vector<std::string> sums;
    for (int chunk = hop.first_chunk; chunk < hop.first_chunk + hop.chunk_count; ++chunk) {
      const std::string text = HoldingText(after.Holding(hop.to, chunk));
      if (sums.empty() || sums.back() != text) sums.push_back(text);
    }
    const std::string chunks =
        hop.chunk_count == 1 ? Tr("chunk $0", hop.first_chunk)
                             : Tr("chunks $0 to $1", hop.first_chunk, hop.first_chunk + hop.chunk_count - 1);
    return absl::StrFormat(
        "  %2d -> %-2d  %s  %s\n", hop.from, hop.to, PadRight(chunks, 12),
        Tr(hop.adds ? TrNoop("added; the sum is now $0") : TrNoop("replaces the value; it is now $0"),
           absl::StrJoin(sums, ", ")));
  }

  std::string HoldingsTable(const Playback& playback) const {
    std::vector<std::string> cells;
    size_t width = 3;
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      for (int chunk = 0; chunk < schedule_.chunks(); ++chunk) {
        cells.push_back(HoldingText(playback.Holding(rank, chunk)));
        width = std::max(width, TextColumns(cells.back()));
      }
    }
    if (12 + schedule_.chunks() * static_cast<int>(width + 2) > kWidestTable) return "";
    std::string text = PadLeft(Tr("chunk"), 10);
    for (int chunk = 0; chunk < schedule_.chunks(); ++chunk)
      absl::StrAppendFormat(&text, "  %*d", width, chunk);
    text += "\n";
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      absl::StrAppendFormat(&text, "  rank %3d", rank);
      for (int chunk = 0; chunk < schedule_.chunks(); ++chunk) {
        absl::StrAppend(&text, "  ", PadLeft(cells[rank * schedule_.chunks() + chunk], width));
      }
      text += "\n";
    }
    return text;
  }

  // "each 0.25 M (1.049 MB)", or a list by rank if they differ.
  std::string PerRank(const std::vector<int64_t>& chunks) const {
    if (std::ranges::min(chunks) == std::ranges::max(chunks)) {
      return Tr("each $0 ($1)", Part(chunks.front(), schedule_),
                BytesText(chunks.front(), schedule_, flags_.bytes));
    }
    std::vector<std::string> parts;
    for (size_t rank = 0; rank < chunks.size(); ++rank) {
      parts.push_back(absl::StrCat("rank ", rank, " ", Part(chunks[rank], schedule_)));
    }
    return absl::StrJoin(parts, ", ");
  }

  std::string TheoryText(const PlayedTraffic& traffic) const {
    std::string text = absl::StrCat("\n",
                                    Tr("Cost, with a seconds per message, B bytes/s per link and "
                                       "direction, and g seconds to add a byte:"),
                                    "\n");
    const size_t wide = 27;
    absl::StrAppend(&text, "  ", PadRight(Tr("counted in these rounds"), wide), "  ", traffic.rounds, " a + ",
                    Part(traffic.busiest_link, schedule_), "/B + ", Part(traffic.most_added, schedule_),
                    " g\n");
    const auto cost_of = collective_ == Collective::kAllReduce  ? row_.cost
                         : collective_ == Collective::kAllToAll ? row_.exchange_cost
                                                                : nullptr;
    if (cost_of == nullptr) {
      return text + Wrap(Tr("a: one message latency per round. B: the bytes on the busiest link of each "
                            "round. g: the bytes added by the rank that adds most in each round."),
                         "  ");
    }
    const ScheduleCost cost = cost_of(schedule_.ranks(), static_cast<double>(flags_.bytes));
    absl::StrAppend(
        &text, "  ", PadRight(Tr("theory"), wide), "  ", cost.latency, " + ", cost.bytes,
        *cost.adding == 0 ? "" : " + ", cost.adding, "\n",
        Wrap(Tr("a: one message latency per round. B: the bytes on the busiest link of each round. g: "
                "the bytes added by the rank that adds most in each round."),
             "  "));
    return *cost.note == 0 ? text : text + Wrap(Tr(cost.note), "  ");
  }

  const ExplainFlags& flags_;
  const ScheduleRow& row_;
  const Schedule& schedule_;
  const Collective collective_;
};

// An entry of the glossary.
std::string EntryOf(const Word& word) {
  constexpr size_t kColumn = 12;
  const std::string name = word.word;
  const bool fits = name.size() < kColumn;
  return absl::StrCat(fits ? "" : name + "\n", Wrap(Tr(word.meaning), PadRight(fits ? name : "", kColumn)));
}

}  // namespace

absl::StatusOr<std::string> Explain(const ExplainFlags& flags, const ScheduleTable& rows) {
  PSRING_ASSIGN_OR_RETURN(const Collective collective, ParseCollective(flags.collective));
  if (flags.shape.ranks > kMaxPlayed) {
    return absl::InvalidArgumentError(
        Tr("explain supports at most $0 workers, not $1", kMaxPlayed, flags.shape.ranks));
  }
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Schedule> schedule,
                          MakeSchedule(flags.algorithm, collective, flags.shape, rows));
  return Explanation(flags, *FindSchedule(flags.algorithm, rows), *schedule, collective).Text();
}

absl::StatusOr<std::string> ExplainStep(const StrategyRow& strategy, int workers) {
  if (strategy.number_below_workers && strategy.number >= workers) {
    return absl::InvalidArgumentError(Tr("$0 needs more than $1 workers ($2: $3); set --workers",
                                         strategy.name, strategy.number, strategy.number_letter,
                                         Tr(strategy.number_meaning)));
  }
  const bool one_process = strategy.single_process && !strategy.replicates;
  const int count = one_process ? 1 : workers;
  const bool has_schedule = strategy.uses_group && FindSchedule(strategy.algorithm) != nullptr;
  std::vector<std::string> sentences = {
      Tr(strategy.replicates ? TrNoop("Device 0 sends the weights and a share of the inputs to the other "
                                      "replicas, and all compute.")
         : one_process       ? TrNoop("The process computes the gradient of its samples.")
                             : TrNoop("Each worker computes the gradient of its own samples."))};
  const auto add = [&](const char* english, const auto&... values) {
    sentences.push_back(Tr(english, values...));
  };
  if (strategy.replicates) add(TrNoop("Device 0 receives all gradients and adds them."));
  const bool is_hybrid = strategy.has_only_rows_on_servers();
  if (is_hybrid) {
    sentences.insert(sentences.begin(), Tr("Each worker pulls the rows of the tables that its samples look "
                                           "up; row r is on server r modulo S."));
    add(TrNoop("The workers exchange each bucket of the gradient of the dense parameters, those outside of "
               "the tables, as soon as backward has finished it; all end with the sum ($0), make the same "
               "update, and keep equal weights."),
        absl::StrCat(strategy.backend, ", ", strategy.algorithm));
    add(TrNoop("Each worker pushes the gradients of its rows to the servers, meanwhile."));
    add(TrNoop("A server adds the gradients of all $0 workers row by row, in the order of workers, then "
               "updates these rows once. The next pull waits for that."),
        count);
  } else if (strategy.uses_group) {
    add(TrNoop("The workers exchange each bucket as soon as backward has finished it; all end with the sum "
               "($0)."),
        absl::StrCat(strategy.backend, ", ", strategy.algorithm));
    add(TrNoop("All workers make the same update, so their weights stay equal."));
  }
  if (strategy.uses_servers && !is_hybrid) {
    add(TrNoop(
        "Each worker pushes each bucket of its gradient to the server as soon as backward has finished it."));
    if (strategy.drops_gradients) {
      add(TrNoop("The server adds the first $0 gradients of a step and updates the weights once; it drops "
                 "the last $1."),
          count - strategy.number, strategy.number);
    } else if (strategy.synchronous) {
      add(TrNoop("The server adds the gradients of all $0 workers, then updates the weights once."), count);
    } else {
      add(TrNoop(
          "The server updates the weights with each gradient as it arrives, without waiting for other "
          "workers. The gradient is stale: other updates came between reading the weights and applying it."));
      if (strategy.number > 0)
        add(TrNoop("A worker that is $0 steps ahead of the slowest waits for it."), strategy.number);
    }
    add(TrNoop("The worker pulls the new weights and begins its next step with them."));
  }
  if (!strategy.communicates()) {
    add(strategy.single_process
            ? TrNoop("It updates the weights.")
            : TrNoop("Each worker updates its own weights with its own gradient, so the replicas diverge."));
  }
  if (!strategy.step.empty()) {
    sentences.clear();
    for (const std::string& sentence : strategy.step) sentences.push_back(Tr(sentence));
  }

  std::string text =
      absl::StrCat(Wrap(absl::StrCat(strategy.name, ": ", strategy.summary), ""), "\n",
                   Tr("One step with $0:", count == 1 ? Tr("1 worker") : Tr("$0 workers", count)), "\n");
  for (size_t i = 0; i < sentences.size(); ++i) text += Wrap(sentences[i], absl::StrCat("  ", i + 1, ". "));
  if (is_hybrid) {
    text += Wrap(Tr("Of a dense gradient of M bytes, each worker sends 2(N-1)/N M and receives as much. With "
                    "C rows of W values, it receives 4 C W bytes from the servers and sends them 4 C (2 + "
                    "W), because row numbers travel with both."),
                 "");
  } else if (strategy.uses_servers) {
    text += Wrap(Tr("Each worker sends M and receives M bytes of a step's gradient of M bytes; one server "
                    "receives $0 M and sends $0 M. Several servers divide this equally.",
                    count),
                 "");
  }
  if (has_schedule)
    text += Wrap(Tr("For the rounds of its all-reduce: psring explain $0", strategy.algorithm), "");
  const std::string named = absl::StrCat(strategy.name, is_hybrid ? " --model dlrm-small" : "");
  return text + Wrap(Tr("To run it: psring train --strategy $0 --workers $1", named, count), "");
}

std::string ExplainWords() {
  std::string text;
  for (const Word& word : kWords) text += EntryOf(word);
  return text;
}

std::vector<std::string> Terms() {
  std::vector<std::string> terms;
  for (const Word& word : kWords) {
    for (const absl::string_view term : absl::StrSplit(word.word, ", ")) terms.emplace_back(term);
  }
  return terms;
}

std::string ExplainTerm(const std::string& term) {
  for (const Word& word : kWords) {
    for (const absl::string_view name : absl::StrSplit(word.word, ", ")) {
      if (CanonicalWord(std::string(name)) == CanonicalWord(term)) return EntryOf(word);
    }
  }
  return "";
}

}  // namespace psring
