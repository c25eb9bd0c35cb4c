// The time of one exchange with parameter servers for the actual list of buckets.
//
// In the law for large gradients (cost_model.h), pushes and pulls overlap completely. With finitely many
// buckets they do not: the weights of a bucket cannot leave before its last gradient has arrived. An exchange
// is therefore a flow shop with two machines (Johnson 1954, "Optimal two- and three-stage production
// schedules"): every bucket is pushed, then pulled; each direction carries one bucket at a time, in order.
// With pushes of p_b and pulls of q_b seconds on independent links, the push of bucket b ends at
// P_b = P_(b-1) + p_b and its pull at
//
//   pipelined  Q_b = max(P_b, Q_(b-1)) + q_b     K equal buckets: (K+1)/K times one direction
//   serial     Q_b = max(P_K, Q_(b-1)) + q_b     twice one direction, for any buckets
//
// plus one latency each for push and pull, and the server's update between them. If pushes and pulls use the
// same links (servers on the workers' hosts, or one loopback), they share them by max-min fairness.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Busy seconds of a resource per byte that every worker pushes, and per byte that every worker pulls.
struct Load {
  double push = 0, pull = 0;
};

// The busiest resources of an exchange, the same for all workers.
struct Limits {
  std::vector<Load> loads;
  double latency_s = 0;
  double serve_s_per_byte = 0;          // between a bucket's arrival and its answer
  double burst_s = 0;                   // a link's burst, in seconds of its rate
  bool shared_links = false;            // pushes and pulls use the same direction of a link
  bool one_pulls_without_link = false;  // the worker on the host of all servers
};

// Both directions of a link.
void AddBoth(Limits& limits, const Load& in) {
  limits.loads.push_back(in);
  limits.loads.push_back({in.pull, in.push});
}

Limits LimitsOf(const CommPattern& pattern, const Wires& wires) {
  const double n = pattern.workers, s = pattern.servers;
  const double link = wires.bytes_per_s > 0 ? 1 / wires.bytes_per_s : 0;
  const double medium = wires.medium_bytes_per_s > 0 ? 1 / wires.medium_bytes_per_s : 0;
  const double server =
      wires.server_bytes_per_s > 0 ? GradientsAtServer(pattern) / wires.server_bytes_per_s : 0;
  Limits limits{.latency_s = wires.latency_s, .burst_s = wires.burst_bytes * link};
  if (pattern.scheme == Scheme::kServerAsync) {
    const double remote = pattern.place == ServerPlace::kDedicated ? 1 : (n - 1) / n;
    limits.loads = {{remote * link, 0}, {0, remote * link}, {medium, medium}, {server, server}};
    limits.latency_s *= remote;
    limits.serve_s_per_byte = (wires.add_s_per_byte + wires.update_s_per_byte) / s;
    return limits;
  }
  limits.serve_s_per_byte = wires.update_s_per_byte / s;
  limits.one_pulls_without_link =
      medium == 0 && (pattern.place == ServerPlace::kRank0 ||
                      (pattern.place == ServerPlace::kColocated && pattern.servers == 1));
  // On one machine, rank 0's bytes cross the loopback too.
  limits.loads = {
      {n * medium, n * medium}, {server, server}, {n * wires.add_s_per_byte / s / pattern.pushed, 0}};
  switch (pattern.place) {
    case ServerPlace::kRank0:
      AddBoth(limits, {(n - 1) * link, 0});
      break;
    case ServerPlace::kDedicated: {
      const double busiest = std::max(1.0, n / s) * link;
      AddBoth(limits, {busiest, 0});
      break;
    }
    case ServerPlace::kColocated: {
      // A host with both receives pushes for its server and weights for its worker; it sends the reverse.
      const double server = (n - 1) / s * link, worker = (s - 1) / s * link;
      AddBoth(limits, {server, worker});
      if (s < n) AddBoth(limits, {link, 0});
      limits.shared_links = s > 1;
      break;
    }
  }
  return limits;
}

struct Rates {
  double push = 0, pull = 0;  // bytes/s
};

// Max-min fairness: both rates grow equally until a resource is full; the rates that use it stop growing.
Rates RatesOf(const std::vector<Load>& loads, bool pushing, bool pulling) {
  const double push_used = pushing ? 1 : 0, pull_used = pulling ? 1 : 0;
  const auto largest = [&](double fixed_push, double fixed_pull, double push, double pull) {
    double rate = kNever;
    for (const Load& load : loads) {
      const double each = push * load.push + pull * load.pull;
      const double left = 1 - fixed_push * load.push - fixed_pull * load.pull;
      if (each > 0) rate = std::min(rate, std::max(0.0, left) / each);
    }
    return rate;
  };
  const double equal = largest(0, 0, push_used, pull_used);
  if (std::isinf(equal)) return {push_used * equal, pull_used * equal};
  Rates rates{push_used * equal, pull_used * equal};
  if (pushing && pulling) {
    bool push_grows = true, pull_grows = true;
    for (const Load& load : loads) {
      if (equal * (load.push + load.pull) < 1 - 1e-12) continue;
      push_grows = push_grows && load.push == 0;
      pull_grows = pull_grows && load.pull == 0;
    }
    if (push_grows) rates.push = largest(0, equal, 1, 0);
    if (pull_grows) rates.pull = largest(equal, 0, 0, 1);
  }
  return rates;
}

