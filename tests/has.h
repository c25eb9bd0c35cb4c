// Matchers of texts: EXPECT_THAT(text, Has("a", "b")) expects every part, Lacks("a", "b") none of them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace psring {

template <typename... Parts>
auto Has(const Parts&... parts) {
  return testing::AllOf(testing::HasSubstr(std::string(parts))...);
}

template <typename... Parts>
auto Lacks(const Parts&... parts) {
  return testing::AllOf(testing::Not(testing::HasSubstr(std::string(parts)))...);
}

}  // namespace psring
