// Tables on several servers: each has every count-th row.
#include <algorithm>

#include "common/base/deadline.h"
#include "ps_server/client/sharded_client.h"

namespace psring {
namespace {

// A server's part of a list of rows: their numbers on the server, and their positions in the list.
struct OwnRows {
  std::vector<int32_t> rows;
  std::vector<size_t> positions;
};

OwnRows RowsOn(int server, int servers, absl::Span<const int32_t> rows) {
  OwnRows own;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] % servers != server) continue;
    own.rows.push_back(rows[i] / servers);
    own.positions.push_back(i);
  }
  return own;
}

// Of each row at these positions, `width` values.
std::vector<float> ValuesAt(const std::vector<size_t>& positions, const float* values, size_t width) {
  std::vector<float> own;
  for (const size_t position : positions) {
    own.insert(own.end(), values + position * width, values + (position + 1) * width);
  }
  return own;
}

}  // namespace

size_t ShardedClient::WidthOf(int table) const {
  return static_cast<size_t>(job_.tables[static_cast<size_t>(table)].width);
}

absl::Status ShardedClient::Pull(int64_t step, absl::Span<const RowPull> pulls, MonotonicTime deadline) {
  return OnEach([&](int server) -> absl::Status {
    std::vector<OwnRows> own;
    std::vector<std::vector<float>> values;
    std::vector<RowPull> parts;
    for (const RowPull& pull : pulls) {
      own.push_back(RowsOn(server, count(), pull.rows));
      values.emplace_back(own.back().rows.size() * WidthOf(pull.table));
    }
    for (size_t i = 0; i < pulls.size(); ++i) {
      parts.push_back(
          {.table = pulls[i].table, .rows = own[i].rows, .values = values[i].data(), .slot = pulls[i].slot});
    }
    PSRING_RETURN_IF_ERROR(servers_[static_cast<size_t>(server)]->rows().Pull(step, parts, deadline));
    for (size_t i = 0; i < pulls.size(); ++i) {
      const size_t width = WidthOf(pulls[i].table);
      for (size_t row = 0; row < own[i].positions.size(); ++row) {
        std::copy_n(values[i].data() + row * width, width, pulls[i].values + own[i].positions[row] * width);
      }
    }
    return absl::OkStatus();
  });
}

void ShardedClient::Push(int64_t step, int64_t samples, absl::Span<const RowPush> pushes) {
  for (int i = 0; i < count(); ++i) {
    const int server = (worker_ + i) % count();
    std::vector<OwnRows> own;
    std::vector<std::vector<float>> gradients;
    std::vector<RowPush> parts;
    for (const RowPush& push : pushes) {
      own.push_back(RowsOn(server, count(), push.rows));
      gradients.push_back(ValuesAt(own.back().positions, push.gradient, WidthOf(push.table)));
    }
    for (size_t p = 0; p < pushes.size(); ++p) {
      parts.push_back({.table = pushes[p].table, .rows = own[p].rows, .gradient = gradients[p].data()});
    }
    servers_[static_cast<size_t>(server)]->rows().Push(step, samples, parts);
  }
}

absl::Status ShardedClient::Put(const RowPut& put, MonotonicTime deadline) {
  return OnEach([&](int server) -> absl::Status {
    const OwnRows own = RowsOn(server, count(), put.rows);
    const std::vector<float> values = ValuesAt(own.positions, put.values, WidthOf(put.table));
    return servers_[static_cast<size_t>(server)]->rows().Put(
        {.table = put.table, .rows = own.rows, .values = values.data(), .slot = put.slot}, deadline);
  });
}

}  // namespace psring
