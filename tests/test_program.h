// Linked into every test program.
#pragma once

namespace psring {

// Runs the tests that the arguments select. With PSRING_SKIPPED_EXIT_CODE in the environment, which ctest
// sets, that is the exit code if tests were skipped and none failed. A test that crashes is named on stderr.
int RunTests(int argc, char** argv);

}  // namespace psring
