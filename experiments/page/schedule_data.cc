#include "experiments/page/schedule_data.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "experiments/page/glossary.h"
#include "experiments/page/playback.h"
#include "experiments/simulator/servers.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTheoryWorkers = 64, kMaxRanks = 16;

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

// Without a fraction, which makes the page larger, if it has none.
Json NumberJson(double value) {
  const auto whole = static_cast<int64_t>(value);
  return static_cast<double>(whole) == value ? Json(whole) : Json(value);
}

Json TermsJson(const CommPattern& pattern) {
  const CommTerms terms = TermsOf(pattern, 1);
  return Json::array({NumberJson(terms.messages), NumberJson(terms.link_bytes),
                      NumberJson(terms.medium_bytes), NumberJson(terms.added_bytes)});
}

Json ByWorkers(CommPattern pattern) {
  Json list = Json::array();
  const int servers = pattern.servers;
  for (pattern.workers = 1; pattern.workers <= kTheoryWorkers; ++pattern.workers) {
    // At most one colocated server per worker.
    if (pattern.place == ServerPlace::kColocated) pattern.servers = std::min(servers, pattern.workers);
    list.push_back(TermsJson(pattern));
  }
  return list;
}

struct Spread {
  const char* name;
  double jitter;
  int slow_workers;
};
constexpr Spread kSpreads[] = {{"even", 0.02, 0}, {"uneven", 0.4, 0}, {"straggler", 0.02, 1}};
constexpr int kWorkers[] = {2, 4, 8, 16};
constexpr const char* kRules[] = {"sync", "ssp:1", "ssp:2", "ssp:4", "ssp:8", "async"};

// A network and servers with almost no delay.
Cluster Instant() {
  return {.link_bytes_per_s = 1e15,
          .fraction = 1,
          .latency_s = 1e-9,
          .add_s_per_byte = 0,
          .server_add_s_per_byte = 0,
          .server_update_s_per_byte = 0};
}

double Rounded(double value) { return std::round(value * 1e4) / 1e4; }

// For the page, which shows one of them.
Json BothLanguages(const char* english) {
  return Json::array({english, InLanguage(Language::kChinese, [&] { return Tr(english); })});
}

// What a rank computes and sends, as words of ProgramsJson.
struct PlayedWords {
  std::string actions, sends;
};

PlayedWords WordsOf(const PlayedProgram& played, int rank) {
  PlayedWords words;
  for (size_t i = 0; i < played.walk.nodes[rank].size(); ++i) {
    StepAction action = played.walk.nodes[rank][i].action;
    const int64_t begin = played.walk.times[rank][i].begin_ns;
    action.unit = -1;
    if (LaneOf(action.kind) == StepLane::kCompute) {
      absl::StrAppend(&words.actions, words.actions.empty() ? "" : " ", ToText(action), ":", begin);
    }
    const bool forward = action.kind == StepKind::kSendActivation;
    if (!forward && action.kind != StepKind::kSendGradient) continue;
    const int to = played.program.rank_of[forward ? action.stage + 1 : action.stage - 1];
    action.kind = forward ? StepKind::kForward : StepKind::kBackward;
    absl::StrAppend(&words.sends, words.sends.empty() ? "" : " ", ToText(action), ">", to, ":", begin);
  }
  return words;
}

}  // namespace

std::string SchedulesJson(const std::vector<int>& ranks, const ScheduleTable& rows) {
  Json list = Json::array();
  for (int count : std::set<int>(ranks.begin(), ranks.end())) {
    if (count < 2 || count > kMaxRanks) continue;
    for (const ScheduleRow& row : rows) {
      const std::unique_ptr<Schedule> schedule = row.make(Collective::kAllReduce, {.ranks = count});
      if (schedule == nullptr || row.cost == nullptr) continue;
      const ScheduleCost cost = row.cost(count, 1);
      Json added = Json::array();
      const Json rounds = RoundsOf(*schedule, added);
      list.push_back({{"algorithm", row.name},
                      {"ranks", count},
                      {"chunks", schedule->chunks()},
                      {"has_root", row.traits.has_root},
                      {"summary", BothLanguages(row.summary)},
                      {"note", BothLanguages(cost.note)},
                      {"formula", {cost.latency, cost.bytes, cost.adding}},
                      {"rounds", rounds},
                      {"added", added}});
    }
  }
  return Json({{"schedules", list}}).dump();
}

