// How ranks find each other: a small key-value store that all of them reach, and the calls by which every
// rank learns what the others have to say.
//
// Where the store is, a spec says: "tcp://host:port" names a gRPC service (proto/rendezvous.proto), which
// rank 0 hosts unless PSRING_STORE_HOSTED=1 says that a launcher does; "file://path" a file that all ranks
// see (file_rendezvous.h); "env://" has what the launcher set (launched_as.h): MASTER_ADDR and MASTER_PORT
// (where torchrun keeps a store of its own on MASTER_PORT, ours takes the port beside it), else what stands
// for them under srun, else, where all ranks are on one host, a file of the job's. Rank and world size come
// from the launcher in any case.
//
// Every wait has a deadline, and its error names the ranks that are missing. A wait ends earlier with
// Unavailable, and the culprit's name, where the process that is waited for has left, died or was refused.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/clock_offset.h"
#include "common/rendezvous/launched_as.h"

namespace psring {

struct RendezvousOptions {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 0;  // ranks on this host; 0: nobody said
  std::string file;          // the store is this file; empty: it is at host and port
  std::string host;
  int port = 0;
  bool hosted_elsewhere = false;  // else rank 0 hosts the store
  std::string bind;               // rank 0's own address where `host` is none of its own: own_address.h
  absl::Duration timeout = absl::Seconds(60);
  std::string noun = "rank";  // what errors call a rank

  // As far as the launcher knows: nobody outside of this machine takes part.
  bool on_one_host() const { return local_world_size == world_size; }
};

// "env://" and the like, for a process that is to find the store as this one does.
std::string SpecOf(const RendezvousOptions& options);

// InvalidArgument, in one line, for an unknown scheme, a variable that is missing or not a number, RANK at or
// above WORLD_SIZE, an mpirun over several hosts that does not say where rank 0 is.
absl::StatusOr<RendezvousOptions> ParseRendezvous(const std::string& spec, const GetEnv& get_env);

// Hosts the store until destroyed. Thread-safe; its calls run on gRPC's threads.
class RendezvousServer {
 public:
  // `port` 0 lets the system choose. An address in use is an error that says so. The destructor lets those
  // who have joined and not left go first, for at most 5 s; the rest get errors.
  // `noun`: what errors call a rank.
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> Start(const std::string& host, int port,
                                                                 const std::string& noun = "rank");
  // On a TCP socket that listens already, such as one of another network namespace; takes it over.
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> StartOn(int listener);
  virtual ~RendezvousServer() = default;
  virtual int port() const = 0;
  virtual absl::Status Surplus() = 0;  // see Rendezvous
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
  // Does not wait: null where the key is not there yet.
  virtual absl::StatusOr<std::optional<std::string>> TryGet(const std::string& key,
                                                            const std::string& whom) = 0;

  // Where this process hosts the store, or that is a file: Unavailable where a rank has come, and was turned
  // away, that the job has no place for. It and this one were told different world sizes; a job of one
  // rank, which waits for nobody, learns of it in no other way.
  virtual absl::Status Surplus() { return absl::OkStatus(); }

  // Every rank calls it with the same `name`; each leaves with all ranks' values, in rank order. A name may
  // be used again, unless it failed once: then it stays failed, for all ranks alike. Also a barrier.
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& name, const std::string& value) {
    return ExchangeAmong({}, name, value);
  }
  // The same among some ranks, this one among them, whose values come in rank order; all of these say the
  // same, and no others call it.
  virtual absl::StatusOr<std::vector<std::string>> ExchangeAmong(const std::vector<int>& ranks,
                                                                 const std::string& name,
                                                                 const std::string& value) = 0;

  // The monotonic clock of the process that hosts the store, between two readings of our own. Unimplemented
  // where no process does: a file.
  virtual absl::StatusOr<ClockReading> ReadClock() = 0;
};

// `part` of `whole`: a rendezvous of its ranks alone, which number themselves from 0 in the order of `ranks`
// (numbers of the whole, this one's among them). What it keeps stands under `name`, which no other part of
// `whole` may have. `whole` outlives it.
std::unique_ptr<Rendezvous> MakePartRendezvous(Rendezvous& whole, std::vector<int> ranks,
                                               const std::string& name);

// Ends with an error unless all ranks give the same value; names the first rank that differs from rank 0, and
// both values. `what` is the field, such as "--model".
absl::Status RequireEqual(Rendezvous& rendezvous, const std::string& what, const std::string& value);
// The same of a command's flags ("--lr=0.5"): the error shows only those that differ.
absl::Status RequireEqualFlags(Rendezvous& rendezvous, const std::vector<std::string>& flags);

}  // namespace psring
