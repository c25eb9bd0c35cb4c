#include "ps_server/protocol/row_messages.h"

#include <algorithm>
#include <cstring>

#include "common/base/errors.h"

namespace psring {
namespace {

// A message's payload: row numbers, and values of each.
std::shared_ptr<const std::vector<float>> Joined(absl::Span<const int32_t> rows,
                                                 absl::Span<const float> values) {
  auto payload = std::make_shared<std::vector<float>>(rows.size() + values.size());
  if (!rows.empty()) std::memcpy(payload->data(), rows.data(), rows.size() * sizeof(int32_t));
  std::ranges::copy(values, payload->data() + rows.size());
  return payload;
}

// Adds the messages about `rows` of a table, each with the rows' values `sent`, or whose answers are
// `received`: one of them is null.
template <typename Message>
void AddParts(const ServerJob& job, const Message& message, absl::Span<const int32_t> rows, const float* sent,
              float* received, std::vector<RowMessage>& parts) {
  const int width = job.tables[static_cast<size_t>(message.bucket)].width;
  const size_t most = MostRowsInMessage(width);
  for (size_t first = 0; first < rows.size(); first += most) {
    const absl::Span<const int32_t> some = rows.subspan(first, most);
    const size_t at = first * static_cast<size_t>(width), floats = some.size() * static_cast<size_t>(width);
    parts.push_back({.message = message,
                     .payload = Joined(some, sent == nullptr ? absl::Span<const float>()
                                                             : absl::MakeConstSpan(sent + at, floats)),
                     .rows = some.size(),
                     .values = received == nullptr ? nullptr : received + at,
                     .floats = received == nullptr ? 0 : floats});
  }
}

}  // namespace

size_t MostRowsInMessage(int width) {
  return kChunkBytes / (sizeof(float) * (1 + static_cast<size_t>(width)));
}

std::vector<RowMessage> PartsOf(const ServerJob& job, const RowPut& put) {
  std::vector<RowMessage> parts;
  AddParts(job, message::InitialRows{.bucket = put.table, .slot = put.slot}, put.rows, put.values, nullptr,
           parts);
  return parts;
}

std::vector<RowMessage> PartsOf(const ServerJob& job, int64_t step, absl::Span<const RowPull> pulls) {
  std::vector<RowMessage> parts;
  for (const RowPull& pull : pulls) {
    AddParts(job, message::PullRows{.bucket = pull.table, .step = step, .slot = pull.slot}, pull.rows,
             nullptr, pull.values, parts);
  }
  if (parts.empty()) {  // only waits
    parts.push_back({.message = message::PullRows{.step = step}, .payload = Joined({}, {})});
  }
  return parts;
}

std::vector<RowMessage> PartsOf(const ServerJob& job, int64_t step, int64_t samples,
                                absl::Span<const RowPush> pushes) {
  std::vector<RowMessage> parts;
  message::PushRows message{.step = step, .samples = samples};
  for (const RowPush& push : pushes) {
    message.bucket = push.table;
    AddParts(job, message, push.rows, push.gradient, nullptr, parts);
  }
  if (parts.empty()) parts.push_back({.message = message, .payload = Joined({}, {})});
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
