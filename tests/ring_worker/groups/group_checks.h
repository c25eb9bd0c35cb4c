// Checks of process groups of any backend, in the memory of any device. Each rank runs them; they return a
// status, because a rank may be a process.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ring_worker/groups/process_group.h"

namespace psring {

inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
inline constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax};

inline Device& HostDevice() {
  static const std::unique_ptr<Device> device = MakeCpuDevice();
  return *device;
}

struct GroupRank {
  ProcessGroup& group;
  Stream& stream;
  Device& device = HostDevice();
};

// Integers that are exact in every type, and whose sums over 16 ranks are exact too.
inline float TestValue(int rank, size_t i) { return float(int((i * 7 + size_t(rank) * 5) % 23) - 11); }

inline float Expected(ReduceOp op, int ranks, size_t i) {
  float value = TestValue(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const float next = TestValue(rank, i);
    value = op == ReduceOp::kMin   ? std::fmin(value, next)
            : op == ReduceOp::kMax ? std::fmax(value, next)
                                   : value + next;
  }
  return op == ReduceOp::kMean ? value / float(ranks) : value;
}

// One rank's memory, which the host writes and reads as floats by copies in the stream.
class TestMemory {
 public:
  // `shared`: registered with the group until it is destroyed.
  TestMemory(const GroupRank& rank, DType type, size_t count, bool shared)
      : rank_(rank), type_(type), count_(count) {
    const size_t bytes = std::max(count, size_t{1}) * SizeOf(type);
    memory_ = *(shared ? rank.device.AllocateShared(bytes) : rank.device.Allocate(bytes));
    registration_ = shared ? dynamic_cast<MemoryRegistration*>(&rank.group) : nullptr;
    if (registration_ != nullptr) PSRING_CHECK(registration_->Register(memory_).ok());
  }
  ~TestMemory() {
    if (registration_ != nullptr) registration_->Unregister(memory_);
  }

  Span span() const { return {memory_.data(), count_, type_}; }
  Span span(size_t first, size_t count) const { return span().Slice(first, count); }

  absl::Status Fill(size_t first, size_t count, const std::function<float(size_t)>& value) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = value(i);
    std::vector<char> bytes(count * SizeOf(type_));
    cpu::Convert(DType::kFloat32, values.data(), type_, bytes.data(), count);
    if (count > 0) rank_.stream.Copy(span(first, count).data, bytes.data(), bytes.size());
    return rank_.stream.Synchronize();
  }

  // After the calls in the stream.
  absl::StatusOr<std::vector<float>> Values(size_t first, size_t count) const {
    std::vector<char> bytes(count * SizeOf(type_));
    if (count > 0) rank_.stream.Copy(bytes.data(), span(first, count).data, bytes.size());
    PSRING_RETURN_IF_ERROR(rank_.stream.Synchronize());
    std::vector<float> values(count);
    cpu::Convert(type_, bytes.data(), DType::kFloat32, values.data(), count);
    return values;
  }

  absl::Status Expect(size_t first, size_t count, float slack, const std::function<float(size_t)>& value,
                      const std::string& what) const {
    PSRING_ASSIGN_OR_RETURN(const std::vector<float> values, Values(first, count));
    for (size_t i = 0; i < count; ++i) {
      if (std::abs(values[i] - value(i)) <= slack * std::max(1.0f, std::abs(value(i)))) continue;
      return absl::DataLossError(absl::StrCat("rank ", rank_.group.rank(), " of ", rank_.group.size(), ", ",
                                              rank_.group.info().algorithm, " ", what, ", ", count, " ",
                                              Name(type_), ": element ", first + i, " is ", values[i],
                                              ", not ", value(i)));
    }
    return absl::OkStatus();
  }

 private:
  const GroupRank rank_;
  const DType type_;
  const size_t count_;
  Buffer memory_;
  MemoryRegistration* registration_ = nullptr;  // null: the memory is private, or the backend shares none
};

// Peers may still read memory before this.
inline absl::Status AwaitPeers(const GroupRank& rank) {
  PSRING_RETURN_IF_ERROR(rank.group.Barrier(rank.stream));
  return rank.stream.Synchronize();
}

// The collectives of `count` elements of each rank, in place and out of place.
class CollectiveChecks {
 public:
  CollectiveChecks(const GroupRank& rank, size_t count, DType type, ReduceOp op, bool shared)
      : rank_(rank),
        me_(size_t(rank.group.rank())),
        count_(count),
        whole_(count * size_t(rank.group.size())),
        op_(op),
        slack_(op != ReduceOp::kMean     ? 0
               : type == DType::kFloat32 ? 1e-6f
                                         : 0.01f),  // rounded once more
        a_(rank, type, whole_, shared),
        b_(rank, type, whole_, shared) {}

  absl::Status AllReduce() {
    const auto sum = [&](size_t i) { return Expected(op_, rank_.group.size(), i); };
    for (const bool in_place : {false, true}) {
      TestMemory& out = in_place ? a_ : b_;
      PSRING_RETURN_IF_ERROR(a_.Fill(0, count_, Mine()));
      PSRING_RETURN_IF_ERROR(
          rank_.group.AllReduce(a_.span(0, count_), out.span(0, count_), op_, rank_.stream));
      PSRING_RETURN_IF_ERROR(out.Expect(0, count_, slack_, sum, "all_reduce"));
      if (!in_place) PSRING_RETURN_IF_ERROR(a_.Expect(0, count_, 0, Mine(), "input of all_reduce"));
    }
    return absl::OkStatus();
  }

