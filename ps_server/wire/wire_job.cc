// The part of wire.h that describes jobs.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/reduce/reduce.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/wire/wire.h"

namespace psring {
namespace {

constexpr size_t kMaxNameBytes = 64;

}  // namespace

void EncodeJob(const ServerJob& from, proto::Job& to) {
  to.set_workers(from.workers);
  to.set_consistency(from.consistency);
  to.set_deterministic(from.deterministic);
  to.set_serial(from.serial);
  to.set_server(from.server);
  to.set_servers(from.servers);
  to.set_clip_norm(from.clip_norm);
  to.set_staleness_lr(from.staleness_lr);
  to.set_wire(Name(from.wire));
  to.set_parameters(from.parameters);
  for (const Bucket& bucket : from.buckets) {
    proto::Job::Bucket& added = *to.add_buckets();
    added.set_first(bucket.first);
    added.set_count(bucket.count);
  }
  const OptimizerConfig& optimizer = from.optimizer;
  to.mutable_optimizer()->set_name(OptimizerName(optimizer.kind));
  to.mutable_optimizer()->set_momentum(optimizer.momentum);
  to.mutable_optimizer()->set_beta1(optimizer.beta1);
  to.mutable_optimizer()->set_beta2(optimizer.beta2);
  to.mutable_optimizer()->set_epsilon(optimizer.epsilon);
  to.mutable_optimizer()->set_weight_decay(optimizer.weight_decay);
  to.mutable_optimizer()->set_earlier_updates(optimizer.earlier_updates);
  for (const ParameterRange& range : optimizer.no_decay) {
    proto::Job::Bucket& added = *to.mutable_optimizer()->add_no_decay();
    added.set_first(range.first);
    added.set_count(range.count);
  }
  const LrSchedule& schedule = from.schedule;
  to.mutable_schedule()->set_decay(LrDecayName(schedule.decay));
  to.mutable_schedule()->set_base(schedule.base);
  to.mutable_schedule()->set_scale(schedule.scale);
  to.mutable_schedule()->set_warmup_samples(schedule.warmup_samples);
  to.mutable_schedule()->set_total_samples(schedule.total_samples);
  to.set_start_step(from.start_step);
  to.set_start_samples(from.start_samples);
  to.set_start_beyond(from.start_beyond);
  for (const Table& table : from.tables) {
    proto::Job::Table& added = *to.add_tables();
    added.set_rows(table.rows);
    added.set_width(table.width);
    added.set_bound(table.bound);
  }
  to.set_table_seed(from.table_seed);
  to.set_row_arrays(from.row_arrays);
}

absl::StatusOr<ServerJob> DecodeJob(const proto::Job& job) {
  // Errors repeat these names, so their length is bounded, and they have one line.
  for (const std::string* name :
       {&job.consistency(), &job.wire(), &job.optimizer().name(), &job.schedule().decay()}) {
    if (name->size() > kMaxNameBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a job with a name of ", name->size(), " bytes; the maximum is ", kMaxNameBytes));
    }
    if (absl::StrContains(*name, '\n'))
      return absl::InvalidArgumentError("a job with a name of several lines");
  }
  ServerJob to;
  to.workers = job.workers();
  to.consistency = job.consistency();
  to.deterministic = job.deterministic();
  to.serial = job.serial();
  to.server = job.server();
  to.servers = job.servers();
  to.clip_norm = job.clip_norm();
  to.staleness_lr = job.staleness_lr();
  PSRING_ASSIGN_OR_RETURN(to.wire, ParseDType(job.wire()));
  to.parameters = job.parameters();
  for (const proto::Job::Bucket& bucket : job.buckets()) {
    to.buckets.push_back(
        {.index = static_cast<int>(to.buckets.size()), .first = bucket.first(), .count = bucket.count()});
  }
  PSRING_ASSIGN_OR_RETURN(to.optimizer.kind, ParseOptimizer(job.optimizer().name()));
  to.optimizer.momentum = job.optimizer().momentum();
  to.optimizer.beta1 = job.optimizer().beta1();
  to.optimizer.beta2 = job.optimizer().beta2();
  to.optimizer.epsilon = job.optimizer().epsilon();
  to.optimizer.weight_decay = job.optimizer().weight_decay();
  to.optimizer.earlier_updates = job.optimizer().earlier_updates();
  for (const proto::Job::Bucket& range : job.optimizer().no_decay()) {
    to.optimizer.no_decay.push_back({.first = range.first(), .count = range.count()});
  }
  PSRING_ASSIGN_OR_RETURN(const LrDecay decay, ParseLrDecay(job.schedule().decay()));
  to.schedule = {.decay = decay,
                 .base = job.schedule().base(),
                 .scale = job.schedule().scale(),
                 .warmup_samples = job.schedule().warmup_samples(),
                 .total_samples = job.schedule().total_samples()};
  to.start_step = job.start_step();
  to.start_samples = job.start_samples();
  to.start_beyond = job.start_beyond();
  for (const proto::Job::Table& table : job.tables()) {
    to.tables.push_back({.rows = table.rows(), .width = table.width(), .bound = table.bound()});
  }
  to.table_seed = job.table_seed();
  to.row_arrays = job.row_arrays();
  return to;
}

std::string EncodeJoin(const JoinRequest& request) {
  proto::Join message;
  message.set_protocol(kProtocolVersion);
  message.set_worker(request.worker);
  message.set_memory(request.memory);
  message.set_session(request.session);
  message.set_again(request.again);
  message.set_epoch(request.epoch);
  EncodeJob(request.job, *message.mutable_job());
  return message.SerializeAsString();
}

absl::StatusOr<JoinRequest> DecodeJoin(Pieces payload) {
  std::string bytes;
  for (const Bytes& piece : payload) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  proto::Join message;
  if (!message.ParseFromString(bytes)) return absl::InvalidArgumentError("a Join that cannot be read");
  if (message.protocol() != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", message.worker(), " has version ", message.protocol(),
                     " of the parameter server's protocol, the server has version ", kProtocolVersion,
                     "; start both from the same psring"));
  }
  JoinRequest request;
  request.worker = message.worker();
  request.memory = message.memory();
  request.session = message.session();
  request.again = message.again();
  request.epoch = message.epoch();
  PSRING_ASSIGN_OR_RETURN(request.job, DecodeJob(message.job()));
  return request;
}

}  // namespace psring
