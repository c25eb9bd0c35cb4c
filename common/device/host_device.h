// Marks functions that run on CPUs and GPUs.
#pragma once

#ifdef __CUDACC__
#define PSRING_HOST_DEVICE __host__ __device__
#else
#define PSRING_HOST_DEVICE
#endif
