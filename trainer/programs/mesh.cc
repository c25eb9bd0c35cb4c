#include "trainer/programs/mesh.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr char kReplicasFirst[] = "dp,pp", kPositionsFirst[] = "pp,dp";

struct Axis {
  absl::string_view name;
  int Layout::*ranks;
};
constexpr Axis kAxes[] = {{"dp", &Layout::dp}, {"pp", &Layout::pp}};

}  // namespace

std::string Layout::name() const {
  std::vector<std::string> parts;
  for (const Axis& axis : kAxes) {
    if (this->*axis.ranks > 1) parts.push_back(absl::StrCat(axis.name, this->*axis.ranks));
  }
  return parts.empty() ? "dp1" : absl::StrJoin(parts, "x");
}

absl::StatusOr<Layout> ParseLayout(absl::string_view text, int most) {
  Layout layout;
  std::vector<absl::string_view> named;
  for (const absl::string_view part : absl::StrSplit(text, 'x')) {
    const absl::string_view name = part.substr(0, 2), ranks = part.substr(name.size());
    const Axis* const axis = std::ranges::find(kAxes, name, &Axis::name);
    const bool known = axis != std::end(kAxes) && std::ranges::count(named, name) == 0 &&
                       ranks.find_first_not_of("0123456789") == ranks.npos;
    if (!known || !absl::SimpleAtoi(ranks, &(layout.*axis->ranks)) || layout.*axis->ranks < 1 ||
        layout.*axis->ranks > most) {
      return absl::InvalidArgumentError(Tr(
          "'$0' is not a layout; write dp4 (four replicas of the model), pp4 (one in four stages) or dp2xpp2",
          std::string(text)));
    }
    named.push_back(name);
  }
  const int64_t workers = int64_t{layout.dp} * layout.pp;
  if (workers >= 2 && workers <= most) return layout;
  return absl::InvalidArgumentError(Tr("$0 has $1 workers; use 2 to $2", std::string(text), workers, most));
}

absl::StatusOr<Mesh> Mesh::Create(int workers, int pp, const std::string& rank_order) {
  if (!rank_order.empty() && rank_order != kReplicasFirst && rank_order != kPositionsFirst) {
    return absl::InvalidArgumentError(
        Tr("--rank_order '$0' is not $1 or $2", rank_order, kReplicasFirst, kPositionsFirst));
  }
  if (workers < 1 || pp < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--pp ", pp, " of ", workers, " workers: use at least 1"));
  }
  if (workers % pp == 0) return Mesh(workers / pp, pp, rank_order == kPositionsFirst);
  // The nearest numbers of stages that divide the workers.
  std::vector<int> possible;
  for (int stages = std::min(pp - 1, workers); stages >= 2 && possible.empty(); --stages) {
    if (workers % stages == 0) possible.push_back(stages);
  }
  for (int stages = pp + 1; stages <= workers; ++stages) {
    if (workers % stages != 0) continue;
    possible.push_back(stages);
    break;
  }
  const std::string text = Tr("--pp $0 does not divide $1 workers; use a multiple, such as --workers $2", pp,
                              workers, (int64_t{workers} / pp + 1) * pp);
  if (possible.empty()) return absl::InvalidArgumentError(text);
  return absl::InvalidArgumentError(
      absl::StrCat(text, Tr(", or --pp $0", absl::StrJoin(possible, Tr(" or ")))));
}

MeshPlace Mesh::PlaceOf(int rank) const {
  PSRING_CHECK(rank >= 0 && rank < workers());
  if (pp_first_) return {.replica = rank / positions_, .position = rank % positions_};
  return {.replica = rank % replicas_, .position = rank / replicas_};
}

int Mesh::RankAt(const MeshPlace& place) const {
  PSRING_CHECK(place.replica >= 0 && place.replica < replicas_);
  PSRING_CHECK(place.position >= 0 && place.position < positions_);
  return pp_first_ ? place.replica * positions_ + place.position : place.position * replicas_ + place.replica;
}

std::vector<int> Mesh::RanksAt(int position) const {
  std::vector<int> ranks;
  for (int replica = 0; replica < replicas_; ++replica) {
    ranks.push_back(RankAt({.replica = replica, .position = position}));
  }
  return ranks;
}

}  // namespace psring
