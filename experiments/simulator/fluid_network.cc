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

int FluidNetwork::AddResource(double bytes_per_s, const Burst& burst) {
  PSRING_CHECK(bytes_per_s > 0);
  const bool bursts = burst.bytes > 0 && !std::isinf(bytes_per_s);
  bucket_of_.push_back(bursts ? static_cast<int>(token_buckets_.size()) : -1);
  if (bursts) {
    PSRING_CHECK(burst.full_bytes_per_s > bytes_per_s && !std::isinf(burst.full_bytes_per_s));
    token_buckets_.push_back(
        {.resource = static_cast<int>(capacity_.size()), .burst = burst, .open = burst.tokens > 0});
  }
  capacity_.push_back(bytes_per_s);
  busy_.push_back(0);
  return static_cast<int>(capacity_.size()) - 1;
}

int FluidNetwork::AddKind(std::vector<Use> uses, double most_bytes_per_s) {
  std::erase_if(uses,
                [&](const Use& use) { return std::isinf(capacity_[static_cast<size_t>(use.resource)]); });
  kinds_.push_back({std::move(uses), most_bytes_per_s});
  return static_cast<int>(kinds_.size()) - 1;
}

void FluidNetwork::Start(int kind, double bytes, int64_t token) {
  Kind& of = kinds_[static_cast<size_t>(kind)];
  if (of.flows++ == 0) active_.insert(std::lower_bound(active_.begin(), active_.end(), kind), kind);
  flows_.push_back({kind, bytes, bytes, token});
  shared_ = false;
}

double FluidNetwork::CapacityNow(size_t resource) const {
  const int bucket = bucket_of_[resource];
  if (bucket < 0 || !token_buckets_[static_cast<size_t>(bucket)].open) return capacity_[resource];
  return token_buckets_[static_cast<size_t>(bucket)].burst.full_bytes_per_s;
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
    const double rate = capacity_[static_cast<size_t>(bucket.resource)];
    bucket.burst.tokens =
        std::clamp(bucket.burst.tokens + (rate - bucket.used) * seconds, 0.0, bucket.burst.bytes);
    // Empty: the rates change.
    if (bucket.open && bucket.burst.tokens <= kSame * bucket.burst.bytes) shared_ = false;
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
  for (const int kind : active_) {
    const Kind& of = kinds_[static_cast<size_t>(kind)];
    for (const Use& use : of.uses) {
      const size_t r = static_cast<size_t>(use.resource);
      busy_[r] += of.flows * of.rate * use.load * seconds / capacity_[r];
    }
  }
  UseTokens(seconds);
  const size_t before = ended.size();
  size_t kept = 0;
  for (size_t i = 0; i < flows_.size(); ++i) {
    Flow flow = flows_[i];
    const double rate = kinds_[static_cast<size_t>(flow.kind)].rate;
    // The remaining time of a short flow can be below the resolution of a large `now_`.
    const bool ends = std::isinf(rate) || before_time + flow.left / rate <= time;
    flow.left -= std::isinf(rate) ? 0 : rate * seconds;
    if (ends || flow.left <= kSame * flow.bytes) {
      ended.push_back(flow.token);
      Kind& of = kinds_[static_cast<size_t>(flow.kind)];
      if (--of.flows == 0) active_.erase(std::lower_bound(active_.begin(), active_.end(), flow.kind));
      shared_ = false;
    } else {
      flows_[kept++] = flow;
    }
  }
  flows_.resize(kept);
  std::sort(ended.begin() + static_cast<std::ptrdiff_t>(before), ended.end());
}

