// The members of a rendezvous, and the errors of waits for missing ones, which name the process at fault.
// Pure.
//
// A *member* is a process that has joined: a rank, or a process without a rank. It *leaves* deliberately and
// is *lost* when it ends otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace psring {

// "60 s", "0.2 s".
std::string SecondsText(absl::Duration duration);
// "rank 2", "ranks 2 and 3", "ranks 0, 1, 2 and 3"; `noun` in place of "rank".
std::string RanksText(const std::vector<int>& ranks, const std::string& noun = "rank");

// 128 random bits, so that a process can speak only for itself.
using MemberId = std::string;

struct Participant {
  int rank = -1;  // -1: no rank
  int world_size = 1;
  std::string name;  // "host:pid"
};

class Roster {
 public:
  static constexpr int kMaxRanks = 65'536;
  static constexpr size_t kMaxMembers = 2 * kMaxRanks;

  enum class Presence { kHere, kLeft, kLost };

  explicit Roster(std::string noun = "rank") : noun_(std::move(noun)) {}

  // AlreadyExists: the rank is or was taken; InvalidArgument: no such rank, too many, or a world size that
  // differs from earlier ranks'; ResourceExhausted: too many members. Rejected processes are remembered for
  // the error messages of others.
  absl::Status Join(const Participant& joining, const MemberId& id);
  void Depart(const MemberId& id, Presence how);  // no effect if it is unknown or has departed before
  void Refuse(int rank, const std::string& why);
  void RankEnded(int rank, const std::string& why);  // lost; if it has not joined, it counts as rejected

  const Participant* Find(const MemberId& id) const;  // null: unknown
  bool AnyoneHere() const;

  // Why a wait for the ranks `missing` can no longer succeed: one of them is lost, has left or was rejected.
  // OK if it still can. `where` completes the error "rank 1 has died while others waited for it ...".
  absl::Status Hopeless(const std::vector<int>& missing, const std::string& where) const;
  // The same for all ranks of the job.
  absl::Status Hopeless(const std::string& where) const;
  // DeadlineExceeded names `missing`, those of them that never joined and, if there are any, the processes of
  // ranks that joined; and the last rejected process.
  absl::Status TooLate(const std::vector<int>& missing, const std::string& name,
                       absl::Duration timeout) const;
  // Unavailable if a rank not below this job's world size tried to join: one of the world sizes is wrong.
  absl::Status Surplus() const;
  // Unavailable if any member is lost, or a process without a rank was rejected, while `whom` is awaited.
  absl::Status LossDuring(const std::string& whom) const;

 private:
  struct Member {
    Participant process;
    Presence presence = Presence::kHere;
    int64_t departure = -1;  // its place in the order of departures
  };
  struct Refusal {
    int rank;
    std::string why;
  };

  int world_size() const;  // of the ranks that have joined; 0: none
  absl::Status Admit(const Participant& process) const;
  void Depart(Member& departing, Presence how);
  std::string Describe(const Member& member) const;
  std::string Joined() const;  // "; joined: ..."; empty: no rank has

  std::string noun_;
  std::deque<Member> members_;
  std::map<MemberId, Member*> members_by_id_;
  std::map<int, Member*> member_of_rank_;
  std::vector<Refusal> refused_;
  int64_t departures_ = 0;
};

}  // namespace psring
