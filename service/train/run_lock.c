/* An open file description lock: fcntl's, so that it works over NFS as well. */
#include "service/train/run_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/file.h"

int32_t hd__run_id(char id[HD__RUN_ID], struct hd_error *err)
{
    uint64_t bits;
    if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
        return hd_fail(err, HD_E_IO, "no random numbers for the run's id: %s", strerror(errno));
    snprintf(id, HD__RUN_ID, "%016" PRIx64, bits);
    return HD_OK;
}

/* Field 22 of /proc/self/stat, in clock ticks since the boot: a number of a process is given again, this is not. */
static int64_t process_start(void)
{
    char text[1024] = "";
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    const char *at = n > 0 ? strrchr(text, ')') : NULL;
    if (fd >= 0)
        close(fd);
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoll(at, NULL, 10) : 0;
}

static void write_text(int fd, const char *run)
{
    char host[65] = "", since[32];
    time_t now = time(NULL);
    struct tm utc;
    gethostname(host, sizeof host - 1);
    strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &utc));
    json_t *o = json_pack("{s:s, s:I, s:I, s:s, s:s}", "host", host, "pid", (json_int_t)getpid(), "process_start",
                          (json_int_t)process_start(), "since", since, "run", run);
    char *text = json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII);
    /* The text is for people: a lock without it is a lock. */
    if (text && (ftruncate(fd, 0) || pwrite(fd, text, strlen(text), 0) < 0))
        hd__log(HD_LOG_WARN, NULL, "a lock's text cannot be written: %s", strerror(errno));
    free(text);
    json_decref(o);
}

static int32_t in_use(const char *folder, int fd, struct hd_error *err)
{
    char text[1024];
    ssize_t n = pread(fd, text, sizeof text, 0);
    json_t *o = n > 0 ? json_loadb(text, (size_t)n, 0, NULL) : NULL;
    const char *host = json_string_value(json_object_get(o, "host")),
               *since = json_string_value(json_object_get(o, "since")),
               *run = json_string_value(json_object_get(o, "run"));
    if (host && since && run)
        hd_fail(err, HD_E_INVALID,
                "%s is in use by process %lld on %.64s since %.32s%s%.16s: wait for its end, or "
                "take another job.name (and checkpoint.dir, metrics.jsonl where they are set)",
                folder, (long long)json_integer_value(json_object_get(o, "pid")), host, since, *run ? ", run " : "",
                run);
    else
        hd_fail(err, HD_E_INVALID, "%s is in use by another process: wait for its end, or take another job.name",
                folder);
    json_decref(o);
    return HD_E_INVALID;
}

int32_t hd__run_lock_folder(const char *folder, int *fd, struct hd_error *err)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat st;
    if (strstr(folder, "://")) /* a store of objects has no locks */
        return HD_OK;
    char *path = hd__format("%s/.heddle-lock", folder);
    int why = hd__make_folders(path);
    int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    int32_t rc = HD_OK;
    if (file < 0) {
        rc = hd_fail(err, HD_E_IO, "%s: %s", path,
                     why              ? strerror(why)
                     : errno == ELOOP ? "a symbolic link: remove it"
                                      : strerror(errno));
    } else if (fstat(file, &st) || !S_ISREG(st.st_mode)) {
        rc = hd_fail(err, HD_E_INVALID, "%s: not a regular file: move it away", path);
    } else if (!fcntl(file, F_OFD_SETLK, &whole)) {
        *fd = file;
        write_text(file, "");
    } else if (errno == EAGAIN || errno == EACCES) {
        rc = in_use(folder, file, err);
    } else {
        hd__log(HD_LOG_WARN, NULL, "%s: this file system has no locks (%s): a second job in %s would not be noticed",
                path, strerror(errno), folder);
    }
    if (file >= 0 && *fd < 0)
        close(file);
    free(path);
    return rc;
}

int32_t hd__run_locks_take(struct hd__job *job, struct hd__run_locks *locks, struct hd_error *err)
{
    const char *named = hd__arena_format(&job->arena, "runs/%s", job->name), *folder = hd__job_folder(job),
               *dir = job->checkpoint_dir;
    int32_t rc = HD_OK;
    *locks = (struct hd__run_locks){{-1, -1}, {folder, dir}};
    if ((job->trace.ends || !strcmp(folder, named)) && (rc = hd__run_lock_folder(folder, &locks->fd[0], err)))
        return hd__job_locate_error(job, "job.name", err);
    if (dir && (rc = hd__run_lock_folder(dir, &locks->fd[1], err)))
        return hd__job_locate_error(job, "checkpoint.dir", err);
    return HD_OK;
}

int32_t hd__run_locks_check(struct hd__run_locks *locks, const char *run, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (size_t i = 0; i < HD__COUNT(locks->fd) && !rc; i++) {
        struct stat ours, there;
        if (locks->fd[i] < 0 || fstat(locks->fd[i], &ours))
            continue;
        char *path = hd__format("%s/.heddle-lock", locks->folder[i]);
        int why = stat(path, &there) ? errno : 0;
        free(path);
        if (why == ENOENT) {
            hd__log(HD_LOG_WARN, NULL,
                    "%s was renamed or removed, or its .heddle-lock was: it is locked again, and later checkpoints are "
                    "saved by this name",
                    locks->folder[i]);
            close(locks->fd[i]);
            locks->fd[i] = -1;
            rc = hd__run_lock_folder(locks->folder[i], &locks->fd[i], err);
            hd__run_locks_name(locks, run);
        } else if (!why && (there.st_ino != ours.st_ino || there.st_dev != ours.st_dev)) {
            rc = hd_fail(err, HD_E_IO,
                         "%s is no longer the folder that this run locked: it was renamed or removed, and another job "
                         "may write here; checkpoints moved with it: go on from there with another job.name and "
                         "checkpoint.resume=PATH",
                         locks->folder[i]);
        }
    }
    return rc;
}

void hd__run_locks_name(const struct hd__run_locks *locks, const char *run)
{
    for (size_t i = 0; i < HD__COUNT(locks->fd); i++)
        if (locks->fd[i] >= 0)
            write_text(locks->fd[i], run);
}

void hd__run_locks_release(struct hd__run_locks *locks)
{
    for (size_t i = 0; i < HD__COUNT(locks->fd); i++)
        if (locks->fd[i] >= 0)
            close(locks->fd[i]);
}
