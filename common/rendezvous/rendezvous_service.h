// The calls of proto/rendezvous.proto, for a store, and what its host and its clients share.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/time/time.h"
#include "common/rendezvous/rendezvous_store.h"

namespace psring {

inline constexpr char kFromTheStore[] = "psring";  // in a status's details: its message is complete
inline constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 30);
// The time between a member's pings, and the time after which a store that does not answer one is lost.
inline constexpr int kPingMs = 10'000;

// The detail of a process's report that it has another --tls (ReportOtherTls). -1: it has no rank.
inline uint64_t DetailOf(int rank) { return static_cast<uint64_t>(rank + 1); }
inline int RankOf(uint64_t detail) { return detail > Roster::kMaxRanks ? -1 : static_cast<int>(detail) - 1; }

// Answers the calls. Thread-safe. A call that waits holds no thread, and ends when its client disconnects.
// All ranks of an exchange are sent the same bytes, so N ranks need the memory of one reply of N values.
std::unique_ptr<grpc::Service> MakeRendezvousService(RendezvousStore& store);

}  // namespace psring
