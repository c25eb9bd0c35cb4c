#include "ps_server/server/row_rounds.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/tables/merge_rows.h"

namespace psring {
namespace {

size_t At(int i) { return static_cast<size_t>(i); }

bool IsFinite(const std::vector<float>& values) {
  float sum = 0;  // 0, or NaN from the first non-finite value on
  for (const float value : values) sum += value - value;
  return sum == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowRounds>> RowRounds::Create(const ServerJob& job, bool reject_nonfinite) {
  if (job.tables.empty()) return nullptr;
  std::unique_ptr<Device> host = MakeCpuDevice();
  PSRING_ASSIGN_OR_RETURN(RowStorage storage,
                          RowStorage::Create(job.tables, job.optimizer, *host, {job.server, job.servers}));
  if (job.row_arrays == 0) storage.Initialize(job.table_seed);
  return std::unique_ptr<RowRounds>(
      new RowRounds(job, RuleOf(job), reject_nonfinite, std::move(host), std::move(storage)));
}

RowRounds::RowRounds(const ServerJob& job, const WaitingRule& rule, bool reject_nonfinite,
                     std::unique_ptr<Device> host, RowStorage storage)
    : job_(job),
      each_alone_(rule.each_alone()),
      has_backups_(rule.kind == WaitingRule::Kind::kBackup),
      reject_nonfinite_(reject_nonfinite),
      slots_(storage.arrays() - 1),
      host_(std::move(host)),
      storage_(std::move(storage)),
      workers_(At(job.workers)) {
  for (Pushed& worker : workers_) {
    worker.of_tables.resize(job.tables.size());
    worker.last_rows.assign(job.tables.size(), -1);
  }
  version_ = each_alone_ ? job.start_step * job.workers + job.start_beyond : job.start_step;
  samples_ = job.start_samples;
  next_initial_.resize(At(job.row_arrays) * job.tables.size());
  for (int array = 0; array < job.row_arrays; ++array) {
    for (size_t t = 0; t < job.tables.size(); ++t) incomplete_ += RowsOf(static_cast<int>(t)) > 0 ? 1 : 0;
  }
}

absl::Status RowRounds::CheckTable(int worker, int table) const {
  if (table >= 0 && At(table) < job_.tables.size()) return absl::OkStatus();
  return InvalidArgument("worker ", worker, " names table ", table, " of ", job_.tables.size());
}

int RowRounds::RowsOf(int table) const {
  return RowPart{job_.server, job_.servers}.RowsOf(job_.tables[At(table)].rows);
}

OptimizerStep RowRounds::StepLocked(int64_t samples, int64_t staleness) const {
  const double rate = LearningRate(job_.schedule, samples_);
  return StepOf(job_.optimizer, samples,
                job_.staleness_lr ? rate / static_cast<double>(std::max<int64_t>(1, staleness)) : rate,
                version_ + 1);
}

Reply RowRounds::AnswerLocked(const message::PullRows& pull, const std::vector<int32_t>& rows) {
  const size_t width = At(job_.tables[At(pull.bucket)].width);
  auto values = std::make_shared<std::vector<float>>(rows.size() * width);
  const float* const table = storage_.table(pull.bucket, static_cast<int>(pull.slot)).floats();
  float* to = values->data();
  for (size_t i = 0; i < rows.size(); ++i, to += width) {
    constexpr size_t kAhead = 8;
    if (i + kAhead < rows.size()) __builtin_prefetch(table + At(rows[i + kAhead]) * width);
    std::copy_n(table + At(rows[i]) * width, width, to);
  }
  return {.message =
              message::Rows{
                  .bucket = pull.bucket, .step = pull.step, .request = pull.request, .version = version_},
          .weights = {.weights = {values->data(), values->size()}, .keep = values}};
}

absl::Status RowRounds::On(int worker, const message::PullRows& pull, Pieces payload, Replies& replies) {
  PSRING_RETURN_IF_ERROR(CheckTable(worker, pull.bucket));
  if (pull.slot < 0 || pull.slot > slots_) {
    return InvalidArgument("worker ", worker, " pulls rows of slot ", pull.slot, " of an optimizer that has ",
                           slots_);
  }
  PSRING_ASSIGN_OR_RETURN(ReceivedRows rows,
                          DecodeRows(payload, RowsOf(pull.bucket), job_.tables[At(pull.bucket)].width,
                                     /*has_gradient=*/false, /*after=*/-1));
  MutexLock lock(mutex_);
  Pushed& own = workers_[At(worker)];
  own.pulled_version = version_;
  const bool is_current = each_alone_ || pull.step == version_ || (has_backups_ && pull.step < version_);
  if (is_current && incomplete_ == 0) {
    replies.emplace_back(worker, AnswerLocked(pull, rows.rows));
    return absl::OkStatus();
  }
  if (!is_current && (incomplete_ > 0 || pull.step != version_ + 1)) {
    return FailedPrecondition("worker ", worker, " pulls rows of step ", pull.step,
                              ", and the server is at step ", version_);
  }
  if (own.waiting >= MostPulls(job_.tables.size())) {
    return ResourceExhausted("worker ", worker, " has ", own.waiting,
                             " pulls of rows that wait, and sends another one");
  }
  ++own.waiting;
  waiting_.push_back({worker, pull, std::move(rows.rows)});
  return absl::OkStatus();
}

absl::Status RowRounds::On(int worker, const message::InitialRows& initial, Pieces payload,
                           Replies& replies) {
  PSRING_RETURN_IF_ERROR(CheckTable(worker, initial.bucket));
  const int rows = RowsOf(initial.bucket), width = job_.tables[At(initial.bucket)].width;
  if (worker != 0 || initial.slot < 0 || initial.slot >= job_.row_arrays) {
    return FailedPrecondition("worker ", worker, " sends rows of slot ", initial.slot,
                              ", which were not requested");
  }
  MutexLock lock(mutex_);
  int& next = next_initial_[At(static_cast<int>(initial.slot)) * job_.tables.size() + At(initial.bucket)];
  PSRING_ASSIGN_OR_RETURN(const ReceivedRows received,
                          DecodeRows(payload, rows, width, /*has_gradient=*/true, /*after=*/next - 1));
  const int count = static_cast<int>(received.rows.size());
  // They are ascending.
  if (count == 0 || received.rows.back() != next + count - 1) {
    return InvalidArgument("worker ", worker, " sends ", count, " rows of table ", initial.bucket,
                           " that do not follow row ", next - 1);
  }
  const size_t first = At(next) * At(width);
  std::copy(received.gradient.begin(), received.gradient.end(),
            storage_.table(initial.bucket, static_cast<int>(initial.slot)).floats() + first);
  next += count;
  replies.emplace_back(worker,
                       Reply{.message = message::Rows{.bucket = initial.bucket, .request = initial.request}});
  if (next == rows && --incomplete_ == 0) {
    // Others wait for the current step.
    AnswerWaitingLocked(replies);
  }
  return absl::OkStatus();
}

absl::Status RowRounds::On(int worker, const message::PushRows& push, Pieces payload, Replies& replies) {
  PSRING_RETURN_IF_ERROR(CheckTable(worker, push.bucket));
  const int rows = RowsOf(push.bucket), width = job_.tables[At(push.bucket)].width;
  MutexLock lock(mutex_);
  Pushed& own = workers_[At(worker)];
  if (push.samples < 0 || push.step < 0) {
    return InvalidArgument("worker ", worker, " pushes rows of step ", push.step, " of ", push.samples,
                           " samples");
  }
  if (incomplete_ > 0) {
    return FailedPrecondition("worker ", worker,
                              " pushes rows before worker 0 has sent those of the checkpoint");
  }
  if (!each_alone_ && (push.step != version_ || own.is_complete)) {
    return FailedPrecondition("worker ", worker, " pushes rows of step ", push.step,
                              own.is_complete ? " again" : "", ", and the server is at step ", version_);
  }
  if (has_backups_ && !TakesPartLocked(worker)) {
    return FailedPrecondition("worker ", worker, " pushes rows of step ", push.step,
                              ", in which it does not take part");
  }
  int32_t& last = own.last_rows[At(push.bucket)];
  PSRING_ASSIGN_OR_RETURN(ReceivedRows received,
                          DecodeRows(payload, rows, width, /*has_gradient=*/true, last));
  if (push.samples == 0 && !received.rows.empty()) {
    return InvalidArgument("worker ", worker, " pushes rows of no samples");
  }
  if (reject_nonfinite_ && !IsFinite(received.gradient)) {
    return InvalidArgument(
        "the gradient of rows of table ", push.bucket, " of worker ", worker, " in step ", push.step,
        " is NaN or infinite: training has diverged (a lower --lr may help), or the worker is faulty; "
        "--debug.reject_nonfinite=false accepts it");
  }
  if (!received.rows.empty()) last = received.rows.back();
  own.samples = push.samples;
  const bool is_last = push.complete != 0;
  if (is_last) own.last_rows.assign(own.last_rows.size(), -1);
  if (each_alone_) {
    if (push.samples > 0) {
      storage_.Update(push.bucket, received.rows, received.gradient.data(),
                      StepLocked(push.samples, version_ - own.pulled_version));
    }
    if (!is_last) return absl::OkStatus();
    ++version_;
    samples_ += std::min(push.samples, INT64_MAX - samples_);
    return absl::OkStatus();
  }
  ReceivedRows& table = own.of_tables[At(push.bucket)];
  table.rows.insert(table.rows.end(), received.rows.begin(), received.rows.end());
  table.gradient.insert(table.gradient.end(), received.gradient.begin(), received.gradient.end());
  own.is_complete = is_last;
  if (is_last) UpdateIfCompleteLocked(replies);
  return absl::OkStatus();
}

void RowRounds::UpdateIfCompleteLocked(Replies& replies) {
  int64_t samples = 0;
  bool any = has_backups_ && updaters_.has_value();
  for (int i = 0; i < job_.workers; ++i) {
    const Pushed& worker = workers_[At(i)];
    if (!TakesPartLocked(i)) continue;
    if (!worker.is_complete) return;
    samples += worker.samples;
    any = true;
  }
  if (!any) return;
  updaters_.reset();
  for (size_t t = 0; t < job_.tables.size() && samples > 0; ++t) {
    std::vector<RowGradient> sources;
    for (const Pushed& worker : workers_) {
      if (!worker.is_complete) continue;
      sources.push_back({worker.of_tables[t].rows, worker.of_tables[t].gradient.data()});
    }
    AddUpRows(sources, At(job_.tables[t].width), rows_, sums_);
    storage_.Update(static_cast<int>(t), rows_, sums_.data(), StepLocked(samples, 0));
  }
  ++version_;
  samples_ += std::min(samples, INT64_MAX - samples_);
  for (Pushed& worker : workers_) {
    worker.is_complete = false;
    worker.Forget();
  }
  AnswerWaitingLocked(replies);
}

bool RowRounds::TakesPartLocked(int worker) const {
  if (has_backups_ && (!updaters_.has_value() || std::ranges::find(*updaters_, worker) == updaters_->end())) {
    return false;
  }
  return !workers_[At(worker)].is_gone || workers_[At(worker)].is_complete;
}

absl::Status RowRounds::OnUpdate(const std::vector<int>& workers, Replies& replies) {
  if (!has_backups_) return absl::OkStatus();
  MutexLock lock(mutex_);
  if (updaters_.has_value()) {
    return FailedPrecondition("the rows of step ", version_, " are missing, and the next step is complete");
  }
  updaters_ = workers;
  UpdateIfCompleteLocked(replies);
  return absl::OkStatus();
}

void RowRounds::Pushed::Forget() {
  for (ReceivedRows& table : of_tables) {
    table.rows.clear();
    table.gradient.clear();
  }
}

void RowRounds::AnswerWaitingLocked(Replies& replies) {
  for (Pushed& worker : workers_) worker.waiting = 0;
  for (const WaitingPull& waiting : waiting_) {
    workers_[At(waiting.worker)].pulled_version = version_;
    replies.emplace_back(waiting.worker, AnswerLocked(waiting.pull, waiting.rows));
  }
  waiting_.clear();
}

void RowRounds::OnGone(int worker, Replies& replies) {
  MutexLock lock(mutex_);
  Pushed& own = workers_[At(worker)];
  own.is_gone = true;
  own.last_rows.assign(own.last_rows.size(), -1);
  std::erase_if(waiting_, [worker](const WaitingPull& pull) { return pull.worker == worker; });
  if (each_alone_) return;
  if (!own.is_complete) own.Forget();
  UpdateIfCompleteLocked(replies);
}

bool RowRounds::AwaitsInitialRows() const {
  MutexLock lock(mutex_);
  return incomplete_ > 0;
}

std::vector<int> RowRounds::WaitsFor() const {
  MutexLock lock(mutex_);
  std::vector<int> missing;
  if (waiting_.empty()) return missing;
  if (incomplete_ > 0) return {0};
  if (each_alone_) return missing;
  for (int worker = 0; worker < job_.workers; ++worker) {
    if (TakesPartLocked(worker) && !workers_[At(worker)].is_complete) missing.push_back(worker);
  }
  return missing;
}

}  // namespace psring
