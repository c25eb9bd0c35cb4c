// Properties of this build, set when it is configured.
#pragma once

namespace psring {

extern const char* const kRevision;  // of the sources; empty without git
extern const bool kBuiltWithCuda, kBuiltWithCudnn, kBuiltWithNccl, kBuiltWithGloo, kBuiltWithMpi;
extern const char* const kMpiFamily;  // "Open MPI" or "MPICH"; empty: neither

}  // namespace psring
