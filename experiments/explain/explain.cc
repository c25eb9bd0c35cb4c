#include "experiments/explain/explain.h"

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
#include "common/suggestions/suggestions.h"
#include "experiments/report/playback.h"
#include "experiments/texts/explain.h"
#include "experiments/texts/wrap.h"

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

// One schedule, explained in one language.
class Explanation {
 public:
  Explanation(const ExplainFlags& flags, const ScheduleRow& row, const Schedule& schedule,
              Collective collective)
      : flags_(flags), row_(row), schedule_(schedule), collective_(collective) {}

  std::string Text() const {
    Playback playback(schedule_, collective_, flags_.shape.root);
    std::string text =
        absl::StrCat(flags_.algorithm, " ", flags_.collective, ", ",
                     flags_.shape.ranks == 1 ? In(kOneWorkerPhrase) : In(kWorkersPhrase, flags_.shape.ranks),
                     ": ", Summary(), "\n\n");
    text += Wrap(
        In(kBufferPhrase, absl::StrFormat("%.4g", static_cast<double>(flags_.bytes) / 1e6),
           schedule_.chunks() == 1 ? In(kChunkOfBuffer) : In(kChunksOfBuffer, schedule_.chunks()), Goal()),
        "");
    if (playback.rounds() == 0) absl::StrAppend(&text, "\n", In(kNoRounds), "\n");
    while (!playback.done()) {
      const int round = playback.next_round();
      const std::vector<Hop> hops = playback.Step();
      absl::StrAppend(&text, "\n", In(kRoundPhrase, round + 1, playback.rounds()), "\n");
      for (const Hop& hop : hops) text += HopText(hop, playback);
      absl::StrAppend(&text, HoldingsTable(playback),
                      Wrap(In(kSent, PerRank(playback.traffic().sent)), "  "));
    }
    absl::StrAppend(&text, "\n", playback.Fulfilled() ? In(kFulfilled) : In(kBroken), "\n");
    if (playback.rounds() > 0) text += Wrap(In(kReceived, PerRank(playback.traffic().received)), "  ");
    return text + TheoryText(playback.traffic());
  }

 private:
  template <typename... Values>
  std::string In(const Phrase& phrase, const Values&... values) const {
    return Say(flags_.language, phrase, values...);
  }

  std::string Summary() const {
    const bool chinese = flags_.language == Language::kChinese && *row_.summary_chinese != 0;
    return chinese ? row_.summary_chinese : row_.summary;
  }

  std::string Goal() const {
    const std::map<Collective, Phrase> goals = {{Collective::kAllReduce, kGoalAllReduce},
                                                {Collective::kReduceScatter, kGoalReduceScatter},
                                                {Collective::kAllGather, kGoalAllGather},
                                                {Collective::kBroadcast, kGoalBroadcast}};
    return In(goals.at(collective_), flags_.shape.root);
  }

  // "0+1", "0..3" for consecutive ranks, "all", "-" for none.
  std::string HoldingText(uint64_t holding) const {
    const int ranks = schedule_.ranks();
    if (holding == 0) return "-";
    if (ranks > 1 && std::popcount(holding) == ranks) return In(kAll);
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
        hop.chunk_count == 1 ? In(kChunkPhrase, hop.first_chunk)
                             : In(kChunksPhrase, hop.first_chunk, hop.first_chunk + hop.chunk_count - 1);
    return absl::StrFormat("  %2d -> %-2d  %s  %s\n", hop.from, hop.to, PadRight(chunks, 12),
                           In(hop.adds ? kAdded : kReplaced, absl::StrJoin(sums, ", ")));
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
    std::string text = PadLeft(In(kChunkHead), 10);
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
      return In(kEach, Part(chunks.front(), schedule_), BytesText(chunks.front(), schedule_, flags_.bytes));
    }
    std::vector<std::string> parts;
    for (size_t rank = 0; rank < chunks.size(); ++rank) {
      parts.push_back(absl::StrCat("rank ", rank, " ", Part(chunks[rank], schedule_)));
    }
    return absl::StrJoin(parts, ", ");
  }

  std::string TheoryText(const PlayedTraffic& traffic) const {
    std::string text = absl::StrCat("\n", In(kCostHead), "\n");
    const size_t wide = 27;
    absl::StrAppend(&text, "  ", PadRight(In(kCounted), wide), "  ", traffic.rounds, " a + ",
                    Part(traffic.busiest_link, schedule_), "/B + ", Part(traffic.most_added, schedule_),
                    " g\n");
    if (collective_ != Collective::kAllReduce || row_.cost == nullptr)
      return text + Wrap(In(kTermsNote), "  ");
    const ScheduleCost cost = row_.cost(schedule_.ranks(), static_cast<double>(flags_.bytes));
    absl::StrAppend(&text, "  ", PadRight(In(kTheory), wide), "  ", cost.latency, " + ", cost.bytes, " + ",
                    cost.adding, "\n", Wrap(In(kTermsNote), "  "));
    const std::string note = In(Phrase{cost.note, cost.note_chinese});
    return note.empty() ? text : text + Wrap(note, "  ");
  }

  const ExplainFlags& flags_;
  const ScheduleRow& row_;
  const Schedule& schedule_;
  const Collective collective_;
};

