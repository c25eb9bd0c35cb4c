#include "experiments/run_folder/manifest.h"

#include <nlohmann/json.hpp>

#include "common/cli/version.h"
#include "common/io/json_text.h"
#include "experiments/machine/build_info.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

Json Configurations(const std::vector<Configuration>& configurations) {
  Json list = Json::array();
  for (const Configuration& configuration : configurations) {
    list.push_back({{"strategy", configuration.strategy.name},
                    {"workers", configuration.workers},
                    {"servers", configuration.servers()},
                    {"optimizer", configuration.update.optimizer},
                    {"lr", configuration.update.lr},
                    {"momentum", configuration.update.momentum},
                    // The trainer's flags that are not at their defaults.
                    {"trainer_flags", TrainingArguments(configuration.training)}});
  }
  return list;
}

Json Marks(const std::vector<FileMark>& marks) {
  Json list = Json::array();
  for (const FileMark& mark : marks) list.push_back({{"path", mark.path}, {"hash", mark.hash}});
  return list;
}

Json Scaled(const std::vector<double>& values, double factor) {
  Json list = Json::array();
  for (const double value : values) list.push_back(value * factor);
  return list;
}

// Matrices are lists of rows; a row is the sending machine.
Json MatrixJson(const NetworkReport& network, const std::vector<double>& matrix, double factor) {
  Json rows = Json::array();
  for (int from = 0; from < network.nodes; ++from) {
    const auto begin = matrix.begin() + static_cast<ptrdiff_t>(from) * network.nodes;
    rows.push_back(Scaled(std::vector<double>(begin, begin + network.nodes), factor));
  }
  return rows;
}

Json SlowestJson(const SlowestLink& slowest) {
  if (slowest.kind == SlowestLink::Kind::kNone) return nullptr;
  Json json = {{"what", slowest.node() ? "node" : "link"}, {"from", slowest.from}};
  if (!slowest.node()) json["to"] = slowest.to;
  json["much_slower"] = slowest.slow;
  if (slowest.by_latency) {
    json["latency_us"] = 1e6 * slowest.latency_s;
    json["others_latency_us"] = 1e6 * slowest.others_latency_s;
  } else {
    json["mb_per_s"] = 1e-6 * slowest.bytes_per_s;
    json["others_mb_per_s"] = 1e-6 * slowest.others_bytes_per_s;
  }
  json["basis"] = "derived";
  return json;
}

Json WiresJson(const Wires& wires) {
  return {{"latency_us", wires.latency_s * 1e6},
          {"mb_per_s", wires.bytes_per_s / 1e6},
          {"add_gb_per_s", 1e-9 / wires.add_s_per_byte},
          {"update_gb_per_s", 1e-9 / wires.update_s_per_byte}};
}

Json NetworkJson(const NetworkReport& network, const Wires& wires) {
  Json json = {{"latency_us", MatrixJson(network, network.latency_s, 1e6)},
               {"pair_mb_per_s", MatrixJson(network, network.bytes_per_s, 1e-6)},
               {"all_at_once_mb_per_s", Scaled(network.ring, 1e-6)},
               {"wires", WiresJson(wires)},
               {"basis", "measured"}};
  if (network.all_pairs()) {
    if (!network.into.empty()) json["into_each_mb_per_s"] = Scaled(network.into, 1e-6);
    json["slowest"] = SlowestJson(SlowestOf(network));
  }
  return json;
}

}  // namespace

