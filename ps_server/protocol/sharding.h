// How the parameters are spread over several servers: every bucket is cut into a slice for each. So a worker
// pushes to and pulls from all of them at once, bucket by bucket, and each server holds an equal share of
// every bucket, whatever the layers' sizes. Pure.
//
// *whole* the job as the workers see it; *shard* the job that one server serves: the same buckets, each cut
// down to the server's slice, in a flat numbering of its own.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/parameters.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

// A server's part of one bucket, in elements of the bucket.
struct BucketSlice {
  size_t first = 0;
  size_t count = 0;
};

// Slices begin at multiples of this: 64 bytes of float32, so that no cache line belongs to two servers.
inline constexpr size_t kSliceAlignment = 16;

// By server, then by bucket: slices that cover each bucket exactly once, in no particular order. The servers'
// totals differ by at most two alignments, however many buckets there are; a bucket with fewer aligned blocks
// than servers leaves some without a part of it.
std::vector<std::vector<BucketSlice>> CutBuckets(const std::vector<Bucket>& buckets, int servers);

// What server `server` is told. `slices`: its row of CutBuckets(whole.buckets, servers).
ServerJob ShardOf(const ServerJob& whole, const std::vector<BucketSlice>& slices, int server, int servers);

}  // namespace psring
