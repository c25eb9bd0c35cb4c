#include "common/rendezvous/file_rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/net/host_identity.h"
#include "common/rendezvous/file_store.h"
#include "common/rendezvous/roster.h"
#include "common/text/peer_text.h"

namespace psring {
namespace {

// Keys: "value/KEY": a value; "member/N": the N-th member; "left/N": it has left; "refused/N": it was
// rejected; "round/NAME/I/RANK": a rank's value in the I-th exchange of a name; "failed/NAME/I": the error of
// that exchange, for all of its ranks.
using Values = FileStore::Values;

constexpr int kLargestCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
constexpr absl::Duration kFirstPause = absl::Milliseconds(1), kLongestPause = absl::Milliseconds(50);

std::string Numbered(const char* what, int64_t number) {
  return absl::StrCat(what, "/", absl::Dec(number, absl::kZeroPad8));
}

std::string ParticipantText(const Participant& process) {
  return absl::StrCat(process.rank, " ", process.world_size, " ", process.name);
}

Participant ParticipantOf(const std::string& text) {
  const std::vector<std::string> fields = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  Participant process;
  if (fields.size() < 3) return process;
  (void)absl::SimpleAtoi(fields[0], &process.rank);
  (void)absl::SimpleAtoi(fields[1], &process.world_size);
  process.name = fields[2];
  return process;
}

class FileRendezvous final : public Rendezvous {
 public:
  FileRendezvous(RendezvousOptions options, std::unique_ptr<FileStore> store)
      : options_(std::move(options)), store_(std::move(store)) {}

  ~FileRendezvous() override {
    MutexLock lock(mutex_);
    if (member_ < 0) return;
    (void)store_->Update([&](const Values&) -> absl::StatusOr<Values> {
      if (store_->IsAlone()) store_->Remove();
      return Values{{Numbered("left", member_), ""}};
    });
  }

  absl::Status Join(int rank) {
    MutexLock lock(mutex_);
    absl::Status refused;
    PSRING_RETURN_IF_ERROR(store_->Update([&](const Values& values) -> absl::StatusOr<Values> {
      const Participant process = {rank, options_.world_size, ProcessName()};
      Roster roster = RosterOf(values);
      const absl::StatusOr<int64_t> member = roster.Join(process);
      if (!member.ok()) {
        refused = absl::Status(
            member.status().code(),
            absl::StrCat(member.status().message(), absl::IsAlreadyExists(member.status())
                                                        ? "; concurrent runs need different files"
                                                        : ""));
        const int64_t number =
            static_cast<int64_t>(std::count_if(values.begin(), values.end(), [](const auto& entry) {
              return absl::StartsWith(entry.first, "refused/");
            }));
        return Values{{Numbered("refused", number), absl::StrCat(rank, " ", refused.message())}};
      }
      PSRING_RETURN_IF_ERROR(store_->Hold(*member));
      member_ = *member;
      return Values{{Numbered("member", member_), ParticipantText(process)}};
    }));
    return refused;
  }

  const RendezvousOptions& options() const override { return options_; }

  absl::Status Set(const std::string& key, const std::string& value) override {
    MutexLock lock(mutex_);
    return store_->Update([&](const Values&) -> absl::StatusOr<Values> {
      return Values{{absl::StrCat("value/", key), value}};
    });
  }

  absl::StatusOr<std::optional<std::string>> TryGet(const std::string& key,
                                                    const std::string& whom) override {
    std::optional<std::string> value;
    MutexLock lock(mutex_);
    PSRING_RETURN_IF_ERROR(store_->Update([&](const Values& values) -> absl::StatusOr<Values> {
      if (const auto found = values.find(absl::StrCat("value/", key)); found != values.end()) {
        value = found->second;
      } else {
        PSRING_RETURN_IF_ERROR(RosterOf(values).LossDuring(whom));
      }
      return Values();
    }));
    return value;
  }

  absl::Status Surplus() override {
    MutexLock lock(mutex_);
    return store_->Update([&](const Values& values) -> absl::StatusOr<Values> {
      PSRING_RETURN_IF_ERROR(RosterOf(values).Surplus());
      return Values();
    });
  }

  absl::Status CheckRanks(const std::string& where) override {
    MutexLock lock(mutex_);
    return store_->Update([&](const Values& values) -> absl::StatusOr<Values> {
      PSRING_RETURN_IF_ERROR(RosterOf(values).Hopeless(where));
      return Values();
    });
  }

  absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom) override {
    std::string value;
    const auto look = [&](const Values& values, bool too_late) -> absl::StatusOr<Step> {
      if (const auto found = values.find(absl::StrCat("value/", key)); found != values.end()) {
        value = found->second;
        return Step{.done = true};
      }
      PSRING_RETURN_IF_ERROR(RosterOf(values).LossDuring(whom));
      if (!too_late) return Step{};
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", SecondsText(options_.timeout), " for ", whom, " ('", key, "')"));
    };
    PSRING_RETURN_IF_ERROR(Wait(options_.timeout, look));
    return value;
  }

