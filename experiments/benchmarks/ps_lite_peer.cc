// A round of ps-lite's parameter server: every worker pushes a gradient and receives the updated weights
// (plain SGD). Compiled and started by ps_round.py, as DMLC_NUM_WORKER workers, one server and one scheduler.
//
// Arguments: BYTES PART_BYTES WARMUP ITERATIONS. The gradient is sent as one key per PART_BYTES. A worker
// prints the microseconds of each iteration after the warm-up and checks every weight of the last one (exit
// code 1: it is wrong).
#include <ps/ps.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

namespace {

struct Part {
  ps::SArray<float> sum;  // the first gradient of the round; the others are added to it
  std::vector<float> weights;
  std::vector<ps::KVMeta> waiting;
};

// Runs on ps-lite's only thread for requests.
class SynchronousServer {
 public:
  void operator()(const ps::KVMeta& meta, const ps::KVPairs<float>& data, ps::KVServer<float>* server) {
    Part& part = parts_[data.keys[0]];
    if (part.waiting.empty()) {
      part.sum = data.vals;
      part.weights.resize(data.vals.size());
    } else {
      for (size_t i = 0; i < part.sum.size(); ++i) part.sum[i] += data.vals[i];
    }
    part.waiting.push_back(meta);
    const size_t workers = ps::NumWorkers();
    if (part.waiting.size() < workers) return;
    const float rate = 1.0f / static_cast<float>(workers);
    for (size_t i = 0; i < part.sum.size(); ++i) part.weights[i] -= rate * part.sum[i];
    ps::KVPairs<float> reply;
    reply.keys = data.keys;
    reply.vals = ps::SArray<float>(part.weights.data(), part.weights.size());  // not copied: see RunWorker
    reply.lens = data.lens;
    for (const ps::KVMeta& one : part.waiting) server->Response(one, reply);
    part.waiting.clear();
  }

 private:
  std::map<ps::Key, Part> parts_;
};

struct Exchange {
  ps::SArray<ps::Key> key;
  ps::SArray<float> gradient, weights;
  ps::SArray<int> length;
};

// Returns whether all weights are right. A worker pushes only after it has received all weights of the round
// before, so the server never changes weights that it is still sending.
bool RunWorker(size_t bytes, size_t part_bytes, int warmup, int iterations) {
  using Clock = std::chrono::steady_clock;
  ps::KVWorker<float> worker(0, 0);
  std::vector<Exchange> exchanges;
  for (size_t first = 0; first < bytes; first += part_bytes) {
    const size_t count = std::min(part_bytes, bytes - first) / sizeof(float);
    exchanges.push_back({ps::SArray<ps::Key>(1, exchanges.size()), ps::SArray<float>(count, 1.0f),
                         ps::SArray<float>(count, 0.0f), ps::SArray<int>(1, static_cast<int>(count))});
  }
  ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
  for (int i = 0; i < warmup + iterations; ++i) {
    const auto start = Clock::now();
    std::vector<int> requests;
    for (Exchange& one : exchanges) {
      requests.push_back(worker.ZPushPull(one.key, one.gradient, &one.weights, &one.length));
    }
    for (const int request : requests) worker.Wait(request);
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    if (i >= warmup) std::printf("%.1f\n", us);
  }
  for (const Exchange& one : exchanges) {
    for (const float weight : one.weights) {
      if (weight != static_cast<float>(-(warmup + iterations))) return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s BYTES PART_BYTES WARMUP ITERATIONS; see ps_round.py\n", argv[0]);
    return 2;
  }
  ps::Start(0);
  if (ps::IsServer()) {
    auto* server = new ps::KVServer<float>(0);
    server->set_request_handle(SynchronousServer());
    ps::RegisterExitCallback([server] { delete server; });
  }
  bool right = true;
  if (ps::IsWorker()) {
    right = RunWorker(std::strtoull(argv[1], nullptr, 10), std::strtoull(argv[2], nullptr, 10),
                      std::atoi(argv[3]), std::atoi(argv[4]));
    if (!right) std::fprintf(stderr, "ps-lite: wrong weights\n");
  }
  ps::Finalize(0, true);
  return right ? 0 : 1;
}
