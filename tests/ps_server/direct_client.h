// A client in the server's process, without a network.
#pragma once

#include <memory>

#include "ps_server/client/ps_client.h"
#include "ps_server/server/parameter_server.h"

namespace psring {

// Calls `server`, which outlives the client, directly: passes the worker's memory to it, in the same chunks.
std::unique_ptr<OneServerClient> MakeDirectPsClient(ParameterServer& server);

}  // namespace psring
