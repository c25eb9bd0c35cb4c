
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/io/csv.h"
#include "common/io/json_text.h"
#include "common/measure/collective_table.h"
#include "common/net/job_secret.h"
#include "common/text/translate.h"
#include "experiments/stats/statistics.h"
#include "experiments/verbs/bench/text.h"

extern char** environ;

namespace psring {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kJsonVersion = 3;  // of the layout of nccl-tests

// Only variables that may affect results. (nccl-tests writes the entire environment, including secrets.)
OrderedJson RelevantEnvironment() {
  OrderedJson list = OrderedJson::array();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (absl::StartsWith(*entry, absl::StrCat(kSecretVariable, "="))) continue;
    if (absl::StartsWith(*entry, absl::StrCat(kLanguageVariable, "="))) continue;
    for (const char* prefix : {"PSRING_", "OMPI_", "MPICH_", "GLOO_", "NCCL_", "OMP_", "MALLOC_"}) {
      if (absl::StartsWith(*entry, prefix)) list.push_back(*entry);
    }
  }
  return list;
}

// As in nccl-tests, booleans are strings.
const char* Truth(bool value) { return value ? "true" : "false"; }

OrderedJson OrNull(double value, bool there) { return there ? OrderedJson(value) : OrderedJson(nullptr); }

OrderedJson PlacementJson(const PlacementFigures& figures) {
  if (!figures.measured) return nullptr;
  return {{"time", figures.time_us},
          {"alg_bw", figures.algbw},
          {"bus_bw", figures.busbw},
          {"nwrong", OrNull(static_cast<double>(figures.wrong), figures.wrong >= 0)},
          {"percent_of_limit", OrNull(figures.percent_of_limit, figures.percent_of_limit >= 0)}};
}

OrderedJson SamplesJson(const SampleFigures& samples) {
  if (samples.times_us.empty()) return nullptr;
  const double mean = samples.Mean(), deviation = samples.StandardDeviation();
  return {{"skipped_iterations", 0},
          {"calls_per_iteration", samples.calls_per_turn},
          {"min_us", samples.Least()},
          {"max_us", samples.Most()},
          {"avg_us", mean},
          {"p50_us", samples.Median()},
          {"p95_us", samples.NearestRank(95)},
          {"p99_us", samples.NearestRank(99)},
          {"stdev_us", deviation},
          {"cv_pct", mean > 0 ? 100 * deviation / mean : 0},
          {"times_us", samples.times_us}};
}

// The better placement.
double BestPercent(const CollectiveRow& row) {
  return std::max(row.out_of_place.percent_of_limit, row.in_place.percent_of_limit);
}

std::string Number(double value, bool there = true) { return there ? absl::StrFormat("%.6g", value) : ""; }

}  // namespace

