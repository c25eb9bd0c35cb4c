// The real ps_server as a process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/child.h"
#include "tests/test_secret.h"

namespace psring {

inline std::unique_ptr<RendezvousServer> NewStore() {
  return *RendezvousServer::Start("127.0.0.1", 0, TestSecret());
}
inline std::unique_ptr<Rendezvous> MeetIn(const RendezvousServer& store) {
  RendezvousOptions options{
      .host = "127.0.0.1", .port = store.port(), .hosted_elsewhere = true, .secret = TestSecret()};
  options.timeout = absl::Seconds(20);
  auto rendezvous = Rendezvous::Connect(options);
  PSRING_CHECK(rendezvous.ok());
  return *std::move(rendezvous);
}
// The address that a server has published.
inline std::string AddressIn(const RendezvousServer& store, int server = 0) {
  const auto address = MeetIn(store)->Get(absl::StrCat("ps/", server), "the parameter server");
  PSRING_CHECK(address.ok());
  return *address;
}
// One of the servers of a job. PS_SERVER_BINARY: the program.
inline std::vector<std::string> ServerCommand(const char* program, const RendezvousServer& store, int workers,
                                              const std::vector<std::string>& more, int server = 0,
                                              int servers = 1) {
  std::vector<std::string> command = {program,
                                      "--rendezvous",
                                      absl::StrCat("tcp://127.0.0.1:", store.port()),
                                      "--workers",
                                      absl::StrCat(workers),
                                      "--server",
                                      absl::StrCat(server),
                                      "--servers",
                                      absl::StrCat(servers)};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

}  // namespace psring
