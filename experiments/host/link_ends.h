// Measures a connection from one of its ends, while the other end, usually on another machine, takes the
// opposite part. Sockets are blocking (PrepareForMeasuring). Every function fails if nothing arrives for 5 s,
// or if it has not ended after `timeout` s; it needs longer than it measures, because data is still on its
// way. The connection can be used again afterwards.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psring {

// Half the median round trip of 4 bytes over `seconds`, in s; the other end calls EchoUntilDone.
absl::StatusOr<double> MeasureLatencyTo(int socket, double seconds, double timeout);
absl::Status EchoUntilDone(int socket, double timeout);

// Bytes/s received in the `seconds` after the first `warmup` seconds; the other end calls SendFor with the
// sum of both. Returns when everything that was sent has been received. If nothing arrived in that time,
// everything counts.
absl::StatusOr<double> ReceiveRate(int socket, double warmup, double seconds, double timeout);
absl::Status SendFor(int socket, double seconds, double timeout);

}  // namespace psring
