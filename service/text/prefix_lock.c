/* An open file description lock, as that of runs: it works over NFS and ends with the process. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "service/text/tokenize.h"

static void write_holder(int fd)
{
    char host[65] = "", text[128];
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "process %d on %s", (int)getpid(), host);
    if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) < 0)
        hd__log(HD_LOG_WARN, NULL, "a lock's text cannot be written: %s", strerror(errno));
}

static void read_holder(int fd, char *holder)
{
    ssize_t n = pread(fd, holder, 127, 0);
    holder[n > 0 ? n : 0] = 0;
    if (n <= 0)
        snprintf(holder, 128, "another process");
    hd__printable(holder);
}

int32_t hd__prefix_lock(const char *prefix, int *fd, char *holder, struct hd_error *err)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char *path = hd__format("%s.lock", prefix);
    int32_t rc = HD_OK;
    int why = hd__make_folders(path);
    for (*fd = -1; !rc && *fd == -1;) {
        struct stat st;
        int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
        if (file < 0 || fstat(file, &st)) {
            rc = hd_fail(err, HD_E_IO, "%s: %s", path, why ? strerror(why) : strerror(errno));
        } else if (fcntl(file, F_OFD_SETLK, &whole)) {
            if (errno == EAGAIN || errno == EACCES) {
                read_holder(file, holder);
                close(file);
                break;
            }
            hd__log(HD_LOG_WARN, NULL, "%s: this file system has no locks (%s): a second writer would not be noticed",
                    path, strerror(errno));
            *fd = -2;
        } else if (!fstat(file, &st) && st.st_nlink) {
            write_holder(*fd = file);
        } /* else the holder before has removed it: once more */
        if (file >= 0 && *fd != file)
            close(file);
    }
    free(path);
    return rc;
}

void hd__prefix_unlock(const char *prefix, int fd)
{
    char *path = hd__format("%s.lock", prefix);
    if (fd != -1)
        unlink(path);
    if (fd >= 0)
        close(fd);
    free(path);
}
