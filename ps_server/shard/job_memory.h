// How much of a server's memory a job needs, computed before any of it is allocated.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/device/device.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

// In bytes; floating point, because an integer could overflow.
struct JobMemory {
  double on_device = 0;  // weights, gradient sum, optimizer state, staged pushes; with `device_is_host` all
  double on_host = 0;    // copies of the weights to send, state of each bucket and worker
};

// What is always allocated, and the pushes that must be staged at the same time. Pure.
JobMemory MemoryOf(const ServerJob& job, bool device_is_host);

// "the parameter server needs 12.0 MiB for 1048576 parameters (weights, sum, 1 x optimizer state) in 3
// buckets".
std::string DescribeNeed(const ServerJob& job, double bytes);

// ResourceExhausted if the device or the host has less memory free than `job` needs; gives both numbers.
absl::Status RequireMemory(const ServerJob& job, const Device& device);

}  // namespace psring
