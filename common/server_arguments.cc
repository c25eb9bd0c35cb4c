#include "common/server_arguments.h"

#include "absl/strings/str_cat.h"
#include "common/device.h"

namespace psring {

std::vector<std::string> ServerArguments(const TrainingOptions& training, const ServerStart& place) {
  std::vector<std::string> arguments = {
      absl::StrCat("--rendezvous=", place.rendezvous),
      absl::StrCat("--workers=", place.workers),
      absl::StrCat("--server=", place.server),
      absl::StrCat("--servers=", place.servers),
      absl::StrCat("--bind=", place.bind),
      "--port=0",
      absl::StrCat("--device=", DeviceOfRank(training.device, place.local_rank, place.gpus)),
      absl::StrCat("--timeout=", training.timeout_s),
      absl::StrCat("--worker_timeout=", training.worker_timeout_s),
      absl::StrCat("--reject_nonfinite=", training.reject_nonfinite),
      absl::StrCat("--staging_mb=", training.staging_mb)};
  if (!place.record.empty()) arguments.push_back(absl::StrCat("--record=", place.record));
  if (place.metrics_port >= 0) {
    const int port = place.metrics_port == 0 ? 0 : place.metrics_port + place.workers + place.server;
    arguments.push_back(absl::StrCat("--metrics_port=", port));
  }
  if (!training.on_worker_loss.empty()) {
    arguments.push_back(absl::StrCat("--on_worker_loss=", training.on_worker_loss));
  }
  return arguments;
}

absl::StatusOr<ServerRole> ServerRoleOf(const TrainingOptions& training, int rank, int world_size) {
  const bool dedicated = training.server_placement == "dedicated";
  ServerRole role{.workers = world_size};
  if (dedicated) {
    role.servers = ServersOf(training, 0);
    role.workers = world_size - role.servers;
    if (role.workers < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--server_placement dedicated makes the last ", role.servers,
                       role.servers == 1 ? " rank" : " ranks", " of ", world_size,
                       role.servers == 1 ? " a server" : " servers",
                       ", and leaves none to train; start more processes, or choose another placement"));
    }
    if (rank >= role.workers) role.becomes = rank - role.workers;
    return role;
  }
  role.servers = ServersOf(training, world_size);
  if (training.server_placement == "colocated") {
    role.starts = {rank};
  } else if (rank == 0) {
    for (int server = 0; server < role.servers; ++server) role.starts.push_back(server);
  }
  return role;
}

}  // namespace psring