void FluidNetwork::Share() {
  if (shared_) return;
  shared_ = true;
  OpenBuckets();
  if (active_.size() > kLargestKnown) {
    Fill(active_);
  } else {
    std::vector<int> key;
    for (const int kind : active_) {
      key.push_back(kind);
      key.push_back(kinds_[static_cast<size_t>(kind)].flows);
    }
    for (const Bucket& bucket : token_buckets_) {
      if (bucket.open) key.push_back(-1 - bucket.resource);
    }
    const auto known = known_.find(key);
    if (known != known_.end()) {
      for (size_t i = 0; i < active_.size(); ++i)
        kinds_[static_cast<size_t>(active_[i])].rate = known->second[i];
    } else {
      Fill(active_);
      std::vector<double> rates;
      for (const int kind : active_) rates.push_back(kinds_[static_cast<size_t>(kind)].rate);
      if (known_.size() < kMaxKnown) known_.emplace(std::move(key), std::move(rates));
    }
  }
  next_end_ = kUnlimited;
  for (const Flow& flow : flows_) {
    const double rate = kinds_[static_cast<size_t>(flow.kind)].rate;
    const double left = std::isinf(rate) || flow.left <= 0 ? 0 : flow.left / rate;
    next_end_ = std::min(next_end_, now_ + left);
  }
  for (Bucket& bucket : token_buckets_) bucket.used = 0;
  for (const int kind : active_) {
    const Kind& of = kinds_[static_cast<size_t>(kind)];
    for (const Use& use : of.uses) {
      const int bucket = bucket_of_[static_cast<size_t>(use.resource)];
      if (bucket >= 0) token_buckets_[static_cast<size_t>(bucket)].used += of.flows * of.rate * use.load;
    }
  }
  for (const Bucket& bucket : token_buckets_) {
    const double drain = bucket.used - capacity_[static_cast<size_t>(bucket.resource)];
    if (bucket.open && drain > kSame * bucket.used) {
      next_end_ = std::min(next_end_, now_ + bucket.burst.tokens / drain);
    }
  }
}

void FluidNetwork::Fill(const std::vector<int>& kinds) {
  free_.resize(capacity_.size());
  for (size_t r = 0; r < capacity_.size(); ++r) free_[r] = CapacityNow(r);
  load_.assign(capacity_.size(), 0);
  std::vector<int> growing = kinds;
  for (const int kind : growing) {
    const Kind& of = kinds_[static_cast<size_t>(kind)];
    for (const Use& use : of.uses) load_[static_cast<size_t>(use.resource)] += of.flows * use.load;
  }
  while (!growing.empty()) {
    // The lowest rate at which one of them stops growing.
    double rate = kUnlimited;
    for (const int kind : growing) {
      const Kind& of = kinds_[static_cast<size_t>(kind)];
      rate = std::min(rate, of.most);
      for (const Use& use : of.uses) {
        const size_t r = static_cast<size_t>(use.resource);
        rate = std::min(rate, free_[r] / load_[r]);
      }
    }
    rate = std::max(rate, 0.0);
    std::vector<int> stopped;
    const auto stops = [&](int kind) {
      const Kind& of = kinds_[static_cast<size_t>(kind)];
      if (std::isinf(rate) || of.most <= rate * (1 + kSame)) return true;
      return std::any_of(of.uses.begin(), of.uses.end(), [&](const Use& use) {
        const size_t r = static_cast<size_t>(use.resource);
        return free_[r] / load_[r] <= rate * (1 + kSame);
      });
    };
    std::copy_if(growing.begin(), growing.end(), std::back_inserter(stopped), stops);
    std::erase_if(growing,
                  [&](int kind) { return std::binary_search(stopped.begin(), stopped.end(), kind); });
    for (const int kind : stopped) {
      Kind& of = kinds_[static_cast<size_t>(kind)];
      of.rate = rate;
      for (const Use& use : of.uses) {
        const size_t r = static_cast<size_t>(use.resource);
        free_[r] = std::max(0.0, free_[r] - of.flows * use.load * rate);
        load_[r] -= of.flows * use.load;
      }
    }
    // Rounding must not leave the resource of a growing flow without load.
    for (const int kind : growing) {
      for (const Use& use : kinds_[static_cast<size_t>(kind)].uses) {
        double& load = load_[static_cast<size_t>(use.resource)];
        load = std::max(load, use.load * kSame);
      }
    }
  }
}

}  // namespace psring
