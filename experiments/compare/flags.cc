#include "experiments/compare/flags.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/command_line.h"
#include "experiments/plan/plan_text.h"
#include "experiments/texts/language_flag.h"

namespace psring {
namespace {

ValueCheck ListOf(ValueCheck check) {
  return [check](const std::string& text) {
    for (absl::string_view part : absl::StrSplit(text, ',')) {
      if (const std::string wrong = check(std::string(part)); !wrong.empty()) return wrong;
    }
    return std::string();
  };
}

std::string CheckName(const std::string& text) { return text.empty() ? "a name is missing" : ""; }

std::string CheckSeconds(const std::string& text) {
  return std::string(ParseSeconds(text).status().message());
}

std::string CheckLink(const std::string& text) {
  return text == "auto" ? "" : std::string(ParseLink(text).status().message());
}

std::string CheckLatency(const std::string& text) {
  return std::string(ParseLatency(text).status().message());
}

void AddSharedFlags(CLI::App& verb, RawExperimentFlags& raw) {
  verb.add_option("--target_accuracy", raw.target_accuracy,
                  "Also say how long training took to the first evaluation with this test accuracy; without "
                  "--eval_every there are 20 of them")
      ->group("Evaluation and checks")
      ->option_text("X")
      ->check(RealNumber({.low = 0, .high = 1}));
  verb.add_option(
          "--like", raw.like,
          "With --clock virtual: computing and exchanges last as long as in this earlier run, step by "
          "step (--compute_ms trace:RUN --network_ms trace:RUN), and its stragglers and delays are taken "
          "over where none are given")
      ->group("Virtual clock (one process computes the real gradients of all workers; times are simulated)")
      ->option_text("RUN")
      ->check(CheckName);
  verb.add_option("--repeats", raw.repeats, "")
      ->group("How often")
      ->option_text("N")
      ->check(WholeNumber(1, 1000));
  verb.add_option("--time_budget", raw.time_budget, "")
      ->group("How often")
      ->option_text("TIME")
      ->check(CheckSeconds);
  verb.add_option("--plan_of", raw.plan_of,
                  "Rounds, steps and samples that are left open are those of this earlier run, not fitted")
      ->group("How often")
      ->option_text("RUN")
      ->check(CheckName);
  verb.add_flag("--dry_run", raw.dry_run, "Print the plan and the expected time, and do nothing")
      ->group("How often");
  verb.add_option(
          "--link", raw.link,
          "A virtual cluster: the rate of every machine's link, both ways, such as 1gbit or 200mbit; "
          "none: all processes share this machine's loopback; auto: without a GPU, 1gbit or the fastest "
          "of 500mbit, 250mbit and 100mbit that this machine carries")
      ->group("Network")
      ->option_text("RATE")
      ->check(CheckLink)
      ->capture_default_str();
  verb.add_option("--latency", raw.latency, "Added to every message of the virtual cluster, one way: 0.5ms")
      ->group("Network")
      ->option_text("TIME")
      ->check(CheckLatency)
      ->capture_default_str();
  verb.add_option(
          "--shaping", raw.shaping,
          "How the link is kept: netns (a network namespace a machine), userspace (psring's transports "
          "hold back), none, or auto")
      ->group("Network")
      ->option_text("HOW")
      ->check(OneOf({"auto", "netns", "userspace", "none"}))
      ->capture_default_str();
  const char* machines = "Several machines (torchrun's words; the same command on each but for --node_rank)";
  verb.add_option("--nnodes", raw.nodes.nodes, "How many machines")
      ->group(machines)
      ->option_text("N")
      ->check(WholeNumber(1, kMostWorkers))
      ->capture_default_str();
  verb.add_option("--nproc_per_node", raw.nodes.per_node,
                  "Processes on each, in place of --workers: as many workers, or times --ranks_per_process")
      ->group(machines)
      ->option_text("N")
      ->check(WholeNumber(1, kMostWorkers));
  verb.add_option("--node_rank", raw.nodes.node, "Which of them this is; 0 leads and prints the result")
      ->group(machines)
      ->option_text("I")
      ->check(WholeNumber(0, kMostWorkers - 1))
      ->capture_default_str();
  verb.add_option("--master_addr", raw.nodes.master_addr, "Node 0's name or address")
      ->group(machines)
      ->option_text("HOST")
      ->check(CheckName);
  verb.add_option("--master_port", raw.nodes.master_port, "On which node 0 listens for the others")
      ->group(machines)
      ->option_text("PORT")
      ->check(WholeNumber(1, 65535))
      ->capture_default_str();
  verb.add_option("--bind", raw.nodes.network.bind,
                  "This machine's address that its processes listen on; else the loopback, or with several "
                  "machines the address that leads to node 0")
      ->group(machines)
      ->option_text("ADDRESS")
      ->check(CheckName);
  verb.add_option("--interface", raw.nodes.network.interface, "The same, by its network interface's name")
      ->group(machines)
      ->option_text("NAME")
      ->check(CheckName);
  verb.add_flag("--live", raw.live,
                "While it runs, serve a page with progress, throughput, loss and link use on this machine's "
                "loopback; its address is printed")
      ->group("Machine and results");
  verb.add_option("--live_port", raw.live_port, "The port of --live; else the system chooses")
      ->group("Machine and results")
      ->option_text("PORT")
      ->check(WholeNumber(1, 65535));
  verb.add_option(
          "--metrics_port", raw.metrics_port,
          "Every worker and server serves steps, bytes, waits and staleness as OpenMetrics: rank r at "
          "http://ADDRESS:PORT+r/metrics, server s at PORT+workers+s; ADDRESS is the loopback or --bind, in "
          "a virtual cluster the node's own; 0: the system chooses, and the addresses are printed")
      ->group("Machine and results")
      ->option_text("PORT")
      ->check(WholeNumber(0, 65535));
  verb.add_flag(
          "--tensorboard", raw.tensorboard,
          "Also write loss, accuracy, samples/s, communication and staleness of every step as TensorBoard's "
          "event files, in tensorboard/ of the run's folder")
      ->group("Machine and results");
  AddLanguageFlag(verb, raw.language, "What is printed, and what the page opens with: en or zh")
      ->group("Machine and results");
  verb.add_option("--out", raw.out, "Folder for the results, new or empty; else runs/<UTC time>-<verb>")
      ->group("Machine and results")
      ->option_text("DIR")
      ->check(CheckName);
}

}  // namespace

CLI::App* AddCompare(CLI::App& app, RawExperimentFlags& raw) {
  CLI::App* verb = app.add_subcommand(
      "compare", "Compare strategies: what a step costs under each, and what accuracy it leads to");
  // Flags whose meaning is the verb's own.
  verb->add_option(
          "--strategies,--strategy", raw.strategies,
          "Several, with commas; single and none are added as references. By default none, ring, ps-sync, "
          "ps-async; accuracy of single, ring and ps-async")
      ->group("What is compared")
      ->option_text("NAMES")
      ->check(ListOf(CheckName));
  verb->add_option("--workers", raw.workers,
                   "Several, with commas [1,2,4; on several GPUs 1,2,4,... all; with --straggler 4]")
      ->group("What is compared")
      ->option_text("N,...")
      ->check(ListOf(WholeNumber(1, kMostLogicalWorkers)));
  verb->add_option("--servers", raw.servers,
                   "Parameter servers that share the parameters, each with a slice of every bucket; several, "
                   "with commas; else 1, or one a worker where they are colocated")
      ->group("What is compared")
      ->option_text("S,...")
      ->check(ListOf(WholeNumber(1, kMostServers)));
  AddSharedFlags(*verb, raw);
  verb->add_flag(
          "--predict", raw.predict,
          "Beside every measured row the simulator's prediction of the very same case, and in residuals.csv "
          "where the two part; needs links with a rate (--link)")
      ->group("What is compared");
  verb->add_option(
          "--lr", raw.lrs,
          "Learning rate of one update; of several, with commas, each strategy gets the one with the best "
          "accuracy on 5,000 training samples held out (--validation); else the model's")
      ->group("One step")
      ->option_text("X,...")
      ->check(ListOf(RealNumber({})));
  verb->get_option("--repeats")
      ->description(
          "Rounds of the cost part, and trainings (with the next seed each) of the accuracy part; else as "
          "many rounds as fit into --time_budget, and one training");
  verb->get_option("--time_budget")->description("What is left open is fitted into it [3m]");
  verb->add_option("--steps", raw.training.steps, "Measured steps of a launch in the cost part; else fitted")
      ->group("How often")
      ->option_text("N")
      ->check(WholeNumber(1, 1'000'000'000));
  verb->add_option("--samples", raw.training.samples,
                   "Of each training in the accuracy part, over all workers; else fitted")
      ->group("How often")
      ->option_text("N")
      ->check(WholeNumber(1, INT64_MAX));
  verb->add_option("--epochs", raw.training.epochs, "The same, in passes over the data")
      ->group("How often")
      ->option_text("X")
      ->check(RealNumber({}));
  verb->add_option("--warmup_steps", raw.training.warmup_steps,
                   "Steps before the measured ones in the cost part [3]")
      ->group("How often")
      ->option_text("N")
      ->check(WholeNumber(0, 1'000'000));
  AddTrainingFlags(*verb, raw.training,
                   {"--strategy", "--replicas", "--servers", "--steps", "--samples", "--epochs",
                    "--warmup_steps", "--lr"});
  verb->get_option("--no_eval")->description("Leave the accuracy part out");
  return verb;
}

CLI::App* AddTrain(CLI::App& app, RawExperimentFlags& raw) {
  CLI::App* verb = app.add_subcommand("train", "Train one network with one strategy");
  verb->add_option("--strategy,--strategies", raw.strategies, "How replicas are kept in step [single]")
      ->group("What is trained")
      ->option_text("NAME")
      ->check(ListOf(CheckName));
  verb->add_option("--workers", raw.workers, "Workers [1]")
      ->group("What is trained")
      ->option_text("N")
      ->check(ListOf(WholeNumber(1, kMostLogicalWorkers)));
  AddSharedFlags(*verb, raw);
  verb->get_option("--repeats")->description("Trainings, each with the next seed [1]");
  verb->get_option("--time_budget")->description("Refuse to start what should take longer");
  AddTrainingFlags(*verb, raw.training, {"--strategy", "--replicas"});
  return verb;
}

}  // namespace psring
