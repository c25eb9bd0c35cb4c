#include "trainer/programs/step_program.h"

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

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
