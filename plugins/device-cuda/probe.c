/* Is there a GPU? Said at `heddle plugins`, and to a job that asks for one. */
#include "cu.h"

enum { LEAST_MAJOR = 8 };

int32_t cu_count(int32_t *count, struct hd_error *err)
{
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc == cudaErrorInsufficientDriver || rc == cudaErrorStubLibrary)
        return hd_fail(err, HD_E_UNSUPPORTED, "no usable NVIDIA driver on this machine: %s", cudaGetErrorString(rc));
    if (rc == cudaErrorNoDevice || (rc == cudaSuccess && n == 0))
        return hd_fail(err, HD_E_UNSUPPORTED, "no NVIDIA GPU on this machine (CUDA_VISIBLE_DEVICES may hide it)");
    if (rc != cudaSuccess)
        return cu_fail(err, rc, NULL, "counting NVIDIA GPUs");
    *count = n;
    return HD_OK;
}

int32_t cu_probe(const struct hd_host *host, struct hd_error *err)
{
    int32_t n, rc = cu_count(&n, err);
    (void)host;
    for (int32_t i = 0; i < n && rc == HD_OK; i++) {
        int major;
        rc = cu_fail(err, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i), NULL, "asking a GPU what it is");
        if (rc == HD_OK && major >= LEAST_MAJOR)
            return HD_OK;
    }
    return rc ? rc : hd_fail(err, HD_E_UNSUPPORTED, "no GPU of compute capability %d.0 or newer on this machine", LEAST_MAJOR);
}
