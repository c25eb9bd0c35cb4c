// One rank of a group without training: runs collectives, checks them, and on rank 0 prints a table. `psring
// bench` starts one for each rank; manually:
//
//   ring_worker --rendezvous tcp://127.0.0.1:29500 --rank 0 --world_size 2 --bytes 4K,4M

#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/device/task_limit.h"
#include "common/net/descriptor_limit.h"
#include "common/net/tls.h"
#include "common/rendezvous/own_address.h"
#include "common/rendezvous/rendezvous.h"
#include "common/text/units.h"
#include "ring_worker/bench/bench_run.h"

namespace psring {
namespace {

struct Flags {
  std::string rendezvous = "env://";
  std::string rank, world_size;  // instead of RANK and WORLD_SIZE
  NetworkChoice network;
  std::vector<std::string> combinations;
  std::string collective = "all_reduce", backend = "native", algorithm, transport = "auto",
              buffers = "private";
  std::vector<std::string> bytes = {"4M"}, types = {"float32"}, ops = {"sum"};
  BenchOptions bench;  // the numeric options
  int average = static_cast<int>(AcrossRanks::kMax);
  std::string segment = "0";
  double timeout_s = 60;
  std::string tls;
  bool json = false, describe = false, no_pin = false;
};

absl::Status SizeFlag(const std::string& flag, const std::string& text, uint64_t most, uint64_t& bytes) {
  const absl::StatusOr<uint64_t> size = ParseByteSize(text);
  if (!size.ok()) return InvalidArgument(flag, ": ", size.status().message());
  if (*size > most) return InvalidArgument(flag, ": ", text, " is above 1G");
  bytes = *size;
  return absl::OkStatus();
}

absl::StatusOr<BenchOptions> Understand(const Flags& flags) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  BenchOptions options = flags.bench;
  for (const std::string& text : flags.combinations) {
    PSRING_ASSIGN_OR_RETURN(options.combinations.emplace_back(), ParseCombination(text));
  }
  if (flags.combinations.empty() && !options.limits) {
    PSRING_ASSIGN_OR_RETURN(
        options.combinations.emplace_back(),
        ParseCombination(absl::StrJoin(
            {flags.collective, flags.backend, flags.algorithm, flags.transport, flags.buffers}, "/")));
  }
  for (const std::string& text : flags.bytes) {
    uint64_t bytes = 0;
    PSRING_RETURN_IF_ERROR(SizeFlag("--bytes", text, UINT64_MAX, bytes));
    options.bytes.push_back(bytes);
  }
  options.types.clear();
  for (const std::string& text : flags.types) {
    PSRING_ASSIGN_OR_RETURN(options.types.emplace_back(), ParseDType(text));
  }
  options.ops.clear();
  for (const std::string& text : flags.ops) {
    PSRING_ASSIGN_OR_RETURN(options.ops.emplace_back(), ParseReduceOp(text));
  }
  options.pin = !flags.no_pin;
  options.across = static_cast<AcrossRanks>(flags.average);
  uint64_t segment = 0;
  PSRING_RETURN_IF_ERROR(SizeFlag("--debug.segment", flags.segment, kGiB, segment));
  options.group.segment_bytes = segment;
  options.group.timeout = absl::Seconds(flags.timeout_s);
  PSRING_RETURN_IF_ERROR(CheckBenchOptions(options));
  for (const Combination& combination : options.combinations) {
    if (flags.tls.empty() || combination.backend == "native") continue;
    return InvalidArgument("--tls with ", combination.backend, ", which opens its own connections; omit it");
  }
  return options;
}

absl::StatusOr<std::unique_ptr<Rendezvous>> Join(const Flags& flags, BenchOptions& options) {
  const GetEnv environment = InPlaceOf(ProcessEnvironment(), flags.rank, flags.world_size);
  PSRING_ASSIGN_OR_RETURN(RendezvousOptions join, ReadRendezvous(flags.rendezvous, environment, flags.tls));
  join.timeout = absl::Seconds(flags.timeout_s);
  PSRING_ASSIGN_OR_RETURN(options.group.bind_host, OwnAddress(flags.network, join));
  join.bind = options.group.bind_host;
  return Rendezvous::Join(join);
}

// Ranks with different flags get an error before they wait for each other.
absl::Status RequireSameFlags(const Flags& flags, const BenchOptions& options, Rendezvous& rendezvous) {
  const std::pair<const char*, std::string> texts[] = {
      {"--algorithm", flags.algorithm},
      {"--combination",
       absl::StrJoin(options.combinations, ",",
                     [](std::string* out, const Combination& c) { absl::StrAppend(out, ToString(c)); })},
      {"--bytes", absl::StrJoin(options.bytes, ",")},
      {"--datatype", absl::StrJoin(flags.types, ",")},
      {"--op", absl::StrJoin(flags.ops, ",")},
      {"--debug.segment", flags.segment},
      {"the number of calls", absl::StrCat(options.turns, " ", options.calls_per_turn, " ",
                                           options.warmup_calls, " ", options.checked_calls)},
      {"--root, --limits, --oversubscribe or --ranks_per_node",
       absl::StrCat(options.root, " ", options.limits, " ", options.oversubscribe, " ",
                    options.group.ranks_per_node)}};
  for (const auto& [what, text] : texts) PSRING_RETURN_IF_ERROR(RequireEqual(rendezvous, what, text));
  return absl::OkStatus();
}

absl::Status RunWorker(const Flags& flags) {
  PSRING_ASSIGN_OR_RETURN(BenchOptions options, Understand(flags));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> rendezvous, Join(flags, options));
  PSRING_RETURN_IF_ERROR(RequireSameFlags(flags, options, *rendezvous));
  const std::unique_ptr<BenchOutput> output =
      flags.json ? MakeJsonOutput(stdout) : MakeTableOutput("ring_worker", options.turns, stdout);
  PSRING_RETURN_IF_ERROR(RunBench(options, *rendezvous, *output));
  if (rendezvous->options().rank == 0) output->Finish();
  return absl::OkStatus();
}

