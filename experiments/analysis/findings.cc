#include "experiments/analysis/findings.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/cli/delays.h"
#include "common/measure/wires.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/residuals.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/verdict.h"
#include "experiments/design/plan.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

constexpr double kMaxRecording = 0.01;  // of a step
constexpr double kSameBytes = 1e-3;     // relative; chunks have whole floats

bool IsServer(const SummaryRow& row) { return row.configuration.strategy.uses_servers; }

// What carried the row's payload, without the library: "TCP" also for gRPC.
std::string MediumOf(const std::vector<SummaryRow>& rows, const SummaryRow& row) {
  const std::string& transport = row.sample.transport;
  // With --local_aggregation: the exchange with the servers. Without wires: records of an earlier version.
  if (row.configuration.workers_per_push() > 1 || row.mean.wires.empty()) {
    if (transport == "tcp" || transport == "grpc") return Tr(kTcpWire);
    return transport == "shm" ? Tr(kSharedMemoryWire) : transport;
  }
  return MediumText(ComparedWires(rows, row));
}

// A finding, and how much it says: the findings of a kind are sorted by it.
struct Weighed {
  double effect;
  std::string text;
};
void AddSorted(std::vector<Weighed> weighed, std::vector<std::string>& findings) {
  std::ranges::stable_sort(weighed, std::greater(), &Weighed::effect);
  for (Weighed& finding : weighed) findings.push_back(std::move(finding.text));
}

// "95%: 1.1 to 1.3, 5 rounds".
std::string IntervalText(const std::optional<Interval>& interval, int rounds) {
  if (!interval) return Tr("one round, so no interval");
  return Tr("95%: $0 to $1, $2", Fixed(interval->low), Fixed(interval->high), RoundsText(rounds));
}

// `of`: one of the rows.
std::string PairText(const PairedComparison& pair, bool shown, const SummaryRow& of) {
  const std::string ratio = Fixed(pair.ratio), range = IntervalText(pair.interval, of.rounds);
  const std::string unit = UnitOf(of);
  if (shown) return Tr("$0 times the $2/s ($1)", ratio, range, unit);
  const bool excludes_1 = pair.interval && (pair.interval->low > 1 || pair.interval->high < 1);
  return Tr(
      excludes_1
          ? TrNoop("$0 times the $2/s ($1); the difference is too small or too uncertain to name a winner")
          : TrNoop("no difference shown (ratio $0, $1)"),
      ratio, range, unit);
}

void AddCosts(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::vector<Weighed> costs;
  for (int workers : TimedCounts(rows)) {
    const SummaryRow* none = FindRow(rows, "none", workers);
    if (none == nullptr) continue;
    for (const SummaryRow& row : rows) {
      if (row.configuration.workers != workers || !row.cost_against_none_ms) continue;
      const double cost = *row.cost_against_none_ms;
      costs.push_back(
          {cost, Tr("With $0 workers, $1 adds $2 ms to the $3 ms of a step without communication.", workers,
                    RankedName(row), WithRange(Fixed(cost, 1), row.cost_against_none_95, 1),
                    Fixed(none->mean.step_ms, 1))});
    }
  }
  AddSorted(std::move(costs), findings);
}

void AddShards(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  const auto shards = [](const SummaryRow& row) {
    const StrategyRow& strategy = row.configuration.strategy;
    return strategy.shards_updates && !strategy.shards_gradients;
  };
  const auto found = std::ranges::find_if(rows, shards);
  if (found == rows.end()) return;
  findings.push_back(
      Tr("$0 is a parameter server without a server process, with one shard per worker: of N workers each "
         "updates 1/N of the weights and has 1/N of the optimizer's state. It sends the bytes of ring.",
         found->configuration.strategy.name));
}

