#include "trainer/virtual_clock/replay.h"

#include <memory>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/hash.h"
#include "ps_server/server/inline_server.h"
#include "trainer/virtual_clock/logical_workers.h"

namespace psring {
namespace {

absl::Status CheckBelongs(const LogicalWorkers& logical, const TrainingOptions& options,
                          const Arrivals& arrivals) {
  const std::string& consistency = logical.strategy().algorithm;
  if (consistency != arrivals.consistency) {
    return InvalidArgument("these arrivals are of a server with consistency \"", arrivals.consistency,
                           "\", and --strategy ", options.strategy, " is \"", consistency, "\"");
  }
  if (logical.buckets().size() != arrivals.updates.size()) {
    return InvalidArgument("these arrivals are of ", arrivals.updates.size(),
                           " buckets, but these flags give ", logical.buckets().size());
  }
  return absl::OkStatus();
}

// A worker's computed gradient, and its buckets that are not yet applied.
struct Pusher {
  int64_t step = 0;
  std::vector<bool> waits;  // by bucket
};

}  // namespace

absl::StatusOr<ReplayOutcome> ReplayArrivals(const TrainingOptions& options, const Arrivals& arrivals,
                                             Replay& replay) {
  const int workers = arrivals.workers;
  PSRING_ASSIGN_OR_RETURN(
      const std::unique_ptr<LogicalWorkers> logical,
      LogicalWorkers::Create(options, workers, replay.data, replay.device, /*copies_each=*/2));
  PSRING_RETURN_IF_ERROR(CheckBelongs(*logical, options, arrivals));
  const std::vector<Bucket>& buckets = logical->buckets();
  std::vector<float> weights = logical->InitialWeights();
  const Span all{weights.data(), weights.size()};
  PSRING_ASSIGN_OR_RETURN(
      const std::unique_ptr<InlineServer> server,
      InlineServer::Start(logical->JobOf(arrivals.consistency, workers), all, replay.device));

  std::vector<Pusher> pushers(static_cast<size_t>(workers));
  for (int worker = 0; worker < workers; ++worker) {
    pushers[static_cast<size_t>(worker)].waits.assign(buckets.size(), true);
    PSRING_RETURN_IF_ERROR(logical->Compute(worker, 0, all).status());
  }
  // Advances each bucket while the next push in its order is available. A worker that is answered in all
  // buckets computes its next gradient immediately, even if the run ended before it was pushed.
  std::vector<size_t> next(buckets.size());
  int64_t updates = 0;
  for (const auto& bucket : arrivals.updates) updates += static_cast<int64_t>(bucket.size());
  int64_t done = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t b = 0; b < buckets.size(); ++b) {
      while (next[b] < arrivals.updates[b].size()) {
        const int worker = arrivals.updates[b][next[b]];
        Pusher& pusher = pushers[static_cast<size_t>(worker)];
        if (!pusher.waits[b]) break;
        pusher.waits[b] = false;
        PSRING_RETURN_IF_ERROR(
            server->Push(worker, pusher.step, logical->samples(worker), static_cast<int>(b),
                         logical->gradient(worker).Slice(buckets[b].first, buckets[b].count)));
        ++next[b];
        ++done;
        moved = true;
        for (const InlineServer::Answer& answer : server->TakeAnswers()) {
          Pusher& answered = pushers[static_cast<size_t>(answer.worker)];
          server->CopyWeights(answer.worker, all);
          answered.step = answer.step + 1;
          answered.waits.assign(buckets.size(), true);
          PSRING_RETURN_IF_ERROR(logical->Compute(answer.worker, answered.step, all).status());
        }
        replay.on_progress(done, updates);
      }
    }
  }
  if (done < updates) {
    return InvalidArgument("the order of these arrivals is impossible: after ", done, " of ", updates,
                           " pushes, none of the next ones has been computed");
  }
  ReplayOutcome outcome{.updates = static_cast<int64_t>(arrivals.updates.front().size())};
  PSRING_RETURN_IF_ERROR(server->Fetch(all));
  outcome.weights_hash = HashBytes(weights.data(), weights.size() * sizeof(float));
  outcome.weights = std::move(weights);
  return outcome;
}

}  // namespace psring
