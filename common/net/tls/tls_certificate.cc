#include "common/net/tls/tls_certificate.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/io/private_file.h"

namespace psring {
namespace {

constexpr size_t kMaxPemBytes = 1 << 20;

absl::Status NoEd25519() {
  ERR_clear_error();
  return Unavailable("--tls auto: this OpenSSL cannot create Ed25519 certificates; use --tls CERT,KEY,CA");
}

bool AddExtension(X509* certificate, int nid, const char* value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
  const bool added = extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

bool SetTime(ASN1_TIME* time, absl::Time value) {
  return ASN1_TIME_set(time, static_cast<time_t>(absl::ToUnixSeconds(value))) != nullptr;
}

bool SetName(X509_NAME* name, const char* text) {
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(text),
                                    -1, -1, 0) == 1;
}

// The parts that both kinds of certificates have.
CertificatePtr NewCertificate(EVP_PKEY* key, uint64_t serial, const char* name, bool is_authority) {
  CertificatePtr certificate(X509_new());
  X509* const x509 = certificate.get();
  const bool made =
      x509 != nullptr && X509_set_version(x509, 2) == 1 &&
      ASN1_INTEGER_set_uint64(X509_get_serialNumber(x509), serial) == 1 && X509_set_pubkey(x509, key) == 1 &&
      SetName(X509_get_subject_name(x509), name) &&
      AddExtension(x509, NID_basic_constraints, is_authority ? "critical,CA:TRUE" : "critical,CA:FALSE") &&
      AddExtension(x509, NID_key_usage, is_authority ? "critical,keyCertSign" : "critical,digitalSignature");
  return made ? std::move(certificate) : nullptr;
}

absl::Status Refused(const std::string& path, const std::string& why) {
  ERR_clear_error();
  return FailedPrecondition("--tls: ", path, " ", why);
}

struct BioDelete {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using BioPtr = std::unique_ptr<BIO, BioDelete>;

BioPtr Reader(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::StatusOr<std::vector<CertificatePtr>> ReadCertificates(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxPemBytes);
  if (!text.ok()) return FailedPrecondition("--tls: ", text.status().message());
  std::vector<CertificatePtr> certificates;
  const BioPtr reader = Reader(*text);
  while (X509* const next = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(next);
  }
  ERR_clear_error();  // the end of the file
  if (certificates.empty()) return Refused(path, "contains no certificate in PEM format");
  return certificates;
}

absl::StatusOr<KeyPtr> ReadKey(const std::string& path) {
  const absl::StatusOr<std::string> text =
      ReadPrivateFile(path, absl::StrCat("--tls: the key in ", path), kMaxPemBytes);
  if (absl::IsNotFound(text.status())) return Refused(path, "does not exist");
  if (absl::IsUnavailable(text.status())) return FailedPrecondition("--tls: ", text.status().message());
  PSRING_RETURN_IF_ERROR(text.status());
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  KeyPtr key(PEM_read_bio_PrivateKey(Reader(*text).get(), nullptr, no_passphrase, nullptr));
  if (key == nullptr) return Refused(path, "contains no private key in PEM format without a passphrase");
  ERR_clear_error();
  return key;
}

const char* AdviceFor(int error) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "; renew it";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "; check this machine's clock";
    case X509_V_ERR_INVALID_PURPOSE:
      return "; it must be valid for clients and for servers";
    default:
      return "; use a certificate that this CA has issued";
  }
}

// Whether members with these CAs accept the certificate: X509_V_OK or an error.
int Verify(const LoadedCertificates& site, const char* purpose) {
  X509_STORE* const store = X509_STORE_new();
  X509_STORE_CTX* const context = X509_STORE_CTX_new();
  STACK_OF(X509)* const chain = sk_X509_new_null();
  int error = X509_V_ERR_OUT_OF_MEM;
  if (store != nullptr && context != nullptr && chain != nullptr) {
    for (const CertificatePtr& authority : site.authorities) X509_STORE_add_cert(store, authority.get());
    for (const CertificatePtr& one : site.chain) sk_X509_push(chain, one.get());
    if (X509_STORE_CTX_init(context, store, site.chain.front().get(), chain) == 1 &&
        X509_STORE_CTX_set_default(context, purpose) == 1) {
      error = X509_verify_cert(context) == 1 ? X509_V_OK : X509_STORE_CTX_get_error(context);
    }
  }
  sk_X509_free(chain);
  X509_STORE_CTX_free(context);
  X509_STORE_free(store);
  ERR_clear_error();
  return error;
}

}  // namespace

absl::StatusOr<Authority> MakeAuthority(const std::array<uint8_t, 32>& seed, const std::string& name) {
  Authority authority;
  authority.key.reset(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()));
  if (authority.key == nullptr) return NoEd25519();
  authority.certificate = NewCertificate(authority.key.get(), 1, name.c_str(), /*is_authority=*/true);
  X509* const x509 = authority.certificate.get();
  if (x509 == nullptr || ASN1_TIME_set_string(X509_getm_notBefore(x509), "20200101000000Z") != 1 ||
      ASN1_TIME_set_string(X509_getm_notAfter(x509), "99991231235959Z") != 1 ||
      X509_set_issuer_name(x509, X509_get_subject_name(x509)) != 1 ||
      X509_sign(x509, authority.key.get(), nullptr) == 0) {
    return NoEd25519();
  }
  return authority;
}

absl::StatusOr<KeyPtr> NewKey() {
  EVP_PKEY* key = nullptr;
  EVP_PKEY_CTX* const context = EVP_PKEY_CTX_new_id(EVP_PKEY_ED25519, nullptr);
  const bool made =
      context != nullptr && EVP_PKEY_keygen_init(context) == 1 && EVP_PKEY_keygen(context, &key) == 1;
  EVP_PKEY_CTX_free(context);
  if (!made) return NoEd25519();
  return KeyPtr(key);
}

absl::StatusOr<CertificatePtr> Issue(const Authority& authority, EVP_PKEY& key, absl::Time begin,
                                     absl::Time end) {
  uint64_t serial = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) != 1) return NoEd25519();
  CertificatePtr certificate = NewCertificate(&key, serial >> 1, "psring", /*is_authority=*/false);
  X509* const x509 = certificate.get();
  if (x509 == nullptr || !SetTime(X509_getm_notBefore(x509), begin) ||
      !SetTime(X509_getm_notAfter(x509), end) ||
      X509_set_issuer_name(x509, X509_get_subject_name(authority.certificate.get())) != 1 ||
      X509_sign(x509, authority.key.get(), nullptr) == 0) {
    return NoEd25519();
  }
  return certificate;
}

absl::StatusOr<LoadedCertificates> LoadCertificates(const std::string& certificate, const std::string& key,
                                                    const std::string& authority) {
  LoadedCertificates site;
  PSRING_ASSIGN_OR_RETURN(site.chain, ReadCertificates(certificate));
  PSRING_ASSIGN_OR_RETURN(site.key, ReadKey(key));
  PSRING_ASSIGN_OR_RETURN(site.authorities, ReadCertificates(authority));
  if (X509_check_private_key(site.chain.front().get(), site.key.get()) != 1) {
    return Refused(key, absl::StrCat("is not the key of the certificate in ", certificate));
  }
  for (const char* const purpose : {"ssl_client", "ssl_server"}) {
    if (const int error = Verify(site, purpose); error != X509_V_OK) {
      return Refused(certificate, absl::StrCat("is not valid with the CA in ", authority, " (",
                                               X509_verify_cert_error_string(error), ")", AdviceFor(error)));
    }
  }
  return site;
}

}  // namespace psring
