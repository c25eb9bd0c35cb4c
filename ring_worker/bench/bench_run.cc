#include "ring_worker/bench/bench_run.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/measure/trace.h"
#include "common/net/host_identity.h"
#include "common/text/peer_text.h"
#include "ring_worker/bench/bench_setup.h"
#include "ring_worker/bench/bench_values.h"

namespace psring {
namespace {

// A combination with one placement, or a limit of the host.
struct BenchCase {
  std::string description;  // for error messages
  bool is_limit = false;
  size_t combination = 0;
  Call call;                      // not for limits
  ProcessGroup* group = nullptr;  // not for limits
  LimitKind limit = LimitKind::kCopy;
  Collective collective = Collective::kAllReduce;
  uint64_t bytes = 0;
  int64_t calls = 1;  // in a turn
  std::vector<int64_t> turn_ns;
  Mismatch mismatch;  // of this rank
};

std::string DescribeCase(const Combination& combination, const BenchCase& item) {
  return absl::StrCat(Describe(combination), ", ", item.bytes, " bytes of ", Name(item.call.type),
                      Reduces(item.collective) ? absl::StrCat(", ", Name(item.call.op)) : "",
                      item.call.placement == Placement::kInPlace ? ", in place" : ", out of place");
}

// As in nccl-tests. Where it has the call in place, that case follows the one out of place.
bool HasInPlace(Collective collective) { return collective != Collective::kAllToAll; }

// `first_op`: `op` is the first of the options' reductions. Collectives without a reduction are measured only
// then.
std::vector<BenchCase> CasesOf(const BenchSetup& setup, DType type, ReduceOp op, bool first_op,
                               size_t bytes) {
  const BenchOptions& options = setup.options();
  std::vector<BenchCase> cases;
  std::vector<Collective> collectives;
  for (size_t i = 0; i < options.combinations.size(); ++i) {
    const Combination& combination = options.combinations[i];
    const Collective collective = combination.collective;
    if (!Reduces(collective) && !first_op) continue;
    if (std::find(collectives.begin(), collectives.end(), collective) == collectives.end()) {
      collectives.push_back(collective);
    }
    for (const Placement placement : {Placement::kOutOfPlace, Placement::kInPlace}) {
      if (placement == Placement::kInPlace && !HasInPlace(collective)) continue;
      BenchCase& item = cases.emplace_back();
      item.combination = i;
      item.collective = collective;
      item.group = setup.group(i);
      item.call = {.collective = collective,
                   .placement = placement,
                   .type = type,
                   .op = op,
                   .root = options.root,
                   .shape = ShapeOf(collective, type, bytes, setup.ranks()),
                   .buffers = setup.buffers(combination.buffers)};
      item.bytes = item.call.shape.elements * SizeOf(type);
      item.description = DescribeCase(combination, item);
    }
  }
  if (setup.limits() == nullptr) return cases;
  if (options.combinations.empty()) collectives = {Collective::kAllReduce};
  for (const Collective collective : collectives) {
    for (const LimitKind kind : {LimitKind::kShared, LimitKind::kTcp, LimitKind::kUnix, LimitKind::kCopy}) {
      BenchCase& item = cases.emplace_back();
      item.is_limit = true;
      item.limit = kind;
      item.collective = collective;
      item.bytes = ShapeOf(collective, type, bytes, setup.ranks()).elements * SizeOf(type);
      item.description = absl::StrCat("the limit '", Name(kind), "', ", item.bytes, " bytes");
    }
  }
  return cases;
}

// The order of a benchmark: for each type, reduction and size the cases are checked, warmed up and timed.
class Bench {
 public:
  Bench(const BenchOptions& options, Rendezvous& rendezvous, BenchOutput& output)
      : setup_(options, rendezvous), output_(output) {}

  absl::Status Run() {
    absl::Status status = setup_.Open();
    if (status.ok()) status = ReportStart();
    if (status.ok()) status = MeasureAll();
    // No rank leaves while another can still fail: its error would be lost.
    if (status.ok()) status = setup_.Meet();
    if (!status.ok()) setup_.Abort(status);
    return status;
  }

 private:
  const BenchOptions& options() const { return setup_.options(); }
  absl::Status ReportStart();
  absl::Status MeasureAll();
  absl::Status MeasureSize(DType type, ReduceOp op, bool first_op, size_t bytes);

  // Of one case:
  absl::Status RunOnce(const BenchCase& item);
  absl::Status Settle(const BenchCase& item);
  // Writes the input of the next call and overwrites the output buffer. Not for limits.
  absl::Status PrepareInput(const BenchCase& item);
  // Compares the output of a call after PrepareInput; records a mismatch in the case.
  absl::Status CheckOutput(BenchCase& item);
  absl::Status RunChecked(BenchCase& item);
  absl::StatusOr<int64_t> WarmUp(const BenchCase& item);
  absl::Status TakeTurn(BenchCase& item);

