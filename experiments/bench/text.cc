#include "experiments/bench/text.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/units.h"
#include "common/cli/version.h"
#include "common/measure/collective_table.h"
#include "experiments/host/build_info.h"
#include "experiments/plan/plan_text.h"
#include "experiments/stats/statistics.h"
#include "experiments/texts/bench.h"
#include "experiments/texts/errors.h"

namespace psring {
namespace {

std::string StepText(const SizeSweep& sweep) {
  if (!sweep.list.empty()) return "0(list)";
  if (sweep.step_bytes > 0) return absl::StrFormat("%d(bytes)", sweep.step_bytes);
  return absl::StrFormat("%d(factor)", sweep.step_factor > 0 ? sweep.step_factor : kDefaultFactor);
}

// "native ring, shm, shared". Over TCP, buffers are private unless stated.
std::string ShortName(const BenchTable& table) {
  const BenchCombination& combination = table.combination;
  return absl::StrCat(
      combination.backend, table.algorithm.empty() ? "" : " ", table.algorithm, ", ", table.transport,
      combination.buffers == "private" && table.transport == "tcp" ? "" : ", " + combination.buffers);
}

std::string Title(const BenchTable& table, Language language) {
  BenchCombination actual = table.combination;
  actual.algorithm = table.algorithm;
  actual.transport = table.transport;
  std::string title =
      Say(language, kBenchTitle, actual.name(), absl::StrFormat("%.0f", Mean(table.foreign_cpu_pct))) + "\n";
  const std::string& asked = table.combination.transport;
  if (asked != "auto" && asked != table.transport) {
    absl::StrAppend(&title, Say(language, kBenchOtherTransport, asked, table.transport), "\n");
  }
  return title;
}

std::string TableText(const BenchRequest& request, const BenchResult& result, const BenchTable& table,
                      Language language) {
  const bool limits = !result.limits().empty();
  std::string text = Title(table, language) + CollectiveTableHeader(limits);
  double busbw = 0;
  int values = 0;
  for (const BenchCell& cell : table.cells) {
    const CollectiveRow row = result.RowOf(table, cell, request.root);
    text += CollectiveTableLine(row, limits);
    for (const PlacementFigures* figures : {&row.out_of_place, &row.in_place}) {
      if (!figures->measured) continue;
      busbw += figures->busbw;
      ++values;
    }
  }
  return text + CollectiveTableFooter(0, values > 0 ? busbw / values : 0);
}

// A line of busbw (out of place) by size for each combination with this collective and number of workers.
std::string SummaryText(const BenchRequest& request, const BenchResult& result, const std::string& collective,
                        int workers, Language language) {
  std::vector<const BenchTable*> tables;
  for (const BenchTable& table : result.tables()) {
    if (table.combination.collective == collective && table.combination.workers == workers) {
      tables.push_back(&table);
    }
  }
  if (tables.size() < 2) return "";
  const BenchCell& first = tables.front()->cells.front();
  size_t width = 10;
  for (const BenchTable* table : tables) width = std::max(width, ShortName(*table).size());
  std::string head, body;
  for (const BenchTable* table : tables) {
    std::string line = absl::StrFormat("# %-*s", static_cast<int>(width), ShortName(*table));
    head = absl::StrFormat("# %-*s", static_cast<int>(width), "");
    for (const BenchCell& cell : table->cells) {
      if (cell.type != first.type || cell.op != first.op) continue;
      const CollectiveRow row = result.RowOf(*table, cell, request.root);
      absl::StrAppendFormat(&head, "  %8s", ByteSizeText(cell.bytes));
      absl::StrAppendFormat(&line, "  %8.2f", row.out_of_place.busbw);
    }
    body += line + "\n";
  }
  return absl::StrCat("#\n", Say(language, kBenchSummary, collective, workers), "\n", head, "\n", body);
}

}  // namespace

std::string BenchHeadText(const BenchRequest& request, const BenchPlan& plan, const Machine& machine,
                          double expected_s, Language language) {
  std::string text = Say(language, kBenchOn, kVersion, kRevision, machine.cores,
                         machine.cores == 1 ? "core" : "cores", ProcessorText(machine.processor)) +
                     "\n";
  if (request.on_nodes()) {
    absl::StrAppend(&text, Say(language, kBenchOnNodes, plan.layout.nodes, plan.layout.per_node), "\n");
  }
  absl::StrAppendFormat(
      &text, "# minBytes %d maxBytes %d step: %s warmup iters: %d iters: %d agg iters: %s validation: %d\n",
      std::ranges::min(plan.sizes), std::ranges::max(plan.sizes), StepText(request.sizes), request.warmup,
      plan.iterations * plan.rounds,
      request.aggregated > 0 ? absl::StrCat(request.aggregated) : "as many as last 200 us", request.checks);
  absl::StrAppend(&text, Say(language, kBenchTime, In(language, kAverages[request.average])), "\n");
  for (const BenchLaunch& launch : plan.launches) {
    absl::StrAppendFormat(&text, "# %s:%s\n", launch.name(), launch.limits ? In(language, kBenchLimits) : "");
    for (const size_t i : launch.combinations) {
      absl::StrAppend(&text, "#    ", plan.combinations[i].name(), "\n");
    }
    const int here = MostOnAMachine(plan.layout, launch.workers);
    if (here > machine.cores) {
      absl::StrAppend(&text, Say(language, kBenchTurns, here, machine.cores), "\n");
    }
  }
  for (const std::string& note : plan.notes)
    absl::StrAppend(&text, Say(language, kBenchNote, InLanguage(language, note)), "\n");
  const std::string launches =
      plan.launches.size() == 1 ? In(language, kOneLaunch) : Say(language, kLaunches, plan.launches.size());
  absl::StrAppend(
      &text,
      Say(language, kBenchExpected, RoundsText(plan.rounds, language), launches, HumanSeconds(expected_s)),
      "\n");
  return text;
}

std::string BenchTablesText(const BenchRequest& request, const BenchResult& result, Language language) {
  std::string text = "#\n# Using processes\n";
  for (const auto& [workers, ranks] : result.ranks()) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      absl::StrAppendFormat(&text, "#  Rank %2d Group %2d Pid %6d on %10s device %2d [%s]\n", rank, workers,
                            ranks[rank].pid, ranks[rank].host, ranks[rank].device_index(),
                            ranks[rank].device_kind());
    }
  }
  std::set<std::pair<std::string, int>> summarised;
  std::string summaries;
  std::set<int> workers;
  for (const BenchTable& table : result.tables()) {
    text += TableText(request, result, table, language);
    const std::pair<std::string, int> key = {table.combination.collective, table.combination.workers};
    if (summarised.insert(key).second)
      summaries += SummaryText(request, result, key.first, key.second, language);
    workers.insert(key.second);
  }
  for (const int count : workers) {
    const std::string limits = result.limits().Text(count, language);
    if (!limits.empty()) text += "#\n" + limits;
  }
  return text + summaries;
}

}  // namespace psring
