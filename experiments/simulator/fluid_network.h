// Bytes as a fluid: flows share links by max-min fairness. Pure and deterministic.
//
// *resource*: anything with a capacity, such as one direction of a link, a fabric, or a processor that adds.
// *kind*: flows that load the same resources in the same way and therefore have equal rates. A flow can load
// a resource with part of its bytes (spread over several servers) or a multiple (it represents several
// ranks).
//
// Rates are those of progressive filling (Bertsekas & Gallager, Data Networks, 1992, 6.5.2): all rates grow
// equally until a resource is full or a flow has reached its own limit; the rates of the flows concerned are
// then fixed, and the others continue to grow. Rates change only when flows start or end. Simultaneous starts
// and ends take effect together, so results do not depend on the order of calls at equal times.
//
// *burst*: bytes that a resource passes at *full speed* after a pause, like a shaper's token bucket. Tokens
// refill at the resource's rate while its load is lower; rates also change when the tokens run out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace psring {

class FluidNetwork {
 public:
  static constexpr double kUnlimited = std::numeric_limits<double>::infinity();

  struct Use {
    size_t resource;
    double load;  // bytes through the resource for each byte of the flow, above 0
  };

  struct Burst {
    double bytes = 0;   // maximum of tokens; 0: no burst
    double tokens = 0;  // at the start
    double full_bytes_per_s = kUnlimited;
  };

  // Return the index of the resource or kind, from 0. A resource can be kUnlimited.
  size_t AddResource(double bytes_per_s) { return AddResource(bytes_per_s, Burst()); }
  size_t AddResource(double bytes_per_s, const Burst& burst);
  size_t AddKind(std::vector<Use> uses, double most_bytes_per_s = kUnlimited);

  // AdvanceTo returns `token` when the flow has ended. A flow of 0 bytes or unlimited rate ends at once.
  void Start(size_t kind, double bytes, int64_t token);

  double now() const { return now_; }
  // The time when the next flow or burst ends if no flow starts before; kUnlimited without flows.
  double NextEnd();
  // Advances to `time`, at most NextEnd(), and appends the tokens of ended flows in ascending order.
  void AdvanceTo(double time, std::vector<int64_t>& ended);

  // Seconds at full capacity that correspond to the resource's use so far.
  double BusySeconds(size_t resource) const { return busy_[resource]; }

 private:
  struct Kind {
    std::vector<Use> uses;
    double most;
    int flows = 0;  // in flight
    double rate = 0;
  };
  struct Flow {
    size_t kind;
    double bytes, left;
    int64_t token;
  };

  // The burst of one resource.
  struct Bucket {
    size_t resource;
    Burst burst;
    bool open = true;  // its resource runs at full speed
  };

  void OpenBuckets();
  void UseTokens(double seconds);
  void Share();
  void Fill();

  std::vector<double> capacity_, busy_;
  std::vector<Bucket> token_buckets_;
  std::vector<Kind> kinds_;
  std::vector<Flow> flows_;
  std::vector<size_t> active_;  // kinds in flight, ascending
  double now_ = 0;
  bool shared_ = true;  // rates are up to date
  double next_end_ = kUnlimited;
  // Cache: rates by set of flows and open buckets. A collective repeats the same sets.
  std::map<std::vector<size_t>, std::vector<double>> known_;
  std::vector<double> used_;         // bytes/s at the current rates, by resource; only with bursts
  std::vector<double> free_, load_;  // scratch of Fill, by resource
};

}  // namespace psring
