#include "experiments/processes/live_run.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/io/json_text.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kRateOver = 2'000'000'000;
constexpr int64_t kPointEvery = 500'000'000;

Json OrNull(double value) { return std::isfinite(value) && value >= 0 ? Json(value) : Json(nullptr); }

}  // namespace

LiveRun::LiveRun(const std::string& run_id, const std::string& report, double link_bits_per_s,
                 bool counts_tokens, Clock clock)
    : run_id_(run_id),
      report_(report),
      link_bits_per_s_(link_bits_per_s),
      counts_tokens_(counts_tokens),
      clock_(std::move(clock)),
      begin_ns_(clock_()) {}

void LiveRun::Begin(const std::string& launch, int ranks) {
  MutexLock lock(mutex_);
  launch_ = launch;
  launch_ns_ = clock_();
  ranks_.assign(static_cast<size_t>(ranks), {});
  recent_.clear();
  points_.clear();
  samples_per_s_ = bits_per_s_ = -1;
  point_every_ns_ = kPointEvery;
  next_point_ns_ = 0;
}

LiveRun::Totals LiveRun::Now() const {
  Totals sums{.at_ns = clock_()};
  for (const ProgressEvent& rank : ranks_) {
    sums.samples += static_cast<double>(rank.samples);
    sums.tx_bytes += static_cast<double>(rank.tx_bytes);
  }
  return sums;
}

double LiveRun::Loss() const {
  double sum = 0;
  int count = 0;
  for (const ProgressEvent& rank : ranks_) {
    if (rank.step == 0) continue;
    sum += rank.loss;
    ++count;
  }
  return count > 0 ? sum / count : NAN;
}

void LiveRun::Note(const ProgressEvent& event) {
  MutexLock lock(mutex_);
  if (event.rank < 0 || event.rank >= static_cast<int>(ranks_.size())) return;
  ProgressEvent& last = ranks_[static_cast<size_t>(event.rank)];
  if (event.event != "step") {  // other events have no counts
    last.event = event.event;
    return;
  }
  last = event;
  const Totals now = Now();
  recent_.push_back(now);
  // Keeps the newest entry that is at least kRateOver old, and all after it.
  while (recent_.size() > 2 && now.at_ns - recent_[1].at_ns >= kRateOver) recent_.erase(recent_.begin());
  const double seconds = 1e-9 * static_cast<double>(now.at_ns - recent_.front().at_ns);
  if (seconds > 0.3) {
    samples_per_s_ = (now.samples - recent_.front().samples) / seconds;
    bits_per_s_ =
        8 * (now.tx_bytes - recent_.front().tx_bytes) / seconds / static_cast<double>(ranks_.size());
  }
  if (now.at_ns < next_point_ns_ || samples_per_s_ < 0) return;
  next_point_ns_ = now.at_ns + point_every_ns_;
  points_.push_back({1e-9 * static_cast<double>(now.at_ns - launch_ns_), samples_per_s_, Loss()});
  if (points_.size() < kMostPoints) return;
  for (size_t i = 0; i < points_.size() / 2; ++i) points_[i] = points_[2 * i];
  points_.resize(points_.size() / 2);
  point_every_ns_ *= 2;
}

void LiveRun::End(const std::string& outcome) {
  MutexLock lock(mutex_);
  if (launch_.empty()) return;
  done_.push_back({launch_, outcome, 1e-9 * static_cast<double>(clock_() - launch_ns_)});
  launch_.clear();
}

std::string LiveRun::Json() const {
  MutexLock lock(mutex_);
  const int64_t now = clock_();
  psring::Json json = {{"run_id", run_id_},
                       {"report", report_},
                       {"unit", counts_tokens_ ? "tokens" : "samples"},
                       {"elapsed_s", 1e-9 * static_cast<double>(now - begin_ns_)},
                       {"launch", launch_},
                       {"ranks", psring::Json::array()},
                       {"points", psring::Json::array()},
                       {"done", psring::Json::array()}};
  for (const Finished& one : done_) {
    json["done"].push_back({{"launch", one.launch}, {"outcome", one.outcome}, {"seconds", one.seconds}});
  }
  if (!launch_.empty()) {
    int64_t least = INT64_MAX, planned = 0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const ProgressEvent& last = ranks_[rank];
      least = std::min(least, last.step);
      planned = std::max(planned, last.steps);
      json["ranks"].push_back({{"rank", rank},
                               {"doing", last.event.empty() ? "starting" : last.event},
                               {"step", last.step},
                               {"steps", last.steps},
                               {"loss", last.step > 0 ? OrNull(last.loss) : psring::Json(nullptr)}});
    }
    json["launch_s"] = 1e-9 * static_cast<double>(now - launch_ns_);
    json["steps"] = ranks_.empty() ? 0 : least;
    json["steps_planned"] = planned;
    json["samples_per_s"] = OrNull(samples_per_s_);
    json["mbit_per_s"] = OrNull(bits_per_s_ < 0 ? -1 : bits_per_s_ / 1e6);
    json["link_pct"] =
        OrNull(bits_per_s_ < 0 || link_bits_per_s_ <= 0 ? -1 : 100 * bits_per_s_ / link_bits_per_s_);
    json["loss"] = OrNull(Loss());
    for (const Point& point : points_) {
      json["points"].push_back({point.seconds, point.samples_per_s, OrNull(point.loss)});
    }
  }
  return JsonText(json);
}

}  // namespace psring
