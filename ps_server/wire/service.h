// The parameter server on a port. It transports messages and makes no decisions.
//
// Threads: connections are distributed among `threads` event loops, and one thread does all work of its
// connections: it reads a chunk, adds or stages it, and if that completes an update, applies the optimizer
// and starts the replies. A worker has one read and one write in flight, so its chunks are handled in order.
// Payload connections have as many loops of their own (payload_streams.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/deadline.h"
#include "common/net/job_secret.h"
#include "common/net/link_shaper.h"
#include "ps_server/server/parameter_server.h"

namespace psring {

struct ServiceOptions {
  std::string host = "127.0.0.1";
  int port = 0;                  // 0: the system chooses
  JobSecret secret;              // only clients with the same secret are accepted
  int threads = 0;               // 0: half the cores of this process, at most 8; the others are for workers
  LinkShaper* shaper = nullptr;  // the link to other machines; outlives the service
};

class Service {
 public:
  // `server` outlives the service. The error of an address that is in use, or not of this host, names it.
  static absl::StatusOr<std::unique_ptr<Service>> Start(ParameterServer& server,
                                                        const ServiceOptions& options);

  // Stops at once.
  virtual ~Service() = default;

  virtual std::string address() const = 0;  // to publish: "host:port/token"

  // Sends the last answers until `deadline`, then cancels all connections. False: some have not ended 5 s
  // after that; then the process has to exit without destroying this.
  virtual bool Stop(MonotonicTime deadline) = 0;
};

}  // namespace psring
