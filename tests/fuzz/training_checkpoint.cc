// The input is a checkpoint's training.json; its hash is made valid. The model's file is small and sound.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/parameters.h"
#include "common/io/checkpoint_folder.h"
#include "common/io/hash.h"
#include "common/io/json_text.h"
#include "tests/fuzz/input.h"
#include "tests/kept_files.h"
#include "trainer/checkpoints/checkpoint.h"
#include "trainer/checkpoints/training_position.h"

namespace {

using Json = nlohmann::ordered_json;

std::string WithHash(const std::string& text) {
  int deepest = 0;
  const auto measure = [&](int depth, Json::parse_event_t, Json&) {
    deepest = std::max(deepest, depth);
    return true;
  };
  Json json = Json::parse(text, measure, /*allow_exceptions=*/false);
  if (!json.is_object() || deepest > 100) return text;
  if (!json.contains("hashes") || !json["hashes"].is_object()) json["hashes"] = Json::object();
  json["hashes"].erase(psring::kPositionFile);
  const std::string hashed = psring::JsonText(json);
  json["hashes"][psring::kPositionFile] = psring::HashBytes(hashed.data(), hashed.size());
  return psring::JsonText(json);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  psring::ParameterLayout layout;
  layout.Add("w", {2});
  const std::string text = WithHash(psring::TextOf(data, size));
  (void)psring::HashesIn(text);
  const auto position = psring::ParsePosition(text);
  if (!position.ok()) return 0;
  psring::TrainingCheckpoint checkpoint{.position = *position, .weights = {1, 2}};
  checkpoint.slots.assign(psring::OptimizerSlots(position->optimizer.kind).size(), {1, 2});
  psring::KeptFiles files;
  (void)psring::WriteCheckpoint(checkpoint, layout, files);
  return 0;
}
