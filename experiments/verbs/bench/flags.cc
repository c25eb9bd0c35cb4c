#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/kernels/reduce.h"
#include "common/net/tls.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/engine/node_flags.h"
#include "experiments/verbs/bench/bench.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax};

std::string CheckJsonPath(const std::string& text) {
  return absl::EndsWith(absl::AsciiStrToLower(text), ".json")
             ? ""
             : absl::StrCat("'", text, "' does not end in .json, the only format");
}

std::vector<std::string> Names(const std::string& text) {
  if (text.empty()) return {};
  return absl::StrSplit(text, ',');
}

absl::StatusOr<SizeSweep> UnderstandSizes(const RawBenchFlags& raw) {
  SizeSweep sweep;
  if (!raw.sizes.empty()) {
    if (!raw.min_bytes.empty() || !raw.max_bytes.empty() || !raw.step_bytes.empty() ||
        !raw.step_factor.empty()) {
      return InvalidTr("--sizes excludes -b, -e, -i and -f; omit one of them");
    }
    for (const std::string& text : Names(raw.sizes)) {
      PSRING_ASSIGN_OR_RETURN(sweep.list.emplace_back(), ParseByteSize(text));
    }
    return sweep;
  }
  if (!raw.min_bytes.empty()) {
    PSRING_ASSIGN_OR_RETURN(sweep.least, ParseByteSize(raw.min_bytes));
  }
  if (!raw.max_bytes.empty()) {
    PSRING_ASSIGN_OR_RETURN(sweep.most, ParseByteSize(raw.max_bytes));
  }
  // If only one end is given, the other one is adjusted if necessary.
  if (raw.max_bytes.empty()) sweep.most = std::max(sweep.most, sweep.least);
  if (raw.min_bytes.empty()) sweep.least = std::min(sweep.least, sweep.most);
  if (!raw.step_bytes.empty()) {
    PSRING_ASSIGN_OR_RETURN(sweep.step_bytes, ParseByteSize(raw.step_bytes));
    if (sweep.step_bytes == 0) return InvalidTr("--stepbytes 0 does not grow");
  }
  if (!raw.step_factor.empty() && !absl::SimpleAtoi(raw.step_factor, &sweep.step_factor)) {
    return InvalidArgument("--stepfactor: '", raw.step_factor, "'");
  }
  return sweep;
}

// Converts "float", "half" or "all" to the names that the workers use.
template <typename Value, typename All, typename Parser>
absl::StatusOr<std::vector<std::string>> NamesOf(const std::string& text, const All& all, Parser parse) {
  std::vector<std::string> names;
  const auto add = [&](Value value) {
    if (std::ranges::find(names, Name(value)) == names.end()) names.push_back(Name(value));
  };
  for (const std::string& word : Names(text)) {
    if (word == "all") {
      for (const Value value : all) add(value);
      continue;
    }
    PSRING_ASSIGN_OR_RETURN(const Value value, parse(word));
    add(value);
  }
  return names;
}

}  // namespace

