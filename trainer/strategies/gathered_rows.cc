// Tables on every rank; the process group exchanges the rows that the ranks touched, table by table in the
// way that sends fewer bytes:
//  * an all-gather of row numbers and gradients, which every rank adds up in the order of ranks;
//  * an all-reduce of the table's gradient as a dense one, with a count for each row that tells touched rows
//    from others.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/tables/merge_rows.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/strategies/local_rows.h"

namespace psring {
namespace {

// Row numbers are sent as the bits of float32, which no backend changes in an all-gather.
constexpr int32_t kNoRow = -1;

class GatheredRows : public RowsOfOwnTables {
 public:
  GatheredRows(const StrategyContext& context, Parts parts)
      : RowsOfOwnTables(context, std::move(parts)),
        group_(*context.group),
        stream_(host_->NewStream(StreamKind::kCompute, "rows")) {}

  absl::Status Start(const RowStart& start) override {
    PSRING_RETURN_IF_ERROR(RowsOfOwnTables::Start(start));
    if (start.arrays == 0) return absl::OkStatus();  // every rank has computed the same
    PSRING_RETURN_IF_ERROR(group_.Broadcast(storage_.values(), /*root=*/0, *stream_));
    for (const Span& slot : storage_.slots()) {
      PSRING_RETURN_IF_ERROR(group_.Broadcast(slot, /*root=*/0, *stream_));
    }
    return stream_->Synchronize();
  }

  // After the dense gradient, because a group has one call in progress.
  absl::StatusOr<RowReport> Finish() override {
    if (info_.global_samples == 0) return RowReport();
    const Traffic before = group_.traffic();
    RowReport report{.begin_ns = context_.trace.Now()};
    PSRING_RETURN_IF_ERROR(GatherCounts());
    PSRING_RETURN_IF_ERROR(GatherRows());
    report.end_ns = context_.trace.Now();
    const OptimizerStep step = StepFor(info_.global_samples);
    size_t at = 0;  // of the table in every rank's part
    for (size_t t = 0; t < context_.tables.size(); ++t) {
      if (IsDense(t)) {
        const int64_t begin_ns = context_.trace.Now();
        PSRING_RETURN_IF_ERROR(ReduceTable(t));
        report.end_ns += context_.trace.Now() - begin_ns;
      } else {
        PSRING_RETURN_IF_ERROR(AddUp(t, at));
        at += PartOf(t);
      }
      storage_.Update(static_cast<int>(t), summed_rows_, sums_.data(), step);
    }
    report.traffic = group_.traffic() - before;
    report.bytes.gathered_bytes = static_cast<double>((part_ + context_.tables.size()) * sizeof(float));
    for (size_t t = 0; t < context_.tables.size(); ++t) {
      if (IsDense(t))
        report.bytes.reduced_bytes += static_cast<double>(RowsOf(t) * (1 + WidthOf(t)) * sizeof(float));
    }
    report.exposed_ns = report.end_ns - report.begin_ns;
    return report;
  }

  void Abort(absl::Status why) override { group_.Abort(std::move(why)); }

 private:
  size_t ranks() const { return static_cast<size_t>(group_.size()); }
  size_t WidthOf(size_t table) const { return static_cast<size_t>(context_.tables[table].width); }
  size_t RowsOf(size_t table) const { return static_cast<size_t>(context_.tables[table].rows); }
  // Elements of a table in a rank's part: numbers of as many rows as the rank with most rows has, then the
  // rows.
  size_t PartOf(size_t table) const { return most_rows_[table] * (1 + WidthOf(table)); }
  // A rank receives (N - 1) most_rows rows of an all-gather, and 2 (N - 1) / N of the table of a ring.
  bool IsDense(size_t table) const { return ranks() * most_rows_[table] > 2 * RowsOf(table); }