// Compares every all-reduce strategy with every server strategy that computes the same updates. `hybrid` is
// both.
void AddPairs(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires,
              std::vector<std::string>& findings) {
  struct Pair {
    const SummaryRow *group, *server;
  };
  std::vector<Pair> pairs;
  std::vector<PairedComparison> comparisons;
  std::set<int> counts;
  for (const SummaryRow& row : rows) {
    if (row.measured_cost && row.configuration.workers > 1) counts.insert(row.configuration.workers);
  }
  for (const int workers : counts) {
    const SummaryRow* none = FindRow(rows, "none", workers);
    for (const SummaryRow& group : rows) {
      if (group.configuration.workers != workers || !group.configuration.strategy.uses_group) continue;
      for (const SummaryRow& server : rows) {
        if (group.configuration.strategy.name == server.configuration.strategy.name) continue;
        if (server.configuration.workers != workers || !IsServer(server) ||
            !server.configuration.strategy.synchronous || server.configuration.strategy.number > 0 ||
            server.round_samples_per_s.size() != group.round_samples_per_s.size()) {
          continue;
        }
        // Sharing cores slows both equally, which moves the ratio towards 1. If the network does not limit
        // even the slower one, the ratio is meaningless.
        const SummaryRow& slower = group.mean.step_ms > server.mean.step_ms ? group : server;
        if (group.configuration.oversubscribed && !NetworkDecides(none, slower)) continue;
        const bool one_process = group.configuration.training.ranks_per_process == workers;
        if (group.link.bits_per_s > 0 && one_process) continue;  // it uses no link
        pairs.push_back({&group, &server});
        comparisons.push_back(ComparePairs(group.round_samples_per_s, server.round_samples_per_s));
      }
    }
  }
  if (pairs.empty()) return;
  const std::vector<bool> shown = ShowDifference(comparisons);
  std::vector<Weighed> ratios;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [group, server] = pairs[i];
    ratios.push_back(
        {std::abs(std::log(comparisons[i].ratio)),
         Tr("$0 versus $1 with $2 workers: $3.", group->configuration.strategy.name, NameWithServers(*server),
            group->configuration.workers, PairText(comparisons[i], shown[i], *group))});
  }
  AddSorted(std::move(ratios), findings);
  const LinkReport& link = rows.front().link;
  if (link.bits_per_s > 0) {
    int each = 1, per_push = 1;
    for (const SummaryRow& row : rows) {
      each = std::max(each, row.configuration.training.ranks_per_process);
      per_push = std::max(per_push, row.configuration.workers_per_push());
    }
    const Configuration& first = pairs.front().server->configuration;
    const std::string& placement = first.training.server_placement;
    const bool one_server = std::ranges::all_of(pairs, [&](const Pair& pair) {
      return pair.server->configuration.servers() == 1 && !pair.server->configuration.model.has_tables;
    });
    if (each == 1) {
      for (const std::string& law : ServerLaw(rows)) findings.push_back(law);
    } else if (one_server && placement != "colocated") {
      const bool beside = placement == "rank0";
      const int on_machine = std::max(each, per_push);
      findings.push_back(Tr(
          per_push > 1
              ? TrNoop(
                    "Each machine has $0 workers on one link, which push one sum (--local_aggregation). For "
                    "large gradients, $1 takes $2/($4(N-1)) times as long as a ring in theory (twice that "
                    "with --ps_schedule serial), because its link carries one gradient of every machine$3.")
              : TrNoop("Each machine has $0 workers on one link. For large gradients, $1 takes $2/(2(N-1)) "
                       "times as long as a ring in theory (twice that with --ps_schedule serial), because "
                       "its link carries the gradients of all workers$3, while a ring uses each link once."),
          on_machine, Tr(beside ? TrNoop("one server on rank 0's host") : TrNoop("one dedicated server"), 1),
          beside ? absl::StrCat("N(N-", on_machine, ")") : "N^2", beside ? Tr(" but its own") : "",
          2 * on_machine));
    }
    return;
  }
  findings.push_back(
      Tr("These ratios compare programs and the processor time that they need on one machine, not networks: "
         "all ranks shared one loopback$0.",
         wires ? Tr(" ($0 GB/s in total, $1 us)", Fixed(wires->medium_bytes_per_s / 1e9, 1),
                    Fixed(wires->latency_s * 1e6, 0))
               : ""));
  for (const std::string& law : ServerLaw(rows)) findings.push_back(law);
}

