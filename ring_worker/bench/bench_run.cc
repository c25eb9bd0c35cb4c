#include "ring_worker/bench/bench_run.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/cores.h"
#include "common/cuda/cuda_device.h"
#include "common/devices/make_device.h"
#include "common/measure/trace.h"
#include "ring_worker/bench/bench_barrier.h"
#include "ring_worker/bench/bench_values.h"

namespace psring {
namespace {

constexpr int64_t kMostCallsPerTurn = 10'000;

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "?";
  return name;
}

// Where there is a core for each rank, the calling thread keeps to one of its own: after a call that sleeps,
// the kernel likes to wake a rank beside its peer on one core, and a call that spins then finds nobody there.
void KeepToOwnCore(int rank, int ranks) {
  const std::vector<int> cores = AllowedCores();
  if (static_cast<int>(cores.size()) < ranks) return;
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(cores[static_cast<size_t>(rank)], &own);
  sched_setaffinity(0, sizeof(own), &own);  // a figure without it is no error
}

// One of the things that take turns.
struct Case {
  bool is_limit = false;
  size_t combination = 0;
  Call call;  // placement, type, op, shape; of a limit nothing
  ProcessGroup* group = nullptr;
  LimitKind limit = LimitKind::kCopy;
  Collective collective = Collective::kAllReduce;
  uint64_t bytes = 0;
  int64_t calls = 1;  // in a turn
  std::vector<int64_t> turn_ns;
  Mismatch mismatch;
};

class Bench {
 public:
  Bench(const BenchOptions& options, Rendezvous& rendezvous, const BenchReport& report)
      : options_(options),
        rendezvous_(rendezvous),
        report_(report),
        rank_(rendezvous.options().rank),
        ranks_(rendezvous.options().world_size),
        host_(MakeCpuDevice()) {}

  absl::Status Run() {
    absl::Status status = SetUp();
    if (status.ok()) status = MeasureAll();
    // Nobody leaves while another may still fail: its error would be lost.
    if (status.ok()) status = Meet();
    if (!status.ok()) {
      if (barrier_ != nullptr) barrier_->GiveUp(status);
      for (auto& [key, group] : groups_) group->Abort(status);
    }
    return status;
  }

 private:
  struct Buffers {
    Buffer send, receive;
    CallBuffers view() const { return {send.data(), receive.data()}; }
  };

  Buffers& BuffersOf(BufferKind kind) { return buffers_[static_cast<size_t>(kind)]; }
  absl::Status SetUp();
  absl::Status OpenDevice();
  absl::Status AllocateBuffers();
  absl::StatusOr<ProcessGroup*> GroupOf(const Combination& combination);
  absl::Status ReportStart();

  absl::Status MeasureAll();
  absl::Status MeasureSize(DType type, ReduceOp op, bool first_op, size_t bytes);
  std::vector<Case> CasesOf(DType type, ReduceOp op, bool first_op, size_t bytes);
  absl::Status RunOnce(const Case& item);
  absl::Status RunTurn(const Case& item);
  absl::Status Settle(const Case& item);
  absl::Status RunChecked(Case& item);
  absl::Status Look(Case& item);
  absl::Status WarmUp(Case& item, int64_t& call_ns);
  absl::Status ChooseCalls(std::vector<Case>& cases, const std::vector<int64_t>& call_ns);
  absl::Status TakeTurns(std::vector<Case>& cases);
  absl::Status Gather(std::vector<Case>& cases, std::vector<Samples>& samples);
  absl::Status RequireRight(const std::vector<Case>& cases);
  void Report(const std::vector<Case>& cases, const std::vector<Samples>& samples);

