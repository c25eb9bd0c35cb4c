#include "experiments/verbs/bench/text.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/cli/version.h"
#include "common/io/csv.h"
#include "common/measure/collective_table.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/design/plan.h"
#include "experiments/machine/build_info.h"
#include "experiments/stats/statistics.h"

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

// By value of --average.
constexpr const char* kAverages[] = {TrNoop("rank 0's"), TrNoop("the mean of the ranks'"),
                                     TrNoop("the fastest rank's"), TrNoop("the slowest rank's")};

std::string Title(const BenchTable& table) {
  BenchCombination actual = table.combination;
  actual.algorithm = table.algorithm;
  actual.transport = table.transport;
  std::string title = Tr("# === $0; others used $1% of the processors", actual.name(),
                         Fixed(Mean(table.foreign_cpu_pct), 0)) +
                      "\n";
  const std::string& asked = table.combination.transport;
  if (asked != "auto" && asked != table.transport) {
    absl::StrAppend(&title,
                    Tr("# note: --transport $0 was requested, but $1 is used", asked, table.transport), "\n");
  }
  return title;
}

// Which algorithms psring's default took: "one-shot from 4K, direct from 64K". Empty: another algorithm.
std::string ChosenText(const BenchTable& table) {
  std::vector<std::string> parts;
  std::string last = table.algorithm;
  for (const BenchCell& cell : table.cells) {
    const std::string chosen = table.AlgorithmOf(cell);
    if (chosen == last) continue;
    parts.push_back(Tr("$0 from $1", chosen, ByteSizeText(cell.bytes)));
    last = chosen;
  }
  return absl::StrJoin(parts, ", ");
}

std::string TableText(const BenchRequest& request, const BenchResult& result, const BenchTable& table) {
  const bool limits = !result.limits().empty();
  std::string text = Title(table) + CollectiveTableHeader(limits);
  std::vector<double> busbw;
  for (const BenchCell& cell : table.cells) {
    const CollectiveRow row = result.RowOf(table, cell, request.root);
    text += CollectiveTableLine(row, limits);
    for (const PlacementFigures* figures : {&row.out_of_place, &row.in_place}) {
      if (figures->measured) busbw.push_back(figures->busbw);
    }
  }
  const std::string chosen = ChosenText(table);
  if (!chosen.empty()) absl::StrAppend(&text, Tr("# default chose $0", chosen), "\n");
  return text + CollectiveTableFooter(0, Mean(busbw));
}

// A line of busbw (out of place) by size for each combination with this collective and number of workers.
std::string SummaryText(const BenchRequest& request, const BenchResult& result, const std::string& collective,
                        int workers) {
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
  return absl::StrCat("#\n",
                      Tr("# Summary: $0, $1 workers, busbw in GB/s, out of place", collective, workers), "\n",
                      head, "\n", body);
}

std::string Gbit(double bytes_per_s) { return ThreeDigits(8e-9 * bytes_per_s); }
std::string Microseconds(double seconds) { return ThreeDigits(1e6 * seconds); }

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

std::string Matrices(const NetworkReport& network) {
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
      Tr(into ? TrNoop("# into: into the node from all others at once; ring: to the next node, while all "
                       "nodes send")
              : TrNoop("# ring: to the next node, while all nodes send")),
      "\n",
      Matrix(
          network.nodes, heads, [&](int from, int to) { return Gbit(network.rate(from, to)); }, shared),
      Tr("# Latency in us (half a round trip of 4 bytes, measured)"), "\n",
      Matrix(
          network.nodes, {}, [&](int from, int to) { return Microseconds(network.latency(from, to)); },
          [](int) { return std::vector<std::string>(); }));
}

}  // namespace

