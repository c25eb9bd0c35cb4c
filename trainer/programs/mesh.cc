#include "trainer/programs/mesh.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr char kOrder[] = "tp,cp,dp,pp";

struct Axis {
  absl::string_view name;
  int Layout::*ranks;
};
constexpr Axis kAxes[] = {{"dp", &Layout::dp}, {"pp", &Layout::pp}, {"tp", &Layout::tp}, {"cp", &Layout::cp}};

// The axes that divide a replica; pp if none does.
std::vector<Axis> DividingAxes(const Layout& layout) {
  std::vector<Axis> axes;
  for (const Axis& axis : kAxes) {
    if (axis.name != "dp" && layout.*axis.ranks > 1) axes.push_back(axis);
  }
  return axes.empty() ? std::vector<Axis>{kAxes[1]} : axes;
}

std::string NoOrder(const std::string& rank_order, const Layout& layout) {
  const std::vector<Axis> axes = DividingAxes(layout);
  if (axes.size() == 1) {
    return Tr("--rank_order '$0' is not $1 or $2", rank_order, absl::StrCat("dp,", axes[0].name),
              absl::StrCat(axes[0].name, ",dp"));
  }
  std::vector<absl::string_view> order = absl::StrSplit(kOrder, ',');
  std::erase_if(order, [&](absl::string_view name) {
    return name != "dp" && std::ranges::count(axes, name, &Axis::name) == 0;
  });
  return Tr("--rank_order '$0' is not $1 or $2", rank_order, absl::StrJoin(order, ","),
            Tr("another order of these"));
}

std::string DoNotDivide(int workers, const Layout& layout) {
  const std::vector<Axis> axes = DividingAxes(layout);
  std::vector<std::string> flags;
  int64_t ranks = 1;
  for (const Axis& axis : axes) {
    flags.push_back(absl::StrCat("--", axis.name, " ", layout.*axis.ranks));
    ranks *= layout.*axis.ranks;
  }
  const std::string text = Tr("$0 does not divide $1 workers; use a multiple, such as --workers $2",
                              absl::StrJoin(flags, Tr(" times ")), workers, (workers / ranks + 1) * ranks);
  if (axes.size() > 1) return text;
  // The nearest numbers that divide the workers.
  std::vector<int64_t> possible;
  for (int64_t count = std::min<int64_t>(ranks - 1, workers); count >= 2 && possible.empty(); --count) {
    if (workers % count == 0) possible.push_back(count);
  }
  for (int64_t count = ranks + 1; count <= workers; ++count) {
    if (workers % count != 0) continue;
    possible.push_back(count);
    break;
  }
  if (possible.empty()) return text;
  return absl::StrCat(text, Tr(", or --$1 $0", absl::StrJoin(possible, Tr(" or ")), axes[0].name));
}

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
      return InvalidTr(
          "'$0' is not a layout; write dp4 (four replicas of the model), pp4 (one in four stages), tp4 "
          "(one whose matrices four workers divide), cp4 (whose sequences they divide) or dp2xpp2",
          std::string(text));
    }
    named.push_back(name);
  }
  int64_t workers = 1;
  for (const Axis& axis : kAxes) workers = std::min(workers * (layout.*axis.ranks), int64_t{1} << 40);
  if (workers >= 2 && workers <= most) return layout;
  return InvalidTr("$0 has $1 workers; use 2 to $2", std::string(text), workers, most);
}

absl::StatusOr<Mesh> Mesh::Create(int workers, int pp, const std::string& rank_order, int tp, int cp) {
  const Layout layout{.pp = pp, .tp = tp, .cp = cp};
  for (const auto& axis : kAxes) {
    const int ranks = axis.name == "dp" ? workers : layout.*axis.ranks;
    if (ranks >= 1) continue;
    return InvalidArgument(
        axis.name == "dp" ? absl::StrCat("--pp ", pp) : absl::StrCat("--", axis.name, " ", ranks), " of ",
        workers, " workers: use at least 1");
  }
  const int64_t ranks = int64_t{pp} * tp * cp;
  if (workers % ranks != 0) return absl::InvalidArgumentError(DoNotDivide(workers, layout));
  Mesh mesh;
  mesh.replicas_.size = static_cast<int>(workers / ranks);
  mesh.positions_.size = pp;
  mesh.shares_.size = tp;
  mesh.segments_.size = cp;
  std::map<std::string, Axis*> missing = {
      {"dp", &mesh.replicas_}, {"pp", &mesh.positions_}, {"tp", &mesh.shares_}, {"cp", &mesh.segments_}};
  int stride = 1;
  for (const std::string& name :
       std::vector<std::string>(absl::StrSplit(rank_order.empty() ? kOrder : rank_order, ','))) {
    const auto axis = missing.find(name);
    if (axis == missing.end()) return absl::InvalidArgumentError(NoOrder(rank_order, layout));
    axis->second->stride = std::exchange(stride, stride * axis->second->size);
    missing.erase(axis);
  }
  for (const auto& [name, axis] : missing) {
    if (name == "dp" || axis->size > 1) return absl::InvalidArgumentError(NoOrder(rank_order, layout));
  }
  return mesh;
}

MeshPlace Mesh::PlaceOf(int rank) const {
  PSRING_CHECK(rank >= 0 && rank < workers());
  const auto along = [rank](const Axis& axis) { return rank / axis.stride % axis.size; };
  return {.replica = along(replicas_),
          .position = along(positions_),
          .share = along(shares_),
          .segment = along(segments_)};
}

int Mesh::RankAt(const MeshPlace& place) const {
  int rank = 0;
  for (const auto& [axis, at] : {std::pair(replicas_, place.replica),
                                 {positions_, place.position},
                                 {shares_, place.share},
                                 {segments_, place.segment}}) {
    PSRING_CHECK(at >= 0 && at < axis.size);
    rank += at * axis.stride;
  }
  return rank;
}

std::vector<int> Mesh::RanksWithPart(int part) const {
  std::vector<int> ranks;
  for (int replica = 0; replica < replicas(); ++replica) {
    ranks.push_back(RankAt({.replica = replica, .position = part / shares(), .share = part % shares()}));
  }
  return ranks;
}

}  // namespace psring
