// Measures TCP connections, with both ends in this process or one, and the memory bandwidth of one thread.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

struct SocketPair {
  FileDescriptor near, far;
};

// Makes the socket blocking, with time-outs of 5 s and without Nagle's algorithm.
void PrepareForMeasuring(const FileDescriptor& socket);

// Connects the unconnected socket `near` to `listener`, which it binds to the address `host`. Every call
// blocks for at most 5 s.
absl::StatusOr<SocketPair> ConnectSockets(FileDescriptor near, FileDescriptor listener, const char* host);
// Connects two sockets over 127.0.0.1.
absl::StatusOr<SocketPair> ConnectOverLoopback();

// Half the median round trip of 4 bytes between two threads over `seconds`, in s.
absl::StatusOr<double> MeasureLatency(SocketPair connection, double seconds);

// Bytes/s received on each connection over `seconds`, while all send at once. The first `warmup` seconds, in
// which TCP's windows open, do not count. It takes up to 5 s longer if a connection received nothing until
// then.
absl::StatusOr<std::vector<double>> MeasureRates(std::vector<SocketPair> connections, double warmup,
                                                 double seconds);

// Seconds per byte of adding float32 arrays that exceed the caches, with one thread.
double MeasureAdd(double seconds);
// The same for an optimizer step with momentum, which reads three arrays and writes two.
double MeasureUpdate(double seconds);

// Measures this machine's loopback for the cost model, for about `time` in total:
//   latency_s           half the round trip of 4 bytes between two threads
//   bytes_per_s         one connection in one direction
//   medium_bytes_per_s  one connection per pair of cores, summed: the capacity that all ranks share
//   add_s_per_byte      see MeasureAdd; update_s_per_byte is not measured
// Ranks on one host share this capacity, so each of the N links of a ring has medium / N (*derived*).
absl::StatusOr<Wires> CalibrateLoopback(int cores, absl::Duration time);

// A connection from one of its ends, while the other end, usually on another machine, takes the opposite
// part. Sockets are blocking (PrepareForMeasuring). Every function fails if nothing arrives for 5 s, or if it
// has not ended after `timeout` s; it needs longer than it measures, because data is still on its way. The
// connection can be used again afterwards.

// Half the median round trip of 4 bytes over `seconds`, in s; the other end calls EchoUntilDone.
absl::StatusOr<double> MeasureLatencyTo(int socket, double seconds, double timeout);
absl::Status EchoUntilDone(int socket, double timeout);

// Bytes/s received in the `seconds` after the first `warmup` seconds; the other end calls SendFor with the
// sum of both. Returns when everything that was sent has been received. If nothing arrived in that time,
// everything counts.
absl::StatusOr<double> ReceiveRate(int socket, double warmup, double seconds, double timeout);
absl::Status SendFor(int socket, double seconds, double timeout);

}  // namespace psring
