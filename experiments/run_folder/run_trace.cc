#include "experiments/run_folder/run_trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/io/json_text.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {
namespace {

using Json = UntrustedJson;

constexpr size_t kMaxArrows = 20000;  // per launch
constexpr double kInside = 0.001;     // us; a flow event must lie inside its span
constexpr double kNoTime = std::numeric_limits<double>::infinity();
constexpr double kBetweenLaunches = 1000;  // us, if launches would overlap

// A rank's exchange of a bucket.
struct Flight {
  int64_t row, lane;  // pid, tid
  double begin, end;
};
using What = std::pair<int64_t, int64_t>;  // step and bucket
using Flights = std::map<What, std::map<int64_t, Flight>>;

// A whole number from 0 to INT32_MAX, as in our traces.
std::optional<int64_t> WholeAt(const Json& json, const char* key) {
  const Json& field = FieldAt(json, key);
  if (!field.is_number_unsigned() || field.get<uint64_t>() > INT32_MAX) return std::nullopt;
  return field.get<int64_t>();
}

void NoteFlight(const Json& event, Flights& flights) {
  if (TextAt(event, "ph") != "X" || TextAt(event, "name") != "communication") return;
  const Json& args = FieldAt(event, "args");
  const auto step = WholeAt(args, "step"), bucket = WholeAt(args, "bucket");
  const auto rank = WholeAt(event, "pid"), lane = WholeAt(event, "tid");
  if (!step || !bucket || !rank || !lane) return;
  const double ts = NumberAt(event, "ts", 0);
  flights[{*step, *bucket}][*rank] = {*rank, *lane, ts, ts + NumberAt(event, "dur", 0)};
}

// All pairs of sender and receiver in an all-reduce of this launch.
std::set<std::pair<int, int>> SendersAndReceivers(const LaunchTrace& launch) {
  std::set<std::pair<int, int>> pairs;
  const bool has_group = launch.servers == 0 || launch.group_buckets > 0;
  if (launch.backend != "native" || !has_group || launch.workers < 2) return pairs;
  if (NeedsRanksPerNode(launch.algorithm)) return pairs;
  const auto schedule = MakeSchedule(launch.algorithm, Collective::kAllReduce, {.ranks = launch.workers});
  if (!schedule.ok()) return pairs;
  std::vector<Transfer> transfers;
  for (int rank = 0; rank < launch.workers; ++rank) {
    for (int round = 0; round < (*schedule)->rounds(rank); ++round) {
      (*schedule)->Round(rank, round, transfers);
      for (const Transfer& transfer : transfers) {
        if (transfer.kind == TransferKind::kSend) pairs.emplace(rank, transfer.peer);
      }
    }
  }
  return pairs;
}

// Keeps evenly spaced steps with about kMaxArrows arrows in total; `each`: arrows per bucket.
Flights Thinned(Flights flights, size_t each) {
  const size_t stride = (flights.size() * each + kMaxArrows - 1) / kMaxArrows;
  if (stride < 2) return flights;
  std::set<int64_t> steps;
  for (const auto& [what, by_rank] : flights) steps.insert(what.first);
  size_t index = 0;
  std::set<int64_t> kept;
  for (const int64_t step : steps) {
    if (index++ % stride == 0) kept.insert(step);
  }
  std::erase_if(flights, [&](const auto& flight) { return !kept.contains(flight.first.first); });
  return flights;
}

class ArrowWriter {
 public:
  explicit ArrowWriter(std::vector<std::string>& lines) : lines_(lines) {}

  void Add(const char* name, const What& what, const Flight& from, double leaves, const Flight& to,
           double arrives) {
    ++id_;
    Put(name, what, "s", from, leaves);
    Put(name, what, "f", to, arrives);
  }

 private:
  void Put(const char* name, const What& what, const char* phase, const Flight& at, double ts) {
    lines_.push_back(absl::StrFormat(
        R"({"name":"%s","cat":"derived","ph":"%s","bp":"e","id":%d,"pid":%d,"tid":%d,"ts":%.3f,)"
        R"("args":{"step":%d,"bucket":%d}})",
        name, phase, id_, at.row, at.lane, ts, what.first, what.second));
  }

