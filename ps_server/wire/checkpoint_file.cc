#include "ps_server/wire/checkpoint_file.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/files.h"
#include "common/io/hash.h"
#include "proto/checkpoint.pb.h"
#include "ps_server/wire/wire.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[] = "psring checkpoint 1\n";
constexpr char kEnding[] = ".checkpoint";
constexpr size_t kHashBytes = 16;

template <typename From, typename To>
void Put(const From& from, To* to) {
  to->Assign(from.begin(), from.end());
}
template <typename From, typename To>
void Get(const From& from, To& to) {
  to.assign(from.begin(), from.end());
}

std::string EncodeHeader(const Checkpoint& from) {
  proto::Checkpoint to;
  EncodeJob(from.job, *to.mutable_job());
  to.set_step(from.step);
  to.set_finished(from.finished);
  for (size_t i = 0; i < from.buckets.size(); ++i) {
    proto::Checkpoint::Bucket& bucket = *to.add_buckets();
    bucket.set_version(from.buckets[i].version);
    bucket.set_samples(from.samples[i]);
    Put(from.buckets[i].next_step, bucket.mutable_next_step());
    Put(from.buckets[i].left, bucket.mutable_left());
  }
  to.set_values(from.values.size());
  const ServerStats& stats = from.stats;
  to.set_pushes(stats.pushes);
  to.set_payload_tx_bytes(stats.payload_tx_bytes);
  to.set_payload_rx_bytes(stats.payload_rx_bytes);
  Put(stats.staleness_histogram, to.mutable_staleness_histogram());
  Put(stats.worker_pushes, to.mutable_worker_pushes());
  Put(stats.worker_staleness_sum, to.mutable_worker_staleness_sum());
  to.set_dropped_gradients(stats.dropped_gradients);
  Put(stats.worker_dropped, to.mutable_worker_dropped());
  to.set_restarts(stats.restarts);
  Put(stats.lost_workers, to.mutable_lost_workers());
  Put(stats.lost_at_step, to.mutable_lost_at_step());
  return to.SerializeAsString();
}

absl::StatusOr<Checkpoint> DecodeHeader(const proto::Checkpoint& from) {
  Checkpoint to;
  PSRING_ASSIGN_OR_RETURN(to.job, DecodeJob(from.job()));
  to.step = from.step();
  to.finished = from.finished();
  for (const proto::Checkpoint::Bucket& bucket : from.buckets()) {
    Consistency::State& state = to.buckets.emplace_back(Consistency::State{.version = bucket.version()});
    Get(bucket.next_step(), state.next_step);
    Get(bucket.left(), state.left);
    to.samples.push_back(bucket.samples());
  }
  to.values.resize(from.values());
  ServerStats& stats = to.stats;
  stats.pushes = from.pushes();
  stats.payload_tx_bytes = from.payload_tx_bytes();
  stats.payload_rx_bytes = from.payload_rx_bytes();
  Get(from.staleness_histogram(), stats.staleness_histogram);
  Get(from.worker_pushes(), stats.worker_pushes);
  Get(from.worker_staleness_sum(), stats.worker_staleness_sum);
  stats.dropped_gradients = from.dropped_gradients();
  Get(from.worker_dropped(), stats.worker_dropped);
  stats.restarts = from.restarts();
  Get(from.lost_workers(), stats.lost_workers);
  Get(from.lost_at_step(), stats.lost_at_step);
  return to;
}

std::string ValuesHash(const Checkpoint& checkpoint, const std::string& header) {
  const std::string both =
      absl::StrCat(HashBytes(header.data(), header.size()),
                   HashBytes(checkpoint.values.data(), checkpoint.values.size() * sizeof(float)));
  return HashBytes(both.data(), both.size());
}

class Folder : public CheckpointStore {
 public:
  Folder(const std::string& folder, int server, int servers)
      : folder_(folder), prefix_(absl::StrCat("server", server, "-step")), kept_(servers > 1 ? 3 : 2) {}

