#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/untrusted_json.h"
#include "experiments/page/page.h"
#include "experiments/run_folder/run_trace.h"

namespace psring {
namespace {

using Json = UntrustedJson;

constexpr int kComputing = 7, kFirstLane = 20;  // streams
constexpr int kLanes = 1000;                    // per kind of span in trace.json

struct ProfiledLaunch {
  std::string name;
  double begin = 0, end = 0;
};

// Waiting and rounds are excluded: they overlap these spans.
bool IsWork(const std::string& name) {
  return name == "forward" || name == "backward" || name == "optimizer" || name == "communication";
}

class RankTrace {
 public:
  void Add(int rank, const Json& event, const std::string& name) {
    const bool moves = name == "communication";
    const double ts = NumberAt(event, "ts", 0), us = NumberAt(event, "dur", 0);
    const int lane = std::fmod(std::max(0.0, NumberAt(event, "tid", 0)), kLanes);
    const int stream = moves ? kFirstLane + lane : kComputing;
    const Json& args = FieldAt(event, "args");
    const auto step = CountAt(args, "step", -1);
    Json shown = {{"stream", stream}, {"device", rank}, {"correlation", events_.size() + 1}, {"step", step}};
    if (moves) shown["bucket"] = CountAt(args, "bucket", -1);
    events_.push_back({{"ph", "X"},
                       {"cat", "kernel"},
                       {"name", moves ? "ncclKernel_psring" : name},
                       {"pid", rank},
                       {"tid", stream},
                       {"ts", ts},
                       {"dur", us},
                       {"args", std::move(shown)}});
  }

  std::string Text(int rank, size_t ranks) const {
    // HolisticTraceAnalysis searches for this exact text, including the spaces.
    return absl::StrCat("{\"schemaVersion\": 1,\n\"distributedInfo\": {\"rank\": ", rank,
                        ", \"world_size\": ", ranks, "},\n\"traceEvents\": ", DumpUntrusted(events_), "}\n");
  }

 private:
  Json events_ = Json::array();
};

}  // namespace

std::string FileName(const std::string& name) {
  std::string file = name;
  for (char& c : file) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_') c = '-';
  }
  return file.starts_with('.') ? absl::StrCat("-", file) : file;
}

std::map<std::string, std::string> KinetoTraces(const std::string& trace_json) {
  std::map<std::string, std::string> files;
  std::vector<ProfiledLaunch> launches;
  std::vector<Json> events;  // spans of ranks
  const bool is_trace = TakeTraceEvents(trace_json, [&](Json& event) {
    if (TextAt(event, "ph") != "X") return;
    const double row = NumberAt(event, "pid", -1), ts = NumberAt(event, "ts", 0);
    if (row == kLaunchesRow) {
      launches.push_back({TextAt(event, "name"), ts, ts + NumberAt(event, "dur", 0)});
    } else if (row >= 0 && row < kLaunchesRow && IsWork(KindOf(event))) {
      events.push_back(std::move(event));
    }
  });
  if (!is_trace) return files;
  for (const ProfiledLaunch& launch : launches) {
    std::map<int, RankTrace> ranks;
    for (const Json& event : events) {
      const int rank = NumberAt(event, "pid", -1);
      const double ts = NumberAt(event, "ts", -1);
      if (ts >= launch.begin && ts <= launch.end) ranks[rank].Add(rank, event, KindOf(event));
    }
    for (const auto& [rank, spans] : ranks) {
      files[absl::StrCat(FileName(launch.name), "/rank-", rank, ".json")] = spans.Text(rank, ranks.size());
    }
  }
  return files;
}

}  // namespace psring