std::string BenchJson(const BenchRequest& request, const BenchResult& result, const Manifest& run,
                      const std::string& ended_utc) {
  const BenchPlan& plan = result.plan();
  const SizeSweep& sizes = request.sizes;
  OrderedJson config = {{"nthreads", 1},
                        {"ngpus", 1},
                        {"minimum_bytes", std::ranges::min(plan.sizes)},
                        {"maximum_bytes", std::ranges::max(plan.sizes)}};
  if (!sizes.list.empty()) {
    config["sizes"] = sizes.list;
  } else if (sizes.step_bytes > 0) {
    config["step_bytes"] = sizes.step_bytes;
  } else {
    config["step_factor"] = sizes.step_factor > 0 ? sizes.step_factor : kDefaultFactor;
  }
  config["warmup_iters"] = request.warmup;
  config["iterations"] = plan.iterations * plan.rounds;
  config["aggregated_iterations"] = request.aggregated;  // 0: see calls_per_iteration
  config["validation"] = request.checks;
  config["graph"] = 0;
  config["blocking_collectives"] = Truth(true);
  config["per_iter_timing"] = Truth(true);
  config["per_iter_skip"] = Truth(false);
  config["parallel_init"] = Truth(false);
  config["average"] = request.average;
  config["rounds"] = plan.rounds;
  config["devices"] = OrderedJson::array();
  for (const auto& [workers, ranks] : result.ranks()) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      config["devices"].push_back(
          {{"rank", rank},
           {"group", workers},
           {"pid", ranks[rank].pid},
           {"hostname", ranks[rank].host},
           {"device", ranks[rank].device_index()},
           {"device_hex", ranks[rank].device_kind()},
           {"device_info", request.device == "cpu" ? run.machine.processor.name : ranks[rank].device}});
    }
  }
  OrderedJson rows = OrderedJson::array();
  std::vector<double> busbw;
  for (const BenchTable& table : result.tables()) {
    const BenchCombination& combination = table.combination;
    for (const BenchCell& cell : table.cells) {
      const CollectiveRow row = result.RowOf(table, cell, request.root);
      const std::optional<double> limit =
          result.limits().BusBandwidth(combination, table.transport, cell.bytes);
      for (const PlacementFigures* figures : {&row.out_of_place, &row.in_place}) {
        if (figures->measured) busbw.push_back(figures->busbw);
      }
      const bool one = !row.in_place.measured;
      const auto best = [&](const auto& figure) {
        const double out = figure(cell.out_of_place);
        return one ? out : std::min(out, figure(cell.in_place));
      };
      rows.push_back({{"size", row.bytes},
                      {"count", row.count},
                      {"type", row.type},
                      {"redop", row.op},
                      {"root", absl::StrFormat("%6d", row.root)},
                      {"out_of_place", PlacementJson(row.out_of_place)},
                      {"in_place", PlacementJson(row.in_place)},
                      {"out_of_place_per_iter", SamplesJson(cell.out_of_place)},
                      {"in_place_per_iter", SamplesJson(cell.in_place)},
                      {"actual_iterations", cell.out_of_place.times_us.size()},
                      {"experiment_name", combination.name()},
                      {"collective", combination.collective},
                      {"backend", combination.backend},
                      {"algorithm", table.algorithm},
                      {"transport", table.transport},
                      {"buffers", combination.buffers},
                      {"workers", combination.workers},
                      {"limit_bus_bw", OrNull(limit.value_or(0), limit.has_value())},
                      {"percent_of_limit", OrNull(BestPercent(row), BestPercent(row) >= 0)},
                      {"foreign_cpu_pct", Mean(table.foreign_cpu_pct)},
                      {"min_us", best([](const SampleFigures& s) { return s.Least(); })},
                      {"p50_us", best([](const SampleFigures& s) { return s.Median(); })},
                      {"p99_us", best([](const SampleFigures& s) { return s.NearestRank(99); })},
                      {"chosen_algorithm", table.AlgorithmOf(cell)}});
    }
  }
  OrderedJson json = {{"version", kJsonVersion},
                      {"start_time", run.started_utc},
                      {"args", run.command_line},
                      {"env", RelevantEnvironment()},
                      {"nccl_version", 0},
                      {"config", config},
                      {"results", rows},
                      {"out_of_bounds", {{"count", 0}, {"okay", Truth(true)}}},
                      {"average_bus_bandwidth", {{"bandwidth", Mean(busbw)}, {"okay", "unchecked"}}},
                      {"errors", OrderedJson::array()},
                      {"notes", plan.notes},
                      {"end_time", ended_utc}};
  if (run.wires) {
    json["network"] = {{"nodes", plan.layout.nodes},
                       {"nproc_per_node", plan.layout.per_node},
                       {"placement", plan.layout.spread ? "spread" : "compact"},
                       {"latency_us", 1e6 * run.wires->latency_s},
                       {"mb_per_s", 1e-6 * run.wires->bytes_per_s},
                       {"basis", "measured"}};
  }
  return JsonText(json, 1) + "\n";
}

