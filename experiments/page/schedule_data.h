// The page's data that does not depend on a run, as JSON: rounds of the schedules, terms of the cost models,
// effect of bounded staleness, and the glossary. Pure.
#pragma once

#include <string>
#include <vector>

#include "ring_worker/schedules/schedule.h"
#include "trainer/programs/program_rows.h"

namespace psring {

// {schedules: [{algorithm, ranks, chunks, summary: [English, Chinese], note: likewise, formula: [latency,
// bytes, adding],
//               rounds: [[[from, to, first_chunk, chunk_count, adds], ...], ...],
//               added: [chunks that the busiest rank adds, by round]}]}
// All-reduces with a known cost, for each of `ranks` (2 to 16).
std::string SchedulesJson(const std::vector<int>& ranks, const ScheduleTable& rows = ScheduleRows());

// {units: {F, B, I, W}, programs: [{name, summary: [English, Chinese], ranks, micro_batches, end, bubble,
//     in_flight: [at most, by rank], actions: ["0F0:0 0F1:1 ...", by rank], sends: ["0F0>1:1 ...", by
//     rank]}]}
// Programs that cut a model, with 2 stages per rank if they take several: a word of `actions` is an action
// and when it begins, one of `sends` the action whose result goes to which rank, and when, in units
// (playback.h).
std::string ProgramsJson(const ProgramTable& rows = ProgramRows());

// {workers: [1, 2, ...], servers: [1, 2, ...],
//  schemes: {name: [[messages, link, medium, added] by workers]},
//  server: {place: {serial | pipelined: [by servers [by workers]]}}}
// for a gradient of one byte: seconds = messages a + max(link M/B, medium M/B2) + added M g, where B2 is the
// rate of the medium. For pipelined servers, the larger of moving and adding replaces their sum.
std::string TheoryJson(const ScheduleTable& rows = ScheduleRows());

// The strategies that have a place among the colours of charts, in this order.
std::string ChartOrderJson();

// Progress and staleness, simulated with the servers' own waiting rules:
// {workers: [2, ...], rules: ["sync", "ssp:1", ..., "async"], spreads: [name, ...],
//  progress: [by workers [by spread [by rule]]], staleness, staleness_max: the same}
// Workers compute for one second per step on average, and exchanges take no time. progress: steps/s of a
// worker, mean over workers; staleness: mean over all pushes, in updates; staleness_max: the maximum.
// spreads: the computing time varies by 2% ("even") or 40% ("uneven"; coefficient of variation, lognormal,
// per step); "straggler" is "even" with one worker at half speed.
std::string StalenessJson();

// [[term, [English, Chinese]]]: the glossary of `psring explain words`.
std::string GlossaryJson();

}  // namespace psring