  absl::StatusOr<std::vector<std::string>> ExchangeAmong(const std::vector<int>& among,
                                                         const std::string& name, const std::string& value,
                                                         absl::Duration timeout) override {
    std::vector<int> ranks = among;
    for (int rank = 0; rank < options_.world_size && among.empty(); ++rank) ranks.push_back(rank);
    std::sort(ranks.begin(), ranks.end());
    const std::string round = absl::StrCat(name, "/", RoundOf(name));
    const auto key = [&](int rank) { return absl::StrCat("round/", round, "/", rank); };
    const std::string failed = absl::StrCat("failed/", round);
    std::vector<std::string> found;
    absl::Status failure;
    const auto look = [&](const Values& values, bool too_late) -> absl::StatusOr<Step> {
      Step step;
      if (!values.contains(key(options_.rank))) step.add[key(options_.rank)] = value;
      std::vector<int> missing;
      for (const int rank : ranks) {
        if (rank != options_.rank && !values.contains(key(rank))) missing.push_back(rank);
      }
      if (const auto verdict = values.find(failed); verdict != values.end()) {
        int code = 0;
        const std::pair<std::string, std::string> fields =
            absl::StrSplit(verdict->second, absl::MaxSplits(' ', 1));
        const bool is_error = absl::SimpleAtoi(fields.first, &code) && code > 0 && code <= kLargestCode;
        failure = absl::Status(is_error ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                               PeerText(fields.second));
      } else if (!missing.empty()) {
        const Roster roster = RosterOf(values);
        failure = roster.Hopeless(missing, absl::StrCat("at exchange '", name, "'"));
        if (failure.ok() && too_late) failure = roster.TooLate(missing, name, timeout);
        if (!failure.ok()) step.add[failed] = absl::StrCat(failure.raw_code(), " ", failure.message());
      }
      step.done = missing.empty() || !failure.ok();
      for (const int rank : ranks) {
        if (!step.done || !failure.ok()) break;
        found.push_back(rank == options_.rank ? value : values.at(key(rank)));
      }
      return step;
    };
    PSRING_RETURN_IF_ERROR(Wait(timeout, look));
    PSRING_RETURN_IF_ERROR(failure);
    MutexLock lock(mutex_);
    ++rounds_[name];
    return found;
  }

  absl::StatusOr<ClockReading> ReadClock() override {
    return absl::UnimplementedError("a file has no clock");
  }

 private:
  struct Step {
    Values add;
    bool done = false;
  };

  int64_t RoundOf(const std::string& name) {
    MutexLock lock(mutex_);
    return rounds_[name];
  }

  // Polls until `look` is done, and once more after the deadline.
  absl::Status Wait(absl::Duration timeout,
                    const std::function<absl::StatusOr<Step>(const Values&, bool too_late)>& look) {
    const MonotonicTime deadline = MonotonicNow() + timeout;
    for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      const bool too_late = MonotonicNow() >= deadline;
      bool done = false;
      {
        MutexLock lock(mutex_);
        PSRING_RETURN_IF_ERROR(store_->Update([&](const Values& values) -> absl::StatusOr<Values> {
          PSRING_ASSIGN_OR_RETURN(const Step step, look(values, too_late));
          done = step.done;
          return step.add;
        }));
      }
      if (done) return absl::OkStatus();
      absl::SleepFor(pause);
    }
  }

  Roster RosterOf(const Values& values) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Roster roster(options_.noun);
    for (auto entry = values.lower_bound("member/"); entry != values.end(); ++entry) {
      if (!absl::StartsWith(entry->first, "member/")) break;
      const int64_t member = roster.size();
      (void)roster.Join(ParticipantOf(entry->second));
      if (values.contains(Numbered("left", member))) {
        roster.Depart(member, Roster::Presence::kLeft);
      } else if (member != member_ && !store_->IsHeld(member)) {
        roster.Depart(member, Roster::Presence::kLost);
      }
    }
    for (auto entry = values.lower_bound("refused/"); entry != values.end(); ++entry) {
      if (!absl::StartsWith(entry->first, "refused/")) break;
      const std::pair<std::string, std::string> fields =
          absl::StrSplit(entry->second, absl::MaxSplits(' ', 1));
      int rank = -1;
      (void)absl::SimpleAtoi(fields.first, &rank);
      roster.Refuse(rank, fields.second);
    }
    return roster;
  }

  const RendezvousOptions options_;
  Mutex mutex_;
  std::map<std::string, int64_t> rounds_ ABSL_GUARDED_BY(mutex_);  // by name: exchanges completed
  const std::unique_ptr<FileStore> store_ ABSL_PT_GUARDED_BY(mutex_);
  int64_t member_ ABSL_GUARDED_BY(mutex_) = -1;
};

}  // namespace

std::string ProcessName() { return absl::StrCat(PeerText(HostName()), ":", ::getpid()); }

absl::StatusOr<std::unique_ptr<Rendezvous>> EnterFile(const RendezvousOptions& options, int rank) {
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<FileStore> store, FileStore::Open(options.file, options.timeout));
  auto rendezvous = std::make_unique<FileRendezvous>(options, std::move(store));
  PSRING_RETURN_IF_ERROR(rendezvous->Join(rank));
  return rendezvous;
}

}  // namespace psring
