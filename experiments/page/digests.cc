#include "experiments/page/digests.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/io/untrusted_json.h"
#include "common/measure/arrivals.h"
#include "common/measure/trace.h"
#include "experiments/page/simulated_step.h"
#include "experiments/run_folder/run_trace.h"
#include "ps_server/consistency/consistency.h"

namespace psring {
namespace {

using Json = UntrustedJson;

constexpr size_t kMaxSpans = 1500, kMaxArrows = 400;  // of a launch
constexpr double kMaxStep = 1e15;

struct Span {
  double rank, step, bucket, begin_us, us;
  std::string lane;         // its kind
  std::string action = "";  // of a pipeline's program
  double end_us() const { return begin_us + us; }
};

struct Arrow {
  double from = -1, to = -1, step = -1, bucket = -1, leaves_us = -1, arrives_us = -1;
};

// A round of a schedule on one rank, in a bucket's exchange.
struct Round {
  double rank, step, bucket, number, begin_us, end_us;
};

struct TracedLaunch {
  Span span;
  std::string algorithm;
  double workers = 0;
  int copy_streams = 2, tied_every = 0;  // as in LaunchTrace
};

// One pass over the file.
struct Events {
  std::vector<Span> spans;
  std::vector<Round> rounds;
  std::vector<TracedLaunch> launches;
  std::map<double, Arrow> arrows;  // by id
};

// The rank of a row of the trace: -1 for the servers.
double RankOf(double row) { return row == kServersRow ? -1 : row; }

void NoteSpan(const Json& event, Events& events) {
  const Json& args = FieldAt(event, "args");
  const double row = NumberAt(event, "pid", -2);
  Span span{RankOf(row),
            NumberAt(args, "step", -1),
            NumberAt(args, "bucket", -1),
            NumberAt(event, "ts", 0),
            NumberAt(event, "dur", 0),
            KindOf(event)};
  if (const std::string name = TextAt(event, "name"); name != span.lane) span.action = name;
  if (row == kLaunchesRow) {
    const bool schedule = NumberAt(args, "servers", 0) == 0;
    events.launches.push_back({span, schedule ? TextAt(args, "algorithm") : "", NumberAt(args, "workers", 0),
                               NumberAt(args, "copy_streams", 2) == 1 ? 1 : 2,
                               static_cast<int>(std::clamp(NumberAt(args, "tied_every", 0), 0., 1e6))});
  } else if (span.lane == "round") {
    events.rounds.push_back(
        {span.rank, span.step, span.bucket, NumberAt(args, "round", -1), span.begin_us, span.end_us()});
  } else if (span.rank >= -1 && span.lane != SpanName(SpanKind::kUnit)) {
    events.spans.push_back(span);
  }
}

void NoteEvent(const Json& event, Events& events) {
  const std::string phase = TextAt(event, "ph");
  if (phase == "X") NoteSpan(event, events);
  if (phase != "s" && phase != "f") return;
  Arrow& arrow = events.arrows[NumberAt(event, "id", -1)];
  (phase == "s" ? arrow.from : arrow.to) = RankOf(NumberAt(event, "pid", -2));
  (phase == "s" ? arrow.leaves_us : arrow.arrives_us) = NumberAt(event, "ts", -1);
  if (event.contains("args")) {
    arrow.step = NumberAt(event["args"], "step", -1);
    arrow.bucket = NumberAt(event["args"], "bucket", -1);
  }
}

Events EventsOf(const std::string& text) {
  Events events;
  if (!TakeTraceEvents(text, [&events](const Json& event) { NoteEvent(event, events); })) return {};
  return events;
}

struct Step {
  double number = -1, begin_us = 0, end_us = 0;
};

// Rank 0's step of median duration, of those in `among` if it is not empty.
Step MedianStep(const std::vector<Span>& spans, const std::set<double>& among) {
  std::map<double, Step> found;
  for (const Span& span : spans) {
    if (span.rank != 0 || span.step < 0) continue;
    if (!among.empty() && !among.contains(span.step)) continue;
    const auto [at, fresh] = found.try_emplace(span.step, Step{span.step, span.begin_us, span.end_us()});
    at->second.begin_us = std::min(at->second.begin_us, span.begin_us);
    at->second.end_us = std::max(at->second.end_us, span.end_us());
  }
  std::vector<Step> steps;
  for (const auto& [number, step] : found) steps.push_back(step);
  if (steps.empty()) return {};
  std::ranges::sort(steps, {}, [](const Step& step) { return step.end_us - step.begin_us; });
  return steps[(steps.size() - 1) / 2];
}

double RoundedMs(double us) { return std::round(us * 10) / 1e4; }

// Whole ns of an untrusted time.
int64_t NanosOf(double us) { return std::llround(1e3 * std::clamp(us, -1e15, 1e15)); }

// The step of a pipeline as the program with the launch's median times: {ms, bubble_ms, measured_bubble_ms,
// spans: as those of the launch}; null for other launches. Of the bubble, the mean over ranks.
Json SimulatedJson(const std::vector<Span>& spans, double step, const TracedLaunch& launch) {
  if (!(std::abs(step) <= kMaxStep)) return nullptr;
  std::vector<TracedAction> actions;
  std::set<double> ranks;
  double bubble_us = 0;
  for (const Span& span : spans) {
    if (span.lane == SpanName(SpanKind::kBubble) && span.step == step) bubble_us += span.us;
    const std::optional<StepAction> action = StepActionOf(span.action);
    if (!action || span.rank > kLaunchesRow || std::abs(span.step) > kMaxStep) continue;
    ranks.insert(span.rank);
    actions.push_back({.rank = static_cast<int64_t>(span.rank),
                       .step = static_cast<int64_t>(span.step),
                       .timed = {*action, {NanosOf(span.begin_us), NanosOf(span.end_us())}}});
  }
  const std::optional<SimulatedStep> simulated =
      SimulateStep(actions, static_cast<int64_t>(step), launch.copy_streams, launch.tied_every);
  if (!simulated || simulated->spans.size() > kMaxSpans) return nullptr;
  Json json = {{"ms", RoundedMs(1e-3 * simulated->end_ns)},
               {"bubble_ms", RoundedMs(1e-3 * simulated->bubble_ns)},
               {"measured_bubble_ms", RoundedMs(bubble_us / static_cast<double>(ranks.size()))},
               {"spans", Json::array()}};
  for (const auto& [rank, kind, action, time] : simulated->spans) {
    json["spans"].push_back({rank, kind, -1, RoundedMs(1e-3 * time.begin_ns),
                             RoundedMs(1e-3 * (time.end_ns - time.begin_ns)), action});
  }
  return json;
}

// The end of each round of `step` on the last rank, from the last rank's start, summed over buckets. Empty if
// a rank's bucket is missing or buckets differ in their number of rounds.
std::optional<std::vector<double>> RoundEndsUs(const std::vector<Span>& spans,
                                               const std::vector<Round>& rounds, double step,
                                               double workers) {
  struct Bucket {
    double last_begin = 0;
    std::set<double> ranks;
    std::map<double, double> ends;  // by round: on the last rank
  };
  std::map<double, Bucket> buckets;
  for (const Span& span : spans) {
    if (span.step != step || span.lane != "communication" || span.rank < 0) continue;
    Bucket& bucket = buckets[span.bucket];
    bucket.last_begin = std::max(bucket.last_begin, span.begin_us);
    bucket.ranks.insert(span.rank);
  }
  for (const Round& round : rounds) {
    if (round.step != step || !buckets.contains(round.bucket)) continue;
    double& end = buckets[round.bucket].ends[round.number];
    end = std::max(end, round.end_us);
  }
  std::vector<double> sums;
  for (const auto& [index, bucket] : buckets) {
    if (static_cast<double>(bucket.ranks.size()) != workers || bucket.ends.empty()) return std::nullopt;
    if (bucket.ends.begin()->first != 0 || bucket.ends.rbegin()->first != bucket.ends.size() - 1.0)
      return std::nullopt;
    if (sums.empty()) sums.resize(bucket.ends.size());
    if (sums.size() != bucket.ends.size()) return std::nullopt;
    double until = bucket.last_begin;
    size_t i = 0;
    for (const auto& [number, end] : bucket.ends) {
      until = std::max(until, end);
      sums[i++] += until - bucket.last_begin;
    }
  }
  if (sums.empty()) return std::nullopt;
  return sums;
}

Json LaunchJson(const TracedLaunch& launch, const Events& events) {
  std::vector<Span> inside;
  for (const Span& span : events.spans) {
    if (span.begin_us >= launch.span.begin_us - 1 && span.end_us() <= launch.span.end_us() + 1)
      inside.push_back(span);
  }
  // Steps with the most data.
  std::set<double> arrowed;
  for (const Span& span : inside) {
    if (span.lane == SpanName(SpanKind::kMessage)) arrowed.insert(span.step);
  }
  for (const auto& [id, arrow] : events.arrows) {
    if (arrow.leaves_us >= launch.span.begin_us && arrow.arrives_us <= launch.span.end_us())
      arrowed.insert(arrow.step);
  }
  std::vector<Round> rounds;
  std::set<double> shown;
  for (const Round& round : events.rounds) {
    if (round.begin_us < launch.span.begin_us - 1 || round.end_us > launch.span.end_us() + 1) continue;
    rounds.push_back(round);
    if (arrowed.empty() || arrowed.contains(round.step)) shown.insert(round.step);
  }
  const Step step = MedianStep(inside, shown.empty() ? arrowed : shown);
  const auto round_ends = RoundEndsUs(inside, rounds, step.number, launch.workers);
  const Json simulated = SimulatedJson(inside, step.number, launch);
  std::erase_if(inside, [&](const Span& span) {
    return span.end_us() <= step.begin_us || span.begin_us >= step.end_us ||
           (!simulated.is_null() && span.step != step.number);
  });
  if (inside.empty()) return nullptr;
  if (inside.size() > kMaxSpans) {
    std::ranges::stable_sort(inside, std::ranges::greater(), &Span::us);
    inside.resize(kMaxSpans);
  }
  Json spans = Json::array(), arrows = Json::array();
  const auto at = [&](double us) { return RoundedMs(us - step.begin_us); };
  for (const Span& span : inside) {
    spans.push_back({span.rank, span.lane, span.bucket, at(span.begin_us), RoundedMs(span.us)});
    if (!span.action.empty()) spans.back().push_back(span.action);
  }
  int64_t left_out = 0;
  for (const auto& [id, arrow] : events.arrows) {
    const bool whole = arrow.from >= -1 && arrow.to >= -1 && arrow.leaves_us >= 0 && arrow.arrives_us >= 0;
    if (!whole || arrow.arrives_us <= step.begin_us || arrow.leaves_us >= step.end_us) continue;
    if (arrows.size() == kMaxArrows) {
      ++left_out;
      continue;
    }
    arrows.push_back({arrow.from, arrow.to, arrow.bucket, at(arrow.leaves_us), at(arrow.arrives_us)});
  }
  Json json = {{"name", launch.span.lane},  {"algorithm", launch.algorithm},
               {"workers", launch.workers}, {"ms", RoundedMs(step.end_us - step.begin_us)},
               {"rounds_ms", nullptr},      {"spans", spans},
               {"arrows", arrows},          {"arrows_left_out", left_out},
               {"simulated", simulated}};
  if (round_ends.has_value()) {
    json["rounds_ms"] = Json::array();
    for (const double us : *round_ends) json["rounds_ms"].push_back(RoundedMs(us));
  }
  return json;
}

}  // namespace

std::string DigestTrace(const std::string& text) {
  const Events events = EventsOf(text);
  Json json = {{"most_spans", kMaxSpans}, {"launches", Json::array()}};
  for (const TracedLaunch& launch : events.launches) {
    Json one = LaunchJson(launch, events);
    if (!one.is_null()) json["launches"].push_back(std::move(one));
  }
  return DumpUntrusted(json);
}

namespace {

constexpr size_t kMaxPoints = 150;        // of a curve
constexpr size_t kLongestLine = 1 << 20;  // a step with 1,000 buckets has 150 KB

// Rank 0's steps of one launch.
struct Launch {
  std::string strategy, part;
  int64_t workers;
  double repeat;
  auto operator<=>(const Launch&) const = default;
};

struct LossPoint {
  double samples, begin_ns, loss;
};

// At most kMaxPoints points, each the mean of neighboring steps.
Json Averaged(const std::vector<LossPoint>& points) {
  const size_t group = (points.size() + kMaxPoints - 1) / kMaxPoints;
  Json list = Json::array();
  for (size_t begin = 0; begin < points.size(); begin += group) {
    const size_t end = std::min(begin + group, points.size());
    LossPoint sum{0, 0, 0};
    for (size_t i = begin; i < end; ++i) {
      sum.samples += points[i].samples;
      sum.begin_ns += points[i].begin_ns - points.front().begin_ns;
      sum.loss += points[i].loss;
    }
    const double count = static_cast<double>(end - begin);
    list.push_back({sum.samples / count, sum.begin_ns / count * 1e-9, sum.loss / count});
  }
  return list;
}

}  // namespace

std::string DigestSteps(const std::string& text) {
  std::map<Launch, std::vector<LossPoint>> losses;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line.size() > kLongestLine) continue;
    const Json step = ParseUntrusted(std::string(line));
    const double workers = NumberAt(step, "workers", 0);
    const double loss = NumberAt(step, "loss", NAN);
    if (NumberAt(step, "rank", -1) != 0 || !(workers >= 1 && workers < 1e6) || !std::isfinite(loss)) continue;
    const Launch launch{TextAt(step, "strategy"), TextAt(step, "part"), static_cast<int64_t>(workers),
                        NumberAt(step, "repeat", 0)};
    auto& points = losses[launch];
    const double before = points.empty() ? 0 : points.back().samples;
    points.push_back({before + NumberAt(step, "samples", 0) * workers, NumberAt(step, "begin_ns", 0), loss});
  }
  Json json = {{"most_points", kMaxPoints}, {"loss", Json::array()}};
  // Cost rounds repeat the same first steps, so one represents all.
  for (const auto& [launch, points] : losses) {
    if (launch.part == "cost" && launch.repeat > 0) continue;
    json["loss"].push_back({{"strategy", launch.strategy},
                            {"workers", launch.workers},
                            {"part", launch.part},
                            {"repeat", launch.repeat},
                            {"points", Averaged(points)}});
  }
  return DumpUntrusted(json);
}

