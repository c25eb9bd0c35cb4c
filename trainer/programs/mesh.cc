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

constexpr char kReplicasFirst[] = "dp,pp", kPositionsFirst[] = "pp,dp";
constexpr int64_t kMaxPresetRanks = 1 << 16;

}  // namespace

std::string LayoutName(int replicas, int positions) {
  if (positions == 1) return absl::StrCat("dp", replicas);
  return absl::StrCat(replicas > 1 ? absl::StrCat("dp", replicas, "x") : "", "pp", positions);
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
