/* Is there a GPU? Said at `heddle plugins`, and to a job that asks for one.
 *
 * A process that has called CUDA and then forks has children that cannot: the launcher asks before it forks its ranks.
 * So a child asks, and tells. Ranks inherit a good answer. */
#include "internal.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEAST_MAJOR = 8, PATIENCE_MS = 60000 };

int32_t cu_count(int32_t *count, struct hd_error *err)
{
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc == cudaErrorInsufficientDriver || rc == cudaErrorStubLibrary)
        return hd_fail(err, HD_E_UNSUPPORTED, "no usable NVIDIA driver: %s", cudaGetErrorString(rc));
    if (rc == cudaErrorNoDevice || (rc == cudaSuccess && n == 0))
        return hd_fail(err, HD_E_UNSUPPORTED, "no NVIDIA GPU (CUDA_VISIBLE_DEVICES may hide it)");
    if (rc != cudaSuccess)
        return cu_fail(err, rc, NULL, "counting NVIDIA GPUs");
    *count = n;
    return HD_OK;
}

static int32_t find_gpu(struct hd_error *err)
{
    int32_t n = 0, rc = cu_count(&n, err);
    for (int32_t i = 0; i < n && rc == HD_OK; i++) {
        int major;
        rc = cu_fail(err, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i), NULL,
                     "asking a GPU what it is");
        if (rc == HD_OK && major >= LEAST_MAJOR)
            return HD_OK;
    }
    return rc ? rc : hd_fail(err, HD_E_UNSUPPORTED, "no GPU of compute capability %d.0 or newer", LEAST_MAJOR);
}

/* Reads the child's result, or reports that it did not come back. */
static int32_t hear(int from, struct hd_error *err)
{
    struct hd_error found = HD_ERROR_INIT;
    struct pollfd ready = {.fd = from, .events = POLLIN};
    int rc;
    do
        rc = poll(&ready, 1, PATIENCE_MS);
    while (rc < 0 && errno == EINTR);
    if (rc == 0)
        return hd_fail(err, HD_E_TIMEOUT, "the NVIDIA driver did not answer within %d s", PATIENCE_MS / 1000);
    if (rc < 0 || read(from, &found, sizeof found) != (ssize_t)sizeof found)
        return hd_fail(err, HD_E_IO, "the NVIDIA driver ended the process that asked it for GPUs");
    if (found.code)
        hd_error_copy(err, &found);
    return found.code;
}

/* One write: less than a pipe takes at once. */
_Static_assert(sizeof(struct hd_error) <= 4096, "PIPE_BUF");

int32_t cu_probe(const struct hd_host *host, struct hd_error *err)
{
    static int32_t usable;
    int ends[2];
    (void)host;
    if (usable)
        return HD_OK;
    if (pipe(ends))
        return hd_fail(err, HD_E_IO, "no pipe to ask for GPUs with: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        struct hd_error found = HD_ERROR_INIT;
        found.code = find_gpu(&found);
        if (write(ends[1], &found, sizeof found) == (ssize_t)sizeof found)
            raise(SIGKILL); /* no handler of the parent's may run */
        raise(SIGABRT);
    }
    close(ends[1]);
    int32_t rc =
        child < 0 ? hd_fail(err, HD_E_IO, "no process to ask for GPUs with: %s", strerror(errno)) : hear(ends[0], err);
    close(ends[0]);
    if (child > 0) {
        if (rc == HD_E_TIMEOUT)
            kill(child, SIGKILL);
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    usable = rc == HD_OK;
    return rc;
}