  // The host's side of `data`, and to and from the GPU what stands there.
  bool on_gpu() const { return !device_->host_reads_memory(); }
  Span Seen(Span data) const { return on_gpu() ? Span{mirror_.data(), data.count, data.type} : data; }
  absl::Status Upload(Span data) {
    if (!on_gpu()) return absl::OkStatus();
    stream_->Copy(data.data, mirror_.data(), data.bytes());
    return stream_->Synchronize();
  }
  absl::Status Download(Span data) {
    if (!on_gpu()) return absl::OkStatus();
    stream_->Copy(mirror_.data(), data.data, data.bytes());
    return stream_->Synchronize();
  }
  absl::Status PoisonBuffer(Span data) {
    Poison(Seen(data));
    return Upload(data);
  }
  absl::Status FillBuffer(const TestValues& values, size_t first, Span data) {
    values.Fill(rank_, first, Seen(data));
    return Upload(data);
  }

  // A barrier over all ranks, in no group that is timed where that can be.
  absl::Status Meet() {
    if (barrier_ != nullptr) return barrier_->Wait();
    if (groups_.empty()) return rendezvous_.Exchange("bench meeting", "").status();
    PSRING_RETURN_IF_ERROR(groups_.begin()->second->Barrier(*stream_));
    return stream_->Synchronize();
  }

  std::string What(const Case& item) const {
    if (item.is_limit) return absl::StrCat("the limit '", Name(item.limit), "', ", item.bytes, " bytes");
    return absl::StrCat(Describe(options_.combinations[item.combination]), ", ", item.bytes, " bytes of ",
                        Name(item.call.type),
                        Reduces(item.collective) ? absl::StrCat(", ", Name(item.call.op)) : "",
                        item.call.placement == Placement::kInPlace ? ", in place" : ", out of place");
  }

  absl::Status Explain(const Case& item, const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat(What(item), ": ", status.message()));
  }

  const BenchOptions& options_;
  Rendezvous& rendezvous_;
  const BenchReport& report_;
  const int rank_, ranks_;
  const std::unique_ptr<Device> host_;
  std::unique_ptr<Device> device_;  // whose memory is measured
  std::unique_ptr<Stream> stream_;
  Buffer mirror_;  // of a GPU's buffer, as the host sees it
  // Before the groups: memory that a group knows outlives it.
  std::array<Buffers, std::size(kBufferKinds)> buffers_;  // by kind; those that nobody needs are empty
  std::unique_ptr<HostBarrier> barrier_;
  std::unique_ptr<HostLimits> limits_;
  std::map<std::tuple<std::string, std::string, std::string>, std::unique_ptr<ProcessGroup>> groups_;
  std::vector<ProcessGroup*> group_of_;  // by combination
};

// As programs have it: page-aligned, on ordinary pages.
absl::StatusOr<Buffer> AllocatePlain(size_t bytes) {
  void* const data = std::aligned_alloc(4096, (bytes / 4096 + 1) * 4096);
  if (data == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  return Buffer(data, bytes, [](void* p) { std::free(p); });
}

absl::Status Bench::OpenDevice() {
  PSRING_ASSIGN_OR_RETURN(device_, MakeDevice(DeviceOfRank(options_.device, rendezvous_.options().local_rank,
                                                           CudaDeviceCount())));
  stream_ = device_->NewStream(StreamKind::kCompute, "bench");
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> units,
                          rendezvous_.Exchange("bench device", device_->unit()));
  for (int rank = 0; rank < ranks_ && !options_.oversubscribe; ++rank) {
    if (units[rank].empty() ||
        std::find(units.begin(), units.begin() + rank, units[rank]) == units.begin() + rank) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank,
                     " would share its GPU with another; start fewer ranks, or give --oversubscribe (shows "
                     "that it works, not how fast)"));
  }
  return absl::OkStatus();
}