std::string ManifestJson(const Manifest& manifest) {
  const Machine& machine = manifest.machine;
  Json json = {{"schema_version", 1},
               {"run_id", manifest.run_id},
               {"verb", manifest.verb},
               {"command_line", manifest.command_line},
               {"settled", manifest.provenance.settled},
               {"working_directory", manifest.provenance.working_directory},
               {"started_utc", manifest.started_utc},
               {"finished", manifest.finished()},
               {"ended", manifest.ended},
               {"wall_s", manifest.wall_s},
               {"versions",
                {{"psring", kVersion},
                 {"revision", kRevision},
                 {"compiler", __VERSION__},
                 {"cuda", kBuiltWithCuda},
                 {"cudnn", kBuiltWithCudnn},
                 {"nccl", kBuiltWithNccl},
                 {"gloo", kBuiltWithGloo},
                 {"mpi", kBuiltWithMpi}}},
               {"machine",
                {{"host", machine.host},
                 {"cores", machine.cores},
                 {"cpu", machine.processor.name},
                 {"memory_mb", machine.memory_mb},
                 {"system", machine.system},
                 {"kernel", machine.kernel},
                 {"gpu_convolutions", machine.gpu_convolutions},
                 {"cpu_family", machine.processor.family},
                 {"cpu_model", machine.processor.model},
                 {"cpu_stepping", machine.processor.stepping},
                 {"instruction_sets", machine.processor.instruction_sets}}},
               {"binaries", Marks(manifest.provenance.binaries)},
               {"inputs", Marks(manifest.provenance.inputs)},
               {"link", {{"shaping", ShapingName(manifest.link.shaping)}}}};
  if (!manifest.machines.empty()) json["machines"] = manifest.machines;
  if (!manifest.provenance.data_hash.empty()) {
    json["data"] = {{"hash", manifest.provenance.data_hash},
                    {"trainer_flags", manifest.provenance.data_flags}};
  }
  const LinkReport& link = manifest.link;
  if (link.shaping != Shaping::kNone) {
    json["link"].update({{"mbps", link.mbps()},
                         {"latency_ms", link.latency_s * 1e3},
                         {"time_scale", link.scale},
                         {"burst_bytes", link.burst_bytes},
                         {"congestion_control", link.congestion_control},
                         {"queueing", link.in_turn ? "in turn" : "first in, first out"}});
    Json each = Json::array();
    for (double bits_per_s : link.links) each.push_back(bits_per_s / 1e6);
    json["link"]["preflight"] = {{"slowest_without_limit_mbps", link.capacity / 1e6},
                                 {"each_link_mbps", each},
                                 {"slowest_of_ring_mbps", link.ring / 1e6},
                                 {"incast_mbps", link.incast / 1e6},
                                 {"basis", "measured"}};
    if (manifest.wires) {
      json["link"]["wires"] = WiresJson(*manifest.wires);
      json["link"]["wires"]["basis"] = "measured";
    }
  } else if (manifest.network) {
    json["link"]["network"] = NetworkJson(*manifest.network, *manifest.wires);
  } else if (manifest.wires) {
    json["link"]["loopback"] = {{"latency_us", manifest.wires->latency_s * 1e6},
                                {"connection_mb_per_s", manifest.wires->bytes_per_s / 1e6},
                                {"all_connections_mb_per_s", manifest.wires->medium_bytes_per_s / 1e6},
                                {"add_gb_per_s", 1e-9 / manifest.wires->add_s_per_byte},
                                {"basis", "measured"}};
  }
  if (manifest.wires) {
    for (const auto& [wire, rate] : {std::pair("grpc", manifest.wires->grpc_bytes_per_s),
                                     {"stream", manifest.wires->stream_bytes_per_s}}) {
      if (rate > 0) json["link"]["server_wires_mb_per_s"][wire] = rate / 1e6;
    }
  }
  json["notes"] = manifest.plan.notes;
  if (!manifest.bench.empty())
    json["bench"] = Json::parse(manifest.bench, nullptr, /*allow_exceptions=*/false);
  if (manifest.plan.cost.empty()) return JsonText(json, 2) + "\n";  // nothing was trained
  json["cost"] = {{"rounds_planned", manifest.plan.rounds},
                  {"rounds_done", manifest.rounds_done},
                  {"warmup_steps", manifest.plan.warmup_steps},
                  {"steps", manifest.plan.steps},
                  {"configurations", Configurations(manifest.plan.cost)}};
  json["accuracy"] = {{"trainings_each", manifest.plan.accuracy_repeats},
                      {"trainings_done", manifest.trainings_done},
                      {"configurations", Configurations(manifest.plan.accuracy)}};
  json["disturbances"] = {{"straggler", manifest.disturbances.straggler},
                          {"jitter_ms", manifest.disturbances.jitter_ms}};
  return JsonText(json, 2) + "\n";
}

}  // namespace psring
