#include "common/net/job_secret.h"

#include <fcntl.h>
#include <openssl/hmac.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/file_descriptor.h"
#include "common/io/private_file.h"
#include "common/net/random_token.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr size_t kMaxFileBytes = 4096;

absl::Status CannotUse(const std::string& why) {
  return FailedPrecondition(
      why, "; set ", kSecretFileVariable,
      " to a file of mode 0600 with 32 hexadecimal digits, the same for all processes of the job");
}

absl::Status CannotCreate(const std::string& path) {
  return CannotUse(Tr("cannot create $0: $1", path, Translation(std::strerror(errno))));
}

// NotFound: there is no such file.
absl::StatusOr<JobSecret> ReadSecretFile(const std::string& path) {
  const absl::StatusOr<std::string> text =
      ReadPrivateFile(path, absl::StrCat("the job's secret in ", path), kMaxFileBytes);
  if (absl::IsUnavailable(text.status())) return CannotUse(std::string(text.status().message()));
  PSRING_RETURN_IF_ERROR(text.status());
  absl::StatusOr<JobSecret> secret = JobSecret::FromHex(absl::StripAsciiWhitespace(*text));
  if (secret.ok()) return secret;
  return FailedPrecondition("the job's secret in ", path, " ", secret.status().message());
}

// Existing folders keep their modes.
bool MakeFolder(const std::string& path) { return mkdir(path.c_str(), 0700) == 0 || errno == EEXIST; }

// Writes a new secret to `path`, unless another process does so first. link(2) makes it appear complete.
absl::Status CreateSecretFile(const std::string& path) {
  const std::string temporary = absl::StrCat(path, "-", RandomToken(16));
  const FileDescriptor fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return CannotCreate(path);
  const std::string text = absl::StrCat(JobSecret::Random().Hex(), "\n");
  const bool written = fchmod(fd.get(), 0600) == 0 &&
                       write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       fsync(fd.get()) == 0;
  const bool linked = written && (link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const absl::Status status = linked ? absl::OkStatus() : CannotCreate(path);
  (void)unlink(temporary.c_str());
  return status;
}

absl::StatusOr<JobSecret> OwnSecret(const std::string& config) {
  const std::string folder = absl::StrCat(config, "/psring"), path = absl::StrCat(folder, "/secret");
  absl::StatusOr<JobSecret> secret = ReadSecretFile(path);
  if (!absl::IsNotFound(secret.status())) return secret;
  if (!MakeFolder(config) || !MakeFolder(folder)) return CannotCreate(path);
  PSRING_RETURN_IF_ERROR(CreateSecretFile(path));
  return ReadSecretFile(path);
}

}  // namespace

JobSecret JobSecret::Random() {
  JobSecret secret;
  FillWithRandom(secret.bytes_.data(), secret.bytes_.size());
  secret.set_ = true;
  return secret;
}

absl::StatusOr<JobSecret> JobSecret::FromHex(absl::string_view text) {
  JobSecret secret;
  if (text.size() != 2 * secret.bytes_.size() ||
      !std::all_of(text.begin(), text.end(), absl::ascii_isxdigit)) {
    return InvalidArgument("is not 32 hexadecimal digits");
  }
  std::memcpy(secret.bytes_.data(), absl::HexStringToBytes(text).data(), secret.bytes_.size());
  secret.set_ = true;
  return secret;
}

std::string JobSecret::Hex() const {
  if (!set_) return "";
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes_.data()), bytes_.size()});
}

JobSecret::Digest JobSecret::Sign(absl::string_view message) const {
  PSRING_CHECK(set_);
  Digest digest;
  unsigned int bytes = 0;
  PSRING_CHECK(HMAC(EVP_sha256(), bytes_.data(), static_cast<int>(bytes_.size()),
                    reinterpret_cast<const uint8_t*>(message.data()), message.size(), digest.data(),
                    &bytes) != nullptr);
  PSRING_CHECK(bytes == digest.size());
  return digest;
}

JobSecret JobSecret::WithTls(std::shared_ptr<TlsContext> tls) const {
  JobSecret secret = *this;
  secret.tls_ = std::move(tls);
  return secret;
}

JobSecret JobSecret::Derived(absl::string_view label) const {
  JobSecret secret = *this;
  const Digest digest = Sign(absl::StrCat("psring derived ", label));
  std::copy_n(digest.begin(), secret.bytes_.size(), secret.bytes_.begin());
  return secret;
}

absl::StatusOr<JobSecret> LoadJobSecret(const GetEnv& get_env) {
  if (const std::string text = get_env(kSecretVariable).value_or(""); !text.empty()) {
    absl::StatusOr<JobSecret> secret = JobSecret::FromHex(text);
    if (secret.ok()) return secret;
    return InvalidArgument(kSecretVariable, " ", secret.status().message());
  }
  if (const std::string path = get_env(kSecretFileVariable).value_or(""); !path.empty()) {
    absl::StatusOr<JobSecret> secret = ReadSecretFile(path);
    if (!absl::IsNotFound(secret.status())) return secret;
    return FailedPrecondition(kSecretFileVariable, " names ", path, ", and there is no such file");
  }
  std::string config = get_env("XDG_CONFIG_HOME").value_or("");
  if (config.empty()) {
    const std::string home = get_env("HOME").value_or("");
    if (home.empty()) return CannotUse("there is no home folder for the job's secret");
    config = absl::StrCat(home, "/.config");
  }
  return OwnSecret(config);
}

std::string SecretEnvironment(const JobSecret& secret) {
  return absl::StrCat(kSecretVariable, "=", secret.Hex());
}

}  // namespace psring
