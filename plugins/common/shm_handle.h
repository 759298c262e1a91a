/* Shared memory without a name in any file system: its owner creates a memfd and gives the other processes of the
 * machine a handle, with which they open /proc/PID/fd/N. Nothing is left behind, however a process ends.
 *
 * The nonce in the handle is to be compared with the one in the memory: numbers of processes and files are reused. */
#ifndef HD_COMMON_SHM_HANDLE_H
#define HD_COMMON_SHM_HANDLE_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHM_BOOT_ID "/proc/sys/kernel/random/boot_id"

struct shm_handle {
    uint64_t machine, pid_space; /* the running kernel, and where `pid` means something */
    uint64_t nonce[2], bytes;
    int64_t pid, fd;
};

/* The kernel that runs here: the same for all that share its memory. 0 and errno: it cannot be told. */
static inline uint64_t shm_handle_machine(void)
{
    uint8_t text[128];
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    int fd = open(SHM_BOOT_ID, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof text);
    if (fd < 0)
        return 0;
    close(fd);
    for (ssize_t i = 0; i < n; i++)
        h = (h ^ text[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* A handle of this process; fd, nonce and bytes are the caller's to fill in. */
static inline struct shm_handle shm_handle_here(void)
{
    struct stat st = {0};
    struct shm_handle handle = {.machine = shm_handle_machine(), .pid = getpid(), .fd = -1};
    handle.pid_space = stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
    return handle;
}

/* The file, to be closed by the caller, and its size; -1 and errno. Only for a handle of this machine and pid_space. */
static inline int shm_handle_open(const struct shm_handle *handle, uint64_t *bytes)
{
    struct stat st;
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)handle->pid, (long long)handle->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size < handle->bytes) { /* another's file under that number */
        close(fd);
        errno = ESRCH;
        return -1;
    }
    *bytes = (uint64_t)st.st_size;
    return fd;
}

#endif
