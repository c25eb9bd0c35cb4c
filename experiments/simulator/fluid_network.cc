#include "experiments/simulator/fluid_network.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"

namespace psring {
namespace {

// Relative difference below which ends and limits count as equal (rounding).
constexpr double kSame = 1e-9;
constexpr size_t kMaxKnown = 4096, kLargestKnown = 64;
// Bytes of one frame: a bucket reopens only with at least that many.
constexpr double kLeastTokens = 1514;

}  // namespace

size_t FluidNetwork::AddResource(double bytes_per_s, const Burst& burst) {
  PSRING_CHECK(bytes_per_s > 0);
  if (burst.bytes > 0 && !std::isinf(bytes_per_s)) {
    PSRING_CHECK(burst.full_bytes_per_s > bytes_per_s && !std::isinf(burst.full_bytes_per_s));
    token_buckets_.push_back({.resource = capacity_.size(), .burst = burst, .open = burst.tokens > 0});
  }
  capacity_.push_back(bytes_per_s);
  busy_.push_back(0);
  used_.push_back(0);
  return capacity_.size() - 1;
}

size_t FluidNetwork::AddKind(std::vector<Use> uses, double most_bytes_per_s) {
  std::erase_if(uses, [&](const Use& use) { return std::isinf(capacity_[use.resource]); });
  kinds_.push_back({std::move(uses), most_bytes_per_s});
  return kinds_.size() - 1;
}

void FluidNetwork::Start(size_t kind, double bytes, int64_t token) {
  if (kinds_[kind].flows++ == 0) {
    active_.insert(std::lower_bound(active_.begin(), active_.end(), kind), kind);
  }
  flows_.push_back({kind, bytes, bytes, token});
  shared_ = false;
}

void FluidNetwork::OpenBuckets() {
  for (Bucket& bucket : token_buckets_) {
    const double least =
        bucket.open ? kSame * bucket.burst.bytes : std::min(kLeastTokens, bucket.burst.bytes);
    bucket.open = bucket.burst.tokens > least;
  }
}

void FluidNetwork::UseTokens(double seconds) {
  for (Bucket& bucket : token_buckets_) {
    double& tokens = bucket.burst.tokens;
    const double rate = capacity_[bucket.resource];
    tokens = std::clamp(tokens + (rate - used_[bucket.resource]) * seconds, 0.0, bucket.burst.bytes);
    // Empty: the rates change.
    if (bucket.open && tokens <= kSame * bucket.burst.bytes) shared_ = false;
  }
}

double FluidNetwork::NextEnd() {
  Share();
  return next_end_;
}

void FluidNetwork::AdvanceTo(double time, std::vector<int64_t>& ended) {
  Share();
  const double seconds = time - now_;
  PSRING_CHECK(seconds >= 0);
  const double before_time = now_;
  now_ = time;
  for (const size_t kind : active_) {
    const Kind& of = kinds_[kind];
    for (const auto& [resource, load] : of.uses) {
      busy_[resource] += of.flows * of.rate * load * seconds / capacity_[resource];
    }
  }
  UseTokens(seconds);
  const size_t before = ended.size();
  for (Flow& flow : flows_) {
    const double rate = kinds_[flow.kind].rate;
    // The remaining time of a short flow can be below the resolution of a large `now_`.
    const bool ends = std::isinf(rate) || before_time + flow.left / rate <= time;
    flow.left = ends ? 0 : flow.left - rate * seconds;
  }
  std::erase_if(flows_, [&](const Flow& flow) {
    if (flow.left > kSame * flow.bytes) return false;
    ended.push_back(flow.token);
    if (--kinds_[flow.kind].flows == 0) {
      active_.erase(std::lower_bound(active_.begin(), active_.end(), flow.kind));
    }
    shared_ = false;
    return true;
  });
  std::sort(ended.begin() + static_cast<std::ptrdiff_t>(before), ended.end());
}

void FluidNetwork::Share() {
  if (shared_) return;
  shared_ = true;
  OpenBuckets();
  if (active_.size() > kLargestKnown) {
    Fill();
  } else {
    std::vector<size_t> key = {active_.size()};
    for (const size_t kind : active_) {
      key.push_back(kind);
      key.push_back(static_cast<size_t>(kinds_[kind].flows));
    }
    for (const Bucket& bucket : token_buckets_) {
      if (bucket.open) key.push_back(bucket.resource);
    }
    if (const auto known = known_.find(key); known != known_.end()) {
      for (size_t i = 0; i < active_.size(); ++i) kinds_[active_[i]].rate = known->second[i];
    } else {
      Fill();
      std::vector<double> rates;
      for (const size_t kind : active_) rates.push_back(kinds_[kind].rate);
      if (known_.size() < kMaxKnown) known_.emplace(std::move(key), std::move(rates));
    }
  }
  next_end_ = kUnlimited;
  for (const Flow& flow : flows_) {
    const double rate = kinds_[flow.kind].rate;
    const double left = std::isinf(rate) || flow.left <= 0 ? 0 : flow.left / rate;
    next_end_ = std::min(next_end_, now_ + left);
  }
  if (token_buckets_.empty()) return;
  used_.assign(capacity_.size(), 0);
  for (const size_t kind : active_) {
    const Kind& of = kinds_[kind];
    for (const auto& [resource, load] : of.uses) used_[resource] += of.flows * of.rate * load;
  }
  for (const Bucket& bucket : token_buckets_) {
    const double used = used_[bucket.resource], drain = used - capacity_[bucket.resource];
    if (bucket.open && drain > kSame * used) {
      next_end_ = std::min(next_end_, now_ + bucket.burst.tokens / drain);
    }
  }
}

// Sets the rates of the active kinds.
void FluidNetwork::Fill() {
  free_ = capacity_;
  for (const Bucket& bucket : token_buckets_) {
    if (bucket.open) free_[bucket.resource] = bucket.burst.full_bytes_per_s;
  }
  load_.assign(capacity_.size(), 0);
  std::vector<size_t> growing = active_;
  for (const size_t kind : growing) {
    for (const auto& [resource, load] : kinds_[kind].uses) load_[resource] += kinds_[kind].flows * load;
  }
  while (!growing.empty()) {
    // The lowest rate at which one of them stops growing.
    double rate = kUnlimited;
    for (const size_t kind : growing) {
      rate = std::min(rate, kinds_[kind].most);
      for (const Use& use : kinds_[kind].uses) {
        rate = std::min(rate, free_[use.resource] / load_[use.resource]);
      }
    }
    rate = std::max(rate, 0.0);
    const auto grows = [&](size_t kind) {
      const Kind& of = kinds_[kind];
      if (std::isinf(rate) || of.most <= rate * (1 + kSame)) return false;
      return std::none_of(of.uses.begin(), of.uses.end(), [&](const Use& use) {
        return free_[use.resource] / load_[use.resource] <= rate * (1 + kSame);
      });
    };
    const auto stopped = std::stable_partition(growing.begin(), growing.end(), grows);
    for (auto kind = stopped; kind != growing.end(); ++kind) {
      Kind& of = kinds_[*kind];
      of.rate = rate;
      for (const auto& [resource, load] : of.uses) {
        free_[resource] = std::max(0.0, free_[resource] - of.flows * load * rate);
        load_[resource] -= of.flows * load;
      }
    }
    growing.erase(stopped, growing.end());
    // Rounding must not leave the resource of a growing flow without load.
    for (const size_t kind : growing) {
      for (const auto& [resource, load] : kinds_[kind].uses) {
        load_[resource] = std::max(load_[resource], load * kSame);
      }
    }
  }
}

}  // namespace psring
