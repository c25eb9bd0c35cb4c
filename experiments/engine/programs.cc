#include "experiments/engine/programs.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/own_process.h"
#include "common/base/read_file.h"
#include "common/io/json_object.h"
#include "common/text/translate.h"
#include "experiments/launch/launcher.h"

namespace psring {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 50;
constexpr size_t kMaxBuckets = 1 << 20, kMaxStrategies = 1000, kMaxAnswerBytes = 4096;

absl::StatusOr<StrategyUpdate> UpdateFrom(const JsonObject& json) {
  constexpr double kMaxFactor = 1e30;
  StrategyUpdate update;
  PSRING_ASSIGN_OR_RETURN(update.strategy, json.Text("strategy", kMaxAnswerBytes));
  PSRING_ASSIGN_OR_RETURN(update.optimizer, json.Text("optimizer", kMaxAnswerBytes));
  PSRING_ASSIGN_OR_RETURN(update.lr, json.Number("lr", 0, kMaxFactor));
  PSRING_ASSIGN_OR_RETURN(update.momentum, json.Number("momentum", 0, kMaxFactor));
  PSRING_ASSIGN_OR_RETURN(update.warnings, json.Texts("warnings", kMaxStrategies, kMaxAnswerBytes));
  PSRING_ASSIGN_OR_RETURN(update.refused, json.Text("refused", kMaxAnswerBytes));
  return update;
}

}  // namespace

absl::StatusOr<Binaries> FindBinaries() {
  Binaries found;
  PSRING_ASSIGN_OR_RETURN(found.trainer, FindProgram("trainer"));
  PSRING_ASSIGN_OR_RETURN(found.ps_server, FindProgram("ps_server"));
  return found;
}

absl::StatusOr<Binaries> FindBenchBinaries() {
  Binaries found;
  PSRING_ASSIGN_OR_RETURN(found.ring_worker, FindProgram("ring_worker"));
  PSRING_ASSIGN_OR_RETURN(found.ps_worker, FindProgram("ps_worker"));
  PSRING_ASSIGN_OR_RETURN(found.ps_server, FindProgram("ps_server"));
  return found;
}

absl::StatusOr<std::string> Described(const std::string& program, const Interrupt& interrupt) {
  return RunForOutput({program, "--describe"}, absl::Seconds(30), interrupt);
}

absl::StatusOr<Probe> CheckWithTrainer(const Binaries& binaries, const TrainingOptions& training,
                                       const Interrupt& interrupt, int workers) {
  std::vector<std::string> command = {binaries.trainer, "--check_only"};
  if (workers > 0) command.push_back(absl::StrCat("--workers=", workers));
  for (const std::string& argument : TrainingArguments(training)) command.push_back(argument);
  absl::StatusOr<std::string> text = RunForOutput(command, absl::Minutes(2), interrupt);
  if (!text.ok()) {
    // A message of the trainer is about the input; anything else is a crash.
    absl::string_view message = text.status().message();
    if (!absl::ConsumePrefix(&message, Tr("$0: $1", "trainer", ""))) return text.status();
    return absl::FailedPreconditionError(message);
  }
  PSRING_ASSIGN_OR_RETURN(const JsonObject json,
                          JsonObject::Parse(*text, kMaxTextBytes, "the answer of `trainer --check_only`"));
  Probe probe;
  PSRING_ASSIGN_OR_RETURN(probe.samples, json.WholeNumber<int64_t>("samples", 1, kMaxElements));
  PSRING_ASSIGN_OR_RETURN(probe.test_samples, json.WholeNumber<int64_t>("test_samples", 0, kMaxElements, 0));
  PSRING_ASSIGN_OR_RETURN(probe.predictions, json.WholeNumber("predictions", 1, INT32_MAX, 1));
  PSRING_ASSIGN_OR_RETURN(probe.parameters, json.WholeNumber<int64_t>("parameters", 0, kMaxElements));
  PSRING_ASSIGN_OR_RETURN(probe.bucket_elements,
                          json.WholeNumbers("bucket_elements", kMaxBuckets, 0, kMaxElements));
  PSRING_ASSIGN_OR_RETURN(probe.cuts, json.WholeNumbers("cuts", kMaxBuckets, 0, kMaxElements));
  PSRING_ASSIGN_OR_RETURN(const std::vector<int64_t> points,
                          json.WholeNumbers("cut_points", kMaxBuckets, 0, kMaxElements));
  probe.cut_points = std::vector<size_t>(points.begin(), points.end());
  PSRING_ASSIGN_OR_RETURN(probe.tensor_ranks, json.WholeNumbers("tensor_ranks", kMaxBuckets, 1, INT32_MAX));
  PSRING_ASSIGN_OR_RETURN(probe.memory_bytes, json.WholeNumber<int64_t>("memory_bytes", 0, kMaxElements, 0));
  PSRING_ASSIGN_OR_RETURN(probe.free_bytes, json.WholeNumber<int64_t>("free_bytes", 0, kMaxElements, 0));
  PSRING_ASSIGN_OR_RETURN(probe.data_hash, json.Text("data_hash", kMaxAnswerBytes, ""));
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> updates, json.Objects("updates", kMaxStrategies));
  for (const JsonObject& update : updates) {
    PSRING_ASSIGN_OR_RETURN(probe.updates.emplace_back(), UpdateFrom(update));
  }
  return probe;
}

}  // namespace psring
