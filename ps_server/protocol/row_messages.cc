#include "ps_server/protocol/row_messages.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

std::shared_ptr<const std::vector<float>> Joined(absl::Span<const int32_t> rows, const float* values,
                                                 size_t width) {
  auto payload = std::make_shared<std::vector<float>>(rows.size() * (1 + width));
  if (!rows.empty()) std::memcpy(payload->data(), rows.data(), rows.size() * sizeof(int32_t));
  std::copy_n(values, rows.size() * width, payload->data() + rows.size());
  return payload;
}

}  // namespace

size_t MostRowsInMessage(int width) {
  return kChunkBytes / (sizeof(float) * (1 + static_cast<size_t>(width)));
}

std::vector<RowMessage<message::InitialRows>> PartsOf(const ServerJob& job, const RowPut& put) {
  const size_t width = static_cast<size_t>(job.tables[static_cast<size_t>(put.table)].width);
  const size_t most = MostRowsInMessage(static_cast<int>(width));
  std::vector<RowMessage<message::InitialRows>> parts;
  for (size_t first = 0; first < put.rows.size(); first += most) {
    const auto rows = put.rows.subspan(first, std::min(most, put.rows.size() - first));
    parts.push_back({.message = {.bucket = put.table, .slot = put.slot},
                     .payload = Joined(rows, put.values + first * width, width),
                     .rows = rows.size()});
  }
  return parts;
}

std::vector<PullPart> PartsOf(const ServerJob& job, int64_t step, absl::Span<const RowPull> pulls) {
  std::vector<PullPart> parts;
  for (const RowPull& pull : pulls) {
    const size_t width = static_cast<size_t>(job.tables[static_cast<size_t>(pull.table)].width);
    const size_t most = MostRowsInMessage(static_cast<int>(width));
    for (size_t first = 0; first < pull.rows.size(); first += most) {
      const auto rows = pull.rows.subspan(first, std::min(most, pull.rows.size() - first));
      auto payload = std::make_shared<std::vector<float>>(rows.size());
      std::memcpy(payload->data(), rows.data(), rows.size() * sizeof(int32_t));
      parts.push_back({.request = {.message = {.bucket = pull.table, .step = step, .slot = pull.slot},
                                   .payload = std::move(payload),
                                   .rows = rows.size()},
                       .values = pull.values + first * width,
                       .floats = rows.size() * width});
    }
  }
  if (parts.empty()) {  // only waits
    parts.push_back(
        {.request = {.message = {.step = step}, .payload = std::make_shared<std::vector<float>>()}});
  }
  return parts;
}

std::vector<RowMessage<message::PushRows>> PartsOf(const ServerJob& job, int64_t step, int64_t samples,
                                                   absl::Span<const RowPush> pushes) {
  std::vector<RowMessage<message::PushRows>> parts;
  for (const RowPush& push : pushes) {
    const size_t width = static_cast<size_t>(job.tables[static_cast<size_t>(push.table)].width);
    const size_t most = MostRowsInMessage(static_cast<int>(width));
    for (size_t first = 0; first < push.rows.size(); first += most) {
      const auto rows = push.rows.subspan(first, std::min(most, push.rows.size() - first));
      auto payload = Joined(rows, push.gradient + first * width, width);
      parts.push_back({.message = {.bucket = push.table, .step = step, .samples = samples},
                       .payload = std::move(payload),
                       .rows = rows.size()});
    }
  }
  if (parts.empty()) {
    parts.push_back(
        {.message = {.step = step, .samples = samples}, .payload = std::make_shared<std::vector<float>>()});
  }
  parts.back().message.complete = 1;
  return parts;
}

absl::StatusOr<ReceivedRows> DecodeRows(Pieces payload, int rows, int width, bool has_gradient,
                                        int32_t after) {
  const size_t bytes = TotalBytes(payload);
  const size_t row_bytes = sizeof(float) * (1 + (has_gradient ? static_cast<size_t>(width) : 0));
  const size_t count = bytes / row_bytes;
  if (bytes % row_bytes != 0 || count > MostRowsInMessage(width)) {
    return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes of rows of width ", width,
                                                   ", which are at most ", MostRowsInMessage(width), " of ",
                                                   row_bytes, " bytes"));
  }
  std::vector<std::byte> all(bytes);
  CopyPieces(payload, all.data());
  ReceivedRows received;
  received.rows.resize(count);
  if (count > 0) std::memcpy(received.rows.data(), all.data(), count * sizeof(int32_t));
  for (const int32_t row : received.rows) {
    if (row <= after || row >= rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", row, " after row ", after, " of a table of ", rows, " rows"));
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