absl::Status Bench::AllocateBuffers() {
  const size_t bytes = std::max<size_t>(64, *std::max_element(options_.bytes.begin(), options_.bytes.end()));
  if (on_gpu()) {
    PSRING_ASSIGN_OR_RETURN(mirror_, device_->AllocateOnHost(bytes));
  }
  for (const BufferKind kind : kBufferKinds) {
    const bool wanted = (options_.limits && kind != BufferKind::kHuge) ||
                        std::any_of(options_.combinations.begin(), options_.combinations.end(),
                                    [&](const Combination& c) { return c.buffers == kind; });
    if (!wanted) continue;
    for (Buffer* buffer : {&BuffersOf(kind).send, &BuffersOf(kind).receive}) {
      PSRING_ASSIGN_OR_RETURN(*buffer, kind == BufferKind::kShared ? device_->AllocateShared(bytes)
                                       : kind == BufferKind::kHuge || on_gpu() ? device_->Allocate(bytes)
                                                                               : AllocatePlain(bytes));
      PSRING_RETURN_IF_ERROR(
          PoisonBuffer(buffer->span()));  // a page that nobody has touched is not there yet
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ProcessGroup*> Bench::GroupOf(const Combination& combination) {
  std::unique_ptr<ProcessGroup>& group =
      groups_[{combination.backend, combination.algorithm, combination.transport}];
  if (group == nullptr) {
    GroupOptions options = options_.group;
    options.backend = combination.backend;
    options.algorithm = combination.algorithm;
    options.transport = combination.transport;
    options.gpu = device_->gpu();
    absl::StatusOr<std::unique_ptr<ProcessGroup>> made = MakeProcessGroup(rendezvous_, options);
    if (!made.ok()) {
      groups_.erase({combination.backend, combination.algorithm, combination.transport});
      return absl::Status(made.status().code(),
                          absl::StrCat(Describe(combination), ": ", made.status().message()));
    }
    group = *std::move(made);
  }
  if (on_gpu() && !group->info().on_gpu) {
    return absl::FailedPreconditionError(absl::StrCat(
        Describe(combination), " works in the host's memory",
        group->info().through_host.empty() ? "" : absl::StrCat(", since ", group->info().through_host),
        "; leave --device out"));
  }
  return group.get();
}

absl::Status Bench::SetUp() {
  PSRING_RETURN_IF_ERROR(OpenDevice());
  PSRING_RETURN_IF_ERROR(AllocateBuffers());
  PSRING_ASSIGN_OR_RETURN(const bool one_host, OnOneHost(rendezvous_));
  if (one_host) {
    PSRING_ASSIGN_OR_RETURN(barrier_, HostBarrier::Make(rendezvous_, *host_, options_.group.timeout));
  }
  for (const Combination& combination : options_.combinations) {
    PSRING_ASSIGN_OR_RETURN(group_of_.emplace_back(), GroupOf(combination));
    if (combination.buffers != BufferKind::kShared) continue;
    for (const Buffer* buffer :
         {&BuffersOf(BufferKind::kShared).send, &BuffersOf(BufferKind::kShared).receive}) {
      PSRING_RETURN_IF_ERROR(group_of_.back()->Register(*buffer));
    }
  }
  if (options_.limits) {
    if (!one_host) return absl::FailedPreconditionError("limits are of one host; these ranks are on several");
    PSRING_ASSIGN_OR_RETURN(limits_,
                            HostLimits::Make(rendezvous_, *barrier_, BuffersOf(BufferKind::kPrivate).send,
                                             BuffersOf(BufferKind::kPrivate).receive,
                                             BuffersOf(BufferKind::kShared).receive, options_.group.timeout));
  }
  // Only now: the backends' own threads go where they like.
  if (one_host && options_.pin) KeepToOwnCore(rank_, ranks_);
  return ReportStart();
}

absl::Status Bench::ReportStart() {
  PSRING_ASSIGN_OR_RETURN(
      const std::vector<std::string> cards,
      rendezvous_.Exchange("bench ranks", absl::StrCat(getpid(), " ", device_->name(), " ", HostName())));
  if (rank_ != 0) return absl::OkStatus();
  std::vector<RankInfo> ranks;
  for (const std::string& card : cards) {
    const std::vector<std::string> fields = absl::StrSplit(card, absl::MaxSplits(' ', 2));
    RankInfo& info = ranks.emplace_back();
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &info.pid)) continue;
    info.device = fields[1];
    info.host = fields[2];
  }
  std::vector<GroupInfo> groups;
  for (const ProcessGroup* group : group_of_) groups.push_back(group->info());
  report_.on_start(ranks, groups);
  return absl::OkStatus();
}

absl::Status Bench::MeasureAll() {
  const size_t all = options_.types.size() * options_.ops.size() * options_.bytes.size();
  size_t done = 0;
  for (const DType type : options_.types) {
    for (size_t op = 0; op < options_.ops.size(); ++op) {
      for (const size_t bytes : options_.bytes) {
        PSRING_RETURN_IF_ERROR(MeasureSize(type, options_.ops[op], op == 0, bytes));
        if (rank_ == 0) report_.on_progress(++done, all);
      }
    }
  }
  return absl::OkStatus();
}

std::vector<Case> Bench::CasesOf(DType type, ReduceOp op, bool first_op, size_t bytes) {
  std::vector<Case> cases;
  std::vector<Collective> collectives;
  for (size_t i = 0; i < options_.combinations.size(); ++i) {
    const Combination& combination = options_.combinations[i];
    const Collective collective = combination.collective;
    // What has no reduction is measured once, not once for every reduction.
    if (!Reduces(collective) && !first_op) continue;
    if (std::find(collectives.begin(), collectives.end(), collective) == collectives.end()) {
      collectives.push_back(collective);
    }
    for (const Placement placement : {Placement::kOutOfPlace, Placement::kInPlace}) {
      Case& item = cases.emplace_back();
      item.combination = i;
      item.collective = collective;
      item.group = group_of_[i];
      item.call = {.collective = collective,
                   .placement = placement,
                   .type = type,
                   .op = op,
                   .root = options_.root,
                   .shape = ShapeOf(collective, type, bytes, ranks_),
                   .buffers = BuffersOf(combination.buffers).view()};
      item.bytes = item.call.shape.elements * SizeOf(type);
    }
  }
  if (limits_ == nullptr) return cases;
  if (options_.combinations.empty()) collectives = {Collective::kAllReduce};
  for (const Collective collective : collectives) {
    for (const LimitKind kind : {LimitKind::kShared, LimitKind::kTcp, LimitKind::kUnix, LimitKind::kCopy}) {
      Case& item = cases.emplace_back();
      item.is_limit = true;
      item.limit = kind;
      item.collective = collective;
      item.bytes = ShapeOf(collective, type, bytes, ranks_).elements * SizeOf(type);
    }
  }
  return cases;
}

absl::Status Bench::RunOnce(const Case& item) {
  if (item.is_limit) return Explain(item, limits_->Run(item.limit, item.collective, item.bytes));
  return Explain(item, psring::Run(item.call, *item.group, *stream_));
}

// On a GPU as nccl-tests does it: all are enqueued, and the last is waited for.
absl::Status Bench::RunTurn(const Case& item) {
  for (int64_t call = 0; call < item.calls; ++call) {
    PSRING_RETURN_IF_ERROR(on_gpu() ? Explain(item, Enqueue(item.call, *item.group, *stream_))
                                    : RunOnce(item));
  }
  return on_gpu() ? Explain(item, stream_->Synchronize()) : absl::OkStatus();
}

// A rank that has its result may still owe others theirs, and MPI moves bytes only inside its calls: nobody
// goes on to what is not the group's before all are through. Not timed.
absl::Status Bench::Settle(const Case& item) {
  if (item.is_limit) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(Explain(item, item.group->Barrier(*stream_)));
  return Explain(item, stream_->Synchronize());
}

// What came out, of a call whose input was as Fill leaves it.
absl::Status Bench::Look(Case& item) {
  const Call& call = item.call;
  const TestValues values(call.type, ranks_);
  const size_t count = call.shape.count;
  const Span there{call.buffers.receive, call.shape.elements, call.type};
  PSRING_RETURN_IF_ERROR(Explain(item, Download(there)));
  const ConstSpan receive = Seen(there);
  const size_t own = static_cast<size_t>(rank_) * count;
  std::vector<std::pair<size_t, Mismatch>> parts;  // where a part begins
  switch (call.collective) {
    case Collective::kAllReduce:
      parts = {{0, values.CompareReduced(call.op, 0, receive)}};
      break;
    case Collective::kReduceScatter: {
      const size_t at = call.placement == Placement::kInPlace ? own : 0;
      parts = {{at, values.CompareReduced(call.op, own, receive.Slice(at, count))}};
      break;
    }
    case Collective::kAllGather:
      for (int from = 0; from < ranks_; ++from) {
        const size_t at = static_cast<size_t>(from) * count;
        parts.push_back({at, values.Compare(from, at, receive.Slice(at, count))});
      }
      break;
    case Collective::kBroadcast:
      parts = {{0, values.Compare(call.root, 0, receive)}};
      break;
  }
  for (auto& [at, part] : parts) {
    if (part.wrong == 0) continue;
    part.first += at;
    if (item.mismatch.wrong == 0) item.mismatch = {0, part.first, part.got, part.wanted};
    item.mismatch.wrong += part.wrong;
  }
  return absl::OkStatus();
}

absl::Status Bench::RunChecked(Case& item) {
  const Call& call = item.call;
  const TestValues values(call.type, ranks_);
  for (int i = 0; i < options_.checked_calls; ++i) {
    const Span receive{call.buffers.receive, call.shape.elements, call.type};
    PSRING_RETURN_IF_ERROR(PoisonBuffer(receive));
    if (call.placement == Placement::kInPlace) {
      const size_t own = static_cast<size_t>(rank_) * call.shape.count;
      if (call.collective == Collective::kAllGather) {
        PSRING_RETURN_IF_ERROR(FillBuffer(values, own, receive.Slice(own, call.shape.count)));
      } else if (call.collective != Collective::kBroadcast || rank_ == call.root) {
        PSRING_RETURN_IF_ERROR(FillBuffer(values, 0, receive));
      }
    }
    PSRING_RETURN_IF_ERROR(Explain(item, Meet()));
    PSRING_RETURN_IF_ERROR(RunOnce(item));
    PSRING_RETURN_IF_ERROR(Settle(item));
    PSRING_RETURN_IF_ERROR(Look(item));
  }
  return absl::OkStatus();
}

// Also finds out how long a call takes when nothing comes between: the least time of them all.
absl::Status Bench::WarmUp(Case& item, int64_t& call_ns) {
  PSRING_RETURN_IF_ERROR(Explain(item, Meet()));
  call_ns = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < std::max(1, options_.warmup_calls); ++i) {
    const int64_t begin = MonotonicNanos();
    PSRING_RETURN_IF_ERROR(RunOnce(item));
    call_ns = std::min(call_ns, MonotonicNanos() - begin);
  }
  return Settle(item);
}

