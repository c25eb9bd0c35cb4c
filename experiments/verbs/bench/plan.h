// Turns the flags of bench into combinations, sizes and launches. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/launch/training_job.h"

namespace psring {

inline constexpr int kMaxBenchWorkers = 1024;
inline constexpr int kMaxBenchServers = 64;
inline constexpr char kAllReduce[] = "all_reduce";
inline constexpr char kPushPull[] = "ps_push_pull";  // a round of the parameter server

// The collectives that can be measured, from `ring_worker --describe`. psring keeps no list of its own.
struct BackendInfo {
  std::string name;
  bool available = false;
  std::string missing;                                         // if not available: what to install
  std::map<std::string, std::vector<std::string>> algorithms;  // by collective; no entry if not offered
  std::vector<std::string> transports;

  const std::vector<std::string>& AlgorithmsFor(const std::string& collective) const;
};

struct BenchCatalog {
  std::vector<std::string> collectives;
  std::vector<BackendInfo> backends;
};

absl::StatusOr<BenchCatalog> BenchCatalogFromJson(const std::string& text);

// -b, -e, -i and -f of nccl-tests. Both steps 0: kDefaultFactor.
struct SizeSweep {
  uint64_t least = 4 << 10, most = 16 << 20;
  uint64_t step_bytes = 0;
  uint64_t step_factor = 0;
  std::vector<uint64_t> list;  // if not empty: these sizes, in this order
};
inline constexpr uint64_t kDefaultFactor = 16;

// The sizes from `least` up to `most`, by the factor or the step. InvalidArgument: `least` above `most`, both
// steps given, a factor of 1, more than 1000 sizes, or a size twice.
absl::StatusOr<std::vector<uint64_t>> SizesOf(const SizeSweep& sweep);

struct BenchRequest {
  // Empty: the defaults of MakeBenchPlan.
  std::vector<std::string> backends, algorithms, transports, buffers;
  std::vector<std::string> collectives = {"all_reduce"};
  std::vector<int> workers = {2};
  std::vector<int> servers = {1};                    // of ps_push_pull
  std::vector<std::string> server_wires = {"grpc"};  // of ps_push_pull over tcp: grpc, stream
  SizeSweep sizes;
  std::vector<std::string> types = {"float32"}, ops = {"sum"};
  int root = 0;
  int iterations = 20, aggregated = 0, warmup = 5, checks = 1, average = 3;
  int rounds = 0;  // 0: 1 if there is one launch, else 3
  bool limits = false;
  std::string device = "cpu";           // or "cuda": GPU memory
  int gpus = 0;                         // number in this machine
  bool oversubscribe = false;           // ranks may share a GPU
  bool pin = true;                      // each rank to its own core, if there are enough
  std::string segment, ranks_per_node;  // as given; empty: the worker's default
  double timeout_s = 60;
  std::string tls;                 // empty: connections are not encrypted
  std::string congestion_control;  // TCP's on this machine, by default
  NodeLayout layout;               // the machines; `processes` is not set
  double require_busbw = 0;        // GB/s; 0: not required

  bool on_nodes() const { return layout.nodes > 1; }
  // Whether TCP, by default, paces connections within this machine.
  bool paced() const { return !on_nodes() && congestion_control.starts_with("bbr"); }
};

// What one table of the output measures.
struct BenchCombination {
  std::string collective, backend, algorithm, transport, buffers;  // empty algorithm: the backend's default
  int workers = 2;
  int servers = 1;  // push_pull

  bool push_pull() const { return collective == kPushPull; }
  // Over TCP connections that psring does not open.
  bool is_library_over_tcp() const { return transport == "tcp" && backend != "native" && !push_pull(); }
  std::string name() const;  // "all_reduce, native ring over shm, shared buffers, 2 workers"
};

enum class BenchLaunchKind { kPlain, kMpirun, kPushPull };

// Processes that are started together. They form a process group per combination.
struct BenchLaunch {
  BenchLaunchKind kind = BenchLaunchKind::kPlain;
  std::string mpi_transport;  // with kMpirun: MPI's transport, fixed for the job
  int workers = 2;
  std::vector<size_t> combinations;  // indices; empty if only limits are measured
  bool limits = false;
  std::string name() const;  // "2 workers (mpirun, shm)"
};

struct BenchPlan {
  std::vector<BenchCombination> combinations;
  std::vector<BenchLaunch> launches;  // of one round
  std::vector<uint64_t> sizes;
  int rounds = 1;
  int iterations = 20;  // of each round
  std::vector<std::string> notes;
  NodeLayout layout;  // the machines

  NodeLayout LayoutOf(int workers) const;
};

// Defaults: all backends of this build except nccl, which needs GPUs; for native the algorithms ring, direct
// and one-shot, for the others their own choice; all transports except auto; private buffers, and for native
// over shared memory also shared ones. On GPUs: native over cuda_ipc with registered buffers, and nccl if
// this build has it. Backends without a requested algorithm or transport are omitted with a note. On several
// machines: not mpi, whose ranks mpirun starts; of native's transports only tcp; on GPUs only nccl.
//
// InvalidArgument or NotFound, with a message of one line: an unknown name, a named backend that is not in
// this build, mpi if `mpirun` is not OK, or an algorithm or transport that no backend offers.
absl::StatusOr<BenchPlan> MakeBenchPlan(const BenchRequest& options, const BenchCatalog& catalog,
                                        const absl::Status& mpirun);

// The most of the workers that one machine runs.
int MostOnAMachine(const NodeLayout& layout, int workers);

// Bytes of the buffers of all processes of the largest launch on one machine, without the transports' staging
// buffers.
uint64_t BenchMemoryBytes(const BenchPlan& plan);

// An estimate, pessimistic on slow machines. `bytes_per_s`: the slowest rate between machines; 0: unknown.
double ExpectedBenchSeconds(const BenchPlan& plan, const BenchRequest& options, int cores,
                            double bytes_per_s = 0);

}  // namespace psring
