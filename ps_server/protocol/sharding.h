// How the parameters are divided among several servers: every bucket is cut into one slice per server. A
// worker pushes to and pulls from all servers at once, and each server has an equal share of every bucket,
// whatever the layers' sizes. Pure.
//
// *whole*: the job as the workers see it. *shard*: the job of one server, with its slice of each bucket; the
// parameters are numbered from 0 without gaps.
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
// totals differ by at most two alignments; a bucket with fewer aligned blocks than servers has empty slices.
std::vector<std::vector<BucketSlice>> CutBuckets(const std::vector<Bucket>& buckets, int servers);

// The job of one server. `slices`: its row of CutBuckets(whole.buckets, servers).
ServerJob ShardOf(const ServerJob& whole, const std::vector<BucketSlice>& slices, int server, int servers);

}  // namespace psring