// All ranks must make the same number of calls: the slowest rank's time counts.
absl::Status Bench::ChooseCalls(std::vector<Case>& cases, const std::vector<int64_t>& call_ns) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          rendezvous_.Exchange("bench warm", absl::StrJoin(call_ns, " ")));
  std::vector<int64_t> slowest(cases.size(), 1);
  for (const std::string& text : all) {
    const std::vector<std::string> fields = absl::StrSplit(text, ' ', absl::SkipEmpty());
    for (size_t i = 0; i < std::min(fields.size(), cases.size()); ++i) {
      int64_t ns = 0;
      if (absl::SimpleAtoi(fields[i], &ns)) slowest[i] = std::max(slowest[i], ns);
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    cases[i].calls =
        options_.calls_per_turn > 0
            ? options_.calls_per_turn
            : std::clamp<int64_t>(absl::ToInt64Nanoseconds(kTurn) / slowest[i], 1, kMostCallsPerTurn);
  }
  return absl::OkStatus();
}

absl::Status Bench::TakeTurns(std::vector<Case>& cases) {
  std::vector<size_t> order(cases.size());
  std::iota(order.begin(), order.end(), 0);
  for (int turn = 0; turn < options_.turns; ++turn) {
    // Another order every turn, the same on every rank: nobody always finds the caches as the same other
    // left them.
    std::minstd_rand random(static_cast<uint32_t>(turn) + 1);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    const bool last = turn + 1 == options_.turns;
    for (const size_t index : order) {
      Case& item = cases[index];
      // What stands in the caches, and who is awake, is then what this combination leaves, not another's: a
      // figure does not depend on what else is measured.
      PSRING_RETURN_IF_ERROR(Explain(item, Meet()));
      PSRING_RETURN_IF_ERROR(RunOnce(item));
      PSRING_RETURN_IF_ERROR(Settle(item));
      PSRING_RETURN_IF_ERROR(Explain(item, Meet()));
      const int64_t begin = MonotonicNanos();
      PSRING_RETURN_IF_ERROR(RunTurn(item));
      item.turn_ns.push_back(MonotonicNanos() - begin);
      PSRING_RETURN_IF_ERROR(Settle(item));
      // Out of place the input is what it was, however many calls there were.
      if (last && !item.is_limit && options_.checked_calls > 0 &&
          item.call.placement == Placement::kOutOfPlace) {
        PSRING_RETURN_IF_ERROR(Look(item));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Bench::RequireRight(const std::vector<Case>& cases) {
  std::string mine;
  for (size_t i = 0; i < cases.size() && mine.empty(); ++i) {
    const Mismatch& mismatch = cases[i].mismatch;
    if (mismatch.wrong == 0) continue;
    mine =
        absl::StrFormat("%s: rank %d has %d wrong elements; the first is element %d: %g, not %g",
                        What(cases[i]), rank_, mismatch.wrong, mismatch.first, mismatch.got, mismatch.wanted);
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all, rendezvous_.Exchange("bench wrong", mine));
  for (const std::string& text : all) {
    if (!text.empty()) return absl::DataLossError(text);
  }
  return absl::OkStatus();
}

absl::Status Bench::Gather(std::vector<Case>& cases, std::vector<Samples>& samples) {
  std::string mine;
  for (const Case& item : cases) absl::StrAppend(&mine, absl::StrJoin(item.turn_ns, " "), " ");
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all, rendezvous_.Exchange("bench times", mine));
  if (rank_ != 0) return absl::OkStatus();
  std::vector<std::vector<double>> ns;  // by rank, then by case and turn
  const size_t turns = static_cast<size_t>(options_.turns);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<double>& row = ns.emplace_back();
    for (absl::string_view field : absl::StrSplit(all[rank], ' ', absl::SkipEmpty())) {
      if (!absl::SimpleAtod(field, &row.emplace_back())) row.clear();
    }
    if (row.size() != cases.size() * turns) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " told ", row.size(), " times, not ", cases.size() * turns));
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    Samples& result = samples.emplace_back();
    result.calls_per_turn = cases[i].calls;
    result.wrong = !cases[i].is_limit && options_.checked_calls > 0 ? 0 : -1;
    for (size_t turn = 0; turn < turns; ++turn) {
      double sum = 0, least = ns[0][i * turns + turn], most = least;
      for (const std::vector<double>& row : ns) {
        const double time = row[i * turns + turn];
        sum += time;
        least = std::min(least, time);
        most = std::max(most, time);
      }
      const double whole = options_.across == AcrossRanks::kRankZero ? ns[0][i * turns + turn]
                           : options_.across == AcrossRanks::kMean   ? sum / ranks_
                           : options_.across == AcrossRanks::kMin    ? least
                                                                     : most;
      result.times_us.push_back(whole / 1e3 / static_cast<double>(cases[i].calls));
    }
  }
  return absl::OkStatus();
}

