// Data of the page's stepper and theory curves as JSON: the rounds of the schedules and the terms of the cost
// models, so that the page needs no formulas of its own. Pure.
#pragma once

#include <string>
#include <vector>

#include "ring_worker/schedules/schedule.h"

namespace psring {

// {schedules: [{algorithm, ranks, chunks, summary: [English, Chinese], note: likewise, formula: [latency,
// bytes, adding],
//               rounds: [[[from, to, first_chunk, chunk_count, adds], ...], ...],
//               added: [chunks that the busiest rank adds, by round]}]}
// All-reduces with a known cost, for each of `ranks` (2 to 16).
std::string SchedulesJson(const std::vector<int>& ranks, const ScheduleTable& rows = ScheduleRows());

// {workers: [1, 2, ...], servers: [1, 2, ...],
//  schemes: {name: [[messages, link, medium, added] by workers]},
//  server: {place: {serial | pipelined: [by servers [by workers]]}}}
// for a gradient of one byte: seconds = messages a + max(link M/B, medium M/B2) + added M g. For pipelined
// servers the larger of moving and adding counts instead of both.
std::string TheoryJson(const ScheduleTable& rows = ScheduleRows());

}  // namespace psring
