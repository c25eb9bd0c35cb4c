#include "experiments/bench/network_text.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/io/csv.h"
#include "common/text/translate.h"

namespace psring {
namespace {

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
      text += CsvLine({"1", run_id, absl::StrCat(from), absl::StrCat(to), machines[static_cast<size_t>(from)],
                       machines[static_cast<size_t>(to)],
                       absl::StrFormat("%.6g", 1e6 * network.latency(from, to)),
                       absl::StrFormat("%.6g", 8e-9 * network.rate(from, to)), "measured"});
    }
  }
  return text;
}

}  // namespace psring
