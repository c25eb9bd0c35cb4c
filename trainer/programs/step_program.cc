#include "trainer/programs/step_program.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace psring {
namespace {

constexpr int kKinds = static_cast<int>(StepKind::kUpdate) + 1;

const char* TextOf(StepKind kind) {
  switch (kind) {
    case StepKind::kLoad:
      return "LOAD";
    case StepKind::kForward:
      return "F";
    case StepKind::kBackward:
      return "B";
    case StepKind::kBackwardInput:
      return "I";
    case StepKind::kBackwardWeight:
      return "W";
    case StepKind::kRecompute:
      return "RECOMPUTE";
    case StepKind::kSendActivation:
      return "SEND_F";
    case StepKind::kReceiveActivation:
      return "RECV_F";
    case StepKind::kSendGradient:
      return "SEND_B";
    case StepKind::kReceiveGradient:
      return "RECV_B";
    case StepKind::kUnshard:
      return "UNSHARD";
    case StepKind::kReshard:
      return "RESHARD";
    case StepKind::kReduceGradient:
      return "REDUCE_GRAD";
    case StepKind::kReduceTied:
      return "REDUCE_TIED";
    case StepKind::kNorm:
      return "NORM";
    case StepKind::kUpdate:
      return "UPDATE";
  }
  return "?";
}

}  // namespace

std::string ToText(const StepAction& action) {
  return absl::StrCat(action.stage, action.unit < 0 ? "" : absl::StrCat(".", action.unit),
                      TextOf(action.kind), action.micro_batch < 0 ? "" : absl::StrCat(action.micro_batch));
}

std::optional<StepAction> StepActionOf(std::string_view text) {
  // Takes the digits at the front; false: none, or too many.
  const auto take = [&text](int& number) {
    const std::string_view digits =
        text.substr(0, std::min(text.find_first_not_of("0123456789"), text.size()));
    text.remove_prefix(digits.size());
    return absl::SimpleAtoi(std::string(digits), &number);
  };
  StepAction action{.kind = StepKind::kLoad};
  if (!take(action.stage)) return std::nullopt;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!take(action.unit)) return std::nullopt;
  }
  const std::string_view name = text.substr(0, std::min(text.find_first_of("0123456789"), text.size()));
  text.remove_prefix(name.size());
  if (!text.empty() && (!take(action.micro_batch) || !text.empty())) return std::nullopt;
  for (int kind = 0; kind < kKinds; ++kind) {
    action.kind = static_cast<StepKind>(kind);
    if (TextOf(action.kind) == name) return action;
  }
  return std::nullopt;
}

std::string ToText(const StepProgram& program) {
  std::string text;
  for (int rank = 0; rank < program.ranks; ++rank) {
    absl::StrAppend(&text, "rank ", rank, ":");
    for (const StepAction& action : program.actions[rank]) absl::StrAppend(&text, " ", ToText(action));
    text += "\n";
  }
  return text;
}

}  // namespace psring
