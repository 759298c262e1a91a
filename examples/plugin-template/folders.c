/* ckpt-folders: checkpoints as folders, each renamed into place when it is complete. Nothing is cached: a write is a
 * pwrite, and flush an fsync of every file, so any thread may call anything. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "heddle/ckpt.h"
#include "heddle/host.h"

struct hd_ckpt {
    char dir[4096];
};

struct hd_ckpt_tx {
    struct hd_ckpt *ckpt;
    int32_t leader;
    char name[200], folder[4400]; /* DIR/.new-NAME until it is renamed */
};

static int32_t failed(struct hd_error *err, const char *path)
{
    return hd_fail(err, errno == ENOENT ? HD_E_NOTFOUND : HD_E_IO, "%s: %s", path, strerror(errno));
}

/* Removes a folder of files, or says with errno why not. */
static int remove_folder(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    return rmdir(path);
}

static int32_t sync_path(const char *path, struct hd_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), bad = fd < 0 || fsync(fd);
    int32_t rc = bad ? failed(err, path) : HD_OK;
    if (fd >= 0)
        close(fd);
    return rc;
}

static int32_t folders_open(const struct hd_host *host, const void *settings, const char *location,
                            struct hd_ckpt **ckpt, struct hd_error *err)
{
    struct hd_ckpt *c = calloc(1, sizeof *c);
    (void)host, (void)settings; /* it has no options */
    if (!c || strlen(location) >= sizeof c->dir)
        return free(c), hd_fail(err, HD_E_INVALID, "checkpoint.dir: %s is too long", location);
    strcpy(c->dir, location);
    *ckpt = c;
    return HD_OK;
}

static void folders_close(struct hd_ckpt *c)
{
    free(c);
}

/* mkdir -p */
static int make_folders(char *path)
{
    for (char *at = path + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = '\0';
        mkdir(path, 0777);
    }
    return mkdir(path, 0777) && errno != EEXIST;
}

static int32_t folders_begin(struct hd_ckpt *c, const char *name, int32_t leader, struct hd_ckpt_tx **tx,
                             struct hd_error *err)
{
    struct hd_ckpt_tx *t = calloc(1, sizeof *t);
    if (!t || strlen(name) >= sizeof t->name)
        return free(t), hd_fail(err, HD_E_INVALID, "%s: the name of a checkpoint is too long", name);
    t->ckpt = c;
    t->leader = leader;
    strcpy(t->name, name);
    snprintf(t->folder, sizeof t->folder, "%s/.new-%s", c->dir, name);
    if (leader) { /* what an interrupted attempt left is in the way */
        remove_folder(t->folder);
        if (make_folders(c->dir) || mkdir(t->folder, 0777)) {
            int32_t rc = failed(err, t->folder);
            return free(t), rc;
        }
    }
    *tx = t;
    return HD_OK;
}

