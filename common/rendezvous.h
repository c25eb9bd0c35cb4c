// How ranks find each other: a small key-value store on one host, and the calls by which every rank learns
// what the others have to say. The store is the gRPC service of proto/rendezvous.proto.
//
// Specs: "env://" reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as torchrun sets them
// (where torchrun keeps a store of its own on MASTER_PORT, ours takes the port beside it); "tcp://host:port"
// names the store, and rank and world size come from the flags or the same variables. Where those are not
// set, mpirun's stand for them (OMPI_COMM_WORLD_RANK and the like, PMI_RANK and the like). Rank 0 hosts the
// store unless PSRING_STORE_HOSTED=1 says that a launcher does.
//
// Every wait has a deadline, and its error names the ranks that are missing. A wait ends earlier with
// Unavailable, and the culprit's name, where the process that is waited for has left or died.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace psring {

struct RendezvousOptions {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string host;  // of the store
  int port = 0;
  bool hosted_elsewhere = false;  // else rank 0 hosts the store
  absl::Duration timeout = absl::Seconds(60);
};

using GetEnv = std::function<std::optional<std::string>(const char* name)>;
GetEnv ProcessEnvironment();
// `environment`, but with RANK and WORLD_SIZE from flags, where these are not empty.
GetEnv InPlaceOf(GetEnv environment, std::string rank, std::string world_size);

// InvalidArgument, in one line, for an unknown scheme, a variable that is missing or not a number, RANK at or
// above WORLD_SIZE.
absl::StatusOr<RendezvousOptions> ParseRendezvous(const std::string& spec, const GetEnv& get_env);

// Hosts the store until destroyed. Thread-safe; its calls run on gRPC's threads.
class RendezvousServer {
 public:
  // `port` 0 lets the system choose. An address in use is an error that says so. The destructor lets those
  // who have joined and not left go first, for at most 5 s; the rest get errors.
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> Start(const std::string& host, int port);
  // On a TCP socket that listens already, such as one of another network namespace; takes it over.
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> StartOn(int listener);
  virtual ~RendezvousServer() = default;
  virtual int port() const = 0;
};

// One process's connection to the store. Thread-safe.
class Rendezvous {
 public:
  // A rank: hosts the store where it is its turn, then announces itself. Errors: the store cannot be reached
  // by the deadline (names the address), another process has this rank already (names its host and pid), the
  // world sizes differ.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Join(const RendezvousOptions& options);
  // A process that is no rank, such as a parameter server.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Connect(const RendezvousOptions& options);
  // Leaves: whoever still waits for this rank gets an error. The rank that hosts the store then waits as
  // RendezvousServer does, so that it may be the first to be done. A process that ends without this is lost.
  virtual ~Rendezvous() = default;

  virtual const RendezvousOptions& options() const = 0;

  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is there. `whom` completes the error's "waited 60 s for ...".
  virtual absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom) = 0;

  // Every rank calls it with the same `name`; each leaves with all ranks' values, in rank order. A name may
  // be used again, unless it failed once: then it stays failed, for all ranks alike. Also a barrier.
  virtual absl::StatusOr<std::vector<std::string>> Exchange(const std::string& name,
                                                            const std::string& value) = 0;
};

// Ends with an error unless all ranks give the same value; names the first rank that differs from rank 0, and
// both values. `what` is the field, such as "--model".
absl::Status RequireEqual(Rendezvous& rendezvous, const std::string& what, const std::string& value);

}  // namespace psring
