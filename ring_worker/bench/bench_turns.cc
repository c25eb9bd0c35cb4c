#include "ring_worker/bench/bench_turns.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/text/peer_text.h"

namespace psring {
namespace {

std::string DescribeCase(const Combination& combination, const BenchCase& item) {
  return absl::StrCat(Describe(combination), ", ", item.bytes, " bytes of ", Name(item.call.type),
                      Reduces(item.collective) ? absl::StrCat(", ", Name(item.call.op)) : "",
                      item.call.placement == Placement::kInPlace ? ", in place" : ", out of place");
}

}  // namespace

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

absl::Status Explain(const BenchCase& item, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(item.description, ": ", status.message()));
}

absl::Status PrepareInput(BenchSetup& setup, const BenchCase& item) {
  const Call& call = item.call;
  const TestValues values(call.type, setup.ranks());
  const Span receive{call.buffers.receive, call.shape.elements, call.type};
  PSRING_RETURN_IF_ERROR(setup.PoisonBuffer(receive));
  if (call.placement == Placement::kOutOfPlace) return absl::OkStatus();
  const size_t own = static_cast<size_t>(setup.rank()) * call.shape.count;
  if (call.collective == Collective::kAllGather) {
    return setup.FillBuffer(values, own, receive.Slice(own, call.shape.count));
  }
  if (call.collective == Collective::kBroadcast && setup.rank() != call.root) return absl::OkStatus();
  return setup.FillBuffer(values, 0, receive);
}

absl::Status CheckOutput(BenchSetup& setup, BenchCase& item) {
  const Call& call = item.call;
  const TestValues values(call.type, setup.ranks());
  const size_t count = call.shape.count;
  const Span there{call.buffers.receive, call.shape.elements, call.type};
  PSRING_RETURN_IF_ERROR(Explain(item, setup.Download(there)));
  const ConstSpan receive = setup.Seen(there);
  const size_t own = static_cast<size_t>(setup.rank()) * count;
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
      for (int from = 0; from < setup.ranks(); ++from) {
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

absl::Status RequireRight(BenchSetup& setup, const std::vector<BenchCase>& cases) {
  std::string mine;
  for (size_t i = 0; i < cases.size() && mine.empty(); ++i) {
    const Mismatch& mismatch = cases[i].mismatch;
    if (mismatch.wrong == 0) continue;
    mine = absl::StrFormat("%s: rank %d has %d wrong elements; the first is element %d: %g, not %g",
                           cases[i].description, setup.rank(), mismatch.wrong, mismatch.first, mismatch.got,
                           mismatch.wanted);
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          setup.rendezvous().Exchange("bench wrong", mine));
  for (const std::string& text : all) {
    if (!text.empty()) return absl::DataLossError(PeerText(text));
  }
  return absl::OkStatus();
}

}  // namespace psring
