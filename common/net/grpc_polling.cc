#include "common/net/grpc_polling.h"

#include <cstdlib>

namespace psring {

void ChooseGrpcPolling() {
  static const int chosen = setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0);
  (void)chosen;
}

}  // namespace psring