std::string ProgramsJson(const ProgramTable& rows) {
  Json units, list = Json::array();
  for (const auto& [letter, kind] :
       {std::pair("F", StepKind::kForward), std::pair("B", StepKind::kBackward),
        std::pair("I", StepKind::kBackwardInput), std::pair("W", StepKind::kBackwardWeight)}) {
    units[letter] = UnitsOf(kind);
  }
  for (const ProgramRow& row : rows) {
    if (row.one_rank) continue;
    const NamedProgram named{.row = row, .chunks = row.takes_chunks ? 2 : 1};
    for (const int ranks : {2, 4}) {
      for (const int micro_batches : {2, 4, 8}) {
        const absl::StatusOr<PlayedProgram> played = PlayProgram(named, ranks, micro_batches);
        PSRING_CHECK(played.ok());
        Json in_flight = Json::array(), actions = Json::array(), sends = Json::array();
        for (int rank = 0; rank < ranks; ++rank) {
          const PlayedWords words = WordsOf(*played, rank);
          in_flight.push_back(played->in_flight(rank));
          actions.push_back(words.actions);
          sends.push_back(words.sends);
        }
        list.push_back({{"name", named.name()},
                        {"summary", BothLanguages(row.summary)},
                        {"ranks", ranks},
                        {"micro_batches", micro_batches},
                        {"end", played->walk.end_ns},
                        {"bubble", Rounded(played->walk.Bubble())},
                        {"in_flight", in_flight},
                        {"actions", actions},
                        {"sends", sends}});
      }
    }
  }
  return Json({{"units", units}, {"programs", list}}).dump();
}

std::string TheoryJson(const ScheduleTable& rows) {
  Json workers = Json::array(), schemes = Json::object(), server = Json::object();
  for (int n = 1; n <= kTheoryWorkers; ++n) workers.push_back(n);
  for (const ScheduleRow& row : rows) {
    if (row.cost != nullptr) schemes[row.name] = ByWorkers({.scheme = Scheme::AllReduce(row)});
  }
  const std::vector<int> counts = {1, 2, 4, 8, 16, 32, 64};
  const std::pair<const char*, ServerPlace> places[] = {{"rank0", ServerPlace::kRank0},
                                                        {"dedicated", ServerPlace::kDedicated},
                                                        {"colocated", ServerPlace::kColocated}};
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

std::string ChartOrderJson() {
  std::map<int, std::string> names;
  for (const StrategyRow& row : StrategyRows()) {
    if (row.chart_place >= 0) names[row.chart_place] = row.name;
  }
  Json list = Json::array();
  for (const auto& [place, name] : names) list.push_back(name);
  return list.dump();
}

std::string StalenessJson() {
  Json json = {{"workers", kWorkers}, {"rules", kRules}};
  for (const Spread& spread : kSpreads) json["spreads"].push_back(spread.name);
  for (size_t w = 0; w < std::size(kWorkers); ++w) {
    for (size_t s = 0; s < std::size(kSpreads); ++s) {
      for (const char* rule : kRules) {
        const absl::StatusOr<ServerTime> time = SimulateServers({.consistency = rule,
                                                                 .workers = kWorkers[w],
                                                                 .place = ServerPlace::kDedicated,
                                                                 .backward_s = 1,
                                                                 .bucket_bytes = {4},
                                                                 .ready_s = {1},
                                                                 .slow_workers = kSpreads[s].slow_workers,
                                                                 .slowness = 2,
                                                                 .jitter = kSpreads[s].jitter,
                                                                 .warmup_steps = 10,
                                                                 .steps = 150},
                                                                Instant());
        PSRING_CHECK(time.ok());
        json["progress"][w][s].push_back(Rounded(time->worker_steps_per_s / kWorkers[w]));
        json["staleness"][w][s].push_back(Rounded(std::max(0.0, time->staleness_mean)));
        json["staleness_max"][w][s].push_back(std::max(0.0, time->staleness_max));
      }
    }
  }
  return json.dump();
}

std::string GlossaryJson() {
  Json list = Json::array();
  for (const Word& word : kWords) list.push_back({word.word, BothLanguages(word.meaning)});
  return list.dump();
}

}  // namespace psring
