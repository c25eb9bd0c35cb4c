#include "common/net/authentication.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/net/address.h"
#include "common/net/random_token.h"

namespace psring {
namespace {

constexpr size_t kMostPending = 256;
constexpr absl::Duration kHandshakeTime = absl::Seconds(10);  // for one handshake
// With kMostPending, others wait in the listener's queue until one is this old and can be closed. So a
// thousand members that come at once do not replace each other, and silent clients delay them little.
constexpr absl::Duration kLeastHandshakeTime = absl::Seconds(1);

using Nonce = std::array<char, 16>;

Nonce NewNonce() {
  Nonce nonce;
  for (size_t i = 0; i < nonce.size(); i += sizeof(uint64_t)) {
    const uint64_t bits = KernelRandom();
    std::memcpy(nonce.data() + i, &bits, sizeof bits);
  }
  return nonce;
}

struct Opening {
  std::array<char, 6> magic = {'p', 's', 'r', 'i', 'n', 'g'};
  uint8_t version = 1;
  uint8_t purpose = 0;
};

struct Hello {
  Opening opening;
  uint64_t detail = 0;
  Nonce nonce = {};
};
static_assert(sizeof(Hello) == 32);

struct Answer {
  Opening opening;
  Nonce nonce = {};
  JobSecret::Digest proof = {};
};
static_assert(sizeof(Answer) == 56);

template <typename Message>
absl::string_view BytesOf(const Message& message) {
  static_assert(std::has_unique_object_representations_v<Message>);  // no padding
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

JobSecret::Digest Proof(const JobSecret& secret, absl::string_view role, absl::string_view hello,
                        const Nonce& servers) {
  return secret.Sign(absl::StrCat("psring ", role, " ", hello, BytesOf(servers)));
}

// In constant time.
bool Equal(absl::string_view one, absl::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

// Receives the server's answer; ends at the first byte that is not psring's.
absl::Status Receive(int socket, MonotonicTime deadline, const std::string& server, Answer& answer) {
  const Opening expected;
  char* const bytes = reinterpret_cast<char*>(&answer);
  for (size_t received = 0; received < sizeof answer;) {
    // A local socket keeps messages apart, so one call reads the entire message.
    const ssize_t got = recv(socket, bytes + received, sizeof answer - received, MSG_DONTWAIT);
    if (got > 0) {
      received += static_cast<size_t>(got);
      const auto record = static_cast<unsigned char>(*bytes);
      if (record == kTlsAlertRecord || record == kTlsHandshakeRecord) {
        return absl::FailedPreconditionError(
            absl::StrCat(server, " uses --tls, and this process does not; ", kSameTls));
      }
      if (std::memcmp(bytes, expected.magic.data(), std::min(received, expected.magic.size())) != 0) {
        return absl::FailedPreconditionError(absl::StrCat(server, " is not psring; check the address"));
      }
    } else if (got == 0) {
      return absl::UnavailableError(absl::StrCat(server, " closed the connection during authentication"));
    } else if (errno == EAGAIN) {
      PSRING_RETURN_IF_ERROR(AwaitSocket(socket, POLLIN, deadline, server));
    } else if (errno != EINTR) {
      return SystemError(server);
    }
  }
  return absl::OkStatus();
}

bool IsTcp(int socket) {
  int family = 0;
  socklen_t length = sizeof family;
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &length) == 0 && family != AF_UNIX;
}

// The secret that authenticates inside a TLS connection.
JobSecret Bound(const JobSecret& secret, absl::string_view binding) {
  return secret.Derived(absl::StrCat("tls ", binding));
}

// The secret of reports: their proofs are worth nothing elsewhere.
JobSecret ForReports(const JobSecret& secret) { return secret.Derived("other --tls"); }

// A report has come, which is in clear text even if the server encrypts.
bool BeginsReport(int socket) {
  const Opening expected = {.purpose = static_cast<uint8_t>(Purpose::kOtherTls)};
  Opening received;
  return recv(socket, &received, sizeof received, MSG_PEEK | MSG_DONTWAIT) == sizeof received &&
         BytesOf(received) == BytesOf(expected);
}

// Of PendingConnections: the oldest that has not sent a valid first message, else the oldest.
template <typename List>
auto Replaceable(List& pending) {
  const auto silent = std::find_if(pending.begin(), pending.end(),
                                   [](const auto& one) { return !one.handshake.has_answered(); });
  return silent == pending.end() ? pending.begin() : silent;
}

}  // namespace

absl::Status CheckCredentials(const Credentials& credentials) {
  if (credentials.secret.is_set()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process has no job secret, so it cannot authenticate connections");
}

absl::Status AuthenticateTo(int socket, const Credentials& credentials, const std::string& server,
                            MonotonicTime deadline, uint64_t detail) {
  PSRING_RETURN_IF_ERROR(CheckCredentials(credentials));
  const Hello hello = {.opening = {.purpose = static_cast<uint8_t>(credentials.purpose)},
                       .detail = detail,
                       .nonce = NewNonce()};
  PSRING_RETURN_IF_ERROR(WriteAll(socket, &hello, sizeof hello, deadline));
  Answer answer;
  PSRING_RETURN_IF_ERROR(Receive(socket, deadline, server, answer));
  if (answer.opening.version != hello.opening.version || answer.opening.purpose != hello.opening.purpose) {
    return absl::FailedPreconditionError(
        absl::StrCat(server, " is another version or another service of psring; check the address"));
  }
  const JobSecret::Digest expected = Proof(credentials.secret, "server", BytesOf(hello), answer.nonce);
  if (!Equal(BytesOf(answer.proof), BytesOf(expected))) {
    // Otherwise the server could not tell this from a lost connection.
    const JobSecret::Digest none = {};
    (void)WriteAll(socket, none.data(), none.size(), deadline);
    return absl::PermissionDeniedError(absl::StrCat(
        server, " does not have this job's secret; give all processes the same ", kSecretFileVariable));
  }
  const JobSecret::Digest proof = Proof(credentials.secret, "client", BytesOf(hello), answer.nonce);
  return WriteAll(socket, proof.data(), proof.size(), deadline);
}

absl::Status AuthenticateTcp(FileDescriptor& socket, const Credentials& credentials,
                             const std::string& server, MonotonicTime deadline, uint64_t detail) {
  PSRING_RETURN_IF_ERROR(CheckCredentials(credentials));
  const std::shared_ptr<TlsContext>& tls = credentials.secret.tls();
  if (tls == nullptr) return AuthenticateTo(socket.get(), credentials, server, deadline, detail);
  PSRING_ASSIGN_OR_RETURN(const std::string binding, EncryptTo(socket, tls, server, deadline));
  const Credentials bound = {.secret = Bound(credentials.secret, binding), .purpose = credentials.purpose};
  return AuthenticateTo(socket.get(), bound, server, deadline, detail);
}

bool IsOtherTls(const absl::Status& status, const Credentials& credentials) {
  return (absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), kSameTls)) ||
         (absl::IsPermissionDenied(status) && credentials.secret.tls() != nullptr);
}

absl::Status ReportOtherTls(int socket, const Credentials& credentials, const std::string& server,
                            MonotonicTime deadline, uint64_t detail) {
  const Credentials reporting = {.secret = ForReports(credentials.secret), .purpose = Purpose::kOtherTls};
  return AuthenticateTo(socket, reporting, server, deadline, detail);
}

ServerHandshake::ServerHandshake(FileDescriptor socket, const std::shared_ptr<TlsContext>& tls) {
  if (tls == nullptr) {
    socket_ = std::move(socket);
  } else {
    tls_.emplace(tls, TlsHandshake::Role::kServer, std::move(socket));
  }
}

short ServerHandshake::events() const { return tls_.has_value() ? tls_->events() : short{POLLIN}; }

bool ServerHandshake::has_received() const {
  if (tls_.has_value()) return tls_->has_received();
  return received_ > 0 || stage_ == Stage::kProof;
}

uint64_t ServerHandshake::detail() const {
  uint64_t detail = 0;
  std::memcpy(&detail, hello_.data() + offsetof(Hello, detail), sizeof detail);
  return detail;
}

ServerHandshake::State ServerHandshake::Advance(const Credentials& credentials) {
  static_assert(kHelloBytes == sizeof(Hello) && kProofBytes == sizeof(JobSecret::Digest));
  if (tls_.has_value()) {
    if (const State state = Encrypt(credentials); state != State::kAuthenticated) return state;
  } else if (!secret_.is_set()) {
    secret_ = credentials.secret;
  }
  while (true) {
    char* const message = stage_ == Stage::kHello ? hello_.data() : proof_.data();
    const size_t bytes = stage_ == Stage::kHello ? hello_.size() : proof_.size();
    const ssize_t got = recv(socket_.get(), message + received_, bytes - received_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return State::kPending;
    if (got <= 0) return State::kRejected;
    received_ += static_cast<size_t>(got);
    if (received_ < bytes) continue;
    if (stage_ == Stage::kProof) {
      reason_ = Reason::kSecret;
      if (!Equal(BytesOf(proof_), expected_proof_)) return State::kRejected;
      return is_report_ ? State::kReport : State::kAuthenticated;
    }
    if (AnswerHello(credentials) == State::kRejected) return State::kRejected;
    stage_ = Stage::kProof;
    received_ = 0;
  }
}

ServerHandshake::State ServerHandshake::Encrypt(const Credentials& credentials) {
  if (!tls_->has_received() && BeginsReport(tls_->socket())) {
    is_report_ = true;
    socket_ = tls_->TakeSocket();
    tls_.reset();
    return State::kAuthenticated;
  }
  const absl::StatusOr<bool> complete = tls_->Advance();
  if (complete.ok() && !*complete) return State::kPending;
  absl::StatusOr<FileDescriptor> socket =
      complete.ok() ? tls_->Relay() : absl::StatusOr<FileDescriptor>(complete.status());
  if (!socket.ok()) {
    const bool in_clear_text = absl::StrContains(socket.status().message(), TlsHandshake::kNotEncrypted);
    reason_ = in_clear_text                               ? Reason::kNoTls
              : absl::IsPermissionDenied(socket.status()) ? Reason::kCertificate
              : absl::IsUnavailable(socket.status())      ? Reason::kIncomplete
                                                          : Reason::kSecret;
    return State::kRejected;
  }
  secret_ = Bound(credentials.secret, tls_->binding());
  socket_ = *std::move(socket);
  tls_.reset();
  return State::kAuthenticated;
}

ServerHandshake::State ServerHandshake::AnswerHello(const Credentials& credentials) {
  Opening expected = {.purpose = static_cast<uint8_t>(credentials.purpose)};
  if (static_cast<unsigned char>(hello_[0]) == kTlsHandshakeRecord) {
    // The client recognizes psring by the magic.
    AnswerInClearText(socket_.get(), BytesOf(Opening()));
    reason_ = Reason::kTls;
    return State::kRejected;
  }
  is_report_ |= hello_[offsetof(Opening, purpose)] == static_cast<char>(Purpose::kOtherTls);
  if (is_report_) {
    expected.purpose = static_cast<uint8_t>(Purpose::kOtherTls);
    secret_ = ForReports(credentials.secret);
  }
  if (std::memcmp(hello_.data(), &expected, sizeof expected) != 0) {
    reason_ = Reason::kSecret;
    return State::kRejected;
  }
  Answer answer = {.opening = expected, .nonce = NewNonce()};
  answer.proof = Proof(secret_, "server", BytesOf(hello_), answer.nonce);
  expected_proof_ = std::string(BytesOf(Proof(secret_, "client", BytesOf(hello_), answer.nonce)));
  // It fits into the empty buffer of a new socket.
  const ssize_t sent = send(socket_.get(), &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(sizeof answer) ? State::kPending : State::kRejected;
}

PendingConnections::PendingConnections(const Credentials& credentials, OnOtherTls on_other_tls)
    : credentials_(credentials),
      on_other_tls_(std::move(on_other_tls)),
      rejected_{RejectionLog("connection", "that did not complete the handshake"),
                RejectionLog("connection", "without the job's secret"),
                RejectionLog("connection", "with --tls, which this process does not use", kSameTls),
                RejectionLog("connection", "without --tls, which this process uses", kSameTls),
                RejectionLog("connection", "with another CA or an invalid certificate", kSameTls)} {}

absl::StatusOr<std::vector<PendingConnections::Member>> PendingConnections::Wait(
    absl::Span<const int> listeners, MonotonicTime deadline) {
  std::vector<pollfd> waits;
  while (true) {
    waits.clear();
    MonotonicTime room = MonotonicTime::InfinitePast();  // when another connection may be accepted
    if (pending_.size() >= kMostPending)
      room = Replaceable(pending_)->until - kHandshakeTime + kLeastHandshakeTime;
    const bool is_full = MonotonicNow() < room;
    for (const int listener : listeners) waits.push_back({listener, is_full ? short{0} : short{POLLIN}, 0});
    MonotonicTime until = is_full ? std::min(deadline, room) : deadline;
    for (const Pending& pending : pending_) {
      waits.push_back({pending.handshake.socket(), pending.handshake.events(), 0});
      until = std::min(until, pending.until);
    }
    const int timeout_ms = until == MonotonicTime::InfiniteFuture() ? -1 : PollTimeoutMs(until);
    const int ready = poll(waits.data(), waits.size(), timeout_ms);
    if (ready < 0 && errno != EINTR) return SystemError("cannot wait for connections");
    const MonotonicTime now = MonotonicNow();
    std::vector<Member> members;
    size_t at = listeners.size();
    for (auto pending = pending_.begin(); pending != pending_.end(); ++at) {
      ServerHandshake& handshake = pending->handshake;
      ServerHandshake::State state = ServerHandshake::State::kPending;
      if (ready > 0 && waits[at].revents != 0) state = handshake.Advance(credentials_);
      const bool too_late = state == ServerHandshake::State::kPending && now >= pending->until;
      if (state == ServerHandshake::State::kPending && !too_late) {
        ++pending;
        continue;
      }
      if (state == ServerHandshake::State::kAuthenticated) {
        members.push_back({.socket = handshake.TakeSocket(),
                           .detail = handshake.detail(),
                           .listener = pending->listener,
                           .within_host = pending->within_host});
      } else if (state == ServerHandshake::State::kReport) {
        if (on_other_tls_ != nullptr) on_other_tls_(handshake.detail(), pending->peer);
      } else if (too_late || handshake.has_received()) {  // a health check closes at once
        Reject(*pending);
      }
      pending = pending_.erase(pending);
    }
    for (size_t i = 0; i < listeners.size() && ready > 0; ++i) {
      if (waits[i].revents == 0) continue;
      const bool is_shut_down = (waits[i].revents & POLLHUP) != 0;
      const absl::Status accepted =
          is_shut_down ? absl::CancelledError("the listener was shut down") : Accept(listeners[i], i);
      if (!accepted.ok() && members.empty()) return accepted;
    }
    if (!members.empty() || now >= deadline) return members;
  }
}

absl::Status PendingConnections::Accept(int listener, size_t index) {
  FileDescriptor socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (!exhausted) return absl::OkStatus();  // the client has closed again
    if (pending_.empty()) {
      return absl::ResourceExhaustedError(SystemError("cannot accept a connection").message());
    }
    CloseOne();
    return absl::OkStatus();
  }
  if (pending_.size() == kMostPending) CloseOne();
  const bool is_tcp = IsTcp(socket.get());
  if (is_tcp && !PrepareTcpSocket(socket.get()).ok()) return absl::OkStatus();  // closed again
  std::string peer = PeerOf(socket.get());
  const bool within_host = WithinHost(socket.get());
  pending_.push_back(
      {.handshake = ServerHandshake(std::move(socket), is_tcp ? credentials_.secret.tls() : nullptr),
       .until = MonotonicNow() + kHandshakeTime,
       .listener = index,
       .peer = std::move(peer),
       .within_host = within_host});
  return absl::OkStatus();
}

void PendingConnections::CloseOne() {
  const auto closed = Replaceable(pending_);
  // It may be a member's, which tries again.
  if (pending_.size() >= kMostPending)
    absl::StrAppend(&closed->peer, ", when ", kMostPending, " connected at once");
  Reject(*closed);
  pending_.erase(closed);
}

void PendingConnections::Reject(const Pending& pending) {
  rejected_[static_cast<size_t>(pending.handshake.reason())].Add(pending.peer);
}

AuthenticatedListener::AuthenticatedListener(TcpListener listener, const Credentials& credentials,
                                             OnMember on_member, PendingConnections::OnOtherTls on_other_tls)
    : listener_(std::move(listener)),
      pending_(credentials, std::move(on_other_tls)),
      on_member_(std::move(on_member)) {
  thread_ = std::thread([this] { Serve(); });
}

absl::StatusOr<std::unique_ptr<AuthenticatedListener>> AuthenticatedListener::Start(
    TcpListener listener, const Credentials& credentials, OnMember on_member,
    PendingConnections::OnOtherTls on_other_tls) {
  PSRING_RETURN_IF_ERROR(CheckCredentials(credentials));
  const int flags = fcntl(listener.socket.get(), F_GETFL);
  if (flags < 0 || fcntl(listener.socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return SystemError("cannot listen");
  }
  return std::unique_ptr<AuthenticatedListener>(new AuthenticatedListener(
      std::move(listener), credentials, std::move(on_member), std::move(on_other_tls)));
}

AuthenticatedListener::~AuthenticatedListener() {
  shutdown(listener_.socket.get(), SHUT_RDWR);  // ends Wait
  thread_.join();
}

void AuthenticatedListener::Serve() {
  const int socket = listener_.socket.get();
  while (true) {
    auto members = pending_.Wait({socket}, MonotonicTime::InfiniteFuture());
    if (absl::IsCancelled(members.status())) return;
    if (!members.ok()) {
      absl::SleepFor(absl::Milliseconds(50));  // perhaps others close descriptors
      continue;
    }
    for (PendingConnections::Member& member : *members) on_member_(std::move(member));
  }
}

}  // namespace psring
