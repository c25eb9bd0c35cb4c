#include "common/net/authentication.h"

#include <openssl/crypto.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/address.h"
#include "common/net/random_token.h"

namespace psring {
namespace {

constexpr uint8_t kVersion = 2;
constexpr uint8_t kTlsBit = 0x80;     // in the purpose: this side encrypts
constexpr uint8_t kOtherSecret = 0;   // in place of the server's purpose: it does not accept the first proof
constexpr size_t kMaxNonces = 32768;  // of one generation of SeenNonces

Nonce NewNonce() {
  Nonce nonce;
  FillWithRandom(nonce.data(), nonce.size());
  return nonce;
}

struct Opening {
  std::array<char, 6> magic = {'p', 's', 'r', 'i', 'n', 'g'};
  uint8_t version = kVersion;
  uint8_t purpose = 0;
};
static_assert(sizeof(Opening) == 8);

struct Hello {
  Opening opening;
  uint64_t detail = 0;
  Nonce nonce = {};
  JobSecret::Digest proof = {};
};
static_assert(sizeof(Hello) == 64);
constexpr size_t kProven = offsetof(Hello, proof);  // bytes that the first proof covers

struct Answer {
  Nonce nonce = {};
  JobSecret::Digest proof = {};
};
static_assert(sizeof(Answer) == 48);

template <typename Message>
absl::string_view BytesOf(const Message& message) {
  static_assert(std::has_unique_object_representations_v<Message>);  // no padding
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

JobSecret::Digest Proof(const JobSecret& key, absl::string_view role, absl::string_view hello,
                        absl::string_view servers = "") {
  return key.Sign(absl::StrCat("psring ", role, " ", hello, servers));
}

// In constant time.
bool Equal(absl::string_view one, absl::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

bool IsTcp(int socket) {
  int family = 0;
  socklen_t length = sizeof family;
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &length) == 0 && family != AF_UNIX;
}

// The secret of reports: their proofs are worth nothing elsewhere.
JobSecret ForReports(const JobSecret& secret) { return secret.Derived("other --tls"); }

enum class Side { kClient, kServer };

// `tcp`: the connection before TLS.
JobSecret KeyOf(const Credentials& credentials, int tcp, Side side) {
  const JobSecret& secret = credentials.secret;
  if (!credentials.token.empty()) return secret.Derived(absl::StrCat("listener ", credentials.token));
  if (credentials.purpose != Purpose::kRendezvous || secret.tls() != nullptr || !IsTcp(tcp)) return secret;
  // Addresses of other hosts may be translated on the way.
  const std::string server = side == Side::kClient ? PeerOf(tcp) : OwnAddressOf(tcp);
  const absl::StatusOr<HostPort> address = ParseAddress(server);
  const bool is_within_host = WithinHost(tcp) || (address.ok() && IsLoopback(address->host));
  return is_within_host ? secret.Derived(absl::StrCat("at ", server)) : secret;
}

// The key inside a TLS connection.
JobSecret Bound(const JobSecret& key, absl::string_view binding) {
  return key.Derived(absl::StrCat("tls ", binding));
}

uint8_t PurposeByte(Purpose purpose, bool with_tls) {
  return static_cast<uint8_t>(static_cast<uint8_t>(purpose) | (with_tls ? kTlsBit : 0));
}

absl::Status NotPsring(const std::string& server) {
  return FailedPrecondition(server, " is not psring; check the address");
}

absl::Status OtherSecret(const std::string& server) {
  return PermissionDenied(server, " does not have this job's secret; give all processes the same ",
                          kSecretFileVariable);
}

// Receives a message of the server; ends at the first byte that is not `begin`.
template <typename Message>
absl::Status Receive(MemberSocket& socket, MonotonicTime deadline, const std::string& server,
                     absl::string_view begin, Message& message) {
  char* const bytes = reinterpret_cast<char*>(&message);
  for (size_t received = 0; received < sizeof message;) {
    // A local socket keeps messages apart, so one call reads the entire message.
    const absl::StatusOr<size_t> got = socket.Receive(bytes + received, sizeof message - received);
    if (!got.ok()) return Unavailable(server, " closed the connection during authentication");
    received += *got;
    if (std::memcmp(bytes, begin.data(), std::min(received, begin.size())) != 0) return NotPsring(server);
    if (*got == 0) PSRING_RETURN_IF_ERROR(AwaitSocket(socket.fd(), POLLIN, deadline, server));
  }
  return absl::OkStatus();
}

// The client's first message, and the begin of the server's answer.
absl::StatusOr<Hello> Greet(MemberSocket& socket, const JobSecret& key, uint8_t purpose, uint64_t detail,
                            const std::string& server, MonotonicTime deadline) {
  Hello hello = {.opening = {.purpose = purpose}, .detail = detail, .nonce = NewNonce()};
  hello.proof = Proof(key, "hello", BytesOf(hello).substr(0, kProven));
  PSRING_RETURN_IF_ERROR(SendAll(socket, &hello, sizeof hello, deadline));
  Opening answer;
  constexpr absl::string_view kMagic = "psring";
  PSRING_RETURN_IF_ERROR(Receive(socket, deadline, server, kMagic, answer));
  if (answer.version == kVersion && answer.purpose == purpose) return hello;
  if (answer.version == kVersion && answer.purpose == kOtherSecret) return OtherSecret(server);
  if (answer.version == kVersion && (answer.purpose ^ purpose) == kTlsBit) {
    const bool encrypts = (answer.purpose & kTlsBit) != 0;
    return FailedPrecondition(server,
                              encrypts ? " uses --tls, and this process does not; "
                                       : " does not use --tls, and this process does; ",
                              kSameTls);
  }
  return FailedPrecondition(server, " is another version or another service of psring; check the address");
}

// The rest: both sides prove that they have `key` and know the other's nonce.
absl::Status Prove(MemberSocket& socket, const JobSecret& key, const Hello& hello, const std::string& server,
                   MonotonicTime deadline) {
  Answer answer;
  PSRING_RETURN_IF_ERROR(Receive(socket, deadline, server, "", answer));
  const JobSecret::Digest expected = Proof(key, "server", BytesOf(hello), BytesOf(answer.nonce));
  if (!Equal(BytesOf(answer.proof), BytesOf(expected))) {
    // Otherwise the server could not tell this from a lost connection.
    const JobSecret::Digest none = {};
    (void)SendAll(socket, none.data(), none.size(), deadline);
    return OtherSecret(server);
  }
  const JobSecret::Digest proof = Proof(key, "client", BytesOf(hello), BytesOf(answer.nonce));
  return SendAll(socket, proof.data(), proof.size(), deadline);
}

// The client's side. `tls`: null: the connection is not encrypted.
absl::Status Authenticate(MemberSocket& socket, const Credentials& credentials,
                          const std::shared_ptr<TlsContext>& tls, const std::string& server,
                          MonotonicTime deadline, uint64_t detail) {
  PSRING_RETURN_IF_ERROR(CheckCredentials(credentials));
  JobSecret key = KeyOf(credentials, socket.fd(), Side::kClient);
  PSRING_ASSIGN_OR_RETURN(
      const Hello hello,
      Greet(socket, key, PurposeByte(credentials.purpose, tls != nullptr), detail, server, deadline));
  if (tls != nullptr) {
    PSRING_ASSIGN_OR_RETURN(TlsHandshake handshake,
                            EncryptTo(socket.TakeDescriptor(), tls, server, deadline));
    key = Bound(key, handshake.binding());
    socket = handshake.Take();
  }
  return Prove(socket, key, hello, server, deadline);
}

}  // namespace

std::string NewListenerToken() {
  constexpr size_t kTokenDigits = 32;
  return RandomToken(kTokenDigits);
}

absl::Status CheckCredentials(const Credentials& credentials) {
  if (credentials.secret.is_set()) return absl::OkStatus();
  return FailedPrecondition("this process has no job secret, so it cannot authenticate connections");
}

absl::Status AuthenticateTo(int socket, const Credentials& credentials, const std::string& server,
                            MonotonicTime deadline, uint64_t detail) {
  MemberSocket borrowed{FileDescriptor(socket)};
  const absl::Status status = Authenticate(borrowed, credentials, nullptr, server, deadline, detail);
  (void)borrowed.TakeDescriptor().release();
  return status;
}

absl::StatusOr<MemberSocket> AuthenticateTcp(FileDescriptor socket, const Credentials& credentials,
                                             const std::string& server, MonotonicTime deadline,
                                             uint64_t detail) {
  MemberSocket member(std::move(socket));
  PSRING_RETURN_IF_ERROR(
      Authenticate(member, credentials, credentials.secret.tls(), server, deadline, detail));
  return member;
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

bool SeenNonces::Insert(const Nonce& nonce) {
  if (older_.contains(nonce) || !recent_.insert(nonce).second) return false;
  if (recent_.size() >= kMaxNonces) older_ = std::exchange(recent_, {});
  return true;
}

short ServerHandshake::events() const { return tls_.has_value() ? tls_->events() : short{POLLIN}; }

uint64_t ServerHandshake::detail() const {
  uint64_t detail = 0;
  std::memcpy(&detail, hello_.data() + offsetof(Hello, detail), sizeof detail);
  return detail;
}

ServerHandshake::State ServerHandshake::Advance(const Credentials& credentials, SeenNonces& seen) {
  static_assert(kHelloBytes == sizeof(Hello) && kProofBytes == sizeof(JobSecret::Digest));
  State state = State::kAuthenticated;  // of the stage
  if (stage_ == Stage::kHello) {
    state = Receive(hello_.data(), hello_.size());
    const Opening expected;
    const size_t compared = std::min(received_, offsetof(Opening, purpose));
    if (std::memcmp(hello_.data(), &expected, compared) != 0) state = State::kAuthenticated;  // to answer it
    if (state == State::kAuthenticated) state = AnswerHello(credentials, seen);
  }
  if (state == State::kAuthenticated && stage_ == Stage::kEncrypt) state = Encrypt();
  if (state != State::kAuthenticated) return state;
  state = Receive(proof_.data(), proof_.size());
  if (state != State::kAuthenticated) return state;
  if (!Equal(BytesOf(proof_), expected_proof_)) return Reject(Reason::kSecret);
  return is_report_ ? State::kReport : State::kAuthenticated;
}

ServerHandshake::State ServerHandshake::Receive(char* message, size_t bytes) {
  while (received_ < bytes) {
    const absl::StatusOr<size_t> got = socket_.Receive(message + received_, bytes - received_);
    if (!got.ok()) return Reject(Reason::kIncomplete);
    if (*got == 0) return State::kPending;
    received_ += *got;
  }
  return State::kAuthenticated;
}

// The answers fit into the empty buffer of a new socket.
ServerHandshake::State ServerHandshake::AnswerHello(const Credentials& credentials, SeenNonces& seen) {
  Hello hello;
  std::memcpy(&hello, hello_.data(), sizeof hello);
  is_report_ = hello.opening.purpose == static_cast<uint8_t>(Purpose::kOtherTls);
  const std::shared_ptr<TlsContext> tls =
      !is_report_ && IsTcp(socket_.fd()) ? credentials.secret.tls() : nullptr;
  Opening answer = {.purpose =
                        PurposeByte(is_report_ ? Purpose::kOtherTls : credentials.purpose, tls != nullptr)};
  const bool is_understood = BytesOf(hello.opening) == BytesOf(answer);
  if (is_understood) {
    key_ = is_report_ ? ForReports(credentials.secret) : KeyOf(credentials, socket_.fd(), Side::kServer);
    const JobSecret::Digest expected = Proof(key_, "hello", BytesOf(hello).substr(0, kProven));
    if (!Equal(BytesOf(hello.proof), BytesOf(expected)) || !seen.Insert(hello.nonce)) {
      answer.purpose = kOtherSecret;
    }
  }
  const absl::StatusOr<size_t> sent = socket_.Send(&answer, sizeof answer);
  if (answer.purpose == kOtherSecret) return Reject(Reason::kSecret);
  if (!is_understood) {
    const bool differs_in_tls = BytesOf(hello.opening).substr(0, offsetof(Opening, purpose)) ==
                                    BytesOf(answer).substr(0, offsetof(Opening, purpose)) &&
                                (hello.opening.purpose ^ answer.purpose) == kTlsBit;
    return Reject(!differs_in_tls ? Reason::kSecret : tls != nullptr ? Reason::kNoTls : Reason::kTls);
  }
  if (sent.value_or(0) != sizeof answer) return Reject(Reason::kIncomplete);
  received_ = 0;
  if (tls == nullptr) return Challenge();
  stage_ = Stage::kEncrypt;
  tls_.emplace(tls, TlsHandshake::Role::kServer, socket_.TakeDescriptor());
  return State::kAuthenticated;
}

ServerHandshake::State ServerHandshake::Encrypt() {
  const absl::StatusOr<bool> complete = tls_->Advance();
  if (complete.ok() && !*complete) return State::kPending;
  if (!complete.ok()) {
    return Reject(absl::IsUnavailable(complete.status()) ? Reason::kIncomplete : Reason::kCertificate);
  }
  key_ = Bound(key_, tls_->binding());
  socket_ = tls_->Take();
  tls_.reset();
  return Challenge();
}

ServerHandshake::State ServerHandshake::Challenge() {
  const absl::string_view hello(hello_.data(), hello_.size());
  Answer answer = {.nonce = NewNonce()};
  answer.proof = Proof(key_, "server", hello, BytesOf(answer.nonce));
  expected_proof_ = std::string(BytesOf(Proof(key_, "client", hello, BytesOf(answer.nonce))));
  stage_ = Stage::kProof;
  const absl::StatusOr<size_t> sent = socket_.Send(&answer, sizeof answer);
  return sent.value_or(0) == sizeof answer ? State::kAuthenticated : Reject(Reason::kIncomplete);
}

}  // namespace psring
