// Progress against staleness for the page's slider, simulated with the servers' own waiting rules. Pure.
#pragma once

#include <string>

namespace psring {

// {workers: [2, ...], rules: ["sync", "ssp:1", ..., "async"], spreads: [name, ...],
//  progress: [by workers [by spread [by rule]]], staleness, staleness_max: the same}
// of workers whose step computes for one second on average and whose exchange is free. progress: steps/s of a
// worker, mean over workers; staleness: mean over all pushes, in updates; staleness_max: the maximum.
// spreads: computing varies by 2% ("even") or 40% ("uneven"; lognormal, per step); "straggler" is even with
// one worker at half speed.
std::string StalenessJson();

}  // namespace psring
