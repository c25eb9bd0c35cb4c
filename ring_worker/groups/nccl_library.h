// NCCL's functions. The library is loaded when a group of GPUs is created (common/base/dynamic_library.h).
#pragma once

#include <nccl.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psring {

struct NcclLibrary {
  decltype(ncclGetVersion)* GetVersion;
  decltype(ncclGetUniqueId)* GetUniqueId;
  decltype(ncclCommInitRankConfig)* CommInitRankConfig;
  decltype(ncclCommSplit)* CommSplit;
  decltype(ncclCommFinalize)* CommFinalize;
  decltype(ncclCommDestroy)* CommDestroy;
  decltype(ncclCommAbort)* CommAbort;
  decltype(ncclCommGetAsyncError)* CommGetAsyncError;
  decltype(ncclGetErrorString)* GetErrorString;
  decltype(ncclGetLastError)* GetLastError;
  decltype(ncclAllReduce)* AllReduce;
  decltype(ncclReduceScatter)* ReduceScatter;
  decltype(ncclAllGather)* AllGather;
  decltype(ncclBroadcast)* Broadcast;
  decltype(ncclSend)* Send;
  decltype(ncclRecv)* Recv;
  decltype(ncclGroupStart)* GroupStart;
  decltype(ncclGroupEnd)* GroupEnd;

  std::string version;  // "2.28.9"

  // Unavailable, "what: unhandled cuda error"; an operation in progress is not an error.
  absl::Status ToStatus(const std::string& what, ncclResult_t result) const;
};

// FailedPrecondition: not found (names the places searched, and how to install it), or older than the version
// of this build (names both).
absl::StatusOr<NcclLibrary> LoadNccl();

}  // namespace psring
