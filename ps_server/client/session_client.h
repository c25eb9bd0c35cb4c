// What every client of one server has in common: a session, and a worker's questions in it. A transport
// implements the rest: how messages travel.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ps_server/client/client_session.h"
#include "ps_server/client/ps_client.h"

namespace psring {

class SessionClient : public OneServerClient {
 public:
  absl::StatusOr<std::optional<int64_t>> Barrier(int number, MonotonicTime deadline) override {
    PSRING_RETURN_IF_ERROR(Ask(Question::kBarrier, message::Barrier{.number = number}, deadline,
                               "all workers to reach the barrier"));
    return session_.state().went_back_to;
  }
  absl::StatusOr<bool> Read(const ReadRequest& request, MonotonicTime deadline) override {
    session_.ExpectWeights(request.values, request.resumes);
    PSRING_RETURN_IF_ERROR(
        Ask(Question::kFetch, message::Fetch{.slot = request.slot}, deadline, "the server's weights"));
    return !session_.state().went_back_to.has_value();
  }
  absl::Status Leave(MonotonicTime deadline) override {
    return Ask(Question::kLeave, message::Leave{}, deadline, "the confirmation that this worker leaves");
  }
  absl::Status Pull(int64_t step, absl::Span<const RowPull> pulls, MonotonicTime deadline) override {
    return AskForRows(PartsOf(session_.job(), step, pulls), deadline, absl::StrCat("rows of step ", step));
  }
  absl::Status Put(const RowPut& put, MonotonicTime deadline) override {
    return AskForRows(PartsOf(session_.job(), put), deadline, "rows of a checkpoint to be taken");
  }
  void Push(int64_t step, int64_t samples, absl::Span<const RowPush> pushes) override {
    for (const RowMessage& part : session_.PushRows(step, samples, pushes)) SendRows(part);
  }
  void SetListener(std::function<void(const message::ToWorker&)> listener) override {
    session_.SetListener(std::move(listener));
  }

 protected:
  // Sends the message and waits for the answer to `question`. `whom` completes the error "waited ... for".
  virtual absl::Status Ask(Question question, const message::ToServer& message, MonotonicTime deadline,
                           const std::string& whom) = 0;
  // ClientSession::AskForRows with SendRows.
  virtual absl::Status AskForRows(std::vector<RowMessage> parts, MonotonicTime deadline,
                                  const std::string& whom) = 0;
  virtual void SendRows(const RowMessage& rows) = 0;

  ClientSession session_;
};

}  // namespace psring
