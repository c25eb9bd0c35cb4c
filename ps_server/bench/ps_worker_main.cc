// One worker that pushes and pulls without training: measures rounds of the parameter server. `psring bench
// --collective ps_push_pull` starts one for each worker, and a ps_server. Manually, with a running `ps_server
// --workers 2` of the same rendezvous:
//
//   ps_worker --rendezvous tcp://127.0.0.1:29500 --rank 0 --world_size 2 --bytes 4K,25M
//
// A round is a push of a gradient and the pull of the resulting weights (plain SGD, synchronous); every size
// is a bucket. Both algbw and busbw are the payload of one direction divided by the time of the round.
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/base/own_process.h"
#include "common/cli/command_line.h"
#include "common/device/task_limit.h"
#include "common/measure/collective_bench.h"
#include "common/measure/trace.h"
#include "common/net/host_identity.h"
#include "common/net/tls.h"
#include "common/rendezvous/rendezvous.h"
#include "common/text/units.h"
#include "ps_server/bench/round_limits.h"
#include "ps_server/client/ps_client.h"

namespace psring {
namespace {

constexpr int64_t kMaxExact = 1 << 24;  // integers below it are exact in float32
constexpr int kBasePeriod = 7, kDeltaPeriod = 5;
constexpr char kRound[] = "ps_push_pull";

struct Flags {
  std::string rendezvous = "env://";
  std::string rank, world_size;  // override RANK and WORLD_SIZE
  std::vector<std::string> bytes = {"4M"};
  int turns = 20, calls_per_turn = 0, warmup = 5, checks = 1, average = 3;
  int servers = 1;
  double timeout_s = 60;
  std::string transport = "auto", server_wire = "grpc";
  std::string tls;
  bool limits = false;
  bool json = false;
};

// An integer whose sum over all workers is workers x Base(i): in each pair of workers one adds what the other
// subtracts.
float Base(size_t i) { return static_cast<float>(i % kBasePeriod + 1); }
float Gradient(int rank, int workers, size_t i) {
  const int partner = workers - 1 - rank;
  if (rank == partner) return Base(i);
  const float delta =
      static_cast<float>((3 * static_cast<size_t>(std::min(rank, partner)) + i) % kDeltaPeriod);
  return rank < partner ? Base(i) + delta : Base(i) - delta;
}

// Samples in all gradients of a round: a power of two, so that their mean is exact. Each worker has one, and
// worker 0 the rest.
int64_t AllSamples(int workers) {
  int64_t samples = 1;
  while (samples < workers) samples *= 2;
  return samples;
}

class Worker {
 public:
  Worker(const Flags& flags, const std::vector<uint64_t>& sizes, Rendezvous& rendezvous)
      : flags_(flags),
        rendezvous_(rendezvous),
        rank_(rendezvous.options().rank),
        workers_(rendezvous.options().world_size) {
    job_.workers = workers_;
    size_t first = 0;
    for (const uint64_t bytes : sizes) {
      job_.buckets.push_back({static_cast<int>(job_.buckets.size()), first, bytes / sizeof(float)});
      first += job_.buckets.back().count;
    }
    job_.parameters = static_cast<int64_t>(first);
    job_.optimizer.kind = OptimizerKind::kSgd;
    job_.schedule.base = 1;
  }

  absl::Status Run() {
    PSRING_RETURN_IF_ERROR(Allocate());
    PSRING_ASSIGN_OR_RETURN(const Payload payload, ParsePayload(flags_.transport));
    std::vector<std::unique_ptr<OneServerClient>> clients;
    for (int server = 0; server < flags_.servers; ++server) {
      PSRING_ASSIGN_OR_RETURN(
          const std::string address,
          rendezvous_.Get(absl::StrCat("ps/", server), absl::StrCat("parameter server ", server)));
      clients.push_back(MakeGrpcPsClient(address, {.secret = rendezvous_.options().secret,
                                                   .payload = payload,
                                                   .own_connection = flags_.server_wire == "stream"}));
    }
    client_ = MakeShardedPsClient(std::move(clients));
    PSRING_RETURN_IF_ERROR(client_->Start(rank_, job_,
                                          {.weights = weights_.span(),
                                           .shared_gradients = {gradient_.span(), gradient_.shared_fd()},
                                           .shared_weights = {weights_.span(), weights_.shared_fd()}},
                                          Deadline()));
    if (flags_.limits) {
      PSRING_ASSIGN_OR_RETURN(const std::string limits,
                              rendezvous_.Get("ps/0/limits", "a ps_server --limits"));
      PSRING_ASSIGN_OR_RETURN(limits_, RoundLimitClient::Connect(limits, rendezvous_.options().secret, rank_,
                                                                 absl::Seconds(flags_.timeout_s)));
      PSRING_ASSIGN_OR_RETURN(limit_weights_, MakeCpuDevice()->Allocate(weights_.bytes()));
    }
    PSRING_RETURN_IF_ERROR(Begin());
    for (const Bucket& bucket : job_.buckets) {
      absl::Status status = Measure(bucket);
      if (!status.ok()) {
        client_->Abort(status);
        return status;
      }
    }
    PSRING_RETURN_IF_ERROR(client_->Leave(Deadline()));
    PSRING_RETURN_IF_ERROR(rendezvous_.Exchange("ps_worker end", "").status());
    if (rank_ == 0) output_->Finish();
    return absl::OkStatus();
  }

