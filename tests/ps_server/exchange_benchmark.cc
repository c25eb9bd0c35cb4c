// How long one exchange of a whole gradient takes: `ps_exchange_benchmark [WORKERS [MIB [ROUNDS
// [CONSISTENCY [THREADS]]]]] [--payload auto|grpc|shm]`.
//
// The server and every worker are processes of their own, on loopback; one bucket, SGD. A round is a push and
// the pull of what it led to. Prints the median over the rounds, as worker 0 sees them, after as many to warm
// up as there are workers, plus two.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "common/keep_freed_memory.h"
#include "common/mutex.h"
#include "ps_server/parameter_server.h"
#include "ps_server/service.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

struct Arguments {
  int workers = 1;
  int mib = 25;
  int rounds = 30;
  std::string consistency = "sync";
  int threads = ServiceOptions().threads;
  std::string payload = "auto";
};

int Serve(const Arguments& arguments, int report_fd) {
  const auto device = MakeCpuDevice();
  ParameterServer server(*device, {.workers = arguments.workers});
  const auto service = Service::Start(server, {.threads = arguments.threads});
  PSRING_CHECK(service.ok());
  const std::string address = (*service)->address() + "\n";
  PSRING_CHECK(write(report_fd, address.data(), address.size()) == static_cast<ssize_t>(address.size()));
  close(report_fd);
  const absl::Status outcome = *server.WaitUntilOver(absl::InfiniteFuture());
  (*service)->Stop(absl::Now() + absl::Seconds(1));
  return outcome.ok() ? 0 : 1;
}

// Pushes the gradient, and waits for the weights that it led to.
absl::StatusOr<ExchangeResult> Round(TestWorker& worker, Span gradient, Span weights, int64_t step) {
  Mutex mutex;
  CondVar changed;
  std::optional<absl::StatusOr<ExchangeResult>> outcome;
  worker.client->PushPull({.bucket = 0, .step = step, .samples = 1, .gradient = gradient, .weights = weights},
                          [&](absl::StatusOr<ExchangeResult> result) {
                            MutexLock lock(mutex);
                            outcome = std::move(result);
                            changed.NotifyAll();
                          });
  MutexLock lock(mutex);
  while (!outcome.has_value()) changed.Wait(mutex);
  return *outcome;
}

int Work(const Arguments& arguments, int rank, const std::string& address) {
  ServerJob job = MakeJob(arguments.workers, {static_cast<size_t>(arguments.mib) << 18});
  job.consistency = arguments.consistency;
  job.optimizer.kind = OptimizerKind::kSgd;
  TestWorker worker(job, rank, MakeGrpcPsClient(address, *ParsePayload(arguments.payload)));
  // Memory as the trainer has it: shared from the start.
  const auto device = MakeCpuDevice();
  const size_t bytes = job.parameters * sizeof(float);
  const Buffer gradient = *device->AllocateShared(bytes), weights = *device->AllocateShared(bytes);
  std::memcpy(weights.data(), worker.weights.data(), bytes);
  worker.client->ShareMemory({gradient.span(), gradient.shared_fd()}, {weights.span(), weights.shared_fd()});
  PSRING_CHECK(worker.client->Start(rank, job, weights.span(), Soon()).ok());
  std::vector<double> times_ms;
  const int warm_up = arguments.workers + 2;
  for (int64_t step = 0, next = 0; step < arguments.rounds + warm_up; step = next) {
    const auto begin = std::chrono::steady_clock::now();
    const absl::StatusOr<ExchangeResult> result = Round(worker, gradient.span(), weights.span(), step);
    PSRING_CHECK(result.ok());
    next = result->dropped ? result->version : step + 1;
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (step >= warm_up) times_ms.push_back(took.count());
  }
  PSRING_CHECK(worker.client->Leave(Soon()).ok());
  if (rank == 0) {
    std::sort(times_ms.begin(), times_ms.end());
    std::printf("%s %s %d worker(s) %d MiB: median %.1f ms, 10%% %.1f, 90%% %.1f\n",
                worker.client->payload().c_str(), arguments.consistency.c_str(), arguments.workers,
                arguments.mib, times_ms[times_ms.size() / 2], times_ms[times_ms.size() / 10],
                times_ms[times_ms.size() * 9 / 10]);
  }
  return 0;
}

int Main(int argc, char** argv) {
  KeepFreedMemory();
  Arguments arguments;
  if (argc > 2 && std::string(argv[argc - 2]) == "--payload") {
    arguments.payload = argv[argc - 1];
    argc -= 2;
  }
  if (const auto payload = ParsePayload(arguments.payload); !payload.ok()) {
    std::fprintf(stderr, "%s\n", std::string(payload.status().message()).c_str());
    return 2;
  }
  if (argc > 1) arguments.workers = std::atoi(argv[1]);
  if (argc > 2) arguments.mib = std::atoi(argv[2]);
  if (argc > 3) arguments.rounds = std::atoi(argv[3]);
  if (argc > 4) arguments.consistency = argv[4];
  if (argc > 5) arguments.threads = std::atoi(argv[5]);

  // Forks before anything of gRPC has started.
  int report[2];
  PSRING_CHECK(pipe(report) == 0);
  if (fork() == 0) _exit(Serve(arguments, report[1]));
  close(report[1]);
  std::string address;
  for (char c; read(report[0], &c, 1) == 1 && c != '\n';) address += c;
  for (int rank = 0; rank < arguments.workers; ++rank) {
    if (fork() == 0) {
      const int code = Work(arguments, rank, address);
      std::fflush(stdout);
      _exit(code);
    }
  }
  int worst = 0;
  for (int status; wait(&status) > 0;) worst = std::max(worst, status);
  // Of all processes, start and warm-up included: says more than the clock does where others use the machine
  // too.
  rusage usage;
  getrusage(RUSAGE_CHILDREN, &usage);
  const double cpu_s =
      usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  std::printf("  processor time %.1f ms a round\n", cpu_s * 1e3 / (arguments.rounds + arguments.workers + 2));
  return worst == 0 ? 0 : 1;
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) { return psring::Main(argc, argv); }
