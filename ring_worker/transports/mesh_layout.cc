#include "ring_worker/transports/mesh_layout.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/errors.h"
#include "common/device/control_groups.h"
#include "common/text/peer_text.h"
#include "ring_worker/transports/shared_link.h"

namespace psring {

namespace {

std::string ViewText(const MeshView& view) {
  return absl::StrCat(view.sharing, " ", view.in_line, " ", view.oversubscribed, " ", view.near);
}

absl::StatusOr<MeshView> ParseView(const std::string& text, int rank) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  MeshView view;
  if (words.size() == 4 && absl::SimpleAtoi(words[0], &view.sharing) &&
      absl::SimpleAtob(words[1], &view.in_line) && absl::SimpleAtob(words[2], &view.oversubscribed) &&
      absl::SimpleAtob(words[3], &view.near)) {
    return view;
  }
  return Internal("rank ", rank, " describes its placement as '", PeerText(text),
                  "': are all ranks of the same build?");
}

}  // namespace

MeshView ViewOf(int rank, const std::vector<bool>& shares, int cores, bool near) {
  const int size = static_cast<int>(shares.size());
  int first = rank, last = rank, count = 1;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank || !shares[peer]) continue;
    ++count;
    first = std::min(first, peer);
    last = std::max(last, peer);
  }
  return {.sharing = count,
          .in_line = last - first + 1 == count && size % count == 0 && first % count == 0,
          .oversubscribed = (near ? size : count) > cores,
          .near = near};
}

MeshLayout LayoutOf(std::span<const MeshView> by_rank) {
  MeshLayout layout;
  bool nodes = by_rank.front().in_line;
  for (const MeshView& view : by_rank) {
    layout.some_share |= view.sharing > 1;
    layout.all_share &= view.sharing == static_cast<int>(by_rank.size());
    layout.all_near &= view.near;
    layout.some_oversubscribed |= view.oversubscribed;
    nodes &= view.in_line && view.sharing == by_rank.front().sharing;
  }
  layout.ranks_per_node = nodes ? by_rank.front().sharing : 0;
  return layout;
}

absl::StatusOr<MeshLayout> AgreeOnLayout(Rendezvous& rendezvous, const std::vector<bool>& shares, bool near) {
  const MeshView mine = ViewOf(rendezvous.options().rank, shares, UsableCores(), near);
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all, rendezvous.Exchange("layout", ViewText(mine)));
  std::vector<MeshView> by_rank;
  for (const std::string& text : all) {
    const int rank = rendezvous.options().JobRank(static_cast<int>(by_rank.size()));
    PSRING_ASSIGN_OR_RETURN(by_rank.emplace_back(), ParseView(text, rank));
  }
  return LayoutOf(by_rank);
}

TransportTraits TraitsOf(const MeshLayout& layout) {
  if (layout.all_share) {
    // With several segments a rank can continue while a peer is slower: on two cores of Zen 4, up to two
    // fifths faster from 1 MiB. Ranks that share a core share its cache, in which fewer segments stay.
    return {.segment_bytes = kSlotBytes,
            .max_segment_bytes = kSlotBytes,
            .depth = layout.some_oversubscribed ? 2 : 3};
  }
  if (layout.some_share) {
    return {.segment_bytes = kSlotBytes, .max_segment_bytes = kSlotBytes, .depth = 8};
  }
  if (layout.all_near) {
    // Over loopback a call into the kernel costs more than a short segment. Ranks that share a core also
    // share its cache, where with 1 MiB the peers' segments have no space.
    const size_t segment = layout.some_oversubscribed ? 384 << 10 : 1 << 20;
    return {.segment_bytes = segment, .max_segment_bytes = SIZE_MAX, .depth = 1};
  }
  // 8 segments are 4 MiB: 100 Gbit/s for 0.3 ms.
  return {.segment_bytes = 512 << 10, .max_segment_bytes = SIZE_MAX, .depth = 8};
}

}  // namespace psring
