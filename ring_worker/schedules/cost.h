// The cost of an all-reduce or an all-to-all in closed form.
//
// Symbols: N ranks, M bytes, a seconds of latency per message, B bytes/s of a link in one direction, g
// seconds to add a byte.
#pragma once

namespace psring {

// What one exchange needs. Its time in seconds is messages a + link_bytes/B + added_bytes g.
struct CommTerms {
  double messages = 0;             // one after another
  double link_bytes = 0;           // through the busiest link in one direction
  double medium_bytes = 0;         // of all ranks together, if they share one medium
  double added_bytes = 0;          // one after another on the busiest rank
  bool adds_while_moving = false;  // its time contains the larger of moving and adding, not both
};

struct ScheduleCost {
  CommTerms terms;
  double payload_bytes = 0;              // sent by a rank, on average
  const char *latency, *bytes, *adding;  // the terms in symbols: "2(N-1) a"; "": none
  bool one_direction = false;            // the busiest link is used first in one direction, then in the other
  const char* note = "";  // for Tr: where the rounds cost something else than the symbols, and why
};

// Bytes of an all-reduce that each rank sends on average if no byte is sent twice.
inline double LeastPayload(double ranks, double bytes) { return 2 * (ranks - 1) / ranks * bytes; }

// An all-to-all: a rank sends all but its own of N blocks, and none is sent twice.
inline ScheduleCost ExchangeCost(int messages, int ranks, double bytes, const char* latency,
                                 const char* note = "") {
  const double n = ranks, sent = (n - 1) / n * bytes;
  return {.terms = {.messages = double(messages), .link_bytes = sent, .medium_bytes = n * sent},
          .payload_bytes = sent,
          .latency = latency,
          .bytes = "(N-1)/N M/B",
          .adding = "",
          .note = note};
}

}  // namespace psring
