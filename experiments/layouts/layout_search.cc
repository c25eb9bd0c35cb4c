#include "experiments/layouts/layout_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr int kMaxSamples = 1024;  // of a micro-batch
constexpr int kMaxMicroBatchesPerStep = 4096;
constexpr int64_t kMaxPasses = 1 << 15;  // forward passes of layers in a step: a walk of some 0.1 s
constexpr double kGiB = 1 << 30;
constexpr int kChunks[] = {2, 4};  // of programs that take a number

std::vector<int> DivisorsUpTo(int number, int most) {
  std::vector<int> divisors;
  for (int divisor = 1; divisor <= std::min(number, most); ++divisor) {
    if (number % divisor == 0) divisors.push_back(divisor);
  }
  return divisors;
}

std::vector<NamedProgram> ProgramsOf(int stages) {
  std::vector<NamedProgram> programs;
  for (const ProgramRow& row : ProgramRows()) {
    if (row.one_rank != (stages == 1) || row.asynchronous) continue;  // all train the same weights
    if (!row.takes_chunks) programs.push_back({row});
    for (const int chunks : kChunks) {
      if (row.takes_chunks) programs.push_back({row, chunks});
    }
  }
  return programs;
}

Layout AxesOf(const LayoutCandidate& candidate) {
  return {.dp = candidate.dp, .pp = candidate.pp, .tp = candidate.tp, .cp = candidate.cp};
}

// How the sequences of a question may be divided with so many tensor-parallel ranks: among how many ranks,
// and what attention then exchanges. Not divided first.
std::vector<std::pair<int, std::string>> SequencesOf(const LayoutQuestion& question, int tp) {
  const auto& [layouts, strategies, only, micro_batches] = question.choice;
  const double tokens = question.model.tokens;
  std::vector<std::pair<int, std::string>> all = {{1, kDefaultContextParallel.name}};
  const int most = static_cast<int>(std::min<double>(question.workers / tp, tokens));
  for (const int cp : DivisorsUpTo(question.workers / tp, most)) {
    const bool is_long = !layouts.empty() || tokens / cp >= kMinDividedTokens;
    if (cp == 1 || !is_long || question.model.sequence_parallel ||
        !AlignsWithNodes(question.cluster, question.workers, tp * cp)) {
      continue;
    }
    for (const ContextParallelRow& kind : kContextParallelRows) {
      if (only.empty() ? !kind.is_searched : only != kind.name) continue;
      if (std::fmod(tokens, double(kind.chunks_per_rank) * cp) != 0) continue;
      if (!kind.uses_ring && question.model.heads / tp % cp != 0) continue;
      all.emplace_back(cp, kind.name);
    }
  }
  return all;
}

// Of a micro-batch, of a replica's samples in a step: 1, 2, 4, ..., or those of so many micro-batches.
std::vector<int> SamplesOf(int64_t of_replica, int micro_batches) {
  std::vector<int> all;
  if (micro_batches > 0) {
    const int64_t samples = of_replica / micro_batches;
    if (of_replica % micro_batches == 0 && samples <= kMaxSamples) all.push_back(static_cast<int>(samples));
    return all;
  }
  for (int samples = 1; samples <= kMaxSamples && of_replica % samples == 0; samples *= 2) {
    all.push_back(samples);
  }
  return all;
}

// Those with the axes tp and cp of `of`, and each number of stages.
void AddCandidates(const LayoutQuestion& question, LayoutCandidate of,
                   std::vector<LayoutCandidate>& candidates) {
  const auto& [layouts, strategies, only, micro_batches_only] = question.choice;
  const Cluster& cluster = question.cluster;
  const int workers = question.workers, layers = static_cast<int>(question.model.layers.size());
  const int together = of.tp * of.cp;
  for (const int pp : DivisorsUpTo(workers / together, layers)) {
    of.pp = pp;
    of.dp = workers / together / pp;
    if (!layouts.empty() && std::ranges::find(layouts, AxesOf(of)) == layouts.end()) continue;
    const int replicas = of.replicas();
    if (!AlignsWithNodes(cluster, workers, of.tp * replicas)) continue;
    // Replicas of a stage on one node, which may have one copy of the state together.
    const int on_node = ShapeOf(cluster, workers).ranks_per_node / of.tp;
    const bool shards_on_node = on_node > 1 && on_node < replicas && replicas % on_node == 0;
    const int64_t of_replica = question.global_batch / of.dp;
    for (const int samples : SamplesOf(of_replica, micro_batches_only)) {
      const int64_t micro_batches = of_replica / samples;
      if (micro_batches > kMaxMicroBatchesPerStep || micro_batches * layers > kMaxPasses) continue;
      of.samples = samples;
      of.micro_batches = static_cast<int>(micro_batches);
      for (const NamedProgram& program : ProgramsOf(pp)) {
        if (pp * program.chunks > layers) continue;
        of.program = program;
        for (const StrategyRow& strategy : ShardingStrategies()) {
          if (replicas == 1 && strategy.shards_updates) continue;
          if (!strategies.empty() && std::ranges::find(strategies, strategy.name) == strategies.end())
            continue;
          of.strategy = &strategy;
          candidates.push_back(of);
          if (!strategy.shards_gradients || !shards_on_node) continue;
          candidates.push_back(of);
          candidates.back().dp_shard = on_node;
        }
      }
    }
  }
}

