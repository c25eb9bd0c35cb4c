// Checks a student's solution, compiled as a library, and prints TAP: exercise ring|ssp LIBRARY. Exits with 1
// if the solution is wrong, and with 2 if the library cannot be loaded or lacks the function. ../exercise
// compiles and calls this.
#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/base/dynamic_library.h"
#include "experiments/lecture/checks/checks.h"

namespace psring {
namespace {

absl::StatusOr<std::vector<TapPoint>> CheckSolution(const std::string& exercise, const std::string& path) {
  PSRING_ASSIGN_OR_RETURN(const DynamicLibrary library, DynamicLibrary::Open({path}));
  if (exercise == "ring") {
    decltype(&ListRounds) solution = nullptr;
    PSRING_RETURN_IF_ERROR(library.Bind("ListRounds", solution));
    return CheckRing(solution);
  }
  decltype(&MayContinue) solution = nullptr;
  PSRING_RETURN_IF_ERROR(library.Bind("MayContinue", solution));
  return CheckSsp(solution);
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) {
  const std::string exercise = argc == 3 ? argv[1] : "";
  if (exercise != "ring" && exercise != "ssp") {
    std::fputs("usage: exercise ring|ssp LIBRARY\n", stderr);
    return 2;
  }
  const auto points = psring::CheckSolution(exercise, argv[2]);
  if (!points.ok()) {
    std::fprintf(stderr, "exercise: %s\n", std::string(points.status().message()).c_str());
    return 2;
  }
  const bool printed = std::fputs(psring::TapText(*points).c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return printed && psring::AllPassed(*points) ? 0 : 1;
}
