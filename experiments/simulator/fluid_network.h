// Bytes as a fluid: flows share links by max-min fairness. Pure and deterministic.
//
// *resource*: what has a capacity, one direction of a link, a fabric, a processor that adds. *kind*: flows
// that load the same resources in the same way, and therefore run at one rate. A flow may load a resource
// with a part of its bytes (it is spread over several servers) or with a multiple (it stands for several
// flows of equal ranks).
//
// Rates are those of progressive filling (Bertsekas & Gallager, Data Networks, 1992, 6.5.2): all flows grow
// alike until a resource is full or a flow has reached its own limit; those stay, the others grow on. Rates
// change only where flows start or end. What starts and ends at one time is seen together, so nothing depends
// on the order of calls at equal times.
//
// *burst*: what a resource lets pass at its *full speed* after a pause, as a shaper's token bucket does.
// Tokens come back at the resource's rate while less than that is asked of it; rates also change where they
// run out.
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
    double bytes = 0;   // most tokens; 0: none, ever
    double tokens = 0;  // at the beginning
    double full_bytes_per_s = kUnlimited;
  };

  // Both return a number, counted from 0. A resource that is unlimited may be added and is never full.
  int AddResource(double bytes_per_s) { return AddResource(bytes_per_s, Burst()); }
  int AddResource(double bytes_per_s, const Burst& burst);
  int AddKind(std::vector<Use> uses, double most_bytes_per_s = kUnlimited);

  // `token` comes back when the flow has ended. A flow without a limit, or without bytes, ends at once.
  void Start(int kind, double bytes, int64_t token);

  double now() const { return now_; }
  bool idle() const { return flows_.empty(); }
  // When the next flow ends or a burst is over if nothing is started before; kUnlimited where no flow is
  // under way.
  double NextEnd();
  // Goes on to `time`, at most NextEnd(), and appends the tokens of flows that have ended, in ascending
  // order.
  void AdvanceTo(double time, std::vector<int64_t>& ended);

  // Seconds that the resource has worked, as if always at its full capacity.
  double BusySeconds(int resource) const { return busy_[static_cast<size_t>(resource)]; }

 private:
  struct Kind {
    std::vector<Use> uses;
    double most;
    int flows = 0;  // under way
    double rate = 0;
  };
  struct Flow {
    int kind;
    double bytes, left;
    int64_t token;
  };

  // Of a resource that has one.
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
  std::vector<int> active_;  // kinds under way, ascending
  double now_ = 0;
  bool shared_ = true;  // rates are up to date
  double next_end_ = kUnlimited;
  // Of a few sets of flows: in a collective the same ones come again and again.
  std::map<std::vector<int>, std::vector<double>> known_;
  std::vector<double> free_, load_;  // scratch of Fill
};

}  // namespace psring
