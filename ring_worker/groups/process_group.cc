#include "ring_worker/groups/process_group.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/errors.h"
#include "common/net/host_identity.h"
#include "common/net/random_token.h"
#include "common/text/translate.h"
#include "ring_worker/groups/groups.h"

namespace psring {
namespace {

absl::Status CountsDiffer(const char* what, size_t in, size_t out, int ranks) {
  return InvalidArgument(what, " of ", in, " elements into ", out, " with ", ranks, " ranks");
}

// Equal for processes that can share memory and a network: those of one kernel and network namespace.
std::string ThisHost() { return absl::StrCat(HostName(), " ", BootId(), " ", NamespaceId("net")); }

absl::StatusOr<const BackendRow*> FindBackend(const std::string& name) {
  std::vector<std::string> names;
  for (const BackendRow& row : Backends()) {
    if (row.name == name) return &row;
    names.push_back(row.name);
  }
  return absl::NotFoundError(Tr("unknown backend '$0'; use one of $1", name, absl::StrJoin(names, ", ")));
}

}  // namespace

Traffic LibraryGroup::DerivedTraffic(const CollectiveCall& call) const {
  // The whole buffer is the input of a reduce-scatter and the output of an all-gather.
  const uint64_t whole = std::max(call.in.bytes(), call.out.bytes());
  const uint64_t passes = call.collective == Collective::kAllReduce ? 2 : 1;
  const uint64_t bytes = passes * whole * uint64_t(size() - 1) / uint64_t(size());
  return {.payload_tx_bytes = bytes, .payload_rx_bytes = bytes};
}

void LibraryGroup::FinishOnHost(const CollectiveCall& call) {
  if (Reduces(call.collective) && call.op == ReduceOp::kMean) {
    cpu::Scale(call.out.type, call.out.count, call.out.data, 1.0f / float(size()));
  }
  Count(DerivedTraffic(call));
}

ProcessGroup::~ProcessGroup() = default;

absl::Status ProcessGroup::AllReduce(ConstSpan in, Span out, ReduceOp op, Stream& stream) {
  if (in.count != out.count || in.type != out.type) {
    return CountsDiffer("all-reduce", in.count, out.count, size());
  }
  return Enqueue({Collective::kAllReduce, in, out, op}, stream);
}

absl::Status ProcessGroup::AllReduceTogether(const std::vector<Span>& data, ReduceOp op, Stream& stream) {
  std::vector<CollectiveCall> calls;
  for (const Span& span : data) calls.push_back({Collective::kAllReduce, span, span, op});
  return EnqueueTogether(calls, stream);
}

absl::Status ProcessGroup::EnqueueTogether(const std::vector<CollectiveCall>& calls, Stream& stream) {
  for (const CollectiveCall& call : calls) PSRING_RETURN_IF_ERROR(Enqueue(call, stream));
  return absl::OkStatus();
}

absl::Status ProcessGroup::ReduceScatter(ConstSpan in, Span out, ReduceOp op, Stream& stream) {
  if (in.count != out.count * size() || in.type != out.type) {
    return CountsDiffer("reduce-scatter", in.count, out.count, size());
  }
  return Enqueue({Collective::kReduceScatter, in, out, op}, stream);
}

absl::Status ProcessGroup::AllGather(ConstSpan in, Span out, Stream& stream) {
  if (in.count * size() != out.count || in.type != out.type) {
    return CountsDiffer("all-gather", in.count, out.count, size());
  }
  return Enqueue({Collective::kAllGather, in, out}, stream);
}

absl::Status ProcessGroup::Broadcast(Span data, int root, Stream& stream) {
  if (root < 0 || root >= size()) {
    return InvalidArgument("broadcast from rank ", root, " of ", size());
  }
  return Enqueue({Collective::kBroadcast, data, data, ReduceOp::kSum, root}, stream);
}

absl::Status ProcessGroup::AllToAll(ConstSpan in, Span out, Stream& stream) {
  if (in.count != out.count || in.type != out.type || in.count % static_cast<size_t>(size()) != 0) {
    return CountsDiffer("all-to-all", in.count, out.count, size());
  }
  const auto address = [](const void* data) { return reinterpret_cast<uintptr_t>(data); };
  if (address(in.data) < address(out.data) + out.bytes() &&
      address(out.data) < address(in.data) + in.bytes()) {
    return absl::InvalidArgumentError("all-to-all into memory that overlaps its input");
  }
  return Enqueue({Collective::kAllToAll, in, out}, stream);
}

const std::vector<BackendRow>& Backends() {
  static const std::vector<BackendRow> backends = {NativeBackend(), GlooBackend(), MpiBackend(),
                                                   NcclBackend()};
  return backends;
}

absl::Status CheckGroupOptions(const GroupOptions& options, Collective collective) {
  PSRING_ASSIGN_OR_RETURN(const BackendRow* const backend, FindBackend(options.backend));
  if (!backend->available()) {
    return NotFound("this build has no ", backend->name, ": ", backend->missing);
  }
  const std::vector<std::string> algorithms = backend->algorithms(collective);
  if (algorithms.empty()) {
    return InvalidTr("$0 offers no $1", backend->name, Name(collective));
  }
  if (!options.algorithm.empty() && !absl::c_linear_search(algorithms, BaseAlgorithm(options.algorithm))) {
    return InvalidArgument("'", options.algorithm, "' is not an algorithm of ", backend->name, " for ",
                           Name(collective), "; it offers: ", absl::StrJoin(algorithms, ", "));
  }
  if (!absl::c_linear_search(backend->transports, options.transport)) {
    return InvalidArgument("'", options.transport, "' is not a transport of ", backend->name,
                           "; it has: ", absl::StrJoin(backend->transports, ", "));
  }
  return absl::OkStatus();
}

std::vector<int> RanksOfPart(const std::vector<int>& colors, const std::vector<int>& keys, int color) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < colors.size(); ++rank) {
    if (colors[rank] == color) ranks.push_back(static_cast<int>(rank));
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return keys[static_cast<size_t>(a)] < keys[static_cast<size_t>(b)]; });
  return ranks;
}