struct Bounded {
  FoundLayout found;
  const LayoutStages* stages;
  double least_s;
};

const LayoutQuestion& QuestionFor(const LayoutCandidate& candidate, const LayoutQuestion& question,
                                  const LayoutQuestion* gathering) {
  return gathering != nullptr && candidate.gathers() ? *gathering : question;
}

// The candidates with the best bounds first, and one by one their times.
class LayoutSearch {
 public:
  LayoutSearch(const LayoutQuestion& question, const LayoutQuestion* gathering, const CheckStop& check)
      : question_(question), gathering_(gathering), check_(check) {}

  absl::Status Bound() {
    for (const LayoutCandidate& candidate : LayoutCandidates(question_)) {
      PSRING_RETURN_IF_ERROR(check_());
      const std::tuple key(candidate.pp, candidate.program.name(), candidate.micro_batches);
      auto at = stages_.find(key);
      if (at == stages_.end()) {
        PSRING_ASSIGN_OR_RETURN(LayoutStages stages, StagesOf(question_.model, candidate));
        at = stages_.emplace(key, std::move(stages)).first;
      }
      bounded_.push_back(
          {{candidate, MemoryOf(question_.model, candidate, at->second)},
           &at->second,
           LeastSeconds(QuestionFor(candidate, question_, gathering_), candidate, at->second)});
    }
    std::ranges::stable_sort(bounded_, {}, &Bounded::least_s);
    return absl::OkStatus();
  }

  const std::vector<Bounded>& bounded() const { return bounded_; }
  int64_t walked() const { return walked_; }

  // The best `count` of those that `fits` accepts and that take less than `below_s`.
  template <typename Fits>
  absl::StatusOr<std::vector<FoundLayout>> Best(size_t count, double below_s, const Fits& fits) {
    std::vector<FoundLayout> best;
    for (const Bounded& next : bounded_) {
      const bool is_full = best.size() == count;
      // Those that are as fast may need less memory.
      if (is_full ? next.least_s > best.back().price.step_s : next.least_s >= below_s) break;
      if (!fits(next.found)) continue;
      PSRING_RETURN_IF_ERROR(check_());
      FoundLayout found = next.found;
      PSRING_ASSIGN_OR_RETURN(found.price, PriceOf(QuestionFor(found.candidate, question_, gathering_),
                                                   found.candidate, *next.stages));
      ++walked_;
      if (found.price.step_s >= below_s) continue;
      const auto same = std::ranges::find_if(best, [&](const FoundLayout& other) {
        return other.candidate.layout() == found.candidate.layout();
      });
      if (same != best.end()) {
        if (!IsBetter(found, *same)) continue;
        best.erase(same);
      }
      best.insert(std::ranges::upper_bound(best, found, IsBetter), std::move(found));
      if (best.size() > count) best.pop_back();
    }
    return best;
  }

 private:
  // Of equally fast ones, that which needs less memory.
  static bool IsBetter(const FoundLayout& one, const FoundLayout& other) {
    return std::pair(one.price.step_s, one.memory.total()) <
           std::pair(other.price.step_s, other.memory.total());
  }

  const LayoutQuestion& question_;
  const LayoutQuestion* const gathering_;
  const CheckStop& check_;
  std::map<std::tuple<int, std::string, int>, LayoutStages> stages_;
  std::vector<Bounded> bounded_;
  int64_t walked_ = 0;
};

}  // namespace

std::vector<LayoutCandidate> LayoutCandidates(const LayoutQuestion& question) {
  std::vector<LayoutCandidate> candidates;
  for (const int tp : DivisorsUpTo(question.workers, question.model.heads)) {
    if (question.model.heads % tp != 0 || !AlignsWithNodes(question.cluster, question.workers, tp)) continue;
    if (question.model.sequence_parallel && std::fmod(question.model.tokens, tp) != 0) continue;
    for (const auto& [cp, kind] : SequencesOf(question, tp)) {
      AddCandidates(question, {.tp = tp, .cp = cp, .context_parallel = kind}, candidates);
    }
  }
  return candidates;
}

