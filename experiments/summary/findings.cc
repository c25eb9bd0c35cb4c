#include "experiments/summary/findings.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cli/delays.h"
#include "experiments/plan/plan_text.h"
#include "experiments/summary/residuals.h"
#include "experiments/summary/row_queries.h"
#include "experiments/summary/table.h"
#include "experiments/summary/time_scale.h"
#include "experiments/summary/wires.h"
#include "experiments/texts/findings.h"
#include "experiments/texts/waiting.h"
#include "experiments/texts/wires.h"

namespace psring {
namespace {

constexpr double kMaxRecording = 0.01;  // of a step
constexpr double kSameBytes = 1e-3;     // relative; chunks have whole floats

bool IsServer(const SummaryRow& row) { return row.configuration.strategy.uses_servers; }

// What carried the row's payload, without the library: "TCP" also for gRPC.
std::string MediumOf(const std::vector<SummaryRow>& rows, const SummaryRow& row, Language language) {
  const std::string& transport = row.sample.transport;
  // With --local_aggregation: the exchange with the servers. Without wires: records of an earlier version.
  if (row.configuration.workers_per_push() > 1 || row.mean.wires.empty()) {
    if (transport == "tcp" || transport == "grpc") return In(language, kTcp);
    return transport == "shm" ? In(language, kSharedMemory) : transport;
  }
  return MediumText(ComparedWires(rows, row), language);
}

std::string Fixed(double value, int digits = 2) { return absl::StrFormat("%.*f", digits, value); }

std::string SignedMs(double value) { return absl::StrFormat("%+.1f", value); }

// "ps-async x 4", for sentences about several worker counts that compare trainings.
std::string WithWorkers(const SummaryRow& row, Language language) {
  return ClassesOf(row).empty() ? row.configuration.name()
                                : absl::StrCat(RankedName(row, language), " x ", row.configuration.workers);
}

// "95%: 1.1 to 1.3, 5 rounds".
std::string IntervalText(const std::optional<Interval>& interval, int rounds, Language language) {
  if (!interval) return In(language, kNoInterval);
  return Say(language, kInterval, Fixed(interval->low), Fixed(interval->high), RoundsText(rounds, language));
}

// "figure (interval)".
std::string WithRange(const std::string& figure, const std::optional<Interval>& interval, int digits,
                      Language language) {
  if (!interval) return figure;
  return Say(language, kBetween, figure, Fixed(interval->low, digits), Fixed(interval->high, digits));
}

// `of`: one of the rows.
std::string PairText(const PairedComparison& pair, bool shown, const SummaryRow& of, Language language) {
  const std::string ratio = Fixed(pair.ratio), range = IntervalText(pair.interval, of.rounds, language);
  const char* const unit = UnitOf(of, language);
  if (shown) return Say(language, kPairWins, ratio, range, unit);
  const bool excludes_1 = pair.interval && (pair.interval->low > 1 || pair.interval->high < 1);
  return Say(language, excludes_1 ? kPairUnclear : kPairEven, ratio, range, unit);
}

void AddCosts(const std::vector<SummaryRow>& rows, Sentences& findings) {
  for (int workers : TimedCounts(rows)) {
    const SummaryRow* none = FindRow(rows, "none", workers);
    if (none == nullptr) continue;
    std::vector<std::string> costs;
    for (const SummaryRow& row : rows) {
      if (row.configuration.workers != workers || !row.cost_against_none_ms) continue;
      costs.push_back(WithRange(
          findings.Say(kCost, RankedName(row, findings.language()), SignedMs(*row.cost_against_none_ms)),
          row.cost_against_none_95, 1, findings.language()));
    }
    if (costs.empty()) continue;
    findings.Add(kCosts, workers, Fixed(none->mean.step_ms, 1), findings.Joined(costs));
  }
}

// Compares every all-reduce strategy with every server strategy that computes the same updates. `hybrid` is
// both.
void AddPairs(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires, Sentences& findings) {
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
      if (group.configuration.workers != workers || !group.configuration.strategy.uses_group) {
        continue;
      }
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
  std::vector<std::string> texts;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [group, server] = pairs[i];
    texts.push_back(findings.Say(kPair, group->configuration.strategy.name,
                                 NameWithServers(*server, findings.language()), group->configuration.workers,
                                 PairText(comparisons[i], shown[i], *group, findings.language())));
  }
  const LinkReport& link = rows.front().link;
  if (link.bits_per_s > 0) {
    int each = 1, per_push = 1;
    for (const SummaryRow& row : rows) {
      each = std::max(each, row.configuration.training.ranks_per_process);
      per_push = std::max(per_push, row.configuration.workers_per_push());
    }
    findings.Add(kPairsOnLink, DescribeLink(link, findings.language()), findings.Joined(texts, kSemicolon));
    const Configuration& first = pairs.front().server->configuration;
    const std::string& placement = first.training.server_placement;
    const bool one_server = std::ranges::all_of(pairs, [&](const Pair& pair) {
      return pair.server->configuration.servers() == 1 && !pair.server->configuration.model.has_tables;
    });
    if (each == 1) {
      for (const std::string& law : ServerLaw(rows, findings.language())) findings.AddText(law);
    } else if (one_server && placement != "colocated") {
      const bool beside = placement == "rank0";
      const int on_machine = std::max(each, per_push);
      findings.Add(per_push > 1 ? kServerOfSumsInTheory : kServerOfMachinesInTheory, on_machine,
                   findings.Say(beside ? kServerOnRank0 : kServerDedicated, 1),
                   beside ? absl::StrCat("N(N-", on_machine, ")") : "N^2",
                   beside ? findings.Say(kOfOtherMachines) : "", 2 * on_machine);
    }
    return;
  }
  findings.Add(kPairsOnLoopback, findings.Joined(texts, kSemicolon));
  findings.Add(kNoNetwork, wires ? findings.Say(kLoopbackSpeed, Fixed(wires->medium_bytes_per_s / 1e9, 1),
                                                Fixed(wires->latency_s * 1e6, 0))
                                 : "");
  for (const std::string& law : ServerLaw(rows, findings.language())) findings.AddText(law);
}

void AddBytes(const std::vector<SummaryRow>& rows, Sentences& findings) {
  std::vector<std::string> off, all;
  for (const SummaryRow& row : rows) {
    // Derived bytes come from the same formula.
    if (!row.predicted_payload_bytes || BytesAreDerived(row)) continue;
    const double predicted = *row.predicted_payload_bytes;
    all.push_back(absl::StrCat(row.configuration.name(), " ", Fixed(predicted / 1e6)));
    if (std::abs(row.mean.payload_tx_bytes - predicted) > kSameBytes * std::max(predicted, 1.0)) {
      off.push_back(findings.Say(kBytesDiffer, row.configuration.name(),
                                 Fixed(row.mean.payload_tx_bytes / 1e6, 3), Fixed(predicted / 1e6, 3)));
    }
  }
  if (all.empty()) return;
  if (off.empty()) {
    findings.Add(kBytesAgree, findings.Joined(all));
  } else {
    findings.Add(kBytesOff, findings.Joined(off, kSemicolon));
  }
}

void AddDerivedBytes(const std::vector<SummaryRow>& rows, Sentences& findings) {
  std::set<std::string> names;
  for (const SummaryRow& row : rows) {
    if (BytesAreDerived(row) && !row.configuration.simulated()) names.insert(row.configuration.strategy.name);
  }
  if (names.empty()) return;
  const bool has_tables = rows.front().configuration.model.has_tables;
  findings.Add(has_tables ? kBytesOfTablesDerived : kBytesDerived, findings.Joined(names));
}

void AddStalenessFindings(const std::vector<SummaryRow>& rows, Sentences& findings) {
  std::vector<std::string> parts, bounded, uneven;
  for (const SummaryRow& row : rows) {
    const StrategyRow& strategy = row.configuration.strategy;
    if (!row.mean.staleness_mean || strategy.synchronous || row.configuration.workers < 2) continue;
    if (strategy.number > 0) {  // bounded: every other worker is from K steps behind to K ahead
      bounded.push_back(findings.Say(kBoundedOne, row.configuration.name(), Fixed(*row.mean.staleness_mean),
                                     row.mean.staleness_max.value_or(0),
                                     (2 * int64_t{strategy.number} + 1) * (row.configuration.workers - 1)));
      continue;
    }
    const int servers = row.configuration.servers();
    parts.push_back(findings.Say(servers > 1 ? kStaleOneOnServers : kStaleOne,
                                 Fixed(*row.mean.staleness_mean), row.configuration.workers,
                                 row.mean.staleness_max.value_or(0), servers));
    if (!ClassesOf(row).empty()) uneven.push_back(StalenessByWorker(row, findings.language()));
  }
  if (!bounded.empty()) findings.Add(kBounded, findings.Joined(bounded));
  if (!parts.empty()) findings.Add(kStale, findings.Joined(parts));
  std::erase(uneven, "");
  if (!uneven.empty()) findings.Add(kLateBy, findings.Joined(uneven, kSemicolon));
}

void AddAccuracy(const std::vector<SummaryRow>& rows, Sentences& findings) {
  std::vector<const SummaryRow*> trained;
  for (const SummaryRow& row : rows) {
    if (row.test_accuracy) trained.push_back(&row);
  }
  if (trained.empty()) return;
  const SummaryRow& any = *trained.back();
  const auto is_any = [&](auto is) { return std::ranges::any_of(trained, is); };
  const bool rules_differ = is_any([&](const SummaryRow* row) { return !SameUpdateRule(*row, any); });
  std::vector<std::string> parts;
  for (const SummaryRow* row : trained) {
    const std::string name = WithWorkers(*row, findings.language());
    const StrategyUpdate& update = row->configuration.update;
    const std::string named =
        rules_differ ? findings.Say(kUpdateRule, name, update.optimizer, update.lr) : name;
    parts.push_back(WithRange(absl::StrFormat("%s %.4f", named, *row->test_accuracy), row->test_accuracy_95,
                              4, findings.language()));
  }
  const bool one = any.trainings == 1;
  std::string text = findings.Say(kAccuracy, WithThousands(static_cast<double>(any.trained_samples)),
                                  one ? findings.Say(kOneSeed) : findings.Say(kSeeds, any.trainings),
                                  findings.Joined(parts), UnitOf(any, findings.language()));
  if (parts.size() > 1) {
    if (one) text += findings.Say(kSeedMoves);
    if (rules_differ) text += findings.Say(kUpdateRules);
    const bool fixed_batch = any.configuration.training.global_batch > 0;
    std::set<int> synchronous;  // their worker counts
    for (const SummaryRow* row : trained) {
      if (row->configuration.strategy.synchronous) synchronous.insert(row->configuration.workers);
    }
    if (synchronous.size() > 1) text += findings.Say(fixed_batch ? kEqualUpdates : kFewerUpdates);
    if (fixed_batch &&
        is_any([](const SummaryRow* row) { return !row->configuration.strategy.synchronous; })) {
      text += findings.Say(kMoreUpdates);
    }
  }
  findings.AddText(text);
}

void AddTarget(const std::vector<SummaryRow>& rows, Sentences& findings) {
  std::vector<std::string> reached, missed;
  double target = 0;
  for (const SummaryRow& row : rows) {
    if (row.configuration.target_accuracy == 0 || !row.test_accuracy) continue;
    target = row.configuration.target_accuracy;
    if (!row.time_to_target_s) {
      missed.push_back(findings.Say(kTargetMissed, WithWorkers(row, findings.language()), row.reached_target,
                                    row.trainings));
      continue;
    }
    reached.push_back(WithRange(
        findings.Say(kTargetOne, WithWorkers(row, findings.language()), Fixed(*row.time_to_target_s)),
        row.time_to_target_95, 2, findings.language()));
  }
  if (target == 0) return;
  findings.Add(kTarget, target, reached.empty() ? findings.Say(kNoStrategy) : findings.Joined(reached),
               missed.empty() ? "" : findings.Say(kNotReached, findings.Joined(missed)));
}

void AddSimulated(const std::vector<SummaryRow>& rows, Sentences& findings) {
  const TrainingOptions& training = rows.back().configuration.training;
  const auto describe = [&](const std::string& time, const Phrase& of_a_run) {
    if (absl::StartsWith(time, kTracePrefix)) {
      return findings.Say(of_a_run, time.substr(std::string(kTracePrefix).size()));
    }
    return time == "none" ? findings.Say(kNoTime) : findings.Say(kMilliseconds, time);
  };
  findings.Add(kSimulatedTimes, describe(training.compute_ms, kAsLongAsIn),
               describe(training.network_ms, kHalfOfExchange), describe(training.serve_ms, kAsLongAsIn));
}

void AddDataParallel(const std::vector<SummaryRow>& rows, Sentences& findings) {
  for (const SummaryRow& row : rows) {
    const DataParallelFigures& dp = row.sample.data_parallel;
    if (dp.replicas < 2) continue;
    const double workers = static_cast<double>(dp.replicas);
    const auto megabytes = [](double bytes) { return Fixed(bytes / 1e6); };
    const double ring = 2 * (workers - 1) / workers * 4 * static_cast<double>(row.sample.parameters);
    findings.AddText(absl::StrCat(
        findings.Say(kDataParallelBytes, dp.replicas, megabytes(dp.from_device0_bytes()),
                     megabytes(dp.inputs_bytes), megabytes(dp.weights_bytes),
                     megabytes(dp.output_gradients_bytes), megabytes(dp.to_device0_bytes()),
                     megabytes(dp.outputs_bytes), megabytes(dp.gradients_bytes), dp.replicas - 1),
        findings.Say(kDataParallelRing, megabytes(ring)),
        findings.Say(kDataParallelAlone, Fixed(dp.device0_alone_ms(), 1), Fixed(row.mean.step_ms, 1),
                     Fixed(dp.moved_ms(), 1), Fixed(dp.loss_ms, 1), Fixed(dp.update_ms, 1),
                     Fixed(dp.device0_extra_mb, 1))));
  }
}

void AddTransports(const std::vector<SummaryRow>& rows, Sentences& findings) {
  std::map<std::string, std::set<std::string>> media;       // by strategy
  std::map<std::string, std::set<std::string>> strategies;  // by medium
  for (const SummaryRow& row : rows) {
    const std::string medium = MediumOf(rows, row, findings.language());
    if (!medium.empty()) media[row.configuration.strategy.name].insert(medium);
  }
  for (const SummaryRow& row : rows) {
    const std::string medium = MediumOf(rows, row, findings.language());
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
    findings.Add(within ? kOneWireBetween : kOneWire, strategies.begin()->first);
  } else {
    std::vector<std::string> parts;
    for (const auto& [medium, names] : strategies) {
      parts.push_back(findings.Say(kOverWire, findings.Joined(names), medium));
    }
    findings.Add(kWiresDiffer, findings.Joined(parts, kSemicolon));
  }
  if (std::ranges::any_of(rows,
                          [](const SummaryRow& row) { return row.configuration.workers_per_push() > 1; })) {
    findings.Add(kWithinMachines);
  }
}

// States the largest cost of recording.
void AddRecording(const std::vector<SummaryRow>& rows, Sentences& findings) {
  const SummaryRow* most = nullptr;
  const auto share = [](const SummaryRow& row) { return *row.mean.probe_ms / row.mean.step_ms; };
  for (const SummaryRow& row : rows) {
    if (!row.mean.probe_ms || !row.measured_cost || row.mean.step_ms <= 0) continue;
    if (most == nullptr || share(row) > share(*most)) most = &row;
  }
  if (most == nullptr) return;
  const bool dear = share(*most) > kMaxRecording;
  findings.Add(kRecording, absl::StrFormat("%.2g", 100 * share(*most)), most->configuration.name(),
               Fixed(*most->mean.probe_ms, 3), findings.Say(dear ? kRecordingDear : kRecordingFine));
}

void AddCaveats(const std::vector<SummaryRow>& rows, int cores, Sentences& findings) {
  std::set<int> oversubscribed;
  std::vector<std::string> foreign;
  for (const SummaryRow& row : rows) {
    if (row.configuration.oversubscribed && !NetworkDecides(rows, row.configuration.workers)) {
      oversubscribed.insert(row.configuration.workers);
    }
    if (!row.valid && row.mean.gpus_shared == 0) foreign.push_back(row.configuration.name());
  }
  if (!oversubscribed.empty()) {
    findings.Add(kTakeTurns, findings.Joined(oversubscribed, kAnd), cores, cores == 1 ? "core" : "cores");
  }
  if (!foreign.empty()) {
    findings.Add(kForeign,
                 foreign.size() == rows.size() ? findings.Say(kEveryRow) : findings.Joined(foreign));
  }
}

}  // namespace

