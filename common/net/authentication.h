// Mutual authentication of two processes of one job on a new connection (a TCP or Unix socket), before
// anything else is sent. Each proves with a keyed hash that it has the key; the key is not sent.
//
//   client: magic, version, purpose, detail, nonce, proof     64 bytes
//   server: magic, version, purpose                           8 bytes
//   with --tls: the TLS handshake (tls.h); what follows is encrypted
//   server: nonce, proof                                      48 bytes
//   client: proof                                             32 bytes
//
// The key is derived from the job's secret and the listener's token, which its owner publishes with its
// address, so a connection cannot be passed on to another listener. A store has no token, because it has to
// be found first: within a host its key is derived from its address instead. With TLS, the last two proofs
// are keyed by the TLS connection too, so that they cannot be relayed to another one.
//
// A proof is HMAC-SHA256(key, role | the client's first message | the server's nonce), without the nonce for
// the first one. The role prevents that one side's proof is sent back to it. The first proof shows in the
// first bytes that a client is a member, so silent clients and strangers never delay one: they are closed
// first. It is accepted once. security.md states what this protects against.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
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
#include "common/net/tls/member_socket.h"

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
  std::string token = {};  // of the listener; empty: it has none
};
// For a new listener.
std::string NewListenerToken();

// FailedPrecondition if the secret is not set.
absl::Status CheckCredentials(const Credentials& credentials);

// The client's side, on a non-blocking socket. `detail` is passed to the server: what the connection is for.
// `server` begins the errors' messages. PermissionDenied: the server has another secret or token.
// FailedPrecondition: it is not psring, or another version or service. Unavailable: it closed the connection.
// DeadlineExceeded. FailedPrecondition as well: only one of the two uses TLS.
absl::Status AuthenticateTo(int socket, const Credentials& credentials, const std::string& server,
                            MonotonicTime deadline, uint64_t detail = 0);
// The same over TCP: encrypts the connection first if the secret has TLS. So set options of TCP before.
absl::StatusOr<MemberSocket> AuthenticateTcp(FileDescriptor socket, const Credentials& credentials,
                                             const std::string& server, MonotonicTime deadline,
                                             uint64_t detail = 0);

// Whether AuthenticateTcp failed because the server has another --tls, as far as this process can tell.
bool IsOtherTls(const absl::Status& status, const Credentials& credentials);
// After that, and on a new connection in clear text: proves that a process with the job's secret has another
// --tls, so that others do not wait for it. `detail`: who it is.
absl::Status ReportOtherTls(int socket, const Credentials& credentials, const std::string& server,
                            MonotonicTime deadline, uint64_t detail);

using Nonce = std::array<char, 16>;

// The nonces of valid first messages, so that a recorded one is not accepted again. Remembers at least the
// last 32768; only members make valid ones.
class SeenNonces {
 public:
  // False: it was there.
  bool Insert(const Nonce& nonce);

 private:
  std::set<Nonce> recent_, older_;
};

// The server's side of one connection. It never waits.
class ServerHandshake {
 public:
  // kReport: of ReportOtherTls; the connection is for nothing else.
  enum class State { kPending, kAuthenticated, kReport, kRejected };
  enum class Reason { kIncomplete, kSecret, kTls, kNoTls, kCertificate };  // why a client is rejected

  explicit ServerHandshake(FileDescriptor socket) : socket_(std::move(socket)) {}

  int socket() const { return tls_.has_value() ? tls_->socket() : socket_.fd(); }
  // The events of poll() after which to call Advance. It reads what has arrived, and answers it.
  short events() const;
  State Advance(const Credentials& credentials, SeenNonces& seen);
  bool has_received() const { return received_ > 0 || is_proven(); }
  // The client has shown in its first message that it has the key.
  bool is_proven() const { return stage_ != Stage::kHello; }
  // After kRejected.
  Reason reason() const { return reason_; }

  // After kAuthenticated.
  MemberSocket TakeSocket() { return std::move(socket_); }
  uint64_t detail() const;  // also after kReport

 private:
  static constexpr size_t kHelloBytes = 64, kProofBytes = 32;
  enum class Stage { kHello, kEncrypt, kProof };

  // Reads the rest of a message. kAuthenticated: it is complete.
  State Receive(char* message, size_t bytes);
  State AnswerHello(const Credentials& credentials, SeenNonces& seen);
  State Encrypt();
  State Challenge();
  State Reject(Reason reason) {
    reason_ = reason;
    return State::kRejected;
  }

  MemberSocket socket_;              // not valid during the TLS handshake
  std::optional<TlsHandshake> tls_;  // until its end
  JobSecret key_;
  bool is_report_ = false;
  Reason reason_ = Reason::kIncomplete;
  Stage stage_ = Stage::kHello;
  std::array<char, kHelloBytes> hello_ = {};
  std::array<char, kProofBytes> proof_ = {};
  size_t received_ = 0;  // of the stage's message
  std::string expected_proof_;
};

// Accepts connections at once and authenticates them concurrently, so that strangers delay no member. At most
// 256 are pending, each for at most 10 s. With more, the oldest one without a valid first message is closed,
// of the source (an address, or a user of this host) that has most of them; else the oldest. Rejected
// connections are closed, and counted in one line per reason on stderr at most every 10 s. One thread at a
// time.
class PendingConnections {
 public:
  struct Member {
    MemberSocket socket;  // non-blocking, and prepared (PrepareTcpSocket)
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
    uint64_t source;  // equal for one address, or one user of this host
    bool within_host;
  };
  using List = std::list<Pending>;
  // All that wait, up to a limit.
  absl::Status Accept(int listener, size_t index, std::vector<Member>& members);
  // After an event. The next one in the list.
  List::iterator Advance(List::iterator pending, std::vector<Member>& members);
  List::iterator Replaceable();
  void Reject(List::iterator pending, const std::string& circumstance = "");

  const Credentials credentials_;
  const OnOtherTls on_other_tls_;
  List pending_;  // in the order in which they were accepted
  SeenNonces seen_;
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
