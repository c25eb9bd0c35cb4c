// What not waiting trades, for the page's slider: simulated with the servers' own waiting rules. Pure.
#pragma once

#include <string>

namespace psring {

// {workers: [2, ...], rules: ["sync", "ssp:1", ..., "async"], spreads: [name, ...],
//  progress: [by workers [by spread [by rule]]], staleness, staleness_max: the same}
// of workers whose step computes for a second on average and whose exchange costs nothing. progress: a
// worker's steps a second, mean over workers; staleness: mean over all pushes, in updates; staleness_max: the
// most. spreads: "even" computing varies by 2%, "uneven" by 40% (lognormal, every step anew), "straggler" is
// even but one worker is half as fast.
std::string StalenessJson();

}  // namespace psring
