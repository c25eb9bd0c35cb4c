// Mutual authentication of two processes of one job on a new connection (a TCP or Unix socket), before
// anything else is sent. Each proves with a keyed hash that it has the job's secret; the secret is not sent.
//
//   client: magic, version, purpose, detail, nonce         32 bytes
//   server: magic, version, purpose, nonce, proof          56 bytes
//   client: proof                                          32 bytes
//
// A proof is HMAC-SHA256(secret, role | the client's first message | the server's nonce). The role prevents
// that one side's proof is sent back to it; the purpose, that a connection to one service is relayed to
// another. Authentication does not encrypt what follows: security.md states what it protects against.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/file_descriptor.h"
#include "common/net/job_secret.h"
#include "common/net/tcp_socket.h"

namespace psring {

// The service that a connection is for.
enum class Purpose : uint8_t {
  kRendezvous = 1,
  kParameterServer = 2,
  kMesh = 3,
  kRoundLimits = 4,
  kLinkLimits = 5,
  kSharedPayload = 6,
};

struct Credentials {
  JobSecret secret;
  Purpose purpose;
};

// FailedPrecondition if the secret is not set.
absl::Status CheckCredentials(const Credentials& credentials);

// The client's side, on a non-blocking socket. `detail` is passed to the server: what the connection is for.
// `server` begins the errors' messages. PermissionDenied: the server has another secret. FailedPrecondition:
// it is not psring, or another version. Unavailable: it closed the connection. DeadlineExceeded.
absl::Status AuthenticateTo(int socket, const Credentials& credentials, const std::string& server,
                            absl::Time deadline, uint64_t detail = 0);

// The server's side of one connection. It never waits.
class ServerHandshake {
 public:
  enum class State { kPending, kAuthenticated, kRejected };

  explicit ServerHandshake(FileDescriptor socket) : socket_(std::move(socket)) {}

  int socket() const { return socket_.get(); }
  // Reads what has arrived, and answers it. Call it when the socket is readable.
  State Advance(const Credentials& credentials);
  bool has_received() const { return received_ > 0 || has_answered(); }
  bool has_answered() const { return stage_ == Stage::kProof; }  // the client's first message

  // After kAuthenticated.
  FileDescriptor TakeSocket() { return std::move(socket_); }
  uint64_t detail() const;

 private:
  static constexpr size_t kHelloBytes = 32, kProofBytes = 32;
  enum class Stage { kHello, kProof };

  State AnswerHello(const Credentials& credentials);

  FileDescriptor socket_;
  Stage stage_ = Stage::kHello;
  std::array<char, kHelloBytes> hello_ = {};
  std::array<char, kProofBytes> proof_ = {};
  size_t received_ = 0;  // of the stage's message
  std::string expected_proof_;
};

// Accepts connections and authenticates them concurrently, so that a silent client does not delay others. At
// most 256 are pending, each for at most 10 s; with more, the oldest of those that have not sent a valid
// first message is closed, else the oldest. Rejected connections are closed, and counted in one line on
// stderr at most every 10 s. One thread at a time.
class PendingConnections {
 public:
  struct Member {
    FileDescriptor socket;  // non-blocking
    uint64_t detail = 0;
    size_t listener = 0;  // index of the one that accepted it
  };

  explicit PendingConnections(const Credentials& credentials) : credentials_(credentials) {}
  ~PendingConnections();

  // Waits until members have been authenticated; none: `deadline` has passed. `listeners` are non-blocking,
  // and the same in every call; -1 is ignored. Cancelled: a listener was shut down. ResourceExhausted: out of
  // descriptors or memory.
  absl::StatusOr<std::vector<Member>> Wait(absl::Span<const int> listeners, absl::Time deadline);

  size_t size() const { return pending_.size(); }

 private:
  struct Pending {
    ServerHandshake handshake;
    absl::Time until;
    size_t listener;
    std::string peer;
  };

  absl::Status Accept(int listener, size_t index);
  // Rejects one to make room.
  void CloseOne();
  void Reject(const Pending& pending);
  void ReportRejected();

  const Credentials credentials_;
  std::list<Pending> pending_;  // in the order in which they were accepted
  int64_t rejected_ = 0;        // not reported yet
  std::string last_rejected_;
  absl::Time next_report_ = absl::InfinitePast();
};

// A thread that accepts connections of a job's members on a TCP port.
class AuthenticatedListener {
 public:
  // On the listener's thread, once per member.
  using OnMember = std::function<void(FileDescriptor socket, uint64_t detail)>;

  // FailedPrecondition if the secret is not set.
  static absl::StatusOr<std::unique_ptr<AuthenticatedListener>> Start(TcpListener listener,
                                                                      const Credentials& credentials,
                                                                      OnMember on_member);
  // Waits for a call of `on_member` in progress.
  ~AuthenticatedListener();

  int port() const { return listener_.port; }
  int socket() const { return listener_.socket.get(); }

 private:
  AuthenticatedListener(TcpListener listener, const Credentials& credentials, OnMember on_member);
  void Serve();

  TcpListener listener_;
  PendingConnections pending_;
  const OnMember on_member_;
  std::thread thread_;
};

}  // namespace psring