  std::vector<std::string>& lines_;
  int64_t id_ = 0;
};

void DrawCollective(const Flights& flights, const std::set<std::pair<int, int>>& pairs, ArrowWriter& arrows) {
  for (const auto& [bucket, by_rank] : flights) {
    for (const auto& [from, to] : pairs) {
      const auto sender = by_rank.find(from), receiver = by_rank.find(to);
      if (sender == by_rank.end() || receiver == by_rank.end()) continue;
      arrows.Add("send", bucket, sender->second, sender->second.begin, receiver->second,
                 std::max(receiver->second.begin, receiver->second.end - kInside));
    }
  }
}

// Each worker has several lanes in the servers' row, because viewers drop spans that overlap without nesting.
constexpr int64_t kLanesPerWorker = 1000;

// By bucket and rank: the first lane without an overlapping exchange.
std::map<std::pair<What, int64_t>, int64_t> LanesOf(const Flights& flights) {
  std::map<int64_t, std::vector<std::pair<Flight, What>>> by_rank;
  for (const auto& [bucket, of_ranks] : flights) {
    for (const auto& [rank, flight] : of_ranks) by_rank[rank].emplace_back(flight, bucket);
  }
  std::map<std::pair<What, int64_t>, int64_t> lanes;
  for (auto& [rank, of_rank] : by_rank) {
    std::ranges::stable_sort(of_rank, {}, [](const auto& flown) { return flown.first.begin; });
    std::vector<double> ends;
    for (const auto& [flight, bucket] : of_rank) {
      size_t lane = 0;
      while (lane < ends.size() && ends[lane] > flight.begin) ++lane;
      lane = std::min<size_t>(lane, kLanesPerWorker - 1);
      if (lane == ends.size()) ends.push_back(0);
      ends[lane] = flight.end;
      lanes[{bucket, rank}] = rank * kLanesPerWorker + static_cast<int64_t>(lane);
    }
  }
  return lanes;
}

// Adds the lanes that it uses to `rows`.
void DrawServers(const LaunchTrace& launch, const Flights& flights, std::vector<std::string>& lines,
                 ArrowWriter& arrows, std::set<int64_t>& rows) {
  const auto lanes = LanesOf(flights);
  for (const auto& [bucket, by_rank] : flights) {
    for (const auto& [rank, flight] : by_rank) {
      const double last = std::max(flight.begin, flight.end - kInside);
      const int64_t lane = lanes.at({bucket, rank});
      const Flight served = {kServersRow, lane, flight.begin, flight.end};
      rows.insert(lane);
      lines.push_back(absl::StrFormat(
          R"({"name":"exchange","cat":"derived","ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,)"
          R"("args":{"step":%d,"bucket":%d,"worker":%d,"servers":%d}})",
          kServersRow, lane, flight.begin, flight.end - flight.begin, bucket.first, bucket.second, rank,
          launch.servers));
      arrows.Add("push", bucket, flight, flight.begin, served, flight.begin);
      arrows.Add("pull", bucket, served, last, flight, last);
    }
  }
}

void DivideEventTimes(double scale, Json& event) {
  if (scale == 1) return;
  for (const char* key : {"ts", "dur"}) {
    if (const Json& time = FieldAt(event, key); time.is_number()) event[key] = time.get<double>() / scale;
  }
}

// A launch's events, from its ranks' files.
struct LaunchEvents {
  std::vector<Json> events;
  double begin = kNoTime, end = -kNoTime;  // of the events with a time
};