std::vector<std::string> Findings(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires,
                                  int cores, Language language) {
  // Other programs have disturbed the times of invalid rows. Comparisons of strategies remain: they are
  // paired by round, and their intervals contain the disturbance.
  std::vector<SummaryRow> timed;
  std::ranges::copy_if(rows, std::back_inserter(timed), &SummaryRow::valid);
  Sentences findings(language);
  for (const std::string& finding : ScaleFindings(rows, language)) findings.AddText(finding);
  const bool simulated = !rows.empty() && rows.front().configuration.simulated();
  AddCosts(timed, findings);
  if (!simulated) AddPairs(rows, wires, findings);
  for (const std::string& finding : BucketFindings(rows, wires, language)) findings.AddText(finding);
  for (const std::string& finding : ResidualFindings(rows, language)) findings.AddText(finding);
  AddBytes(rows, findings);
  AddDerivedBytes(rows, findings);
  AddStalenessFindings(rows, findings);
  for (const std::string& finding : WaitingFindings(timed, language)) findings.AddText(finding);
  for (const std::string& finding : RateFindings(rows, language)) findings.AddText(finding);
  AddAccuracy(rows, findings);
  AddDataParallel(rows, findings);
  AddTransports(rows, findings);
  AddTarget(rows, findings);
  if (simulated) AddSimulated(rows, findings);
  AddRecording(rows, findings);
  AddCaveats(rows, cores, findings);
  return findings.list();
}

}  // namespace psring
