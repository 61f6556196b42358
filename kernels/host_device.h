// Functions that run on both sides of a GPU's bus.
#pragma once

#ifdef __CUDACC__
#define QT_HOST_DEVICE __host__ __device__
#else
#define QT_HOST_DEVICE
#endif