// Events start at `earliest` or later: on a virtual clock every launch starts at 0.
LaunchEvents EventsOf(const LaunchTrace& launch, double earliest) {
  LaunchEvents found;
  for (const std::string& text : launch.ranks) {
    std::vector<Json> events;
    if (!TakeTraceEvents(text, [&](Json& event) { events.push_back(std::move(event)); })) continue;
    for (Json& event : events) {
      if (!event.is_object()) continue;
      DivideEventTimes(launch.time_scale, event);
      found.events.push_back(std::move(event));
      const double ts = NumberAt(found.events.back(), "ts", kNoTime);
      if (ts == kNoTime) continue;
      found.begin = std::min(found.begin, ts);
      found.end = std::max(found.end, ts + NumberAt(found.events.back(), "dur", 0));
    }
  }
  const double shift = earliest - found.begin;
  if (found.begin > found.end || shift <= 0) return found;
  for (Json& event : found.events) {
    const double ts = NumberAt(event, "ts", kNoTime);
    if (ts != kNoTime) event["ts"] = ts + shift;
  }
  found.begin += shift;
  found.end += shift;
  return found;
}

std::string NameRow(int row, const char* name, int place) {
  return absl::StrFormat(R"({"name":"process_name","ph":"M","pid":%d,"args":{"name":"%s"}},)"
                         "\n"
                         R"({"name":"process_sort_index","ph":"M","pid":%d,"args":{"sort_index":%d}})",
                         row, name, row, place);
}

}  // namespace

bool TakeTraceEvents(const std::string& text, const std::function<void(UntrustedJson& event)>& take) {
  return TakeElements(text, "traceEvents", take);
}

std::string KindOf(const UntrustedJson& event) {
  const std::string category = TextAt(event, "cat");
  return category.empty() || category == "derived" ? TextAt(event, "name") : category;
}

std::string TraceJson(const std::vector<LaunchTrace>& launches) {
  std::vector<std::string> lines = {NameRow(kLaunchesRow, "psring: launches", -1)};
  ArrowWriter arrows(lines);
  std::set<int64_t> served;  // lanes of the servers' row
  double earliest = -kNoTime;
  for (const LaunchTrace& launch : launches) {
    const auto [events, begin, end] = EventsOf(launch, earliest);
    Flights flights;
    for (const Json& event : events) {
      lines.push_back(DumpUntrusted(event));
      NoteFlight(event, flights);
    }
    if (begin > end) continue;
    earliest = end + kBetweenLaunches;
    Json args = {{"strategy", launch.strategy},
                 {"workers", launch.workers},
                 {"servers", launch.servers},
                 {"backend", launch.backend},
                 {"algorithm", launch.algorithm}};
    if (launch.copy_streams == 1) args["copy_streams"] = 1;
    if (launch.tied_every > 0) args["tied_every"] = launch.tied_every;
    lines.push_back(JsonText(Json({{"name", launch.name},
                                   {"ph", "X"},
                                   {"pid", kLaunchesRow},
                                   {"tid", 0},
                                   {"ts", begin},
                                   {"dur", end - begin},
                                   {"args", args}})));
    const std::set<std::pair<int, int>> pairs = SendersAndReceivers(launch);
    Flights of_servers;
    if (launch.servers > 0) {
      of_servers = flights;
      std::erase_if(of_servers,
                    [&](const auto& flight) { return flight.first.second < launch.group_buckets; });
      std::erase_if(flights, [&](const auto& flight) { return flight.first.second >= launch.group_buckets; });
    }
    DrawCollective(Thinned(flights, pairs.size()), pairs, arrows);
    DrawServers(launch, Thinned(of_servers, 2 * launch.workers), lines, arrows, served);
  }
  if (!served.empty()) lines.push_back(NameRow(kServersRow, "servers, as seen by workers", kServersRow));
  for (const int64_t lane : served) {
    lines.push_back(
        absl::StrFormat(R"({"name":"thread_name","ph":"M","pid":%d,"tid":%d,"args":{"name":"worker %d"}})",
                        kServersRow, lane, lane / kLanesPerWorker));
  }
  return absl::StrCat("{\"traceEvents\":[\n", absl::StrJoin(lines, ",\n"), "\n]}\n");
}

}  // namespace psring
