#include "experiments/simulator/pipeline.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "experiments/simulator/program_durations.h"
#include "trainer/programs/cuts.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/mesh.h"

namespace psring {
namespace {

constexpr int64_t kMaxLowered = int64_t{1} << 22;  // actions: about 1 GB

// The buckets of consecutive blocks, in the order of the forward pass. Backward fills them from the end.
std::vector<UnitCost> BucketsOf(const std::vector<LayerBlock>& blocks, int first, int end,
                                const BucketSizes& sizes, double slowest) {
  constexpr double kMb = 1 << 20;
  std::vector<UnitCost> buckets;
  bool is_full = true;
  for (int block = end - 1; block >= first; --block) {
    if (is_full) buckets.emplace_back();
    UnitCost& bucket = buckets.back();
    bucket.forward_s += slowest * blocks[block].forward_ms / 1e3;
    bucket.backward_s += slowest * blocks[block].backward_ms / 1e3;
    bucket.gradient_bytes += blocks[block].gradient_bytes;
    is_full = bucket.gradient_bytes >= kMb * (buckets.size() == 1 ? sizes.first_mb : sizes.others_mb);
  }
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

// What a computation waits for, other than another one.
bool MovesBytes(StepKind kind) {
  return LaneOf(kind) == StepLane::kMessages || LaneOf(kind) == StepLane::kGather;
}

double OverlapNs(const NodeTime& time, int64_t begin_ns, int64_t end_ns) {
  const int64_t overlap = std::min(time.end_ns, end_ns) - std::max(time.begin_ns, begin_ns);
  return static_cast<double>(std::max<int64_t>(0, overlap));
}

// Of times that may overlap or, if one ends before it begins, be empty.
double UnionNs(std::vector<NodeTime> times) {
  std::ranges::sort(times, {}, &NodeTime::begin_ns);
  int64_t covered_until_ns = 0, sum_ns = 0;
  for (const auto& [begin_ns, end_ns] : times) {
    sum_ns += std::max<int64_t>(0, end_ns - std::max(begin_ns, covered_until_ns));
    covered_until_ns = std::max(covered_until_ns, end_ns);
  }
  return static_cast<double>(sum_ns);
}

bool FillsNodes(const Cluster& cluster, int workers, int replicas) {
  return CheckWorkers(cluster, workers).ok() && AlignsWithNodes(cluster, workers, replicas);
}

absl::Status Invalid(const std::string& what) { return absl::InvalidArgumentError(what); }

// Of all-reduces with as many bytes as a replica's ranks exchange with others in a step.
double ExchangedBytes(const StepProgram& program, const ProgramCosts& costs, double wire_part) {
  double bytes = 0;
  for (int rank = 0; costs.replicas > 1 && rank < program.ranks; ++rank) {
    for (const StepAction& action : program.actions[rank]) {
      const int halves = HalvesOf(costs.strategy, action.kind);
      if (halves == 0) continue;
      bytes += halves / 2. * (action.kind == StepKind::kReduceGradient ? wire_part : 1) *
               costs.units[action.stage][action.unit].gradient_bytes;
    }
  }
  return bytes;
}

// Micro-batches that the busiest rank keeps.
int InFlight(const StepProgram& program, const Walk& walk) {
  std::vector<int> of_rank(program.ranks, 0);
  for (int stage = 0; stage < program.stages(); ++stage) {
    of_rank[program.rank_of[stage]] += walk.peak_live[stage];
  }
  return *std::max_element(of_rank.begin(), of_rank.end());
}

}  // namespace

std::vector<LayerBlock> BlocksOf(const Workload& workload) {
  std::vector<LayerBlock> blocks;
  double ready_ms = 0;
  for (const GradientTensor& tensor : workload.tensors) {
    const std::string name = BlockName(tensor.name);
    if (blocks.empty() || blocks.back().name != name) blocks.push_back({.name = name});
    blocks.back().backward_ms += tensor.ready_ms - ready_ms;
    blocks.back().gradient_bytes += static_cast<double>(tensor.bytes);
    ready_ms = tensor.ready_ms;
  }
  blocks.back().backward_ms += workload.backward_ms - ready_ms;
  for (LayerBlock& block : blocks) {
    block.forward_ms = workload.backward_ms > 0
                           ? workload.forward_ms * block.backward_ms / workload.backward_ms
                           : workload.forward_ms / static_cast<double>(blocks.size());
  }
  std::reverse(blocks.begin(), blocks.end());
  return blocks;
}

std::vector<int> BalancedCuts(const std::vector<LayerBlock>& blocks, int stages) {
  CutUnits units;
  for (const LayerBlock& block : blocks) units.cost.push_back(block.ms());
  for (size_t block = 1; block < blocks.size(); ++block) units.points.push_back(block);
  const std::vector<size_t> cuts = BalancedCuts(units, stages);
  return {cuts.begin(), cuts.end()};
}

std::string PipelineCase::layout() const { return Layout{replicas(), ranks}.name(); }

absl::Status CheckPipeline(const Workload& workload, const PipelineCase& point, const Cluster& cluster) {
  PSRING_RETURN_IF_ERROR(Mesh::Create(point.workers, point.ranks, "").status());
  if (!FillsNodes(cluster, point.workers, point.replicas())) {
    int replicas = point.replicas() + 1;
    while (!FillsNodes(cluster, replicas * point.ranks, replicas)) ++replicas;
    return Invalid(
        Tr("--pp $0 with $1 workers: the $2 devices of a stage do not fill nodes of $3 GPUs; use "
           "--workers $4, for example",
           point.ranks, point.workers, point.replicas(), cluster.gpus_per_node, replicas * point.ranks));
  }
  const std::vector<LayerBlock> blocks = BlocksOf(workload);
  const int count = static_cast<int>(blocks.size()), stages = point.stages();
  if (stages > count) {
    return Invalid(
        Tr("--pp $0 with program $1 cuts the model into $2 stages, but workload $3 has only $4 blocks "
           "of layers; use at most $4 stages",
           point.ranks, point.program.row.display_name(), stages, workload.name, count));
  }
  const std::vector<int>& cuts = point.cuts;
  const bool ascending = std::adjacent_find(cuts.begin(), cuts.end(), std::greater_equal<>()) == cuts.end();
  if (!cuts.empty() && (static_cast<int>(cuts.size()) != stages - 1 || !ascending || cuts.back() >= count)) {
    return Invalid(Tr("--cuts: $0 stages need $1 ascending numbers from 1 to $2, such as $3", stages,
                      stages - 1, count - 1, absl::StrJoin(BalancedCuts(blocks, stages), ",")));
  }
  return absl::OkStatus();
}

DeviceTime DeviceTimeOf(const Walk& walk, int rank, const StrategyRow& strategy) {
  const std::vector<StepNode>& nodes = walk.nodes[rank];
  const std::vector<NodeTime>& times = walk.times[rank];
  DeviceTime result;
  int64_t computed_ns = 0;                // end of the last computation
  std::vector<NodeTime> moving, exposed;  // may overlap, such as a message and a gathering
  for (size_t i = 0; i < nodes.size(); ++i) {
    const StepKind kind = nodes[i].action.kind;
    if (MovesBytes(kind) || HalvesOf(strategy, kind) > 0) moving.push_back(times[i]);
    if (LaneOf(kind) != StepLane::kCompute) continue;
    for (const int before : nodes[i].after) {
      const auto& [begin_ns, end_ns] = times[before];
      const StepKind awaited = nodes[before].action.kind;
      // Without a flush, an update, which begins when the computation before it ends.
      if (awaited == StepKind::kUpdate) exposed.push_back({computed_ns, end_ns});
      if (MovesBytes(awaited)) exposed.push_back({std::max(computed_ns, begin_ns), end_ns});
    }
    result.computing += static_cast<double>(times[i].end_ns - times[i].begin_ns);
    computed_ns = times[i].end_ns;
  }
  // After the last computation, reductions and updates.
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (LaneOf(nodes[i].action.kind) != StepLane::kReduce) continue;
    exposed.push_back({std::max(computed_ns, times[i].begin_ns), times[i].end_ns});
  }
  result.exposed = UnionNs(std::move(exposed));
  result.moving = UnionNs(std::move(moving));
  result.idle = std::max(0., static_cast<double>(walk.end_ns) - result.computing - result.exposed);
  return result;
}

absl::StatusOr<PipelinePrediction> PredictPipeline(const Workload& workload, const PredictOptions& options,
                                                   const PipelineCase& point, const Cluster& cluster) {
  PSRING_RETURN_IF_ERROR(CheckPipeline(workload, point, cluster));
  PSRING_ASSIGN_OR_RETURN(const StepProgram compute,
                          MakeStepProgram(point.program, point.ranks, point.micro_batches));
  const Shape shape = ShapeOf(cluster, point.workers);
  const Cluster network = WithNodes(cluster, shape.nodes);
  const double slowest = ExpectedMaximum(options.variation, shape.nodes);
  const PredictCase reduction{.strategy = point.strategy, .workers = point.replicas()};
  const std::vector<LayerBlock> blocks = BlocksOf(workload);
  PipelinePrediction result{.cuts = point.cuts.empty() ? BalancedCuts(blocks, point.stages()) : point.cuts};
  Prediction& figures = result.prediction;

  std::map<double, CollectiveTime> known;  // by bytes
  ProgramCosts costs{
      .boundary_bytes = point.boundary_bytes, .replicas = point.replicas(), .strategy = point.strategy};
  const bool shards_gradients = point.replicas() > 1 && point.strategy.shards_gradients;
  const LowerOptions lower{.reduce_always = shards_gradients,
                           .shard_weights = shards_gradients && point.strategy.shards_weights,
                           .keep_weights = !options.reshards,
                           .one_copy_stream = point.copy_streams == 1};
  // Of shards every block is a unit.
  const BucketSizes sizes = shards_gradients ? BucketSizes{.first_mb = 0, .others_mb = 0} : options.buckets;
  const auto time_of = [&](double bytes) -> absl::StatusOr<CollectiveTime> {
    if (!known.contains(bytes)) {
      PSRING_ASSIGN_OR_RETURN(known[bytes], AllReduceTime(reduction, network, bytes));
    }
    return known[bytes];
  };
  ModelCut cut;
  std::vector<int> ends = result.cuts;
  ends.push_back(static_cast<int>(blocks.size()));
  int64_t lowered = 0;
  std::vector<double> stage_bytes;
  double slowest_stage_s = 0;
  int first = 0;
  for (const int end : ends) {
    std::vector<UnitCost> units = BucketsOf(blocks, std::exchange(first, end), end, sizes, slowest);
    double stage_s = 0;
    stage_bytes.push_back(0);
    for (UnitCost& unit : units) {
      stage_bytes.back() += unit.gradient_bytes;
      stage_s += unit.forward_s + unit.backward_s;
      if (point.replicas() == 1) continue;
      PSRING_ASSIGN_OR_RETURN(unit.reduction, time_of(options.wire_part * unit.gradient_bytes));
      if (unit.reduction.classes == 0) figures.method = "theory";
      if (!point.strategy.shards_updates) continue;
      PSRING_ASSIGN_OR_RETURN(unit.of_weights, time_of(unit.gradient_bytes));
    }
    slowest_stage_s = std::max(slowest_stage_s, stage_s);
    const int buckets = static_cast<int>(units.size());
    // Also with a divided backward pass; and with gatherings, releases and reductions.
    const int of_unit =
        3 + (lower.reduce_always ? 1 : 0) + (lower.shard_weights ? 4 : 0) + (compute.flushes() ? 0 : 2);
    lowered += int64_t{of_unit} * buckets + 5;
    cut.units.push_back(buckets);
    cut.bucket_ends.emplace_back(buckets);
    std::iota(cut.bucket_ends.back().rbegin(), cut.bucket_ends.back().rend(), 0);
    costs.units.push_back(std::move(units));
  }
  if (lowered * point.micro_batches > kMaxLowered) {
    return Invalid(
        Tr("$0 micro-batches through $1 stages are more than $2 actions; use fewer micro-batches or "
           "stages, or a larger --bucket_mb",
           point.micro_batches, point.stages(), kMaxLowered));
  }
  PSRING_ASSIGN_OR_RETURN(const StepProgram program, LowerProgram(compute, cut, lower));
  const double exchanged_bytes = ExchangedBytes(program, costs, options.wire_part);
  if (exchanged_bytes > 0) {
    PSRING_ASSIGN_OR_RETURN(figures.tx_bytes, AllReducePayload(reduction, network, exchanged_bytes));
    figures.tx_bytes /= point.ranks;
  }
  ProgramDurations durations(program, std::move(costs), network);
  PSRING_ASSIGN_OR_RETURN(const Walk walk, WalkProgram(program, &durations));

  double computing_ns = 0, idle_ns = 0;  // mean over devices
  for (int rank = 0; rank < program.ranks; ++rank) {
    const DeviceTime time = DeviceTimeOf(walk, rank, point.replicas() > 1 ? point.strategy : StrategyRow());
    computing_ns += time.computing / program.ranks;
    idle_ns += time.idle / program.ranks;
    figures.exposed += 1e-9 * time.exposed / program.ranks;
    figures.busy += 1e-9 * time.moving / program.ranks;
  }
  const double barrier_s = BarrierSeconds(cluster, shape.nodes);
  figures.step = 1e-9 * static_cast<double>(walk.end_ns) + barrier_s;
  figures.slowest = slowest;
  figures.compute = 1e-9 * computing_ns / slowest;
  figures.exposed += barrier_s + (slowest - 1) * figures.compute;
  // Messages to the next rank and back, if the next stage is on another one.
  double boundaries = 0;
  for (int stage = 0; stage < program.stages(); ++stage) boundaries += program.sends_after(stage);
  figures.tx_bytes += 2 * boundaries * point.micro_batches * point.boundary_bytes / point.ranks;
  figures.rx_bytes = figures.tx_bytes;
  figures.samples_per_s = double(point.replicas()) * point.micro_batches * workload.batch / figures.step;
  result.bubble = 1e-9 * idle_ns / figures.step;
  result.in_flight = InFlight(program, walk);
  for (int stage = 0; stage < program.stages(); ++stage) {
    const int older = walk.kept_versions[stage] - 1;
    result.versions = std::max(result.versions, older + 1);
    result.older_versions_bytes = std::max(result.older_versions_bytes, older * stage_bytes[stage]);
  }
  const double stage_s = slowest * workload.compute_ms() / 1e3 / point.stages();
  if (stage_s > 0) result.slowest = slowest_stage_s / stage_s;
  return result;
}

absl::StatusOr<WalkSeconds> SecondsOfWalk(const NamedProgram& program, int micro_batches,
                                          const std::vector<DeviceSeconds>& devices, int copy_streams,
                                          bool ties_ends) {
  const int ranks = static_cast<int>(devices.size());
  PSRING_ASSIGN_OR_RETURN(const StepProgram compute, MakeStepProgram(program, ranks, micro_batches));
  const auto ns = [&](int rank, const StepAction& action) -> int64_t {
    const double share = 1. / (program.chunks * micro_batches);
    switch (action.kind) {
      case StepKind::kSendActivation:
        return std::llround(1e9 * devices[compute.rank_of[action.stage + 1]].activation);
      case StepKind::kSendGradient:
        return std::llround(1e9 * devices[compute.rank_of[action.stage - 1]].gradient);
      case StepKind::kForward:
        return std::llround(1e9 * share * devices[rank].forward);
      case StepKind::kBackwardInput:
      case StepKind::kBackwardWeight:
        return std::llround(1e9 * share * devices[rank].backward / 2);
      case StepKind::kBackward:
        return std::llround(1e9 * share * devices[rank].backward);
      default:
        return 0;
    }
  };
  PSRING_ASSIGN_OR_RETURN(const Walk walk, WalkStages(compute, ns, copy_streams, ties_ends));
  double idle_ns = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& [begin, end] : BubblesOf(walk, rank))
      idle_ns += static_cast<double>(end - begin) / ranks;
  }
  return WalkSeconds{.step = 1e-9 * static_cast<double>(walk.end_ns), .bubble = 1e-9 * idle_ns};
}

