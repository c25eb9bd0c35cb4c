// Starts psring and its trainer in tests, whose CMakeLists.txt defines PSRING_BINARY and PSRING_TRAINER.
#pragma once

#include "tests/experiments/started.h"

namespace psring {

inline std::unique_ptr<Started> StartPsring(const std::string& arguments,
                                            const std::vector<std::string>& environment = {},
                                            const ChildNetwork& place = {}) {
  return StartProgram(PSRING_BINARY, arguments, environment, place);
}
inline std::unique_ptr<Started> StartTrainer(const std::string& arguments,
                                             const std::vector<std::string>& environment = {},
                                             const ChildNetwork& place = {}) {
  return StartProgram(PSRING_TRAINER, arguments, environment, place);
}

}  // namespace psring
