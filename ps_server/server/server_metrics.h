// A server's figures for whoever reads along (--metrics_port). Pure.
#pragma once

#include <string>

#include "ps_server/server/checkpoint.h"

namespace psring {

// OpenMetrics: what `stats` of server number `server` says. Its histogram of staleness has a bucket for each
// small staleness, and fewer above.
std::string ServerMetricsText(int server, const ServerStats& stats);

}  // namespace psring
