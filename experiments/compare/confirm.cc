#include "experiments/compare/confirm.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "experiments/plan/budget.h"
#include "experiments/plan/plan_text.h"

namespace psring {
namespace {

constexpr int kAnswerMs = 120'000;

// A process in the background would be stopped when it reads.
bool CanAsk() {
  return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1 && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

// The line that the user types; empty: none.
std::string Answer(const Interrupt& interrupt) {
  pollfd events[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = interrupt.fd(), .events = POLLIN}};
  if (poll(events, 2, kAnswerMs) <= 0 || events[1].revents != 0) return "";
  char line[64];
  const ssize_t count = read(STDIN_FILENO, line, sizeof(line));
  return count > 0 ? std::string(absl::StripAsciiWhitespace({line, static_cast<size_t>(count)})) : "";
}

bool IsYes(const std::string& answer) {
  const std::vector<std::string> words =
      absl::StrSplit(InLanguage(Language::kChinese, [] { return Tr("y,yes"); }), ',');
  return std::find(words.begin(), words.end(), absl::AsciiStrToLower(answer)) != words.end();
}

}  // namespace

absl::Status ConfirmLongPlan(const ExperimentFlags& flags, const Prepared& prepared, double spent_s,
                             const Plan& plan, const Interrupt& interrupt, Display& display) {
  const bool allowed = flags.options.time_budget_given || !flags.plan_of.empty() || !flags.resume.empty();
  if (plan.expected_s <= kMaxUnaskedSeconds || allowed) return absl::OkStatus();
  const std::string advice = LongPlanAdvice(flags.options, prepared.probe, prepared.cores, spent_s, plan);
  if (flags.dry_run) {
    display.Note(advice);
    return absl::OkStatus();
  }
  if (prepared.site.nodes != nullptr || !CanAsk()) return absl::InvalidArgumentError(advice);
  display.Clear();
  display.Note(advice);
  display.Ask(Tr("start it, about $0? [y/N] ", HumanSeconds(plan.expected_s)));
  const std::string answer = Answer(interrupt);
  if (answer.empty()) display.Say("");  // the cursor is still on the question's line
  PSRING_RETURN_IF_ERROR(interrupt.Check());
  return IsYes(answer) ? absl::OkStatus() : absl::CancelledError(Tr("not started"));
}

}  // namespace psring