CLI::App* AddBench(CLI::App& app, RawBenchFlags& raw) {
  BenchRequest& request = raw.flags.request;
  CLI::App* verb =
      app.add_subcommand("bench", "Measure collectives of every backend, with nccl-tests' flags and table");
  const auto add = [&](const char* group, const char* names, std::string& to, const char* value,
                       const char* text, const ValueCheck& check) {
    verb->add_option(names, to, text)->group(group)->option_text(value)->check(check);
  };
  const auto number = [&](const std::string& group, const char* names, int& to, const char* text, int least,
                          int most) {
    verb->add_option(names, to, text)
        ->group(group)
        ->option_text("N")
        ->check(WholeNumber(least, static_cast<uint64_t>(most)))
        ->capture_default_str();
  };

  const char* what = "What is measured (comma-separated: all combinations, alternating call by call)";
  const std::string all_of_what = InHelpAll(what);
  add(what, "--collective,--collectives", raw.collectives, "NAME,...",
      "all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, or ps_push_pull: a round of the "
      "parameter server, over shm or tcp (--server_wire), without backends and algorithms [all_reduce]",
      ListOf(CheckName));
  add(what, "--backend,--backends", raw.backends, "NAME,...",
      "native, gloo, mpi, nccl [all in this build except nccl; on GPUs native and nccl]", ListOf(CheckName));
  add(what, "--algorithm,--algorithms", raw.algorithms, "NAME,...",
      "Algorithms of the backend; default: its own choice; hierarchical:G groups G ranks [native: ring, "
      "direct and one-shot, of all_to_all direct and pairwise; others: default]",
      ListOf(CheckName));
  add(what, "--transport,--transports", raw.transports, "NAME,...",
      "shm, tcp, auto; on GPUs cuda_ipc, for nccl auto and tcp [all except auto; on GPUs cuda_ipc, and auto "
      "for nccl]",
      ListOf(CheckName));
  add(all_of_what.c_str(), "--tls", raw.flags.request.tls, "auto|CERT,KEY,CA", kTlsHelp, CheckTls);
  add(all_of_what.c_str(), "--buffers", raw.buffers, "KIND,...",
      "private: each process's own memory, from malloc; huge: the same on huge pages; shared: memory that "
      "peers read in place, as in psring's trainer [private; native over shm: shared too]",
      ListOf(OneOf({"private", "huge", "shared"})));
  add(what, "--workers", raw.workers, "N,...",
      "Processes, 1 to 1024, with bfloat16 64, with half 512 [2; with --nnodes all]",
      CountsText(kMaxBenchWorkers));
  add(what, "--servers", raw.servers, "S,...",
      "Parameter servers of ps_push_pull, each with a slice of every gradient [1]",
      CountsText(kMaxBenchServers));
  add(what, "--server_wire,--server_wires", raw.server_wires, "NAME,...",
      "What carries the payload of ps_push_pull over tcp: grpc, or stream (connections of psring's own) "
      "[grpc]",
      ListOf(OneOf({"grpc", "stream"})));
  add(what, "--device", request.device, "DEVICE",
      "Location of the buffers: cpu, or cuda: rank i uses GPU i; native then runs over cuda_ipc, and nccl is "
      "measured too [cpu]",
      OneOf({"cpu", "cuda"}));
  verb->add_flag("--oversubscribe", request.oversubscribe,
                 "Let processes share a GPU: a functional test, not a speed test")
      ->group(all_of_what);
  verb->add_flag("--limits", request.limits,
                 "Also measure the limits of this machine, alternating with the rest, and compare every row "
                 "with them")
      ->group(what);

  const char* sizes = "Sizes, with K, M or G (nccl-tests' flags)";
  add(sizes, "-b,--minbytes", raw.min_bytes, "SIZE", "Smallest [4K; nccl-tests 32M]",
      ParsedBy(ParseByteSize));
  add(sizes, "-e,--maxbytes", raw.max_bytes, "SIZE", "Largest [16M; nccl-tests 32M]",
      ParsedBy(ParseByteSize));
  add(sizes, "-i,--stepbytes", raw.step_bytes, "SIZE", "Increment between sizes", ParsedBy(ParseByteSize));
  add(sizes, "-f,--stepfactor", raw.step_factor, "N",
      "Factor between sizes [16 without -i; nccl-tests adds 1M]", WholeNumber(2, 1 << 30));

  add(sizes, "--sizes", raw.sizes, "SIZE,...", "A list of sizes, instead of the four flags above",
      ListOf(ParsedBy(ParseByteSize)));

  // nccl-tests' numbers of GPUs, which are threads of one process there.
  for (const char* of_threads : {"-g,--ngpus", "-t,--nthreads"}) {
    verb->add_option(of_threads, raw.of_threads)->group("")->check([](const std::string&) {
      return "psring bench has one GPU per process, and no threads; give --workers N for N processes";
    });
  }

  const char* calls = "Calls (nccl-tests' flags)";
  add(calls, "-d,--datatype", raw.types, "TYPES", "float, bfloat16, half, all [float]",
      ListOf(ParsedBy(ParseDType, "all")));
  add(calls, "-o,--op", raw.ops, "OPS", "Reduction: sum, avg, min, max, all [sum]",
      ListOf(ParsedBy(ParseReduceOp, "all")));
  number(InHelpAll(calls), "-r,--root", request.root, "Root of a broadcast", 0, kMaxBenchWorkers - 1);
  number(calls, "-n,--iters", request.iterations,
         "Timed iterations; their median is the time (nccl-tests: their mean)", 1, 1'000'000);
  number(InHelpAll(calls), "-m,--agg_iters", request.aggregated,
         "Consecutive calls of an iteration; 0: as many as take 200 us, at least 1 (nccl-tests 1)", 0,
         1'000'000);
  number(calls, "-w,--warmup_iters", request.warmup, "Untimed calls before the timed ones (nccl-tests 1)", 0,
         1'000'000);
  number(calls, "-c,--check", request.checks,
         "Calls of which every element is checked; 0: none, and #wrong is N/A. If an element is wrong, no "
         "figure is printed",
         0, 1'000'000);
  number(InHelpAll(calls), "-a,--average", request.average,
         "How the ranks' times are combined: 0 rank 0's, 1 mean, 2 minimum, 3 maximum (nccl-tests 1)", 0, 3);

  add(all_of_what.c_str(), "--ranks_per_node", request.ranks_per_node, "N",
      "So many consecutive ranks are a host, for the algorithm hierarchical [those that share memory]",
      WholeNumber(1, kMaxBenchWorkers));
  add(kDebugGroup, "--debug.segment", request.segment, "SIZE",
      "native: size of the pieces in which a chunk is moved [depends on the transport]",
      ParsedBy(ParseByteSize));

  AddNodeFlags(*verb, raw.flags.nodes);
  verb->get_option("--nproc_per_node")
      ->description("Most processes on each machine; --workers counts those of all machines [1]");
  AddPlacementFlag(*verb, raw.flags.nodes);

  const char* results = "How often, machine and results";
  number(InHelpAll(results), "--rounds", request.rounds,
         "Number of times that everything is launched; the iterations are divided among them; 0: 1, or 3 if "
         "several launches are needed (several --workers, MPI over several transports)",
         0, 1000);
  verb->add_flag("--no_pin", raw.no_pin,
                 "Let the kernel move processes between cores. By default, if there is a core for each "
                 "process, its calling thread is pinned")
      ->group(InHelpAll(results));
  verb->add_option("--timeout", request.timeout_s, "Seconds to wait for a silent process")
      ->group(InHelpAll(results))
      ->option_text("S")
      ->check(RealNumber({}))
      ->capture_default_str();
  verb->add_option("--require_busbw", request.require_busbw,
                   "Exit with 1, and name the slowest node, link or schedule, if the fastest all-reduce of "
                   "the largest size has a bus bandwidth below X GB/s, with any of --workers")
      ->group(results)
      ->option_text("X")
      ->check(RealNumber({.low = 0, .high = 1e6}));
  add(results, "-J,--output_file", raw.flags.json_file, "FILE",
      "nccl-tests' JSON, with more fields; never overwrites: FILE.0 and so on", CheckJsonPath);
  add(results, "--out", raw.flags.out, "DIR",
      "Folder for the results, new or empty; default: runs/<UTC time>-bench", CheckName);
  AddLanguageFlag(*verb, "Language of the text around the tables, and of the page: en or zh")->group(results);
  verb->add_flag("--dry_run", raw.flags.dry_run, "Print the plan and the expected time, then exit")
      ->group(results);
  AddConfigFlag(*verb, results);
  return verb;
}

