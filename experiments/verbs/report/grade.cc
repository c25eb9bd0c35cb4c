#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/read_file.h"
#include "common/io/untrusted_json.h"
#include "common/text/peer_text.h"
#include "common/text/translate.h"
#include "experiments/lecture/checks/checks.h"
#include "experiments/page/exercises.h"
#include "experiments/verbs/report/report_verb.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTries = 2;  // the page then shows the solution
constexpr size_t kMaxTryBytes = 20;
constexpr uint64_t kMaxAnswersBytes = 1 << 20;

std::vector<std::string> FirstTries(const UntrustedJson& answers, const std::string& id) {
  std::vector<std::string> tries;
  for (const UntrustedJson& answer : ListAt(answers, "answers")) {
    if (TextAt(answer, "id") != id) continue;
    for (const UntrustedJson& one : ListAt(answer, "tries")) {
      if (tries.size() == kTries) return tries;
      tries.push_back(PeerText(one.is_string() ? one.get<std::string>() : DumpUntrusted(one), kMaxTryBytes));
    }
  }
  return tries;
}

GradedExercise Graded(const Exercise& exercise, const UntrustedJson& answers) {
  const std::vector<std::string> tries = FirstTries(answers, exercise.id);
  Judgement best = Judgement::kNone;
  for (const std::string& one : tries) best = std::max(best, Judge(exercise, one));
  const char* const state = best == Judgement::kRight  ? "right"
                            : best == Judgement::kNear ? "near"
                            : best == Judgement::kNone ? "none"
                                                       : "wrong";
  return {.number = exercise.number,
          .state = state,
          .tries = absl::StrJoin(tries, ", "),
          .expected = exercise.choices.empty() ? absl::StrFormat("%.6g", exercise.value) : exercise.choice};
}

bool IsRight(const GradedExercise& exercise) { return exercise.state == "right"; }

std::string NotAnswers() { return Tr("these are not answers for one of the runs"); }

}  // namespace

std::vector<Grade> GradeAnswers(const std::vector<std::string>& runs, const std::vector<AnswersFile>& files) {
  std::vector<UntrustedJson> parsed;
  for (const std::string& run : runs) parsed.push_back(ParseUntrusted(run));
  std::vector<Grade> grades;
  for (const AnswersFile& file : files) {
    const UntrustedJson answers = ParseUntrusted(file.text);
    const std::string id = TextAt(answers, "run_id"), start = TextAt(answers, "started_utc");
    const auto run = std::ranges::find_if(parsed, [&](const UntrustedJson& one) {
      // Runs are named after their folders, so several may have one name.
      return TextAt(one, "run_id") == id && TextAt(FieldAt(one, "manifest"), "started_utc") == start;
    });
    Grade grade{.name = PeerText(file.name), .run_id = PeerText(id), .known = run != parsed.end()};
    if (grade.known) {
      for (const Exercise& exercise : ExercisesOf(*run)) grade.exercises.push_back(Graded(exercise, answers));
    }
    grades.push_back(std::move(grade));
  }
  return grades;
}

std::string GradesJson(const std::vector<Grade>& grades) {
  UntrustedJson list = UntrustedJson::array();
  for (const Grade& grade : grades) {
    if (!grade.known) {
      list.push_back({{"name", grade.name}, {"why", NotAnswers()}});
      continue;
    }
    UntrustedJson exercises = UntrustedJson::array();
    for (const auto& [number, state, tries, expected] : grade.exercises)
      exercises.push_back({{"exercise", number}, {"state", state}, {"tries", tries}, {"expected", expected}});
    list.push_back({{"name", grade.name},
                    {"run_id", grade.run_id},
                    {"right", std::ranges::count_if(grade.exercises, IsRight)},
                    {"exercises", exercises}});
  }
  return absl::StrCat(DumpUntrusted(list), "\n");
}

std::string GradesTap(const std::vector<Grade>& grades) {
  // A '#' would begin a directive, such as one that skips the point.
  const auto plain = [](const std::string& text) { return absl::StrReplaceAll(text, {{"#", "\\#"}}); };
  std::vector<TapPoint> points;
  for (const Grade& grade : grades) {
    if (!grade.known) points.push_back({.name = "", .failure = plain(grade.name + ": " + NotAnswers())});
    for (const GradedExercise& exercise : grade.exercises) {
      const std::string name = plain(absl::StrCat(grade.name, " ", exercise.number));
      const std::string tries = exercise.tries.empty() ? Tr("no answer") : exercise.tries;
      const std::string wrong = plain(Tr("$0; expected $1", tries, exercise.expected));
      points.push_back({.name = name, .failure = IsRight(exercise) ? "" : absl::StrCat(name, ": ", wrong)});
    }
  }
  return TapText(points);
}

absl::StatusOr<std::vector<AnswersFile>> ReadAnswers(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".json") paths.push_back(at->path());
  }
  if (paths.empty()) {
    return absl::NotFoundError(
        Tr("--grade $0: there are no files of \"Download my answers\" (*.json) in this folder", folder));
  }
  std::ranges::sort(paths);
  std::vector<AnswersFile> files;
  for (const fs::path& path : paths) {
    PSRING_ASSIGN_OR_RETURN(std::string text, ReadFile(path.string(), kMaxAnswersBytes));
    files.push_back({.name = path.stem().string(), .text = std::move(text)});
  }
  return files;
}

}  // namespace psring
