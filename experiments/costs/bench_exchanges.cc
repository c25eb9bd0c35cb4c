#include "experiments/costs/bench_exchanges.h"

#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/read_file.h"
#include "common/io/json_object.h"

namespace psring {
namespace {

constexpr size_t kMaxRows = 1 << 20, kMaxNameBytes = 4096;
constexpr int kMaxWorkers = 1 << 20;
constexpr double kMaxValue = 1e18;

// None if the benchmark does not say.
absl::StatusOr<std::set<std::string>> HostsOf(const JsonObject& bench) {
  std::set<std::string> hosts;
  if (!bench.Has("config")) return hosts;
  PSRING_ASSIGN_OR_RETURN(const JsonObject config, bench.Object("config"));
  if (!config.Has("devices")) return hosts;
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> devices, config.Objects("devices", kMaxRows));
  for (const JsonObject& device : devices) {
    PSRING_ASSIGN_OR_RETURN(std::string host, device.Text("hostname", kMaxNameBytes, ""));
    hosts.insert(std::move(host));
  }
  return hosts;
}

}  // namespace

absl::StatusOr<BenchExchanges> ParseBenchExchanges(const std::string& text, const std::string& name) {
  PSRING_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(text, kMaxRecordBytes, name));
  if (!json.Has("results")) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is not a result of psring bench (bench.json)"));
  }
  BenchExchanges bench;
  PSRING_ASSIGN_OR_RETURN(const std::set<std::string> hosts, HostsOf(json));
  bench.hosts = hosts.size();
  if (json.Has("network")) {
    PSRING_ASSIGN_OR_RETURN(const JsonObject network, json.Object("network"));
    PSRING_ASSIGN_OR_RETURN(const double mb_per_s, network.Number("mb_per_s", 0, kMaxValue));
    bench.link_bytes_per_s = 1e6 * mb_per_s;
    PSRING_ASSIGN_OR_RETURN(bench.per_node, network.WholeNumber("nproc_per_node", 1, kMaxWorkers, 1));
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> rows, json.Objects("results", kMaxRows));
  for (const JsonObject& row : rows) {
    const auto is = [&](const char* key, const char* value) {
      return row.Text(key, kMaxNameBytes).value_or("") == value;
    };
    BenchExchange exchange{.uses_server = is("collective", "ps_push_pull") && is("algorithm", "sync"),
                           .server_wire = is("backend", "stream") ? "stream" : "grpc"};
    const bool reduces = is("collective", "all_reduce") && is("backend", "native");
    if (!is("type", "float") || (!reduces && !exchange.uses_server)) continue;
    PSRING_ASSIGN_OR_RETURN(exchange.algorithm, row.Text("algorithm", kMaxNameBytes));
    PSRING_ASSIGN_OR_RETURN(exchange.transport, row.Text("transport", kMaxNameBytes));
    PSRING_ASSIGN_OR_RETURN(exchange.workers, row.WholeNumber("workers", 1, kMaxWorkers));
    PSRING_ASSIGN_OR_RETURN(exchange.bytes, row.Number("size", 0, kMaxValue));
    for (const char* place : {"in_place", "out_of_place"}) {
      const absl::StatusOr<JsonObject> figures = row.Object(place);
      if (!figures.ok()) continue;  // null: not measured
      PSRING_ASSIGN_OR_RETURN(const double time_us, figures->NumberOrNull("time", 0, kMaxValue));
      if (time_us > 0) exchange.seconds = time_us * 1e-6;
    }
    if (exchange.seconds > 0) bench.exchanges.push_back(std::move(exchange));
  }
  return bench;
}

}  // namespace psring
