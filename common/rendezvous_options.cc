// The half of rendezvous.h that needs no network.
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/rendezvous.h"

namespace psring {
namespace {

constexpr int kMostInt = std::numeric_limits<int>::max();

absl::StatusOr<std::string> Variable(const std::string& scheme, const char* name, const GetEnv& get_env) {
  const std::optional<std::string> text = get_env(name);
  if (text.has_value() && !text->empty()) return *text;
  return absl::InvalidArgumentError(absl::StrCat(scheme, " needs the variable ", name,
                                                 ", which is not set; psring, torchrun and the like set it"));
}

absl::StatusOr<int> Number(const std::string& name, const std::string& text, int least, int most) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < least || value > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is '", text, "'; it must be a whole number ",
        most == kMostInt ? absl::StrCat("of at least ", least) : absl::StrCat("from ", least, " to ", most)));
  }
  return value;
}

absl::StatusOr<int> NumberVariable(const std::string& scheme, const char* name, int least, int most,
                                   const GetEnv& get_env) {
  PSRING_ASSIGN_OR_RETURN(const std::string text, Variable(scheme, name, get_env));
  return Number(name, text, least, most);
}

// "host:port", "[::1]:port".
absl::Status ParseAddress(const std::string& address, const std::string& spec, RendezvousOptions& options) {
  const size_t colon = address.rfind(':');
  std::string host = colon == std::string::npos ? "" : address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const bool bare_ipv6 = absl::StrContains(host, ':') && address.front() != '[';
  if (host.empty() || bare_ipv6 || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous '", spec, "' is not of the form tcp://host:port"));
  }
  options.host = host;
  PSRING_ASSIGN_OR_RETURN(options.port, Number(absl::StrCat("the port of rendezvous '", spec, "'"),
                                               address.substr(colon + 1), 1, 65535));
  return absl::OkStatus();
}

// What a launcher calls a process's number, how many there are, and its number on its host.
struct Launcher {
  const char *rank, *size, *local_rank;
};
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},                                            // torchrun, psring
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},  // Open MPI's mpirun
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},                                     // MPICH's, and srun
};

// The first that has set anything; a launcher that another one has started stands behind it.
const Launcher& LauncherOf(const GetEnv& get_env) {
  for (const Launcher& launcher : kLaunchers) {
    for (const char* name : {launcher.rank, launcher.size}) {
      if (const std::optional<std::string> text = get_env(name); text.has_value() && !text->empty()) {
        return launcher;
      }
    }
  }
  return kLaunchers[0];
}

}  // namespace

GetEnv ProcessEnvironment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

GetEnv InPlaceOf(GetEnv environment, std::string rank, std::string world_size) {
  return [environment = std::move(environment), rank = std::move(rank),
          world_size = std::move(world_size)](const char* name) -> std::optional<std::string> {
    if (std::string_view(name) == "RANK" && !rank.empty()) return rank;
    if (std::string_view(name) == "WORLD_SIZE" && !world_size.empty()) return world_size;
    return environment(name);
  };
}

absl::StatusOr<RendezvousOptions> ParseRendezvous(const std::string& spec, const GetEnv& get_env) {
  RendezvousOptions options;
  std::string scheme;
  if (spec == "env://") {
    scheme = "env://";
    PSRING_ASSIGN_OR_RETURN(options.host, Variable(scheme, "MASTER_ADDR", get_env));
    PSRING_ASSIGN_OR_RETURN(options.port, NumberVariable(scheme, "MASTER_PORT", 1, 65535, get_env));
    if (get_env("TORCHELASTIC_USE_AGENT_STORE") == "True") {
      options.port += options.port < 65535 ? 1 : -1;  // torchrun's own store listens on MASTER_PORT
    }
  } else if (absl::StartsWith(spec, "tcp://")) {
    scheme = "tcp://";
    PSRING_RETURN_IF_ERROR(ParseAddress(spec.substr(6), spec, options));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown rendezvous '", spec, "'; there are env:// and tcp://host:port"));
  }
  const Launcher& launcher = LauncherOf(get_env);
  PSRING_ASSIGN_OR_RETURN(options.world_size, NumberVariable(scheme, launcher.size, 1, kMostInt, get_env));
  PSRING_ASSIGN_OR_RETURN(options.rank, NumberVariable(scheme, launcher.rank, 0, kMostInt, get_env));
  if (options.rank >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(launcher.rank, " ", options.rank, " is not below ",
                                                   launcher.size, " ", options.world_size,
                                                   "; ranks count from 0"));
  }
  // Not every launcher sets it; one process a host is then assumed.
  if (const std::optional<std::string> text = get_env(launcher.local_rank);
      text.has_value() && !text->empty()) {
    PSRING_ASSIGN_OR_RETURN(options.local_rank, Number(launcher.local_rank, *text, 0, kMostInt));
  }
  if (const std::optional<std::string> text = get_env("PSRING_STORE_HOSTED");
      text.has_value() && !text->empty()) {
    PSRING_ASSIGN_OR_RETURN(const int hosted, Number("PSRING_STORE_HOSTED", *text, 0, 1));
    options.hosted_elsewhere = hosted == 1;
  }
  return options;
}

absl::Status RequireEqual(Rendezvous& rendezvous, const std::string& what, const std::string& value) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> values,
                          rendezvous.Exchange(absl::StrCat("equal ", what), value));
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] == values[0]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is '", values[rank], "' at rank ", rank, " but '", values[0], "' at rank 0"));
  }
  return absl::OkStatus();
}

}  // namespace psring
