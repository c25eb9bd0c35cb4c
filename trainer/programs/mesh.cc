#include "trainer/programs/mesh.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr int64_t kMaxPresetRanks = 1 << 16;

}  // namespace

std::string LayoutName(int replicas, int positions, const char* axis) {
  if (positions == 1) return absl::StrCat("dp", replicas);
  return absl::StrCat(replicas > 1 ? absl::StrCat("dp", replicas, "x") : "", axis, positions);
}

absl::StatusOr<Mesh> Mesh::Create(int workers, int pp, const std::string& rank_order, int tp) {
  PSRING_CHECK(pp == 1 || tp == 1);
  const std::string axis = tp > 1 ? "tp" : "pp";
  const std::string by_position = absl::StrCat("dp,", axis), by_replica = absl::StrCat(axis, ",dp");
  if (!rank_order.empty() && rank_order != by_position && rank_order != by_replica) {
    return absl::InvalidArgumentError(
        Tr("--rank_order '$0' is not $1 or $2", rank_order, by_position, by_replica));
  }
  const int ranks = tp > 1 ? tp : pp;
  if (workers < 1 || ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", axis, " ", ranks, " of ", workers, " workers: use at least 1"));
  }
  const bool replica_first = rank_order.empty() ? tp > 1 : rank_order == by_replica;
  if (workers % ranks == 0) return Mesh(workers / ranks, ranks, replica_first);
  // The nearest numbers of positions that divide the workers.
  std::vector<int> possible;
  for (int positions = std::min(ranks - 1, workers); positions >= 2 && possible.empty(); --positions) {
    if (workers % positions == 0) possible.push_back(positions);
  }
  for (int positions = ranks + 1; positions <= workers; ++positions) {
    if (workers % positions != 0) continue;
    possible.push_back(positions);
    break;
  }
  const std::string text = Tr("--$3 $0 does not divide $1 workers; use a multiple, such as --workers $2",
                              ranks, workers, (int64_t{workers} / ranks + 1) * ranks, axis);
  if (possible.empty()) return absl::InvalidArgumentError(text);
  return absl::InvalidArgumentError(
      absl::StrCat(text, Tr(", or --$1 $0", absl::StrJoin(possible, Tr(" or ")), axis)));
}

MeshPlace Mesh::PlaceOf(int rank) const {
  PSRING_CHECK(rank >= 0 && rank < workers());
  if (replica_first_) return {.replica = rank / positions_, .position = rank % positions_};
  return {.replica = rank % replicas_, .position = rank / replicas_};
}

int Mesh::RankAt(const MeshPlace& place) const {
  PSRING_CHECK(place.replica >= 0 && place.replica < replicas_);
  PSRING_CHECK(place.position >= 0 && place.position < positions_);
  return replica_first_ ? place.replica * positions_ + place.position
                        : place.position * replicas_ + place.replica;
}

absl::StatusOr<MeshPreset> ParseMeshPreset(const std::string& text) {
  const std::pair<absl::string_view, absl::string_view> axes = absl::StrSplit(text, absl::MaxSplits('x', 1));
  absl::string_view dp = axes.first, pp = axes.second;
  MeshPreset preset{};
  if (text.find_first_not_of("0123456789dpx") == text.npos && absl::ConsumePrefix(&dp, "dp") &&
      absl::SimpleAtoi(dp, &preset.replicas) && preset.replicas >= 1 && absl::ConsumePrefix(&pp, "pp") &&
      absl::SimpleAtoi(pp, &preset.positions) && preset.positions >= 2 &&
      int64_t{preset.replicas} * preset.positions <= kMaxPresetRanks) {
    return preset;
  }
  return absl::InvalidArgumentError(
      Tr("--preset '$0' is not of the form dp4xpp2: 4 replicas, each cut into 2 stages", text));
}

}  // namespace psring
