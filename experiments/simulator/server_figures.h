// Computes ServerTime from the events of a server simulation. Pure.
#pragma once

#include <algorithm>
#include <vector>

#include "experiments/simulator/server_layout.h"

namespace psring {

// Sums since Begin(). A worker's step has the weight of the workers that it represents.
class ServerFigures {
 public:
  void Begin(double now) { began_ = last_ = now; }

  struct Step {
    double workers, computing, stepping, busy, waiting;  // seconds of one worker
    bool dropped;
    size_t group;
  };
  void AddStep(const Step& step, double now);

  // Staleness in updates.
  void AddPush(double workers, double staleness) {
    staleness_sum_ += workers * staleness;
    staleness_max_ = std::max(staleness_max_, staleness);
    pushes_ += workers;
  }

  // Counts a reading of the weights that is in progress, `updates` old, when measuring begins (`begins`) or
  // ends. The pushes counted then belong to the readings of the measured time only, so that the mean
  // staleness does not depend on when it begins and ends.
  void AddReading(double workers, double updates, bool begins) {
    staleness_sum_ += (begins ? -1 : 1) * workers * updates;
  }

  // `staleness_known`: the slowest workers, too, have taken enough steps. `processor_busy_s`: jobs outside
  // the network simulation.
  ServerTime Result(const ServerRun& run, const ServerLayout& layout, const FluidNetwork& network,
                    double processor_busy_s, bool staleness_known) const;

 private:
  double began_ = 0, last_ = 0, computing_ = 0, stepping_ = 0, busy_ = 0, waiting_ = 0;
  double counted_ = 0, dropped_ = 0;  // workers' steps
  std::vector<double> steps_of_;      // by group, of all its workers, without dropped ones
  double staleness_sum_ = 0, staleness_max_ = 0, pushes_ = 0;
};

}  // namespace psring
