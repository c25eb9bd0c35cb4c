// Reduces the long, untrusted files of a run to the JSON that the page needs. Pure.
#pragma once

#include <cstddef>
#include <string>

namespace psring {

// From the text of steps.jsonl: {most_points, loss: [{strategy, workers, part, repeat,
// points: [[samples of all workers, seconds, loss]]}]}. The loss is rank 0's; neighboring steps are averaged
// to at most most_points per curve. Malformed lines are skipped.
std::string DigestSteps(const std::string& text);

// From the text of trace.json: {most_spans, launches: [{name, algorithm, workers, ms,
// rounds_ms, spans: [[rank, lane, bucket, begin_ms, ms]], arrows: [[from, to, bucket, leaves_ms,
// arrives_ms]], arrows_left_out, simulated}]}. For each launch: rank 0's step of median length (of those with
// arrows, messages and rounds, if any) and what overlaps it on other ranks; at most the longest most_spans
// spans and some arrows. Rank -1: the servers. algorithm is empty and workers 0 if unknown. rounds_ms: the
// end of each round of the schedule on the last rank, counted in each bucket from the last rank's start,
// summed over buckets; null if unknown. Of a pipeline, spans that are actions have their text ("0F3") last,
// and simulated is {ms, bubble_ms, measured_bubble_ms, spans: likewise} (simulated_step.h); else it is null.
std::string DigestTrace(const std::string& text);

// From an asynchronous server's order of arrivals (common/measure/arrivals.h), `name` its launch: {name,
// workers, rule, updates, staleness_mean, staleness_max, pushes: [[worker, computed_on, creates]]}, of its
// first bucket; the first kMaxPushes pushes. The server's own Consistency decides which version is read.
// Empty if the bytes are malformed or the order is impossible.
inline constexpr size_t kMaxPushes = 240;
std::string DigestArrivals(const std::string& name, const std::string& bytes);

// At most `lines` evenly spaced lines of a CSV, including the first and the last.
std::string ThinCsv(const std::string& text, size_t lines);

}  // namespace psring
