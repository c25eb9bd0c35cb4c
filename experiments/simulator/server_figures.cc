#include "experiments/simulator/server_figures.h"

namespace psring {

void ServerFigures::AddStep(const Step& step, double now) {
  computing_ += step.workers * step.computing;
  stepping_ += step.workers * step.stepping;
  busy_ += step.workers * step.busy;
  waiting_ += step.workers * step.waiting;
  counted_ += step.workers;
  if (step.dropped) dropped_ += step.workers;
  steps_of_.resize(std::max(steps_of_.size(), step.group + 1));
  if (!step.dropped) steps_of_[step.group] += step.workers;
  last_ = now;
}

ServerTime ServerFigures::Result(const ServerRun& run, const ServerLayout& layout,
                                 const FluidNetwork& network, double processor_busy_s,
                                 bool staleness_known) const {
  ServerTime time{.simulated = static_cast<int>(layout.groups.size())};
  const double seconds = last_ - began_;
  time.worker_steps_per_s = (counted_ - dropped_) / seconds;
  time.dropped_share = dropped_ / counted_;
  for (size_t g = 0; g < steps_of_.size(); ++g) {
    const GroupLayout& group = layout.groups[g];
    time.most_share =
        std::max(time.most_share, steps_of_[g] / (group.weight * group.workers) / (counted_ - dropped_));
  }
  time.step_s = run.align_steps ? stepping_ / counted_ : run.workers * seconds / counted_;
  time.compute_s = computing_ / counted_;
  time.exposed_s = std::max(0.0, time.step_s - time.compute_s);
  time.busy_s = busy_ / counted_;
  time.wait_s = waiting_ / counted_;
  if (pushes_ > 0 && staleness_known) {
    time.staleness_mean = std::max(0.0, staleness_sum_ / pushes_);
    time.staleness_max = staleness_max_;
  }
  const auto part = [&](size_t resource) {
    return std::max(0.0, network.BusySeconds(resource) / network.now());
  };
  const auto cards = [&](const std::vector<NodePorts>& of_nodes) {
    double most = 0;
    for (const NodePorts& ports : of_nodes) {
      // Serial: first one direction, then the other.
      const double out = part(ports.out), in = part(ports.in);
      most = std::max(most, run.pipelined ? std::max(out, in) : out + in);
    }
    return most;
  };
  time.server_card = cards(layout.server_ports);
  time.worker_card = cards(layout.worker_ports);
  time.fabric = part(layout.fabric);
  time.server_processor =
      std::max(processor_busy_s / network.now() + part(layout.processor), part(layout.host));
  return time;
}

}  // namespace psring