namespace {

absl::Status UnderstandNodes(const RawBenchFlags& raw, BenchFlags& flags) {
  NodesOptions& nodes = flags.nodes;
  PSRING_RETURN_IF_ERROR(UseLauncher(raw.launcher, nodes));
  PSRING_RETURN_IF_ERROR(CheckNodes(nodes));
  if (!nodes.several()) {
    for (const auto& [given, flag] : {std::pair{nodes.per_node > 0, "--nproc_per_node"},
                                      {!nodes.network.bind.empty(), "--bind"},
                                      {!nodes.network.interface.empty(), "--interface"},
                                      {nodes.placement != "compact", "--placement"}}) {
      if (!given) continue;
      return InvalidTr("$0 is for several machines; give --nnodes or omit it", flag);
    }
    return absl::OkStatus();
  }
  nodes.timeout = absl::Seconds(flags.request.timeout_s);
  nodes.probes = ProbeScope::kAllPairs;
  flags.request.layout = nodes.layout();
  if (raw.workers.empty()) flags.request.workers = {flags.request.layout.capacity()};
  return absl::OkStatus();
}

absl::Status CheckServerFlags(const RawBenchFlags& raw, const BenchRequest& request) {
  const char* const given = !raw.servers.empty()        ? "--servers"
                            : !raw.server_wires.empty() ? "--server_wire"
                                                        : nullptr;
  if (given != nullptr && std::ranges::count(request.collectives, kPushPull) == 0) {
    return InvalidTr("$0 is for --collective ps_push_pull; name it, or omit the flag", given);
  }
  if (!raw.server_wires.empty() && !request.transports.empty() &&
      std::ranges::count(request.transports, "tcp") == 0) {
    return InvalidTr("--server_wire is for --transport tcp; name it, or omit the flag");
  }
  return absl::OkStatus();
}

absl::Status CheckRequirement(const BenchRequest& request) {
  if (request.require_busbw <= 0) return absl::OkStatus();
  const bool reduces = std::ranges::find(request.collectives, kAllReduce) != request.collectives.end();
  if (!reduces || *std::ranges::max_element(request.workers) < 2) {
    return InvalidTr("--require_busbw is of an all-reduce of two or more workers; measure one, or omit it");
  }
  return absl::OkStatus();
}

// The number in a name such as hierarchical:2 must divide the ranks.
absl::Status CheckAlgorithms(const BenchRequest& request) {
  for (const std::string& name : request.algorithms) {
    const ScheduleRow* const row = FindSchedule(name);
    if (row == nullptr || name == row->name) continue;
    for (const int workers : request.workers) {
      PSRING_RETURN_IF_ERROR(MakeSchedule(name, Collective::kAllReduce, {.ranks = workers}).status());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BenchFlags> UnderstandBench(const RawBenchFlags& raw,
                                           const std::vector<std::string>& command_line) {
  BenchFlags flags = raw.flags;
  flags.command_line = command_line;
  BenchRequest& request = flags.request;
  PSRING_ASSIGN_OR_RETURN(request.sizes, UnderstandSizes(raw));
  if (!raw.collectives.empty()) request.collectives = Names(raw.collectives);
  request.backends = Names(raw.backends);
  request.algorithms = Names(raw.algorithms);
  request.transports = Names(raw.transports);
  request.buffers = Names(raw.buffers);
  if (!raw.workers.empty()) {
    PSRING_ASSIGN_OR_RETURN(request.workers, ParseCounts(raw.workers, kMaxBenchWorkers));
  }
  if (!raw.servers.empty()) {
    PSRING_ASSIGN_OR_RETURN(request.servers, ParseCounts(raw.servers, kMaxBenchServers));
  }
  if (!raw.server_wires.empty()) request.server_wires = Names(raw.server_wires);
  PSRING_RETURN_IF_ERROR(CheckServerFlags(raw, request));
  if (!raw.types.empty()) {
    PSRING_ASSIGN_OR_RETURN(request.types, NamesOf<DType>(raw.types, kTypes, ParseDType));
  }
  if (!raw.ops.empty()) {
    PSRING_ASSIGN_OR_RETURN(request.ops, NamesOf<ReduceOp>(raw.ops, kOps, ParseReduceOp));
  }
  request.pin = !raw.no_pin;
  PSRING_RETURN_IF_ERROR(UnderstandNodes(raw, flags));
  PSRING_RETURN_IF_ERROR(CheckRequirement(request));
  PSRING_RETURN_IF_ERROR(CheckAlgorithms(request));
  PSRING_RETURN_IF_ERROR(SizesOf(request.sizes).status());
  return flags;
}

}  // namespace psring
