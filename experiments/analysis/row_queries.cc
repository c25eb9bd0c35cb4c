#include "experiments/analysis/row_queries.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_join.h"
#include "common/measure/wires.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/table.h"
#include "experiments/design/plan.h"
#include "experiments/machine/machine.h"

namespace psring {
namespace {

// The largest share of computing in a step that counts as limited by the network.
constexpr double kMaxComputing = 0.5;

double SpeedsOfWorkers(const SummaryRow& row) {
  double sum = 0;
  for (const WorkerFigures& worker : row.mean.workers) sum += worker.samples_per_s;
  return sum;
}

void AddTo(const WorkerFigures& worker, double sum, WorkerClass& workers) {
  workers.ranks.push_back(worker.rank);
  workers.share += worker.samples_per_s / sum;
  workers.mean.samples_per_s += worker.samples_per_s;
  const double count = static_cast<double>(workers.ranks.size());
  for (double WorkerFigures::*figure : {&WorkerFigures::step_ms, &WorkerFigures::compute_ms,
                                        &WorkerFigures::comm_busy_ms, &WorkerFigures::exposed_comm_ms}) {
    workers.mean.*figure += (worker.*figure - workers.mean.*figure) / count;
  }
  if (!worker.staleness_mean) return;
  const double so_far = workers.mean.staleness_mean.value_or(0);
  workers.mean.staleness_mean = so_far + (*worker.staleness_mean - so_far) / count;
}

// In the order in which a row lists several. `medium`: what sentences compare, for wires that differ only in
// the library.
struct WireName {
  const char* wire;
  const char* medium;
};

constexpr WireName kWireNames[] = {
    {kOneProcessWire, kOneProcessWire},
    {kCudaPeerWire, kCudaPeerWire},
    {kCudaIpcWire, kCudaIpcWire},
    {kSharedMemoryWire, kSharedMemoryWire},
    {kTcpWire, kTcpWire},
    {kGrpcWire, kTcpWire},
    {kGlooWire, kTcpWire},
    {kMpiSharedMemoryWire, kSharedMemoryWire},
    {kMpiTcpWire, kTcpWire},
    {kMpiWire, kMpiWire},
    {kNcclSocketsWire, kTcpWire},
    {kNcclInfiniBandWire, kNcclInfiniBandWire},
    {kNcclWire, kNcclWire},
};

// std::end(kWireNames): a wire of a later version.
const WireName* Find(const std::string& wire) {
  return std::ranges::find_if(kWireNames, [&](const WireName& name) { return name.wire == wire; });
}

std::vector<std::string> Names(const std::vector<std::string>& wires, const char* WireName::*text) {
  std::vector<std::string> names;
  for (const std::string& wire : wires) {
    const WireName* const known = Find(wire);
    const std::string name = known != std::end(kWireNames) ? Tr(known->*text) : wire;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace

bool IsDisturbed(const SummaryRow& row) {
  return row.mean.gpus_shared == 0 && row.foreign_cpu_pct > kMaxForeignCpuPct;
}

bool IsBesidePsring(const SummaryRow& row) { return row.mean.gpus_shared == 0 && row.other_psring > 0; }

const SummaryRow* FindRow(const std::vector<SummaryRow>& rows, const std::string& strategy, int workers) {
  for (const SummaryRow& row : rows) {
    if (row.configuration.strategy.name == strategy && row.configuration.workers == workers) return &row;
  }
  return nullptr;
}

bool NetworkDecides(const SummaryRow* none, const SummaryRow& row) {
  return none != nullptr && none->link.bits_per_s > 0 &&
         none->mean.step_ms <= kMaxComputing * row.mean.step_ms;
}

bool NetworkDecides(const std::vector<SummaryRow>& rows, int workers) {
  const SummaryRow* none = FindRow(rows, "none", workers);
  return std::ranges::all_of(rows, [&](const SummaryRow& row) {
    return row.configuration.workers != workers || !row.measured_cost ||
           !row.configuration.strategy.communicates() || NetworkDecides(none, row);
  });
}

std::vector<int> TimedCounts(const std::vector<SummaryRow>& rows) {
  std::set<int> counts;
  for (const SummaryRow& row : rows) {
    if (row.measured_cost && row.configuration.workers > 1 &&
        (!row.configuration.oversubscribed || NetworkDecides(rows, row.configuration.workers))) {
      counts.insert(row.configuration.workers);
    }
  }
  return {counts.begin(), counts.end()};
}

std::vector<std::string> ComparedWires(const std::vector<SummaryRow>& rows, const SummaryRow& row) {
  const auto several = [](const SummaryRow& one) { return one.configuration.ranks() > 1; };
  if (!several(row) && std::ranges::any_of(rows, several)) return {};
  return row.configuration.per_machine == 1 ? BetweenMachines(row.mean.wires) : row.mean.wires;
}

std::optional<double> MostSamplesShare(const SummaryRow& row) {
  const StrategyRow& strategy = row.configuration.strategy;
  const double sum = SpeedsOfWorkers(row);
  // Of a replica's workers the first counts the samples.
  const bool is_cut = ReplicaRanks(row.configuration.training) > 1;
  if (!strategy.communicates() || strategy.synchronous || is_cut || sum <= 0) return std::nullopt;
  double most = 0;
  for (const WorkerFigures& worker : row.mean.workers) most = std::max(most, worker.samples_per_s / sum);
  return most;
}

std::vector<WorkerClass> ClassesOf(const SummaryRow& row) {
  const double least = kUnevenShare / row.configuration.workers;
  if (MostSamplesShare(row).value_or(0) <= least) return {};
  const double sum = SpeedsOfWorkers(row);
  std::vector<WorkerClass> classes(2);
  for (const WorkerFigures& worker : row.mean.workers) {
    AddTo(worker, sum, classes[worker.samples_per_s > least * sum ? 0 : 1]);
  }
  if (classes.back().ranks.empty()) classes.pop_back();
  return classes;
}

std::string RankedName(const SummaryRow& row) {
  std::string name = NameWithServers(row);
  const std::vector<WorkerClass> classes = ClassesOf(row);
  if (classes.empty()) return name;
  const WorkerClass& most = classes.front();
  return Tr(most.ranks.size() == 1 ? TrNoop("$0 (worker $1 makes $2% of the $3)")
                                   : TrNoop("$0 (workers $1 make $2% of the $3)"),
            name, absl::StrJoin(most.ranks, Tr(" and ")), Fixed(100 * most.share, 0), UnitOf(row));
}

std::string WithWire(const SummaryRow& row, const std::string& name) {
  return row.configuration.training.server_wire == "stream" ? Tr("$0 (stream)", name) : name;
}

std::string NameWithServers(const SummaryRow& row) {
  const int servers = row.configuration.servers();
  const Configuration& configuration = row.configuration;
  const std::string name = configuration.training.pp > 1 ? configuration.pipeline()
                           : configuration.divides()     ? configuration.layout()
                                                         : configuration.strategy.name;
  return WithWire(row, servers > 1 ? Tr("$0 on $1 servers", name, servers) : name);
}

std::string NamesOrEveryRow(const std::vector<const SummaryRow*>& those, size_t rows) {
  if (those.size() == rows) return Tr("every row");
  std::vector<std::string> names;
  for (const SummaryRow* row : those) names.push_back(row->configuration.name());
  return absl::StrJoin(names, Tr(", "));
}

std::string UnitOf(const SummaryRow& row) { return UnitOf(row.configuration.training.reads_text()); }

void AddWires(const std::vector<std::string>& wires, std::vector<std::string>& all) {
  for (const std::string& wire : wires) {
    if (std::ranges::find(all, wire) == all.end()) all.push_back(wire);
  }
  std::ranges::stable_sort(all, {}, &Find);
}

bool UsesTcp(const std::vector<std::string>& wires) {
  return std::ranges::any_of(wires, [](const std::string& wire) {
    const WireName* const known = Find(wire);
    return known != std::end(kWireNames) && known->medium == std::string_view(kTcpWire);
  });
}

std::vector<std::string> BetweenMachines(const std::vector<std::string>& wires) {
  constexpr std::string_view kWithinAMachine[] = {kSharedMemoryWire, kMpiSharedMemoryWire, kOneProcessWire,
                                                  kCudaIpcWire, kCudaPeerWire};
  std::vector<std::string> others;
  std::ranges::copy_if(wires, std::back_inserter(others), [&](const std::string& wire) {
    return std::ranges::find(kWithinAMachine, wire) == std::end(kWithinAMachine);
  });
  return others.empty() ? wires : others;
}

std::string WireText(const std::vector<std::string>& wires) {
  return absl::StrJoin(Names(wires, &WireName::wire), Tr(", "));
}

std::string MediumText(const std::vector<std::string>& wires) {
  return absl::StrJoin(Names(wires, &WireName::medium), Tr(" and "));
}

std::string WithThousands(double value) {
  const std::string digits = Fixed(std::abs(value), 0);
  std::string text;
  if (value < 0) text.push_back('-');
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string MegabytesOf(int64_t parameters) {
  const double megabytes = 4e-6 * parameters;
  return megabytes < 100 ? ThreeDigits(megabytes) : WithThousands(megabytes);
}

std::vector<std::string> AboveTable(const std::vector<SummaryRow>& rows) {
  if (rows.empty()) return {};
  const Configuration& configuration = rows.front().configuration;
  const TrainingOptions& training = configuration.training;
  const int64_t parameters = std::max(rows.front().sample.parameters, configuration.model.parameters);
  std::vector<std::string> sentences;
  if (parameters > 0 || configuration.model.has_tables) {
    const char* const line = configuration.model.has_tables
                                 ? TrNoop(
                                       "Model: $0, with tables, of which a step exchanges only the rows that "
                                       "it touches, and $1 other parameters ($2 MB of float32 gradients).")
                                 : TrNoop("Model: $0, $1 parameters ($2 MB of float32 gradients).");
    sentences.push_back(
        Tr(line, configuration.model.name, WithThousands(parameters), MegabytesOf(parameters)));
  }
  const std::string samples = Tr(training.reads_text() ? TrNoop("texts") : TrNoop("samples"));
  sentences.push_back(training.global_batch > 0
                          ? Tr("Strong scaling (--global_batch): the workers share $0 $1 per step.",
                               training.global_batch, samples)
                          : Tr("Weak scaling (--batch): every worker computes $0 $1 per step.",
                               WorkerBatch(training) * training.reference_workers, samples));
  return sentences;
}

}  // namespace psring
