#include "trainer/main/step_probe.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/files.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBetweenReadings = 100'000'000;  // ns: reading takes about a tenth of a millisecond
constexpr int kTriedSpans = 2000;

double Ms(int64_t ns) { return 1e-6 * static_cast<double>(ns); }

// The cost of one span, in untouched memory as in a run.
double SpanMs() {
  Trace trace(0, kTriedSpans);
  const int64_t begin = trace.Now();
  for (int i = 0; i < kTriedSpans; ++i) {
    trace.Add({.kind = SpanKind::kOther, .step = i, .begin_ns = begin, .end_ns = trace.Now()});
  }
  return Ms(trace.Now() - begin) / kTriedSpans;
}

}  // namespace

int64_t ThreadCpuNanos() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

std::optional<int64_t> RunDelayOf(const std::string& schedstat) {
  const std::vector<absl::string_view> fields =
      absl::StrSplit(schedstat, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  int64_t delay = 0;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &delay)) return std::nullopt;
  return delay;
}

std::optional<int64_t> RunDelayNanos() {
  std::optional<int64_t> sum;
  std::error_code error;
  for (const auto& thread : fs::directory_iterator("/proc/self/task", error)) {
    const absl::StatusOr<std::string> text = ReadFile(thread.path().string() + "/schedstat");
    if (!text.ok()) continue;  // the thread has just exited
    if (const std::optional<int64_t> delay = RunDelayOf(*text)) sum = sum.value_or(0) + *delay;
  }
  return sum;
}

absl::StatusOr<int64_t> InterfaceTxBytesOf(const std::string& proc_net_dev, const std::string& interface) {
  constexpr size_t kTxBytes = 8;  // after eight receive counters
  std::vector<std::string> names;
  for (absl::string_view line : absl::StrSplit(proc_net_dev, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.second.empty()) continue;
    names.emplace_back(absl::StripAsciiWhitespace(parts.first));
    if (names.back() != interface) continue;
    const std::vector<absl::string_view> fields =
        absl::StrSplit(parts.second, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t bytes = 0;
    if (fields.size() > kTxBytes && absl::SimpleAtoi(fields[kTxBytes], &bytes)) return bytes;
    return Internal("/proc/net/dev has no count for ", interface);
  }
  return NotFound("no interface '", interface, "'; there are ", absl::StrJoin(names, ", "));
}

absl::StatusOr<int64_t> InterfaceTxBytes(const std::string& interface) {
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile("/proc/self/net/dev"));
  return InterfaceTxBytesOf(text, interface);
}

std::optional<StepMeans> MeansOf(const std::vector<TraceSpan>& spans,
                                 const std::map<int64_t, int64_t>& begins) {
  std::map<int64_t, int64_t> computed;  // by step: end of the last backward pass
  std::map<int64_t, int64_t> updated;   // by step: nanoseconds
  for (const TraceSpan& span : spans) {
    if (!begins.contains(span.step)) continue;
    if (span.kind == SpanKind::kBackward) {
      int64_t& end = computed[span.step];
      end = std::max(end, span.end_ns);
    } else if (span.kind == SpanKind::kOptimizer) {
      updated[span.step] += span.end_ns - span.begin_ns;
    }
  }
  if (computed.empty()) return std::nullopt;
  StepMeans means;
  const double steps = static_cast<double>(computed.size());
  for (const auto& [step, end] : computed) {
    means.computed_ms += Ms(end - begins.at(step)) / steps;
    if (const auto found = updated.find(step); found != updated.end())
      means.update_ms += Ms(found->second) / steps;
  }
  return means;
}

absl::StatusOr<StepProbe> StepProbe::Start(Counter sent, int ranks, Clock clock, Clock cost) {
  StepProbe probe(std::move(sent), ranks, std::move(clock), std::move(cost));
  if (probe.sent_) PSRING_RETURN_IF_ERROR(probe.sent_().status());
  probe.ReadSent();
  probe.ReadDelay();
  return probe;
}

// Readings: after the last warm-up step, and during the measured steps.
void StepProbe::Count(const StepRecord& step) {
  if (step.warmup) {
    ReadSent();
    return ReadDelay();
  }
  warm_ = true;
  ++steps_;
  if (begins_.size() < Trace::kCapacity) begins_.emplace_back(step.step, step.begin_ns);
  const bool due = clock_() - read_ns_ >= kBetweenReadings;
  // Also after the first, second, fourth, ... step, so that short runs have a reading near their end.
  if (due || steps_ >= next_sent_) ReadSent();
  while (next_sent_ <= steps_) next_sent_ *= 2;
  if (due) ReadDelay();
}

void StepProbe::ReadSent() {
  if (!sent_) return;
  const absl::StatusOr<int64_t> sent = sent_();
  if (sent.ok()) (warm_ ? last_sent_ : first_sent_) = Reading{steps_, *sent};
}

void StepProbe::ReadDelay() {
  const std::optional<int64_t> delay = RunDelayNanos();
  read_ns_ = clock_();
  if (delay) (warm_ ? last_delay_ : first_delay_) = Reading{steps_, *delay};
}

void StepProbe::Fill(const Trace& trace, RankResult& result) {
  if (steps_ == 0) return;
  if (last_delay_.steps < 0) ReadDelay();  // the run was shorter than the interval of readings
  const auto a_step = [this](const Reading& first, const Reading& last) -> std::optional<double> {
    if (first.steps < 0 || last.steps <= first.steps || last.value < first.value) return std::nullopt;
    return static_cast<double>(last.value - first.value) /
           static_cast<double>((last.steps - first.steps) * ranks_);
  };
  if (const auto delay = a_step(first_delay_, last_delay_)) result.run_delay_ms = 1e-6 * *delay;
  // Steps after the last reading are assumed to send as much as the others.
  if (const auto sent = a_step(first_sent_, last_sent_)) {
    result.wire_tx_bytes = std::llround(*sent * static_cast<double>(steps_));
  }
  const std::vector<TraceSpan> spans = trace.spans();
  // For a step that was repeated: its last begin.
  const std::map<int64_t, int64_t> begins(begins_.rbegin(), begins_.rend());
  if (const std::optional<StepMeans> means = MeansOf(spans, begins)) {
    result.computed_ms = means->computed_ms;
    result.update_ms = means->update_ms;
  }
  int64_t in_steps = 0;
  for (const TraceSpan& span : spans) in_steps += begins.contains(span.step) ? 1 : 0;
  result.probe_ms = (Ms(own_ns_) + SpanMs() * static_cast<double>(in_steps)) / static_cast<double>(steps_);
}

}  // namespace psring
