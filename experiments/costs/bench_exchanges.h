// The exchanges of gradients in the result of psring bench (bench.json). Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// A native all-reduce, or a round of one synchronous parameter server.
struct BenchExchange {
  bool uses_server = false;
  std::string algorithm, transport;  // "ring", "tcp"
  std::string server_wire;           // of a server: "grpc" or "stream"
  int workers = 1;
  double bytes = 0, seconds = 0;  // out of place if measured, else in place
};

struct BenchExchanges {
  size_t hosts = 0;             // on which it ran; 0: unknown
  double link_bytes_per_s = 0;  // typical, measured between machines; 0: it is of one machine
  int per_node = 1;             // workers of each machine
  std::vector<BenchExchange> exchanges;
};

// `name` begins the errors. InvalidArgument: not a benchmark, or a field is invalid.
absl::StatusOr<BenchExchanges> ParseBenchExchanges(const std::string& json, const std::string& name);

}  // namespace psring
