// The part of wire.h that describes jobs.
#include <utility>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/kernels/reduce.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/wire/wire.h"

namespace psring {
namespace {

constexpr size_t kMaxNameBytes = 64;

// `visit(member, get, set)` for each number of a job, of its optimizer and of its schedule.
template <typename Visit>
void ForEachJobNumber(const Visit& visit) {
  using proto::Job;
  visit(&ServerJob::workers, &Job::workers, &Job::set_workers);
  visit(&ServerJob::deterministic, &Job::deterministic, &Job::set_deterministic);
  visit(&ServerJob::serial, &Job::serial, &Job::set_serial);
  visit(&ServerJob::server, &Job::server, &Job::set_server);
  visit(&ServerJob::servers, &Job::servers, &Job::set_servers);
  visit(&ServerJob::clip_norm, &Job::clip_norm, &Job::set_clip_norm);
  visit(&ServerJob::staleness_lr, &Job::staleness_lr, &Job::set_staleness_lr);
  visit(&ServerJob::parameters, &Job::parameters, &Job::set_parameters);
  visit(&ServerJob::start_step, &Job::start_step, &Job::set_start_step);
  visit(&ServerJob::start_samples, &Job::start_samples, &Job::set_start_samples);
  visit(&ServerJob::start_beyond, &Job::start_beyond, &Job::set_start_beyond);
  visit(&ServerJob::table_seed, &Job::table_seed, &Job::set_table_seed);
  visit(&ServerJob::row_arrays, &Job::row_arrays, &Job::set_row_arrays);
}
template <typename Visit>
void ForEachOptimizerNumber(const Visit& visit) {
  using Message = proto::Job::Optimizer;
  visit(&OptimizerConfig::momentum, &Message::momentum, &Message::set_momentum);
  visit(&OptimizerConfig::beta1, &Message::beta1, &Message::set_beta1);
  visit(&OptimizerConfig::beta2, &Message::beta2, &Message::set_beta2);
  visit(&OptimizerConfig::epsilon, &Message::epsilon, &Message::set_epsilon);
  visit(&OptimizerConfig::weight_decay, &Message::weight_decay, &Message::set_weight_decay);
  visit(&OptimizerConfig::earlier_updates, &Message::earlier_updates, &Message::set_earlier_updates);
}
template <typename Visit>
void ForEachScheduleNumber(const Visit& visit) {
  using Message = proto::Job::Schedule;
  visit(&LrSchedule::base, &Message::base, &Message::set_base);
  visit(&LrSchedule::scale, &Message::scale, &Message::set_scale);
  visit(&LrSchedule::warmup_samples, &Message::warmup_samples, &Message::set_warmup_samples);
  visit(&LrSchedule::total_samples, &Message::total_samples, &Message::set_total_samples);
}

// What ForEach... visits to write `from` to the message `to`, and to read `to` from the message `from`.
template <typename From, typename To>
auto Writes(const From& from, To& to) {
  return [&](auto member, auto, auto set) { (to.*set)(from.*member); };
}
template <typename From, typename To>
auto Reads(const From& from, To& to) {
  return [&](auto member, auto get, auto) { to.*member = (from.*get)(); };
}

template <typename Range>
void WriteRange(const Range& range, proto::Job::Bucket& to) {
  to.set_first(range.first);
  to.set_count(range.count);
}

}  // namespace

void EncodeJob(const ServerJob& from, proto::Job& to) {
  ForEachJobNumber(Writes(from, to));
  to.set_consistency(from.consistency);
  to.set_wire(Name(from.wire));
  for (const Bucket& bucket : from.buckets) WriteRange(bucket, *to.add_buckets());
  proto::Job::Optimizer& optimizer = *to.mutable_optimizer();
  ForEachOptimizerNumber(Writes(from.optimizer, optimizer));
  optimizer.set_name(OptimizerName(from.optimizer.kind));
  for (const ParameterRange& range : from.optimizer.no_decay) WriteRange(range, *optimizer.add_no_decay());
  ForEachScheduleNumber(Writes(from.schedule, *to.mutable_schedule()));
  to.mutable_schedule()->set_decay(LrDecayName(from.schedule.decay));
  for (const Table& table : from.tables) {
    proto::Job::Table& added = *to.add_tables();
    added.set_rows(table.rows);
    added.set_width(table.width);
    added.set_bound(table.bound);
  }
}

absl::StatusOr<ServerJob> DecodeJob(const proto::Job& job) {
  // Errors repeat these names, so their length is bounded, and they have one line.
  for (const std::string* name :
       {&job.consistency(), &job.wire(), &job.optimizer().name(), &job.schedule().decay()}) {
    if (name->size() > kMaxNameBytes) {
      return InvalidArgument("a job with a name of ", name->size(), " bytes; the maximum is ", kMaxNameBytes);
    }
    if (absl::StrContains(*name, '\n')) return InvalidArgument("a job with a name of several lines");
  }
  ServerJob to{.consistency = job.consistency()};
  ForEachJobNumber(Reads(job, to));
  ForEachOptimizerNumber(Reads(job.optimizer(), to.optimizer));
  ForEachScheduleNumber(Reads(job.schedule(), to.schedule));
  PSRING_ASSIGN_OR_RETURN(to.wire, ParseDType(job.wire()));
  PSRING_ASSIGN_OR_RETURN(to.optimizer.kind, ParseOptimizer(job.optimizer().name()));
  PSRING_ASSIGN_OR_RETURN(to.schedule.decay, ParseLrDecay(job.schedule().decay()));
  for (const proto::Job::Bucket& bucket : job.buckets()) {
    to.buckets.push_back(
        {.index = static_cast<int>(to.buckets.size()), .first = bucket.first(), .count = bucket.count()});
  }
  for (const proto::Job::Bucket& range : job.optimizer().no_decay()) {
    to.optimizer.no_decay.push_back({.first = range.first(), .count = range.count()});
  }
  for (const proto::Job::Table& table : job.tables()) {
    to.tables.push_back({.rows = table.rows(), .width = table.width(), .bound = table.bound()});
  }
  return to;
}

std::string EncodeJoin(const Joining& joining) {
  proto::Join message;
  message.set_protocol(kProtocolVersion);
  message.set_worker(joining.worker);
  message.set_memory(joining.memory);
  message.set_payload(joining.payload);
  message.set_session(joining.session);
  message.set_again(joining.again);
  message.set_epoch(joining.epoch);
  EncodeJob(joining.job, *message.mutable_job());
  return message.SerializeAsString();
}

absl::StatusOr<Joining> DecodeJoin(Pieces payload) {
  std::string bytes;
  for (const Bytes& piece : payload) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  proto::Join message;
  if (!message.ParseFromString(bytes)) return InvalidArgument("a Join that cannot be read");
  if (message.protocol() != kProtocolVersion) {
    return FailedPrecondition("worker ", message.worker(), " has version ", message.protocol(),
                              " of the parameter server's protocol, the server has version ",
                              kProtocolVersion, "; start both from the same psring");
  }
  PSRING_ASSIGN_OR_RETURN(ServerJob job, DecodeJob(message.job()));
  return Joining{.worker = message.worker(),
                 .job = std::move(job),
                 .memory = message.memory(),
                 .payload = message.payload(),
                 .session = message.session(),
                 .again = message.again(),
                 .epoch = message.epoch()};
}

}  // namespace psring