 private:
  MonotonicTime Deadline() const { return MonotonicNow() + absl::Seconds(flags_.timeout_s); }

  // As in the trainer: shared memory, unless the transport is TCP.
  absl::Status Allocate() {
    const std::unique_ptr<Device> device = MakeCpuDevice();
    const size_t bytes = static_cast<size_t>(job_.parameters) * sizeof(float);
    for (Buffer* buffer : {&weights_, &gradient_}) {
      PSRING_ASSIGN_OR_RETURN(
          *buffer, flags_.transport == "tcp" ? device->Allocate(bytes) : device->AllocateShared(bytes));
    }
    for (const Bucket& bucket : job_.buckets) {
      float* const gradient = gradient_.span().floats() + bucket.first;
      for (size_t i = 0; i < bucket.count; ++i) gradient[i] = Gradient(rank_, workers_, i);
    }
    return absl::OkStatus();
  }

  absl::Status Begin() {
    PSRING_ASSIGN_OR_RETURN(
        const std::vector<std::string> ranks,
        rendezvous_.Exchange("ps_worker", RankText({.host = HostName(), .pid = getpid()})));
    if (rank_ != 0) return absl::OkStatus();
    const std::string payload(client_->status().payload);
    const std::string transport = payload == "grpc" ? "tcp" : payload;  // bench's name
    const std::string algorithm = absl::StrCat(
        job_.consistency, flags_.servers > 1 ? absl::StrCat(" on ", flags_.servers, " servers") : "");
    output_->Start(
        RanksFrom(ranks),
        {{.title = absl::StrCat(kRound, ", ", flags_.server_wire, " ", algorithm, " over ", transport),
          .collective = kRound,
          .backend = flags_.server_wire,
          .algorithm = algorithm,
          .transport = transport}});
    return absl::OkStatus();
  }

  // One round. The reply arrives when all workers have pushed, so a round is also a barrier.
  absl::Status Round(const Bucket& bucket) {
    return client_->PushPullAndWait({.bucket = bucket.index,
                                     .step = steps_++,
                                     .samples = rank_ == 0 ? AllSamples(workers_) - (workers_ - 1) : 1,
                                     .gradient = gradient_.span().Slice(bucket.first, bucket.count),
                                     .weights = weights_.span().Slice(bucket.first, bucket.count)});
  }

  // After `steps_` rounds every weight is exactly -steps x workers x Base(i) / samples.
  int64_t Wrong(const Bucket& bucket) const {
    const float factor = -static_cast<float>(steps_ * workers_) / static_cast<float>(AllSamples(workers_));
    int64_t wrong = 0;
    for (size_t i = 0; i < bucket.count; ++i) {
      if (!(weights_.span().floats()[bucket.first + i] == factor * Base(i))) ++wrong;
    }
    return wrong;
  }

  bool Checkable() const { return flags_.checks > 0 && steps_ * workers_ * kBasePeriod < kMaxExact; }

