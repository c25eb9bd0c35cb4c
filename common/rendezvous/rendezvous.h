// How ranks find each other: a small key-value store that all of them reach, and collective calls that
// exchange values.
//
// The store is a gRPC service (proto/rendezvous.proto), which rank 0 hosts unless PSRING_STORE_HOSTED=1 says
// that a launcher does. A spec says where it is: at "tcp://host:port"; at the address that rank 0 writes into
// the file of "file://path", which all ranks can access (meeting_file.h). "env://" uses the launcher's
// variables (launched_as.h): MASTER_ADDR and MASTER_PORT (with torchrun's own store on MASTER_PORT, ours
// takes the next port), else their equivalents under srun, else, if all ranks are on one host, a file of the
// job. Rank and world size always come from the launcher.
//
// Only processes with the job's secret can connect to a store (net/authentication.h). Every wait has a
// deadline, and its error names the missing ranks. A wait ends earlier, with Unavailable and
// the name of the process, if a process that it waits for has left, died or was rejected.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"
#include "common/net/clock_offset.h"
#include "common/net/job_secret.h"
#include "common/rendezvous/launched_as.h"

namespace psring {

struct RendezvousOptions {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 0;  // ranks on this host; 0: unknown
  std::string file;          // says where the store is; empty: it is at host and port
  std::string host;
  int port = 0;
  bool hosted_elsewhere = false;  // otherwise rank 0 hosts the store
  std::string bind;               // rank 0's own, for `file` or a name as `host`: own_address.h
  JobSecret secret;               // of all processes of the job, and of the connections between ranks
  absl::Duration timeout = absl::Seconds(60);
  std::string noun = "rank";  // how errors name a rank
  // Of a part (MakePartRendezvous): the numbers of its ranks in the job, which messages use. Empty: the same.
  std::vector<int> job_ranks;

  int JobRank(int of_part) const {
    return job_ranks.empty() ? of_part : job_ranks[static_cast<size_t>(of_part)];
  }

  // As far as the launcher knows, all ranks are on this machine.
  bool on_one_host() const { return local_world_size == world_size; }
};

// "tcp://host:port" or "file://path": the spec for a process that must find the same store as this one.
std::string SpecOf(const RendezvousOptions& options);

// InvalidArgument, in one line: an unknown scheme, a variable that is missing or not a number, RANK not below
// WORLD_SIZE, an mpirun over several hosts without rank 0's address.
absl::StatusOr<RendezvousOptions> ParseRendezvous(const std::string& spec, const GetEnv& get_env);
// The same with the job's secret, and with the certificates of `tls` if it is not empty. The file of a job on
// one host has a name that other users, who do not know the secret, cannot create first.
absl::StatusOr<RendezvousOptions> ReadRendezvous(const std::string& spec, const GetEnv& get_env,
                                                 const std::string& tls);

// Hosts the store until destroyed. Thread-safe; its calls run on a few threads of gRPC, and calls that wait
// hold none.
class RendezvousServer {
 public:
  // `port` 0 lets the system choose. An error says if the address is in use. The destructor waits at most 5 s
  // for members to leave; calls of those that remain fail. `noun`: how errors name a rank. `ping`: the time
  // between pings, and the time after which a member that does not answer one is lost.
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> Start(const std::string& host, int port,
                                                                 const JobSecret& secret,
                                                                 const std::string& noun = "rank",
                                                                 absl::Duration ping = absl::Seconds(10));
  // On a TCP socket that listens already, such as one of another network namespace.
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> StartOn(FileDescriptor socket,
                                                                   const JobSecret& secret);
  virtual ~RendezvousServer() = default;
  virtual int port() const = 0;
  virtual absl::Status Surplus() = 0;  // see Rendezvous
  // From the process that started `rank`: it has ended, and counts as lost. If it has not joined, waits for
  // it fail with `why`.
  virtual void RankEnded(int rank, const std::string& why) = 0;
};

// One process's connection to the store. Thread-safe.
class Rendezvous {
 public:
  // Joins as a rank and hosts the store if this rank does. Errors: the store cannot be reached by the
  // deadline (names the address), it has another secret (PermissionDenied), another process has this rank
  // (names its host and pid), the world sizes differ.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Join(const RendezvousOptions& options);
  // Joins as a process that is not a rank, such as a parameter server.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Connect(const RendezvousOptions& options);
  // Leaves: pending waits for this rank fail. The rank that hosts the store then waits as RendezvousServer
  // does, so that it may finish first. A process that ends without leaving counts as lost.
  virtual ~Rendezvous() = default;

  virtual const RendezvousOptions& options() const = 0;

  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  // Waits until the key exists. `whom` completes the error message "waited 60 s for ...".
  virtual absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom) = 0;
  // Does not wait: null if the key does not exist yet.
  virtual absl::StatusOr<std::optional<std::string>> TryGet(const std::string& key,
                                                            const std::string& whom) = 0;

  // Does not wait. Unavailable names a rank of the job that has died, has left or was rejected; a rank that
  // has not joined yet is no error. For waits of this process for ranks outside of the store. `where`
  // completes the error "rank 1 has died while others waited for it ...".
  virtual absl::Status CheckRanks(const std::string& where) = 0;

  // If this process hosts the store: Unavailable if a rank was rejected because it is not below the job's
  // world size, so one of the two world sizes is wrong. A job of one rank waits for no other rank and learns
  // this only here.
  virtual absl::Status Surplus() { return absl::OkStatus(); }

  // Collective with the same `name`; returns all ranks' values in rank order. A name may be used again unless
  // it has failed: then it stays failed for all ranks. Also a barrier.
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& name, const std::string& value) {
    return ExchangeAmong({}, name, value, options().timeout);
  }
  // The same among some ranks including this one; returns their values in rank order. All of them pass the
  // same ranks, and no others call it. The exchange fails for all at the first rank's `timeout`; 0: unless
  // the others wait already.
  virtual absl::StatusOr<std::vector<std::string>> ExchangeAmong(const std::vector<int>& ranks,
                                                                 const std::string& name,
                                                                 const std::string& value,
                                                                 absl::Duration timeout) = 0;

  // The monotonic clock of the process that hosts the store, between two readings of our own.
  virtual absl::StatusOr<ClockReading> ReadClock() = 0;
};

// A rendezvous of some ranks of `whole` only, numbered from 0 in the order of `ranks` (numbers in the whole,
// including this one's). Its keys are stored under `name`, which must be unique among the parts. `whole` must
// outlive it.
std::unique_ptr<Rendezvous> MakePartRendezvous(Rendezvous& whole, std::vector<int> ranks,
                                               const std::string& name);

// Fails unless all ranks pass the same value; names the first rank that differs from rank 0, and both values.
// `what` is the field, such as "--model".
absl::Status RequireEqual(Rendezvous& rendezvous, const std::string& what, const std::string& value);
// The same for a command's flags ("--lr=0.5"): the error shows only those that differ.
absl::Status RequireEqualFlags(Rendezvous& rendezvous, const std::vector<std::string>& flags);

// Tells the others why this process fails ("rank 0: cannot write F: No space left on device"), so that they
// report the failure instead of its consequence, such as a lost connection. Call it before closing
// connections. Without a store to tell it to, the others report the consequence.
void PublishFailure(Rendezvous& rendezvous, const std::string& failure);
// The error of a process that failed with `status`: names the failure that another process told, if any.
// Silence (DeadlineExceeded) is never the consequence of one.
absl::Status WithReportedFailure(Rendezvous& rendezvous, const absl::Status& status);

}  // namespace psring