void AddFlags(CLI::App& app, Flags& flags) {
  BenchOptions& bench = flags.bench;
  // Of the following options.
  CLI::OptionDefaults& all = *app.option_defaults();
  const CLI::OptionDefaults before = all;
  all.always_capture_default();
  const auto number = [&](const char* names, int& to, const char* text, int least, int most) {
    app.add_option(names, to, text)->check(WholeNumber(least, static_cast<uint64_t>(most)));
  };

  all.group("Job");
  app.add_option("--rendezvous", flags.rendezvous, "env://, tcp://host:port or file://path");
  app.add_option("--rank", flags.rank, "Instead of the variable RANK")->check(WholeNumber(0, 1 << 20));
  app.add_option("--world_size", flags.world_size, "Instead of the variable WORLD_SIZE")
      ->check(WholeNumber(1, 1 << 20));
  app.add_option("--bind", flags.network.bind, "Address of this machine that the other ranks connect to");
  app.add_option("--interface", flags.network.interface, "The address of this network interface");
  app.add_option("--timeout", flags.timeout_s, "Seconds to wait for a silent peer")->check(RealNumber({}));
  AddTlsFlag(app, flags.tls);

  all.group("Calls");
  app.add_option("--collective", flags.collective, "all_reduce, reduce_scatter, all_gather or broadcast");
  app.add_option("--backend", flags.backend,
                 "native, gloo, mpi or nccl; --describe lists those of this build");
  app.add_option("--algorithm", flags.algorithm, "An algorithm of the backend; default: its own choice");
  app.add_option("--transport", flags.transport, "A transport of the backend");
  app.add_option("--buffers", flags.buffers,
                 "private, huge (pages), or shared: in memory that peers may read in place");
  app.add_option(
         "--combination", flags.combinations,
         "COLLECTIVE/BACKEND/ALGORITHM/TRANSPORT/BUFFERS instead of the five flags above; repeat it to "
         "measure several in alternation")
      ->default_str("");
  app.add_option("--device", bench.device,
                 "Memory of the buffers: cpu, or cuda (the GPUs of the host, assigned to its ranks in turn)")
      ->check(OneOf({"cpu", "cuda"}));
  app.add_flag("--oversubscribe", bench.oversubscribe, "Let ranks share a GPU, for functional tests only");
  app.add_flag("--limits", bench.limits,
               "Also measure this host's upper limits; without combinations, only these");
  app.add_option("-b,--bytes", flags.bytes, "Sizes, with K, M or G")->delimiter(',');
  app.add_option("-d,--datatype", flags.types, "float, bfloat16, half")->delimiter(',');
  app.add_option("-o,--op", flags.ops, "sum, avg, min, max")->delimiter(',');
  number("-r,--root", bench.root, "Root of a broadcast", 0, 1 << 20);

  all.group("Measurement");
  number("-n,--iters", bench.turns, "Timed iterations of each size", 1, 100'000'000);
  number("-m,--agg_iters", bench.calls_per_turn,
         "Consecutive calls in an iteration; 0: as many as take 200 us", 0, 1'000'000);
  number("-w,--warmup_iters", bench.warmup_calls, "Untimed calls of each size", 0, 1 << 30);
  number("-c,--check", bench.checked_calls, "Checked calls of each size, before the timed ones", 0, 1 << 30);
  number("-a,--average", flags.average, "Which of the ranks' times: 0 rank 0's, 1 mean, 2 minimum, 3 maximum",
         0, 3);
  app.add_flag("--no_pin", flags.no_pin, "Let the kernel move ranks between cores");
  app.add_option("--debug.segment", flags.segment, "Bytes of a pipelined segment; 0: the transport's default")
      ->group(kDebugGroup);
  number("--ranks_per_node", bench.group.ranks_per_node,
         "So many consecutive ranks are a host; 0: those that share memory", 0, 1 << 20);
  app.add_flag("--json", flags.json, "For psring: print JSON lines, and exit when the parent process exits");
  app.add_flag("--describe", flags.describe, "Print what this build offers as JSON, then exit");
  all = before;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("One peer of a mesh: runs collectives without training.", "ring_worker");
  AddFlags(app, flags);
  ParseOrExit(app, argc, argv);
  if (flags.describe) {
    std::printf("%s\n", DescribeJson().c_str());
    return 0;
  }
  if (flags.json) prctl(PR_SET_PDEATHSIG, SIGKILL);
  (void)AllowDescriptors(0, "");  // there may be many groups, each with sockets to several ranks
  absl::Status status = AllowTasks(RankTasks(1), RanksText(1));
  if (!status.ok()) return Fail("ring_worker", std::string(status.message()), 2);
  status = RunWorker(flags);
  if (status.ok()) return 0;
  const bool bad_input =
      status.code() == absl::StatusCode::kInvalidArgument || status.code() == absl::StatusCode::kNotFound;
  return Fail("ring_worker", std::string(status.message()), bad_input ? 2 : 1);
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) { return psring::FinishOutput("ring_worker", psring::Main(argc, argv)); }
