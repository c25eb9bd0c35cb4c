#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/findings.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/design/estimate.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

// "one dedicated server", "4 servers on the workers' hosts".
std::string Placed(ServerPlace place, int servers) {
  const bool one = servers == 1;
  switch (place) {
    case ServerPlace::kRank0:
      return Tr(one ? TrNoop("one server on rank 0's host") : TrNoop("$0 servers that share rank 0's link"),
                servers);
    case ServerPlace::kDedicated:
      return Tr(one ? TrNoop("one dedicated server") : TrNoop("$0 dedicated servers"), servers);
    case ServerPlace::kColocated:
      return Tr(one ? TrNoop("one server on a worker's host") : TrNoop("$0 servers on the workers' hosts"),
                servers);
  }
  return "";
}

// The law is about gradients without rows.
bool IsLawfulServer(const SummaryRow& row) {
  if (row.configuration.model.has_tables) return false;
  const std::optional<Scheme> scheme = SchemeOf(row.configuration.strategy);
  return scheme == Scheme::kServerSync && row.configuration.workers > 1 &&
         row.configuration.strategy.number == 0;
}

// The first all-reduce with `workers` that theory covers.
const SummaryRow* AllReduceWith(const std::vector<SummaryRow>& rows, int workers) {
  for (const SummaryRow& row : rows) {
    if (row.configuration.workers != workers || !row.configuration.strategy.uses_group) continue;
    const std::optional<Scheme> scheme = SchemeOf(row.configuration.strategy);
    if (scheme && scheme->schedule != nullptr) return &row;
  }
  return nullptr;
}

std::string Ratio(double server, double group) { return Fixed(server / group); }

// From theory to the step: with the row's buckets, as measured, and with computing.
std::string MeasuredText(const SummaryRow& server, const SummaryRow& group) {
  const auto moving = [](const SummaryRow& row) {
    return row.mean.comm_busy_ms - row.mean.wait_ms.value_or(0);
  };
  if (!server.measured_cost || !group.measured_cost || !server.predicted_comm_ms ||
      group.predicted_comm_ms.value_or(0) <= 0 || moving(group) <= 0 || server.mean.samples_per_s <= 0) {
    return "";
  }
  return Tr(
      " With this run's buckets, $0 times in theory. Measured: the exchange $1 times (without waiting "
      "for others); the step, which also computes, $2 times.",
      Ratio(*server.predicted_comm_ms, *group.predicted_comm_ms), Ratio(moving(server), moving(group)),
      Ratio(group.mean.samples_per_s, server.mean.samples_per_s));
}

constexpr double kLeastDifference = 0.05;
constexpr size_t kMaxNamedBuckets = 4;

std::string MsText(double seconds) { return absl::StrFormat("%.*f", seconds < .1 ? 1 : 0, 1e3 * seconds); }

bool Differ(double seconds, double law) { return std::abs(seconds - law) > kLeastDifference * law; }

}  // namespace

std::optional<double> GradientsThroughLink(const SummaryRow& row) {
  const std::optional<Scheme> scheme = SchemeOf(row.configuration.strategy);
  if (row.configuration.model.has_tables || !scheme) return std::nullopt;
  return TermsOf(PatternOf(row.configuration, *scheme), 1).link_bytes;
}

std::string WayText(const SummaryRow& row, const char* form) {
  const Configuration& configuration = row.configuration;
  if (configuration.servers() == 0) return configuration.strategy.name;
  const CommPattern pattern = PatternOf(configuration, Scheme::kServerSync);
  return Tr(form, Placed(pattern.place, pattern.servers),
            Tr(pattern.pipelined ? TrNoop("push and pull at the same time") : TrNoop("push, then pull")));
}

bool SameUpdateRule(const SummaryRow& row, const SummaryRow& other) {
  const StrategyUpdate &ours = row.configuration.update, &theirs = other.configuration.update;
  return ours.optimizer == theirs.optimizer && ours.lr == theirs.lr;
}

std::string ServerWireRates(const Wires& wires) {
  std::vector<std::string> rates;
  for (const auto& [wire, bytes_per_s] :
       {std::pair("grpc", wires.grpc_bytes_per_s), {"stream", wires.stream_bytes_per_s}}) {
    if (bytes_per_s > 0) rates.push_back(Tr("$0 GB/s over $1", Fixed(1e-9 * bytes_per_s), wire));
  }
  if (rates.empty()) return "";
  return Tr(
      "This machine's processors move a server's pushes and pulls at $0 (measured); theory and simulator "
      "include it.",
      absl::StrJoin(rates, Tr(" and ")));
}

