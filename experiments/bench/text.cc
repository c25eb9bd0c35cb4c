#include "experiments/bench/text.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/byte_size.h"
#include "common/cli/version.h"
#include "common/io/csv.h"
#include "common/measure/collective_table.h"
#include "experiments/host/build_info.h"
#include "experiments/plan/plan_text.h"
#include "experiments/stats/statistics.h"
#include "experiments/texts/bench.h"
#include "experiments/texts/errors.h"
#include "experiments/texts/network.h"

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

std::string Gbit(double bytes_per_s) { return absl::StrFormat("%.3g", 8e-9 * bytes_per_s); }
std::string Microseconds(double seconds) { return absl::StrFormat("%.3g", 1e6 * seconds); }

// Machines that cannot be told apart by name have a number, too.
std::string NodeName(int node, const std::vector<std::string>& machines) {
  const auto i = static_cast<size_t>(node);
  return absl::StrCat("node ", node, i < machines.size() ? absl::StrCat(" (", machines[i], ")") : "");
}

std::string Row(const std::string& head, const std::vector<std::string>& cells) {
  std::string row = absl::StrFormat("# %6s", head);
  for (const std::string& cell : cells) absl::StrAppendFormat(&row, "  %8s", cell);
  return row + "\n";
}

// `more`: further cells of each row.
std::string Matrix(int nodes, const std::vector<std::string>& more_heads,
                   const std::function<std::string(int from, int to)>& cell,
                   const std::function<std::vector<std::string>(int node)>& more) {
  std::vector<std::string> heads;
  for (int node = 0; node < nodes; ++node) heads.push_back(absl::StrCat(node));
  heads.insert(heads.end(), more_heads.begin(), more_heads.end());
  std::string text = Row("node", heads);
  for (int from = 0; from < nodes; ++from) {
    std::vector<std::string> cells;
    for (int to = 0; to < nodes; ++to) cells.push_back(from == to ? "-" : cell(from, to));
    const std::vector<std::string> others = more(from);
    cells.insert(cells.end(), others.begin(), others.end());
    text += Row(absl::StrCat(from), cells);
  }
  return text;
}

std::string Matrices(const NetworkReport& network, Language language) {
  const bool into = !network.into.empty();
  std::vector<std::string> heads = {"ring"};
  if (into) heads.insert(heads.begin(), "into");
  const auto shared = [&](int node) {
    const auto i = static_cast<size_t>(node);
    std::vector<std::string> cells = {Gbit(network.ring[i])};
    if (into) cells.insert(cells.begin(), Gbit(network.into[i]));
    return cells;
  };
  return absl::StrCat(
      In(language, into ? kNetworkShared : kNetworkRing), "\n",
      Matrix(
          network.nodes, heads, [&](int from, int to) { return Gbit(network.rate(from, to)); }, shared),
      In(language, kNetworkLatencies), "\n",
      Matrix(
          network.nodes, {}, [&](int from, int to) { return Microseconds(network.latency(from, to)); },
          [](int) { return std::vector<std::string>(); }));
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

std::string SlowestText(const SlowestLink& slowest, const std::vector<std::string>& machines,
                        Language language) {
  const std::string from = NodeName(slowest.from, machines), to = NodeName(slowest.to, machines);
  const std::string rate = Gbit(slowest.bytes_per_s), others = Gbit(slowest.others_bytes_per_s);
  if (slowest.kind == SlowestLink::Kind::kNone) return "";
  if (slowest.by_latency) {
    const std::string late = Microseconds(slowest.latency_s), usual = Microseconds(slowest.others_latency_s);
    return slowest.node() ? Say(language, kLateNode, from, late, usual)
                          : Say(language, kLateLink, from, to, late, usual);
  }
  if (slowest.node()) {
    const Phrase& does = slowest.sends && slowest.receives ? kSendsAndReceives
                         : slowest.sends                   ? kSends
                                                           : kReceives;
    return Say(language, kSlowNode, from, In(language, does), rate, others);
  }
  return Say(language, slowest.slow ? kSlowLink : kNoSlowLink, from, to, rate, others);
}

std::string NetworkText(const NetworkReport& network, const std::vector<std::string>& machines,
                        Language language) {
  std::string text = absl::StrCat(Say(language, kNetworkRates, network.nodes), "\n");
  absl::StrAppend(&text, network.nodes <= kMaxNodesOfMatrix
                             ? Matrices(network, language)
                             : absl::StrCat(Say(language, kNetworkTooWide, network.nodes), "\n"));
  for (size_t node = 0; node < machines.size() && network.nodes <= kMaxNodesOfMatrix; ++node) {
    absl::StrAppend(&text, "#   node ", node, ": ", machines[node], "\n");
  }
  const std::string slowest = SlowestText(SlowestOf(network), machines, language);
  return slowest.empty() ? text : absl::StrCat(text, "# ", slowest, "\n");
}

std::string NetworkCsv(const std::string& run_id, const NetworkReport& network,
                       const std::vector<std::string>& machines) {
  std::string text = "schema_version,run_id,from,to,from_machine,to_machine,latency_us,gbit_per_s,basis\n";
  for (int from = 0; from < network.nodes; ++from) {
    for (int to = 0; to < network.nodes; ++to) {
      if (from == to) continue;
      text += CsvLine({"1", run_id, absl::StrCat(from), absl::StrCat(to), machines[static_cast<size_t>(from)],
                       machines[static_cast<size_t>(to)],
                       absl::StrFormat("%.6g", 1e6 * network.latency(from, to)),
                       absl::StrFormat("%.6g", 8e-9 * network.rate(from, to)), "measured"});
    }
  }
  return text;
}

}  // namespace psring
