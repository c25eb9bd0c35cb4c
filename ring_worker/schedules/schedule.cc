#include "ring_worker/schedules/schedule.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "ring_worker/schedules/schedules.h"

namespace psring {

ChunkRange ChunkBounds(size_t count, int chunks, int first_chunk, int chunk_count) {
  PSRING_CHECK(chunks > 0 && first_chunk >= 0 && chunk_count >= 0 && first_chunk + chunk_count <= chunks);
  // floor(c * count / chunks) without c * count, which can overflow.
  const size_t quotient = count / chunks;
  const size_t remainder = count % chunks;
  const auto start = [&](size_t chunk) { return chunk * quotient + chunk * remainder / chunks; };
  const size_t first = start(first_chunk);
  return {first, start(size_t(first_chunk) + chunk_count) - first};
}

const char* Name(Collective collective) {
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};
  return kNames[static_cast<size_t>(collective)];
}

absl::StatusOr<Collective> ParseCollective(const std::string& name) {
  std::vector<std::string> names;
  for (Collective collective : kCollectives) {
    if (name == Name(collective)) return collective;
    names.push_back(Name(collective));
  }
  return absl::NotFoundError(Tr("unknown collective '$0'; use one of $1", name, absl::StrJoin(names, ", ")));
}

namespace {

constexpr ScheduleTraits kRingTraits = {
    .is_ring = true, .is_compared = true, .gather_messages = [](int ranks) { return ranks - 1; }};
constexpr ScheduleTraits kDirectTraits = {.is_compared = true, .gather_messages = [](int) { return 1; }};
constexpr ScheduleTraits kCompared = {.is_compared = true}, kRooted = {.has_root = true},
                         kUsesNodes = {.uses_nodes = true};

}  // namespace

const ScheduleTable& ScheduleRows() {
  static const auto& rows = *new ScheduleTable{
      {"ring", TrNoop("every rank sends to the next: the fewest bytes, for large buffers"), MakeRing,
       RingCost, kRingTraits},
      {"star", TrNoop("like one parameter server: rank 0 gathers, adds and sends back"), MakeStar, StarCost,
       kRooted},
      {"direct", TrNoop("every rank sums one part, like a parameter server with every worker"), MakeDirect,
       DirectCost, kDirectTraits},
      {"one-shot", TrNoop("every rank reads every other, in one round: for small buffers"), MakeOneShot,
       nullptr, kCompared},
      {"halving-doubling", TrNoop("partners exchange halves and add, then double: few rounds and few bytes"),
       MakeHalvingDoubling, HalvingDoublingCost},
      {"double-binary-tree", TrNoop("up and down two trees, each for half of the buffer"),
       MakeDoubleBinaryTree, DoubleBinaryTreeCost, kRooted},
      {"hierarchical", TrNoop("within nodes, then by rings between nodes, then within nodes"),
       MakeHierarchical, nullptr, kUsesNodes},
  };
  return rows;
}

std::vector<std::string> AlgorithmsFor(Collective collective, const ScheduleTable& rows) {
  std::vector<std::string> names;
  for (const ScheduleRow& row : rows) {
    if (row.make(collective, ScheduleShape()) != nullptr) names.push_back(row.name);
  }
  return names;
}

const ScheduleRow* FindSchedule(const std::string& algorithm, const ScheduleTable& rows) {
  for (const ScheduleRow& row : rows) {
    if (algorithm == row.name) return &row;
  }
  return nullptr;
}

absl::StatusOr<std::unique_ptr<Schedule>> MakeSchedule(const std::string& algorithm, Collective collective,
                                                       const ScheduleShape& shape,
                                                       const ScheduleTable& rows) {
  if (shape.ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("no schedule for ", shape.ranks, " ranks; it takes at least one"));
  }
  if (shape.ranks_per_node < 1 || shape.ranks % shape.ranks_per_node != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.ranks, " ranks cannot be divided into nodes of ", shape.ranks_per_node));
  }
  if (shape.root < 0 || shape.root >= shape.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("no root ", shape.root, " among ", shape.ranks,
                                                   " ranks; there are 0 to ", shape.ranks - 1));
  }
  if (const ScheduleRow* row = FindSchedule(algorithm, rows)) {
    std::unique_ptr<Schedule> schedule = row->make(collective, shape);
    if (schedule != nullptr) return schedule;
    return absl::InvalidArgumentError(absl::StrCat(algorithm, " offers no ", Name(collective), "; these do: ",
                                                   absl::StrJoin(AlgorithmsFor(collective, rows), ", ")));
  }
  std::vector<std::string> names;
  for (const ScheduleRow& row : rows) names.push_back(row.name);
  return absl::NotFoundError(
      Tr("unknown algorithm '$0'; use one of $1", algorithm, absl::StrJoin(names, ", ")));
}

}  // namespace psring