  absl::Status Save(const Checkpoint& checkpoint) override {
    const std::string path = PathOf(checkpoint.step);
    const std::string beside = path + ".part";
    const int fd = open(beside.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) return FileError("write", beside);
    absl::Status status = Write(fd, checkpoint, beside);
    if (status.ok()) status = ForceToDisk(fd, beside);
    close(fd);
    if (status.ok() && rename(beside.c_str(), path.c_str()) != 0) status = FileError("rename", beside);
    if (!status.ok()) {
      unlink(beside.c_str());
      return status;
    }
    PSRING_RETURN_IF_ERROR(ForceFolderToDisk(folder_));
    const std::vector<int64_t> steps = Steps();
    for (size_t i = kept_; i < steps.size(); ++i) unlink(PathOf(steps[i]).c_str());
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<Checkpoint>> Load(int64_t until) override {
    absl::Status damage;
    for (const int64_t step : Steps()) {
      if (step > until) {
        unlink(PathOf(step).c_str());
        continue;
      }
      absl::StatusOr<Checkpoint> checkpoint = Read(PathOf(step));
      if (checkpoint.ok()) return std::optional(*std::move(checkpoint));
      if (damage.ok()) damage = checkpoint.status();
    }
    if (!damage.ok()) return damage;
    return std::nullopt;
  }

  void Clear() override {
    for (const int64_t step : Steps()) unlink(PathOf(step).c_str());
  }

 private:
  std::string PathOf(int64_t step) const { return absl::StrCat(folder_, "/", prefix_, step, kEnding); }

  // Newest first.
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_, error)) {
      const std::string name = entry.path().filename();
      absl::string_view middle = name;
      int64_t step = 0;
      if (absl::ConsumePrefix(&middle, prefix_) && absl::ConsumeSuffix(&middle, kEnding) &&
          absl::SimpleAtoi(middle, &step)) {
        steps.push_back(step);
      }
    }
    std::sort(steps.rbegin(), steps.rend());
    return steps;
  }

  static absl::Status Write(int fd, const Checkpoint& checkpoint, const std::string& path) {
    const std::string header = EncodeHeader(checkpoint);
    const uint64_t length = header.size();
    const std::string hash = ValuesHash(checkpoint, header);
    PSRING_RETURN_IF_ERROR(WriteToFile(fd, kMagic, sizeof(kMagic) - 1, path));
    PSRING_RETURN_IF_ERROR(WriteToFile(fd, &length, sizeof(length), path));
    PSRING_RETURN_IF_ERROR(WriteToFile(fd, header.data(), header.size(), path));
    PSRING_RETURN_IF_ERROR(
        WriteToFile(fd, checkpoint.values.data(), checkpoint.values.size() * sizeof(float), path));
    return WriteToFile(fd, hash.data(), hash.size(), path);
  }

  static absl::StatusOr<Checkpoint> Read(const std::string& path) {
    const auto damaged = [&](absl::string_view why) {
      return DataLoss("the checkpoint ", path, " is damaged: ", why);
    };
    PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, MostWeightsBytes()));
    absl::string_view rest = text;
    uint64_t length = 0;
    if (!absl::ConsumePrefix(&rest, kMagic))
      return damaged("it is not a checkpoint of this version of psring");
    if (rest.size() < sizeof(length)) return damaged("it is truncated");
    memcpy(&length, rest.data(), sizeof(length));
    rest.remove_prefix(sizeof(length));
    if (rest.size() < length) return damaged("it is truncated");
    const std::string header(rest.substr(0, length));
    rest.remove_prefix(length);
    proto::Checkpoint decoded;
    // Compared by dividing: the product of a wrong count could wrap.
    if (!decoded.ParseFromString(header) || rest.size() < kHashBytes ||
        (rest.size() - kHashBytes) % sizeof(float) != 0 ||
        (rest.size() - kHashBytes) / sizeof(float) != decoded.values()) {
      return damaged("it is truncated");
    }
    absl::StatusOr<Checkpoint> checkpoint = DecodeHeader(decoded);
    if (!checkpoint.ok()) return damaged(checkpoint.status().message());
    const size_t bytes = checkpoint->values.size() * sizeof(float);
    if (bytes > 0) memcpy(checkpoint->values.data(), rest.data(), bytes);
    if (rest.substr(bytes) != ValuesHash(*checkpoint, header)) return damaged("its hash differs");
    return checkpoint;
  }

  const std::string folder_;
  const std::string prefix_;
  const size_t kept_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpointFolder(const std::string& folder, int server,
                                                                      int servers) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || access(folder.c_str(), W_OK | X_OK) != 0) {
    return InvalidArgument("cannot write into the checkpoint folder ", folder, ": ",
                           error ? error.message() : strerror(errno));
  }
  return std::make_unique<Folder>(folder, server, servers);
}

}  // namespace psring