absl::Status ProcessGroup::MeetBy(Rendezvous& rendezvous) {
  rendezvous_ = &rendezvous;
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, rendezvous.Exchange("hosts", ThisHost()));
  const auto own = hosts.begin() + rank();
  info_.local_rank = static_cast<int>(std::count(hosts.begin(), own, *own));
  info_.local_size = static_cast<int>(std::count(hosts.begin(), hosts.end(), *own));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Split(int color, int key) {
  if (rendezvous_ == nullptr) {
    return absl::FailedPreconditionError("this group was made without a rendezvous; it cannot be split");
  }
  if (color < 0 && color != kNoColor) {
    return InvalidArgument("a color is at least 0, or kNoColor; not ", color);
  }
  // Rank 0's token names the part; no other split uses it.
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> cards,
                          rendezvous_->Exchange("split", absl::StrCat(color, " ", key, " ", RandomToken(8))));
  std::vector<int> colors, keys;
  std::string token;
  for (const std::string& card : cards) {
    const std::vector<std::string> fields = absl::StrSplit(card, ' ');
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &colors.emplace_back()) ||
        !absl::SimpleAtoi(fields[1], &keys.emplace_back())) {
      return Internal("a rank splits its group by '", card, "'");
    }
    if (token.empty()) token = fields[2];
  }
  std::unique_ptr<Rendezvous> part;
  if (color != kNoColor) {
    part = MakePartRendezvous(*rendezvous_, RanksOfPart(colors, keys, color),
                              absl::StrCat("split ", token, " ", color));
  }
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group, MakePart(part.get(), color, key));
  if (part == nullptr) return nullptr;
  PSRING_RETURN_IF_ERROR(group->MeetBy(*part));
  group->own_rendezvous_ = std::move(part);
  return group;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeProcessGroup(Rendezvous& rendezvous,
                                                               const GroupOptions& options) {
  PSRING_RETURN_IF_ERROR(CheckGroupOptions(options, options.collective));
  PSRING_ASSIGN_OR_RETURN(const BackendRow* const backend, FindBackend(options.backend));
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group, backend->make(rendezvous, options));
  PSRING_RETURN_IF_ERROR(group->MeetBy(rendezvous));
  return group;
}

}  // namespace psring
