#include "experiments/launch/progress.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/cli/command_line.h"
#include "common/cli/wrap.h"
#include "common/io/json_object.h"
#include "common/measure/record_names.h"
#include "common/text/peer_text.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr int kBarWidth = 20;
constexpr int64_t kRedrawNs = 100'000'000;

bool ShowsStyles() {
  const char *no_color = std::getenv("NO_COLOR"), *kind = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') && kind != nullptr && std::string_view(kind) != "dumb";
}

}  // namespace

std::optional<ProgressEvent> ParseProgress(const std::string& line) {
  if (line.empty() || line.front() != '{') return std::nullopt;
  constexpr size_t kMaxBytes = 64 << 10;
  const absl::StatusOr<JsonObject> json = JsonObject::Parse(line, kMaxBytes);
  if (!json.ok()) return std::nullopt;
  const absl::StatusOr<std::string> event = json->Text("event", kMaxBytes);
  if (!event.ok()) return std::nullopt;
  const auto count = [&](const char* key) {
    return json->WholeNumber<int64_t>(key, 0, INT64_MAX).value_or(0);
  };
  return ProgressEvent{.event = *event,
                       .rank = json->WholeNumber("rank", INT32_MIN, INT32_MAX).value_or(0),
                       .step = count("step"),
                       .steps = count("steps"),
                       .loss = json->Number("loss", -1e300, 1e300).value_or(0),
                       .text = json->Text("text", kMaxBytes).value_or(""),
                       .evaluated = count("evaluated"),
                       .to_evaluate = count("to_evaluate")};
}

std::vector<int> EndedWithout(absl::string_view line) {
  std::vector<int> workers;
  if (!absl::ConsumePrefix(&line, kEndedWithout)) return workers;
  for (const absl::string_view number : absl::StrSplit(line, ',')) {
    int worker = 0;
    if (absl::SimpleAtoi(number, &worker) && worker >= 0) workers.push_back(worker);
  }
  return workers;
}

void LaunchProgress::Note(const ProgressEvent& event, int64_t now_ns) {
  if (event.rank < 0 || event.rank >= static_cast<int>(ranks_.size())) return;
  if (event.event == "evaluating") {
    if (event.evaluated <= evaluation_.evaluated) evaluation_begin_ns_ = now_ns;
    evaluation_ = event;
    evaluation_now_ns_ = now_ns;
  }
  ProgressEvent& last = ranks_[event.rank];
  if (event.steps == 0) {  // the event has no counts
    last.event = event.event;
  } else {
    last = event;
  }
}

std::optional<double> LaunchProgress::EvaluationLeftSeconds() const {
  if (evaluation_.evaluated == 0 || evaluation_.evaluated >= evaluation_.to_evaluate) return std::nullopt;
  const double took_s = 1e-9 * (evaluation_now_ns_ - evaluation_begin_ns_);
  return took_s * static_cast<double>(evaluation_.to_evaluate - evaluation_.evaluated) /
         static_cast<double>(evaluation_.evaluated);
}

bool LaunchProgress::HasStepped(int rank) const {
  return rank >= 0 && rank < static_cast<int>(ranks_.size()) && ranks_[rank].step > 0;
}

std::string LaunchProgress::LastKnown(int rank) const {
  if (rank < 0 || rank >= static_cast<int>(ranks_.size())) return "";
  const ProgressEvent& last = ranks_[rank];
  if (last.event.empty()) return "it never reported progress";
  if (last.event == "start") return "it started but did not become ready";
  if (last.event == "evaluating" || last.event == "evaluate") return "last seen in its evaluation";
  if (last.event == "done") return "it had reported completion";
  return absl::StrCat("last seen at step ", last.step, " of ", last.steps);
}

size_t LaunchProgress::Last(size_t first, size_t count) const {
  const auto slower = [](const ProgressEvent& a, const ProgressEvent& b) { return a.step < b.step; };
  const auto begin = ranks_.begin() + static_cast<std::ptrdiff_t>(first);
  return static_cast<size_t>(std::min_element(begin, begin + static_cast<std::ptrdiff_t>(count), slower) -
                             ranks_.begin());
}