// Pushes or pulls of all workers.
struct Lane {
  size_t bucket = 0;  // moving or next
  bool moving = false;
  double left = 0;  // bytes
};

class Exchange {
 public:
  Exchange(const CommPattern& pattern, const std::vector<double>& bucket_bytes, const Limits& limits)
      : pattern_(pattern),
        bytes_(bucket_bytes),
        limits_(limits),
        served_(bucket_bytes.size(), kNever),
        available_(bucket_bytes.size(), kNever),
        burst_left_{limits.burst_s, limits.burst_s} {}

  ExchangeTime Run() {
    while (pull_.bucket < bytes_.size()) Advance();
    ExchangeTime time;
    time.last = time.mean = now_ + limits_.latency_s;
    if (limits_.one_pulls_without_link) {
      // This worker is done when the last bucket is available.
      const double beside = available_.back() + limits_.latency_s;
      time.mean += (beside - time.last) / pattern_.workers;
    }
    return time;
  }

 private:
  void Advance() {
    if (!push_.moving && push_.bucket < bytes_.size()) {
      Begin(push_, pattern_.pushed * bytes_[push_.bucket], /*pull=*/false);
    }
    if (!pull_.moving && available_[pull_.bucket] <= now_) {
      Begin(pull_, bytes_[pull_.bucket], /*pull=*/true);
    }
    const Rates rates = RatesOf(limits_.loads, push_.moving, pull_.moving);
    const double push_s = push_.moving ? push_.left / rates.push : kNever;
    const double pull_s = pull_.moving ? pull_.left / rates.pull : available_[pull_.bucket] - now_;
    const double seconds = std::min(push_s, pull_s);
    PSRING_CHECK(seconds >= 0 && !std::isinf(seconds));
    Refill(seconds);
    now_ += seconds;
    if (push_.moving) Move(push_, rates.push, seconds, push_s);
    if (pull_.moving) Move(pull_, rates.pull, seconds, pull_s);
    if (push_.moving && push_s <= seconds) Pushed();
    if (pull_.moving && pull_s <= seconds) {
      pull_.moving = false;
      ++pull_.bucket;
    }
  }

  static void Move(Lane& lane, double rate, double seconds, double needed) {
    lane.left = needed <= seconds ? 0 : lane.left - rate * seconds;
  }

  // The bytes of a burst pass at once and shorten the transfer.
  void Begin(Lane& lane, double bytes, bool pull) {
    lane.moving = true;
    const Rates alone = RatesOf(limits_.loads, !pull, pull);
    const double rate = pull ? alone.pull : alone.push;
    double& burst = burst_left_[pull && !limits_.shared_links ? 1 : 0];
    const double saved = std::isinf(rate) ? 0 : std::min(burst, bytes / rate);
    // (bytes / rate) * rate may be above bytes.
    lane.left = saved > 0 ? std::max(0.0, bytes - saved * rate) : bytes;
    burst -= saved;
  }

  void Refill(double idle_s) {
    const bool first = limits_.shared_links ? push_.moving || pull_.moving : push_.moving;
    if (!first) burst_left_[0] = std::min(limits_.burst_s, burst_left_[0] + idle_s);
    if (!pull_.moving) burst_left_[1] = std::min(limits_.burst_s, burst_left_[1] + idle_s);
  }

  // The bucket arrives one latency later, and is served.
  void Pushed() {
    const double arrived = now_ + limits_.latency_s;
    server_free_ = std::max(server_free_, arrived) + limits_.serve_s_per_byte * bytes_[push_.bucket];
    served_[push_.bucket] = server_free_;
    push_.moving = false;
    if (pattern_.pipelined) available_[push_.bucket] = server_free_;
    if (++push_.bucket < bytes_.size() || pattern_.pipelined) return;
    // Serial: no weights leave before the last bucket is updated, or, if asynchronous, has arrived.
    const double released = pattern_.scheme == Scheme::kServerSync ? server_free_ : arrived;
    for (size_t b = 0; b < bytes_.size(); ++b) available_[b] = std::max(served_[b], released);
  }

  const CommPattern& pattern_;
  const std::vector<double>& bytes_;
  const Limits& limits_;
  double now_ = 0, server_free_ = 0;
  Lane push_, pull_;
  std::vector<double> served_, available_;  // by bucket: when it is updated, when its weights may leave
  double burst_left_[2];                    // seconds, of pushes and pulls
};

}  // namespace

ExchangeTime TimeOfServerExchange(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                                  const Wires& wires) {
  PSRING_CHECK(pattern.scheme == Scheme::kServerSync || pattern.scheme == Scheme::kServerAsync);
  if (bucket_bytes.empty()) return {};
  const Limits limits = LimitsOf(pattern, wires);
  return Exchange(pattern, bucket_bytes, limits).Run();
}

}  // namespace psring