std::string BenchCsv(const BenchRequest& request, const BenchResult& result, const Manifest& run) {
  std::string text =
      "schema_version,run_id,collective,backend,algorithm,transport,buffers,workers,size,count,type,redop,"
      "root";
  for (const char* placement : {"out_of_place", "in_place"}) {
    for (const char* figure :
         {"time_us", "min_us", "p50_us", "p99_us", "algbw_gb_s", "busbw_gb_s", "wrong", "percent_of_limit"}) {
      absl::StrAppend(&text, ",", placement, "_", figure);
    }
  }
  text +=
      ",limit_busbw_gb_s,calls_per_turn,samples,oversubscribed,foreign_cpu_pct,nodes,"
      "chosen_algorithm\n";
  for (const BenchTable& table : result.tables()) {
    const BenchCombination& combination = table.combination;
    for (const BenchCell& cell : table.cells) {
      const CollectiveRow row = result.RowOf(table, cell, request.root);
      const std::optional<double> limit =
          result.limits().BusBandwidth(combination, table.transport, cell.bytes);
      std::vector<std::string> fields = {"1",
                                         run.run_id,
                                         combination.collective,
                                         combination.backend,
                                         table.algorithm,
                                         table.transport,
                                         combination.buffers,
                                         absl::StrCat(combination.workers),
                                         absl::StrCat(row.bytes),
                                         absl::StrCat(row.count),
                                         row.type,
                                         row.op,
                                         absl::StrCat(row.root)};
      for (const auto& [samples, figures] :
           {std::pair(&cell.out_of_place, &row.out_of_place), std::pair(&cell.in_place, &row.in_place)}) {
        const bool there = figures->measured;
        fields.insert(fields.end(),
                      {Number(figures->time_us, there), Number(samples->Least(), there),
                       Number(samples->Median(), there), Number(samples->NearestRank(99), there),
                       Number(figures->algbw, there), Number(figures->busbw, there),
                       there && figures->wrong >= 0 ? absl::StrCat(figures->wrong) : "",
                       Number(figures->percent_of_limit, there && figures->percent_of_limit >= 0)});
      }
      fields.insert(
          fields.end(),
          {Number(limit.value_or(0), limit.has_value()), absl::StrCat(cell.out_of_place.calls_per_turn),
           absl::StrCat(cell.out_of_place.times_us.size()),
           MostOnAMachine(result.plan().layout, combination.workers) > run.machine.cores ? "true" : "false",
           Number(Mean(table.foreign_cpu_pct)),
           absl::StrCat(result.plan().LayoutOf(combination.workers).nodes_used()), table.AlgorithmOf(cell)});
      text += CsvLine(fields);
    }
  }
  return text;
}

std::string BenchPlanJson(const BenchRequest& request, const BenchPlan& plan) {
  OrderedJson launches = OrderedJson::array();
  for (const BenchLaunch& launch : plan.launches) {
    OrderedJson names = OrderedJson::array();
    for (const size_t i : launch.combinations) names.push_back(plan.combinations[i].name());
    launches.push_back({{"name", launch.name()}, {"limits", launch.limits}, {"combinations", names}});
  }
  OrderedJson json = {{"rounds", plan.rounds},
                      {"iterations_a_round", plan.iterations},
                      {"aggregated_iterations", request.aggregated},
                      {"warmup_iterations", request.warmup},
                      {"checked_calls", request.checks},
                      {"average", request.average},
                      {"sizes", plan.sizes},
                      {"types", request.types},
                      {"ops", request.ops},
                      {"root", request.root},
                      {"segment", request.segment},
                      {"ranks_per_node", request.ranks_per_node},
                      {"timeout_s", request.timeout_s},
                      {"pinned_to_cores", request.pin},
                      {"device", request.device},
                      {"oversubscribe", request.oversubscribe},
                      {"launches", launches}};
  if (plan.layout.nodes > 1) {
    json["nnodes"] = plan.layout.nodes;
    json["nproc_per_node"] = plan.layout.per_node;
    json["placement"] = plan.layout.spread ? "spread" : "compact";
  }
  return JsonText(json);
}

}  // namespace psring
