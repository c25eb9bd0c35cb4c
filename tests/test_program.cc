#include "tests/test_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace {

// Processes that a test starts do not use the user's own secret file.
[[maybe_unused]] const int set = setenv("PSRING_SECRET", "00112233445566778899aabbccddeeff", /*overwrite=*/1);

}  // namespace

int psring::RunTests(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const int code = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  const bool skipped = all.skipped_test_count() > 0 || all.successful_test_count() == 0;
  const char* const code_of_skipped = std::getenv("PSRING_SKIPPED_EXIT_CODE");
  return code == 0 && skipped && code_of_skipped != nullptr ? std::atoi(code_of_skipped) : code;
}

// Of programs that have no other.
[[gnu::weak]] int main(int argc, char** argv) { return psring::RunTests(argc, argv); }
