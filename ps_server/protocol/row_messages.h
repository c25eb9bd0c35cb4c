// How pulls and pushes of rows become messages of bounded size, each of which is complete by itself. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

// `rows`: ascending and distinct. [rows][width]. `slot`: 0 are the values, from 1 a slot of the optimizer.
struct RowPull {
  int table = 0;
  absl::Span<const int32_t> rows;
  float* values = nullptr;
  int slot = 0;
};
struct RowPush {
  int table = 0;
  absl::Span<const int32_t> rows;
  const float* gradient = nullptr;
};
struct RowPut {
  int table = 0;
  absl::Span<const int32_t> rows;
  const float* values = nullptr;
  int slot = 0;
};

// Requests that a worker may have at the server at once.
inline size_t MostPulls(size_t tables) { return tables + 8; }

struct RowMessage {
  message::ToServer message;
  std::shared_ptr<const std::vector<float>> payload;  // row numbers as their bits
  size_t rows = 0;
  float* values = nullptr;  // of a pull: where the answer goes
  size_t floats = 0;        // of the answer
};

// Rows in a message, so that request, gradient and answer are at most a chunk.
size_t MostRowsInMessage(int width);

std::vector<RowMessage> PartsOf(const ServerJob& job, const RowPut& put);
// At least one: a worker without rows waits for the step like the others.
std::vector<RowMessage> PartsOf(const ServerJob& job, int64_t step, absl::Span<const RowPull> pulls);
// The last one is marked as complete; there is at least one.
std::vector<RowMessage> PartsOf(const ServerJob& job, int64_t step, int64_t samples,
                                absl::Span<const RowPush> pushes);

// What a server has received: row numbers, which are ascending, above `after`, and below `rows`; and for a
// push the gradient, for initial rows their values. InvalidArgument otherwise.
struct ReceivedRows {
  std::vector<int32_t> rows;
  std::vector<float> gradient;
};
absl::StatusOr<ReceivedRows> DecodeRows(Pieces payload, int rows, int width, bool has_gradient,
                                        int32_t after);

}  // namespace psring
