#include "experiments/compare/findings.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/delays.h"
#include "experiments/compare/residuals.h"
#include "experiments/compare/table.h"
#include "experiments/compare/waiting_findings.h"

namespace psring {
namespace {

constexpr double kMostRecording = 0.01;  // of a step
constexpr double kSameBytes = 1e-3;      // relative: chunks are whole floats

const SummaryRow* Find(const std::vector<SummaryRow>& rows, const std::string& strategy, int workers) {
  for (const SummaryRow& row : rows) {
    if (row.configuration.strategy.name == strategy && row.configuration.workers == workers) return &row;
  }
  return nullptr;
}

bool IsServer(const SummaryRow& row) {
  return row.configuration.strategy.needs == StrategyNeeds::kParameterServer;
}

// gRPC is TCP too.
std::string WiresName(const std::string& transport) {
  if (transport == "tcp" || transport == "grpc") return "TCP";
  return transport == "shm" ? "shared memory" : transport;
}

// "ps-sync on 2 servers": where a sentence names the workers already.
std::string NameOf(const SummaryRow& row) {
  const int servers = row.configuration.servers();
  return absl::StrCat(row.configuration.strategy.name,
                      servers > 1 ? absl::StrCat(" on ", servers, " servers") : "");
}

std::string Range(const std::optional<Interval>& interval) {
  if (!interval) return "one round, so no interval";
  return absl::StrFormat("95%%: %.2f to %.2f", interval->low, interval->high);
}

std::string Verdict(const PairedComparison& pair, int rounds) {
  if (pair.differs) {
    return absl::StrFormat("%.2f times the samples/s (%s, %d rounds)", pair.ratio, Range(pair.interval),
                           rounds);
  }
  if (pair.too_few_rounds) {
    return absl::StrFormat("%.2f times the samples/s, but %d rounds are too few to call that a difference",
                           pair.ratio, rounds);
  }
  return absl::StrFormat("no difference shown (ratio %.2f, %s, %d %s)", pair.ratio, Range(pair.interval),
                         rounds, rounds == 1 ? "round" : "rounds");
}

// What computing may take of a step for the network to be what is measured.
constexpr double kMostComputing = 0.3;

// With more workers than cores computing takes turns; where a shaped link takes most of every step, that does
// not decide.
bool NetworkDecides(const std::vector<SummaryRow>& rows, int workers) {
  const SummaryRow* none = Find(rows, "none", workers);
  if (none == nullptr || none->link.bits_per_s <= 0) return false;
  return std::all_of(rows.begin(), rows.end(), [&](const SummaryRow& row) {
    return row.configuration.workers != workers || !row.measured_cost ||
           row.configuration.strategy.needs == StrategyNeeds::kNothing ||
           none->mean.step_ms <= kMostComputing * row.mean.step_ms;
  });
}

// Worker counts whose times mean something: several workers, and a core for each or a network that decides.
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

void AddCosts(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  for (int workers : TimedCounts(rows)) {
    const SummaryRow* none = Find(rows, "none", workers);
    if (none == nullptr) continue;
    std::vector<std::string> costs;
    for (const SummaryRow& row : rows) {
      if (row.configuration.workers != workers || !row.cost_against_none_ms) continue;
      std::string cost = absl::StrFormat("%s %+.1f ms", NameOf(row), *row.cost_against_none_ms);
      if (row.cost_against_none_95) {
        absl::StrAppendFormat(&cost, " (%.1f to %.1f)", row.cost_against_none_95->low,
                              row.cost_against_none_95->high);
      }
      costs.push_back(cost);
    }
    if (costs.empty()) continue;
    findings.push_back(
        absl::StrFormat("With %d workers a step without any communication takes %.1f ms. Keeping the "
                        "replicas in step costs on top: %s.",
                        workers, none->mean.step_ms, absl::StrJoin(costs, ", ")));
  }
}

// Every all-reduce strategy against every server strategy that gives the same mathematics.
void AddPairs(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires,
              std::vector<std::string>& findings) {
  std::vector<std::string> pairs;
  for (int workers : TimedCounts(rows)) {
    for (const SummaryRow& group : rows) {
      if (group.configuration.workers != workers ||
          group.configuration.strategy.needs != StrategyNeeds::kProcessGroup) {
        continue;
      }
      for (const SummaryRow& server : rows) {
        if (server.configuration.workers != workers || !IsServer(server) ||
            !server.configuration.strategy.synchronous || server.configuration.strategy.number > 0 ||
            server.round_samples_per_s.size() != group.round_samples_per_s.size()) {
          continue;
        }
        // In one process they use no link.
        const bool alone = group.configuration.training.ranks_per_process == workers;
        if (group.link.bits_per_s > 0 && workers > 1 && alone) continue;
        const PairedComparison pair = ComparePairs(group.round_samples_per_s, server.round_samples_per_s);
        const std::string names = absl::StrFormat("%s against %s with %d workers",
                                                  group.configuration.strategy.name, NameOf(server), workers);
        pairs.push_back(absl::StrCat(names, ": ", Verdict(pair, group.rounds)));
      }
    }
  }
  if (pairs.empty()) return;
  const LinkReport& link = rows.front().link;
  if (link.bits_per_s > 0 && !link.invalid.empty()) {
    findings.push_back(
        absl::StrCat("It names no winner: this machine did not carry the network (", link.invalid, ")."));
    return;
  }
  if (link.bits_per_s > 0) {
    findings.push_back(absl::StrCat("On ", DescribeLink(link), ": ", absl::StrJoin(pairs, "; "), "."));
    int each = 1;
    for (const SummaryRow& row : rows) each = std::max(each, row.configuration.training.ranks_per_process);
    findings.push_back(
        each == 1
            ? "Theory for large gradients gives one server on rank 0 N/2 times a ring's time (N times with "
              "--ps_schedule serial): its link carries the gradients of all others."
            : absl::StrFormat(
                  "A machine has %1$d workers behind its link. Theory for large gradients gives one server "
                  "on rank 0 N(N-%1$d)/(2(N-1)) times a ring's time (twice that with --ps_schedule serial): "
                  "its link carries the gradients of all workers elsewhere, and a ring passes each link "
                  "once.",
                  each));
    return;
  }
  findings.push_back(
      absl::StrCat(absl::StrJoin(pairs, "; "),
                   ". That compares two programs and the processor time they need, on one machine."));
  std::string loopback = "It names no winner for a network: all ranks shared one loopback";
  if (wires) {
    absl::StrAppendFormat(&loopback, " (%.1f GB/s in all, %.0f us)", wires->medium_bytes_per_s / 1e9,
                          wires->latency_s * 1e6);
  }
  findings.push_back(absl::StrCat(
      loopback,
      ", on which a server has no link of its own to fill and a ring none to spread over. Where every "
      "machine has its own link, theory gives one server on rank 0 N/2 times a ring's time (N times with "
      "--ps_schedule serial) for large gradients."));
}

void AddBytes(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::vector<std::string> off;
  int compared = 0;
  for (const SummaryRow& row : rows) {
    // Others' bytes are derived from the same formula, so they would prove nothing.
    if (!row.predicted_payload_bytes || BytesAreDerived(row)) continue;
    ++compared;
    const double predicted = *row.predicted_payload_bytes;
    if (std::abs(row.mean.payload_tx_bytes - predicted) > kSameBytes * std::max(predicted, 1.0)) {
      off.push_back(absl::StrFormat("%s sent %.3f MB where theory has %.3f", row.configuration.name(),
                                    row.mean.payload_tx_bytes / 1e6, predicted / 1e6));
    }
  }
  if (compared == 0) return;
  findings.push_back(
      off.empty() ? "The bytes sent are those of theory: an all-reduce sends 2(N-1)/N of the gradient "
                    "per worker and step, a server's worker one gradient (and one set of weights back)."
                  : absl::StrCat("Bytes differ from theory: ", absl::StrJoin(off, "; "), "."));
}

void AddDerivedBytes(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::set<std::string> names;
  for (const SummaryRow& row : rows) {
    if (BytesAreDerived(row) && !row.configuration.simulated()) names.insert(row.configuration.strategy.name);
  }
  if (names.empty()) return;
  findings.push_back(absl::StrCat("The bytes of ", absl::StrJoin(names, ", "),
                                  " are derived, 2(N-1)/N of the gradient: other people's collectives do not "
                                  "count theirs."));
}

void AddStaleness(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::vector<std::string> parts, bounded;
  for (const SummaryRow& row : rows) {
    const StrategyInfo& strategy = row.configuration.strategy;
    if (!row.mean.staleness_mean || strategy.synchronous || row.configuration.workers < 2) continue;
    if (strategy.number > 0) {  // bounded staleness: of every other worker, from K steps behind to K ahead
      bounded.push_back(
          absl::StrFormat("%s %.2f (at most %d; the bound is %d)", row.configuration.name(),
                          *row.mean.staleness_mean, row.mean.staleness_max.value_or(0),
                          (2 * int64_t{strategy.number} + 1) * (row.configuration.workers - 1)));
      continue;
    }
    const int servers = row.configuration.servers();
    parts.push_back(absl::StrFormat(
        "%.2f updates with %d workers%s (at most %d)", *row.mean.staleness_mean, row.configuration.workers,
        servers > 1 ? absl::StrCat(" on ", servers, " servers") : "", row.mean.staleness_max.value_or(0)));
  }
  if (!bounded.empty()) {
    findings.push_back(absl::StrCat(
        "Mean staleness in updates under a bound on the workers' lead: ", absl::StrJoin(bounded, ", "), "."));
  }
  if (parts.empty()) return;
  findings.push_back(absl::StrCat("The mean staleness of asynchronous gradients was ",
                                  absl::StrJoin(parts, ", "), "; theory says N-1 while all workers push."));
}

void AddAccuracy(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::vector<std::string> parts;
  const SummaryRow* any = nullptr;
  for (const SummaryRow& row : rows) {
    if (!row.test_accuracy) continue;
    any = &row;
    std::string part = absl::StrFormat("%s %.4f", row.configuration.name(), *row.test_accuracy);
    if (row.test_accuracy_95) {
      absl::StrAppendFormat(&part, " (%.4f to %.4f)", row.test_accuracy_95->low, row.test_accuracy_95->high);
    }
    parts.push_back(part);
  }
  if (any == nullptr) return;
  std::string text =
      absl::StrFormat("Test accuracy after %s samples over all workers, %s: %s.",
                      WithThousands(static_cast<double>(any->trained_samples)),
                      any->trainings == 1 ? "one seed" : absl::StrCat("mean of ", any->trainings, " seeds"),
                      absl::StrJoin(parts, ", "));
  if (parts.size() > 1) {
    if (any->trainings == 1) text += " Another seed alone moves this by several thousandths.";
    text += " Synchronous strategies make fewer and larger updates the more workers there are.";
  }
  findings.push_back(text);
}

void AddTarget(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::vector<std::string> reached, missed;
  double target = 0;
  for (const SummaryRow& row : rows) {
    if (row.configuration.target_accuracy == 0 || !row.test_accuracy) continue;
    target = row.configuration.target_accuracy;
    if (!row.time_to_target_s) {
      missed.push_back(absl::StrFormat("%s (%d of %d trainings did)", row.configuration.name(),
                                       row.reached_target, row.trainings));
      continue;
    }
    std::string part = absl::StrFormat("%s %.2f s", row.configuration.name(), *row.time_to_target_s);
    if (row.time_to_target_95) {
      absl::StrAppendFormat(&part, " (%.2f to %.2f)", row.time_to_target_95->low,
                            row.time_to_target_95->high);
    }
    reached.push_back(part);
  }
  if (target == 0) return;
  findings.push_back(absl::StrCat(
      "To a test accuracy of ", target, ": ", reached.empty() ? "nobody" : absl::StrJoin(reached, ", "),
      missed.empty() ? "" : absl::StrCat("; not reached by ", absl::StrJoin(missed, ", ")),
      ". Taken from the curve, so late by up to the time between two evaluations, which is not in it."));
}

void AddSimulated(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  const TrainingOptions& training = rows.back().configuration.training;
  const auto words = [](const std::string& time, const char* of_a_run) {
    if (absl::StartsWith(time, kTracePrefix)) {
      return absl::StrCat(of_a_run, " ", time.substr(std::string(kTracePrefix).size()));
    }
    return time == "none" ? std::string("no time") : absl::StrCat(time, " ms");
  };
  findings.push_back(absl::StrCat("Times are simulated: a step computes for ",
                                  words(training.compute_ms, "as long as in"),
                                  ", a gradient or a set of weights takes ",
                                  words(training.network_ms, "half of what an exchange took in"),
                                  " on a worker's link, and a push ", words(training.serve_ms, ""),
                                  " at the server, one after the other. Learning is measured: real gradients "
                                  "on the weights that this order "
                                  "yields."));
}

// Why people moved on from DataParallel.
void AddDataParallel(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  for (const SummaryRow& row : rows) {
    const DataParallelFigures& dp = row.sample.data_parallel;
    if (dp.replicas < 2) continue;
    const double workers = static_cast<double>(dp.replicas);
    findings.push_back(absl::StrCat(
        absl::StrFormat(
            "dp with %d workers: device 0 sends %.2f MB a step (inputs %.2f, weights %.2f, the "
            "outputs' gradients %.2f) and takes %.2f MB (outputs %.2f, gradients %.2f): the model "
            "N-1 = %d times each way. ",
            dp.replicas, dp.from_device0_bytes() / 1e6, dp.inputs_bytes / 1e6, dp.weights_bytes / 1e6,
            dp.output_gradients_bytes / 1e6, dp.to_device0_bytes() / 1e6, dp.outputs_bytes / 1e6,
            dp.gradients_bytes / 1e6, dp.replicas - 1),
        absl::StrFormat("A ring's workers send %.2f MB each, and never twice the model. ",
                        2 * (workers - 1) / workers * 4 * static_cast<double>(row.sample.parameters) / 1e6),
        absl::StrFormat("Device 0 works alone for %.1f of %.1f ms (copies and additions %.1f, loss %.1f, "
                        "update %.1f) and holds %.1f MB that the others do not.",
                        dp.device0_alone_ms(), row.mean.step_ms, dp.moved_ms(), dp.loss_ms, dp.update_ms,
                        dp.device0_extra_mb)));
  }
}

// What moved the payload of each strategy that has any.
void AddWires(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  std::map<std::string, std::set<std::string>> strategies;  // by wires
  for (const SummaryRow& row : rows) {
    if (!row.sample.transport.empty()) {
      strategies[WiresName(row.sample.transport)].insert(row.configuration.strategy.name);
    }
  }
  if (strategies.empty()) return;
  if (strategies.size() == 1) {
    findings.push_back(absl::StrCat("All payload went over ", strategies.begin()->first, "."));
    return;
  }
  std::vector<std::string> parts;
  for (const auto& [wires, names] : strategies) {
    parts.push_back(absl::StrCat(absl::StrJoin(names, ", "), " over ", wires));
  }
  findings.push_back(
      absl::StrCat("The wires differ: ", absl::StrJoin(parts, "; "),
                   ". What separates these rows is the wire as much as the strategy; --fabric tcp "
                   "gives all but NCCL the same."));
}

// What spans, counters and the steps' lines cost, where they cost most.
void AddRecording(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings) {
  const SummaryRow* most = nullptr;
  const auto share = [](const SummaryRow& row) { return *row.mean.probe_ms / row.mean.step_ms; };
  for (const SummaryRow& row : rows) {
    if (!row.mean.probe_ms || !row.measured_cost || row.mean.step_ms <= 0) continue;
    if (most == nullptr || share(row) > share(*most)) most = &row;
  }
  if (most == nullptr) return;
  const bool dear = share(*most) > kMostRecording;
  findings.push_back(absl::StrFormat(
      "Recording cost at most %.2g%% of a step (%s: %.3f ms, outside of its time, measured)%s",
      100 * share(*most), most->configuration.name(), *most->mean.probe_ms,
      dear ? ": more than the 1% that it is meant to; take longer steps." : "."));
}

void AddCaveats(const std::vector<SummaryRow>& rows, int cores, std::vector<std::string>& findings) {
  std::set<int> crowded;
  std::vector<std::string> foreign;
  for (const SummaryRow& row : rows) {
    if (row.configuration.oversubscribed && !NetworkDecides(rows, row.configuration.workers)) {
      crowded.insert(row.configuration.workers);
    }
    if (!row.valid && row.link.invalid.empty() && row.mean.gpus_shared == 0)
      foreign.push_back(row.configuration.name());
  }
  if (!crowded.empty()) {
    findings.push_back(
        absl::StrFormat("%s workers on %d %s take turns: their bytes and staleness hold, their times do not "
                        "carry over to machines "
                        "with a core for each.",
                        absl::StrJoin(crowded, " and "), cores, cores == 1 ? "core" : "cores"));
  }
  if (!foreign.empty()) {
    const std::string which = foreign.size() == rows.size() ? "every row" : absl::StrJoin(foreign, ", ");
    findings.push_back(absl::StrCat("Others used more than a quarter of the processors during ", which,
                                    ": run it again on a quiet machine before you rely on that."));
  }
}

}  // namespace

std::vector<std::string> Findings(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires,
                                  int cores) {
  std::vector<std::string> findings;
  const bool simulated = !rows.empty() && rows.front().configuration.simulated();
  AddCosts(rows, findings);
  if (!simulated) AddPairs(rows, wires, findings);
  for (const std::string& finding : ResidualFindings(rows)) findings.push_back(finding);
  AddBytes(rows, findings);
  AddDerivedBytes(rows, findings);
  AddStaleness(rows, findings);
  for (const std::string& finding : WaitingFindings(rows)) findings.push_back(finding);
  AddAccuracy(rows, findings);
  AddDataParallel(rows, findings);
  AddWires(rows, findings);
  AddTarget(rows, findings);
  if (simulated) AddSimulated(rows, findings);
  AddRecording(rows, findings);
  AddCaveats(rows, cores, findings);
  return findings;
}

}  // namespace psring