absl::StatusOr<LayoutAnswer> FindLayouts(const LayoutQuestion& question, double memory_bytes, size_t count,
                                         const CheckStop& check, const LayoutQuestion* gathering) {
  LayoutSearch search(question, gathering, check);
  PSRING_RETURN_IF_ERROR(search.Bound());
  const std::vector<Bounded>& all = search.bounded();
  if (all.empty()) {
    return absl::InvalidArgumentError(
        Tr("no layout of $0 devices divides the model $1; use another --workers or --batch", question.workers,
           question.model.name));
  }
  const auto fits = [&](const FoundLayout& found) { return found.memory.total() <= memory_bytes; };
  LayoutAnswer answer{.candidates = static_cast<int64_t>(all.size()),
                      .fitting = std::ranges::count_if(all, fits, &Bounded::found)};
  if (answer.fitting == 0) {
    const FoundLayout& smallest =
        std::ranges::min_element(all, {}, [](const Bounded& one) { return one.found.memory.total(); })->found;
    return absl::ResourceExhaustedError(
        Tr("no layout of $0 devices fits $1 into $2: the smallest, $3, needs $4 per device; use more "
           "--workers or --memory",
           question.workers, question.model.name, GibibytesText(memory_bytes), smallest.candidate.layout(),
           MemoryText(smallest.memory)));
  }
  PSRING_ASSIGN_OR_RETURN(answer.best, search.Best(count, INFINITY, fits));
  for (const Layout& layout : question.choice.layouts) {
    const auto is_named = [&](const FoundLayout& found) { return AxesOf(found.candidate) == layout; };
    if (std::ranges::any_of(answer.best, is_named)) continue;
    PSRING_ASSIGN_OR_RETURN(
        std::vector<FoundLayout> named,
        search.Best(1, INFINITY, [&](const FoundLayout& found) { return is_named(found) && fits(found); }));
    if (named.empty()) {
      answer.too_large.push_back(layout);
    } else {
      answer.best.push_back(std::move(named.front()));
    }
  }
  std::ranges::stable_sort(answer.best, {}, [](const FoundLayout& found) { return found.price.step_s; });
  PSRING_ASSIGN_OR_RETURN(std::vector<FoundLayout> larger,
                          search.Best(1, answer.best.front().price.step_s,
                                      [&](const FoundLayout& found) { return !fits(found); }));
  if (!larger.empty()) answer.with_more_memory = std::move(larger.front());
  answer.walked = search.walked();
  return answer;
}

absl::StatusOr<std::optional<OtherBest>> OtherBestWithLinks(const LayoutQuestion& question,
                                                            const std::vector<FoundLayout>& best,
                                                            bool between, const CheckStop& check,
                                                            const LayoutQuestion* gathering) {
  for (double factor = 2; factor <= kMaxRateFactor; factor *= 2) {
    for (const double changed : {1 / factor, factor}) {
      std::vector<double> seconds;
      for (const FoundLayout& found : best) {
        PSRING_RETURN_IF_ERROR(check());
        LayoutQuestion other = QuestionFor(found.candidate, question, gathering);
        (between ? other.cluster.link_bytes_per_s : other.cluster.intra_bytes_per_s) *= changed;
        PSRING_ASSIGN_OR_RETURN(const LayoutStages stages, StagesOf(other.model, found.candidate));
        PSRING_ASSIGN_OR_RETURN(const LayoutPrice price, PriceOf(other, found.candidate, stages));
        seconds.push_back(price.step_s);
      }
      const auto fastest = std::ranges::min_element(seconds);
      if (*fastest < seconds.front()) {
        return OtherBest{changed, static_cast<size_t>(fastest - seconds.begin())};
      }
    }
  }
  return std::nullopt;
}

std::string GibibytesText(double bytes) { return absl::StrFormat("%.1f GiB", bytes / kGiB); }

std::string MemoryText(const LayoutMemory& memory) {
  const auto number = [](double bytes) { return absl::StrFormat("%.1f", bytes / kGiB); };
  return Tr("$0 (weights $1, gradients $2, optimizer $3, activations $4)", GibibytesText(memory.total()),
            number(memory.state.weights), number(memory.state.gradients), number(memory.state.optimizer),
            number(memory.activations));
}

}  // namespace psring
