#include "experiments/verbs/explain/explain_verb.h"

#include <algorithm>
#include <cstdio>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/cli/command_line.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/verbs/explain/explain.h"
#include "experiments/verbs/explain/explain_layouts.h"
#include "experiments/verbs/explain/explain_program.h"

namespace psring {

CLI::App* AddExplain(CLI::App& app, RawExplainFlags& raw) {
  CLI::App* verb =
      app.add_subcommand("explain",
                         "Print a schedule's rounds: which rank sends what to which rank, the "
                         "sums after each round, and the cost; a strategy's step; or a pipeline's "
                         "timeline");
  verb->add_option(
          "schedule", raw.algorithm,
          "A schedule (ring, star, hierarchical:2, ...), a strategy (ps-sync, ps-async, ...), a program of a "
          "pipeline "
          "(1f1b, zb-h1, ...), a way to shard or divide a model (zero2, fsdp, tp, cp), a term (staleness, "
          "...), "
          "or words for all terms; an unknown name lists all")
      ->option_text("NAME");
  verb->add_option("--workers", raw.workers, "Ranks")->option_text("N [4]")->check(WholeNumber(1, 1'000'000));
  verb->add_option(
          "--collective", raw.collective,
          "all_reduce, reduce_scatter, all_gather, broadcast or all_to_all, if the schedule supports "
          "it")
      ->option_text("NAME [all_reduce; pairwise: all_to_all]");
  verb->add_option("--size", raw.size, "Buffer size: 4096, 4K, 1.5M")
      ->option_text("BYTES [4M]")
      ->check(ParsedBy(ParseByteSize));
  verb->add_option("--root", raw.root, "Rank whose values are broadcast")
      ->option_text("RANK [0]")
      ->check(WholeNumber(0, 1'000'000));
  verb->add_option("--micro_batches", raw.micro_batches, "Micro-batches of a step of a pipeline or of shards")
      ->option_text("M [8]")
      ->check(WholeNumber(1, 1'000'000));
  AddLanguageFlag(*verb, "en or zh");
  return verb;
}

namespace {

constexpr char kAllTerms[] = "words";

absl::StatusOr<std::string> ExplainSchedule(const RawExplainFlags& raw, const std::string& name) {
  const bool on_pairs = NeedsRanksPerNode(name) && raw.workers % 2 == 0;
  std::string collective = raw.collective;
  for (const Collective one : kCollectives) {  // the first that it offers
    if (collective.empty() && FindSchedule(name)->offers(one)) collective = Name(one);
  }
  return Explain({.algorithm = on_pairs ? absl::StrCat(name, ":2") : name,
                  .collective = collective,
                  .shape = {.ranks = raw.workers, .root = raw.root},
                  .bytes = static_cast<int64_t>(ParseByteSize(raw.size).value_or(0))});
}

// Everything that has an explanation.
std::vector<KnownName> Topics() {
  std::vector<KnownName> topics;
  for (const StrategyRow& row : StrategyRows()) {
    topics.push_back(
        {.name = row.display_name(), .also_called = row.also_called, .resembles = row.resembles});
  }
  const auto add = [&](const std::string& name) {
    if (std::ranges::none_of(topics, [&](const KnownName& topic) { return topic.name == name; })) {
      topics.push_back({.name = name});
    }
  };
  for (const ScheduleRow& row : ScheduleRows()) add(row.name);
  for (const ProgramRow& row : ProgramRows()) add(row.display_name());
  add(kTensorParallel);
  add(kContextParallel);
  for (const std::string& term : Terms()) add(term);
  add(kAllTerms);
  return topics;
}

// A schedule, a strategy (its schedule if it has the name of one, such as allreduce: ring, or its step), a
// program, or a term.
absl::StatusOr<std::string> ExplainName(const RawExplainFlags& raw) {
  const auto is_schedule = [](const std::string& name) {
    return FindSchedule(name, ScheduleRows()) != nullptr;
  };
  if (is_schedule(raw.algorithm)) return ExplainSchedule(raw, raw.algorithm);
  const std::vector<KnownName> topics = Topics();
  if (raw.algorithm.empty()) {
    return absl::InvalidArgumentError(
        Tr("name one of $0", absl::StrJoin(topics, ", ", [](std::string* out, const KnownName& topic) {
             out->append(topic.name);
           })));
  }
  const absl::StatusOr<StrategyRow> strategy = FindStrategy(raw.algorithm);
  if (strategy.ok() && is_schedule(strategy->name)) return ExplainSchedule(raw, strategy->name);
  if (strategy.ok()) {
    PSRING_ASSIGN_OR_RETURN(const std::string step, ExplainStep(*strategy, raw.workers));
    if (!strategy->shards_updates) return step;
    return absl::StrCat(step, "\n", ExplainShards(*strategy, raw.workers, raw.micro_batches));
  }
  if (!absl::IsNotFound(strategy.status())) return strategy.status();
  if (raw.algorithm == kTensorParallel) return ExplainTensorParallel(raw.workers);
  if (raw.algorithm == kContextParallel) return ExplainContextParallel(raw.workers);
  absl::StatusOr<std::string> program = ExplainProgram(raw.algorithm, raw.workers, raw.micro_batches);
  if (!absl::IsNotFound(program.status())) return program;
  const std::string meaning = ExplainTerm(raw.algorithm);
  if (!meaning.empty()) return meaning;
  return UnknownName(TrNoop("topic"), raw.algorithm, topics);
}

}  // namespace

int RunExplain(const RawExplainFlags& raw) {
  if (raw.algorithm == kAllTerms) {
    std::fputs(ExplainWords().c_str(), stdout);
    return 0;
  }
  const absl::StatusOr<std::string> text = ExplainName(raw);
  if (!text.ok()) return Fail("psring explain", std::string(text.status().message()), 2);
  std::fputs(text->c_str(), stdout);
  return 0;
}

}  // namespace psring