  absl::Status RequireRight(const Bucket& bucket, int64_t wrong) {
    PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                            rendezvous_.Exchange("ps_worker wrong", absl::StrCat(wrong)));
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank] == "0") continue;
      return DataLoss(kRound, ", ", bucket.count * sizeof(float), " bytes: rank ", rank, " has ", all[rank],
                      " wrong elements");
    }
    return absl::OkStatus();
  }

  absl::Status Measure(const Bucket& bucket) {
    steps_ = 0;  // of this bucket
    int64_t wrong = 0;
    for (int i = 0; i < flags_.checks; ++i) {
      PSRING_RETURN_IF_ERROR(Round(bucket));
      wrong += Wrong(bucket);
    }
    if (flags_.checks > 0) PSRING_RETURN_IF_ERROR(RequireRight(bucket, wrong));
    int64_t call_ns = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < std::max(1, flags_.warmup); ++i) {
      const int64_t begin = MonotonicNanos();
      PSRING_RETURN_IF_ERROR(Round(bucket));
      call_ns = std::min(call_ns, MonotonicNanos() - begin);
    }
    PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all_ns,
                            rendezvous_.Exchange("ps_worker warm", absl::StrCat(call_ns)));
    const int64_t calls = CallsPerTurn(all_ns, 1, flags_.calls_per_turn)[0];
    std::vector<int64_t> turn_ns, limit_ns;
    if (limits_.has_value()) PSRING_RETURN_IF_ERROR(LimitRound(bucket));  // allocates its memory
    for (int turn = 0; turn < flags_.turns; ++turn) {
      PSRING_ASSIGN_OR_RETURN(turn_ns.emplace_back(), Time(&Worker::Round, bucket, calls));
      if (!limits_.has_value()) continue;
      PSRING_ASSIGN_OR_RETURN(limit_ns.emplace_back(), Time(&Worker::LimitRound, bucket, calls));
    }
    if (flags_.checks > 0) PSRING_RETURN_IF_ERROR(RequireRight(bucket, Checkable() ? Wrong(bucket) : 0));
    return Report(bucket, calls, turn_ns, limit_ns);
  }

  // The time of `calls` rounds after one that is not timed, because the caches contain other data.
  absl::StatusOr<int64_t> Time(absl::Status (Worker::*round)(const Bucket&), const Bucket& bucket,
                               int64_t calls) {
    PSRING_RETURN_IF_ERROR((this->*round)(bucket));
    const int64_t begin = MonotonicNanos();
    for (int64_t call = 0; call < calls; ++call) PSRING_RETURN_IF_ERROR((this->*round)(bucket));
    return MonotonicNanos() - begin;
  }

  // The lower bound: with shared memory one pass through memory, otherwise a raw round.
  RoundLimit LimitKind() const {
    return client_->status().payload == "shm" ? RoundLimit::kFused : RoundLimit::kRaw;
  }

  absl::Status LimitRound(const Bucket& bucket) {
    return limits_->Run(LimitKind(), gradient_.span().Slice(bucket.first, bucket.count),
                        limit_weights_.span().Slice(bucket.first, bucket.count));
  }

  // On rank 0.
  absl::StatusOr<Samples> Gather(const std::vector<int64_t>& turn_ns, int64_t calls) {
    PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                            rendezvous_.Exchange("ps_worker times", absl::StrJoin(turn_ns, " ")));
    if (rank_ != 0) return Samples();
    PSRING_ASSIGN_OR_RETURN(
        const std::vector<Samples> samples,
        SamplesOf(all, {calls}, turn_ns.size(), static_cast<AcrossRanks>(flags_.average)));
    return samples[0];
  }

  absl::Status Report(const Bucket& bucket, int64_t calls, const std::vector<int64_t>& turn_ns,
                      const std::vector<int64_t>& limit_ns) {
    const uint64_t bytes = bucket.count * sizeof(float);
    PSRING_ASSIGN_OR_RETURN(Samples samples, Gather(turn_ns, calls));
    if (rank_ == 0) {
      samples.wrong = flags_.checks > 0 ? 0 : -1;
      // Weights and gradient are always different memory.
      output_->Row(
          {.type = "float32", .op = "sum", .bytes = bytes, .count = bucket.count, .out_of_place = samples});
      output_->Progress(static_cast<size_t>(bucket.index) + 1, job_.buckets.size());
    }
    if (!limits_.has_value()) return absl::OkStatus();
    PSRING_ASSIGN_OR_RETURN(samples, Gather(limit_ns, calls));
    if (rank_ == 0) output_->Limit({Name(LimitKind()), kRound, bytes, samples});
    return absl::OkStatus();
  }

  const Flags& flags_;
  Rendezvous& rendezvous_;
  const int rank_, workers_;
  ServerJob job_;
  Buffer weights_, gradient_;
  std::unique_ptr<PsClient> client_;
  std::optional<RoundLimitClient> limits_;
  Buffer limit_weights_;
  int64_t steps_ = 0;
  const std::unique_ptr<BenchOutput> output_ =
      flags_.json ? MakeJsonOutput(stdout) : MakeTableOutput("ps_worker", flags_.turns, stdout);
};

