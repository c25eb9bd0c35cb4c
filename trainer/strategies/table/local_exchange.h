// Local aggregation: the workers of a machine add their gradients, push only the sum, and share the pulled
// weights. A machine is then one worker on the network (BytePS, Jiang et al. 2020, 4.2; MXNet's `device`
// key-value store; TensorFlow's mirrored towers). Pure.
//
// Within a machine of g workers a reduce-scatter precedes the push and an all-gather follows the pull, each
// (g-1)/g of the bytes over the link of a worker.
#pragma once

namespace psring {

struct MachineInside {
  int workers = 1;
  double bytes_per_s = 0;  // between one worker and the rest of the machine
  double latency_s = 0;
  double add_s_per_byte = 0;
};

// Seconds to add `bytes` of each worker, and to share as many.
double ReduceSeconds(const MachineInside& inside, double bytes);
double GatherSeconds(const MachineInside& inside, double bytes);

}  // namespace psring