  absl::Status ReduceScatter() {
    const auto sum = [&](size_t i) { return Expected(op_, rank_.group.size(), me_ * count_ + i); };
    const size_t rest = (me_ + 1) * count_;
    for (const bool in_place : {false, true}) {
      TestMemory& out = in_place ? a_ : b_;
      const size_t at = in_place ? me_ * count_ : 0;
      PSRING_RETURN_IF_ERROR(a_.Fill(0, whole_, Mine()));
      PSRING_RETURN_IF_ERROR(
          rank_.group.ReduceScatter(a_.span(0, whole_), out.span(at, count_), op_, rank_.stream));
      PSRING_RETURN_IF_ERROR(out.Expect(at, count_, slack_, sum, "reduce_scatter"));
      PSRING_RETURN_IF_ERROR(a_.Expect(0, me_ * count_, 0, Mine(), "the rest of reduce_scatter's input"));
      PSRING_RETURN_IF_ERROR(a_.Expect(
          rest, whole_ - rest, 0, [&](size_t i) { return Mine()(rest + i); },
          "the rest of reduce_scatter's input"));
    }
    return absl::OkStatus();
  }

  absl::Status AllGather() {
    for (const bool in_place : {false, true}) {
      TestMemory& in = in_place ? b_ : a_;
      const size_t at = in_place ? me_ * count_ : 0;
      PSRING_RETURN_IF_ERROR(b_.Fill(0, whole_, [](size_t) { return -9.0f; }));
      PSRING_RETURN_IF_ERROR(in.Fill(at, count_, Mine()));
      PSRING_RETURN_IF_ERROR(rank_.group.AllGather(in.span(at, count_), b_.span(0, whole_), rank_.stream));
      PSRING_RETURN_IF_ERROR(b_.Expect(
          0, whole_, 0, [&](size_t i) { return TestValue(int(i / count_), i % count_); }, "all_gather"));
    }
    return absl::OkStatus();
  }

  absl::Status Broadcast(int root) {
    PSRING_RETURN_IF_ERROR(a_.Fill(0, count_, Mine()));
    PSRING_RETURN_IF_ERROR(rank_.group.Broadcast(a_.span(0, count_), root, rank_.stream));
    return a_.Expect(
        0, count_, 0, [&](size_t i) { return TestValue(root, i); }, absl::StrCat("broadcast from ", root));
  }

  absl::Status AllToAll() {
    PSRING_RETURN_IF_ERROR(a_.Fill(0, whole_, Mine()));
    PSRING_RETURN_IF_ERROR(b_.Fill(0, whole_, [](size_t) { return -9.0f; }));
    PSRING_RETURN_IF_ERROR(rank_.group.AllToAll(a_.span(0, whole_), b_.span(0, whole_), rank_.stream));
    PSRING_RETURN_IF_ERROR(b_.Expect(
        0, whole_, 0, [&](size_t i) { return TestValue(int(i / count_), me_ * count_ + i % count_); },
        "all_to_all"));
    return a_.Expect(0, whole_, 0, Mine(), "input of all_to_all");
  }

 private:
  std::function<float(size_t)> Mine() const {
    return [me = int(me_)](size_t i) { return TestValue(me, i); };
  }

  const GroupRank rank_;
  const size_t me_, count_, whole_;
  const ReduceOp op_;
  const float slack_;
  TestMemory a_, b_;
};

inline absl::Status CheckAllReduce(const GroupRank& rank, size_t count, DType type, ReduceOp op,
                                   bool shared = false) {
  CollectiveChecks checks(rank, count, type, op, shared);
  PSRING_RETURN_IF_ERROR(checks.AllReduce());
  return AwaitPeers(rank);
}

inline absl::Status CheckAllToAll(const GroupRank& rank, size_t count, DType type, bool shared = false) {
  CollectiveChecks checks(rank, count, type, ReduceOp::kSum, shared);
  PSRING_RETURN_IF_ERROR(checks.AllToAll());
  return AwaitPeers(rank);
}

inline const BackendRow& BackendNamed(const std::string& name) {
  for (const BackendRow& row : Backends()) {
    if (row.name == name) return row;
  }
  PSRING_CHECK(false);
  return Backends().front();
}

// Every collective that the group's backend offers.
inline absl::Status CheckCollectives(const GroupRank& rank, size_t count, DType type, ReduceOp op,
                                     bool shared = false) {
  const BackendRow& backend = BackendNamed(rank.group.info().backend);
  const auto offers = [&](Collective collective) { return !backend.algorithms(collective).empty(); };
  CollectiveChecks checks(rank, count, type, op, shared);
  PSRING_RETURN_IF_ERROR(checks.AllReduce());
  if (offers(Collective::kReduceScatter)) PSRING_RETURN_IF_ERROR(checks.ReduceScatter());
  if (offers(Collective::kAllGather)) PSRING_RETURN_IF_ERROR(checks.AllGather());
  if (offers(Collective::kBroadcast)) {
    PSRING_RETURN_IF_ERROR(checks.Broadcast(0));
    PSRING_RETURN_IF_ERROR(checks.Broadcast(rank.group.size() - 1));
  }
  if (offers(Collective::kAllToAll)) PSRING_RETURN_IF_ERROR(checks.AllToAll());
  return AwaitPeers(rank);
}

// Over sizes, types and ops.
inline absl::Status CheckAllCollectives(const GroupRank& rank) {
  for (const DType type : kDTypes) {
    for (const ReduceOp op : kReduceOps) {
      for (const size_t count : {0, 1, 3, 1000}) {
        PSRING_RETURN_IF_ERROR(CheckCollectives(rank, count, type, op));
      }
    }
  }
  return CheckCollectives(rank, ((1 << 20) + 3) / size_t(rank.group.size()), DType::kFloat32, ReduceOp::kSum);
}

}  // namespace psring
