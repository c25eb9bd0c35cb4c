#include "ring_worker/groups/nccl_library.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/dynamic_library.h"
#include "common/base/errors.h"

// PSRING_NCCL_LIBRARIES comes from CMake: the folder in which the build searches for NCCL.

namespace psring {
namespace {

std::string VersionText(int code) {
  return absl::StrCat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

}  // namespace

absl::Status NcclLibrary::ToStatus(const std::string& what, ncclResult_t result) const {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return Unavailable(what, ": ", GetErrorString(result));
}

absl::StatusOr<NcclLibrary> LoadNccl() {
  const std::string name = "libnccl.so.2";
  const absl::StatusOr<DynamicLibrary> library =
      DynamicLibrary::Open({name, absl::StrCat(PSRING_NCCL_LIBRARIES, "/", name)});
  if (!library.ok()) {
    return FailedPrecondition(
        "NCCL was not found: ", library.status().message(),
        "; install libnccl2 (NVIDIA's apt repository) or pip's nvidia-nccl, and put the folder of ", name,
        " into LD_LIBRARY_PATH");
  }
  NcclLibrary f;
  PSRING_RETURN_IF_ERROR(library->Bind("ncclGetVersion", f.GetVersion));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclGetUniqueId", f.GetUniqueId));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclCommInitRankConfig", f.CommInitRankConfig));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclCommSplit", f.CommSplit));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclCommFinalize", f.CommFinalize));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclCommDestroy", f.CommDestroy));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclCommAbort", f.CommAbort));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclCommGetAsyncError", f.CommGetAsyncError));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclGetErrorString", f.GetErrorString));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclGetLastError", f.GetLastError));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclAllReduce", f.AllReduce));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclReduceScatter", f.ReduceScatter));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclAllGather", f.AllGather));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclBroadcast", f.Broadcast));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclSend", f.Send));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclRecv", f.Recv));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclGroupStart", f.GroupStart));
  PSRING_RETURN_IF_ERROR(library->Bind("ncclGroupEnd", f.GroupEnd));
  int version = 0;
  PSRING_RETURN_IF_ERROR(f.ToStatus("ncclGetVersion", f.GetVersion(&version)));
  f.version = VersionText(version);
  // A newer library of the same major version understands our configuration; an older one may not.
  if (version < NCCL_VERSION_CODE) {
    return FailedPrecondition("this machine's NCCL is ", f.version, ", and this build needs ",
                              VersionText(NCCL_VERSION_CODE),
                              " or newer; update it, or build psring again here");
  }
  return f;
}

}  // namespace psring
