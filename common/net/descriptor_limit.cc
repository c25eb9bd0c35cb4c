#include "common/net/descriptor_limit.h"

#include <sys/resource.h>

#include "common/base/errors.h"

namespace psring {
namespace {

constexpr int64_t kOfEveryProcess = 12;  // streams, gRPC, logs
constexpr int64_t kOfARank = 4;          // its store, records and wake-ups
constexpr int64_t kOfAGroup = 4;         // two listeners, a wake-up, shared memory
constexpr int64_t kOfAPeer = 4;          // two sockets, and with shared memory two mappings
constexpr int64_t kOfAServer = 4;        // a stream, and with --server_wire stream a connection and a wake-up
constexpr int64_t kOfAChild = 6;         // its output, its end, its log, its connection to the store
constexpr int64_t kOfAStoresMember = 2;  // while it connects
constexpr int64_t kOfGrpcsTls = 3;       // more: two ends of a local socket, and a thread's wake-up

}  // namespace

int64_t TrainerDescriptors(const DescriptorUse& use) {
  const int64_t more = use.tls ? kOfGrpcsTls : 0;  // of a server, and of the store
  const int64_t peers = use.peers > 0 ? kOfAGroup + kOfAPeer * use.peers : 0;
  const int64_t members = use.hosts_store ? use.world_size + use.servers : 0;
  return kOfEveryProcess + use.ranks * (kOfARank + more + peers + (kOfAServer + more) * use.servers) +
         (kOfAStoresMember + more) * members;
}

int64_t ServerDescriptors(int workers, bool tls) {
  const int64_t more = tls ? kOfGrpcsTls : 0;
  return kOfEveryProcess + kOfARank + more + (kOfAPeer + more) * workers;
}

int64_t LauncherDescriptors(int64_t processes) {
  return kOfEveryProcess + kOfAStoresMember + kOfAChild * processes;
}

std::string RanksText(int ranks) { return absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks"); }

absl::Status AllowDescriptors(int64_t needed, const std::string& whose) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= static_cast<rlim_t>(needed)) return absl::OkStatus();
  return FailedPrecondition("this process may open ", limit.rlim_cur, " files, and ", whose, " need about ",
                            needed, "; run: ulimit -n ", needed);
}

}  // namespace psring
