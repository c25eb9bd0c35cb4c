#include "tests/test_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace {

// Processes that a test starts do not use the user's own secret file.
[[maybe_unused]] const int set = setenv("PSRING_SECRET", "00112233445566778899aabbccddeeff", /*overwrite=*/1);

char line_of_crash[1024];  // names the test that runs
size_t line_bytes = 0;

class NameRunningTest : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    const int length = std::snprintf(line_of_crash, sizeof(line_of_crash), "[ CRASHED  ] %s.%s\n",
                                     test.test_suite_name(), test.name());
    line_bytes = std::clamp<size_t>(length, 0, sizeof(line_of_crash) - 1);
  }
};

// Only calls what a handler may call. The signal then has its default effect.
void SayWhatCrashed(int signal) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line_of_crash, line_bytes);
  raise(signal);
}

// Of a process that runs several tests, ctest names only their suite. Sanitizers keep their own handlers.
void NameTestsThatCrash() {
  testing::UnitTest::GetInstance()->listeners().Append(new NameRunningTest);
  for (const int signal : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV}) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;
    action.sa_handler = SayWhatCrashed;
    action.sa_flags = SA_RESETHAND;
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace

int psring::RunTests(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  NameTestsThatCrash();
  const int code = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  const bool skipped = all.skipped_test_count() > 0 || all.successful_test_count() == 0;
  const char* const code_of_skipped = std::getenv("PSRING_SKIPPED_EXIT_CODE");
  return code == 0 && skipped && code_of_skipped != nullptr ? std::atoi(code_of_skipped) : code;
}

// Of programs that have no other.
[[gnu::weak]] int main(int argc, char** argv) { return psring::RunTests(argc, argv); }
