// The Join of a worker, and the checks of its job.
#include <cstddef>
#include <cstdint>
#include <span>

#include "ps_server/shard/job_memory.h"
#include "ps_server/wire/wire.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const psring::Bytes payload = std::as_bytes(std::span(data, size));
  const auto request = psring::DecodeJoin({&payload, 1});
  if (!request.ok() || !psring::ValidateServerJob(request->job).ok()) return 0;
  if (!psring::RequireSameJob(request->job, request->job, 0).ok()) __builtin_trap();
  if (!(psring::MemoryOf(request->job, /*device_is_host=*/true).on_device >= 0)) __builtin_trap();
  return 0;
}
