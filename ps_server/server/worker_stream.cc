#include "ps_server/server/worker_stream.h"

#include <algorithm>

namespace psring {

void WorkerStream::Deliver(Reply reply, const AnswerOrder& order) {
  if (!order.serial || !std::holds_alternative<message::Answer>(reply.message)) return Send(std::move(reply));
  std::vector<Reply> released;
  {
    MutexLock lock(mutex);
    released = Hold(std::move(reply), order);
  }
  for (Reply& one : released) Send(std::move(one));
}

std::vector<Reply> WorkerStream::Hold(Reply reply, const AnswerOrder& order) {
  const message::Answer answer = std::get<message::Answer>(reply.message);
  std::vector<Reply> released;
  if (order.each_alone) {
    const bool waits = answer.step >= pushes_complete / static_cast<int64_t>(order.buckets);
    (waits ? held : released).push_back(std::move(reply));
    return released;
  }
  // Synchronous: until there is one for every bucket of its step. A bucket is answered after its update, so
  // by then all buckets are updated and all gradients of the step have arrived.
  if (answer.dropped || answer.step < steps_answered) {
    released.push_back(std::move(reply));
    return released;
  }
  const auto same = std::ranges::find_if(held, [&](const Reply& other) {
    return std::get<message::Answer>(other.message).bucket == answer.bucket;
  });
  if (same == held.end()) {
    held.push_back(std::move(reply));
  } else {  // the worker's stream broke, and it repeated its push
    *same = std::move(reply);
  }
  if (held.size() < order.buckets) return released;
  steps_answered = answer.step + 1;
  released.swap(held);
  return released;
}

void WorkerStream::Send(Reply reply) {
  const std::shared_ptr<ReplySink> to = Sink();
  if (std::exchange(reply.begun_on, nullptr) != to) {
    // The worker's stream broke meanwhile. It will repeat what is not answered.
    if (reply.in_place) return;
    reply.from = 0;
  }
  if (to != nullptr) to->Deliver(std::move(reply));
}

}  // namespace psring