// An entry of the glossary.
std::string EntryOf(const Word& word, Language language) {
  constexpr size_t kColumn = 12;
  const std::string name = word.word;
  const bool fits = name.size() < kColumn;
  return absl::StrCat(fits ? "" : name + "\n",
                      Wrap(Say(language, word.meaning), PadRight(fits ? name : "", kColumn)));
}

}  // namespace

absl::StatusOr<std::string> Explain(const ExplainFlags& flags, const ScheduleTable& rows) {
  PSRING_ASSIGN_OR_RETURN(const Collective collective, ParseCollective(flags.collective));
  if (flags.shape.ranks > kMaxPlayed) {
    return absl::InvalidArgumentError(
        absl::StrCat("explain supports at most ", kMaxPlayed, " workers, not ", flags.shape.ranks));
  }
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Schedule> schedule,
                          MakeSchedule(flags.algorithm, collective, flags.shape, rows));
  return Explanation(flags, *FindSchedule(flags.algorithm, rows), *schedule, collective).Text();
}

absl::StatusOr<std::string> ExplainStep(const StrategyRow& strategy, int workers, Language language) {
  if (strategy.number_below_workers && strategy.number >= workers) {
    return absl::InvalidArgumentError(absl::StrCat(strategy.name, " needs more than ", strategy.number,
                                                   " workers (", strategy.number_letter, ": ",
                                                   strategy.number_meaning, "); set --workers"));
  }
  const bool one_process = strategy.single_process && !strategy.replicates;
  const int count = one_process ? 1 : workers;
  const bool has_schedule = strategy.uses_group && FindSchedule(strategy.algorithm) != nullptr;
  std::vector<std::string> sentences = {In(language, strategy.replicates ? kDeviceComputes
                                                     : one_process       ? kComputesAlone
                                                                         : kEachComputes)};
  const auto add = [&](const Phrase& phrase, const auto&... values) {
    sentences.push_back(Say(language, phrase, values...));
  };
  if (strategy.replicates) add(kDeviceAdds);
  const bool is_hybrid = strategy.has_only_rows_on_servers();
  if (is_hybrid) {
    sentences.insert(sentences.begin(), In(language, kPullsRows));
    add(kGroupAddsDense, absl::StrCat(strategy.backend, ", ", strategy.algorithm));
    add(kPushesRows);
    add(kServerAddsRows, count);
  } else if (strategy.uses_group) {
    add(kGroupAdds, absl::StrCat(strategy.backend, ", ", strategy.algorithm));
    add(kAllUpdate);
  }
  if (strategy.uses_servers && !is_hybrid) {
    add(kPushes);
    if (strategy.drops_gradients) {
      add(kServerAddsFirst, count - strategy.number, strategy.number);
    } else if (strategy.synchronous) {
      add(kServerAddsAll, count);
    } else {
      add(kServerAddsEach);
      if (strategy.number > 0) add(kWaitsIfAhead, strategy.number);
    }
    add(kPulls);
  }
  if (!strategy.communicates()) add(strategy.single_process ? kOneUpdates : kEachUpdates);
  if (!strategy.step.empty()) {
    sentences = language == Language::kChinese ? strategy.step_chinese : strategy.step;
  }

  std::string text =
      absl::StrCat(Wrap(absl::StrCat(strategy.name, ": ", strategy.summary), ""), "\n",
                   Say(language, kOneStep,
                       count == 1 ? In(language, kOneWorkerPhrase) : Say(language, kWorkersPhrase, count)),
                   "\n");
  for (size_t i = 0; i < sentences.size(); ++i) text += Wrap(sentences[i], absl::StrCat("  ", i + 1, ". "));
  if (is_hybrid) {
    text += Wrap(In(language, kRowBytes), "");
  } else if (strategy.uses_servers) {
    text += Wrap(Say(language, kServerBytes, count), "");
  }
  if (has_schedule) text += Wrap(Say(language, kSeeSchedule, strategy.algorithm), "");
  const std::string named = absl::StrCat(strategy.name, is_hybrid ? " --model dlrm-small" : "");
  return text + Wrap(Say(language, kTryStrategy, named, count), "");
}

std::string ExplainWords(Language language) {
  std::string text;
  for (const Word& word : kWords) text += EntryOf(word, language);
  return text;
}

std::vector<std::string> Terms() {
  std::vector<std::string> terms;
  for (const Word& word : kWords) {
    for (const absl::string_view term : absl::StrSplit(word.word, ", ")) terms.emplace_back(term);
  }
  return terms;
}

std::string ExplainTerm(const std::string& term, Language language) {
  for (const Word& word : kWords) {
    for (const absl::string_view name : absl::StrSplit(word.word, ", ")) {
      if (CanonicalWord(std::string(name)) == CanonicalWord(term)) return EntryOf(word, language);
    }
  }
  return "";
}

}  // namespace psring