static int32_t move(const char *folder, const char *file, int flags, uint64_t offset, void *data, uint64_t bytes,
                    struct hd_error *err)
{
    char path[4800];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    int fd = open(path, flags | O_CLOEXEC, 0666);
    int32_t rc = fd < 0 ? failed(err, path) : HD_OK;
    while (bytes && !rc) {
        ssize_t n = flags & O_CREAT ? pwrite(fd, data, bytes, (off_t)offset) : pread(fd, data, bytes, (off_t)offset);
        if (n == 0)
            rc = hd_fail(err, HD_E_IO, "%s ends %llu bytes too early", path, (unsigned long long)bytes);
        else if (n < 0 && errno != EINTR)
            rc = failed(err, path);
        else if (n > 0)
            bytes -= (uint64_t)n, offset += (uint64_t)n, data = (char *)data + n;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

static int32_t folders_write(struct hd_ckpt_tx *t, const char *file, uint64_t offset, const void *data, uint64_t bytes,
                             struct hd_error *err)
{
    return move(t->folder, file, O_WRONLY | O_CREAT, offset, (void *)data, bytes, err);
}

static int32_t folders_read_back(struct hd_ckpt_tx *t, const char *file, uint64_t offset, void *data, uint64_t bytes,
                                 struct hd_error *err)
{
    return move(t->folder, file, O_RDONLY, offset, data, bytes, err);
}

static int32_t folders_flush(struct hd_ckpt_tx *t, struct hd_error *err)
{
    int32_t rc = HD_OK;
    DIR *dir = opendir(t->folder);
    if (!dir)
        return failed(err, t->folder);
    for (struct dirent *e; !rc && (e = readdir(dir));) {
        char path[4800];
        snprintf(path, sizeof path, "%s/%s", t->folder, e->d_name);
        rc = e->d_name[0] == '.' ? HD_OK : sync_path(path, err);
    }
    closedir(dir);
    return rc ? rc : sync_path(t->folder, err);
}

/* A folder of that name is exchanged, so that the name always means a whole checkpoint. */
static int32_t folders_commit(struct hd_ckpt_tx *t, struct hd_error *err)
{
    char path[4400];
    int32_t rc = HD_OK;
    snprintf(path, sizeof path, "%s/%s", t->ckpt->dir, t->name);
    if (t->leader) {
        int again = !access(path, F_OK);
        if (again ? renameat2(AT_FDCWD, t->folder, AT_FDCWD, path, RENAME_EXCHANGE) : rename(t->folder, path))
            rc = failed(err, path);
        rc = rc ? rc : sync_path(t->ckpt->dir, err);
        if (again && !rc)
            remove_folder(t->folder);
    }
    free(t);
    return rc;
}

static void folders_cancel(struct hd_ckpt_tx *t)
{
    if (t->leader)
        remove_folder(t->folder);
    free(t);
}

static int visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static int32_t folders_list(struct hd_ckpt *c, void (*visit)(void *user, const char *name), void *user,
                            struct hd_error *err)
{
    struct dirent **names;
    int n = scandir(c->dir, &names, visible, versionsort);
    if (n < 0)
        return errno == ENOENT ? HD_OK : failed(err, c->dir);
    for (int i = 0; i < n; free(names[i++]))
        visit(user, names[i]->d_name);
    free(names);
    return HD_OK;
}

static int32_t folders_size(struct hd_ckpt *c, const char *name, const char *file, uint64_t *bytes,
                            struct hd_error *err)
{
    char path[4800];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s/%s", c->dir, name, file);
    if (stat(path, &st))
        return failed(err, path);
    *bytes = (uint64_t)st.st_size;
    return HD_OK;
}

static int32_t folders_read(struct hd_ckpt *c, const char *name, const char *file, uint64_t offset, void *data,
                            uint64_t bytes, struct hd_error *err)
{
    char folder[4400];
    snprintf(folder, sizeof folder, "%s/%s", c->dir, name);
    return move(folder, file, O_RDONLY, offset, data, bytes, err);
}

/* Renamed first: what is half removed has no name any more. */
static int32_t folders_remove(struct hd_ckpt *c, const char *name, struct hd_error *err)
{
    char path[4400], aside[4400];
    snprintf(path, sizeof path, "%s/%s", c->dir, name);
    snprintf(aside, sizeof aside, "%s/.new-%s", c->dir, name);
    remove_folder(aside);
    return rename(path, aside) || remove_folder(aside) ? failed(err, path) : HD_OK;
}

static const struct hd_ckpt_ops ops = {
    .struct_size = sizeof ops,
    .open = folders_open,
    .close = folders_close,
    .begin = folders_begin,
    .write = folders_write,
    .flush = folders_flush,
    .commit = folders_commit,
    .cancel = folders_cancel,
    .list = folders_list,
    .size = folders_size,
    .read = folders_read,
    .remove = folders_remove,
    .read_back = folders_read_back,
};

HD_PLUGIN("ckpt-folders", "1.0.0", "Apache-2.0", .kind = HD_KIND_CKPT, .name = "folders",
          .summary = "checkpoints as folders, renamed into place", .ops = &ops)
