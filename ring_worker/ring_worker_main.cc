// One peer of a mesh: joins, runs all-reduces without training, checks them, and on rank 0 prints a table.
//
//   ring_worker --rendezvous tcp://127.0.0.1:29500 --rank 0 --world_size 2 --bytes 4K,4M --check

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/command_line.h"
#include "common/device.h"
#include "common/rendezvous.h"
#include "common/trace.h"
#include "ring_worker/process_group.h"

namespace psring {
namespace {

struct Options {
  std::string rendezvous = "env://";
  std::string rank, world_size;  // in place of RANK and WORLD_SIZE
  std::string algorithm = "ring";
  std::vector<std::string> bytes = {"4M"};
  int iterations = 20;
  int warmup = 5;
  bool check = false;
  std::string bind_host = GroupOptions().bind_host;
  std::string segment = "0";
  std::string socket_buffer = "0";
  double timeout_s = 60;
};

// "4096", "4K", "1M", "2G": binary, as nccl-tests has them.
absl::StatusOr<size_t> ParseBytes(const std::string& text) {
  const std::string suffixes = "KMG";
  std::string digits = text;
  int shift = 0;
  if (const size_t at = digits.empty() ? std::string::npos : suffixes.find(digits.back());
      at != std::string::npos) {
    shift = 10 * (static_cast<int>(at) + 1);
    digits.pop_back();
  }
  uint64_t number = 0;
  if (!absl::SimpleAtoi(digits, &number) || number > (uint64_t{1} << 40) >> shift) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no size; write bytes, or a number with K, M or G"));
  }
  return number << shift;
}

constexpr int kBatches = 10;

struct Row {
  size_t bytes = 0;
  double median_us = 0;
};

// Sums of these are exact, so a check can ask for equality.
float Value(int rank, size_t i) { return static_cast<float>((rank + 1) * (i % 97 + 1)); }

absl::Status CheckSum(const ProcessGroup& group, Span data, int iteration) {
  const float* values = data.floats();
  const int ranks = group.size();
  for (size_t i = 0; i < data.count; ++i) {
    const float sum = static_cast<float>((i % 97 + 1) * (size_t(ranks) * (ranks + 1) / 2));
    if (values[i] != sum) {
      return absl::InternalError(absl::StrCat("rank ", group.rank(), ", iteration ", iteration, ", ",
                                              data.count, " elements: element ", i, " is ", values[i],
                                              ", not ", sum));
    }
  }
  return absl::OkStatus();
}

// Calls in a row are timed together: a rank may run half a call ahead of its peers, so single times mislead.
// The median is over such batches. A checked call is a batch of its own, since its buffer is filled before
// it.
absl::StatusOr<Row> Measure(const Options& options, size_t bytes, ProcessGroup& group, Device& device,
                            Stream& stream) {
  PSRING_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(std::max<size_t>(bytes, 1)));
  const Span data = buffer.span().Slice(0, bytes / sizeof(float));
  const int batch = options.check ? 1 : std::max(1, options.iterations / kBatches);
  std::vector<double> times_us;
  for (int done = -options.warmup; done < options.iterations; done += batch) {
    if (options.check) {
      for (size_t e = 0; e < data.count; ++e) data.floats()[e] = Value(group.rank(), e);
    }
    PSRING_RETURN_IF_ERROR(group.Barrier(stream));
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    const int64_t begin = MonotonicNanos();
    for (int i = 0; i < batch; ++i) {
      PSRING_RETURN_IF_ERROR(group.AllReduce(data, data, ReduceOp::kSum, stream));
      PSRING_RETURN_IF_ERROR(stream.Synchronize());
    }
    if (done >= 0) times_us.push_back((MonotonicNanos() - begin) / 1e3 / batch);
    if (options.check) PSRING_RETURN_IF_ERROR(CheckSum(group, data, done));
  }
  std::nth_element(times_us.begin(), times_us.begin() + times_us.size() / 2, times_us.end());
  return Row{data.bytes(), times_us[times_us.size() / 2]};
}

// busbw as nccl-tests defines it: what each rank's link would carry if the all-reduce sent 2(N-1)/N of it.
void Print(const Row& row, int ranks, bool checked) {
  const double algbw = row.bytes / row.median_us / 1e3;
  std::printf("%12zu %12.1f %12.3f %12.3f  %s\n", row.bytes, row.median_us, algbw,
              algbw * 2 * (ranks - 1) / ranks, checked ? "ok" : "unchecked");
  std::fflush(stdout);
}

