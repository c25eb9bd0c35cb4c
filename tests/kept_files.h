// Checkpoints in memory.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/io/checkpoint_folder.h"

namespace psring {

class KeptFiles : public CheckpointSink {
 public:
  absl::Status Append(const std::string& file, std::string_view piece) override {
    if (files.empty() || files.back().first != file) files.emplace_back(file, "");
    files.back().second += piece;
    return absl::OkStatus();
  }
  CheckpointFiles files;
};

// Empty if `content` fails.
inline CheckpointFiles FilesOf(const CheckpointContent& content) {
  KeptFiles kept;
  return content(kept).ok() ? kept.files : CheckpointFiles();
}

inline CheckpointContent ContentOf(const CheckpointFiles& files) {
  return [files](CheckpointSink& sink) {
    absl::Status status;
    for (const auto& [name, bytes] : files) {
      if (status.ok()) status = sink.Append(name, bytes);
    }
    return status;
  };
}

}  // namespace psring