std::string BenchHeadText(const BenchRequest& request, const BenchPlan& plan, const Machine& machine,
                          double expected_s) {
  std::string text = Tr("# psring bench $0 ($1) on $2 $3, $4", kVersion, kRevision, machine.cores,
                        machine.cores == 1 ? "core" : "cores", ProcessorText(machine.processor)) +
                     "\n";
  if (request.on_nodes()) {
    absl::StrAppend(
        &text, Tr("# on $0 machines; ranks per machine: at most $1", plan.layout.nodes, plan.layout.per_node),
        "\n");
  }
  absl::StrAppendFormat(
      &text, "# minBytes %d maxBytes %d step: %s warmup iters: %d iters: %d agg iters: %s validation: %d\n",
      std::ranges::min(plan.sizes), std::ranges::max(plan.sizes), StepText(request.sizes), request.warmup,
      plan.iterations * plan.rounds,
      request.aggregated > 0 ? absl::StrCat(request.aggregated) : "as many as last 200 us", request.checks);
  absl::StrAppend(&text,
                  Tr("# time: duration of one call ($0); median over iterations; combinations alternate",
                     Tr(kAverages[request.average])),
                  "\n");
  for (const BenchLaunch& launch : plan.launches) {
    absl::StrAppendFormat(&text, "# %s:%s\n", launch.name(), launch.limits ? Tr(" limits") : "");
    for (const size_t i : launch.combinations) {
      absl::StrAppend(&text, "#    ", plan.combinations[i].name(), "\n");
    }
    const int here = MostOnAMachine(plan.layout, launch.workers);
    if (here > machine.cores) {
      absl::StrAppend(&text, Tr("#    $0 processes share $1 cores", here, machine.cores), "\n");
    }
  }
  for (const std::string& note : plan.notes) absl::StrAppend(&text, Tr("# note: $0", note), "\n");
  const std::string launches =
      plan.launches.size() == 1 ? Tr("1 launch") : Tr("$0 launches", plan.launches.size());
  absl::StrAppend(
      &text,
      Tr("# expected: $0 of $1, about $2", RoundsText(plan.rounds), launches, HumanSeconds(expected_s)),
      "\n");
  return text;
}

std::string BenchTablesText(const BenchRequest& request, const BenchResult& result) {
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
    text += TableText(request, result, table);
    const std::pair<std::string, int> key = {table.combination.collective, table.combination.workers};
    if (summarised.insert(key).second) summaries += SummaryText(request, result, key.first, key.second);
    workers.insert(key.second);
  }
  for (const int count : workers) {
    const std::string limits = result.limits().Text(count);
    if (!limits.empty()) text += "#\n" + limits;
  }
  return text + summaries;
}

std::string SlowestText(const SlowestLink& slowest, const std::vector<std::string>& machines) {
  const std::string from = NodeName(slowest.from, machines), to = NodeName(slowest.to, machines);
  const std::string rate = Gbit(slowest.bytes_per_s), others = Gbit(slowest.others_bytes_per_s);
  if (slowest.kind == SlowestLink::Kind::kNone) return "";
  if (slowest.by_latency) {
    const std::string late = Microseconds(slowest.latency_s), usual = Microseconds(slowest.others_latency_s);
    return slowest.node()
               ? Tr("the slowest node is $0: its latency is $1 us or more, that of the others $2 (median)",
                    from, late, usual)
               : Tr("the slowest link is between $0 and $1: its latency is $2 us, the median is $3", from, to,
                    late, usual);
  }
  if (slowest.node()) {
    const char* const does = slowest.sends && slowest.receives ? TrNoop("sends and receives")
                             : slowest.sends                   ? TrNoop("sends")
                                                               : TrNoop("receives");
    return Tr("the slowest node is $0: it $1 at most $2 Gbit/s, while the others reach $3 (median)", from,
              Tr(does), rate, others);
  }
  return Tr(slowest.slow
                ? TrNoop("the slowest link is from $0 to $1: $2 Gbit/s, while the others reach $3 (median)")
                : TrNoop("no node or link is much slower than the others; the slowest link is from $0 to $1: "
                         "$2 Gbit/s (median $3)"),
            from, to, rate, others);
}

std::string NetworkText(const NetworkReport& network, const std::vector<std::string>& machines) {
  std::string text = absl::StrCat(Tr("# Network between $0 machines (measured): Gbit/s from the node of a "
                                     "row to that of a column, one pair at a time",
                                     network.nodes),
                                  "\n");
  absl::StrAppend(
      &text, network.nodes <= kMaxNodesOfMatrix
                 ? Matrices(network)
                 : absl::StrCat(
                       Tr("# the figures of all pairs of $0 nodes are in network.csv", network.nodes), "\n"));
  for (size_t node = 0; node < machines.size() && network.nodes <= kMaxNodesOfMatrix; ++node) {
    absl::StrAppend(&text, "#   node ", node, ": ", machines[node], "\n");
  }
  const std::string slowest = SlowestText(SlowestOf(network), machines);
  return slowest.empty() ? text : absl::StrCat(text, "# ", slowest, "\n");
}

std::string NetworkCsv(const std::string& run_id, const NetworkReport& network,
                       const std::vector<std::string>& machines) {
  std::string text = "schema_version,run_id,from,to,from_machine,to_machine,latency_us,gbit_per_s,basis\n";
  for (int from = 0; from < network.nodes; ++from) {
    for (int to = 0; to < network.nodes; ++to) {
      if (from == to) continue;
      text += CsvLine({"1", run_id, absl::StrCat(from), absl::StrCat(to), machines[from], machines[to],
                       absl::StrFormat("%.6g", 1e6 * network.latency(from, to)),
                       absl::StrFormat("%.6g", 8e-9 * network.rate(from, to)), "measured"});
    }
  }
  return text;
}

}  // namespace psring