void AddBytes(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::vector<std::string> off, all;
  for (const SummaryRow& row : rows) {
    // Derived bytes come from the same formula.
    if (!row.predicted_payload_bytes || BytesAreDerived(row)) continue;
    const double predicted = *row.predicted_payload_bytes;
    all.push_back(absl::StrCat(row.configuration.name(), " ", Fixed(predicted / 1e6)));
    if (std::abs(row.mean.payload_tx_bytes - predicted) > kSameBytes * std::max(predicted, 1.0)) {
      off.push_back(Tr("$0 sent $1 MB, theory predicts $2 MB", row.configuration.name(),
                       Fixed(row.mean.payload_tx_bytes / 1e6, 3), Fixed(predicted / 1e6, 3)));
    }
  }
  if (all.empty()) return;
  if (off.empty()) {
    findings.push_back(
        Tr("The bytes sent match theory. MB per worker and step: $0.", absl::StrJoin(all, Tr(", "))));
  } else {
    findings.push_back(Tr("Bytes differ from theory: $0.", absl::StrJoin(off, Tr("; "))));
  }
}

void AddDerivedBytes(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::set<std::string> names;
  for (const SummaryRow& row : rows) {
    if (BytesAreDerived(row) && !row.configuration.simulated()) names.insert(row.configuration.strategy.name);
  }
  if (names.empty()) return;
  const bool has_tables = rows.front().configuration.model.has_tables;
  findings.push_back(Tr(has_tables ? TrNoop("The bytes of $0 are derived from the schedule, because external "
                                            "libraries do not count them.")
                                   : TrNoop("The bytes of $0 are derived, 2(N-1)/N of the gradient, because "
                                            "external libraries do not count them."),
                        absl::StrJoin(names, Tr(", "))));
}

void AddStalenessFindings(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::vector<std::string> parts, bounded, uneven, stages;
  for (const SummaryRow& row : rows) {
    const StrategyRow& strategy = row.configuration.strategy;
    if (row.mean.staleness_mean && UpdatesWithoutFlush(row.configuration.training)) {
      stages.push_back(Tr("$0 $1 (at most $2)", row.configuration.name(), Fixed(*row.mean.staleness_mean),
                          row.mean.staleness_max.value_or(0)));
    }
    if (!row.mean.staleness_mean || strategy.synchronous || row.configuration.replicas() < 2) continue;
    if (strategy.number > 0) {  // bounded: every other worker is from K steps behind to K ahead
      bounded.push_back(Tr("$0 $1 (at most $2; the bound is $3)", row.configuration.name(),
                           Fixed(*row.mean.staleness_mean), row.mean.staleness_max.value_or(0),
                           (2 * int64_t{strategy.number} + 1) * (row.configuration.replicas() - 1)));
      continue;
    }
    const int servers = row.configuration.servers();
    parts.push_back(Tr(servers > 1 ? TrNoop("$0 updates with $1 workers on $3 servers (at most $2)")
                                   : TrNoop("$0 updates with $1 workers (at most $2)"),
                       Fixed(*row.mean.staleness_mean), row.configuration.replicas(),
                       row.mean.staleness_max.value_or(0), servers));
    if (!ClassesOf(row).empty()) uneven.push_back(StalenessByWorker(row));
  }
  if (!bounded.empty()) {
    findings.push_back(Tr("Mean staleness (in updates) with a bound on the workers' lead: $0.",
                          absl::StrJoin(bounded, Tr(", "))));
  }
  if (!parts.empty()) {
    findings.push_back(
        Tr("The mean staleness of asynchronous gradients over all launches was $0; in theory it is N-1 while "
           "all workers push.",
           absl::StrJoin(parts, Tr(", "))));
  }
  if (!stages.empty()) {
    findings.push_back(
        Tr("The mean staleness of a pipeline's gradients without a flush was $0, in updates; in theory it is "
           "(P-1)/2 over P stages with pipedream and 1 with pipedream-2bw, if a step has many micro-batches.",
           absl::StrJoin(stages, Tr(", "))));
  }
  std::erase(uneven, "");
  if (!uneven.empty())
    findings.push_back(Tr("Staleness of the gradients in updates: $0.", absl::StrJoin(uneven, Tr("; "))));
}

