// A server's statistics as OpenMetrics (--metrics_port) and as its record. Pure, except for the peak memory.
#pragma once

#include <string>

#include "common/measure/records.h"
#include "ps_server/server/checkpoint.h"

namespace psring {

// OpenMetrics of server number `server`. The histogram of staleness has a bucket for each small value, and
// wider ones above.
std::string ServerMetricsText(int server, const ServerStats& stats);

// The record of server number `server`; peak_memory_mb is this process's.
ServerResult ResultOf(int server, const ServerStats& stats);

}  // namespace psring
