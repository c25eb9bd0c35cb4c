// The part of rendezvous.h that needs no network.
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/address.h"
#include "common/net/tls.h"
#include "common/rendezvous/rendezvous.h"
#include "common/text/peer_text.h"

namespace psring {
namespace {

constexpr char kFailure[] = "failure";  // a key

// "host:port", "[::1]:port".
absl::Status ReadAddress(const std::string& address, const std::string& spec, RendezvousOptions& options) {
  const size_t colon = address.rfind(':');
  const std::string host = colon == std::string::npos ? "" : WithoutBrackets(address.substr(0, colon));
  const bool bare_ipv6 = absl::StrContains(host, ':') && address.front() != '[';
  if (host.empty() || bare_ipv6 || colon + 1 == address.size()) {
    return InvalidArgument("rendezvous '", spec, "' is not of the form tcp://host:port");
  }
  options.host = host;
  PSRING_ASSIGN_OR_RETURN(options.port, NumberOf(absl::StrCat("the port of rendezvous '", spec, "'"),
                                                 address.substr(colon + 1), 1, 65535));
  return absl::OkStatus();
}

// Determines the store of env://.
absl::Status ReadMaster(const LaunchedAs& as, const GetEnv& get_env, RendezvousOptions& options) {
  options.host = WithoutBrackets(get_env("MASTER_ADDR").value_or(""));
  const std::string port = get_env("MASTER_PORT").value_or("");
  if (!port.empty()) {
    PSRING_ASSIGN_OR_RETURN(options.port, NumberOf("MASTER_PORT", port, 1, 65535));
  }
  if (options.host.empty() && options.on_one_host() && !as.job.empty()) {
    options.file = absl::StrCat("/tmp/psring-", ::geteuid(), "-", as.job);
    return absl::OkStatus();
  }
  if (options.host.empty()) options.host = as.master_host;
  if (port.empty()) options.port = as.master_port;
  const char* const missing = options.host.empty() ? "MASTER_ADDR"
                              : options.port == 0  ? "MASTER_PORT"
                                                   : nullptr;
  if (missing != nullptr && absl::StartsWith(as.launcher, "mpi")) {
    return InvalidArgument(as.launcher, " started ", as.world_size,
                           " ranks on several hosts, but does not tell them the "
                           "host of rank 0 (",
                           missing, " is not set); tell them: ",
                           as.launcher == "mpirun"
                               ? "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500"
                               : "mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500");
  }
  if (missing != nullptr) {
    return InvalidArgument("env:// needs the variable ", missing,
                           ", which is not set; psring and torchrun set it");
  }
  if (get_env("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    options.port += options.port < 65535 ? 1 : -1;  // torchrun's own store listens on MASTER_PORT
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RendezvousOptions> ParseRendezvous(const std::string& spec, const GetEnv& get_env) {
  RendezvousOptions options;
  const bool env = spec == "env://", file = absl::StartsWith(spec, "file://");
  if (!env && !file && !absl::StartsWith(spec, "tcp://")) {
    return InvalidArgument("unknown rendezvous '", spec, "'; use env://, tcp://host:port or file://path");
  }
  PSRING_ASSIGN_OR_RETURN(const LaunchedAs as, ReadLauncher(spec.substr(0, spec.find("//") + 2), get_env));
  options.rank = as.rank;
  options.world_size = as.world_size;
  options.local_rank = as.local_rank;
  options.local_world_size = as.local_world_size;
  if (const std::string text = get_env("PSRING_STORE_HOSTED").value_or(""); !text.empty()) {
    PSRING_ASSIGN_OR_RETURN(const int hosted, NumberOf("PSRING_STORE_HOSTED", text, 0, 1));
    options.hosted_elsewhere = hosted == 1;
  }
  if (env) {
    PSRING_RETURN_IF_ERROR(ReadMaster(as, get_env, options));
    // Ranks on one host need not leave it to communicate.
    if (options.file.empty() && options.on_one_host() && !options.hosted_elsewhere)
      options.host = "127.0.0.1";
  } else if (file) {
    options.file = spec.substr(7);
    if (options.file.empty()) {
      return InvalidArgument("rendezvous 'file://' names no file; give file://PATH");
    }
  } else {
    PSRING_RETURN_IF_ERROR(ReadAddress(spec.substr(6), spec, options));
  }
  return options;
}

absl::StatusOr<RendezvousOptions> ReadRendezvous(const std::string& spec, const GetEnv& get_env,
                                                 const std::string& tls) {
  PSRING_ASSIGN_OR_RETURN(RendezvousOptions options, ParseRendezvous(spec, get_env));
  PSRING_ASSIGN_OR_RETURN(options.secret, LoadJobSecret(get_env, tls));
  if (spec == "env://" && !options.file.empty()) {
    absl::StrAppend(&options.file, "-", options.secret.Derived("rendezvous file").Hex().substr(0, 16));
  }
  return options;
}

std::string SpecOf(const RendezvousOptions& options) {
  if (!options.file.empty()) return absl::StrCat("file://", options.file);
  return absl::StrCat("tcp://", AddressText(options.host, options.port));
}

absl::Status RequireEqual(Rendezvous& rendezvous, const std::string& what, const std::string& value) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> values,
                          rendezvous.Exchange(absl::StrCat("equal ", what), value));
  const std::string& noun = rendezvous.options().noun;
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] == values[0]) continue;
    return InvalidArgument(what, " is '", PeerText(values[rank]), "' at ", noun, " ", rank, " but '",
                           PeerText(values[0]), "' at ", noun, " 0");
  }
  return absl::OkStatus();
}

absl::Status RequireEqualFlags(Rendezvous& rendezvous, const std::vector<std::string>& flags) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> values,
                          rendezvous.Exchange("equal flags", absl::StrJoin(flags, "\n")));
  const std::vector<std::string> first = absl::StrSplit(values[0], '\n', absl::SkipEmpty());
  const std::string& noun = rendezvous.options().noun;
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] == values[0]) continue;
    const std::vector<std::string> other = absl::StrSplit(values[rank], '\n', absl::SkipEmpty());
    const auto beside = [](const std::vector<std::string>& own, const std::vector<std::string>& others) {
      std::vector<std::string> differing;
      for (const std::string& flag : own) {
        if (std::find(others.begin(), others.end(), flag) == others.end()) differing.push_back(flag);
      }
      return differing.empty() ? "none of these" : PeerText(absl::StrJoin(differing, " "));
    };
    return InvalidArgument(noun, " ", rank, " was started with ", beside(other, first), ", ", noun,
                           " 0 with ", beside(first, other), "; give every ", noun, " the same flags");
  }
  return absl::OkStatus();
}

void PublishFailure(Rendezvous& rendezvous, const std::string& failure) {
  (void)rendezvous.Set(kFailure, failure);
}

absl::Status WithReportedFailure(Rendezvous& rendezvous, const absl::Status& status) {
  if (status.ok() || absl::IsDeadlineExceeded(status)) return status;
  const absl::StatusOr<std::optional<std::string>> published = rendezvous.TryGet(kFailure, "a failure");
  if (!published.ok() || !published->has_value()) return status;
  return absl::Status(status.code(), absl::StrCat("ended because of ", PeerText(**published)));
}

}  // namespace psring