std::string LaunchProgress::LastKnownOfLast(int first, int count) const {
  if (first < 0 || count < 1 || first + count > static_cast<int>(ranks_.size())) return "";
  const size_t last = Last(static_cast<size_t>(first), static_cast<size_t>(count));
  return absl::StrCat("rank ", last, ": ", LastKnown(static_cast<int>(last)));
}

std::string LaunchProgress::Bar() const {
  const ProgressEvent& last = ranks_[Last(0, ranks_.size())];
  const double done = last.steps > 0 ? std::clamp(static_cast<double>(last.step) / last.steps, 0.0, 1.0) : 0;
  const int filled = static_cast<int>(done * kBarWidth);
  std::string bar = absl::StrCat("[", std::string(static_cast<size_t>(filled), '#'),
                                 std::string(static_cast<size_t>(kBarWidth - filled), '.'), "] ");
  const bool evaluating = std::ranges::any_of(ranks_, [](const ProgressEvent& event) {
    return event.event == "evaluating" || event.event == "evaluate";
  });
  if (evaluating && evaluation_.to_evaluate > 0) {
    const double done = static_cast<double>(evaluation_.evaluated) / evaluation_.to_evaluate;
    return absl::StrFormat("%sevaluating %.0f%%", bar, 100 * std::min(done, 1.0));
  }
  if (evaluating) return bar + "evaluating";
  if (last.steps == 0) return bar + "starting";
  return bar + absl::StrFormat("%d/%d steps, loss %.3f", last.step, last.steps, last.loss);
}

void LaunchProgress::Show(const std::string& label, const std::string& unit, Display& display) {
  constexpr double kLongS = 5;
  const std::optional<double> left_s = EvaluationLeftSeconds();
  if (left_s.has_value()) display.ExpectEndNotBefore(*left_s);
  if (left_s.value_or(0) > kLongS && !std::exchange(has_announced_, true)) {
    display.SayPlain(Tr("evaluating $0 $1", evaluation_.to_evaluate, unit) + display.TimeLeft());
  }
  display.Redraw(absl::StrCat(label, "  ", Bar()));
}

void Display::Say(const std::string& line) {
  Clear();
  std::fprintf(out_, "%s\n", MessageText(line).c_str());
  std::fflush(out_);
}

void Display::SayLines(const std::string& text, Style style) {
  Clear();
  const bool styled = terminal_ && style != Style::kPlain && ShowsStyles();
  std::fprintf(out_, "%s%s%s\n",
               !styled                 ? ""
               : style == Style::kBold ? "\033[1m"
                                       : "\033[2m",
               Printable(text).c_str(), styled ? "\033[0m" : "");
  std::fflush(out_);
}

void Display::Ask(const std::string& question) {
  Clear();
  std::fputs(Printable(question).c_str(), out_);
  std::fflush(out_);
}

void Display::Note(const std::string& text) { Say(absl::StrCat(Tr("note:      "), text)); }

void Display::NoteOnce(const std::string& text) {
  if (noted_.insert(text).second) Note(text);
}

void Display::SayPlain(const std::string& line) {
  if (!terminal_) Say(line);
}

void Display::Redraw(const std::string& line) {
  if (!terminal_) return;
  const int64_t now = MonotonicNanos();
  if (drawn_ && now - last_ns_ < kRedrawNs) return;
  last_ns_ = now;
  drawn_ = true;
  const std::string left = TimeLeft(now);
  const size_t columns = OutputColumns() - 1;
  const std::string shown = Clipped(OneLine(line), columns - std::min(columns, TextColumns(left)));
  std::fprintf(out_, "\r%s%s\033[K", shown.c_str(), left.c_str());
  std::fflush(out_);
}

std::string Display::TimeLeft(int64_t now_ns) const {
  const int64_t left_s = (end_ns_ - now_ns) / 1'000'000'000;
  if (end_ns_ == 0 || left_s < 1) return "";
  if (left_s < 100) return Tr(", about $0 s left", left_s);
  return Tr(", about $0 min left", (left_s + 30) / 60);
}

void Display::Clear() {
  if (!drawn_) return;
  std::fprintf(out_, "\r\033[K");
  std::fflush(out_);
  drawn_ = false;
}

}  // namespace psring
