// What this trainer can do, for the front door, so that nobody keeps a second table.
#pragma once

#include <string>

namespace psring {

// {"strategies": [{name, summary, needs, algorithm, synchronous, single_process, default_momentum}],
//  "models": [{name, summary, default_lr, default_async_lr, parameters}], "data": [{name, summary}]}
// `needs`: "nothing", "process_group" or "parameter_server". `parameters`: on 28x28 pictures.
std::string DescribeAsJson();

}  // namespace psring
