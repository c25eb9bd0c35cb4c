#include <climits>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/cli/command_line.h"
#include "common/options/training_options.h"
#include "common/text/translate.h"
#include "experiments/design/plan.h"
#include "experiments/engine/node_flags.h"
#include "experiments/verbs/compare/compare.h"
#include "trainer/models/table/model_table.h"
#include "trainer/programs/mesh.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

constexpr char kWhat[] = "What is compared";
constexpr char kHowOften[] = "How often";
constexpr char kNetwork[] = "Network";
constexpr char kResults[] = "Machine and results";

constexpr int kMaxMicroBatches = 4096, kMaxCutLayer = 1 << 16;

std::string CheckPreset(const std::string& text) {
  return std::string(ParseLayout(text, kMaxLogicalWorkers).status().message());
}

std::string CheckCuts(const std::string& text) {
  return text == kAllCuts ? "" : CountsText(kMaxCutLayer)(text);
}

std::string CheckTune(const std::string& text) {
  absl::string_view factors = text;
  if (text == "lr") return "";
  if (!absl::ConsumePrefix(&factors, "lr:")) {
    return absl::StrCat("'", text, "' cannot be tuned; write lr, or lr:0.5,1,2,4");
  }
  return ListOf(RealNumber({}))(std::string(factors));
}

// Adds a flag with a value.
template <typename T>
CLI::Option* Add(CLI::App& verb, const std::string& group, const char* names, T& to, const char* value,
                 const char* help, const ValueCheck& check) {
  return verb.add_option(names, to, help)->group(group)->option_text(value)->check(check);
}

// The flags of both verbs.
void AddSharedFlags(CLI::App& verb, RawExperimentFlags& raw) {
  Add(verb, InHelpAll("Evaluation and checks"), "--target_accuracy", raw.flags.options.target_accuracy, "X",
      "Also print the time to the first evaluation with this test accuracy; without --eval_every there are "
      "20 evaluations",
      RealNumber({.low = 0, .high = 1}));
  Add(verb,
      InHelpAll(
          "Virtual clock (one process computes the real gradients of all workers; times are simulated)"),
      "--like", raw.like, "RUN",
      "With --clock virtual: take the times of computing and exchanging from this earlier run, step by step "
      "(--compute_ms trace:RUN --network_ms trace:RUN), and its stragglers and delays unless given",
      CheckName);
  Add(verb, "One step", "--global_batch", raw.flags.options.training.global_batch, "B",
      "Samples of one step over all workers, divided equally among them (strong scaling), instead of --batch "
      "for each (weak scaling)",
      WholeNumber(1, INT_MAX));
  Add(verb, kHowOften, "--repeats", raw.flags.options.repeats, "N", "", WholeNumber(1, 1000));
  Add(verb, kHowOften, "--time_budget", raw.time_budget, "TIME", "", ParsedBy(ParseSeconds));
  Add(verb, InHelpAll(kHowOften), "--plan_of", raw.flags.plan_of, "RUN",
      "Take the rounds, steps and samples that are not given from this earlier run instead of fitting them",
      CheckName);
  verb.add_flag("--dry_run", raw.flags.dry_run, "Print the plan and the expected time, then exit")
      ->group(kHowOften);
  Add(verb, kNetwork, "--link", raw.link, "RATE",
      "A virtual cluster: the rate of every machine's link, both ways, such as 1gbit or 200mbit; none: all "
      "processes share this machine's loopback; auto: without a GPU, 1gbit or the fastest of 500mbit, "
      "250mbit, 100mbit, 50mbit and 25mbit that this machine can carry",
      ParsedBy(ParseLink, "auto"))
      ->capture_default_str();
  Add(verb, InHelpAll(kNetwork), "--latency", raw.latency, "TIME",
      "Added to every message of the virtual cluster, one way: 0.5ms", ParsedBy(ParseLatency))
      ->capture_default_str();
  Add(verb, InHelpAll(kNetwork), "--shaping", raw.flags.link.shaping, "HOW",
      "How the link's rate is limited: netns (a network namespace per machine), userspace (in psring's "
      "transports), none, or auto",
      OneOf({"auto", "netns", "userspace", "none"}))
      ->capture_default_str();
  Add(verb, InHelpAll(kNetwork), "--scale", raw.flags.link.scale, "K",
      "For links faster than this machine carries, with --workload: run links and replayed computing K times "
      "slower and divide all times by K. The processor time of communication is not slowed, so the results "
      "are marked simulated",
      RealNumber({.low = 1, .high = 1000, .low_allowed = true, .high_allowed = true}))
      ->capture_default_str();
  verb.add_flag("--tensorboard", raw.flags.tensorboard,
                "Also write loss, accuracy, samples/s, communication and staleness of every step as "
                "TensorBoard event files, in tensorboard/ of the run's folder: during a training, and after "
                "each launch of a comparison")
      ->group(kResults);
  verb.add_flag(
          "--verbose", raw.flags.verbose,
          "Print all columns of the table and the findings, which are otherwise only in the run's files")
      ->group(kResults);
  AddLanguageFlag(verb, "Language of the output, and initially of the page: en or zh")->group(kResults);
  Add(verb, kResults, "--out", raw.flags.out, "DIR",
      "Folder for the results, new or empty; default: runs/<UTC time>-<verb>", CheckName);
  AddConfigFlag(verb, kResults);
}

}  // namespace

