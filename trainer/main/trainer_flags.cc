#include "trainer/main/trainer_flags.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/net/link_shaper.h"
#include "trainer/main/resume.h"
#include "trainer/models/replayed_model.h"
#include "trainer/programs/pipeline_flags.h"
#include "trainer/step/plan/training_plan.h"
#include "trainer/strategies/group_options.h"
#include "trainer/virtual_clock/virtual_training.h"

namespace psring {

TrainerFlags ParseTrainerFlags(int argc, char** argv) {
  TrainerFlags flags;
  CLI::App app("One rank of a training run, with any strategy.", "trainer");
  AddTrainingFlags(app, flags.training);
  AddModelsAndData(app);
  AddPrograms(app);
  const std::string usual_group = app.option_defaults()->get_group();
  app.option_defaults()->group("This process");
  app.add_option(
      "--rendezvous", flags.rendezvous,
      "env://, tcp://HOST:PORT or file://PATH, with RANK and WORLD_SIZE in the environment; by "
      "default env:// if RANK (or the variable of mpirun or srun) is set, otherwise a single process");
  app.add_option("--bind", flags.network.bind,
                 "Address of this machine on which this rank and its servers listen; by default the "
                 "loopback if all ranks are on one host, otherwise the address of the route to rank 0");
  app.add_option("--interface", flags.network.interface, "The same, by its network interface's name: eth0");
  app.add_flag(
      "--servers_elsewhere", flags.servers_elsewhere,
      "Do not start parameter servers. Otherwise, if psring is not the launcher, rank 0 starts them; "
      "with --server_placement colocated every rank starts one; with dedicated the last ranks are "
      "servers");
  app.add_option("--record", flags.record, "Folder for steps, trace and result, of this run only");
  app.add_option("--progress", flags.progress, "plain, json (for a launcher) or none")
      ->check(OneOf({"plain", "json", "none"}))
      ->capture_default_str();
  app.add_option("--count_interface", flags.count_interface,
                 "Network interface whose sent bytes are recorded, which includes those of other programs");
  AddLinkFlags(app, flags.link);
  app.add_flag("--describe", flags.describe, "Print strategies, models and data as JSON, and exit");
  app.add_flag("--check_only", flags.check_only,
               "Load the data, build the model, print the resulting settings as JSON, and exit");
  app.add_option("--workers", flags.workers,
                 "Workers in this process: logical ones with --clock virtual, replicas with --strategy "
                 "data-parallel [1]; with --check_only those of the job")
      ->check(WholeNumber(1, kMaxLogicalWorkers));
  app.add_option("--replay", flags.replay,
                 "Repeat an asynchronous run from the order of arrivals that its server recorded "
                 "(arrivals-server0.bin); the other flags are those of that run");
  app.option_defaults()->group(usual_group);
  ParseOrExit(app, argc, argv);
  flags.training.strategy = CanonicalStrategy(flags.training.strategy);
  const absl::StatusOr<StrategyRow> strategy = FindStrategy(flags.training.strategy);
  const bool replicates = strategy.ok() && strategy->replicates;
  if (!flags.alone_for_all() && (replicates || !flags.check_only)) {
    flags.training.replicas = std::max(1, flags.workers);
  }
  return flags;
}

absl::Status CheckTrainerFlags(const TrainerFlags& flags, int world_size) {
  PSRING_RETURN_IF_ERROR(ValidateTrainingOptions(flags.training));
  PSRING_ASSIGN_OR_RETURN(const StrategyRow strategy, FindStrategy(flags.training.strategy));
  PSRING_RETURN_IF_ERROR(ModelOf(flags.training).status());
  PSRING_RETURN_IF_ERROR(CheckPipelineFlags(flags.training, strategy, world_size));
  if (flags.training.checkpoint_dir.empty() && !flags.check_only) {
    const char* flag = flags.training.resume == kLatestCheckpoint ? "--resume latest"
                       : flags.training.checkpoint_every > 0      ? "--checkpoint_every"
                                                                  : nullptr;
    if (flag != nullptr) {
      return InvalidArgument(flag, " needs --checkpoint_dir DIR");
    }
  }
  if (flags.alone_for_all() && world_size > 1) {
    return absl::InvalidArgumentError(
        "--clock virtual and --replay use one process; start it without RANK and WORLD_SIZE");
  }
  if (!flags.replay.empty()) return absl::OkStatus();  // the arrivals say how many workers there were
  if (flags.alone_for_all()) return CheckStrategy(flags.training, strategy, std::max(1, flags.workers));
  if (!flags.check_only) {
    PSRING_RETURN_IF_ERROR(CheckGroupFlagsCount(strategy, flags.training));
    if (world_size > 1) PSRING_RETURN_IF_ERROR(CheckGroup(strategy, flags.training));
  }
  return CheckStrategy(flags.training, strategy, world_size / ReplicaRanks(flags.training));
}

std::vector<std::string> SharedArguments(TrainingOptions options) {
  const TrainingOptions standard;
  options.data_dir = standard.data_dir;
  options.device = standard.device;
  options.threads = standard.threads;
  // Each machine has its own files.
  if (!options.tls.empty() && options.tls != "auto") options.tls = "CERT,KEY,CA";
  // Only rank 0 uses the paths; the others need to know whether they are given.
  if (!options.checkpoint_dir.empty()) options.checkpoint_dir = "given";
  if (!options.resume.empty()) options.resume = "given";
  return TrainingArguments(options);
}

}  // namespace psring
