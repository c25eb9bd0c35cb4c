// What the page's stepper plays and its curves are computed from, as JSON: the rounds of the very schedules
// and the terms of the very cost models, so that the page has no theory of its own. Pure.
#pragma once

#include <string>
#include <vector>

namespace psring {

// {schedules: [{algorithm, ranks, chunks, summary, formula: [latency, bytes, adding],
//               rounds: [[[from, to, first_chunk, chunk_count, adds], ...], ...],
//               added: [chunks the busiest rank adds, by round]}]}, all-reduces of each of `ranks` (2 to 16).
std::string SchedulesJson(const std::vector<int>& ranks);

// {workers: [1, 2, ...], servers: [1, 2, ...],
//  schemes: {name: [[messages, link, medium, added] by workers]},
//  server: {place: {serial | pipelined: [by servers [by workers]]}}}
// for a gradient of one byte: seconds are messages a + max(link M/B, medium M/B2) + added M g, where
// pipelined servers take the larger of moving and adding instead of both.
std::string TheoryJson();

}  // namespace psring