absl::Status Run(const Options& options) {
  std::vector<size_t> sizes;
  for (const std::string& text : options.bytes) {
    PSRING_ASSIGN_OR_RETURN(const size_t bytes, ParseBytes(text));
    sizes.push_back(bytes);
  }
  GroupOptions group_options;
  group_options.algorithm = options.algorithm;
  group_options.timeout = absl::Seconds(options.timeout_s);
  PSRING_ASSIGN_OR_RETURN(group_options.segment_bytes, ParseBytes(options.segment));
  group_options.bind_host = options.bind_host;
  PSRING_ASSIGN_OR_RETURN(const size_t socket_buffer, ParseBytes(options.socket_buffer));
  if (socket_buffer > size_t{1} << 30) return absl::InvalidArgumentError("--socket_buffer is above 1G");
  group_options.socket_buffer_bytes = static_cast<int>(socket_buffer);
  PSRING_RETURN_IF_ERROR(CheckGroupOptions(group_options, Collective::kAllReduce));

  const GetEnv environment = [&](const char* name) -> std::optional<std::string> {
    if (std::string_view(name) == "RANK" && !options.rank.empty()) return options.rank;
    if (std::string_view(name) == "WORLD_SIZE" && !options.world_size.empty()) return options.world_size;
    return ProcessEnvironment()(name);
  };
  PSRING_ASSIGN_OR_RETURN(RendezvousOptions join, ParseRendezvous(options.rendezvous, environment));
  join.timeout = absl::Seconds(options.timeout_s);
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> rendezvous, Rendezvous::Join(join));
  PSRING_RETURN_IF_ERROR(RequireEqual(*rendezvous, "--algorithm", options.algorithm));
  PSRING_RETURN_IF_ERROR(RequireEqual(*rendezvous, "--segment", options.segment));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                          MakeProcessGroup(*rendezvous, group_options));
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const std::unique_ptr<Stream> stream = device->NewStream(StreamKind::kCompute, "ring_worker");

  if (group->rank() == 0) {
    std::printf("# %s over %s, %d ranks, %d calls a size, median on rank 0, GB = 10^9 bytes\n",
                group->info().algorithm.c_str(), group->info().transport.c_str(), group->size(), options.iterations);
    std::printf("%12s %12s %12s %12s  %s\n", "bytes", "time_us", "algbw_GB/s", "busbw_GB/s", "sums");
    std::fflush(stdout);
  }
  for (size_t bytes : sizes) {
    PSRING_ASSIGN_OR_RETURN(const Row row, Measure(options, bytes, *group, *device, *stream));
    if (group->rank() == 0) Print(row, group->size(), options.check);
  }
  // Nobody leaves while another may still fail: its error would be lost.
  PSRING_RETURN_IF_ERROR(group->Barrier(*stream));
  return stream->Synchronize();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("One peer of a mesh: runs all-reduces without training.", "ring_worker");
  app.add_option("--rendezvous", options.rendezvous, "env:// or tcp://host:port")->capture_default_str();
  app.add_option("--rank", options.rank, "in place of RANK")->check(WholeNumber(0, 1 << 20));
  app.add_option("--world_size", options.world_size, "in place of WORLD_SIZE")
      ->check(WholeNumber(1, 1 << 20));
  app.add_option("--algorithm", options.algorithm, "the schedule to run")->capture_default_str();
  app.add_option("--bytes", options.bytes, "buffer sizes, with K, M or G")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--iterations", options.iterations, "timed all-reduces of each size")
      ->check(WholeNumber(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "untimed ones before them")
      ->check(WholeNumber(0, 1 << 30))
      ->capture_default_str();
  app.add_flag("--check", options.check, "fill before and compare after each all-reduce");
  app.add_option("--bind_host", options.bind_host, "this machine's address that the others can reach")
      ->capture_default_str();
  app.add_option("--segment", options.segment, "size of a pipelined piece")->capture_default_str();
  app.add_option("--socket_buffer", options.socket_buffer, "0 lets the kernel choose")->capture_default_str();
  app.add_option("--timeout", options.timeout_s, "seconds to wait for a silent peer")
      ->check(RealNumber({}))
      ->capture_default_str();
  ParseOrExit(app, argc, argv);
  const absl::Status status = Run(options);
  if (status.ok()) return 0;
  const bool bad_input =
      status.code() == absl::StatusCode::kInvalidArgument || status.code() == absl::StatusCode::kNotFound;
  return Fail("ring_worker", std::string(status.message()), bad_input ? 2 : 1);
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) { return psring::Main(argc, argv); }