  // Collective:
  absl::Status ChooseCalls(const std::vector<int64_t>& call_ns, std::vector<BenchCase>& cases);
  absl::Status TakeTurns(std::vector<BenchCase>& cases);
  // DataLoss names the first mismatch of the lowest rank that has one.
  absl::Status RequireRight(const std::vector<BenchCase>& cases);
  absl::Status Report(const std::vector<BenchCase>& cases);

  BenchSetup setup_;
  BenchOutput& output_;
};

absl::Status Bench::ReportStart() {
  PSRING_ASSIGN_OR_RETURN(
      const std::vector<std::string> ranks,
      setup_.rendezvous().Exchange(
          "bench ranks", RankText({.host = HostName(), .pid = getpid(), .device = setup_.device().name()})));
  if (setup_.rank() != 0) return absl::OkStatus();
  std::vector<MeasuredCombination> measured;
  for (size_t i = 0; i < options().combinations.size(); ++i) {
    const GroupInfo& group = setup_.group(i)->info();
    Combination made = options().combinations[i];
    made.algorithm = group.algorithm;  // of all-reduces, perhaps
    for (const BackendRow& backend : Backends()) {
      const std::vector<std::string> offered = backend.algorithms(made.collective);
      if (backend.name != made.backend || offered.empty()) continue;
      if (!absl::c_linear_search(offered, BaseAlgorithm(made.algorithm))) made.algorithm = offered.front();
    }
    made.transport = group.transport;
    measured.push_back({.title = Describe(made),
                        .collective = Name(made.collective),
                        .backend = group.backend,
                        .algorithm = made.algorithm,
                        .transport = made.transport,
                        .reduces = Reduces(made.collective),
                        .root = made.collective == Collective::kBroadcast ? options().root : -1});
  }
  output_.Start(RanksFrom(ranks), measured);
  return absl::OkStatus();
}

absl::Status Bench::MeasureAll() {
  const size_t all = options().types.size() * options().ops.size() * options().bytes.size();
  size_t done = 0;
  for (const DType type : options().types) {
    for (size_t op = 0; op < options().ops.size(); ++op) {
      for (const size_t bytes : options().bytes) {
        PSRING_RETURN_IF_ERROR(MeasureSize(type, options().ops[op], op == 0, bytes));
        if (setup_.rank() == 0) output_.Progress(++done, all);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Bench::PrepareInput(const BenchCase& item) {
  const Call& call = item.call;
  const TestValues values(call.type, setup_.ranks());
  const Span receive{call.buffers.receive, call.shape.elements, call.type};
  PSRING_RETURN_IF_ERROR(setup_.PoisonBuffer(receive));
  if (call.placement == Placement::kOutOfPlace) return absl::OkStatus();
  const size_t own = static_cast<size_t>(setup_.rank()) * call.shape.count;
  if (call.collective == Collective::kAllGather) {
    return setup_.FillBuffer(values, own, receive.Slice(own, call.shape.count));
  }
  if (call.collective == Collective::kBroadcast && setup_.rank() != call.root) return absl::OkStatus();
  return setup_.FillBuffer(values, 0, receive);
}

absl::Status Bench::CheckOutput(BenchCase& item) {
  const Call& call = item.call;
  const TestValues values(call.type, setup_.ranks());
  const size_t count = call.shape.count;
  const Span there{call.buffers.receive, call.shape.elements, call.type};
  PSRING_RETURN_IF_ERROR(setup_.Download(there));
  const ConstSpan receive = setup_.Seen(there);
  const size_t own = static_cast<size_t>(setup_.rank()) * count;
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
    case Collective::kAllToAll:
      for (int from = 0; from < setup_.ranks(); ++from) {
        const size_t at = static_cast<size_t>(from) * count;
        const size_t first = call.collective == Collective::kAllToAll ? own : at;  // in the sender's input
        parts.push_back({at, values.Compare(from, first, receive.Slice(at, count))});
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

absl::Status Bench::RequireRight(const std::vector<BenchCase>& cases) {
  std::string mine;
  for (size_t i = 0; i < cases.size() && mine.empty(); ++i) {
    const Mismatch& mismatch = cases[i].mismatch;
    if (mismatch.wrong == 0) continue;
    mine = absl::StrFormat("%s: rank %d has %d wrong elements; the first is element %d: %g, not %g",
                           cases[i].description, setup_.rank(), mismatch.wrong, mismatch.first, mismatch.got,
                           mismatch.wanted);
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          setup_.rendezvous().Exchange("bench wrong", mine));
  for (const std::string& text : all) {
    if (!text.empty()) return absl::DataLossError(PeerText(text));
  }
  return absl::OkStatus();
}

absl::Status Bench::RunOnce(const BenchCase& item) {
  if (item.is_limit) return setup_.limits()->Run(item.limit, item.collective, item.bytes);
  PSRING_RETURN_IF_ERROR(Enqueue(item.call, *item.group, setup_.stream()));
  return setup_.stream().Synchronize();
}

// A rank that has its result may still have data to send, and MPI moves bytes only inside its calls. So all
// ranks finish here before they use anything but the group. Not timed.
absl::Status Bench::Settle(const BenchCase& item) {
  if (item.is_limit) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(item.group->Barrier(setup_.stream()));
  return setup_.stream().Synchronize();
}

absl::Status Bench::RunChecked(BenchCase& item) {
  for (int i = 0; i < options().checked_calls; ++i) {
    PSRING_RETURN_IF_ERROR(PrepareInput(item));
    PSRING_RETURN_IF_ERROR(setup_.Meet());
    PSRING_RETURN_IF_ERROR(RunOnce(item));
    PSRING_RETURN_IF_ERROR(Settle(item));
    PSRING_RETURN_IF_ERROR(CheckOutput(item));
  }
  return absl::OkStatus();
}

// Also measures one call: the minimum of the warm-up calls.
absl::StatusOr<int64_t> Bench::WarmUp(const BenchCase& item) {
  PSRING_RETURN_IF_ERROR(setup_.Meet());
  int64_t call_ns = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < std::max(1, options().warmup_calls); ++i) {
    const int64_t begin = MonotonicNanos();
    PSRING_RETURN_IF_ERROR(RunOnce(item));
    call_ns = std::min(call_ns, MonotonicNanos() - begin);
  }
  PSRING_RETURN_IF_ERROR(Settle(item));
  return call_ns;
}

absl::Status Bench::TakeTurn(BenchCase& item) {
  // One call that is not timed: it puts caches and threads into the state that this case leaves, so that a
  // figure does not depend on what else is measured.
  PSRING_RETURN_IF_ERROR(setup_.Meet());
  PSRING_RETURN_IF_ERROR(RunOnce(item));
  PSRING_RETURN_IF_ERROR(Settle(item));
  PSRING_RETURN_IF_ERROR(setup_.Meet());
  const bool together = setup_.on_gpu() && !item.is_limit;
  const int64_t begin = MonotonicNanos();
  // On a GPU all calls are enqueued and then awaited together, as in nccl-tests.
  for (int64_t call = 0; call < item.calls; ++call) {
    PSRING_RETURN_IF_ERROR(together ? Enqueue(item.call, *item.group, setup_.stream()) : RunOnce(item));
  }
  if (together) PSRING_RETURN_IF_ERROR(setup_.stream().Synchronize());
  item.turn_ns.push_back(MonotonicNanos() - begin);
  PSRING_RETURN_IF_ERROR(Settle(item));
  // Out of place, the input is unchanged after any number of calls.
  const bool last = item.turn_ns.size() == static_cast<size_t>(options().turns);
  const bool checked =
      last && !item.is_limit && options().checked_calls > 0 && item.call.placement == Placement::kOutOfPlace;
  return checked ? CheckOutput(item) : absl::OkStatus();
}

absl::Status Bench::TakeTurns(std::vector<BenchCase>& cases) {
  std::vector<size_t> order(cases.size());
  std::iota(order.begin(), order.end(), 0);
  for (int turn = 0; turn < options().turns; ++turn) {
    // A different order every turn, the same on every rank, so that no case always follows the same one.
    std::minstd_rand random(static_cast<uint32_t>(turn) + 1);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    for (const size_t index : order) {
      PSRING_RETURN_IF_ERROR(Prefixed(TakeTurn(cases[index]), cases[index].description, ": "));
    }
  }
  return absl::OkStatus();
}

absl::Status Bench::Report(const std::vector<BenchCase>& cases) {
  std::string mine;
  std::vector<int64_t> calls;
  for (const BenchCase& item : cases) {
    absl::StrAppend(&mine, absl::StrJoin(item.turn_ns, " "), " ");
    calls.push_back(item.calls);
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          setup_.rendezvous().Exchange("bench times", mine));
  if (setup_.rank() != 0) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(std::vector<Samples> samples,
                          SamplesOf(all, calls, static_cast<size_t>(options().turns), options().across));
  const int wrong = options().checked_calls > 0 ? 0 : -1;  // an error ends the benchmark
  for (size_t i = 0; i < cases.size(); ++i) {
    const BenchCase& item = cases[i];
    if (item.is_limit) {
      output_.Limit({Name(item.limit), Name(item.collective), item.bytes, samples[i]});
      continue;
    }
    if (item.call.placement == Placement::kInPlace) continue;  // reported with the other one
    BenchRow row{item.combination, Name(item.call.type),  Name(item.call.op),
                 item.bytes,       item.call.shape.count, samples[i]};
    row.out_of_place.wrong = wrong;
    if (HasInPlace(item.collective)) {
      row.in_place = samples[i + 1];
      row.in_place.wrong = wrong;
    }
    output_.Row(row);
  }
  return absl::OkStatus();
}

absl::Status Bench::ChooseCalls(const std::vector<int64_t>& call_ns, std::vector<BenchCase>& cases) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          setup_.rendezvous().Exchange("bench warm", absl::StrJoin(call_ns, " ")));
  const std::vector<int64_t> calls = CallsPerTurn(all, cases.size(), options().calls_per_turn);
  for (size_t i = 0; i < cases.size(); ++i) cases[i].calls = calls[i];
  return absl::OkStatus();
}

absl::Status Bench::MeasureSize(DType type, ReduceOp op, bool first_op, size_t bytes) {
  std::vector<BenchCase> cases = CasesOf(setup_, type, op, first_op, bytes);
  const TestValues values(type, setup_.ranks());
  for (const BufferKind kind : kBufferKinds) {
    void* const send = setup_.buffers(kind).send;
    if (send == nullptr) continue;
    PSRING_RETURN_IF_ERROR(setup_.FillBuffer(values, 0, Span{send, bytes / SizeOf(type), type}));
  }
  if (options().checked_calls > 0) {
    for (BenchCase& item : cases) {
      if (!item.is_limit) PSRING_RETURN_IF_ERROR(Prefixed(RunChecked(item), item.description, ": "));
    }
    PSRING_RETURN_IF_ERROR(RequireRight(cases));
  }
  std::vector<int64_t> call_ns;
  for (const BenchCase& item : cases) {
    const absl::StatusOr<int64_t> warm = WarmUp(item);
    PSRING_RETURN_IF_ERROR(Prefixed(warm.status(), item.description, ": "));
    call_ns.push_back(*warm);
  }
  PSRING_RETURN_IF_ERROR(ChooseCalls(call_ns, cases));
  PSRING_RETURN_IF_ERROR(TakeTurns(cases));
  if (options().checked_calls > 0) PSRING_RETURN_IF_ERROR(RequireRight(cases));
  return Report(cases);
}

}  // namespace

GroupOptions OptionsOfGroup(const BenchOptions& options, const Combination& combination) {
  GroupOptions group = options.group;
  group.backend = combination.backend;
  group.algorithm = combination.algorithm;
  group.collective = combination.collective;
  group.transport = combination.transport;
  return group;
}

absl::Status CheckBenchOptions(const BenchOptions& options) {
  if (options.combinations.empty() && !options.limits) {
    return absl::InvalidArgumentError("there is nothing to measure: name a --combination, or --limits");
  }
  if (options.bytes.empty()) return absl::InvalidArgumentError("--bytes names no size");
  if (options.device != "cpu" && options.limits) {
    return absl::InvalidArgumentError("--limits are of the host's memory; omit --device or --limits");
  }
  for (const Combination& combination : options.combinations) {
    if (options.device != "cpu" && combination.buffers == BufferKind::kHuge) {
      return absl::InvalidArgumentError(
          "huge pages are of the host's memory; with --device cuda there are private and shared buffers");
    }
    PSRING_RETURN_IF_ERROR(CheckGroupOptions(OptionsOfGroup(options, combination), combination.collective));
  }
  return absl::OkStatus();
}

absl::Status RunBench(const BenchOptions& options, Rendezvous& rendezvous, BenchOutput& output) {
  const int ranks = rendezvous.options().world_size;
  for (const DType type : options.types) {
    const int most = TestValues::MostRanks(type);
    if (ranks <= most) continue;
    return InvalidArgument("WORLD_SIZE is ", ranks, ", but sums in ", Name(type), " are exact with at most ",
                           most, " ranks");
  }
  if (options.root >= ranks) {
    return InvalidArgument("--root is ", options.root, " of ", ranks, " ranks");
  }
  PSRING_RETURN_IF_ERROR(CheckBenchOptions(options));
  return Bench(options, rendezvous, output).Run();
}

}  // namespace psring