std::string ServerWireText(const std::vector<const SummaryRow*>& candidates) {
  const SummaryRow *group = nullptr, *sockets = nullptr, *grpc = nullptr;
  for (const SummaryRow* row : candidates) {
    const Configuration& configuration = row->configuration;
    if (configuration.servers() == 0) {
      if (group == nullptr && UsesTcp(row->mean.wires)) group = row;
      continue;
    }
    const auto same_over = [&](const char* wire) {
      const auto found = std::ranges::find_if(candidates, [&](const SummaryRow* other) {
        return other->configuration.strategy.name == configuration.strategy.name &&
               other->configuration.servers() == configuration.servers() &&
               other->configuration.training.server_wire == wire;
      });
      return found == candidates.end() ? nullptr : *found;
    };
    if (grpc != nullptr && sockets != nullptr) continue;
    grpc = same_over("grpc");
    sockets = same_over("stream");
  }
  if (grpc == nullptr || sockets == nullptr) return "";
  const PairedComparison wires = ComparePairs(sockets->round_samples_per_s, grpc->round_samples_per_s);
  const std::string server = NameWithServers(*grpc);
  if (!ShowDifference({wires}).front()) {
    return Tr("$0 is not shown to be faster over plain sockets than over gRPC, or slower", server);
  }
  if (group == nullptr) {
    return Tr("over plain sockets $0 is $1 times as fast as over gRPC", server, Fixed(wires.ratio));
  }
  const PairedComparison with_grpc = ComparePairs(group->round_samples_per_s, grpc->round_samples_per_s),
                         with_sockets =
                             ComparePairs(group->round_samples_per_s, sockets->round_samples_per_s);
  const std::vector<bool> shown = ShowDifference({with_grpc, with_sockets});
  const bool same_winner = shown[0] && shown[1] && (with_grpc.ratio > 1) == (with_sockets.ratio > 1);
  const bool by_wire =
      !same_winner || 2 * std::abs(std::log(wires.ratio)) > std::abs(std::log(with_grpc.ratio));
  return Tr(by_wire ? TrNoop("with gRPC $0 is $2 times as fast as $1, over the same sockets $3 times: the "
                             "wire decides more than the scheme")
                    : TrNoop("with gRPC $0 is $2 times as fast as $1, over the same sockets $3 times: the "
                             "scheme decides more than the wire"),
            group->configuration.strategy.name, server, Fixed(with_grpc.ratio), Fixed(with_sockets.ratio));
}

std::vector<std::string> ServerLaw(const std::vector<SummaryRow>& rows) {
  struct Law {
    const SummaryRow *server, *group;
    double ratio;
  };
  std::vector<Law> laws;
  for (const SummaryRow& row : rows) {
    if (!IsLawfulServer(row)) continue;
    const SummaryRow* group = AllReduceWith(rows, row.configuration.workers);
    if (group != nullptr)
      laws.push_back({&row, group, *GradientsThroughLink(row) / *GradientsThroughLink(*group)});
  }
  std::ranges::stable_sort(laws, std::greater(), &Law::ratio);
  std::vector<std::string> findings, ways;
  for (const auto& [server, group, ratio] : laws) {
    const std::string name = WithWire(*server, server->configuration.strategy.name);
    const std::string way = WayText(*server, TrNoop("$0; $1"));
    const bool is_known = std::ranges::find(ways, way) != ways.end();
    ways.push_back(way);
    findings.push_back(
        Tr("In theory, with large gradients, $0 exchanges $1 times as long as $2 with $3 workers.$4",
           is_known ? name : Tr("$0 ($1)", name, way), Fixed(ratio), group->configuration.strategy.name,
           server->configuration.workers, MeasuredText(*server, *group)));
  }
  return findings;
}

std::vector<std::string> BucketFindings(const std::vector<SummaryRow>& rows,
                                        const std::optional<Wires>& wires) {
  if (!wires) return {};
  std::vector<std::string> findings;
  std::vector<std::string> few, other;
  std::string sizes;  // of the first of `few`
  for (const SummaryRow& row : rows) {
    if (!row.predicted_comm_ms || row.configuration.workers < 2) continue;
    if (row.configuration.model.has_tables) continue;  // the law is about gradients without rows
    if (SchemeOf(row.configuration.strategy) != Scheme::kServerSync) continue;
    const CommPattern pattern = PatternOf(row.configuration, Scheme::kServerSync);
    std::vector<double> buckets;
    for (const int64_t elements : row.sample.bucket_elements) {
      buckets.push_back(ExchangeBytes(row.configuration, elements));
    }
    const double bytes = std::accumulate(buckets.begin(), buckets.end(), 0.0);
    const Wires of_row = WiresOf(row, *wires);
    const Wires transfers{.bytes_per_s = of_row.bytes_per_s,
                          .medium_bytes_per_s = of_row.medium_bytes_per_s,
                          .server_bytes_per_s = of_row.server_bytes_per_s};
    const double law = ExchangeSeconds(pattern, bytes, of_row);
    const double theory = ExchangeSeconds(pattern, buckets, of_row);
    if (!Differ(theory, law)) continue;
    const bool by_buckets =
        Differ(ExchangeSeconds(pattern, buckets, transfers), ExchangeSeconds(pattern, bytes, transfers));
    if (by_buckets && few.empty() && buckets.size() <= kMaxNamedBuckets) {
      std::vector<std::string> each;
      for (const double size : buckets) each.push_back(ThreeDigits(1e-6 * size));
      sizes = Tr(" ($0 MB)", absl::StrJoin(each, Tr(", ")));
    }
    const std::string name = WithWire(row, row.configuration.strategy.name);
    const std::string last = MsText(theory), mean = MsText(1e-3 * *row.predicted_comm_ms);
    const int workers = row.configuration.workers;
    (by_buckets ? few : other)
        .push_back(last == mean ? Tr("$0 with $1 workers: $2 ms, not $3 ms", name, workers, last, MsText(law))
                                : Tr("$0 with $1 workers: $2 ms until the last worker has its weights (mean "
                                     "over workers: $3 ms), not $4 ms",
                                     name, workers, last, mean, MsText(law)));
  }
  if (!few.empty()) {
    findings.push_back(
        Tr("For the actual buckets$1, theory predicts longer exchanges than the formula for large gradients "
           "($0). The weights of a bucket cannot leave before its last gradient has arrived, so nothing "
           "overlaps with the first push and the last pull.",
           absl::StrJoin(few, Tr("; ")), sizes));
  }
  if (!other.empty()) {
    findings.push_back(
        Tr("For the actual buckets, theory differs from the formula for large gradients ($0). The formula "
           "ignores the server's updates and the bursts that links carry at full speed after a pause.",
           absl::StrJoin(other, Tr("; "))));
  }
  return findings;
}

}  // namespace psring
