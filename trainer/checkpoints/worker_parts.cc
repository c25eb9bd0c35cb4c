#include "trainer/checkpoints/worker_parts.h"

#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/checkpoint_folder.h"
#include "common/io/files.h"
#include "common/io/hash.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// A meeting with a rank that was stopped ends before a server gives up those that wait in it.
constexpr double kPartOfTimeout = 0.5;
constexpr char kStops[] = "checkpoint/stops";
constexpr char kNoFile[] = "-";
constexpr char kSees[] = "sees";

std::string KeyOf(int rank, const std::string& moment) {
  return absl::StrCat("checkpoint/", moment, "/", rank);
}

std::string FileOf(int rank, const std::string& moment) {
  return absl::StrCat(moment, "-", WorkerFile(rank));
}

std::string MeetingKey(int rank) { return absl::StrCat("checkpoint/meeting of ", rank); }

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerParts>> WorkerParts::Meet(Rendezvous& rendezvous,
                                                               const std::string& folder,
                                                               std::vector<int>& blind) {
  const int rank = rendezvous.options().rank;
  absl::StatusOr<std::string> made = rank == 0 ? MakePartsFolder(folder) : std::string();
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> published,
                          rendezvous.Exchange("checkpoint/folder", made.value_or("")));
  PSRING_RETURN_IF_ERROR(made.status());
  // Rank 0 removes the folder, so it does not take the name from others.
  const std::string name = rank == 0 ? *made : published.front();
  auto parts = std::unique_ptr<WorkerParts>(new WorkerParts(rendezvous, absl::StrCat(folder, "/", name)));
  std::error_code error;
  parts->sees_folder_ = IsPartsFolder(name) && fs::is_directory(fs::symlink_status(parts->folder_, error));
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> seen,
                          rendezvous.Exchange("checkpoint/folder seen", parts->sees_folder_ ? kSees : ""));
  for (size_t other = 0; other < seen.size(); ++other) {
    if (seen[other] != kSees) blind.push_back(static_cast<int>(other));
  }
  return parts;
}

WorkerParts::~WorkerParts() {
  std::error_code error;
  if (rendezvous_.options().rank == 0) fs::remove_all(folder_, error);
}

absl::Status WorkerParts::Leave(const std::string& moment, const WorkerPart& part) {
  const int rank = rendezvous_.options().rank;
  std::string hash = kNoFile;
  if (!part.residual.empty() && sees_folder_) {
    if (WritePart(folder_, FileOf(rank, moment), part.residual).ok()) {
      hash = HashBytes(part.residual.data(), part.residual.size());
    }
  }
  return rendezvous_.Set(KeyOf(rank, moment), absl::StrCat(part.next, " ", hash));
}

absl::StatusOr<WorkerPart> WorkerParts::Take(int rank, const std::string& moment, std::optional<int64_t> next,
                                             MonotonicTime deadline) {
  const MonotonicTime begin = MonotonicNow();
  const std::string whom = absl::StrCat("rank ", rank, "'s part of a checkpoint");
  for (absl::Duration pause = absl::Milliseconds(1);; pause = std::min(2 * pause, absl::Milliseconds(20))) {
    // An error may concern another process, such as a server that was restarted.
    const absl::StatusOr<std::optional<std::string>> published =
        rendezvous_.TryGet(KeyOf(rank, moment), whom);
    if (published.ok() && published->has_value()) {
      const std::pair<std::string, std::string> fields = absl::StrSplit(**published, absl::MaxSplits(' ', 1));
      WorkerPart part;
      const bool sound = absl::SimpleAtoi(fields.first, &part.next) && part.next >= 0 &&
                         (!next.has_value() || part.next == *next);
      if (sound && fields.second == kNoFile) return part;
      if (sound) {
        const std::string file = absl::StrCat(folder_, "/", FileOf(rank, moment));
        part.residual = ReadFile(file, MostWeightsBytes()).value_or("");
        // It may be written again soon.
        if (HashBytes(part.residual.data(), part.residual.size()) == fields.second) {
          std::error_code error;
          fs::remove(file, error);
          return part;
        }
      }
    }
    if (MonotonicNow() >= deadline) {
      return DeadlineExceeded(
          "waited ", absl::FormatDuration(absl::Trunc(MonotonicNow() - begin, absl::Milliseconds(1))),
          " for ", whom);
    }
    absl::SleepFor(pause);
  }
}

// The last meeting that `rank` has come to; empty: none.
std::string WorkerParts::LastMeetingOf(int rank) {
  const absl::StatusOr<std::optional<std::string>> last =
      rendezvous_.TryGet(MeetingKey(rank), absl::StrCat("rank ", rank));
  return last.ok() ? last->value_or("") : "";
}

absl::Status WorkerParts::MeetRank(int rank, const std::string& where) {
  const int own = rendezvous_.options().rank;
  PSRING_CHECK(own == 0 || own == rank);
  if (own == rank) PSRING_RETURN_IF_ERROR(rendezvous_.Set(MeetingKey(rank), where));
  if (const auto missed = missed_.find(rank);
      missed != missed_.end() && missed->second != LastMeetingOf(rank)) {
    missed_.erase(missed);
  }
  const bool is_missed = missed_.contains(rank);
  const absl::Status met =
      rendezvous_
          .ExchangeAmong({0, rank}, absl::StrCat("checkpoint/", where, "/with ", rank), "",
                         is_missed ? absl::ZeroDuration() : kPartOfTimeout * rendezvous_.options().timeout)
          .status();
  if (own == 0 && absl::IsDeadlineExceeded(met) && !is_missed) missed_[rank] = LastMeetingOf(rank);
  return met;
}

absl::Status WorkerParts::SayThatItStops(int64_t next) { return rendezvous_.Set(kStops, absl::StrCat(next)); }

std::optional<int64_t> WorkerParts::StopsBefore() {
  const absl::StatusOr<std::optional<std::string>> published = rendezvous_.TryGet(kStops, "rank 0");
  int64_t next = 0;
  if (!published.ok() || !published->has_value() || !absl::SimpleAtoi(**published, &next))
    return std::nullopt;
  return next;
}

}  // namespace psring