void Bench::Report(const std::vector<Case>& cases, const std::vector<Samples>& samples) {
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& item = cases[i];
    if (item.is_limit) {
      report_.on_limit({item.limit, item.collective, item.bytes, samples[i]});
    } else if (item.call.placement == Placement::kOutOfPlace) {  // the other placement follows it
      report_.on_row({item.combination, item.call.type, item.call.op, item.bytes, item.call.shape.count,
                      samples[i], samples[i + 1]});
    }
  }
}

absl::Status Bench::MeasureSize(DType type, ReduceOp op, bool first_op, size_t bytes) {
  std::vector<Case> cases = CasesOf(type, op, first_op, bytes);
  const TestValues values(type, ranks_);
  for (const Buffers& buffers : buffers_) {
    if (buffers.send.data() == nullptr) continue;
    PSRING_RETURN_IF_ERROR(FillBuffer(values, 0, Span{buffers.send.data(), bytes / SizeOf(type), type}));
  }
  if (options_.checked_calls > 0) {
    for (Case& item : cases) {
      if (!item.is_limit) PSRING_RETURN_IF_ERROR(RunChecked(item));
    }
    PSRING_RETURN_IF_ERROR(RequireRight(cases));
  }
  std::vector<int64_t> call_ns(cases.size());
  for (size_t i = 0; i < cases.size(); ++i) PSRING_RETURN_IF_ERROR(WarmUp(cases[i], call_ns[i]));
  PSRING_RETURN_IF_ERROR(ChooseCalls(cases, call_ns));
  PSRING_RETURN_IF_ERROR(TakeTurns(cases));
  if (options_.checked_calls > 0) PSRING_RETURN_IF_ERROR(RequireRight(cases));
  std::vector<Samples> samples;
  PSRING_RETURN_IF_ERROR(Gather(cases, samples));
  if (rank_ == 0) Report(cases, samples);
  return absl::OkStatus();
}

}  // namespace

