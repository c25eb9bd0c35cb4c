// Matchers of texts: EXPECT_THAT(text, Has("a", "b")) expects every part, Lacks("a", "b") none of them,
// IsOneLine() exactly one newline, OneLineWith("a") both that and the parts. EXPECT_THAT(status, Fails(code,
// "a")) expects a status with this code and the parts in its message.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/status/status.h"

namespace psring {

template <typename... Parts>
auto Has(const Parts&... parts) {
  return testing::AllOf(testing::HasSubstr(std::string(parts))...);
}

template <typename... Parts>
auto Lacks(const Parts&... parts) {
  return testing::AllOf(testing::Not(testing::HasSubstr(std::string(parts)))...);
}

inline auto IsOneLine() {
  return testing::ResultOf([](const std::string& text) { return std::ranges::count(text, '\n'); }, 1);
}

template <typename... Parts>
auto OneLineWith(const Parts&... parts) {
  return testing::AllOf(IsOneLine(), Has(parts...));
}

template <typename... Parts>
auto Fails(absl::StatusCode code, const Parts&... parts) {
  return testing::AllOf(
      testing::Property(&absl::Status::code, code),
      testing::ResultOf([](const absl::Status& status) { return std::string(status.message()); },
                        Has(parts...)));
}

}  // namespace psring
