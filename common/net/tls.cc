#include "common/net/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/wall_time.h"
#include "common/net/tcp_socket.h"
#include "common/net/tls/socket_bio.h"
#include "common/net/tls/tls_certificate.h"
#include "common/net/tls/tls_relay.h"

namespace psring {
namespace {

constexpr absl::Duration kBeforeNow = absl::Hours(24);  // clocks of machines may differ
constexpr absl::Duration kValidFor = absl::Hours(24 * 30);
constexpr char kLabel[] = "EXPORTER-psring";
constexpr size_t kBindingBytes = 32;

absl::StatusOr<SslContextPtr> NewContext() {
  SslContextPtr context(SSL_CTX_new(TLS_method()));
  SSL_CTX* const ssl = context.get();
  if (ssl == nullptr || SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(
          ssl, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") != 1) {
    ERR_clear_error();
    return Unavailable("--tls: this OpenSSL has no TLS 1.3");
  }
  SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // Each connection has its own handshake: no session is resumed.
  SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(ssl, 0);
  SSL_CTX_set_mode(ssl, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return context;
}

// Alerts (RFC 8446, 6.2) by which a peer rejects a certificate.
bool IsAboutCertificates(int alert) {
  return (alert >= 41 && alert <= 46) || alert == 48 || alert == 49 || alert == 51 || alert == 116;
}

}  // namespace

struct TlsContext::State {
  bool is_auto() const { return job.has_value(); }
  // A connection; null if memory is exhausted. In a job that runs for long, new connections need certificates
  // that have not expired.
  SslPtr NewSsl() const {
    SslPtr ssl(SSL_new(context.get()));
    if (ssl == nullptr || !is_auto()) return ssl;
    const absl::StatusOr<CertificatePtr> own =
        Issue(*job, *key, WallNow() - kBeforeNow, WallNow() + kValidFor);
    const bool used = own.ok() && SSL_use_certificate(ssl.get(), own->get()) == 1 &&
                      SSL_use_PrivateKey(ssl.get(), key.get()) == 1;
    return used ? std::move(ssl) : nullptr;
  }

  SslContextPtr context;
  std::optional<Authority> job;  // --tls auto
  KeyPtr key;
  std::string authority;  // the CA's file, or empty
  int64_t rekey_bytes = 0;
  std::shared_ptr<TlsRelays> relays = std::make_shared<TlsRelays>();
};

TlsContext::TlsContext(std::unique_ptr<State> state) : state_(std::move(state)) {}
TlsContext::~TlsContext() = default;

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Make(const std::string& choice,
                                                             const JobSecret& secret, int64_t rekey_bytes) {
  auto state = std::make_unique<State>();
  state->rekey_bytes = rekey_bytes;
  PSRING_ASSIGN_OR_RETURN(state->context, NewContext());
  SSL_CTX* const context = state->context.get();
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  bool used = true;
  if (choice == "auto") {
    PSRING_ASSIGN_OR_RETURN(state->job, MakeAuthority(AuthoritySeed(secret), "psring job"));
    PSRING_ASSIGN_OR_RETURN(state->key, NewKey());
    used = X509_STORE_add_cert(store, state->job->certificate.get()) == 1 && state->NewSsl() != nullptr;
  } else {
    const std::vector<std::string> paths = absl::StrSplit(choice, ',');
    if (paths.size() != 3) return InvalidArgument("--tls: give auto or CERT,KEY,CA");
    PSRING_ASSIGN_OR_RETURN(LoadedCertificates site, LoadCertificates(paths[0], paths[1], paths[2]));
    for (const CertificatePtr& authority : site.authorities) {
      used = used && X509_STORE_add_cert(store, authority.get()) == 1;
    }
    used = used && SSL_CTX_use_certificate(context, site.chain.front().get()) == 1 &&
           SSL_CTX_use_PrivateKey(context, site.key.get()) == 1;
    for (size_t i = 1; i < site.chain.size(); ++i) {
      used = used && SSL_CTX_add1_chain_cert(context, site.chain[i].get()) == 1;
    }
    state->authority = paths[2];
  }
  if (!used) {
    const std::string why = ERR_reason_error_string(ERR_peek_last_error()) != nullptr
                                ? ERR_reason_error_string(ERR_peek_last_error())
                                : "out of memory";
    ERR_clear_error();
    return FailedPrecondition("--tls: OpenSSL does not accept it: ", why);
  }
  return std::shared_ptr<TlsContext>(new TlsContext(std::move(state)));
}

JobSecret::Digest AuthoritySeed(const JobSecret& secret) { return secret.Derived("tls ca").Sign("Ed25519"); }

absl::StatusOr<JobSecret> WithTls(const JobSecret& secret, const std::string& choice) {
  if (choice.empty()) return secret;
  PSRING_ASSIGN_OR_RETURN(std::shared_ptr<TlsContext> context, TlsContext::Make(choice, secret));
  return secret.WithTls(std::move(context));
}

absl::StatusOr<JobSecret> LoadJobSecret(const GetEnv& get_env, const std::string& choice) {
  PSRING_ASSIGN_OR_RETURN(const JobSecret secret, LoadJobSecret(get_env));
  return WithTls(secret, choice);
}

TlsHandshake::TlsHandshake(std::shared_ptr<TlsContext> context, Role role, FileDescriptor socket)
    : context_(std::move(context)),
      role_(role),
      socket_(std::move(socket)),
      ssl_(context_->state_->NewSsl().release(), SSL_free),
      events_(role == Role::kClient ? POLLOUT : POLLIN) {
  if (ssl_ == nullptr) return;
  BIO* const bio = SocketBio::New(socket_.get());
  if (bio == nullptr) {
    ssl_.reset();
    return;
  }
  SSL_set_bio(ssl_.get(), bio, bio);
  role == Role::kClient ? SSL_set_connect_state(ssl_.get()) : SSL_set_accept_state(ssl_.get());
}

TlsHandshake::~TlsHandshake() = default;

absl::StatusOr<bool> TlsHandshake::Advance() {
  const absl::Status no_memory = ResourceExhausted("cannot be encrypted: this process has too little memory");
  ERR_clear_error();
  if (ssl_ == nullptr) return no_memory;
  if (stage_ != Stage::kReady) {
    if (const int result = SSL_do_handshake(ssl_.get()); result != 1) {
      PSRING_RETURN_IF_ERROR(Explain(result));
      return false;
    }
    stage_ = Stage::kReady;
  }
  // The server's first byte says that it has accepted the client's certificate.
  char ready = 'r';
  const int result =
      role_ == Role::kServer ? SSL_write(ssl_.get(), &ready, 1) : SSL_read(ssl_.get(), &ready, 1);
  if (result != 1) {
    PSRING_RETURN_IF_ERROR(Explain(result));
    return false;
  }
  binding_.resize(kBindingBytes);
  if (SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(binding_.data()),
                                 binding_.size(), kLabel, std::strlen(kLabel), nullptr, 0, 0) != 1) {
    ERR_clear_error();
    return no_memory;
  }
  stage_ = Stage::kComplete;
  return true;
}

absl::Status TlsHandshake::Explain(int result) {
  constexpr char kClosed[] = "closed the connection during the TLS handshake";
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      events_ = POLLIN;
      return absl::OkStatus();
    case SSL_ERROR_WANT_WRITE:
      events_ = POLLOUT;
      return absl::OkStatus();
    case SSL_ERROR_SSL:
      break;
    default:
      ERR_clear_error();
      return Unavailable(kClosed);
  }
  const unsigned long error = ERR_peek_last_error();  // the earlier ones are its details
  const int reason = ERR_GET_REASON(error);
  const char* const text = ERR_reason_error_string(error);
  const std::string why = text != nullptr ? text : absl::StrCat("reason ", reason);
  ERR_clear_error();
  if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) return Unavailable(kClosed);
  const int alert = reason - SSL_AD_REASON_OFFSET;
  const bool is_theirs = reason == SSL_R_CERTIFICATE_VERIFY_FAILED;
  if (is_theirs || IsAboutCertificates(alert)) return Rejected(is_theirs, why);
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return PermissionDenied("has sent no certificate; ", kSameTls);
  }
  return FailedPrecondition("does not agree on TLS 1.3 (", why, ")");
}

