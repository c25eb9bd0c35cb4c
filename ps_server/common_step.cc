#include "ps_server/common_step.h"

#include <algorithm>

namespace psring {

void CommonStep::OnBegin(int server, int64_t step) {
  if (agreed()) began_at_.assign(began_at_.size(), std::nullopt);
  began_at_[static_cast<size_t>(server)] = step;
}

bool CommonStep::agreed() const { return began_at_.front().has_value() && Ahead().empty(); }

int64_t CommonStep::step() const {
  std::optional<int64_t> earliest;
  for (const std::optional<int64_t>& began : began_at_) {
    if (began.has_value()) earliest = std::min(*began, earliest.value_or(*began));
  }
  return earliest.value_or(0);
}

std::vector<int> CommonStep::Ahead() const {
  std::vector<int> ahead;
  for (size_t server = 0; server < began_at_.size(); ++server) {
    if (began_at_[server] != step()) ahead.push_back(static_cast<int>(server));
  }
  return ahead;
}

}  // namespace psring
