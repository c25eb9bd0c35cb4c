// What the report's page needs of the long files of a run, as JSON. The files are not trusted. Pure.
#pragma once

#include <cstddef>
#include <string>

namespace psring {

// From the text of steps.jsonl: {lines, skipped, most_points, staleness: [{strategy, workers, counts:
// {staleness: buckets}}], loss: [{strategy, workers, part, repeat, points: [[samples of all workers, seconds,
// loss]]}]}. Of every bucket of every step the staleness; the loss of rank 0, neighbours averaged to at most
// most_points a curve. Lines that are none are counted as skipped.
std::string DigestSteps(const std::string& text);

// From the text of trace.json: {most_spans, most_arrows, launches: [{name, algorithm, workers, ms,
// rounds_ms, spans: [[rank, lane, bucket, begin_ms, ms]], arrows: [[from, to, bucket, leaves_ms,
// arrives_ms]], arrows_left_out}]}. Of each launch rank 0's step of median length (of those with arrows and
// rounds, where some have them) and all of the other ranks that overlaps it; at most most_spans spans, the
// longest, and the first most_arrows arrows. Rank -1: the servers. algorithm is empty and workers 0 where the
// file does not say. rounds_ms: when each round of the schedule was over on every rank in that step, counted
// in each bucket from the last rank's begin of it, all buckets added up; null where the trace does not tell.
std::string DigestTrace(const std::string& text);

// From an asynchronous server's order of arrivals (common/arrivals.h), `name` its launch: {name, workers,
// rule, updates, staleness_mean, staleness_max, pushes: [[worker, computed_on, creates]]}, of its first
// bucket; the first kMostPushes pushes. Who reads which version is what the server's own Consistency says.
// Empty where the bytes are none, or could not have come in this order.
inline constexpr size_t kMostPushes = 240;
std::string DigestArrivals(const std::string& name, const std::string& bytes);

// At most `lines` of a CSV's lines, its first and last among them, evenly spaced.
std::string ThinCsv(const std::string& text, size_t lines);

}  // namespace psring
