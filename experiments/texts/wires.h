// What carries payload between processes, in the order in which a row lists several.
#pragma once

#include "common/measure/wires.h"
#include "experiments/texts/phrase.h"

namespace psring {

// English: as in the records. `medium`: what sentences compare, for wires that differ only in the library.
struct WireName {
  Phrase wire;
  Phrase medium;
};

inline constexpr Phrase kSharedMemory = {kSharedMemoryWire, "共享内存"};
inline constexpr Phrase kTcp = {kTcpWire, "TCP"};
inline constexpr Phrase kMpi = {kMpiWire, "MPI"};
inline constexpr Phrase kNccl = {kNcclWire, "NCCL"};
inline constexpr Phrase kCudaIpc = {kCudaIpcWire, "CUDA IPC"};
inline constexpr Phrase kCudaPeer = {kCudaPeerWire, "CUDA 对等访问"};
inline constexpr Phrase kNcclInfiniBand = {kNcclInfiniBandWire, "NCCL（InfiniBand）"};
inline constexpr Phrase kOneProcess = {kOneProcessWire, "同一进程的内存"};

inline constexpr WireName kWireNames[] = {
    {kOneProcess, kOneProcess},
    {kCudaPeer, kCudaPeer},
    {kCudaIpc, kCudaIpc},
    {kSharedMemory, kSharedMemory},
    {kTcp, kTcp},
    {{kGrpcWire, "TCP 上的 gRPC"}, kTcp},
    {{kGlooWire, "TCP 上的 Gloo"}, kTcp},
    {{kMpiSharedMemoryWire, "共享内存上的 MPI"}, kSharedMemory},
    {{kMpiTcpWire, "TCP 上的 MPI"}, kTcp},
    {kMpi, kMpi},
    {{kNcclSocketsWire, "套接字上的 NCCL"}, kTcp},
    {kNcclInfiniBand, kNcclInfiniBand},
    {kNccl, kNccl},
};

}  // namespace psring
