// The secret that all processes of a job share. It authenticates their connections (authentication.h) and is
// never sent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/own_process.h"

namespace psring {

class TlsContext;

// 128 bits. A default-constructed secret is not set: connections cannot be authenticated with it.
class JobSecret {
 public:
  using Digest = std::array<uint8_t, 32>;

  JobSecret() = default;
  static JobSecret Random();
  // InvalidArgument unless `text` is 32 hexadecimal digits. The message does not contain `text`.
  static absl::StatusOr<JobSecret> FromHex(absl::string_view text);

  bool is_set() const { return set_; }
  std::string Hex() const;  // empty if it is not set
  // HMAC-SHA256 of `message` with this secret, which is set, as the key.
  Digest Sign(absl::string_view message) const;
  // The secret of a part of the job, such as one mesh. `label` names the part; labels differ between parts.
  JobSecret Derived(absl::string_view label) const;

  // The same secret with which TCP connections are also encrypted (tls.h); so is what is derived from it.
  JobSecret WithTls(std::shared_ptr<TlsContext> tls) const;
  // Null: they are not encrypted.
  const std::shared_ptr<TlsContext>& tls() const { return tls_; }

 private:
  std::array<uint8_t, 16> bytes_ = {};
  bool set_ = false;
  std::shared_ptr<TlsContext> tls_;
};

// How a process started by psring's launcher gets the secret, and where a user puts one. Never a flag: other
// users of the machine can read command lines.
inline constexpr char kSecretVariable[] = "PSRING_SECRET";           // 32 hexadecimal digits
inline constexpr char kSecretFileVariable[] = "PSRING_SECRET_FILE";  // the path of a file that contains them

// The secret of this process's job, from the first of: PSRING_SECRET; the file PSRING_SECRET_FILE; the user's
// own file, $XDG_CONFIG_HOME/psring/secret or ~/.config/psring/secret, which is created on first use. So
// processes of one user on one machine, or with a shared home, need no configuration. Errors say what to do.
// Files must not be readable by other users (FailedPrecondition).
absl::StatusOr<JobSecret> LoadJobSecret(const GetEnv& get_env);

// "PSRING_SECRET=...", for a child's environment.
std::string SecretEnvironment(const JobSecret& secret);

}  // namespace psring