std::string DigestArrivals(const std::string& name, const std::string& bytes) {
  const absl::StatusOr<Arrivals> arrivals = ArrivalsFromBytes(bytes);
  if (!arrivals.ok() || arrivals->updates.empty() || arrivals->workers < 1) return "";
  const auto consistency = MakeConsistency(arrivals->consistency, arrivals->workers);
  if (!consistency.ok()) return "";

  std::vector<int64_t> reads(arrivals->workers, 0), step(arrivals->workers, 0);  // by worker
  Json pushes = Json::array();
  int64_t updates = 0, most = 0;
  double sum = 0;
  for (const uint16_t worker : arrivals->updates.front()) {
    const int64_t before = (*consistency)->version(), stale = before - reads[worker];
    const Consistency::Decision decision = (*consistency)->OnPush(worker, step[worker]++);
    if (!decision.accept || decision.apply_count != 1) return "";
    if (pushes.size() < kMaxPushes) pushes.push_back({worker, reads[worker], before + 1});
    for (const int reader : decision.may_read) reads[reader] = (*consistency)->version();
    ++updates;
    sum += stale;
    most = std::max(most, stale);
  }
  if (updates == 0) return "";
  return DumpUntrusted({{"name", name},
                        {"workers", arrivals->workers},
                        {"rule", arrivals->consistency},
                        {"updates", updates},
                        {"staleness_mean", sum / static_cast<double>(updates)},
                        {"staleness_max", most},
                        {"pushes", pushes}});
}

std::string ThinCsv(const std::string& text, size_t lines) {
  const std::vector<absl::string_view> all = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (all.size() <= lines || lines < 3) return text;
  std::vector<absl::string_view> kept = {all.front()};
  const size_t body = all.size() - 1, keep = lines - 1;
  for (size_t i = 0; i < keep; ++i) kept.push_back(all[1 + i * (body - 1) / (keep - 1)]);
  return absl::StrCat(absl::StrJoin(kept, "\n"), "\n");
}

}  // namespace psring
