// One client of several servers, each of which holds a slice of every bucket (sharding.h).
#pragma once

#include <memory>
#include <vector>

#include "ps_server/ps_client.h"

namespace psring {

// Behind the same door: an exchange goes to all servers at once, and `done` runs when the last has answered,
// on that client's thread. Versions and staleness are kept by each server for itself: a result has the lowest
// version, the most staleness, and every server's. Errors name the server; the first ends the conversation
// with all, so that nobody waits for an answer that will not come.
//
// The servers do not know each other: what one decides for all (whose gradient is in a step, with backup
// workers; the norm of the whole gradient) each worker carries to the others.
//
// `servers`: a client each, in the order of the servers' numbers; not started. With one it is that client.
std::unique_ptr<PsClient> MakeShardedPsClient(std::vector<std::unique_ptr<PsClient>> servers);

}  // namespace psring
