#include "experiments/launch/node_order.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/json_object.h"
#include "common/io/json_text.h"
#include "common/text/peer_text.h"
#include "trainer/strategies/table/strategy_table.h"

namespace psring {
namespace {

constexpr size_t kMaxBytes = 256 << 10;
constexpr size_t kMaxFlags = 256, kMaxFlagBytes = 8 << 10;
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxFailureBytes = 8 << 10;
constexpr int kMaxOrderedWorkers = 1 << 20;
constexpr int kMaxOrderedLaunches = 1 << 20;  // of a benchmark's plan
constexpr double kLongestDeadlineS = 365 * 24 * 3600.0;

bool HasStrategy(const std::vector<std::string>& strategies, const std::string& strategy) {
  return std::ranges::any_of(strategies,
                             [&](const std::string& own) { return BaseName(own) == BaseName(strategy); });
}

// Copies what node 0 plans for each launch from `from` to `to`.
void CopyPlanned(const TrainingOptions& from, const NodeSetup& own, TrainingOptions& to) {
  to.steps = from.steps;
  to.samples = from.samples;
  to.epochs = from.epochs;
  to.warmup_steps = from.warmup_steps;
  to.eval_every = from.eval_every;
  to.seed = from.seed;
  if (HasStrategy(own.strategies, from.strategy)) to.strategy = from.strategy;
  if (std::ranges::find(own.servers, from.servers) != own.servers.end()) to.servers = from.servers;
  if (std::ranges::count(own.server_wires, from.server_wire) > 0) to.server_wire = from.server_wire;
  if (!from.evaluate) to.evaluate = false;
  // A share of the global batch (SetBatch).
  if (from.batch <= own.training.global_batch) to.batch = from.batch;
  if (own.tries_rates) {
    to.lr = from.lr;
    to.score = from.score;
  }
  if (own.cuts_models) {
    to.pp = from.pp;
    to.tp = from.tp;
    to.sequence_parallel = from.sequence_parallel;
    to.cp = from.cp;
    to.context_parallel = from.context_parallel;
    to.program = from.program;
    to.cuts = from.cuts;
    to.rank_order = from.rank_order;
    to.copy_streams = from.copy_streams;
    to.micro_batches = from.micro_batches;
  }
}

// Only rank 0 reads and writes checkpoints; the other ranks need to know whether there are any.
void SubstitutePaths(const TrainingOptions& own, const std::string& folder, TrainingOptions& training) {
  training.data_dir = own.data_dir;
  training.tls = own.tls;
  const bool restarted = !training.resume.empty() && training.resume == training.checkpoint_dir;
  if (!training.checkpoint_dir.empty()) {
    training.checkpoint_dir = own.checkpoint_dir.empty() ? folder : own.checkpoint_dir;
  }
  if (training.resume.empty()) return;
  const bool known = !restarted && !own.resume.empty() && own.resume != "latest";
  training.resume = known ? own.resume : !training.checkpoint_dir.empty() ? training.checkpoint_dir : folder;
}

// Node 0 may only omit flags, which it does if the strategy does not use them.
absl::Status CheckAgainstOwn(TrainingOptions training, int workers, const NodeSetup& setup) {
  TrainingOptions own = setup.training;
  CopyPlanned(training, setup, own);
  // Fewer ranks than a process holds share one process.
  own.ranks_per_process = std::min(own.ranks_per_process, workers);
  training.data_dir = own.data_dir;
  training.tls = own.tls;
  training.checkpoint_dir = own.checkpoint_dir;
  training.resume = own.resume;
  const std::vector<std::string> known = TrainingArguments(own);
  for (const std::string& flag : TrainingArguments(training)) {
    if (std::ranges::find(known, flag) == known.end()) {
      return InvalidArgument("this node was not started with ", flag);
    }
  }
  if (training.ranks_per_process == own.ranks_per_process) return absl::OkStatus();
  return InvalidArgument("this node was started with --ranks_per_process=", own.ranks_per_process);
}

}  // namespace

std::string ToJson(const NodeOrder& order) {
  using Json = nlohmann::ordered_json;
  return JsonText(Json{{"over", order.over},
                       {"failure", order.failure.substr(0, kMaxFailureBytes)},
                       {"probes", order.probes},
                       {"what", order.what},
                       {"deadline_s", order.deadline_s},
                       {"bench_launch", order.bench_launch},
                       {"training", order.training},
                       {"workers", order.workers},
                       {"has_servers", order.has_servers},
                       {"outlives_workers", order.outlives_workers},
                       {"store_port", order.store_port}});
}

absl::StatusOr<NodeOrder> NodeOrderFromJson(const std::string& text) {
  PSRING_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(text, kMaxBytes));
  NodeOrder order;
  PSRING_ASSIGN_OR_RETURN(order.over, json.Bool("over"));
  if (order.over) {
    // ToJson replaces each byte that is not UTF-8 by three.
    PSRING_ASSIGN_OR_RETURN(const std::string failure, json.Text("failure", 3 * kMaxFailureBytes));
    order.failure = PeerText(failure, kMaxFailureBytes);
    return order;
  }
  PSRING_ASSIGN_OR_RETURN(order.probes, json.Bool("probes"));
  if (order.probes) return order;
  PSRING_ASSIGN_OR_RETURN(order.what, json.Text("what", kMaxNameBytes));
  if (OneLine(order.what) != order.what) return absl::InvalidArgumentError("\"what\" has control characters");
  PSRING_ASSIGN_OR_RETURN(order.deadline_s, json.Number("deadline_s", 0, kLongestDeadlineS));
  PSRING_ASSIGN_OR_RETURN(const int64_t port, json.WholeNumber("store_port", 1, 65535));
  order.store_port = port;
  PSRING_ASSIGN_OR_RETURN(order.bench_launch, json.WholeNumber("bench_launch", -1, kMaxOrderedLaunches));
  if (order.bench_launch >= 0) return order;
  PSRING_ASSIGN_OR_RETURN(order.training, json.Texts("training", kMaxFlags, kMaxFlagBytes));
  PSRING_ASSIGN_OR_RETURN(order.workers, json.WholeNumber("workers", 1, kMaxOrderedWorkers));
  PSRING_ASSIGN_OR_RETURN(order.has_servers, json.Bool("has_servers"));
  PSRING_ASSIGN_OR_RETURN(order.outlives_workers, json.Bool("outlives_workers"));
  return order;
}

