#include "ps_server/protocol/sharding.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"

namespace psring {

std::vector<std::vector<BucketSlice>> CutBuckets(const std::vector<Bucket>& buckets, int servers) {
  PSRING_CHECK(servers >= 1);
  const size_t parts = static_cast<size_t>(servers);
  std::vector<std::vector<BucketSlice>> slices(parts);
  std::vector<size_t> held(parts, 0);  // elements, by server
  for (const Bucket& bucket : buckets) {
    const size_t blocks = (bucket.count + kSliceAlignment - 1) / kSliceAlignment;
    // The remainder goes to the servers that hold least so far.
    std::vector<size_t> order(parts);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return held[a] < held[b]; });
    std::vector<size_t> share(parts, blocks / parts);
    for (size_t i = 0; i < blocks % parts; ++i) ++share[order[i]];
    size_t first = 0;
    for (const size_t server : order) {  // the last block may be short: it goes to the server that holds most
      const size_t end = std::min(bucket.count, first + share[server] * kSliceAlignment);
      slices[server].push_back({.first = first, .count = end - first});
      held[server] += end - first;
      first = end;
    }
  }
  return slices;
}

ServerJob ShardOf(const ServerJob& whole, const std::vector<BucketSlice>& slices, int server, int servers) {
  PSRING_CHECK(slices.size() == whole.buckets.size());
  ServerJob shard = whole;
  shard.server = server;
  shard.servers = servers;
  std::vector<ParameterRange> parts;
  size_t first = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    parts.push_back({.first = whole.buckets[i].first + slices[i].first, .count = slices[i].count});
    shard.buckets[i].first = first;
    shard.buckets[i].count = slices[i].count;
    first += slices[i].count;
  }
  shard.optimizer.no_decay = RangesWithin(parts, whole.optimizer.no_decay);
  shard.parameters = static_cast<int64_t>(first);
  return shard;
}

}  // namespace psring