void AddSimulated(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  const TrainingOptions& training = rows.back().configuration.training;
  const auto describe = [&](const std::string& time, const char* of_a_run) {
    if (absl::StartsWith(time, kTracePrefix)) {
      return Tr(of_a_run, time.substr(std::string(kTracePrefix).size()));
    }
    return time == "none" ? Tr("no time") : Tr("$0 ms", time);
  };
  findings.push_back(
      Tr("Times are simulated: computing a step takes $0, sending a gradient or a set of weights over a "
         "worker's link takes $1, and the server handles pushes one at a time, $2 each. Learning is "
         "measured: the gradients are real, computed on the weights that result from this order.",
         describe(training.compute_ms, TrNoop("as long as in $0")),
         describe(training.network_ms, TrNoop("half of what an exchange took in $0")),
         describe(training.serve_ms, TrNoop("as long as in $0"))));
}

void AddDataParallel(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  for (const SummaryRow& row : rows) {
    const DataParallelFigures& dp = row.sample.data_parallel;
    if (dp.replicas < 2) continue;
    const double workers = static_cast<double>(dp.replicas);
    const auto megabytes = [](double bytes) { return Fixed(bytes / 1e6); };
    const double ring = 2 * (workers - 1) / workers * 4 * static_cast<double>(row.sample.parameters);
    findings.push_back(absl::StrCat(
        Tr("data-parallel with $0 workers: device 0 sends $1 MB per step (inputs $2, weights $3, gradients "
           "of the outputs $4) and receives $5 MB (outputs $6, gradients $7). The model crosses its link N-1 "
           "= $8 times in each direction. ",
           dp.replicas, megabytes(dp.from_device0_bytes()), megabytes(dp.inputs_bytes),
           megabytes(dp.weights_bytes), megabytes(dp.output_gradients_bytes),
           megabytes(dp.to_device0_bytes()), megabytes(dp.outputs_bytes), megabytes(dp.gradients_bytes),
           dp.replicas - 1),
        Tr("In a ring each worker sends $0 MB, always less than twice the model. ", megabytes(ring)),
        Tr("The other devices are idle for $0 of $1 ms while device 0 works (copies and additions $2, loss "
           "$3, update $4). Device 0 holds $5 MB more than the others.",
           Fixed(dp.device0_alone_ms(), 1), Fixed(row.mean.step_ms, 1), Fixed(dp.moved_ms(), 1),
           Fixed(dp.loss_ms, 1), Fixed(dp.update_ms, 1), Fixed(dp.device0_extra_mb, 1))));
  }
}

void AddTransports(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::map<std::string, std::set<std::string>> media;       // by strategy
  std::map<std::string, std::set<std::string>> strategies;  // by medium
  for (const SummaryRow& row : rows) {
    const std::string medium = MediumOf(rows, row);
    if (!medium.empty()) media[row.configuration.strategy.name].insert(medium);
  }
  for (const SummaryRow& row : rows) {
    const std::string medium = MediumOf(rows, row);
    const std::string& strategy = row.configuration.strategy.name;
    if (medium.empty()) continue;
    strategies[medium].insert(media[strategy].size() > 1 ? row.configuration.name() : strategy);
  }
  if (strategies.empty()) return;
  if (strategies.size() == 1) {
    const bool within = std::ranges::any_of(rows, [&](const SummaryRow& row) {
      const std::vector<std::string> wires = ComparedWires(rows, row);
      return !wires.empty() && wires != row.mean.wires;
    });
    findings.push_back(Tr(
        within ? TrNoop("Between machines, all payload went over $0.") : TrNoop("All payload went over $0."),
        strategies.begin()->first));
  } else {
    std::vector<std::string> parts;
    for (const auto& [medium, names] : strategies) {
      parts.push_back(Tr("$0 over $1", absl::StrJoin(names, Tr(", ")), medium));
    }
    findings.push_back(
        Tr("The transports differ: $0. Differences between these rows come from the transport as well as the "
           "strategy. With --transport tcp, and nccl-tcp in place of nccl, all use TCP.",
           absl::StrJoin(parts, Tr("; "))));
  }
  if (std::ranges::any_of(rows,
                          [](const SummaryRow& row) { return row.configuration.workers_per_push() > 1; })) {
    findings.push_back(
        Tr("With --local_aggregation this is the exchange with the servers. Within a machine the workers use "
           "shared memory, and the bytes sent include 3(g-1)/g of the gradient per worker, for g workers on "
           "a machine."));
  }
}

