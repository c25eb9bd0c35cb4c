#include "experiments/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace psring {
namespace {

// Time to move: `link_bytes` through the busiest link, `all_bytes` through the medium that all share.
double MoveSeconds(double link_bytes, double all_bytes, const Wires& wires) {
  const double link = wires.bytes_per_s > 0 ? link_bytes / wires.bytes_per_s : 0;
  const double medium = wires.medium_bytes_per_s > 0 ? all_bytes / wires.medium_bytes_per_s : 0;
  return std::max(link, medium);
}

double ServerSeconds(const CommPattern& pattern, double bytes, const Wires& wires) {
  const double n = pattern.workers;
  const double remote = pattern.place == ServerPlace::kRank0 ? n - 1 : n;
  const double add = n * bytes * wires.add_s_per_byte;
  // On one machine even rank 0's payload crosses the loopback to its server: 2NM in all.
  const double all_bytes = 2 * n * bytes;
  if (pattern.pipelined) {
    return 2 * wires.latency_s + std::max(MoveSeconds(remote * bytes, all_bytes, wires), add);
  }
  return 2 * wires.latency_s + MoveSeconds(2 * remote * bytes, all_bytes, wires) + add;
}

// Of N ranks, those beyond the largest power of two hand all they have to another one and get the sum back.
double HalvingDoublingSeconds(int workers, double bytes, const Wires& wires) {
  if (workers == 1) return 0;
  const double n = workers;
  const double power = std::bit_floor(static_cast<unsigned>(workers));
  const bool folds = power < n;
  const double sent = 2 * (power - 1) / power * bytes + (folds ? 2 * bytes : 0);
  const double added = (power - 1) / power * bytes + (folds ? bytes : 0);
  const double messages = 2 * std::log2(power) + (folds ? 2 : 0);
  return messages * wires.latency_s + MoveSeconds(sent, 2 * (n - 1) * bytes, wires) +
         added * wires.add_s_per_byte;
}

}  // namespace

std::optional<Scheme> SchemeOf(const StrategyInfo& strategy) {
  switch (strategy.needs) {
    case StrategyNeeds::kNothing:
      return Scheme::kNone;
    case StrategyNeeds::kProcessGroup:
      if (strategy.algorithm == "ring") return Scheme::kRing;
      if (strategy.algorithm == "star") return Scheme::kStar;
      if (strategy.algorithm == "direct") return Scheme::kDirect;
      if (strategy.algorithm == "halving-doubling") return Scheme::kHalvingDoubling;
      if (strategy.algorithm == "double-binary-tree") return Scheme::kDoubleBinaryTree;
      return std::nullopt;
    case StrategyNeeds::kParameterServer:
      if (strategy.algorithm == "sync") return Scheme::kServerSync;
      if (strategy.algorithm == "async" || strategy.algorithm.starts_with("ssp:"))
        return Scheme::kServerAsync;
      return std::nullopt;
  }
  return std::nullopt;
}

double ExchangeSeconds(const CommPattern& pattern, double bytes, const Wires& wires) {
  const double n = pattern.workers;
  const double a = wires.latency_s;
  const double g = wires.add_s_per_byte;
  switch (pattern.scheme) {
    case Scheme::kNone:
      return 0;
    case Scheme::kRing:
      return 2 * (n - 1) * a + MoveSeconds(2 * (n - 1) / n * bytes, 2 * (n - 1) * bytes, wires) +
             (n - 1) / n * bytes * g;
    case Scheme::kStar:
      if (pattern.workers == 1) return 0;
      return 2 * a + MoveSeconds(2 * (n - 1) * bytes, 2 * (n - 1) * bytes, wires) + (n - 1) * bytes * g;
    case Scheme::kDirect:
      if (pattern.workers == 1) return 0;
      return 2 * a + MoveSeconds(2 * (n - 1) / n * bytes, 2 * (n - 1) * bytes, wires) +
             (n - 1) / n * bytes * g;
    case Scheme::kHalvingDoubling:
      return HalvingDoublingSeconds(pattern.workers, bytes, wires);
    case Scheme::kDoubleBinaryTree:
      if (pattern.workers == 1) return 0;
      return 2 * std::ceil(std::log2(n)) * a + MoveSeconds(2 * bytes, 2 * (n - 1) * bytes, wires);
    case Scheme::kServerSync:
      return ServerSeconds(pattern, bytes, wires);
    case Scheme::kServerAsync:
      return 2 * a + MoveSeconds(2 * bytes, 2 * bytes, wires) + bytes * g;
  }
  return 0;
}

double ExchangeSeconds(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                       const Wires& wires) {
  double sum = 0;
  for (double bytes : bucket_bytes) sum += ExchangeSeconds(pattern, bytes, wires);
  return sum;
}

double BurstSeconds(const CommPattern& pattern, double bytes, const Wires& wires) {
  if (wires.burst_bytes <= 0 || wires.bytes_per_s <= 0) return 0;
  const bool phases_differ = pattern.scheme == Scheme::kStar || pattern.scheme == Scheme::kServerAsync ||
                             (pattern.scheme == Scheme::kServerSync && !pattern.pipelined);
  const double saved = (phases_differ ? 2 : 1) * wires.burst_bytes / wires.bytes_per_s;
  return std::min(saved, ExchangeSeconds(pattern, bytes, wires));
}

double PayloadBytesPerWorker(const CommPattern& pattern, double bytes) {
  const double n = pattern.workers;
  switch (pattern.scheme) {
    case Scheme::kNone:
      return 0;
    case Scheme::kRing:
    case Scheme::kStar:
    case Scheme::kDirect:
    case Scheme::kHalvingDoubling:
    case Scheme::kDoubleBinaryTree:
      return 2 * (n - 1) / n * bytes;
    case Scheme::kServerSync:
    case Scheme::kServerAsync:
      return bytes;
  }
  return 0;
}

}  // namespace psring
