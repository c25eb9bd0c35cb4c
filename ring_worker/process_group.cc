#include "ring_worker/process_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ring_worker/groups/groups.h"

namespace psring {
namespace {

absl::Status CountsDiffer(const char* what, size_t in, size_t out, int ranks) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " of ", in, " elements into ", out, " with ", ranks, " ranks"));
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<BackendRow> FindBackend(const std::string& name) {
  std::vector<std::string> names;
  for (const BackendRow& row : Backends()) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  return absl::NotFoundError(
      absl::StrCat("unknown backend '", name, "'; there are: ", absl::StrJoin(names, ", ")));
}

}  // namespace

absl::Status ProcessGroup::AllReduce(ConstSpan in, Span out, ReduceOp op, Stream& stream) {
  if (in.count != out.count || in.type != out.type) {
    return CountsDiffer("all-reduce", in.count, out.count, size());
  }
  return Enqueue({Collective::kAllReduce, in, out, op}, stream);
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
    return absl::InvalidArgumentError(absl::StrCat("broadcast from rank ", root, " of ", size()));
  }
  return Enqueue({Collective::kBroadcast, data, data, ReduceOp::kSum, root}, stream);
}

absl::Status ProcessGroup::Barrier(Stream& stream) { return EnqueueBarrier(stream); }

absl::Status ProcessGroup::Register(const Buffer&) { return absl::OkStatus(); }
void ProcessGroup::Unregister(const Buffer&) {}

const std::vector<BackendRow>& Backends() {
  static const std::vector<BackendRow> backends = {NativeBackend(), GlooBackend(), MpiBackend(),
                                                   NcclBackend()};
  return backends;
}

absl::Status CheckGroupOptions(const GroupOptions& options, Collective collective) {
  PSRING_ASSIGN_OR_RETURN(const BackendRow backend, FindBackend(options.backend));
  if (!backend.available) {
    return absl::NotFoundError(absl::StrCat("this build has no ", backend.name, ": ", backend.missing));
  }
  const std::vector<std::string> algorithms = backend.algorithms(collective);
  if (algorithms.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(backend.name, " offers no ", Name(collective)));
  }
  if (!options.algorithm.empty() && !Contains(algorithms, options.algorithm)) {
    return absl::InvalidArgumentError(absl::StrCat("'", options.algorithm, "' is no algorithm of ",
                                                   backend.name, " for ", Name(collective),
                                                   "; it offers: ", absl::StrJoin(algorithms, ", ")));
  }
  if (!Contains(backend.transports, options.transport)) {
    return absl::InvalidArgumentError(absl::StrCat("'", options.transport, "' is no transport of ",
                                                   backend.name,
                                                   "; it has: ", absl::StrJoin(backend.transports, ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeProcessGroup(Rendezvous& rendezvous,
                                                               const GroupOptions& options) {
  PSRING_RETURN_IF_ERROR(CheckGroupOptions(options, Collective::kAllReduce));
  if (options.backend == "gloo") return MakeGlooGroup(rendezvous, options);
  if (options.backend == "mpi") return MakeMpiGroup(rendezvous, options);
  if (options.backend == "nccl") return MakeNcclGroup(rendezvous, options);
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                          MakeMeshTransport(rendezvous, {.transport = options.transport,
                                                         .bind_host = options.bind_host,
                                                         .sockets_per_peer = options.sockets_per_peer,
                                                         .socket_buffer_bytes = options.socket_buffer_bytes,
                                                         .ranks_per_node = options.ranks_per_node,
                                                         .shaper = options.shaper}));
  return MakeScheduledGroup(std::move(transport), options);
}

}  // namespace psring
