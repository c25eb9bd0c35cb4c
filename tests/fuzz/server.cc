// Workers of a parameter server, known by their numbers, which join, send messages and disconnect. Each
// event: a byte for its kind, one for the worker, two for the length of its message, and the message.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "ps_server/server/parameter_server.h"
#include "ps_server/shard/job_memory.h"
#include "ps_server/wire/wire.h"
#include "tests/fuzz/input.h"

namespace {

constexpr int kWorkers = 2;
constexpr int64_t kMaxBytes = 1 << 20;  // of a job

class Sink final : public psring::ReplySink {
 public:
  void Deliver(psring::Reply) override {}
  void Proceed() override {}
  void Abort(const absl::Status&) override {}
};

psring::ServerJob SoundJob(uint8_t mode) {
  const char* const modes[] = {"sync", "async", "ssp:1", "backup:1"};
  psring::ServerJob job{.workers = kWorkers, .consistency = modes[mode % 4], .parameters = 6};
  job.buckets = {{.index = 0, .first = 0, .count = 4}, {.index = 1, .first = 4, .count = 2}};
  job.schedule.base = 0.1;
  if (mode % 8 >= 4 && mode % 4 != 3) {
    job.tables = {{.rows = 10, .width = 2, .bound = .5f}, {.rows = 3, .width = 1}};
    job.optimizer.kind = mode % 16 >= 8 ? psring::OptimizerKind::kAdagrad : psring::OptimizerKind::kSgd;
    if (mode >= 16) job.row_arrays = mode % 16 >= 8 ? 2 : 1;
  }
  return job;
}

class Workers {
 public:
  Workers() : lane_(*server_.NewLane()) {}

  void Event(uint8_t kind, uint8_t who, std::span<const uint8_t> bytes) {
    if (kind % 4 == 0) return Join(kind, who, std::as_bytes(bytes));
    const auto joined = sinks_.find(who % kWorkers);
    if (joined == sinks_.end()) return;
    const auto& [worker, sink] = *joined;
    if (kind % 4 == 1) return server_.Disconnected(worker, sink.get(), "its connection closed");
    const grpc::Slice slice(bytes.data(), bytes.size());
    grpc::ByteBuffer buffer(&slice, 1);
    psring::Received<psring::message::ToServer> received;
    if (const absl::Status status = received.Decode(buffer); !status.ok()) {
      return server_.Expel(worker, sink.get(), status);
    }
    (void)server_.Receive(worker, sink.get(), received.message(), {.pieces = received.payload()}, lane_);
  }

 private:
  void Join(uint8_t kind, uint8_t who, psring::Bytes payload) {
    psring::Joining joining{.worker = who % (kWorkers + 1), .job = SoundJob(kind / 8), .session = who};
    if (const auto request = psring::DecodeJoin({&payload, 1}); request.ok() && !payload.empty()) {
      joining.session = request->session;
      joining.again = request->again;
      joining.epoch = request->epoch;
      if (kind % 8 == 0) joining.worker = request->worker;
      if (kind >= 128) joining.job = request->job;
    }
    if (psring::ValidateServerJob(joining.job).ok() &&
        psring::MemoryOf(joining.job, /*device_is_host=*/true).on_device > kMaxBytes) {
      return;
    }
    auto sink = std::make_shared<Sink>();
    const absl::Status status = server_.Join(joining, sink);
    if (status.ok() && (joining.worker < 0 || joining.worker >= kWorkers)) __builtin_trap();
    if (status.ok()) sinks_[joining.worker] = std::move(sink);
  }

  static psring::Device& Cpu() {
    static const auto& device = *new std::unique_ptr<psring::Device>(psring::MakeCpuDevice());
    return *device;
  }

  psring::ParameterServer server_{Cpu(),
                                  {.workers = kWorkers, .on_worker_loss = psring::OnWorkerLoss::kContinue}};
  psring::Lane lane_;
  std::map<int, std::shared_ptr<Sink>> sinks_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Workers workers;
  while (size >= 4) {
    const size_t length = std::min<size_t>(size - 4, data[2] | data[3] << 8);
    workers.Event(data[0], data[1], {data + 4, length});
    data += 4 + length;
    size -= 4 + length;
  }
  return 0;
}
