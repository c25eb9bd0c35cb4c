#include "experiments/summary/row_queries.h"

#include <algorithm>
#include <set>

#include "experiments/summary/wires.h"
#include "experiments/texts/findings.h"
#include "experiments/texts/unit.h"

namespace psring {
namespace {

// The largest share of computing in a step that counts as limited by the network.
constexpr double kMostComputing = 0.5;

}  // namespace

const SummaryRow* FindRow(const std::vector<SummaryRow>& rows, const std::string& strategy, int workers) {
  for (const SummaryRow& row : rows) {
    if (row.configuration.strategy.name == strategy && row.configuration.workers == workers) return &row;
  }
  return nullptr;
}

bool NetworkDecides(const SummaryRow* none, const SummaryRow& row) {
  return none != nullptr && none->link.bits_per_s > 0 &&
         none->mean.step_ms <= kMostComputing * row.mean.step_ms;
}

bool NetworkDecides(const std::vector<SummaryRow>& rows, int workers) {
  const SummaryRow* none = FindRow(rows, "none", workers);
  return std::all_of(rows.begin(), rows.end(), [&](const SummaryRow& row) {
    return row.configuration.workers != workers || !row.measured_cost ||
           !row.configuration.strategy.communicates() || NetworkDecides(none, row);
  });
}

std::vector<int> TimedCounts(const std::vector<SummaryRow>& rows) {
  std::set<int> counts;
  for (const SummaryRow& row : rows) {
    if (row.measured_cost && row.configuration.workers > 1 &&
        (!row.configuration.oversubscribed || NetworkDecides(rows, row.configuration.workers))) {
      counts.insert(row.configuration.workers);
    }
  }
  return {counts.begin(), counts.end()};
}

std::vector<std::string> ComparedWires(const std::vector<SummaryRow>& rows, const SummaryRow& row) {
  const auto several = [](const SummaryRow& one) { return one.configuration.ranks() > 1; };
  if (!several(row) && std::ranges::any_of(rows, several)) return {};
  return row.configuration.per_machine == 1 ? BetweenMachines(row.mean.wires) : row.mean.wires;
}

std::string NameWithServers(const SummaryRow& row, Language language) {
  const int servers = row.configuration.servers();
  const std::string& name = row.configuration.strategy.name;
  return servers > 1 ? Say(language, kOnServers, name, servers) : name;
}

const char* UnitOf(const SummaryRow& row, Language language) {
  return UnitOf(row.configuration.training.reads_text(), language);
}

}  // namespace psring