RawExperimentFlags CompareDefaults() {
  RawExperimentFlags raw;
  // A learning rate that decays to 0 reduces noise at the end, so differences in accuracy show sooner.
  raw.flags.options.training.schedule = "linear";
  // A comparison represents a network, so all strategies use TCP between workers, not shared memory.
  raw.flags.options.training.transport = "tcp";
  raw.link = "auto";
  return raw;
}

CLI::App* AddCompare(CLI::App& app, RawExperimentFlags& raw) {
  CLI::App* verb = app.add_subcommand(
      "compare", "Compare strategies: the cost of a step and the accuracy that each reaches");
  // Flags that differ between the verbs.
  Add(*verb, kWhat, "--strategies,--strategy", raw.strategies, "NAME,...",
      "Comma-separated: ring, direct, ps-sync, ps-ssp:2, ps-async, ... (an unknown name lists all); single "
      "and none are added as references. By default none, ring, ps-sync and ps-async, for a model with "
      "tables also hybrid; in the accuracy part single, ring and ps-async",
      ListOf(CheckName));
  Add(*verb, kWhat, "--workers", raw.workers, "N,...",
      "Numbers of workers, comma-separated [2,4; on several GPUs or machines 2,4,... up to all; with "
      "--straggler 4]",
      CountsText(kMaxLogicalWorkers));
  Add(*verb, kWhat, "--layouts", raw.layouts, "NAME,...|auto",
      "How the workers divide a step: dp4, four replicas of the model; pp4, one replica in four stages; tp4, "
      "one replica whose matrices four workers divide; cp4, one whose sequences they divide; dp2xpp2; "
      "dp2xtp2; ...; or auto: all of --workers that the model allows. All compute the same samples per step: "
      "--micro_batches times --batch, or --global_batch. Only times are compared, because all layouts train "
      "the same weights, unless there are several strategies or a program without a flush (pipedream)",
      CheckName);
  Add(*verb, InHelpAll("Pipelines"), "--program,--programs", raw.programs, "NAME,...",
      "What each worker of a replica computes in which order, comma-separated [1f1b]:", ListOf(CheckName));
  AddPrograms(*verb);
  Add(*verb, InHelpAll("Pipelines"), "--cuts", raw.flags.options.training.cuts, "L,...|all",
      "The layer (from 0) with which each stage but the first begins; default: balanced by measured time; "
      "all: a case for each layer before which two stages can be cut, at most 12",
      CheckCuts);
  Add(*verb, InHelpAll("Pipelines"), "--copy_streams", raw.copy_streams, "1|2,...",
      "How a worker's messages to and from other stages run, comma-separated: 2, each direction to each "
      "neighbour has its own stream, so that they overlap; 1, all follow one another on one stream [2]",
      CountsText(2));
  Add(*verb, "One step", "--micro_batches", raw.micro_batches, "M,...",
      "Each worker adds up the gradients of M batches, then synchronizes them; with --layouts or --pp the "
      "micro-batches of a step, which the replicas share, comma-separated [1; with --layouts or --pp 4 for "
      "each stage]",
      CountsText(kMaxMicroBatches));
  Add(*verb, kWhat, "--servers", raw.servers, "S,...",
      "Parameter servers that share the parameters, each with a slice of every bucket; comma-separated; "
      "default: 1, or one per worker if colocated",
      CountsText(kMaxServers));
  Add(*verb, InHelpAll("Parameter server"), "--server_wire,--server_wires", raw.server_wires, "NAME,...",
      "What carries a server's gradients and weights that are not in shared memory, comma-separated: grpc, "
      "or stream (TCP connections of psring's own, as between the ranks of a ring) [grpc]",
      ListOf(OneOf({"grpc", "stream"})));
  AddSharedFlags(*verb, raw);
  AddNodeFlags(*verb, raw.flags.nodes);
  verb->get_option("--nproc_per_node")
      ->description("Most processes on each machine; --workers counts those of all machines [1]");
  AddPlacementFlag(*verb, raw.flags.nodes);
  verb->add_flag("--predict", raw.flags.predict,
                 "Add the simulator's prediction of each row, and residuals.csv with the differences; needs "
                 "links with a rate (--link)")
      ->group(kWhat);
  Add(*verb, "One step", "--lr", raw.lrs, "X,...",
      "Learning rate of one update. Of several, comma-separated, each strategy gets the one with the best "
      "accuracy on 5,000 held-out training samples (--validation); default: the model's",
      ListOf(RealNumber({})));
  Add(*verb, "One step", "--tune", raw.tune, "lr[:X,...]",
      "Try 0.5, 1 and 2 (or X,...) times its learning rate with every strategy and number of workers, and "
      "compare each at its best rate, by accuracy on 5,000 held-out training samples (--validation)",
      CheckTune);
  verb->get_option("--repeats")
      ->description(
          "Rounds of the cost part, and trainings (with the next seed each) of the accuracy part; default: "
          "as many rounds as fit into --time_budget, and one training");
  verb->get_option("--time_budget")
      ->description(
          "A limit for the whole run, from preparation to results: the plan is shortened to fit or rejected, "
          "and no round starts that could not end in time. Without it, values that are not given are chosen "
          "to fit into 2m");
  Add(*verb, InHelpAll(kHowOften), "--steps", raw.flags.options.training.steps, "N",
      "Measured steps of a launch in the cost part; default: chosen to fit --time_budget",
      WholeNumber(1, 1'000'000'000));
  Add(*verb, InHelpAll(kHowOften), "--samples", raw.flags.options.training.samples, "N",
      "Samples of each training in the accuracy part, over all workers; default: chosen to fit --time_budget",
      WholeNumber(1, kMaxCount));
  Add(*verb, InHelpAll(kHowOften), "--epochs", raw.flags.options.training.epochs, "X",
      "As --samples, in passes over the data", RealNumber({.high = kMaxEpochs, .high_allowed = true}));
  Add(*verb, InHelpAll(kHowOften), "--warmup_steps", raw.flags.options.training.warmup_steps, "N",
      "Steps before the measured ones in the cost part [3; 1 if no model is named]",
      WholeNumber(1, 1'000'000));
  AddTrainingFlags(
      *verb, raw.flags.options.training,
      {"--strategy", "--servers", "--server_wire", "--steps", "--samples", "--epochs", "--warmup_steps",
       "--lr", "--resume", "--micro_batches", "--program", "--cuts", "--tp", "--cp", "--copy_streams"});
  AddModelsAndData(*verb);
  // See WithDefaultModel.
  verb->get_option("--model")->default_str("cnn; with --clock virtual mlp");
  verb->get_option("--batch")->default_str("128; 48 if no model is named");
  Add(*verb, kResults, "--resume", raw.resume, "RUN",
      "Continue a comparison that was interrupted, failed or ran out of time: in its folder, with its flags, "
      "from its last finished round on. Only --time_budget, --dry_run, --verbose and --lang can be added",
      CheckName);
  verb->get_option("--no_eval")->description("Skip the accuracy part");
  raw.transport = verb->get_option("--transport");
  raw.model = verb->get_option("--model");
  raw.batch = verb->get_option("--batch");
  verb->get_option("--global_batch")->excludes("--batch");
  verb->get_option("--layouts")->excludes("--pp");
  return verb;
}

CLI::App* AddTrain(CLI::App& app, RawExperimentFlags& raw) {
  CLI::App* verb = app.add_subcommand("train", "Train one network with one strategy");
  Add(*verb, "What is trained", "--strategy,--strategies", raw.strategies, "NAME",
      "How the replicas are synchronized: ring (or allreduce), ps-sync (or ps), ps-async, ... (`explain "
      "NAME` describes one) [single; ring for several replicas of --pp, --tp or --preset]",
      ListOf(CheckName));
  Add(*verb, "What is trained", "--workers", raw.workers, "N", "Workers [1]", CountsText(kMaxLogicalWorkers));
  AddSharedFlags(*verb, raw);
  AddNodeFlags(*verb, raw.flags.nodes);
  verb->get_option("--repeats")->description("Trainings, each with the next seed [1]");
  verb->get_option("--time_budget")
      ->description("Reject a training that would take longer")
      ->group(InHelpAll(kHowOften));
  AddTrainingFlags(*verb, raw.flags.options.training, {"--strategy"});
  AddModelsAndData(*verb);
  AddPrograms(*verb);
  Add(*verb, InHelpAll("Pipelines"), "--preset", raw.preset, "NAME",
      "A layout. dp4xpp2: --workers 8 --pp 2 --rank_order pp,dp, so that ranks 0, 2, 4 and 6 have the first "
      "half of the model and 1, 3, 5 and 7 the second. dp2xtp2: --workers 4 --tp 2 --rank_order tp,dp",
      CheckPreset);
  raw.transport = verb->get_option("--transport");
  verb->get_option("--resume")->group("Checkpoints and failure");
  verb->get_option("--global_batch")->excludes("--batch");
  return verb;
}

}  // namespace psring
