// The parameter server on a port: bytes in, bytes out, and nothing decided here.
//
// Threads: connections are dealt out among `threads` event loops, and one thread does all the work of its
// connections: a chunk is read off the socket, added or staged, and where it completes an update the same
// thread applies the optimizer and starts the replies. A worker has one read and one write in flight at a
// time, so its chunks are handled in order.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/link_shaper.h"
#include "ps_server/server/parameter_server.h"

namespace psring {

struct ServiceOptions {
  std::string host = "127.0.0.1";
  int port = 0;     // 0: the system chooses
  int threads = 0;  // 0: half as many as this process has cores, at most 8; the workers have the others
  LinkShaper* shaper = nullptr;  // the link to other machines; outlives the service
};

class Service {
 public:
  // `server` outlives the service. An address that is in use, or is not ours, is an error that names it.
  static absl::StatusOr<std::unique_ptr<Service>> Start(ParameterServer& server,
                                                        const ServiceOptions& options);

  // Stops at once.
  virtual ~Service() = default;

  virtual std::string address() const = 0;  // "host:port"

  // Lets last answers go out, until `deadline`; then ends every connection.
  // False where connections have still not ended 5 s after that: then only the process's end helps.
  virtual bool Stop(absl::Time deadline) = 0;
};

}  // namespace psring
