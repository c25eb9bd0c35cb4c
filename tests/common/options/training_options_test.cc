#include "common/options/training_options.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/cli/command_line.h"
#include "tests/has.h"

namespace psring {
namespace {

using Change = std::function<void(TrainingOptions&)>;

struct Field {
  const char* flag;
  Change change;
};

TrainingOptions Changed(const Change& change) {
  TrainingOptions options;
  change(options);
  return options;
}

// Every field, set to something else than its default.
const std::vector<Field>& Fields() {
  static const auto* fields = new std::vector<Field>{
      {"--strategy", [](auto& o) { o.strategy = "ps-async"; }},
      {"--model", [](auto& o) { o.model = "cnn"; }},
      {"--cuda_graph", [](auto& o) { o.cuda_graph = true; }},
      {"--recompute", [](auto& o) { o.recompute = true; }},
      {"--width", [](auto& o) { o.width = 8192; }},
      {"--layers", [](auto& o) { o.layers = 3; }},
      {"--heads", [](auto& o) { o.heads = 2; }},
      {"--context", [](auto& o) { o.context = 32; }},
      {"--dropout", [](auto& o) { o.dropout = .1; }},
      {"--text", [](auto& o) { o.text = "/a/text"; }},
      {"--weight_decay", [](auto& o) { o.weight_decay = 0; }},
      {"--data", [](auto& o) { o.data = "synthetic"; }},
      {"--data_dir", [](auto& o) { o.data_dir = "/a dir/with=signs,and--dashes"; }},
      {"--device", [](auto& o) { o.device = "cuda:3"; }},
      {"--threads", [](auto& o) { o.threads = 2; }},
      {"--ranks_per_process", [](auto& o) { o.ranks_per_process = 4; }},
      {"--steps", [](auto& o) { o.steps = int64_t{1} << 40; }},
      {"--samples", [](auto& o) { o.samples = 60000; }},
      {"--epochs", [](auto& o) { o.epochs = 0.1; }},
      {"--warmup_steps", [](auto& o) { o.warmup_steps = 5; }},
      {"--batch", [](auto& o) { o.batch = 1; }},
      {"--reference_workers", [](auto& o) { o.reference_workers = 4; }},
      {"--precision", [](auto& o) { o.precision = "bfloat16"; }},
      {"--micro_batches", [](auto& o) { o.micro_batches = 3; }},
      {"--pp", [](auto& o) { o.pp = 4; }},
      {"--tp", [](auto& o) { o.tp = 4; }},
      {"--sequence_parallel", [](auto& o) { o.sequence_parallel = true; }},
      {"--cp", [](auto& o) { o.cp = 4; }},
      {"--context_parallel", [](auto& o) { o.context_parallel = "ulysses"; }},
      {"--program", [](auto& o) { o.program = "interleaved:2"; }},
      {"--cuts", [](auto& o) { o.cuts = "3,6,9"; }},
      {"--rank_order", [](auto& o) { o.rank_order = "pp,dp"; }},
      {"--copy_streams", [](auto& o) { o.copy_streams = 1; }},
      {"--reshard", [](auto& o) { o.reshard = "never"; }},
      {"--dp_shard", [](auto& o) { o.dp_shard = 4; }},
      {"--drop_last", [](auto& o) { o.drop_last = "false"; }},
      {"--optimizer", [](auto& o) { o.optimizer = "adam"; }},
      {"--lr", [](auto& o) { o.lr = 1.0 / 3; }},
      {"--momentum", [](auto& o) { o.momentum = 0; }},
      {"--schedule", [](auto& o) { o.schedule = "linear"; }},
      {"--warmup_epochs", [](auto& o) { o.warmup_epochs = 1e-7; }},
      {"--linear_scaling", [](auto& o) { o.linear_scaling = true; }},
      {"--bucket_mb", [](auto& o) { o.bucket_mb = 0.25; }},
      {"--sync_batch_norm", [](auto& o) { o.sync_batch_norm = true; }},
      {"--broadcast_buffers", [](auto& o) { o.broadcast_buffers = "false"; }},
      {"--seed", [](auto& o) { o.seed = std::numeric_limits<uint64_t>::max(); }},
      {"--eval_every", [](auto& o) { o.eval_every = 50; }},
      {"--no_eval", [](auto& o) { o.evaluate = false; }},
      {"--check_replicas", [](auto& o) { o.check_replicas = true; }},
      {"--backend", [](auto& o) { o.backend = "mpi"; }},
      {"--transport", [](auto& o) { o.transport = "shm"; }},
      {"--ps_schedule", [](auto& o) { o.ps_schedule = "serial"; }},
      {"--server_wire", [](auto& o) { o.server_wire = "stream"; }},
      {"--server_placement", [](auto& o) { o.server_placement = "dedicated"; }},
      {"--servers", [](auto& o) { o.servers = 3; }},
      {"--clip_norm", [](auto& o) { o.clip_norm = 0.1; }},
      {"--staleness_lr", [](auto& o) { o.staleness_lr = "inverse"; }},
      {"--wire", [](auto& o) { o.wire = "bfloat16"; }},
      {"--tls", [](auto& o) { o.tls = "auto"; }},
      {"--workload", [](auto& o) { o.workload = "vgg16"; }},
      {"--compute_speedup", [](auto& o) { o.compute_speedup = 2.5; }},
      {"--validation", [](auto& o) { o.validation = 5000; }},
      {"--debug.score", [](auto& o) { o.score = "validation"; }},
      {"--align_steps", [](auto& o) { o.align_steps = true; }},
      {"--straggler", [](auto& o) { o.straggler = "1:3,2:1.5"; }},
      {"--jitter_ms", [](auto& o) { o.jitter_ms = "lognormal:20:0.5"; }},
      {"--clock", [](auto& o) { o.clock = "virtual"; }},
      {"--compute_ms", [](auto& o) { o.compute_ms = "6"; }},
      {"--network_ms", [](auto& o) { o.network_ms = "exp:2"; }},
      {"--serve_ms", [](auto& o) { o.serve_ms = "1.5"; }},
      {"--deterministic", [](auto& o) { o.deterministic = true; }},
      {"--local_aggregation", [](auto& o) { o.local_aggregation = true; }},
      {"--oversubscribe", [](auto& o) { o.oversubscribe = true; }},
      {"--memory", [](auto& o) { o.memory = "2GB"; }},
      {"--on_worker_loss", [](auto& o) { o.on_worker_loss = "continue"; }},
      {"--worker_timeout", [](auto& o) { o.worker_timeout_s = 0.5; }},
      {"--debug.reject_nonfinite", [](auto& o) { o.reject_nonfinite = "false"; }},
      {"--debug.staging_mb", [](auto& o) { o.staging_mb = 12; }},
      {"--checkpoint_dir", [](auto& o) { o.checkpoint_dir = "/a/place"; }},
      {"--checkpoint_every", [](auto& o) { o.checkpoint_every = 50; }},
      {"--checkpoint_keep", [](auto& o) { o.checkpoint_keep = 5; }},
      {"--resume", [](auto& o) { o.resume = "latest"; }},
      {"--max_restarts", [](auto& o) { o.max_restarts = 3; }},
      {"--timeout", [](auto& o) { o.timeout_s = 2.5; }},
  };
  return *fields;
}

ParseOutcome ParseInto(TrainingOptions& options, const std::vector<std::string>& arguments) {
  CLI::App app("", "trainer");
  AddTrainingFlags(app, options);
  return Parse(app, arguments);
}

std::string ParseError(const std::vector<std::string>& arguments) {
  TrainingOptions options;
  return ParseInto(options, arguments).text;
}

std::string ValidationError(const Change& change) {
  return std::string(ValidateTrainingOptions(Changed(change)).message());
}

TEST(TrainingOptions, SoManyRanksOfAReplicaAreNotFewer) {
  EXPECT_EQ(ReplicaRanks({.pp = 2, .tp = 3}), 6);
  EXPECT_GT(ReplicaRanks({.pp = 1 << 16, .tp = 1 << 16}), 1 << 30);
}

TEST(ServerReturns, OnlyIfThereIsOneAndItsWorkersCanRollBackTogether) {
  TrainingOptions options;
  EXPECT_FALSE(ServerReturns(options, 1));
  options.max_restarts = 1;
  EXPECT_TRUE(ServerReturns(options, 1));
  EXPECT_FALSE(ServerReturns(options, 0));
  EXPECT_TRUE(ServerReturns(options, 2));
  options.strategy = "ps-backup:1";
  EXPECT_TRUE(ServerReturns(options, 1));
  EXPECT_FALSE(ServerReturns(options, 2));
  options.strategy = "ps-sync";
  options.align_steps = true;
  EXPECT_FALSE(ServerReturns(options, 1));
}

TEST(ServersOf, AreThoseOfAllParts) {
  EXPECT_EQ(ServersOf({}, 4), 1);
  EXPECT_EQ(ServersOf({.servers = 3}, 4), 3);
  EXPECT_EQ(ServersOf({.server_placement = "colocated"}, 4), 4);
  EXPECT_EQ(ServersOf({.pp = 2}, 4), 2);
  EXPECT_EQ(ServersOf({.pp = 2, .servers = 3}, 4), 6);
  EXPECT_EQ(ServersOf({.pp = 2, .server_placement = "colocated"}, 4), 4);
  EXPECT_EQ(ServersOf({.tp = 2, .servers = 3}, 4), 6);
  EXPECT_EQ(ServersOf({.pp = 2, .tp = 2}, 8), 4);
  EXPECT_FALSE(ServerReturns({.pp = 2, .max_restarts = 1}, 2));
  EXPECT_FALSE(ServerReturns({.tp = 2, .max_restarts = 1}, 2));
}

TEST(CheckRecovery, NamesConflictingFlags) {
  const auto error = [](const Change& change, int servers) {
    return std::string(CheckRecovery(Changed(change), servers).message());
  };
  const Change continues = [](auto& o) { o.on_worker_loss = "continue"; };
  for (const auto& [flag, change] : {Field{"--max_restarts", [](auto& o) { o.max_restarts = 1; }},
                                     {"--checkpoint_every", [](auto& o) { o.checkpoint_every = 5; }},
                                     {"--checkpoint_dir", [](auto& o) { o.checkpoint_dir = "a"; }},
                                     {"--resume", [](auto& o) { o.resume = "a"; }},
                                     {"--on_worker_loss continue", continues}}) {
    EXPECT_EQ(error(change, 1), "");
    const auto simulated = [&](auto& o) { change(o), o.clock = "virtual"; };
    EXPECT_EQ(error(simulated, 1).find(absl::StrCat(flag, " with --clock virtual")), 0);
  }
  const Change backup = [](auto& o) { o.on_worker_loss = "continue", o.strategy = "ps-backup:1"; };
  EXPECT_EQ(error(continues, 2), "");
  EXPECT_EQ(error(backup, 1), "");
  EXPECT_EQ(error([](auto& o) { o.on_worker_loss = "stop"; }, 2), "");
  EXPECT_THAT(error(backup, 2), Has("several servers of ps-backup"));
  EXPECT_THAT(error([&](auto& o) { backup(o), o.checkpoint_every = 5; }, 1), Has("ps-backup"));
  EXPECT_THAT(error([&](auto& o) { continues(o), o.align_steps = true; }, 1), Has("--align_steps"));
  EXPECT_THAT(error([&](auto& o) { continues(o), o.clip_norm = 1; }, 1), Has("--clip_norm"));
  EXPECT_THAT(error([](auto& o) { o.workload = "vgg16", o.resume = "a"; }, 1), Has("trains nothing"));
}

TEST(ServerFlagGiven, IsNamedAndCanBeReset) {
  EXPECT_EQ(ServerFlagGiven(TrainingOptions()), nullptr);
  for (const auto& [flag, change] :
       {Field{"--servers", [](auto& o) { o.servers = 2; }},
        {"--server_placement", [](auto& o) { o.server_placement = "colocated"; }},
        {"--ps_schedule", [](auto& o) { o.ps_schedule = "serial"; }},
        {"--server_wire", [](auto& o) { o.server_wire = "stream"; }},
        {"--on_worker_loss continue", [](auto& o) { o.on_worker_loss = "continue"; }},
        {"--worker_timeout", [](auto& o) { o.worker_timeout_s = 3; }},
        {"--debug.reject_nonfinite", [](auto& o) { o.reject_nonfinite = "false"; }},
        {"--debug.staging_mb", [](auto& o) { o.staging_mb = 7; }}}) {
    TrainingOptions options = Changed(change);
    EXPECT_STREQ(ServerFlagGiven(options), flag);
    LeaveServersOut(options);
    EXPECT_TRUE(options == TrainingOptions()) << flag;
  }
  // As the other strategies do anyway.
  EXPECT_EQ(ServerFlagGiven(Changed([](auto& o) { o.on_worker_loss = "stop"; })), nullptr);
}

TEST(TrainingOptions, RankOrderIsAListOfAxes) {
  for (const char* order : {"dp,pp", "tp,cp,dp,pp", "cp,dp"}) {
    EXPECT_TRUE(TrainingOptionsOf({absl::StrCat("--rank_order=", order)}).ok()) << order;
  }
  for (const char* order : {"dp,,pp", "dp,sp", "dp pp"}) {
    EXPECT_FALSE(TrainingOptionsOf({absl::StrCat("--rank_order=", order)}).ok()) << order;
  }
}

TEST(LeavePipelineOut, ResetsEveryFlagOfPipelines) {
  TrainingOptions options{.micro_batches = 4,
                          .pp = 2,
                          .tp = 2,
                          .sequence_parallel = true,
                          .cp = 2,
                          .context_parallel = "contiguous",
                          .program = "gpipe",
                          .cuts = "3",
                          .rank_order = "pp,dp",
                          .copy_streams = 1};
  LeavePipelineOut(options);
  EXPECT_TRUE(options == TrainingOptions{.micro_batches = 4});
}

TEST(TrainingArguments, OmitDefaults) {
  EXPECT_TRUE(TrainingArguments(TrainingOptions()).empty());
  EXPECT_TRUE(TrainingOptionsOf({}).value() == TrainingOptions());
}

TEST(TrainingArguments, RoundTripEveryFieldAndAllTogether) {
  TrainingOptions all;
  for (const Field& field : Fields()) {
    const TrainingOptions options = Changed(field.change);
    EXPECT_FALSE(options == TrainingOptions()) << field.flag;
    const std::vector<std::string> arguments = TrainingArguments(options);
    ASSERT_EQ(arguments.size(), 1) << field.flag;
    EXPECT_EQ(std::vector<std::string>(absl::StrSplit(arguments[0], '='))[0], field.flag);
    EXPECT_TRUE(TrainingOptionsOf(arguments).value() == options) << field.flag;
    field.change(all);
  }
  EXPECT_EQ(TrainingArguments(all).size(), Fields().size());
  EXPECT_TRUE(TrainingOptionsOf(TrainingArguments(all)).value() == all);
}

TEST(TrainingOptionsOf, RejectsOtherArgumentsInOneLine) {
  const std::vector<std::vector<std::string>> wrong = {{"--record=x"},
                                                       {"--help"},
                                                       {"word"},
                                                       {""},
                                                       {"--lr"},
                                                       {"--lr=abc"},
                                                       {"--lr=1", "--lr=2"},
                                                       {"--cuda_graph=abc"},
                                                       {"--config=x"},
                                                       {"--no_eval=1e99"},
                                                       {"--seed=18446744073709551616"},
                                                       {"two\nlines"}};
  for (const std::vector<std::string>& arguments : wrong) {
    const absl::Status status = TrainingOptionsOf(arguments).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << arguments.front();
    EXPECT_FALSE(status.message().empty()) << arguments.front();
    EXPECT_FALSE(absl::StrContains(status.message(), '\n')) << status;
  }
}

TEST(ContextParallel, EachRowIsFoundByItsKindAndByItsName) {
  for (const ContextParallelRow& row : kContextParallelRows) {
    EXPECT_EQ(&ContextParallelOf(row.kind), &row) << row.name;
    EXPECT_EQ(&ContextParallelOf(row.name), &row);
    EXPECT_TRUE(TrainingOptionsOf({absl::StrCat("--context_parallel=", row.name)}).ok()) << row.name;
  }
  EXPECT_EQ(ContextParallelOf(TrainingOptions().context_parallel).kind, ContextParallel::kRing);
}

TEST(TrainingFlags, AreAllInTheTableOfThisTest) {
  CLI::App app;
  TrainingOptions options;
  AddTrainingFlags(app, options);
  const size_t help = 1;
  EXPECT_EQ(app.get_options().size() - help, Fields().size());
}

TEST(TrainingFlags, HelpListsTheFlagsThatMostUsersNeed) {
  TrainingOptions options;
  const std::string help = ParseInto(options, {"--help"}).text;
  EXPECT_THAT(help, Has("--strategy ", "--model ", "--batch ", "--straggler ", "--help-all "));
  EXPECT_THAT(help, Lacks("--momentum", "--align_steps", "--debug"));
}

TEST(TrainingFlags, HelpAllListsGroupsAndDefaults) {
  TrainingOptions options;
  const std::string help = ParseInto(options, {"--help-all"}).text;
  for (const Field& field : Fields()) EXPECT_TRUE(absl::StrContains(help, field.flag)) << field.flag;
  EXPECT_THAT(help, Has("One step:", "(default 128)"));
  EXPECT_FALSE(absl::StrContains(help, "(default -1)")) << "that stands for: not given";
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(help, '\n')))
    EXPECT_LE(line.size(), 100) << line;
}

