#include "ps_server/protocol/server_job.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/kernels/reduce.h"
#include "common/tables/row_storage.h"
#include "ps_server/protocol/messages.h"

namespace psring {
namespace {

std::string Describe(const Bucket& bucket) {
  return absl::StrCat("bucket ", bucket.index, " at ", bucket.first, " + ", bucket.count);
}

std::string Describe(const std::vector<ParameterRange>& ranges) {
  return absl::StrJoin(ranges, ", ", [](std::string* out, const ParameterRange& range) {
    absl::StrAppend(out, range.first, " + ", range.count);
  });
}

// NaN would also differ from itself when jobs are compared.
absl::Status ValidateNumbers(const ServerJob& job) {
  const OptimizerConfig& optimizer = job.optimizer;
  const LrSchedule& schedule = job.schedule;
  for (const auto& [name, value] :
       {std::pair("clip_norm", job.clip_norm), std::pair("momentum", optimizer.momentum),
        std::pair("beta1", optimizer.beta1), std::pair("beta2", optimizer.beta2),
        std::pair("epsilon", optimizer.epsilon), std::pair("weight decay", optimizer.weight_decay),
        std::pair("learning rate", schedule.base), std::pair("learning rate's scale", schedule.scale)}) {
    if (std::isfinite(value) && value >= 0) continue;
    return InvalidArgument(name, " is ", value, "; it must be finite, and at least 0");
  }
  for (const auto& [name, value] :
       {std::pair("beta1", optimizer.beta1), std::pair("beta2", optimizer.beta2)}) {
    if (value >= 1) return InvalidArgument(name, " is ", value, "; it must be below 1");
  }
  if (schedule.warmup_samples < 0 || schedule.total_samples < 0) {
    return InvalidArgument("the learning rate's warm-up is ", schedule.warmup_samples, " samples, of ",
                           schedule.total_samples);
  }
  return absl::OkStatus();
}

absl::Status ValidateNoDecay(const ServerJob& job) {
  size_t left = static_cast<size_t>(job.parameters), end = 0;  // end: of the previous range
  for (const ParameterRange& range : job.optimizer.no_decay) {
    if (range.first < end || range.first - end > left || range.count > left - (range.first - end)) {
      return InvalidArgument("weights without decay at ", range.first, " + ", range.count,
                             " overlap others, are not in order, or end after the last of ", job.parameters,
                             " parameters");
    }
    left -= range.first - end + range.count;
    end = range.first + range.count;
  }
  return absl::OkStatus();
}

absl::Status ValidateTables(const ServerJob& job) {
  const int arrays = 1 + static_cast<int>(OptimizerSlots(job.optimizer.kind).size());
  if (job.row_arrays != 0 && (job.tables.empty() || (job.row_arrays != 1 && job.row_arrays != arrays))) {
    return InvalidArgument("row_arrays is ", job.row_arrays, " with ", job.tables.size(), " tables and ",
                           OptimizerName(job.optimizer.kind));
  }
  if (job.tables.empty()) return absl::OkStatus();
  if (job.tables.size() > kMaxTables) {
    return InvalidArgument("the job has ", job.tables.size(), " tables; the maximum is ", kMaxTables);
  }
  for (size_t t = 0; t < job.tables.size(); ++t) {
    const Table& table = job.tables[t];
    if (table.rows < 1 || table.rows > kMaxTableRows || table.width < 1 || table.width > kMaxTableWidth ||
        !std::isfinite(table.bound)) {
      return InvalidArgument("table ", t, " has ", table.rows, " rows of width ", table.width, " in +-",
                             table.bound);
    }
  }
  if (job.clip_norm > 0 || job.wire != DType::kFloat32) {
    return InvalidArgument("tables cannot be combined with clipping or 16-bit gradients");
  }
  return CheckRowOptimizer(job.optimizer);
}

std::string Describe(const Table& table) {
  return absl::StrCat(table.rows, " x ", table.width, " in +-", table.bound);
}

absl::Status ValidateBuckets(const ServerJob& job) {
  if (job.parameters < 0) return InvalidArgument("parameters is ", job.parameters);
  if (job.buckets.size() > kMaxBuckets) {
    return InvalidArgument("the job has ", job.buckets.size(), " buckets, and at most ", kMaxBuckets,
                           " are possible; use larger ones (--bucket_mb)");
  }
  std::vector<Bucket> in_place = job.buckets;
  for (size_t i = 0; i < in_place.size(); ++i) {
    if (in_place[i].index != static_cast<int>(i)) {
      return InvalidArgument(Describe(in_place[i]), " is number ", i);
    }
  }
  std::ranges::sort(in_place, {}, [](const Bucket& b) { return std::pair(b.first, b.count); });
  const size_t parameters = static_cast<size_t>(job.parameters);
  size_t covered = 0;
  for (const Bucket& bucket : in_place) {
    if (bucket.first != covered || bucket.count > parameters - covered) {
      return InvalidArgument("buckets must cover the ", job.parameters, " parameters once, and ",
                             Describe(bucket),
                             " does not start where the previous one ends, or ends after the last parameter");
    }
    // A server may have no slice of a small bucket; a whole bucket is not empty.
    if (bucket.count == 0 && job.servers == 1) {
      return InvalidArgument(Describe(bucket), " has no parameters; omit it");
    }
    covered += bucket.count;
  }
  if (covered != parameters) {
    return InvalidArgument("buckets cover only ", covered, " of ", job.parameters, " parameters");
  }
  return ValidateNoDecay(job);
}

}  // namespace

absl::Status RequireSameJob(const ServerJob& reference, const ServerJob& other, int worker, int than) {
  const auto same = [worker, than](const char* field, const auto& a, const auto& b) {
    if (a == b) return absl::OkStatus();
    return InvalidArgument("worker ", worker, " has another job than worker ", than, ": ", field, " is ", b,
                           ", not ", a);
  };
  PSRING_RETURN_IF_ERROR(same("workers", reference.workers, other.workers));
  PSRING_RETURN_IF_ERROR(same("consistency", reference.consistency, other.consistency));
  PSRING_RETURN_IF_ERROR(same("deterministic", reference.deterministic, other.deterministic));
  PSRING_RETURN_IF_ERROR(same("serial", reference.serial, other.serial));
  PSRING_RETURN_IF_ERROR(same("server", reference.server, other.server));
  PSRING_RETURN_IF_ERROR(same("number of servers", reference.servers, other.servers));
  PSRING_RETURN_IF_ERROR(same("wire", std::string(Name(reference.wire)), std::string(Name(other.wire))));
  PSRING_RETURN_IF_ERROR(same("clip_norm", reference.clip_norm, other.clip_norm));
  PSRING_RETURN_IF_ERROR(same("staleness_lr", reference.staleness_lr, other.staleness_lr));
  PSRING_RETURN_IF_ERROR(same("parameters", reference.parameters, other.parameters));
  PSRING_RETURN_IF_ERROR(same("number of buckets", reference.buckets.size(), other.buckets.size()));
  for (size_t i = 0; i < reference.buckets.size(); ++i) {
    PSRING_RETURN_IF_ERROR(same("bucket plan", Describe(reference.buckets[i]), Describe(other.buckets[i])));
  }
  PSRING_RETURN_IF_ERROR(same("number of tables", reference.tables.size(), other.tables.size()));
  for (size_t i = 0; i < reference.tables.size(); ++i) {
    PSRING_RETURN_IF_ERROR(same("table", Describe(reference.tables[i]), Describe(other.tables[i])));
  }
  PSRING_RETURN_IF_ERROR(same("seed of tables", reference.table_seed, other.table_seed));
  PSRING_RETURN_IF_ERROR(same("row_arrays", reference.row_arrays, other.row_arrays));
  const OptimizerConfig& a = reference.optimizer;
  const OptimizerConfig& b = other.optimizer;
  PSRING_RETURN_IF_ERROR(same("optimizer", OptimizerName(a.kind), OptimizerName(b.kind)));
  PSRING_RETURN_IF_ERROR(same("momentum", a.momentum, b.momentum));
  PSRING_RETURN_IF_ERROR(same("beta1", a.beta1, b.beta1));
  PSRING_RETURN_IF_ERROR(same("beta2", a.beta2, b.beta2));
  PSRING_RETURN_IF_ERROR(same("epsilon", a.epsilon, b.epsilon));
  PSRING_RETURN_IF_ERROR(same("weight decay", a.weight_decay, b.weight_decay));
  PSRING_RETURN_IF_ERROR(same("weights without decay", Describe(a.no_decay), Describe(b.no_decay)));
  PSRING_RETURN_IF_ERROR(same("earlier_updates", a.earlier_updates, b.earlier_updates));
  const LrSchedule& s = reference.schedule;
  const LrSchedule& t = other.schedule;
  PSRING_RETURN_IF_ERROR(same("learning rate's decay", static_cast<int>(s.decay), static_cast<int>(t.decay)));
  PSRING_RETURN_IF_ERROR(same("learning rate", s.base, t.base));
  PSRING_RETURN_IF_ERROR(same("learning rate's scale", s.scale, t.scale));
  PSRING_RETURN_IF_ERROR(same("learning rate's warm-up samples", s.warmup_samples, t.warmup_samples));
  PSRING_RETURN_IF_ERROR(same("learning rate's total samples", s.total_samples, t.total_samples));
  PSRING_RETURN_IF_ERROR(same("first step", reference.start_step, other.start_step));
  PSRING_RETURN_IF_ERROR(same("updates beyond the first step", reference.start_beyond, other.start_beyond));
  return same("samples before the first step", reference.start_samples, other.start_samples);
}

WaitingRule RuleOf(const ServerJob& job) {
  return ParseWaitingRule(job.consistency, job.workers).value_or(WaitingRule{});
}

absl::Status ValidateServerJob(const ServerJob& job) {
  if (job.workers < 1) return InvalidArgument("workers is ", job.workers);
  PSRING_ASSIGN_OR_RETURN(const WaitingRule rule, ParseWaitingRule(job.consistency, job.workers));
  if (!(job.clip_norm >= 0) || (job.clip_norm > 0 && rule.each_alone())) {
    return InvalidArgument("clip_norm ", job.clip_norm, " with \"", job.consistency,
                           "\": only synchronous modes have one gradient to clip");
  }
  if (job.staleness_lr && !rule.each_alone()) {
    return InvalidArgument("staleness_lr with \"", job.consistency, "\", in which no gradient is stale");
  }
  if (job.server < 0 || job.server >= job.servers) {
    return InvalidArgument("server ", job.server, " of ", job.servers);
  }
  if (job.start_step < 0 || job.start_step > kMaxWireCount || job.start_samples < 0 ||
      job.start_samples > INT64_MAX / 2) {
    return InvalidArgument("start_step is ", job.start_step, ", start_samples ", job.start_samples);
  }
  if (job.start_beyond < 0 || job.start_beyond >= (rule.each_alone() ? job.workers : 1)) {
    return InvalidArgument("start_beyond is ", job.start_beyond, " with \"", job.consistency, "\" and ",
                           job.workers, " workers");
  }
  // Adam's t is positive.
  const int64_t start = rule.each_alone() ? job.start_step * job.workers + job.start_beyond : job.start_step;
  if (job.optimizer.earlier_updates < -start || job.optimizer.earlier_updates > kMaxWireCount) {
    return InvalidArgument("earlier_updates is ", job.optimizer.earlier_updates,
                           " in a job that starts with update ", start);
  }
  PSRING_RETURN_IF_ERROR(ValidateNumbers(job));
  PSRING_RETURN_IF_ERROR(ValidateTables(job));
  return ValidateBuckets(job);
}

}  // namespace psring
