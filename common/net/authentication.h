// Mutual authentication of two processes of one job on a new connection (a TCP or Unix socket), before
// anything else is sent. Each proves with a keyed hash that it has the job's secret; the secret is not sent.
//
//   client: magic, version, purpose, detail, nonce         32 bytes
//   server: magic, version, purpose, nonce, proof          56 bytes
//   client: proof                                          32 bytes
//
// A proof is HMAC-SHA256(secret, role | the client's first message | the server's nonce). The role prevents
// that one side's proof is sent back to it; the purpose, that a connection to one service is relayed to
// another. Authentication does not encrypt what follows. If the secret has TLS (tls.h), all of this is inside
// a TLS connection, and the key is derived from the secret and that connection, so that nobody can relay it
// to another one. security.md states what both protect against.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"
#include "common/net/job_secret.h"
#include "common/net/rejection_log.h"
#include "common/net/tcp_socket.h"
#include "common/net/tls.h"

namespace psring {

// The service that a connection is for.
enum class Purpose : uint8_t {
  kRendezvous = 1,
  kParameterServer = 2,
  kMesh = 3,
  kRoundLimits = 4,
  kLinkLimits = 5,
  kSharedPayload = 6,
  kNetworkProbe = 7,
  kOtherTls = 8,  // only to report it: ReportOtherTls
};

struct Credentials {
  JobSecret secret;
  Purpose purpose;
};

// FailedPrecondition if the secret is not set.
absl::Status CheckCredentials(const Credentials& credentials);

// The client's side, on a socket. `detail` is passed to the server: what the connection is for.
// `server` begins the errors' messages. PermissionDenied: the server has another secret. FailedPrecondition:
// it is not psring, or another version. Unavailable: it closed the connection. DeadlineExceeded.
// FailedPrecondition as well: only one of the two uses TLS.
absl::Status AuthenticateTo(int socket, const Credentials& credentials, const std::string& server,
                            MonotonicTime deadline, uint64_t detail = 0);
// The same over TCP: encrypts the connection first if the secret has TLS. `socket` is then replaced by a
// non-blocking local socket; so set options of TCP before.
absl::Status AuthenticateTcp(FileDescriptor& socket, const Credentials& credentials,
                             const std::string& server, MonotonicTime deadline, uint64_t detail = 0);

// Whether AuthenticateTcp failed because the server has another --tls, as far as this process can tell.
bool IsOtherTls(const absl::Status& status, const Credentials& credentials);
// After that, and on a new connection in clear text: proves that a process with the job's secret has another
// --tls, so that others do not wait for it. `detail`: who it is.
absl::Status ReportOtherTls(int socket, const Credentials& credentials, const std::string& server,
                            MonotonicTime deadline, uint64_t detail);

// The server's side of one connection. It never waits.
class ServerHandshake {
 public:
  // kReport: of ReportOtherTls; the connection is for nothing else.
  enum class State { kPending, kAuthenticated, kReport, kRejected };
  enum class Reason { kIncomplete, kSecret, kTls, kNoTls, kCertificate };  // why a client is rejected

  // `tls`: null: the connection is not encrypted.
  explicit ServerHandshake(FileDescriptor socket, const std::shared_ptr<TlsContext>& tls = nullptr);

  int socket() const { return tls_.has_value() ? tls_->socket() : socket_.get(); }
  // The events of poll() after which to call Advance. It reads what has arrived, and answers it.
  short events() const;
  State Advance(const Credentials& credentials);
  bool has_received() const;
  bool has_answered() const { return stage_ == Stage::kProof; }  // the client's first message
  // After kRejected.
  Reason reason() const { return reason_; }

  // After kAuthenticated.
  FileDescriptor TakeSocket() { return std::move(socket_); }
  uint64_t detail() const;  // also after kReport

 private:
  static constexpr size_t kHelloBytes = 32, kProofBytes = 32;
  enum class Stage { kHello, kProof };

  State Encrypt(const Credentials& credentials);
  State AnswerHello(const Credentials& credentials);

  FileDescriptor socket_;            // not valid before the end of the TLS handshake
  std::optional<TlsHandshake> tls_;  // until its end
  JobSecret secret_;                 // of the connection
  bool is_report_ = false;
  Reason reason_ = Reason::kIncomplete;
  Stage stage_ = Stage::kHello;
  std::array<char, kHelloBytes> hello_ = {};
  std::array<char, kProofBytes> proof_ = {};
  size_t received_ = 0;  // of the stage's message
  std::string expected_proof_;
};

// Accepts connections and authenticates them concurrently, so that a silent client does not delay others. At
// most 256 are pending, each for at most 10 s; with more, the oldest of those that have not sent a valid
// first message is closed, else the oldest. Rejected connections are closed, and counted in one line per
// reason on stderr at most every 10 s. One thread at a time.
class PendingConnections {
 public:
  struct Member {
    FileDescriptor socket;  // non-blocking, and prepared (PrepareTcpSocket)
    uint64_t detail = 0;
    size_t listener = 0;       // index of the one that accepted it
    bool within_host = false;  // both ends have the same address
  };

  // A process of the job has another --tls (ReportOtherTls). In Wait.
  using OnOtherTls = std::function<void(uint64_t detail, const std::string& peer)>;

  explicit PendingConnections(const Credentials& credentials, OnOtherTls on_other_tls = nullptr);

  // Waits until members have been authenticated; none: `deadline` has passed. `listeners` are non-blocking,
  // and the same in every call; -1 is ignored. Cancelled: a listener was shut down. ResourceExhausted: out of
  // descriptors or memory.
  absl::StatusOr<std::vector<Member>> Wait(absl::Span<const int> listeners, MonotonicTime deadline);

  size_t size() const { return pending_.size(); }

 private:
  struct Pending {
    ServerHandshake handshake;
    MonotonicTime until;
    size_t listener;
    std::string peer;
    bool within_host;
  };
  absl::Status Accept(int listener, size_t index);
  // Rejects one to make room.
  void CloseOne();
  void Reject(const Pending& pending);

  const Credentials credentials_;
  const OnOtherTls on_other_tls_;
  std::list<Pending> pending_;            // in the order in which they were accepted
  std::array<RejectionLog, 5> rejected_;  // by reason
};

// A thread that accepts connections of a job's members on a TCP port.
class AuthenticatedListener {
 public:
  // On the listener's thread, once per member.
  using OnMember = std::function<void(PendingConnections::Member member)>;

  // FailedPrecondition if the secret is not set. `on_other_tls`: on the same thread.
  static absl::StatusOr<std::unique_ptr<AuthenticatedListener>> Start(
      TcpListener listener, const Credentials& credentials, OnMember on_member,
      PendingConnections::OnOtherTls on_other_tls = nullptr);
  // Waits for a call of `on_member` in progress.
  ~AuthenticatedListener();

  int port() const { return listener_.port; }
  int socket() const { return listener_.socket.get(); }

 private:
  AuthenticatedListener(TcpListener listener, const Credentials& credentials, OnMember on_member,
                        PendingConnections::OnOtherTls on_other_tls);
  void Serve();

  TcpListener listener_;
  PendingConnections pending_;
  const OnMember on_member_;
  std::thread thread_;
};

}  // namespace psring
