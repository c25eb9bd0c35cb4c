// Tables on several servers: each has every count-th row.
#include <algorithm>
#include <deque>

#include "ps_server/client/sharded_client.h"

namespace psring {
namespace {

// A server's part of a list of rows of a table.
struct OwnRows {
  std::vector<int32_t> rows;      // their numbers on the server
  std::vector<size_t> positions;  // in the list
  std::vector<float> values;      // `width` of each row
};

// `values`: of the whole list; null: they are zero.
OwnRows RowsOn(int server, int servers, absl::Span<const int32_t> rows, size_t width,
               const float* values = nullptr) {
  OwnRows own;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] % servers != server) continue;
    own.rows.push_back(rows[i] / servers);
    own.positions.push_back(i);
    if (values != nullptr) own.values.insert(own.values.end(), values + i * width, values + (i + 1) * width);
  }
  own.values.resize(own.rows.size() * width);
  return own;
}

}  // namespace

size_t ShardedClient::WidthOf(int table) const {
  return static_cast<size_t>(job_.tables[static_cast<size_t>(table)].width);
}

absl::Status ShardedClient::Pull(int64_t step, absl::Span<const RowPull> pulls, MonotonicTime deadline) {
  return OnEach([&](int server) -> absl::Status {
    std::deque<OwnRows> own;
    std::vector<RowPull> parts;
    for (const RowPull& pull : pulls) {
      OwnRows& part = own.emplace_back(RowsOn(server, count(), pull.rows, WidthOf(pull.table)));
      parts.push_back(
          {.table = pull.table, .rows = part.rows, .values = part.values.data(), .slot = pull.slot});
    }
    PSRING_RETURN_IF_ERROR(servers_[static_cast<size_t>(server)]->Pull(step, parts, deadline));
    for (size_t i = 0; i < pulls.size(); ++i) {
      const size_t width = WidthOf(pulls[i].table);
      for (size_t row = 0; row < own[i].positions.size(); ++row) {
        std::copy_n(own[i].values.data() + row * width, width,
                    pulls[i].values + own[i].positions[row] * width);
      }
    }
    return absl::OkStatus();
  });
}

void ShardedClient::Push(int64_t step, int64_t samples, absl::Span<const RowPush> pushes) {
  for (int i = 0; i < count(); ++i) {
    const int server = (worker_ + i) % count();
    std::deque<OwnRows> own;
    std::vector<RowPush> parts;
    for (const RowPush& push : pushes) {
      const OwnRows& part =
          own.emplace_back(RowsOn(server, count(), push.rows, WidthOf(push.table), push.gradient));
      parts.push_back({.table = push.table, .rows = part.rows, .gradient = part.values.data()});
    }
    servers_[static_cast<size_t>(server)]->Push(step, samples, parts);
  }
}

absl::Status ShardedClient::Put(const RowPut& put, MonotonicTime deadline) {
  return OnEach([&](int server) -> absl::Status {
    const OwnRows own = RowsOn(server, count(), put.rows, WidthOf(put.table), put.values);
    return servers_[static_cast<size_t>(server)]->Put(
        {.table = put.table, .rows = own.rows, .values = own.values.data(), .slot = put.slot}, deadline);
  });
}

}  // namespace psring