absl::Status TlsHandshake::Rejected(bool is_theirs, const std::string& why) const {
  const TlsContext::State& state = *context_->state_;
  const std::string reason =
      is_theirs ? X509_verify_cert_error_string(SSL_get_verify_result(ssl_.get())) : why;
  if (state.is_auto()) {
    return PermissionDenied("has another job's secret or another --tls (", reason,
                            "); give all processes the same ", kSecretFileVariable, " and --tls auto");
  }
  return PermissionDenied(is_theirs
                              ? absl::StrCat("has a certificate that ", state.authority, " does not accept (",
                                             reason, "); give all processes certificates of the same CA")
                              : absl::StrCat("does not accept this process's certificate (", reason,
                                             "); give all processes certificates of the same CA"));
}

MemberSocket TlsHandshake::Take() {
  PSRING_CHECK(stage_ == Stage::kComplete && ssl_ != nullptr);
  const TlsContext::State& state = *context_->state_;
  auto session = std::make_unique<TlsSession>(SslPtr(ssl_.release()), socket_.get(), state.rekey_bytes);
  return MemberSocket(std::move(socket_), std::move(session), state.relays);
}

absl::StatusOr<TlsHandshake> EncryptTo(FileDescriptor socket, const std::shared_ptr<TlsContext>& context,
                                       const std::string& server, MonotonicTime deadline) {
  TlsHandshake handshake(context, TlsHandshake::Role::kClient, std::move(socket));
  while (true) {
    const absl::StatusOr<bool> complete = handshake.Advance();
    if (!complete.ok()) return Prefixed(complete.status(), server, " ");
    if (*complete) return handshake;
    PSRING_RETURN_IF_ERROR(AwaitSocket(handshake.socket(), handshake.events(), deadline, server));
  }
}

}  // namespace psring
