#include "ps_server/server/job_start.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "ps_server/consistency/consistency.h"

namespace psring {

JobStart::JobStart(int workers, int server, int servers)
    : workers_(workers),
      server_(server),
      servers_(servers),
      rejections_(static_cast<size_t>(workers)),
      first_step_(rejections_.size(), 0) {}

absl::Status JobStart::MayRestore(const Checkpoint& checkpoint) const {
  const ServerJob& job = checkpoint.job;
  PSRING_RETURN_IF_ERROR(ValidateServerJob(job));
  if (!job.tables.empty()) return Unimplemented("a checkpoint of a job with tables");
  if (job.workers != workers_ || job.server != server_ || job.servers != servers_) {
    return InvalidArgument("the checkpoint is of a job with ", job.workers, " workers, of server ",
                           job.server, " of ", job.servers, ", and this is server ", server_, " of ",
                           servers_, " with ", workers_, " workers; give another --checkpoint_dir");
  }
  if (RuleOf(job).kind == WaitingRule::Kind::kBackup && job.servers > 1) {
    return FailedPrecondition(
        "a job with backup workers and several servers cannot continue after the loss of a server; start it "
        "again from a checkpoint of training (--resume), with another --checkpoint_dir for the server");
  }
  return ValidateCheckpoint(checkpoint);
}

void JobStart::Restore(const Checkpoint& checkpoint, bool each_alone, std::optional<int64_t> epoch) {
  restored_ = true;
  epoch_ = epoch.value_or(0);
  epoch_is_given_ = epoch.has_value();
  weights_arrived_ = true;
  // An asynchronous worker continues when it joins; if the job was finished, workers only have to leave.
  has_begun_ = each_alone || checkpoint.finished;
  job_ = checkpoint.job;
  BeginAt(checkpoint.step);
  for (size_t worker = 0; worker < first_step_.size() && each_alone && !checkpoint.buckets.empty();
       ++worker) {
    // Buckets are copied one after the other. The worker repeats what the first of them lacks.
    int64_t first = INT64_MAX;
    for (const Consistency::State& bucket : checkpoint.buckets) {
      first = std::min(first, bucket.next_step[worker]);
    }
    first_step_[worker] = first;
  }
}

absl::Status JobStart::Check(int worker, const ServerJob& job) const {
  if (job.workers != workers_) {
    return InvalidArgument("worker ", worker, "'s job has ", job.workers,
                           " workers; this server was started for ", workers_);
  }
  if (job.server != server_ || job.servers != servers_) {
    return InvalidArgument("worker ", worker, " takes this for server ", job.server, " of ", job.servers,
                           "; it is server ", server_, " of ", servers_);
  }
  PSRING_RETURN_IF_ERROR(Prefixed(ValidateServerJob(job), "worker ", worker, "'s job: "));
  return job_.has_value() ? RequireSameJob(*job_, job, worker, job_of_) : absl::OkStatus();
}

void JobStart::NoteJoin(int worker, const ServerJob& job, const absl::Status& why) {
  rejections_[static_cast<size_t>(worker)] = std::string(why.message());
  if (!why.ok() || job_.has_value()) return;
  job_ = job;
  job_of_ = worker;
}

std::string JobStart::RejectionOf(const std::vector<int>& workers) const {
  for (const int worker : workers) {
    const std::string& why = rejections_[static_cast<size_t>(worker)];
    if (!why.empty()) return absl::StrCat("; worker ", worker, " was rejected: ", why);
  }
  return "";
}

bool JobStart::Begin(const Membership& members) {
  if (!weights_arrived_ || has_begun_ || !members.Absent().empty()) return false;
  has_begun_ = true;
  if (restored_ && !epoch_is_given_) epoch_ = std::max(epoch(), members.NewestEpoch() + 1);
  return true;
}

std::string JobStart::WaitsFor(const Membership& members) const {
  const std::vector<int> absent = members.Absent();
  if (absent.empty()) return "worker 0's initial weights";
  return absl::StrCat(WorkersText(absent), " to join", RejectionOf(absent));
}

}  // namespace psring
