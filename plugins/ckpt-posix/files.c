/* Files of a checkpoint under construction. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum { LARGE = 1 << 20 };

int32_t posix_check_name(const char *name, struct hd_error *err)
{
    if (!*name || name[0] == '.' || strchr(name, '/') || strlen(name) > 200)
        return hd_fail(err, HD_E_INVALID, "checkpoint: '%.64s' is not a valid file name", name);
    return HD_OK;
}

/* ---- open files */

static struct posix_file *find_file(struct hd_ckpt_tx *tx, const char *name)
{
    for (uint32_t i = 0; i < tx->n_files; i++)
        if (!strcmp(tx->files[i].name, name))
            return &tx->files[i];
    return NULL;
}

static int32_t add_file(struct hd_ckpt_tx *tx, const char *name, struct posix_file *out, struct hd_error *err)
{
    struct posix_file f = {strdup(name), -1, -1}, *files = realloc(tx->files, (tx->n_files + 1) * sizeof *files);
    if (files)
        tx->files = files;
    if (!files || !f.name) {
        free(f.name);
        return hd_fail(err, HD_E_NOMEM, "%s/%s: no memory", tx->folder, name);
    }
    f.fd = openat(tx->folder_fd, name, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (f.fd < 0) {
        free(f.name);
        err->native = errno;
        return hd_fail(err, HD_E_IO, "%s/%s: %s", tx->folder, name, strerror(errno));
    }
    if (tx->ckpt->settings->direct)
        f.direct = openat(tx->folder_fd, name, O_WRONLY | O_DIRECT | O_CLOEXEC);
    tx->files[tx->n_files++] = *out = f;
    return HD_OK;
}

/* Copies the entry, because the array moves while other threads add files. */
static int32_t get_file(struct hd_ckpt_tx *tx, const char *name, struct posix_file *out, struct hd_error *err)
{
    int32_t rc = posix_check_name(name, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&tx->lock);
    const struct posix_file *f = find_file(tx, name);
    if (f)
        *out = *f;
    else
        rc = add_file(tx, name, out, err);
    pthread_mutex_unlock(&tx->lock);
    return rc;
}

void posix_tx_free(struct hd_ckpt_tx *tx)
{
    for (uint32_t i = 0; i < tx->n_files; i++) {
        close(tx->files[i].fd);
        if (tx->files[i].direct >= 0)
            close(tx->files[i].direct);
        free(tx->files[i].name);
    }
    if (tx->folder_fd >= 0)
        close(tx->folder_fd);
    pthread_mutex_destroy(&tx->lock);
    free(tx->files);
    free(tx->folder);
    free(tx->name);
    free(tx);
}

/* ---- writing */

static int32_t write_all(struct hd_ckpt_tx *tx, const char *file, int fd, uint64_t offset, const char *data,
                         uint64_t bytes, struct hd_error *err)
{
    while (bytes) {
        ssize_t n = pwrite(fd, data, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            err->native = n ? errno : ENOSPC;
            return hd_fail(err, HD_E_IO, "%s/%s: writing %llu bytes at %llu: %s", tx->folder, file,
                           (unsigned long long)bytes, (unsigned long long)offset, strerror((int)err->native));
        }
        data += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return HD_OK;
}

/* Writes through the page cache and starts writeback at once, so that fsync finds little left to do. */
static int32_t write_cached(struct hd_ckpt_tx *tx, const struct posix_file *f, uint64_t offset, const char *data,
                            uint64_t bytes, struct hd_error *err)
{
    int32_t rc = write_all(tx, f->name, f->fd, offset, data, bytes, err);
    if (!rc && bytes >= LARGE)
        sync_file_range(f->fd, (off_t)offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    return rc;
}

/* Clients of NFS keep whole pages: of one that two machines write parts of, each could write back old bytes of the
 * other's. Taking a lock drops what is kept, giving it back writes it (Linux: nfs(5), "Using file locks with NFS").
 * Filesystems without locks are local, or coherent by themselves. */
static int32_t lock_pages(struct hd_ckpt_tx *tx, const struct posix_file *f, short type, uint64_t offset,
                          uint64_t bytes, struct hd_error *err)
{
    uint64_t first = offset / POSIX_PAGE * POSIX_PAGE;
    struct flock lock = {.l_type = type,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)first,
                         .l_len = (off_t)((offset + bytes - first + POSIX_PAGE - 1) / POSIX_PAGE * POSIX_PAGE)};
    while (fcntl(f->fd, F_OFD_SETLKW, &lock)) {
        if (errno == EINTR)
            continue;
        if (errno == ENOLCK && !atomic_exchange(&tx->without_locks, 1))
            tx->ckpt->host->log(HD_LOG_WARN, "ckpt-posix",
                                "%s: no locks can be had here: where several machines write it, mount NFS with them",
                                tx->folder);
        if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL)
            return HD_OK;
        err->native = errno;
        return hd_fail(err, HD_E_IO, "%s/%s: cannot be locked: %s", tx->folder, f->name, strerror(errno));
    }
    return HD_OK;
}

/* A part of a page, or of two. */
static int32_t write_part(struct hd_ckpt_tx *tx, const struct posix_file *f, uint64_t offset, const char *data,
                          uint64_t bytes, struct hd_error *err)
{
    int32_t rc = bytes ? lock_pages(tx, f, F_WRLCK, offset, bytes, err) : HD_OK;
    if (rc || !bytes)
        return rc;
    rc = write_all(tx, f->name, f->fd, offset, data, bytes, err);
    int32_t unlocked = lock_pages(tx, f, F_UNLCK, offset, bytes, err);
    return rc ? rc : unlocked;
}

int32_t posix_write(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, const void *data, uint64_t bytes,
                    struct hd_error *err)
{
    struct posix_file f;
    const char *p = data;
    int32_t rc = get_file(tx, file, &f, err);
    if (rc)
        return rc;
    uint64_t head = (POSIX_PAGE - offset % POSIX_PAGE) % POSIX_PAGE, body;
    head = head < bytes ? head : bytes;
    body = (bytes - head) / POSIX_PAGE * POSIX_PAGE;
    int direct = f.direct >= 0 && !((uintptr_t)(p + head) % POSIX_PAGE);
    rc = write_part(tx, &f, offset, p, head, err);
    if (!rc)
        rc = direct ? write_all(tx, f.name, f.direct, offset + head, p + head, body, err)
                    : write_cached(tx, &f, offset + head, p + head, body, err);
    if (!rc)
        rc = write_part(tx, &f, offset + head + body, p + head + body, bytes - head - body, err);
    return rc;
}

int32_t posix_read_at(int fd, const char *folder, const char *file, uint64_t offset, void *data, uint64_t bytes,
                      struct hd_error *err)
{
    char *p = data;
    while (bytes) {
        ssize_t n = pread(fd, p, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            err->native = errno;
            return hd_fail(err, HD_E_IO, "%s/%s: reading at %llu: %s", folder, file, (unsigned long long)offset,
                           strerror(errno));
        }
        if (!n)
            return hd_fail(err, HD_E_CORRUPT, "%s/%s: ends at byte %llu, %llu bytes are missing", folder, file,
                           (unsigned long long)offset, (unsigned long long)bytes);
        p += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return HD_OK;
}

int32_t posix_read_back(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, void *data, uint64_t bytes,
                        struct hd_error *err)
{
    struct posix_file f;
    int32_t rc = get_file(tx, file, &f, err);
    if (rc || (rc = lock_pages(tx, &f, F_RDLCK, offset, bytes, err)))
        return rc;
    rc = posix_read_at(f.fd, tx->folder, file, offset, data, bytes, err);
    int32_t unlocked = lock_pages(tx, &f, F_UNLCK, offset, bytes, err);
    return rc ? rc : unlocked;
}

int32_t posix_flush(struct hd_ckpt_tx *tx, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (!tx->ckpt->settings->fsync)
        return HD_OK;
    pthread_mutex_lock(&tx->lock);
    for (uint32_t i = 0; i < tx->n_files && !rc; i++) {
        if (fsync(tx->files[i].fd)) {
            err->native = errno;
            rc = hd_fail(err, HD_E_IO, "%s/%s: fsync: %s", tx->folder, tx->files[i].name, strerror(errno));
        }
    }
    pthread_mutex_unlock(&tx->lock);
    return rc;
}