Workload DataParallelShare(const Workload& workload, const PipelineCase& point) {
  const int64_t samples = int64_t{point.micro_batches} * workload.batch;
  const int64_t share = (samples + point.ranks - 1) / point.ranks;
  Workload shared = Faster(workload, double(workload.batch) / static_cast<double>(share));
  shared.batch = static_cast<int>(share);
  return shared;
}

absl::StatusOr<Walk> WalkStages(const StepProgram& compute,
                                std::function<int64_t(int rank, const StepAction& action)> ns,
                                int copy_streams, bool ties_ends) {
  ModelCut cut = ModelCut::WholeStages(compute.stages());
  if (ties_ends) cut.tied = {{0, 0}, {compute.stages() - 1, 0}};
  PSRING_ASSIGN_OR_RETURN(const StepProgram lowered,
                          LowerProgram(compute, cut, {.one_copy_stream = copy_streams == 1}));
  GivenDurations durations(std::move(ns));
  return WalkProgram(lowered, &durations);
}

std::vector<NodeTime> BubblesOf(const Walk& walk, int rank) {
  std::vector<NodeTime> bubbles;
  int64_t computed_ns = 0;  // end of the last computation
  const auto add = [&](int64_t until_ns) {
    if (until_ns > computed_ns) bubbles.push_back({computed_ns, until_ns});
  };
  for (size_t i = 0; i < walk.nodes[rank].size(); ++i) {
    const StepNode& node = walk.nodes[rank][i];
    if (LaneOf(node.action.kind) != StepLane::kCompute) continue;
    const auto& [begin_ns, end_ns] = walk.times[rank][i];
    double exposed_ns = 0;
    for (const int before : node.after) {
      if (LaneOf(walk.nodes[rank][before].action.kind) != StepLane::kMessages) continue;
      exposed_ns += OverlapNs(walk.times[rank][before], computed_ns, begin_ns);
    }
    add(begin_ns - static_cast<int64_t>(exposed_ns));
    computed_ns = end_ns;
  }
  add(walk.end_ns);
  return bubbles;
}

}  // namespace psring
