#include "common/device/thread_failure.h"

namespace psring {

void ExitIfAThreadCannotStart() {}

}  // namespace psring
