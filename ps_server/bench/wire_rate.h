// How fast this machine's processors move the payload of a parameter server, by --server_wire.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace psring {

// Bytes/s that `workers` workers push and pull, all together, in rounds of 4 MiB with one server over TCP
// within this machine. Server and workers are threads of this process and use the wire as real ones do. Takes
// about `time`, and at least three rounds. `wire`: "grpc" or "stream". Fails if a round takes 30 s. Call
// KeepFreedMemory() once, as real ones do.
absl::StatusOr<double> MeasureWireRate(const std::string& wire, int workers, absl::Duration time);

}  // namespace psring