NodeOrder OrderOf(const TrainingJob& job) {
  TrainingOptions training = job.training;
  training.data_dir.clear();  // each machine has its own
  training.tls.clear();
  return {.training = TrainingArguments(training),
          .workers = job.workers,
          .has_servers = job.servers > 0,
          .outlives_workers = job.outlives_workers,
          .store_port = job.store.port};
}

absl::StatusOr<TrainingJob> JobOf(const NodeOrder& order, const NodeSetup& own, const std::string& store_host,
                                  const std::string& folder) {
  if (order.bench_launch >= 0) {
    return absl::InvalidArgumentError("the order is for psring bench, and this node was started to train");
  }
  TrainingJob job{.workers = order.workers,
                  .layout = own.layout,
                  .outlives_workers = order.outlives_workers,
                  .store = {.host = store_host, .port = order.store_port}};
  PSRING_ASSIGN_OR_RETURN(job.training, TrainingOptionsOf(order.training));
  const int each = job.training.ranks_per_process;
  PSRING_RETURN_IF_ERROR(CheckAgainstOwn(job.training, order.workers, own));
  PSRING_RETURN_IF_ERROR(ValidateTrainingOptions(job.training));
  SubstitutePaths(own.training, folder, job.training);
  job.layout.processes = order.workers / each;
  if (order.workers % each != 0 || job.layout.processes > job.layout.capacity()) {
    return InvalidArgument("this node was started for up to ", own.layout.capacity() * each,
                           " workers in processes of ", each, ", not for ", order.workers);
  }
  if (!order.has_servers) return job;
  job.servers = ServersOf(job.training, job.workers);
  if (job.training.server_placement == "dedicated" && job.servers > job.layout.server_nodes) {
    return InvalidArgument("this node was started with ", job.layout.server_nodes,
                           " nodes for servers, not with ", job.servers);
  }
  return job;
}

absl::StatusOr<std::vector<std::string>> NamedRecords(const std::string& text,
                                                      const std::vector<std::string>& expected) {
  std::vector<std::string> names;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    std::string name(line);
    const auto known = std::ranges::find(expected, name);
    if (known == expected.end() || std::ranges::find(names, name) != names.end()) {
      return absl::InvalidArgumentError("it names an unknown file, or a file twice");
    }
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace psring
