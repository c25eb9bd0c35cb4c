#include "ps_server/protocol/row_messages.h"

#include <algorithm>
#include <cstring>

#include "common/base/errors.h"

namespace psring {
namespace {

// A message's payload: row numbers, and `width` values of each.
std::shared_ptr<const std::vector<float>> Joined(absl::Span<const int32_t> rows, const float* values,
                                                 size_t width) {
  auto payload = std::make_shared<std::vector<float>>(rows.size() * (1 + width));
  if (!rows.empty()) std::memcpy(payload->data(), rows.data(), rows.size() * sizeof(int32_t));
  std::copy_n(values, rows.size() * width, payload->data() + rows.size());
  return payload;
}

// `visit(rows, at, width)` for the rows of each message; `at`: where the values of the first one are.
template <typename Visit>
void ForEachMessage(const ServerJob& job, int table, absl::Span<const int32_t> rows, const Visit& visit) {
  const int width = job.tables[static_cast<size_t>(table)].width;
  const size_t most = MostRowsInMessage(width);
  for (size_t first = 0; first < rows.size(); first += most) {
    visit(rows.subspan(first, most), first * static_cast<size_t>(width), static_cast<size_t>(width));
  }
}

}  // namespace

size_t MostRowsInMessage(int width) {
  return kChunkBytes / (sizeof(float) * (1 + static_cast<size_t>(width)));
}

std::vector<RowMessage> PartsOf(const ServerJob& job, const RowPut& put) {
  std::vector<RowMessage> parts;
  ForEachMessage(job, put.table, put.rows, [&](absl::Span<const int32_t> rows, size_t at, size_t width) {
    parts.push_back({.message = message::InitialRows{.bucket = put.table, .slot = put.slot},
                     .payload = Joined(rows, put.values + at, width),
                     .rows = rows.size()});
  });
  return parts;
}

std::vector<RowMessage> PartsOf(const ServerJob& job, int64_t step, absl::Span<const RowPull> pulls) {
  std::vector<RowMessage> parts;
  for (const RowPull& pull : pulls) {
    ForEachMessage(job, pull.table, pull.rows, [&](absl::Span<const int32_t> rows, size_t at, size_t width) {
      parts.push_back({.message = message::PullRows{.bucket = pull.table, .step = step, .slot = pull.slot},
                       .payload = Joined(rows, nullptr, 0),
                       .rows = rows.size(),
                       .values = pull.values + at,
                       .floats = rows.size() * width});
    });
  }
  if (parts.empty()) {  // only waits
    parts.push_back({.message = message::PullRows{.step = step}, .payload = Joined({}, nullptr, 0)});
  }
  return parts;
}

std::vector<RowMessage> PartsOf(const ServerJob& job, int64_t step, int64_t samples,
                                absl::Span<const RowPush> pushes) {
  std::vector<RowMessage> parts;
  for (const RowPush& push : pushes) {
    ForEachMessage(job, push.table, push.rows, [&](absl::Span<const int32_t> rows, size_t at, size_t width) {
      parts.push_back({.message = message::PushRows{.bucket = push.table, .step = step, .samples = samples},
                       .payload = Joined(rows, push.gradient + at, width),
                       .rows = rows.size()});
    });
  }
  if (parts.empty()) {
    parts.push_back(
        {.message = message::PushRows{.step = step, .samples = samples}, .payload = Joined({}, nullptr, 0)});
  }
  std::get<message::PushRows>(parts.back().message).complete = 1;
  return parts;
}

absl::StatusOr<ReceivedRows> DecodeRows(Pieces payload, int rows, int width, bool has_gradient,
                                        int32_t after) {
  const size_t bytes = TotalBytes(payload);
  const size_t row_bytes = sizeof(float) * (1 + (has_gradient ? static_cast<size_t>(width) : 0));
  const size_t count = bytes / row_bytes;
  if (bytes % row_bytes != 0 || count > MostRowsInMessage(width)) {
    return InvalidArgument(bytes, " bytes of rows of width ", width, ", which are at most ",
                           MostRowsInMessage(width), " of ", row_bytes, " bytes");
  }
  std::vector<std::byte> all(bytes);
  CopyPieces(payload, all.data());
  ReceivedRows received;
  received.rows.resize(count);
  if (count > 0) std::memcpy(received.rows.data(), all.data(), count * sizeof(int32_t));
  for (const int32_t row : received.rows) {
    if (row <= after || row >= rows) {
      return InvalidArgument("row ", row, " after row ", after, " of a table of ", rows, " rows");
    }
    after = row;
  }
  if (!has_gradient) return received;
  received.gradient.resize(count * static_cast<size_t>(width));
  if (count > 0) {
    std::memcpy(received.gradient.data(), all.data() + count * sizeof(int32_t),
                received.gradient.size() * sizeof(float));
  }
  return received;
}

}  // namespace psring
