#include "ring_worker/schedules/schedule.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/errors.h"
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
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"};
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

// 4 for "hierarchical:4"; 0: the name contains no number of ranks.
int RanksPerNodeIn(absl::string_view algorithm) {
  int number = 0;
  const size_t colon = algorithm.find(':');
  if (colon == absl::string_view::npos) return 0;
  const absl::string_view digits = algorithm.substr(colon + 1);
  // Not " 4", "+4" or "04": ranks and records compare names.
  return absl::SimpleAtoi(digits, &number) && digits == absl::StrCat(number) ? std::max(number, 0) : 0;
}

}  // namespace

const ScheduleTable& ScheduleRows() {
  static const auto& rows = *new ScheduleTable{
      {"ring", TrNoop("every rank sends to the next, less than 2 M: the fewest bytes, for large buffers"),
       MakeRing, RingCost, kRingTraits},
      {"star", TrNoop("like one parameter server: rank 0 gathers, adds and sends back"), MakeStar, StarCost,
       kRooted},
      {"direct", TrNoop("every rank sums one part, like a parameter server with every worker"), MakeDirect,
       DirectCost, kDirectTraits, DirectExchangeCost},
      {"one-shot", TrNoop("every rank reads every other, in one round: for small buffers"), MakeOneShot,
       nullptr, kCompared},
      {"halving-doubling", TrNoop("partners exchange halves and add, then double: few rounds and few bytes"),
       MakeHalvingDoubling, HalvingDoublingCost},
      {"double-binary-tree", TrNoop("up and down two trees, each for half of the buffer"),
       MakeDoubleBinaryTree, DoubleBinaryTreeCost, kRooted},
      {"hierarchical", TrNoop("within nodes, then by rings between nodes, then within nodes"),
       MakeHierarchical, nullptr, kUsesNodes},
      {"pairwise",
       TrNoop("in round k every rank sends a block to the rank k places after it: for all-to-all"),
       MakePairwise, nullptr, kCompared, PairwiseExchangeCost},
  };
  return rows;
}

std::vector<std::string> AlgorithmsFor(Collective collective, const ScheduleTable& rows) {
  std::vector<std::string> names;
  for (const ScheduleRow& row : rows) {
    if (row.offers(collective)) names.push_back(row.name);
  }
  return names;
}

const ScheduleRow* FindSchedule(const std::string& algorithm, const ScheduleTable& rows) {
  for (const ScheduleRow& row : rows) {
    if (algorithm == row.name) return &row;
    if (row.traits.uses_nodes && absl::StartsWith(algorithm, absl::StrCat(row.name, ":")) &&
        RanksPerNodeIn(algorithm) > 0) {
      return &row;
    }
  }
  return nullptr;
}

std::string BaseAlgorithm(const std::string& algorithm, const ScheduleTable& rows) {
  const ScheduleRow* const row = FindSchedule(algorithm, rows);
  return row != nullptr ? row->name : algorithm;
}

bool NeedsRanksPerNode(const std::string& algorithm, const ScheduleTable& rows) {
  const ScheduleRow* const row = FindSchedule(algorithm, rows);
  return row != nullptr && row->traits.uses_nodes && algorithm == row->name;
}

absl::StatusOr<std::unique_ptr<Schedule>> MakeSchedule(const std::string& algorithm, Collective collective,
                                                       const ScheduleShape& given,
                                                       const ScheduleTable& rows) {
  ScheduleShape shape = given;
  if (shape.ranks < 1) {
    return InvalidArgument("no schedule for ", shape.ranks, " ranks; it takes at least one");
  }
  const ScheduleRow* const found = FindSchedule(algorithm, rows);
  if (const int number = found != nullptr ? RanksPerNodeIn(algorithm) : 0; number > 0) {
    shape.ranks_per_node = shape.ranks == 1 ? 1 : number;
    if (shape.ranks % shape.ranks_per_node != 0) {
      return InvalidTr("$0 needs a multiple of $1 ranks, not $2", algorithm, number, shape.ranks);
    }
  }
  if (shape.ranks_per_node < 1 || shape.ranks % shape.ranks_per_node != 0) {
    return InvalidArgument(shape.ranks, " ranks cannot be divided into nodes of ", shape.ranks_per_node);
  }
  if (shape.root < 0 || shape.root >= shape.ranks) {
    return InvalidArgument("no root ", shape.root, " among ", shape.ranks, " ranks; there are 0 to ",
                           shape.ranks - 1);
  }
  if (found != nullptr) {
    std::unique_ptr<Schedule> schedule = found->make(collective, shape);
    if (schedule != nullptr) return schedule;
    return InvalidArgument(algorithm, " offers no ", Name(collective),
                           "; these do: ", absl::StrJoin(AlgorithmsFor(collective, rows), ", "));
  }
  return absl::NotFoundError(Tr("unknown algorithm '$0'; use one of $1", algorithm,
                                absl::StrJoin(AlgorithmsFor(collective, rows), ", ")));
}

}  // namespace psring
