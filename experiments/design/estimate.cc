#include "experiments/design/estimate.h"

#include <algorithm>

#include "common/cli/delays.h"
#include "trainer/programs/program_rows.h"

namespace psring {
namespace {

constexpr double kPayloadBytesPerS = 1.2e9;  // over the loopback, including adding and copying
constexpr double kEvaluationShare = 0.4;     // forward pass / training time of a sample

// The delay per step of the most delayed worker.
double DelaySeconds(const TrainingOptions& training, const Probe& probe) {
  double slowest = 1;
  if (const auto stragglers = ParseStragglers(training.straggler); stragglers.ok()) {
    for (const Straggler& straggler : *stragglers) slowest = std::max(slowest, straggler.factor);
  }
  const auto jitter = ParseTimeDistribution(training.jitter_ms);
  return (slowest - 1) * ComputeSeconds(training, probe) + (jitter.ok() ? 2e-3 * jitter->mean_ms() : 0);
}

// One step including its exchange. More workers than cores share processor time.
double StepSeconds(const Configuration& configuration, const Probe& probe, int cores) {
  // Of a rank: its part of the model, and of its sequences.
  const int parts = ReplicaRanks(configuration.training) / configuration.training.cp;
  const double compute_s =
      ComputeSeconds(configuration.training, probe) / ReplicaRanks(configuration.training);
  if (configuration.simulated()) return compute_s * configuration.workers;  // one after the other
  // While a rank waits for its pipeline, others can use its core.
  const double longest = 1 / (1 - BubbleOf(configuration.training));
  double crowding = longest;
  if (configuration.training.workload.empty()) {
    crowding = std::max(crowding,
                        static_cast<double>(configuration.workers * configuration.training.threads) / cores);
  }
  const double bytes = ExchangeBytes(configuration, probe.parameters) / parts;
  double moved = 0;
  if (configuration.strategy.uses_servers) moved = 2 * configuration.workers * bytes;
  if (configuration.strategy.uses_group) moved = 2 * (configuration.workers - parts) * bytes;
  double exchange_s = moved / kPayloadBytesPerS;
  const std::optional<Scheme> scheme = SchemeOf(configuration.strategy);
  if (probe.link && scheme && *scheme != Scheme::kNone) {
    // Workers queue at a server even if they do not wait for one another.
    CommPattern pattern = PatternOf(configuration, *scheme);
    if (pattern.scheme == Scheme::kServerAsync) pattern.scheme = Scheme::kServerSync;
    // Stages exchange at the same time, over links of their own unless rank 0's host has all servers.
    const double part = configuration.has_worker_without_link() ? 1 : parts;
    std::vector<double> buckets;
    for (const int64_t elements : probe.bucket_elements)
      buckets.push_back(ExchangeBytes(configuration, elements) / part);
    exchange_s +=
        buckets.empty()
            ? ExchangeSeconds(pattern, ExchangeBytes(configuration, probe.parameters) / part, *probe.link)
            : ExchangeSeconds(pattern, buckets, *probe.link);
  }
  return compute_s * crowding + exchange_s + DelaySeconds(configuration.training, probe);
}

}  // namespace

double ComputeSeconds(const TrainingOptions& training, const Probe& probe) {
  if (probe.step_samples <= 0) return probe.step_s;
  return probe.step_s * static_cast<double>(WorkerBatch(training)) / probe.step_samples;
}

ServerPlace PlaceOf(const std::string& placement) {
  if (placement == "dedicated") return ServerPlace::kDedicated;
  return placement == "colocated" ? ServerPlace::kColocated : ServerPlace::kRank0;
}

double ExchangeBytes(const Configuration& configuration, int64_t elements) {
  const TrainingOptions& training = configuration.training;
  const double part = configuration.strategy.SentPart(
      training.wire != "float32" ? .5 : 1, training.micro_batches, training.reshard == "forward",
      configuration.strategy.SplitOf(configuration.gradient_ranks(), training.dp_shard));
  return 4.0 * (configuration.strategy.uses_group ? part : 1) * static_cast<double>(elements);
}

CommPattern PatternOf(const Configuration& configuration, Scheme scheme) {
  return {
      .scheme = scheme,
      .workers = configuration.gradient_ranks() / configuration.workers_per_push(),
      .per_machine = configuration.workers_per_push(),
      .place = PlaceOf(configuration.training.server_placement),
      // Clipping: no update before the norm of the whole gradient is known.
      .pipelined = configuration.training.ps_schedule != "serial" && configuration.training.clip_norm == 0,
      .servers = std::max(1, configuration.servers() / ReplicaRanks(configuration.training)),
      .pushed = configuration.training.wire != "float32" && configuration.servers() > 0 ? 0.5 : 1.0};
}

double BubbleOf(const TrainingOptions& training) {
  const absl::StatusOr<NamedProgram> program = FindStepProgram(training.program);
  if (training.pp == 1 || !program.ok() || program->row.bubble == nullptr) return 0;
  return program->row.bubble(training.pp, program->chunks, training.micro_batches).value_or(0);
}

double SamplesPerSecond(const Configuration& configuration, const Probe& probe, int cores) {
  return static_cast<double>(configuration.replicas() * configuration.step_samples()) /
         StepSeconds(configuration, probe, cores);
}

double LaunchOverheadSeconds(const Configuration& configuration, const Probe& probe, int cores) {
  if (configuration.simulated()) return 0.1 + probe.launch_s;
  return 0.1 + probe.launch_s * std::max(1.0, static_cast<double>(configuration.workers) / cores);
}

double EvaluationSeconds(const TrainingOptions& training, const Probe& probe) {
  return kEvaluationShare * static_cast<double>(probe.test_samples) * ComputeSeconds(training, probe) /
         static_cast<double>(WorkerBatch(training) * probe.predictions);
}

double ExpectedLaunchSeconds(const Configuration& configuration, const Probe& probe, int cores) {
  const TrainingOptions& training = configuration.training;
  const double step_s = StepSeconds(configuration, probe, cores);
  double steps = static_cast<double>(training.steps);
  if (steps == 0) {
    const double samples = training.samples > 0 ? static_cast<double>(training.samples)
                                                : (training.epochs > 0 ? training.epochs : 1) *
                                                      static_cast<double>(probe.samples);
    steps = samples / static_cast<double>(configuration.replicas() * configuration.step_samples() *
                                          std::max(1, training.reference_workers));
  }
  const double reference_workers = std::max(1, training.reference_workers);
  double seconds = LaunchOverheadSeconds(configuration, probe, cores) +
                   (steps + static_cast<double>(training.warmup_steps)) * step_s * reference_workers;
  if (training.evaluate) {
    const double evaluations =
        training.eval_every > 0 ? 1 + steps / static_cast<double>(training.eval_every) : 1;
    seconds += evaluations * EvaluationSeconds(training, probe);
  }
  return seconds;
}

}  // namespace psring
