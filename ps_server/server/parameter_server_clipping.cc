// Clipping by global norm: a step's updates are made only when its whole gradient has been added up, here and
// at the other servers. The parts of the norm are added in the order of buckets and servers, whatever the
// order of arrival.

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/ops/gradient_norm.h"
#include "ps_server/server/parameter_server.h"

namespace psring {

// Steps follow one another here: nobody pushes to the next before this one's weights are out.
absl::Status ParameterServer::OnceAllAreReduced(Lane& lane, Replies& replies) {
  size_t all = job_.buckets.size();
  if (job_.clip_norm == 0 || all == 0 || !reduced_.compare_exchange_strong(all, 0)) return absl::OkStatus();
  double sum_of_squares = 0;
  int64_t step = 0;
  std::vector<int> workers;
  for (size_t bucket = 0; bucket < job_.buckets.size(); ++bucket) {
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    sum_of_squares += state.reduced->sum_of_squares;
    step = state.consistency->version() - 1;
    workers = state.reduced->workers;
  }
  if (job_.servers == 1) return ApplyReduced(sum_of_squares, lane, replies);
  awaited_norm_ = step;
  for (const int worker : workers) {
    replies.push_back(
        {worker, {.message = message::NormPart{.step = step, .sum_of_squares = sum_of_squares}}});
  }
  return absl::OkStatus();
}

absl::Status ParameterServer::OnNormTotal(const message::NormTotal& total, Lane& lane) {
  int64_t step = total.step;
  // Every worker that is in the step tells the same total; the first will do.
  if (step < 0 || !awaited_norm_.compare_exchange_strong(step, -1)) return absl::OkStatus();
  Replies replies;
  PSRING_RETURN_IF_ERROR(ApplyReduced(total.sum_of_squares, lane, replies));
  Finish(std::move(replies));
  return absl::OkStatus();
}

absl::Status ParameterServer::ApplyReduced(double sum_of_squares, Lane& lane, Replies& replies) {
  for (size_t i = 0; i < job_.buckets.size(); ++i) {
    const int bucket = static_cast<int>(i);
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    const Reduced reduced = *std::exchange(state.reduced, std::nullopt);
    const int64_t version = state.consistency->version();
    const absl::StatusOr<double> factor = ClipFactor(job_.clip_norm, sum_of_squares, reduced.samples);
    if (!factor.ok()) {
      return absl::Status(factor.status().code(),
                          absl::StrCat("step ", version - 1, ": ", factor.status().message()));
    }
    NoteVersion(bucket, version);
    PSRING_RETURN_IF_ERROR(MakeUpdate(
        bucket, {.pushed = reduced.workers, .samples = reduced.samples, .factors = {.gradient = *factor}},
        reduced.may_read, lane, replies));
  }
  return absl::OkStatus();
}

}  // namespace psring
