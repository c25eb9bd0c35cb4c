// Names of wires: what carries payload between the processes of a job. A rank's result lists those that it
// used, and the column `wire` of a summary those of all ranks.
#pragma once

namespace psring {

inline constexpr char kSharedMemoryWire[] = "shared memory";
inline constexpr char kTcpWire[] = "TCP";
inline constexpr char kGrpcWire[] = "gRPC over TCP";  // parameter servers
// Memory of GPUs of one machine, between processes and between threads of one process.
inline constexpr char kCudaIpcWire[] = "CUDA IPC";
inline constexpr char kCudaPeerWire[] = "CUDA peer access";
inline constexpr char kGlooWire[] = "Gloo over TCP";
// MPI's and NCCL's own choice, which they do not report.
inline constexpr char kMpiWire[] = "MPI";
inline constexpr char kNcclWire[] = "NCCL";
// They were restricted to one.
inline constexpr char kMpiSharedMemoryWire[] = "MPI over shared memory";
inline constexpr char kMpiTcpWire[] = "MPI over TCP";
inline constexpr char kNcclSocketsWire[] = "NCCL over sockets";
inline constexpr char kNcclInfiniBandWire[] = "NCCL over InfiniBand";
inline constexpr char kOneProcessWire[] = "memory of one process";  // threads

}  // namespace psring
