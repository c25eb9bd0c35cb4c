#include "ps_server/consistency/common_step.h"

#include <algorithm>

namespace psring {

void CommonStep::OnBegin(int server, int64_t epoch, int64_t step) {
  began_[static_cast<size_t>(server)] = {.epoch = epoch, .step = step};
}

int64_t CommonStep::newest_epoch() const {
  int64_t newest = 0;
  for (const auto& began : began_) {
    if (began.has_value()) newest = std::max(newest, began->epoch);
  }
  return newest;
}

int64_t CommonStep::step() const {
  std::optional<int64_t> earliest;
  for (const auto& began : began_) {
    if (!began.has_value() || began->epoch < newest_epoch()) continue;
    earliest = std::min(began->step, earliest.value_or(began->step));
  }
  return earliest.value_or(0);
}

bool CommonStep::knows_all() const {
  return std::ranges::all_of(began_, [](const auto& began) { return began.has_value(); });
}

bool CommonStep::in_one_epoch() const {
  return std::ranges::all_of(
      began_, [this](const auto& began) { return began.has_value() && began->epoch == newest_epoch(); });
}

// In one epoch but at different steps: the next epoch.
int64_t CommonStep::epoch_to_send() const { return newest_epoch() + (in_one_epoch() && !agreed() ? 1 : 0); }

bool CommonStep::agreed() const {
  return in_one_epoch() &&
         std::ranges::all_of(began_, [this](const auto& began) { return began->step == step(); });
}

std::vector<int> CommonStep::ServersToRewind() const {
  std::vector<int> servers;
  for (size_t server = 0; server < began_.size(); ++server) {
    const bool there = began_[server].has_value() && began_[server]->epoch >= epoch_to_send();
    if (!there) servers.push_back(static_cast<int>(server));
  }
  return servers;
}

}  // namespace psring