  absl::Status GatherCounts() {
    const size_t tables = context_.tables.size();
    std::vector<int32_t> own(tables);
    counts_.resize(ranks() * tables);
    for (size_t t = 0; t < tables; ++t) own[t] = static_cast<int32_t>(rows_->of_tables()[t].rows.size());
    PSRING_RETURN_IF_ERROR(
        group_.AllGather({own.data(), tables}, {counts_.data(), counts_.size()}, *stream_));
    PSRING_RETURN_IF_ERROR(stream_->Synchronize());
    most_rows_.assign(tables, 0);
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] < 0 || static_cast<size_t>(counts_[i]) > RowsOf(i % tables)) {
        return DataLoss("rank ", i / tables, " sent a count of ", counts_[i], " rows of ",
                        context_.tables[i % tables].name);
      }
      most_rows_[i % tables] = std::max(most_rows_[i % tables], static_cast<size_t>(counts_[i]));
    }
    return absl::OkStatus();
  }

  // All tables that are not dense, in one call.
  absl::Status GatherRows() {
    part_ = 0;
    for (size_t t = 0; t < most_rows_.size(); ++t) part_ += IsDense(t) ? 0 : PartOf(t);
    if (part_ == 0) return absl::OkStatus();
    gathered_.resize(ranks() * part_);
    float* to = gathered_.data() + static_cast<size_t>(group_.rank()) * part_;
    const Span own{to, part_};
    for (size_t t = 0; t < most_rows_.size(); ++t) {
      if (IsDense(t)) continue;
      const TouchedRows::OfTable& table = rows_->of_tables()[t];
      for (size_t i = 0; i < most_rows_[t]; ++i) {
        *to++ = std::bit_cast<float>(i < table.rows.size() ? table.rows[i] : kNoRow);
      }
      std::copy(table.gradient.begin(), table.gradient.end(), to);
      std::fill(to + table.gradient.size(), to + most_rows_[t] * WidthOf(t), 0.0f);
      to += most_rows_[t] * WidthOf(t);
    }
    PSRING_RETURN_IF_ERROR(group_.AllGather(own, {gathered_.data(), gathered_.size()}, *stream_));
    return stream_->Synchronize();
  }

  // Into summed_rows_ and sums_. `at`: of the table in a part.
  absl::Status AddUp(size_t t, size_t at) {
    const size_t tables = most_rows_.size();
    std::vector<std::vector<int32_t>> rows(ranks());
    std::vector<RowGradient> sources;
    for (size_t r = 0; r < ranks(); ++r) {
      const float* const numbers = gathered_.data() + r * part_ + at;
      rows[r].resize(static_cast<size_t>(counts_[r * tables + t]));
      if (!rows[r].empty()) std::memcpy(rows[r].data(), numbers, rows[r].size() * sizeof(int32_t));
      int32_t before = -1;
      for (const int32_t row : rows[r]) {
        if (row <= before || static_cast<size_t>(row) >= RowsOf(t)) {
          return DataLoss("rank ", r, " sent row ", row, " after row ", before, " of ",
                          context_.tables[t].name, ", which has ", RowsOf(t));
        }
        before = row;
      }
      sources.push_back({rows[r], numbers + most_rows_[t]});
    }
    AddUpRows(sources, WidthOf(t), summed_rows_, sums_);
    return absl::OkStatus();
  }

  // A table's gradient with a count of each row's ranks before the row.
  absl::Status ReduceTable(size_t t) {
    const size_t width = WidthOf(t), stride = 1 + width;
    const TouchedRows::OfTable& table = rows_->of_tables()[t];
    dense_.assign(RowsOf(t) * stride, 0.0f);
    for (size_t i = 0; i < table.rows.size(); ++i) {
      float* const to = dense_.data() + static_cast<size_t>(table.rows[i]) * stride;
      *to = 1;
      std::copy_n(table.gradient.data() + i * width, width, to + 1);
    }
    const Span all{dense_.data(), dense_.size()};
    PSRING_RETURN_IF_ERROR(group_.AllReduce(all, all, ReduceOp::kSum, *stream_));
    PSRING_RETURN_IF_ERROR(stream_->Synchronize());
    summed_rows_.clear();
    sums_.clear();
    for (size_t row = 0; row < RowsOf(t); ++row) {
      const float* const from = dense_.data() + row * stride;
      if (*from == 0) continue;
      summed_rows_.push_back(static_cast<int32_t>(row));
      sums_.insert(sums_.end(), from + 1, from + stride);
    }
    return absl::OkStatus();
  }

  ProcessGroup& group_;
  std::vector<int32_t> counts_;    // [rank][table]
  std::vector<size_t> most_rows_;  // by table
  size_t part_ = 0;                // elements of a rank's part of gathered_
  std::vector<float> gathered_, dense_;
  std::vector<int32_t> summed_rows_;
  std::vector<float> sums_;
  const std::unique_ptr<Stream> stream_;  // last: its work uses the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowStrategy>> MakeGatheredRows(const StrategyContext& context) {
  if (context.world_size == 1) return MakeLocalRows(context);
  PSRING_CHECK(context.group != nullptr && context.group->size() == context.world_size);
  PSRING_ASSIGN_OR_RETURN(RowsOfOwnTables::Parts parts, RowsOfOwnTables::PartsOf(context));
  return std::make_unique<GatheredRows>(context, std::move(parts));
}

}  // namespace psring
