/* Host pools: host memory and an unlinked file, besides the arena. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/exec/copy/copy.h"

/* Without O_TMPFILE (NFS, overlays of old kernels) the file has a name for a moment. */
static int open_unnamed_file(const char *folder, int flags)
{
    char name[4096];
    int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return file;
    if (snprintf(name, sizeof name, "%s/.heddle-XXXXXX", folder) >= (int)sizeof name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    file = mkostemp(name, O_CLOEXEC | flags);
    if (file >= 0)
        unlink(name);
    return file;
}

/* O_DIRECT where the file system has it: the state is larger than the page cache. */
static int32_t open_file(const char *folder, int64_t bytes, int *file, struct hd_error *err)
{
    int fd = open_unnamed_file(folder, O_DIRECT);
    if (fd < 0 && errno == EINVAL)
        fd = open_unnamed_file(folder, 0);
    if (fd < 0)
        return hd_fail(err, HD_E_IO, "cannot create the offload file in %s (offload.path): %s", folder,
                       strerror(errno));
    if (fallocate(fd, 0, 0, bytes) && (errno != EOPNOTSUPP || ftruncate(fd, bytes))) {
        int why = errno;
        close(fd);
        return hd_fail(err, HD_E_IO, "no room for %lld bytes of offloaded state in %s (offload.path): %s",
                       (long long)bytes, folder, strerror(why));
    }
    *file = fd;
    return HD_OK;
}

/* Pinned memory for asynchronous copies. */
static int32_t alloc_pinned(const struct hd__device *d, struct hd__host_pools *m, int64_t bytes, struct hd_error *err)
{
    int32_t rc = hd__exec_device_alloc_pinned(d, (size_t)bytes, &m->base[HD__MEM_HOST], err);
    if (rc)
        return rc;
    memset(m->base[HD__MEM_HOST], 0, (size_t)bytes);
    m->bytes[HD__MEM_HOST] = bytes;
    return HD_OK;
}

static int32_t map_pool(struct hd__host_pools *m, int memory, int64_t bytes, struct hd_error *err)
{
    int flags = memory == HD__MEM_FILE ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, flags, memory == HD__MEM_FILE ? m->file : -1, 0);
    if (base == MAP_FAILED)
        return hd_fail(err, HD_E_NOMEM, "cannot map %lld bytes of %s memory: %s", (long long)bytes,
                       memory == HD__MEM_FILE ? "file" : "host", strerror(errno));
    m->base[memory] = base;
    m->bytes[memory] = bytes;
    return HD_OK;
}

void hd__exec_touch_pages(char *memory, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 4096)
        *(volatile char *)(memory + at) = 0;
}

int32_t hd__exec_check_offload(const struct hd_program *p, struct hd_error *err)
{
    int file = -1;
    if (!p->bytes[HD__MEM_FILE])
        return HD_OK;
    int32_t rc = open_file(p->file_folder ? p->file_folder : ".", p->bytes[HD__MEM_FILE], &file, err);
    if (!rc)
        close(file);
    return rc;
}

int32_t hd__exec_host_pools_open(struct hd_program *p, void *arena, const struct hd__device *device,
                                 struct hd__host_pools *m, struct hd_error *err)
{
    int32_t rc = HD_OK;
    *m = (struct hd__host_pools){.file = -1};
    if (p->bytes[HD__MEM_FILE])
        rc = open_file(p->file_folder ? p->file_folder : ".", p->bytes[HD__MEM_FILE], &m->file, err);
    for (int memory = 1; memory < HD__MEM_COUNT && !rc; memory++) {
        if (!p->bytes[memory])
            continue;
        rc = memory == HD__MEM_HOST && device->streams ? alloc_pinned(device, m, p->bytes[memory], err)
                                                       : map_pool(m, memory, p->bytes[memory], err);
        if (!rc)
            p->arena_base[memory] = (int64_t)((uintptr_t)m->base[memory] - (uintptr_t)arena);
    }
    if (!rc && m->base[HD__MEM_HOST] && !device->streams) {
        madvise(m->base[HD__MEM_HOST], (size_t)m->bytes[HD__MEM_HOST], MADV_HUGEPAGE);
        hd__exec_touch_pages(m->base[HD__MEM_HOST], m->bytes[HD__MEM_HOST]);
    }
    if (rc)
        hd__exec_host_pools_close(m, device);
    return rc;
}

void hd__exec_host_pools_close(struct hd__host_pools *m, const struct hd__device *device)
{
    for (int memory = 1; memory < HD__MEM_COUNT; memory++)
        if (m->base[memory] && memory == HD__MEM_HOST && device->streams)
            hd__exec_device_free_pinned(device, m->base[memory]);
        else if (m->base[memory])
            munmap(m->base[memory], (size_t)m->bytes[memory]);
    if (m->bytes[HD__MEM_FILE] || m->file > 0)
        close(m->file);
    *m = (struct hd__host_pools){.file = -1};
}