bool Reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter;
}

absl::Status CheckBenchOptions(const BenchOptions& options) {
  if (options.combinations.empty() && !options.limits) {
    return absl::InvalidArgumentError("there is nothing to measure: name a --combination, or --limits");
  }
  if (options.bytes.empty()) return absl::InvalidArgumentError("--bytes names no size");
  if (options.device != "cpu" && options.limits) {
    return absl::InvalidArgumentError("--limits are of the host's memory; leave --device or --limits out");
  }
  for (const Combination& combination : options.combinations) {
    if (options.device != "cpu" && combination.buffers == BufferKind::kHuge) {
      return absl::InvalidArgumentError(
          "huge pages are of the host's memory; with --device cuda there are private and shared buffers");
    }
    GroupOptions group = options.group;
    group.backend = combination.backend;
    group.algorithm = combination.algorithm;
    group.transport = combination.transport;
    PSRING_RETURN_IF_ERROR(CheckGroupOptions(group, combination.collective));
  }
  return absl::OkStatus();
}

absl::Status RunBench(const BenchOptions& options, Rendezvous& rendezvous, const BenchReport& report) {
  const int ranks = rendezvous.options().world_size;
  if (ranks > 64) {
    return absl::InvalidArgumentError(absl::StrCat("64 ranks at most; WORLD_SIZE is ", ranks));
  }
  if (options.root >= ranks) {
    return absl::InvalidArgumentError(absl::StrCat("--root is ", options.root, " of ", ranks, " ranks"));
  }
  PSRING_RETURN_IF_ERROR(CheckBenchOptions(options));
  return Bench(options, rendezvous, report).Run();
}

}  // namespace psring