// States the largest cost of recording.
void AddRecording(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  const SummaryRow* most = nullptr;
  const auto share = [](const SummaryRow& row) { return *row.mean.probe_ms / row.mean.step_ms; };
  for (const SummaryRow& row : rows) {
    if (!row.mean.probe_ms || !row.measured_cost || row.mean.step_ms <= 0) continue;
    if (most == nullptr || share(row) > share(*most)) most = &row;
  }
  if (most == nullptr) return;
  const bool dear = share(*most) > kMaxRecording;
  findings.push_back(Tr(
      "Recording took at most $0% of a step ($1: $2 ms, not included in the step's time, measured)$3",
      absl::StrFormat("%.2g", 100 * share(*most)), most->configuration.name(), Fixed(*most->mean.probe_ms, 3),
      Tr(dear ? TrNoop(", above the target of 1%; use longer steps.") : TrNoop("."))));
}

void AddCaveats(const std::vector<SummaryRow>& rows, int cores, std::vector<std::string>& findings) {
  std::set<int> oversubscribed;
  std::vector<const SummaryRow*> foreign, beside;  // disturbed by other programs; by another psring
  for (const SummaryRow& row : rows) {
    if (row.configuration.oversubscribed && !NetworkDecides(rows, row.configuration.workers)) {
      oversubscribed.insert(row.configuration.workers);
    }
    if (row.valid) continue;
    if (IsDisturbed(row)) foreign.push_back(&row);
    if (IsBesidePsring(row)) beside.push_back(&row);
  }
  if (!oversubscribed.empty()) {
    findings.push_back(
        Tr("$0 workers share $1 $2: their bytes and staleness are valid, but their times do not apply to "
           "machines with one core per worker.",
           absl::StrJoin(oversubscribed, Tr(" and ")), cores, cores == 1 ? "core" : "cores"));
  }
  if (!foreign.empty()) {
    findings.push_back(
        Tr("Other programs used more than a third of the processors during $0. Repeat the measurement on an "
           "idle machine.",
           NamesOrEveryRow(foreign, rows.size())));
  }
  if (!beside.empty()) {
    findings.push_back(Tr("Another psring ran during $0. Repeat the measurement when it has ended.",
                          NamesOrEveryRow(beside, rows.size())));
  }
}

}  // namespace

std::string WithRange(const std::string& figure, const std::optional<Interval>& interval, int digits) {
  if (!interval) return figure;
  return Tr("$0 ($1 to $2)", figure, Fixed(interval->low, digits), Fixed(interval->high, digits));
}

std::vector<std::string> Findings(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires,
                                  int cores) {
  // Other programs have disturbed the times of invalid rows. Comparisons of strategies remain: they are
  // paired by round, and their intervals contain the disturbance.
  std::vector<SummaryRow> timed;
  std::ranges::copy_if(rows, std::back_inserter(timed), &SummaryRow::valid);
  std::vector<std::string> findings = VerdictOf(rows, wires).details;
  const auto add = [&](const std::vector<std::string>& more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  if (!rows.empty() && rows.front().configuration.scaled()) {
    findings.push_back(Tr(
        "Times are simulated (--scale $0): links and replayed computing ran $0 times slower, and all times "
        "are divided by $0. The processor time of communication was not slowed, so it is underestimated on "
        "fast links.",
        rows.front().configuration.training.time_scale));
  }
  const bool simulated = !rows.empty() && rows.front().configuration.simulated();
  AddCosts(timed, findings);
  if (!simulated) AddPairs(rows, wires, findings);
  if (const std::string rates = wires ? ServerWireRates(*wires) : ""; !rates.empty()) add({rates});
  add(BucketFindings(rows, wires));
  add(ResidualFindings(rows));
  AddBytes(rows, findings);
  AddDerivedBytes(rows, findings);
  AddStalenessFindings(rows, findings);
  AddShards(rows, findings);
  add(WaitingFindings(timed));
  add(RateFindings(rows));
  AddAccuracy(rows, findings);
  AddDataParallel(rows, findings);
  AddTransports(rows, findings);
  AddTarget(rows, findings);
  if (simulated) AddSimulated(rows, findings);
  AddRecording(rows, findings);
  AddCaveats(rows, cores, findings);
  return findings;
}

}  // namespace psring
