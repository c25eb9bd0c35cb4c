#include <gtest/gtest.h>

#include <cstdlib>

namespace psring {
namespace {

TEST(TestProgram, NamesTheTestThatCrashes) {
  EXPECT_DEATH(std::abort(), "\\[ CRASHED  \\] TestProgram\\.NamesTheTestThatCrashes");
}

}  // namespace
}  // namespace psring
