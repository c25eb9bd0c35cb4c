// Bytes as a fluid: flows share links by max-min fairness. Pure and deterministic.
//
// *resource*: has a capacity: one direction of a link, a fabric, a processor that adds. *kind*: flows that
// load the same resources in the same way and therefore have one rate. A flow can load a resource with part
// of its bytes (it is spread over several servers) or with a multiple (it represents several flows of equal
// ranks).
//
// Rates are those of progressive filling (Bertsekas & Gallager, Data Networks, 1992, 6.5.2): all rates grow
// equally until a resource is full or a flow has reached its own limit; those are fixed, the others grow
// further. Rates change only when flows start or end. Simultaneous starts and ends take effect together, so
// results do not depend on the order of calls at equal times.
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
    int resource;
    double load;  // bytes through the resource for each byte of the flow, above 0
  };

  struct Burst {
    double bytes = 0;   // most tokens; 0: no burst
    double tokens = 0;  // at the start
    double full_bytes_per_s = kUnlimited;
  };

  // Both return a number, counted from 0. A resource can be unlimited.
  int AddResource(double bytes_per_s) { return AddResource(bytes_per_s, Burst()); }
  int AddResource(double bytes_per_s, const Burst& burst);
  int AddKind(std::vector<Use> uses, double most_bytes_per_s = kUnlimited);

  // AdvanceTo returns `token` when the flow has ended. A flow without a limit or without bytes ends at once.
  void Start(int kind, double bytes, int64_t token);

  double now() const { return now_; }
  // When the next flow or burst ends if nothing starts before; kUnlimited without flows.
  double NextEnd();
  // Advances to `time`, at most NextEnd(), and appends the tokens of ended flows in ascending order.
  void AdvanceTo(double time, std::vector<int64_t>& ended);

  // Seconds that the resource was busy, converted to full capacity.
  double BusySeconds(int resource) const { return busy_[static_cast<size_t>(resource)]; }

 private:
  struct Kind {
    std::vector<Use> uses;
    double most;
    int flows = 0;  // in flight
    double rate = 0;
  };
  struct Flow {
    int kind;
    double bytes, left;
    int64_t token;
  };

  // The burst of one resource.
  struct Bucket {
    int resource;
    Burst burst;
    bool open = true;  // its resource runs at full speed
    double used = 0;   // bytes/s, as rates are
  };

  void OpenBuckets();
  void UseTokens(double seconds);
  void Share();
  void Fill(const std::vector<int>& kinds);

  double CapacityNow(size_t resource) const;

  std::vector<double> capacity_, busy_;
  std::vector<Bucket> token_buckets_;
  std::vector<int> bucket_of_;  // by resource; -1: none
  std::vector<Kind> kinds_;
  std::vector<Flow> flows_;
  std::vector<int> active_;  // kinds in flight, ascending
  double now_ = 0;
  bool shared_ = true;  // rates are up to date
  double next_end_ = kUnlimited;
  // Rates of some sets of flows: in a collective the same sets recur.
  std::map<std::vector<int>, std::vector<double>> known_;
  std::vector<double> free_, load_;  // scratch of Fill
};

}  // namespace psring
