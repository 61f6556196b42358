// QT_HOST_DEVICE marks functions that are compiled for both the host and the GPU.
#pragma once

#ifdef __CUDACC__
#define QT_HOST_DEVICE __host__ __device__
#else
#define QT_HOST_DEVICE
#endif
