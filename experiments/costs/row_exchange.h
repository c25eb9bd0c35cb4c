// The theoretical cost of exchanging the rows of tables that a step touched (trainer/tables.md). Pure.
//
// Which way rows take follows from `rows`, whatever the scheme of the other parameters. The bytes of `hybrid`
// are the sum of both parts, as in Kim et al. 2019, "Parallax", section 3: a ring sends 2(N-1)/N M of the
// dense parameters, and a worker exchanges only its rows with the servers. Its time is also the sum: both
// parts use the same links, unless servers are dedicated, where the push may overlap with the ring and the
// sum is an upper bound.
#pragma once

#include <optional>

#include "common/measure/records.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

struct RowExchange {
  double payload_bytes = 0;  // that a worker sends
  double seconds = 0;        // after the exchange of the other parameters
};

// With N workers, d bytes of rows per worker, S servers, B bytes/s and a latency of a:
//   ring, direct    an all-gather: (N-1) d / B, and one of the counts before it; latencies (N-1) a, or a
//                   each; and an all-reduce of tables that are sent as a whole
//   servers         a pull and a push of rows, which are on all servers alike: 2a + x / B for the pull and
//                   x / B for the push, with x the bytes of all remote workers over one server's link, at
//                   least those of one worker, and B at most what moves at the server
// nullopt: the theory has no formula for the schedule's all-gather (ScheduleRow::gather_messages).
std::optional<RowExchange> RowExchangeOf(const CommPattern& pattern, const RowFigures& rows,
                                         const Wires& wires);

}  // namespace psring
