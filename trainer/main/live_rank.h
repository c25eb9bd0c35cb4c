// One live rank: connects to the others, trains, and writes its records. A process runs one, or several with
// one thread each.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/device/device.h"
#include "common/measure/trace.h"
#include "common/net/link_shaper.h"
#include "common/rendezvous/rendezvous.h"
#include "ps_server/client/ps_client.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/checkpoints/checkpoint.h"
#include "trainer/checkpoints/worker_parts.h"
#include "trainer/data/dataset.h"
#include "trainer/main/own_servers.h"
#include "trainer/main/progress.h"
#include "trainer/main/rank_threads.h"
#include "trainer/main/record_writer.h"
#include "trainer/main/step_probe.h"
#include "trainer/main/stop_signal.h"
#include "trainer/main/trainer_flags.h"
#include "trainer/pipeline/pipeline_links.h"
#include "trainer/pipeline/shard_groups.h"
#include "trainer/step/train_loop.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// How a process takes part in a job of several ranks.
struct Part {
  RendezvousOptions join;                         // of its first rank
  std::string address = "127.0.0.1";              // at which other hosts reach this process
  std::vector<std::vector<std::string>> servers;  // flags of the servers that its first rank starts
  std::vector<std::string> becomes;               // not empty: the process becomes a server with these flags
};

// What rank 0 read for --resume.
struct Kept {
  std::optional<CheckpointBytes> bytes;
  std::vector<std::string> notes;
};
absl::StatusOr<Kept> ReadKept(const TrainingOptions& training);

// The data set, one read-only copy for all ranks of a process, loaded on first use. Thread-safe.
class SharedData {
 public:
  explicit SharedData(const TrainingOptions& options) : options_(options) {}
  absl::StatusOr<const DataSplits*> Get();

 private:
  const TrainingOptions& options_;
  Mutex mutex_;
  std::optional<absl::StatusOr<DataSplits>> data_ ABSL_GUARDED_BY(mutex_);
};

// `units`: Device::unit() of every rank, by rank. FailedPrecondition names ranks that share a GPU without
// --oversubscribe. Pure.
absl::Status CheckSharing(const std::vector<std::string>& units, bool may_share);
// For NCCL. FailedPrecondition: ranks of one process share a GPU, which NCCL permits only to ranks of
// different processes. Pure.
absl::Status CheckSharingInProcess(const std::vector<std::string>& units, int ranks_per_process);

// What the ranks of a process share. Outlives them.
struct LiveProcess {
  const TrainerFlags& flags;
  const Part* part = nullptr;  // null: the job is this one rank
  StopSignal& stop;
  RankThreads& threads;
  SharedData& data;
  LinkShaper* shaper = nullptr;  // null: the link is not shaped by psring
};

// Used by one thread.
class LiveRank {
 public:
  // `index`: of the rank within the process.
  LiveRank(const LiveProcess& process, int index);
  // Closes all connections, which other ranks may notice.
  ~LiveRank();

  // Everything from the first connection to the last record. Errors name the step and the peer, not this
  // rank.
  absl::Status Train(Kept kept);

 private:
  absl::Status TrainAndRecord(Kept kept);
  absl::Status Published(const absl::Status& done);
  absl::Status Meet();
  absl::Status Connect();
  absl::Status ConnectAllRanks();
  absl::Status ConnectMachine();
  void AbortOnSignal();
  void SetCallbacks(Worker& worker, StepProbe& probe);
  void DescribeLinks(RankResult& result) const;
  void Note(const std::string& text) const;

  const LiveProcess process_;
  const TrainerFlags& flags_;
  const int index_;
  const bool is_only_rank_;
  RendezvousOptions join_;
  std::string address_ = "127.0.0.1";
  StrategyRow strategy_;

  // In order of use: later members use earlier ones.
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<RecordWriter> records_;
  absl::Status recorded_;       // the last result of records_->Add
  bool has_published_ = false;  // the other ranks, why this one fails
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<WorkerParts> parts_;  // of checkpoints
  std::unique_ptr<OwnServers> servers_;
  std::vector<Buffer> registered_;       // with the group, or open in the server; must outlive both
  std::unique_ptr<Rendezvous> machine_;  // --local_aggregation: the ranks of this machine
  std::unique_ptr<ProcessGroup> group_;
  std::unique_ptr<ProcessGroup> statistics_;  // --sync_batch_norm: a part of group_, with the same ranks
  std::unique_ptr<PipelineLinks> links_;      // --pp, --tp: parts of group_
  std::optional<ShardGroups> shard_groups_;   // --dp_shard: parts of the group of this rank's replicas
  std::unique_ptr<PsClient> client_;
  std::atomic<bool> stepping_ = false;
  Trace trace_;
  int64_t samples_ = 0;
  Traffic moved_;
};

}  // namespace psring