TEST(TrainingFlags, SkippedFlagsAreNotAdded) {
  CLI::App app("", "psring");
  TrainingOptions options;
  AddTrainingFlags(app, options, {"--batch", "--seed"});
  std::vector<int> batches;
  app.add_option("--batch", batches, "A sweep")->delimiter(',');
  EXPECT_TRUE(Parse(app, {"--batch", "32,64"}).proceed);
  EXPECT_EQ(batches, (std::vector<int>{32, 64}));
  EXPECT_EQ(options.batch, TrainingOptions().batch);
  EXPECT_EQ(Parse(app, {"--seeds", "1"}).text, "psring: unknown flag --seeds\n");
}

TEST(TrainingFlags, ErrorsNameTheFlag) {
  const std::map<std::string, std::string> errors = {
      {"--batch=0", "--batch: 0 is too small; the least is 1"},
      {"--batch=abc", "--batch: 'abc' is not a number"},
      {"--batch=3000000000", "--batch: 3000000000 is too large; the most is 2147483647"},
      {"--steps=0", "--steps: 0 is too small; the least is 1"},
      {"--steps=-5", "--steps: -5 is too small; the least is 1"},
      {"--samples=60k", "--samples: '60k' is not a number; write 60000"},
      {"--epochs=0", "--epochs: 0 is too small; it must be above 0"},
      {"--lr=0", "--lr: 0 is too small; it must be above 0"},
      {"--lr=inf", "--lr: 'inf' is not a number"},
      {"--momentum=1", "--momentum: 1 is too large; it must be below 1"},
      {"--momentum=-0.1", "--momentum: -0.1 is too small; it must be at least 0"},
      {"--dropout=1", "--dropout: 1 is too large; it must be below 1"},
      {"--dropout=-0.1", "--dropout: -0.1 is too small; it must be at least 0"},
      {"--dropout=nan", "--dropout: 'nan' is not a number"},
      {"--bucket_mb=0", "--bucket_mb: 0 is too small; it must be above 0"},
      {"--timeout=0", "--timeout: 0 is too small; it must be above 0"},
      {"--seed=-1", "--seed: -1 is too small; the least is 0"},
      {"--seed=18446744073709551616",
       "--seed: 18446744073709551616 is too large; the most is 18446744073709551615"},
      {"--optimizer=sdg",
       "--optimizer: 'sdg' is not one of sgd, momentum, adagrad, adam, adamw; did you mean sgd?"},
      {"--schedule=liner",
       "--schedule: 'liner' is not one of constant, linear, cosine; did you mean linear?"},
      {"--ps_schedule=seriel",
       "--ps_schedule: 'seriel' is not one of serial, pipelined; did you mean serial?"},
      {"--server_placement=rank1",
       "--server_placement: 'rank1' is not one of rank0, dedicated, colocated; did you mean rank0?"},
      {"--device=gpu", "--device: 'gpu' is not one of auto, cpu, cuda, cuda:I; did you mean cpu?"},
      {"--device=cuda:x", "--device: 'cuda:x' is not a GPU: 'x' is not a number"},
      {"--strategy=", "--strategy: it is empty"},
      {"--no_evil", "unknown flag --no_evil; did you mean --no_eval?"},
  };
  for (const auto& [argument, error] : errors)
    EXPECT_EQ(ParseError({argument}), "trainer: " + error + "\n") << argument;
}

