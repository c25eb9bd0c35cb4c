// Reads whole files that psring did not necessarily write. Errors name the path and the reason.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"

namespace psring {

// Limits of ReadFile.
inline constexpr uint64_t kMaxTextBytes = uint64_t{16} << 20;   // configurations and descriptions
inline constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 30;  // programs and what they wrote: records, logs
// Weights: half of this machine's memory, since they are in memory twice while they are decoded.
uint64_t MostWeightsBytes();

// Whether the last component of a path may be a symbolic link. A name that comes from another file may not.
enum class SymbolicLinks { kFollow, kReject };

// Opens a regular file of at most `most_bytes`. Never waits. NotFound: there is no such file;
// InvalidArgument: it is a FIFO, a device, a folder or a rejected link, or larger; Unavailable: others.
absl::StatusOr<FileDescriptor> OpenRegularFile(const std::string& path, uint64_t most_bytes,
                                               SymbolicLinks links = SymbolicLinks::kFollow);
// Its bytes, with the same errors. Files of /proc and /sys are regular files of unknown size.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t most_bytes = kMaxTextBytes,
                                     SymbolicLinks links = SymbolicLinks::kFollow);

// From errno: "cannot WHAT PATH: No space left on device", NotFound or Unavailable.
absl::Status FileError(const std::string& what, const std::string& path);

}  // namespace psring
