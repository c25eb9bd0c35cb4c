// See fake_nccl.h. Symbols of the fake CUDA runtime are in the program that loads this library.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

extern "C" void psringFakeGpuDo(cudaStream_t stream, void (*work)(void*), void* argument,
                                void (*drop)(void*));
extern "C" bool psringFakeGpuCaptures(cudaStream_t stream);
extern char** environ;

namespace {

std::mutex mutex;  // guards everything below
std::condition_variable changed;
std::map<std::string, int> settings;
std::string calls;
int versions_asked = 0, ids = 0;

int Setting(const std::string& name) { return settings.contains(name) ? settings[name] : 0; }

// One collective of a communicator's ranks: the ranks that have arrived, on the GPU.
struct Meeting {
  std::vector<const float*> in;
  int here = 0, through = 0;
};
// A division into parts.
struct Split {
  int joined = 0;
  // By color: the members, by key and rank.
  std::map<int, std::map<std::pair<int, int>, ncclComm*>> parts;
};
struct Clique {
  int size = 0, joined = 0;
  std::map<int, std::shared_ptr<Meeting>> meetings;  // by the number of the communicator's call
  std::map<int, Split> splits;                       // by their number
  // What was sent and not received yet, by sender and receiver.
  std::map<std::pair<int, int>, std::deque<std::vector<float>>> sent;
};
std::map<std::string, std::shared_ptr<Clique>> cliques;  // by unique id

}  // namespace

struct ncclComm {
  int rank = 0;
  int logged_as = 0;  // the rank in the communicator that was not split from another
  std::shared_ptr<Clique> clique;
  int calls = 0, splits = 0, idle_asked = 0;
  const Split* split = nullptr;  // in progress
  bool aborted = false, hangs = false, finalizing = false;
  int recorded = 0;  // collectives in existing graphs
  // Not yet on their streams: a communicator that does not block starts collectives later, in another thread.
  std::vector<std::function<void()>> accepted;
};

namespace {

// Between group start and end. A thread belongs to one rank.
thread_local int depth = 0;
thread_local std::vector<std::function<void()>> grouped;
thread_local ncclComm* grouped_for = nullptr;
thread_local int rank_of_thread = -1;

void Note(int rank, const std::string& what) { calls += std::to_string(rank) + " " + what + "\n"; }

struct Work {
  ncclComm* comm;
  std::function<void()> does;
  bool recorded;
};

// Like a kernel of NCCL: waits on the GPU until all ranks have arrived or the communicator is aborted. With
// `root` all ranks get its values, otherwise the sum.
void Exchange(ncclComm* comm, const float* in, float* out, size_t count, int root = -1) {
  std::unique_lock lock(mutex);
  const int number = comm->calls++;
  auto& meeting_of = comm->clique->meetings[number];
  if (meeting_of == nullptr) meeting_of = std::make_shared<Meeting>();
  const std::shared_ptr<Meeting> meeting = meeting_of;
  meeting->in.resize(comm->clique->size);
  meeting->in[comm->rank] = in;
  ++meeting->here;
  changed.notify_all();
  const auto all = [&] { return meeting->here == comm->clique->size || comm->aborted; };
  changed.wait(lock, all);
  if (comm->aborted) return;
  std::vector<float> sum(count);
  for (int rank = 0; rank < comm->clique->size; ++rank) {
    if (root >= 0 && rank != root) continue;
    for (size_t i = 0; i < count; ++i) sum[i] += meeting->in[rank][i];
  }
  ++meeting->through;
  changed.notify_all();
  changed.wait(lock, [&] { return meeting->through == comm->clique->size || comm->aborted; });
  std::copy(sum.begin(), sum.end(), out);
}

void SendTo(ncclComm* comm, int peer, const float* from, size_t count) {
  std::lock_guard lock(mutex);
  comm->clique->sent[{comm->rank, peer}].emplace_back(from, from + count);
  changed.notify_all();
}

// Waits on the GPU until the peer has sent.
void ReceiveFrom(ncclComm* comm, int peer, float* to, size_t count) {
  std::unique_lock lock(mutex);
  auto& waiting = comm->clique->sent[{peer, comm->rank}];
  changed.wait(lock, [&] { return !waiting.empty() || comm->aborted; });
  if (comm->aborted) return;
  std::copy_n(waiting.front().begin(), std::min(count, waiting.front().size()), to);
  waiting.pop_front();
}

ncclResult_t Enqueue(ncclComm* comm, const std::string& what, std::function<void()> does,
                     cudaStream_t stream) {
  std::lock_guard lock(mutex);
  const bool recorded = psringFakeGpuCaptures(stream);
  Note(comm->logged_as, what + (recorded ? ", recorded" : ""));
  rank_of_thread = comm->logged_as;
  comm->idle_asked = 0;
  if (recorded) ++comm->recorded;
  const auto launch = [comm, recorded, does = std::move(does), stream] {
    psringFakeGpuDo(
        stream, [](void* work) { static_cast<Work*>(work)->does(); }, new Work{comm, does, recorded},
        [](void* argument) {
          const std::unique_ptr<Work> work(static_cast<Work*>(argument));
          if (!work->recorded) return;
          std::lock_guard lock(mutex);
          --work->comm->recorded;
        });
  };
  if (depth > 0) {
    grouped.push_back(launch);
    grouped_for = comm;
  } else {
    comm->accepted.push_back(launch);
  }
  return ncclInProgress;
}

}  // namespace

