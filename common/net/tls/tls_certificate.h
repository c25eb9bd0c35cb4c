// Certificates and keys for TLS: those of a job, which exist only in memory, and those of PEM files.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace psring {

struct OpenSslDelete {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using CertificatePtr = std::unique_ptr<X509, OpenSslDelete>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpenSslDelete>;

struct Authority {
  CertificatePtr certificate;  // self-signed
  KeyPtr key;
};

// A CA whose Ed25519 key is `seed`: the same seed and name, of at most 64 characters, give the same CA.
// Unavailable: this OpenSSL has no Ed25519.
absl::StatusOr<Authority> MakeAuthority(const std::array<uint8_t, 32>& seed, const std::string& name);
// A new Ed25519 key.
absl::StatusOr<KeyPtr> NewKey();
// A certificate for the key, signed by the CA, valid from `begin` to `end`.
absl::StatusOr<CertificatePtr> Issue(const Authority& authority, EVP_PKEY& key, absl::Time begin,
                                     absl::Time end);

struct LoadedCertificates {
  std::vector<CertificatePtr> chain;  // the process's own certificate, then intermediate ones
  KeyPtr key;
  std::vector<CertificatePtr> authorities;
};

// From PEM files. Checks that the key belongs to the certificate, and that the CA accepts the certificate
// now, for clients and servers. The key must not be accessible to other users. FailedPrecondition names the
// file.
absl::StatusOr<LoadedCertificates> LoadCertificates(const std::string& certificate, const std::string& key,
                                                    const std::string& authority);

}  // namespace psring
