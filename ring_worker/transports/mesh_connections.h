// The connections of one rank of a mesh (mesh_transport.h). Ranks exchange their addresses at the start; a
// pair is connected when one of the two wants it. The higher rank connects, and the lower one accepts, so a
// pair is never connected twice; a lower rank that wants a higher one asks it to connect. Connections without
// the job's secret are rejected.
//
// Threads of this object accept and connect, so that a pair is connected while both ranks compute, and a rank
// that does not respond delays no other pair.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/net/authentication.h"
#include "common/net/tcp_socket.h"
#include "common/net/tls/member_socket.h"
#include "common/net/unix_socket.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/transports/shared_link.h"
#include "ring_worker/transports/transport.h"

namespace psring {

// The connections to one peer. Control is separate from data so that errors do not wait for payload (see
// mesh_transport.h).
struct PeerConnections {
  std::unique_ptr<MemberSocket> control;  // its address stays the same
  // Either a Unix socket, which passes descriptors, and the peer's memory, if memory can be shared,
  UnixSocket unix_socket;
  std::optional<SharedArena> arena;
  // or a TCP connection for payload.
  MemberSocket data;
};

class MeshConnections {
 public:
  // Collective: listens and exchanges addresses. FailedPrecondition: the options of two ranks differ, or
  // `transport` is shm and a rank is on another host. `rendezvous` must outlive the result.
  static absl::StatusOr<std::unique_ptr<MeshConnections>> Start(Rendezvous& rendezvous,
                                                                const MeshOptions& options);
  // Ends pending attempts. Waits for a call of `on_connected` in progress.
  ~MeshConnections();

  // By rank, whether memory can be shared with it; false for this rank.
  const std::vector<bool>& shares() const { return shares_; }
  bool near() const { return near_; }  // no TCP connection for payload would leave this host

  // Once for each peer that is wanted here or has connected, on threads of this object. The error says why
  // the pair cannot be connected, and names the peer, or the rank that has died.
  using OnConnected = std::function<void(int peer, absl::StatusOr<PeerConnections> connections)>;
  // Of a pair that cannot be connected: the peer may use `control` already, so it must learn why.
  using OnGivenUp = std::function<void(MemberSocket& control, const absl::Status& why)>;
  // Call it once. `own`: this rank's memory, null if it shares none.
  void Serve(const SharedArena* own, OnConnected on_connected, OnGivenUp on_given_up);

  // Connects to `peer`, or asks it to connect, unless they are connected. Call it once per peer. Returns at
  // once.
  void Want(int peer);

 private:
  struct Address {
    std::string host;
    int port = 0;
    std::string unix_name;
    Credentials credentials;  // to connect to it
  };
  // Connects to one peer after the other, or asks it to connect.
  struct Worker {
    std::thread thread;
    bool over = true;
    FileDescriptor pending;  // a duplicate of the socket that it waits for
  };
  // What a connection is for. kRequest: carries nothing; the higher rank is asked to connect.
  enum class Channel : uint32_t { kControl, kUnix, kData, kRequest = UINT32_MAX };
  // Of this rank's connections: the detail of their authentication.
  uint64_t DetailOf(Channel channel) const {
    return static_cast<uint64_t>(rank_) << 32 | static_cast<uint32_t>(channel);
  }
  class Pending;

  static constexpr absl::Duration kBetweenTries = absl::Milliseconds(20);
  // A peer offers its memory before it opens the control connection.
  static constexpr absl::Duration kForOffer = absl::Seconds(1);
  // The lower rank's first byte on the control connection: it knows this connection, so it will say why if it
  // ends.
  static constexpr char kAccepted = '+';

  MeshConnections(Rendezvous& rendezvous, const MeshOptions& options);
  absl::Status Listen();
  absl::Status ReadCard(int peer, const std::string& card, const std::string& host_id);
  int Name(int rank) const { return rendezvous_.options().JobRank(rank); }  // for messages

  // Of the lower rank.
  void Accept();
  void Place(PendingConnections::Member member);
  bool Complete(int peer, const PeerConnections& connections) const;

  // On a worker's thread.
  void StartWork(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work(Worker& worker);
  // Of the lower rank.
  void Ask(int peer, Worker& worker);
  // Of the higher rank.
  absl::Status ConnectTo(int peer, Worker& worker, PeerConnections& made);
  absl::StatusOr<MemberSocket> ConnectTcpTo(int peer, Channel channel, MonotonicTime deadline,
                                            Worker& worker);
  absl::StatusOr<UnixSocket> ConnectUnixTo(int peer, MonotonicTime deadline, Worker& worker);
  // "rank 1 cannot WHAT rank 0: ..."
  absl::Status Cannot(const char* what, int peer, const absl::Status& why) const;
  // The rank that has died, if that is why a connection failed.
  absl::Status Explain(const absl::Status& symptom);

  // While a higher rank is wanted that has not connected yet: has it asked, and learns of ranks that have
  // died.
  void Watch();
  // Of a rank that is awaited; no effect if it has connected meanwhile.
  void Fail(int peer, const absl::Status& why);

  // Limits the rate, and sets buffers.
  absl::Status Prepare(PeerConnections& connections) const;
  bool is_closing() {
    MutexLock lock(mutex_);
    return closing_;
  }

  Rendezvous& rendezvous_;
  const MeshOptions options_;
  const int rank_;
  const int size_;
  const Credentials credentials_;  // of this rank's listeners
  TcpListener listener_;
  UnixSocket unix_listener_;
  std::string unix_name_;
  std::vector<Address> addresses_;  // by rank
  std::vector<bool> shares_;
  bool near_ = true;
  const SharedArena* own_ = nullptr;
  OnConnected on_connected_;
  OnGivenUp on_given_up_;

  // Used by the thread that accepts.
  std::map<int, PeerConnections> arriving_;
  std::set<int> placed_;

  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<int> work_ ABSL_GUARDED_BY(mutex_);    // ranks to connect to, or to ask
  std::set<int> started_ ABSL_GUARDED_BY(mutex_);   // all that were ever in work_
  std::set<int> accepted_ ABSL_GUARDED_BY(mutex_);  // higher ranks that are connected
  std::set<int> awaited_ ABSL_GUARDED_BY(mutex_);   // and those that are not, but wanted
  bool has_new_ ABSL_GUARDED_BY(mutex_) = false;    // in awaited_
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
  std::array<Worker, 8> workers_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_, watcher_;
};

}  // namespace psring
