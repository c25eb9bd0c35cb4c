// What other nodes of --nnodes send: an order with its job, a list of record files, and figures of the
// network.
#include "absl/strings/str_split.h"
#include "experiments/launch/node_order.h"
#include "experiments/machine/network_report.h"
#include "tests/fuzz/input.h"

namespace psring {
namespace {

constexpr int kNodes = 3;

void Obey(const NodeOrder& order) {
  NodeSetup own{.binaries = {.trainer = "/trainer", .ps_server = "/ps_server"},
                .strategies = {"ring", "ps-sync"},
                .servers = {0, 1, 2},
                .tries_rates = true,
                .layout = {.nodes = kNodes, .server_nodes = 1, .per_node = 2}};
  own.training.server_placement = "dedicated";
  const auto job = JobOf(order, own, "10.0.0.1", "/folder");
  if (!job.ok()) return;
  for (int node = 0; node < kNodes; ++node) {
    const JobHost host{.binaries = own.binaries, .records = "/folder", .address = "10.0.0.2"};
    const NodePart part = PartOf(*job, node);
    (void)RecordNames(*job, part);
    for (const int process : part.processes) (void)TrainerProcess(*job, host, process);
    for (const int server : part.servers) (void)ServerProcess(*job, host, server);
  }
}

// `sent`: of each node, for every phase.
void Measure(const std::vector<std::string>& sent) {
  const std::vector<ProbePhase> phases = ProbePhases(kNodes, ProbeScope::kAllPairs);
  std::vector<std::vector<double>> results;
  for (const ProbePhase& phase : phases) {
    const auto figures = FiguresOf(phase, sent);
    results.push_back(figures.ok() ? *figures : std::vector<double>());
  }
  (void)SlowestOf(ReportOf(kNodes, phases, results));
}

}  // namespace
}  // namespace psring

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = psring::TextOf(data, size);
  const auto order = psring::NodeOrderFromJson(text);
  if (order.ok() && !order->over && !order->probes) psring::Obey(*order);
  (void)psring::NamedRecords(text, {"steps-rank0.jsonl", "result-rank0.json"});
  psring::Measure(absl::StrSplit(text, absl::MaxSplits('\n', psring::kNodes - 1)));
  return 0;
}
