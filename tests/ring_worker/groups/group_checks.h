// Checks of process groups of any backend. Each rank runs them; they return a status, because a rank may be a
// process.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ring_worker/groups/process_group.h"

namespace psring {

// Integers that are exact in every type, and whose sums over a few ranks are exact too.
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

// A buffer of any type that is written and read as floats.
class TestBuffer {
 public:
  TestBuffer(DType type, size_t count) : type_(type), bytes_(count * SizeOf(type)), count_(count) {}
  TestBuffer(DType type, size_t count, int rank, size_t first = 0) : TestBuffer(type, count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = TestValue(rank, first + i);
    cpu::Convert(DType::kFloat32, values.data(), type, bytes_.data(), count);
  }
  Span span() { return {bytes_.data(), count_, type_}; }
  std::vector<float> values() const {
    std::vector<float> values(count_);
    cpu::Convert(type_, bytes_.data(), DType::kFloat32, values.data(), count_);
    return values;
  }

 private:
  DType type_;
  std::vector<char> bytes_;
  size_t count_;
};

// `values` hold elements [first, first + values.size()) of the reduction. A 16-bit mean is rounded once more.
inline absl::Status ExpectReduced(const std::vector<float>& values, size_t first, ReduceOp op, DType type,
                                  int ranks, const std::string& what) {
  const float slack = op != ReduceOp::kMean ? 0 : type == DType::kFloat32 ? 1e-6f : 0.01f;
  for (size_t i = 0; i < values.size(); ++i) {
    const float expected = Expected(op, ranks, first + i);
    if (std::abs(values[i] - expected) <= slack * std::max(1.0f, std::abs(expected))) continue;
    return absl::DataLossError(
        absl::StrCat(what, ": element ", i, " is ", values[i], ", expected ", expected));
  }
  return absl::OkStatus();
}

inline absl::Status CheckAllReduce(ProcessGroup& group, Stream& stream, size_t count, DType type,
                                   ReduceOp op) {
  const std::string what =
      absl::StrCat("rank ", group.rank(), " of ", group.size(), ", ", group.info().backend, " ",
                   group.info().algorithm, " all_reduce ", Name(op), " of ", count, " ", Name(type));
  TestBuffer in(type, count, group.rank()), out(type, count);
  PSRING_RETURN_IF_ERROR(group.AllReduce(in.span(), out.span(), op, stream));
  PSRING_RETURN_IF_ERROR(stream.Synchronize());
  PSRING_RETURN_IF_ERROR(ExpectReduced(out.values(), 0, op, type, group.size(), what));
  if (in.values() != TestBuffer(type, count, group.rank()).values()) {
    return absl::DataLossError(absl::StrCat(what, ": the input has changed"));
  }
  PSRING_RETURN_IF_ERROR(group.AllReduce(in.span(), in.span(), op, stream));
  PSRING_RETURN_IF_ERROR(stream.Synchronize());
  return ExpectReduced(in.values(), 0, op, type, group.size(), what + " in place");
}

// `count`: of a rank's part.
inline absl::Status CheckReduceScatter(ProcessGroup& group, Stream& stream, size_t count, DType type,
                                       ReduceOp op) {
  const std::string what = absl::StrCat("rank ", group.rank(), " of ", group.size(), ", reduce_scatter ",
                                        Name(op), " of ", count, " ", Name(type));
  const size_t first = count * size_t(group.rank()), whole = count * size_t(group.size());
  TestBuffer in(type, whole, group.rank()), out(type, count);
  const std::vector<float> before = in.values();
  PSRING_RETURN_IF_ERROR(group.ReduceScatter(in.span(), out.span(), op, stream));
  PSRING_RETURN_IF_ERROR(stream.Synchronize());
  PSRING_RETURN_IF_ERROR(ExpectReduced(out.values(), first, op, type, group.size(), what));
  PSRING_RETURN_IF_ERROR(group.ReduceScatter(in.span(), in.span().Slice(first, count), op, stream));
  PSRING_RETURN_IF_ERROR(stream.Synchronize());
  const std::vector<float> after = in.values();
  for (size_t i = 0; i < whole; ++i) {
    const bool mine = i >= first && i < first + count;
    if (!mine && after[i] != before[i]) return absl::DataLossError(what + ": the rest has changed");
  }
  return ExpectReduced({after.begin() + long(first), after.begin() + long(first + count)}, first, op, type,
                       group.size(), what + " in place");
}

inline absl::Status CheckAllGather(ProcessGroup& group, Stream& stream, size_t count, DType type) {
  const std::string what =
      absl::StrCat("rank ", group.rank(), " of ", group.size(), ", all_gather of ", count, " ", Name(type));
  for (const bool in_place : {false, true}) {
    TestBuffer in(type, count, group.rank());
    TestBuffer out(type, count * size_t(group.size()));
    const Span mine = out.span().Slice(count * size_t(group.rank()), count);
    if (in_place && count > 0) std::memcpy(mine.data, in.span().data, mine.bytes());
    PSRING_RETURN_IF_ERROR(group.AllGather(in_place ? mine : in.span(), out.span(), stream));
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    const std::vector<float> values = out.values();
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == TestValue(int(i / count), i % count)) continue;
      return absl::DataLossError(absl::StrCat(what, in_place ? " in place" : "", ": element ", i));
    }
  }
  return absl::OkStatus();
}

inline absl::Status CheckBroadcast(ProcessGroup& group, Stream& stream, size_t count, DType type, int root) {
  TestBuffer data(type, count, group.rank());
  PSRING_RETURN_IF_ERROR(group.Broadcast(data.span(), root, stream));
  PSRING_RETURN_IF_ERROR(stream.Synchronize());
  if (data.values() == TestBuffer(type, count, root).values()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("rank ", group.rank(), " of ", group.size(), ": broadcast of ",
                                          count, " ", Name(type), " from ", root));
}

// Every collective that `backend` offers, over sizes, types and ops.
inline absl::Status CheckCollectives(ProcessGroup& group, Stream& stream, const BackendRow& backend) {
  const DType types[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax};
  const auto offers = [&](Collective collective) { return !backend.algorithms(collective).empty(); };
  const int last = group.size() - 1;
  for (size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{1000}, (size_t{1} << 20) + 3}) {
    for (DType type : types) {
      for (ReduceOp op : ops) {
        if (count > 1000 && (op != ReduceOp::kSum || type == DType::kFloat16)) continue;  // time
        PSRING_RETURN_IF_ERROR(CheckAllReduce(group, stream, count, type, op));
        if (offers(Collective::kReduceScatter)) {
          PSRING_RETURN_IF_ERROR(CheckReduceScatter(group, stream, count / 2, type, op));
        }
      }
      if (offers(Collective::kAllGather)) {
        PSRING_RETURN_IF_ERROR(CheckAllGather(group, stream, count / 2, type));
      }
      if (offers(Collective::kBroadcast)) {
        PSRING_RETURN_IF_ERROR(CheckBroadcast(group, stream, count, type, 0));
        PSRING_RETURN_IF_ERROR(CheckBroadcast(group, stream, count, type, last));
      }
    }
  }
  PSRING_RETURN_IF_ERROR(group.Barrier(stream));
  return stream.Synchronize();
}

inline const BackendRow& BackendNamed(const std::string& name) {
  for (const BackendRow& row : Backends()) {
    if (row.name == name) return row;
  }
  PSRING_CHECK(false);
  return Backends().front();
}

}  // namespace psring
