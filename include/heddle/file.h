/* heddle/file.h: opening files that a job names. */
#ifndef HEDDLE_FILE_H
#define HEDDLE_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "heddle/types.h"

#ifdef O_CLOEXEC /* POSIX, which -std=c11 alone leaves out: -std=gnu11, or _GNU_SOURCE */
/* Names of several files with commas between them, the first of which is there: a list without its brackets? */
static inline int hd_path_is_list(const char *path)
{
    char first[4096];
    struct stat st;
    size_t n = strcspn(path, ",");
    if (!path[n] || n >= sizeof first)
        return 0;
    memcpy(first, path, n);
    first[n] = 0;
    return stat(first, &st) == 0;
}

/* Opens a regular file for reading; *bytes is its size. Anything else is refused at once: a FIFO without a writer would
 * block. HD_E_NOTFOUND, HD_E_IO, HD_E_INVALID; the message begins with the path. */
static inline int32_t hd_open_regular(const char *path, int *fd, uint64_t *bytes, struct hd_error *err)
{
    struct stat st;
    memset(&st, 0, sizeof st);
    int file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC),
        code = file < 0 || fstat(file, &st) ? errno : 0;
    int literal = path[0] == '~' || strpbrk(path, "*?[$") != NULL;
    int is_list = code == ENOENT && !literal && !strstr(path, "://") && hd_path_is_list(path);
    if (!code && S_ISREG(st.st_mode)) {
        *fd = file;
        *bytes = (uint64_t)st.st_size;
        return HD_OK;
    }
    if (file >= 0)
        close(file);
    if (code && code != ENXIO) /* ENXIO: a socket */
        return hd_fail(err, code == ENOENT || code == ENOTDIR ? HD_E_NOTFOUND : HD_E_IO, "%s: %s%s%s%s", path,
                       strerror(code),
                       code != ENOENT        ? ""
                       : strstr(path, "://") ? "; it is a URL, and no plug-in here serves it"
                       : literal             ? "; ~, * and $ are not expanded"
                       : is_list             ? "; several files are a list: ["
                                             : "",
                       is_list ? path : "", is_list ? "]" : "");
    return hd_fail(err, HD_E_INVALID, "%s: not a regular file but a %s", path,
                   code                   ? "socket"
                   : S_ISDIR(st.st_mode)  ? "folder"
                   : S_ISFIFO(st.st_mode) ? "FIFO"
                                          : "device");
}

/* FNV-1a of the first and of the last block, which with the size are enough to tell one file from another without
 * reading all of it; 0: no regular file. */
enum { HD_FILE_END = 65536 }; /* bytes of a block */
static inline uint64_t hd_file_ends(const char *path, uint64_t *bytes)
{
    uint8_t block[HD_FILE_END];
    uint64_t hash = 14695981039346656037u;
    int fd = -1;
    if (hd_open_regular(path, &fd, bytes, NULL))
        return 0;
    for (int last = 0; last < 2; last++) {
        ssize_t n = pread(fd, block, sizeof block, last && *bytes > sizeof block ? (off_t)(*bytes - sizeof block) : 0);
        for (ssize_t i = 0; i < n; i++)
            hash = (hash ^ block[i]) * 1099511628211u;
    }
    close(fd);
    return hash;
}
#endif

#endif
