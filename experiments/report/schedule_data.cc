#include "experiments/report/schedule_data.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "experiments/report/playback.h"
#include "experiments/theory/cost_model.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostWorkers = 64, kMostRanks = 16;

Json RoundsOf(const Schedule& schedule, Json& added) {
  Json rounds = Json::array();
  Playback playback(schedule, Collective::kAllReduce);
  while (!playback.done()) {
    const int64_t before = playback.traffic().most_added;
    Json hops = Json::array();
    for (const Hop& hop : playback.Step()) {
      hops.push_back({hop.from, hop.to, hop.first_chunk, hop.chunk_count, hop.adds ? 1 : 0});
    }
    rounds.push_back(hops);
    added.push_back(playback.traffic().most_added - before);
  }
  return rounds;
}

Json TermsJson(const CommPattern& pattern) {
  const CommTerms terms = TermsOf(pattern, 1);
  return {terms.messages, terms.link_bytes, terms.medium_bytes, terms.added_bytes};
}

Json ByWorkers(CommPattern pattern) {
  Json list = Json::array();
  for (pattern.workers = 1; pattern.workers <= kMostWorkers; ++pattern.workers) {
    list.push_back(TermsJson(pattern));
  }
  return list;
}

}  // namespace

std::string SchedulesJson(const std::vector<int>& ranks, const ScheduleTable& rows) {
  Json list = Json::array();
  for (int count : std::set<int>(ranks.begin(), ranks.end())) {
    if (count < 2 || count > kMostRanks) continue;
    for (const ScheduleRow& row : rows) {
      const std::unique_ptr<Schedule> schedule = row.make(Collective::kAllReduce, {.ranks = count});
      if (schedule == nullptr || row.cost == nullptr) continue;
      const ScheduleCost cost = row.cost(count, 1);
      Json added = Json::array();
      const Json rounds = RoundsOf(*schedule, added);
      list.push_back({{"algorithm", row.name},
                      {"ranks", count},
                      {"chunks", schedule->chunks()},
                      {"summary", {row.summary, row.summary_chinese}},
                      {"note", {cost.note, cost.note_chinese}},
                      {"formula", {cost.latency, cost.bytes, cost.adding}},
                      {"rounds", rounds},
                      {"added", added}});
    }
  }
  return Json({{"schedules", list}}).dump();
}

std::string TheoryJson(const ScheduleTable& rows) {
  Json workers = Json::array(), schemes = Json::object(), server = Json::object();
  for (int n = 1; n <= kMostWorkers; ++n) workers.push_back(n);
  for (const ScheduleRow& row : rows) {
    if (row.cost != nullptr) schemes[row.name] = ByWorkers({.scheme = {Scheme::Kind::kAllReduce, &row}});
  }
  const std::vector<int> counts = {1, 2, 4, 8, 16, 32, 64};
  const std::pair<const char*, ServerPlace> places[] = {{"rank0", ServerPlace::kRank0},
                                                        {"dedicated", ServerPlace::kDedicated}};
  for (const auto& [name, place] : places) {
    for (bool pipelined : {false, true}) {
      Json by_servers = Json::array();
      for (int servers : counts) {
        by_servers.push_back(ByWorkers(
            {.scheme = Scheme::kServerSync, .place = place, .pipelined = pipelined, .servers = servers}));
      }
      server[name][pipelined ? "pipelined" : "serial"] = by_servers;
    }
  }
  return Json({{"workers", workers}, {"servers", counts}, {"schemes", schemes}, {"server", server}}).dump();
}

}  // namespace psring
