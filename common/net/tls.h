// TLS 1.3 with mutual certificates for a job's TCP connections (--tls). The job's own authentication
// (authentication.h) follows inside the encrypted connection; security.md describes both.
//
// A context is attached to the job's secret (JobSecret::WithTls), so that whatever authenticates connections
// with the secret also encrypts them: their MemberSocket calls OpenSSL directly on the TCP connection. gRPC
// takes a socket only in clear text (MemberSocket::TakeClearText).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"
#include "common/net/job_secret.h"
#include "common/net/tls/member_socket.h"

namespace CLI {
class App;
}

struct ssl_st;

namespace psring {

// Adds --tls to a command that is not a training (those: options/training_flags.cc).
void AddTlsFlag(CLI::App& app, std::string& choice);
extern const char kTlsHelp[];
// For CLI11: empty if `text` is a value of --tls.
std::string CheckTls(const std::string& text);

// The secret with a context for `choice`, the value of --tls; "": the secret itself. FailedPrecondition and
// InvalidArgument name the file and say what to do.
absl::StatusOr<JobSecret> WithTls(const JobSecret& secret, const std::string& choice);
// The same of this process's job: LoadJobSecret(get_env).
absl::StatusOr<JobSecret> LoadJobSecret(const GetEnv& get_env, const std::string& choice);

// For `auto`: the key of the CA.
JobSecret::Digest AuthoritySeed(const JobSecret& secret);

// What a peer has to change, at the end of error messages.
inline constexpr char kSameTls[] = "give --tls to all processes of the job, or omit it for all";

// The certificate of this process, the CA of the job's certificates, and the threads of gRPC's connections.
// Thread-safe.
class TlsContext {
 public:
  // "auto": a CA that all processes derive from the job's secret, and a new key. "CERT,KEY,CA": PEM files.
  // A connection's key is replaced after `rekey_bytes` (AES-GCM's limit is about 2^38 bytes for one key).
  static absl::StatusOr<std::shared_ptr<TlsContext>> Make(const std::string& choice, const JobSecret& secret,
                                                          int64_t rekey_bytes = int64_t{1} << 36);
  // gRPC's connections end with their context: keep a secret that has it while they are used. Delivers what
  // has been written into them for at most 5 s, then closes them.
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsHandshake;
  struct State;
  explicit TlsContext(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

// The handshake on a non-blocking TCP connection. It never waits.
class TlsHandshake {
 public:
  enum class Role { kClient, kServer };

  TlsHandshake(std::shared_ptr<TlsContext> context, Role role, FileDescriptor socket);
  TlsHandshake(TlsHandshake&&) = default;
  ~TlsHandshake();

  int socket() const { return socket_.get(); }
  // The events of poll() after which to call Advance again.
  short events() const { return events_; }

  // True: complete. Messages continue a sentence about the peer. PermissionDenied: a certificate is not
  // accepted. FailedPrecondition: the peer does not use TLS 1.3. Unavailable: it closed the connection.
  absl::StatusOr<bool> Advance();

  // After completion: the connection.
  MemberSocket Take();
  // After completion: bytes that only the two ends of this connection know.
  const std::string& binding() const { return binding_; }

 private:
  enum class Stage { kHandshake, kReady, kComplete };

  // Of the last call, which returned `result`; OK: it must be repeated after events().
  absl::Status Explain(int result);
  // `is_theirs`: this side rejects the peer's certificate, else the reverse.
  absl::Status Rejected(bool is_theirs, const std::string& why) const;

  std::shared_ptr<TlsContext> context_;
  Role role_;
  FileDescriptor socket_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  Stage stage_ = Stage::kHandshake;
  short events_;
  std::string binding_;
};

// The client's complete handshake, until `deadline`. `server` begins the errors' messages.
absl::StatusOr<TlsHandshake> EncryptTo(FileDescriptor socket, const std::shared_ptr<TlsContext>& context,
                                       const std::string& server, MonotonicTime deadline);

}  // namespace psring
