// PEM files as a site has them, for --tls CERT,KEY,CA.
#pragma once

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/wall_time.h"
#include "common/net/tls.h"
#include "common/net/tls/tls_certificate.h"

namespace psring {

// A CA, whose key is derived from `secret`, and its certificates, in an existing folder.
class SiteCertificates {
 public:
  SiteCertificates(std::string folder, const JobSecret& secret)
      : folder_(std::move(folder)),
        authority_(
            *MakeAuthority(AuthoritySeed(secret), absl::StrCat("site ", secret.Derived("name").Hex()))) {
    Write(ca(), 0644, [&](FILE* file) { return PEM_write_X509(file, authority_.certificate.get()); });
  }

  std::string ca() const { return absl::StrCat(folder_, "/ca.pem"); }
  std::string certificate(const std::string& name) const { return absl::StrCat(folder_, "/", name, ".pem"); }
  std::string key(const std::string& name) const { return absl::StrCat(folder_, "/", name, ".key"); }

  // Creates the files of a member; returns the value of --tls.
  std::string Issue(const std::string& name, absl::Time begin = WallNow() - absl::Hours(1),
                    absl::Time end = WallNow() + absl::Hours(1)) const {
    const KeyPtr key_of_it = *NewKey();
    const CertificatePtr made = *psring::Issue(authority_, *key_of_it, begin, end);
    Write(certificate(name), 0644, [&](FILE* file) { return PEM_write_X509(file, made.get()); });
    Write(key(name), 0600, [&](FILE* file) {
      return PEM_write_PrivateKey(file, key_of_it.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    return absl::StrCat(certificate(name), ",", key(name), ",", ca());
  }

 private:
  template <typename Writer>
  static void Write(const std::string& path, mode_t mode, const Writer& writer) {
    FILE* const file = std::fopen(path.c_str(), "w");
    ASSERT_NE(file, nullptr) << path;
    EXPECT_EQ(writer(file), 1);
    EXPECT_EQ(std::fclose(file), 0);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
  }

  const std::string folder_;
  const Authority authority_;
};

}  // namespace psring