TEST(ValidateTrainingOptions, ChecksFieldsAsTheirFlagsDo) {
  EXPECT_EQ(ValidationError([](auto& o) { o.batch = 0; }), "--batch: 0 is too small; the least is 1");
  EXPECT_EQ(ValidationError([](auto& o) { o.lr = -1; }), "--lr: -1 is too small; it must be above 0");
  EXPECT_EQ(ValidationError([](auto& o) { o.momentum = -0.5; }),
            "--momentum: -0.5 is too small; it must be at least 0");
  EXPECT_EQ(ValidationError([](auto& o) { o.lr = std::numeric_limits<double>::quiet_NaN(); }),
            "--lr: 'nan' is not a number");
  EXPECT_EQ(ValidationError([](auto& o) { o.optimizer = "adm"; }),
            "--optimizer: 'adm' is not one of sgd, momentum, adagrad, adam, adamw; did you mean adam?");
}

TEST(ValidateTrainingOptions, RejectsContradictions) {
  const struct {
    Change change;
    const char* error;
  } cases[] = {
      {[](auto&) {}, ""},
      {[](auto& o) { o.epochs = 3; }, ""},
      {[](auto& o) { o.steps = o.samples = 5; },
       "--steps and --samples each set the length of training; give one of them"},
      {[](auto& o) { o.steps = o.samples = 5, o.epochs = 1; },
       "--steps, --samples and --epochs each set the length of training; give one of them"},
      {[](auto& o) { o.reference_workers = 4; }, ""},
      {[](auto& o) { o.reference_workers = 4, o.strategy = "ring"; },
       "--reference_workers is for --strategy single; omit it for ring"},
      {[](auto& o) { o.ranks_per_process = 2; }, ""},
      {[](auto& o) { o.ranks_per_process = 2, o.clock = "virtual"; },
       "--ranks_per_process with --clock virtual, which is one process for all workers: omit one of them"},
      {[](auto& o) { o.memory = "none", o.clock = "virtual"; }, ""},
      {[](auto& o) { o.memory = "2GB", o.clock = "virtual"; },
       "--memory with --clock virtual, whose workers are of one process; omit it"},
      {[](auto& o) { o.evaluate = false, o.eval_every = 5; },
       "--eval_every and --no_eval contradict each other; give one of them"},
      {[](auto& o) { o.optimizer = "sgd", o.momentum = 0.9; },
       "--momentum 0.9 has no effect with --optimizer sgd; omit it or choose momentum"}};
  for (const auto& [change, error] : cases) EXPECT_EQ(ValidationError(change), error);
}

}  // namespace
}  // namespace psring