extern "C" {

void psringFakeNcclReset() {
  std::lock_guard lock(mutex);
  settings.clear();
  calls.clear();
  versions_asked = 0;
}
void psringFakeNcclSet(const char* what, int value) {
  std::lock_guard lock(mutex);
  settings[what] = value;
}
const char* psringFakeNcclLog() {
  static std::string copy;
  std::lock_guard lock(mutex);
  copy = calls;
  return copy.c_str();
}

ncclResult_t ncclGetVersion(int* version) {
  std::lock_guard lock(mutex);
  *version = Setting("version") > 0 ? Setting("version") : NCCL_VERSION_CODE;
  if (versions_asked++ > 0 && Setting("later_version") > 0) *version = Setting("later_version");
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::lock_guard lock(mutex);
  std::memset(id, 0, sizeof(*id));
  const std::string text = "fake " + std::to_string(++ids);
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  std::lock_guard lock(mutex);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "NCCL_", 5) == 0) Note(rank, *variable);
  }
  Note(rank, "init of " + std::to_string(size) + ", blocking " + std::to_string(config->blocking));
  std::shared_ptr<Clique>& clique = cliques[id.internal];
  if (clique == nullptr) clique = std::make_shared<Clique>();
  clique->size = size;
  ++clique->joined;
  *made =
      new ncclComm{.rank = rank, .logged_as = rank, .clique = clique, .hangs = Setting("init_hangs") != 0};
  return ncclInProgress;
}
// The last rank makes the parts.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  std::lock_guard lock(mutex);
  Note(comm->logged_as, "split");
  Split& split = comm->clique->splits[comm->splits++];
  if (color != NCCL_SPLIT_NOCOLOR) {
    *made = split.parts[color][{key, comm->rank}] = new ncclComm{.logged_as = comm->logged_as};
  }
  comm->split = &split;
  comm->idle_asked = 0;
  if (++split.joined < comm->clique->size) return ncclInProgress;
  for (auto& [of_color, members] : split.parts) {
    const int size = static_cast<int>(members.size());
    const auto clique = std::make_shared<Clique>(Clique{.size = size, .joined = size});
    int rank = 0;
    for (auto& [place, member] : members) {
      member->rank = rank++;
      member->clique = clique;
    }
  }
  return ncclInProgress;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  std::lock_guard lock(mutex);
  Note(comm->logged_as, "finalize");
  comm->finalizing = true;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  std::lock_guard lock(mutex);
  Note(comm->logged_as, "destroy");
  delete comm;
  return ncclSuccess;
}
// Ends its work on the GPU. The memory stays, because a kernel may still return.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  std::lock_guard lock(mutex);
  Note(comm->logged_as, "abort");
  comm->aborted = true;
  comm->accepted.clear();
  changed.notify_all();
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  std::lock_guard lock(mutex);
  const bool waits_for_graphs = comm->finalizing && comm->recorded > 0;
  const bool waits_for_ranks = comm->clique->joined < comm->clique->size ||
                               (comm->split != nullptr && comm->split->joined < comm->clique->size);
  const bool busy = comm->hangs || waits_for_graphs || waits_for_ranks;
  *state = busy || comm->idle_asked++ < 2 ? ncclInProgress : ncclSuccess;
  if (*state == ncclSuccess) {
    for (const auto& launch : std::exchange(comm->accepted, {})) launch();
  }
  if (Setting("async_error") != 0) *state = static_cast<ncclResult_t>(Setting("async_error"));
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "an error of the fake";
}
const char* ncclGetLastError(ncclComm_t) { return "the fake was told to"; }

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--depth > 0) return ncclSuccess;
  std::lock_guard lock(mutex);
  Note(rank_of_thread, "launch of a group of " + std::to_string(grouped.size()));
  for (auto& launch : grouped) grouped_for->accepted.push_back(std::move(launch));
  grouped.clear();
  return ncclInProgress;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  return Enqueue(
      comm, "all_reduce " + std::to_string(count),
      [=] { Exchange(comm, static_cast<const float*>(in), static_cast<float*>(out), count); }, stream);
}
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                               cudaStream_t) {
  return ncclInvalidUsage;
}
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  return Enqueue(
      comm, "broadcast " + std::to_string(count),
      [=] { Exchange(comm, static_cast<const float*>(in), static_cast<float*>(out), count, root); }, stream);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  return Enqueue(
      comm, "send " + std::to_string(count) + " to " + std::to_string(peer),
      [=] { SendTo(comm, peer, static_cast<const float*>(from), count); }, stream);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  return Enqueue(
      comm, "receive " + std::to_string(count) + " from " + std::to_string(peer),
      [=] { ReceiveFrom(comm, peer, static_cast<float*>(to), count); }, stream);
}

}  // extern "C"
