#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "trainer/checkpoints/checkpoint.h"

namespace psring {
namespace {

// Flags that change where and how a run executes, not what it computes.
bool IsIncidental(const std::string& flag) {
  for (const char* name :
       {"--checkpoint_",    "--resume",           "--max_restarts", "--timeout",    "--worker_timeout",
        "--on_worker_loss", "--data_dir",         "--device",       "--threads",    "--steps",
        "--samples",        "--epochs",           "--no_eval",      "--eval_every", "--transport",
        "--bucket_mb",      "--check_replicas",   "--align_steps",  "--strategy",   "--ps_schedule",
        "--server_wire",    "--ranks_per_process"}) {
    if (absl::StartsWith(flag, name)) return true;
  }
  for (const char* name : {"--pp", "--tp", "--sequence_parallel", "--cp", "--context_parallel", "--program",
                           "--cuts", "--rank_order", "--copy_streams", "--reshard", "--dp_shard"}) {
    if (absl::StartsWith(flag, name)) return true;
  }
  return false;
}

std::vector<std::string> Without(const std::vector<std::string>& flags,
                                 const std::vector<std::string>& others) {
  std::vector<std::string> left;
  for (const std::string& flag : flags) {
    if (!IsIncidental(flag) && std::find(others.begin(), others.end(), flag) == others.end()) {
      left.push_back(flag);
    }
  }
  return left;
}

std::string Words(const std::vector<std::string>& flags) {
  return flags.empty() ? "the defaults" : absl::StrJoin(flags, " ");
}

}  // namespace

ResumePlan PlanResume(const TrainingPosition& from, const TrainingPosition& now, int64_t steps_per_epoch,
                      bool has_slots, int residuals) {
  ResumePlan plan{.samples = from.samples};
  const auto say = [&](auto... parts) { plan.notes.push_back(absl::StrCat(parts...)); };
  const bool begun = from.step > 0;

  // A step is counted by the samples drawn.
  if (begun && from.drawn_batch == now.drawn_batch &&
      from.step == from.epoch * steps_per_epoch + from.epoch_samples / now.drawn_batch) {
    plan.step = from.step;
  } else if (begun) {
    const int64_t in_epoch = std::min(steps_per_epoch, from.epoch_samples / now.drawn_batch);
    plan.step = from.epoch * steps_per_epoch + in_epoch;
    const int64_t again = from.epoch_samples - in_epoch * now.drawn_batch;
    say("a step draws ", now.drawn_batch, " samples, before it drew ", from.drawn_batch, ": step ", from.step,
        " becomes step ", plan.step);
    if (again > 0 && in_epoch < steps_per_epoch) {
      say(again, " samples of epoch ", from.epoch, " are drawn again: ", from.epoch_samples,
          " are not a whole number of steps");
    }
  }
  if (begun && from.data_count != now.data_count) {
    say("there are ", now.data_count, " training samples, before there were ", from.data_count,
        ": their order changes");
  }
  const bool same_draws =
      from.workers == now.workers && from.drawn_batch == now.drawn_batch && from.data_count == now.data_count;
  if (begun && same_draws && from.asynchronous && now.asynchronous &&
      from.worker_steps.size() == static_cast<size_t>(now.workers)) {
    plan.worker_steps = from.worker_steps;
    const int64_t made = std::accumulate(from.worker_steps.begin(), from.worker_steps.end(), int64_t{0});
    plan.beyond = static_cast<int>(made % now.workers);
  } else if (begun && (from.asynchronous || now.asynchronous)) {
    say("all workers continue with step ", plan.step,
        ": asynchronous workers that were ahead or behind draw some samples "
        "twice or never");
  }

  const std::string was = OptimizerName(from.optimizer.kind), is = OptimizerName(now.optimizer.kind);
  const bool same_optimizer = has_slots && was == is;
  plan.with_slots = same_optimizer && !OptimizerSlots(now.optimizer.kind).empty();
  if (has_slots && was != is) {
    say(Tr("the optimizer is $0 and was $1: its state is not restored", is, was));
  }
  const int64_t updates = now.asynchronous ? plan.step * now.workers + plan.beyond : plan.step;
  plan.earlier_updates = (same_optimizer ? from.updates : 0) - updates;
  // A single worker sends only to a server.
  if (begun && from.wire != "float32" && from.workers + residuals > 1) {
    const std::string why =
        now.wire != from.wire           ? absl::StrCat("gradients are now sent as ", now.wire)
        : now.strategy != from.strategy ? absl::StrCat("the strategy was ", from.strategy)
        : now.workers != from.workers
            ? absl::StrCat("there are ", now.workers, " workers, before there were ", from.workers)
        : residuals < from.workers
            ? absl::StrCat("the checkpoint has those of ", residuals, " of ", from.workers, " workers")
            : "";
    plan.with_residuals =
        now.wire == from.wire && now.strategy == from.strategy && now.workers == from.workers;
    if (!why.empty()) {
      say(plan.with_residuals ? "some" : "the", " rounding errors of ", from.wire,
          " gradients are dropped: ", why);
    }
  }
  const std::vector<std::string> flags_now = Without(now.flags, from.flags),
                                 flags_then = Without(from.flags, now.flags);
  if (begun && !(flags_now.empty() && flags_then.empty())) {
    say(Tr("flags differ: $0 now, $1 in the checkpoint", Words(flags_now), Words(flags_then)));
  }
  return plan;
}

}  // namespace psring
