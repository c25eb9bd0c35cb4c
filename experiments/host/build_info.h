// What was known when this build was configured.
#pragma once

namespace psring {

extern const char* const kRevision;  // of the sources; empty where there was no git
extern const bool kBuiltWithCuda, kBuiltWithCudnn, kBuiltWithNccl, kBuiltWithGloo, kBuiltWithMpi;
extern const char* const kMpiFamily;  // "Open MPI", "MPICH"; empty: none, or another

}  // namespace psring