absl::Status Run(const Flags& flags) {
  std::vector<uint64_t> sizes;
  for (const std::string& text : flags.bytes) {
    const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
    if (!bytes.ok()) return InvalidArgument("--bytes: ", bytes.status().message());
    if (*bytes < sizeof(float)) return InvalidArgument("--bytes: a gradient has at least 4 bytes");
    sizes.push_back(*bytes);
  }
  const GetEnv environment = InPlaceOf(ProcessEnvironment(), flags.rank, flags.world_size);
  PSRING_ASSIGN_OR_RETURN(RendezvousOptions join, ReadRendezvous(flags.rendezvous, environment, flags.tls));
  join.timeout = absl::Seconds(flags.timeout_s);
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> rendezvous, Rendezvous::Join(join));
  PSRING_RETURN_IF_ERROR(RequireEqual(*rendezvous, "--bytes", absl::StrJoin(sizes, ",")));
  PSRING_RETURN_IF_ERROR(RequireEqual(
      *rendezvous, "the number of calls",
      absl::StrCat(flags.turns, " ", flags.calls_per_turn, " ", flags.warmup, " ", flags.checks)));
  return Worker(flags, sizes, *rendezvous).Run();
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.option_defaults()->always_capture_default();
  const auto number = [&](const char* names, int& to, const char* text, int least, int most) {
    app.add_option(names, to, text)->check(WholeNumber(least, static_cast<uint64_t>(most)));
  };
  app.add_option("--rendezvous", flags.rendezvous, "env:// or tcp://host:port");
  app.add_option("--rank", flags.rank, "Overrides RANK")->check(WholeNumber(0, 1 << 20));
  app.add_option("--world_size", flags.world_size, "Overrides WORLD_SIZE")->check(WholeNumber(1, 1 << 20));
  app.add_option("-b,--bytes", flags.bytes, "Sizes of the gradient, with K, M or G")->delimiter(',');
  number("-n,--iters", flags.turns, "Timed iterations of each size", 1, 100'000'000);
  number("-m,--agg_iters", flags.calls_per_turn, "Rounds in an iteration; 0: as many as take 200 us", 0,
         1'000'000);
  number("-w,--warmup_iters", flags.warmup, "Untimed rounds of each size", 0, 1 << 30);
  number("-c,--check", flags.checks, "Checked rounds of each size, before the timed ones", 0, 1'000'000);
  number("-a,--average", flags.average,
         "Combines the workers' times: 0 rank 0's, 1 mean, 2 minimum, 3 maximum", 0, 3);
  number("--servers", flags.servers, "Parameter servers, each with a slice of the gradient", 1, 64);
  app.add_option("--transport", flags.transport, "How gradients and weights travel: auto, tcp or shm")
      ->check(OneOf({"auto", "tcp", "shm"}));
  app.add_option("--server_wire", flags.server_wire,
                 "What carries them over TCP: grpc, or stream (connections of psring's own)")
      ->check(OneOf({"grpc", "stream"}));
  app.add_option("--timeout", flags.timeout_s, "Seconds to wait for a process that sends nothing")
      ->check(RealNumber({}));
  AddTlsFlag(app, flags.tls);
  app.add_flag(
      "--limits", flags.limits,
      "Also measures the lower bound of a round, alternating with real rounds; needs a ps_server --limits");
  app.add_flag("--json", flags.json, "For psring: print JSON lines, and exit when the parent process exits");
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("One worker of a parameter server that pushes and pulls without training.", "ps_worker");
  AddFlags(app, flags);
  ParseOrExit(app, argc, argv);
  if (flags.json) prctl(PR_SET_PDEATHSIG, SIGKILL);
  KeepFreedMemory();
  absl::Status status = AllowTasks(RankTasks(1, flags.servers), "a worker");
  if (!status.ok()) return Fail("ps_worker", std::string(status.message()), 2);
  status = Run(flags);
  if (status.ok()) return 0;
  return Fail("ps_worker", std::string(status.message()),
              status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1);
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) { return psring::FinishOutput("ps_worker", psring::Main(argc, argv)); }
