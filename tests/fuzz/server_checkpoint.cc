// The input is the header of a parameter server's checkpoint; values and a valid hash follow it.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/device/device.h"
#include "common/io/hash.h"
#include "proto/checkpoint.pb.h"
#include "ps_server/server/parameter_server.h"
#include "ps_server/wire/checkpoint_file.h"
#include "tests/fuzz/input.h"
#include "tests/test_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const psring::TestFolder folder;
  static const auto store = *psring::OpenCheckpointFolder(folder.path(), /*server=*/0, /*servers=*/1);
  const std::string header = psring::TextOf(data, size);
  psring::proto::Checkpoint parsed;
  const bool sound = parsed.ParseFromString(header) && parsed.values() < 1000;
  const std::vector<float> values(sound ? parsed.values() : 0, 1);
  const size_t bytes = values.size() * sizeof(float);
  const std::string both =
      absl::StrCat(psring::HashBytes(header.data(), header.size()), psring::HashBytes(values.data(), bytes));
  const uint64_t length = header.size();
  folder.Put("server0-step1.checkpoint",
             absl::StrCat("psring checkpoint 1\n",
                          std::string(reinterpret_cast<const char*>(&length), sizeof(length)), header,
                          std::string(reinterpret_cast<const char*>(values.data()), bytes),
                          psring::HashBytes(both.data(), both.size())));
  const auto loaded = store->Load();
  if (!loaded.ok() || !loaded->has_value()) return 0;
  static const std::unique_ptr<psring::Device> device = psring::MakeCpuDevice();
  psring::ParameterServer server(*device, {.workers = std::clamp((*loaded)->job.workers, 1, 64)});
  (void)server.Restore(**loaded);
  return 0;
}
