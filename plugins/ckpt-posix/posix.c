/* The slots of ckpt-posix: folders, renames, listing. */
#include "heddle/file.h"
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define OFFSET(field) .offset = offsetof(struct posix_settings, field)

static const struct hd_option options[] = {
    {.name = "direct",
     .value = "true",
     .type = HD_OPT_BOOL,
     .level = HD_LEVEL_TUNER,
     .help = "write past the page cache (O_DIRECT) where the filesystem can",
     OFFSET(direct)},
    {.name = "fsync",
     .value = "true",
     .type = HD_OPT_BOOL,
     .level = HD_LEVEL_DEV,
     .help = "false: a checkpoint survives a killed job, but not a power failure",
     OFFSET(fsync)},
};

/* ---- paths */

/* "a/b" in new memory; NULL: out of memory. */
static char *join(const char *folder, const char *prefix, const char *name)
{
    char *out = NULL;
    return asprintf(&out, "%s/%s%s", folder, prefix, name) < 0 ? NULL : out;
}

static int32_t no_memory(struct hd_error *err)
{
    return hd_fail(err, HD_E_NOMEM, "ckpt-posix: no memory");
}

static int32_t io_error(struct hd_error *err, const char *path, const char *what)
{
    int why = errno;
    err->native = why;
    return hd_fail(err, why == ENOENT ? HD_E_NOTFOUND : HD_E_IO, "%s: %s%s", path, what, strerror(why));
}

/* mkdir -p */
static int make_folders(const char *path)
{
    char *copy = strdup(path), *p;
    int rc = copy ? 0 : -1;
    for (p = copy; p && (p = strchr(p + 1, '/')) && !rc;) {
        *p = '\0';
        rc = mkdir(copy, 0777) && errno != EEXIST ? -1 : 0;
        *p = '/';
    }
    if (!rc)
        rc = mkdir(path, 0777) && errno != EEXIST ? -1 : 0;
    free(copy);
    return rc;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static int remove_tree(const char *path)
{
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT ? -1 : 0;
}

static int sync_folder(const struct hd_ckpt *ckpt, const char *path)
{
    if (!ckpt->settings->fsync)
        return 0;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 ? -1 : fsync(fd);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* ---- open, close */

static int32_t posix_open(const struct hd_host *host, const void *settings, const char *location, struct hd_ckpt **out,
                          struct hd_error *err)
{
    if (strstr(location, "://"))
        return hd_fail(err, HD_E_INVALID, "%s is a URL: name a folder, which may be a mounted one", location);
    struct hd_ckpt *ckpt = calloc(1, sizeof *ckpt);
    if (!ckpt || !*location || !(ckpt->dir = strdup(location))) {
        free(ckpt);
        return *location ? no_memory(err) : hd_fail(err, HD_E_INVALID, "checkpoint.dir is empty");
    }
    ckpt->host = host;
    ckpt->settings = settings;
    *out = ckpt;
    return HD_OK;
}

static void posix_close(struct hd_ckpt *ckpt)
{
    if (ckpt)
        free(ckpt->dir);
    free(ckpt);
}

/* ---- a checkpoint that is being written */

/* ".tmp-step-00000100", ".tmp-removed-step-00000100" */
static int is_leftover_name(const char *name)
{
    const char *at = strncmp(name, ".tmp-removed-", 13) ? name + 5 : name + 13;
    return !strncmp(name, ".tmp-", 5) && !strncmp(at, "step-", 5) && strspn(at + 5, "0123456789") == strlen(at + 5) &&
           strlen(at) >= 13;
}

static int ends_with(const char *name, const char *end)
{
    return strlen(name) > strlen(end) && !strcmp(name + strlen(name) - strlen(end), end);
}

/* A folder that holds what a save writes and nothing else. Another run's save is not under way here: its job has the
 * folder locked. */
static int is_leftover(const char *path)
{
    struct stat st;
    DIR *dir = lstat(path, &st) || !S_ISDIR(st.st_mode) ? NULL : opendir(path);
    int ours = dir != NULL;
    for (struct dirent *e; ours && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            ours = (!strcmp(e->d_name, "index.json") || ends_with(e->d_name, ".safetensors")) &&
                   !fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode);
    if (dir)
        closedir(dir);
    return ours;
}

/* A checkpoint is saved, whatever becomes of the one that it replaces. */
static void warn_left(const struct hd_ckpt *ckpt, const char *path)
{
    ckpt->host->log(HD_LOG_WARN, "ckpt-posix", "%s is of no use any more, and cannot be removed: %s", path,
                    strerror(errno));
}

/* Leftovers of saves that were interrupted; `next` is the folder of the one that begins. */
static int32_t remove_leftovers(const struct hd_ckpt *ckpt, const char *next, struct hd_error *err)
{
    DIR *dir = opendir(ckpt->dir);
    int32_t rc = HD_OK;
    if (!dir)
        return io_error(err, ckpt->dir, "");
    for (struct dirent *e; !rc && (e = readdir(dir));) {
        if (!is_leftover_name(e->d_name))
            continue;
        char *path = join(ckpt->dir, "", e->d_name);
        if (!path)
            rc = no_memory(err);
        else if (!is_leftover(path))
            rc = hd_fail(err, HD_E_INVALID,
                         "%s has files that no save wrote, and is in the way of one: move it elsewhere", path);
        else if (!remove_tree(path))
            ;
        else if (strcmp(path, next))
            warn_left(ckpt, path);
        else
            rc = io_error(err, path, "cannot be removed: ");
        free(path);
    }
    closedir(dir);
    return rc;
}

static int32_t posix_begin(struct hd_ckpt *ckpt, const char *name, int32_t leader, struct hd_ckpt_tx **out,
                           struct hd_error *err)
{
    int32_t rc = posix_check_name(name, err);
    struct hd_ckpt_tx *tx = rc ? NULL : calloc(1, sizeof *tx);
    if (!tx)
        return rc ? rc : no_memory(err);
    tx->ckpt = ckpt;
    tx->leader = leader;
    tx->folder_fd = -1;
    pthread_mutex_init(&tx->lock, NULL);
    tx->name = strdup(name);
    tx->folder = join(ckpt->dir, ".tmp-", name);
    if (!tx->name || !tx->folder)
        rc = no_memory(err);
    else if (leader)
        rc = make_folders(ckpt->dir) ? io_error(err, ckpt->dir, "") : remove_leftovers(ckpt, tx->folder, err);
    if (!rc && leader && mkdir(tx->folder, 0777))
        rc = io_error(err, tx->folder, "");
    if (!rc && (tx->folder_fd = open(tx->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        rc = io_error(err, tx->folder, "is not there: do all ranks see the same filesystem? ");
    if (rc) {
        posix_tx_free(tx);
        return rc;
    }
    *out = tx;
    return HD_OK;
}

/* A checkpoint of the same name is exchanged atomically, and removed after. */
static int32_t make_visible(const struct hd_ckpt_tx *tx, const char *final, struct hd_error *err)
{
    if (tx->ckpt->settings->fsync && fsync(tx->folder_fd))
        return io_error(err, tx->folder, "fsync: ");
    int replaced = !access(final, F_OK);
    if (replaced ? renameat2(AT_FDCWD, tx->folder, AT_FDCWD, final, RENAME_EXCHANGE) : rename(tx->folder, final))
        return io_error(err, final, "cannot be put in place: ");
    if (sync_folder(tx->ckpt, tx->ckpt->dir))
        return io_error(err, tx->ckpt->dir, "fsync: ");
    if (replaced && remove_tree(tx->folder))
        warn_left(tx->ckpt, tx->folder);
    return HD_OK;
}

static int32_t posix_commit(struct hd_ckpt_tx *tx, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (tx->leader) {
        char *final = join(tx->ckpt->dir, "", tx->name);
        rc = final ? make_visible(tx, final, err) : no_memory(err);
        free(final);
    }
    posix_tx_free(tx);
    return rc;
}

static void posix_cancel(struct hd_ckpt_tx *tx)
{
    if (tx->leader)
        remove_tree(tx->folder);
    posix_tx_free(tx);
}

/* ---- complete checkpoints */

static int by_version(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

/* Visible folders of the directory; *n of them, in new memory. */
static int32_t read_names(DIR *dir, const char *path, char ***names, size_t *n, struct hd_error *err)
{
    struct stat st;
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.' || fstatat(dirfd(dir), e->d_name, &st, 0) || !S_ISDIR(st.st_mode))
            continue;
        char **more = realloc(*names, (*n + 1) * sizeof **names);
        if (!more || !((*names = more)[*n] = strdup(e->d_name)))
            return hd_fail(err, HD_E_NOMEM, "%s: no memory", path);
        ++*n;
    }
    return HD_OK;
}

static int32_t posix_list(struct hd_ckpt *ckpt, void (*visit)(void *user, const char *name), void *user,
                          struct hd_error *err)
{
    char **names = NULL;
    size_t n = 0;
    DIR *dir = opendir(ckpt->dir);
    if (!dir)
        return errno == ENOENT ? HD_OK : io_error(err, ckpt->dir, "");
    int32_t rc = read_names(dir, ckpt->dir, &names, &n, err);
    closedir(dir);
    if (n)
        qsort(names, n, sizeof *names, by_version);
    for (size_t i = 0; i < n; i++) {
        if (!rc)
            visit(user, names[i]);
        free(names[i]);
    }
    free(names);
    return rc;
}

static int32_t open_file(const struct hd_ckpt *ckpt, const char *name, const char *file, int *fd, uint64_t *bytes,
                         struct hd_error *err)
{
    char *path = NULL;
    int32_t rc = posix_check_name(name, err);
    if (!rc)
        rc = posix_check_name(file, err);
    if (rc)
        return rc;
    if (asprintf(&path, "%s/%s/%s", ckpt->dir, name, file) < 0)
        return no_memory(err);
    rc = hd_open_regular(path, fd, bytes, err);
    free(path);
    return rc;
}

static int32_t posix_size(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t *bytes,
                          struct hd_error *err)
{
    int fd;
    int32_t rc = open_file(ckpt, name, file, &fd, bytes, err);
    if (!rc)
        close(fd);
    return rc;
}

/* Whether all of it is in the page cache. */
static int in_memory(int fd, uint64_t offset, uint64_t bytes)
{
    uint64_t pages = (bytes + POSIX_PAGE - 1) / POSIX_PAGE, in = 0;
    unsigned char *is = malloc(pages + 1);
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)offset);
    if (is && map != MAP_FAILED && !mincore(map, bytes, is))
        for (uint64_t i = 0; i < pages; i++)
            in += is[i] & 1;
    if (map != MAP_FAILED)
        munmap(map, bytes);
    free(is);
    return in == pages;
}

/* Reads whole pages that are not cached with O_DIRECT: faster, and evicts nothing. Returns the bytes read; an error
 * shows when the caller reads on. */
static uint64_t read_pages(int fd, uint64_t offset, char *data, uint64_t bytes)
{
    char path[64];
    uint64_t done = 0, end = bytes / POSIX_PAGE * POSIX_PAGE;
    ssize_t n;
    if (!end || offset % POSIX_PAGE || (uintptr_t)data % POSIX_PAGE || in_memory(fd, offset, bytes))
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    while (direct >= 0 && done < end &&
           (n = pread(direct, data + done, end - done, (off_t)(offset + done))) >= POSIX_PAGE)
        done += (uint64_t)n / POSIX_PAGE * POSIX_PAGE;
    if (direct >= 0)
        close(direct);
    return done;
}

static int32_t posix_read(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t offset, void *data,
                          uint64_t bytes, struct hd_error *err)
{
    int fd;
    uint64_t size;
    int32_t rc = open_file(ckpt, name, file, &fd, &size, err);
    if (rc)
        return rc;
    uint64_t done = ckpt->settings->direct ? read_pages(fd, offset, data, bytes) : 0;
    rc = posix_read_at(fd, name, file, offset + done, (char *)data + done, bytes - done, err);
    close(fd);
    return rc;
}

/* Renamed to a hidden name first: a half-removed checkpoint is never visible. */
static int32_t posix_remove(struct hd_ckpt *ckpt, const char *name, struct hd_error *err)
{
    int32_t rc = posix_check_name(name, err);
    if (rc)
        return rc;
    char *path = join(ckpt->dir, "", name), *aside = join(ckpt->dir, ".tmp-removed-", name);
    if (!path || !aside)
        rc = no_memory(err);
    else if (remove_tree(aside) || rename(path, aside))
        rc = io_error(err, path, "cannot be removed: ");
    else if (remove_tree(aside))
        rc = io_error(err, aside, "cannot be removed: ");
    free(path);
    free(aside);
    return rc;
}

static int32_t posix_move(struct hd_ckpt *ckpt, const char *name, const char *location, struct hd_error *err)
{
    int32_t rc = posix_check_name(name, err);
    if (rc)
        return rc;
    char *path = join(ckpt->dir, "", name), *to = join(location, "", name);
    if (!path || !to)
        rc = no_memory(err);
    else if (make_folders(location))
        rc = io_error(err, location, "");
    else if (!access(to, F_OK))
        rc = hd_fail(err, HD_E_IO, "%s cannot be moved: there is %s already", path, to);
    else if (rename(path, to))
        rc = io_error(err, path, "cannot be moved: ");
    else if (sync_folder(ckpt, location) || sync_folder(ckpt, ckpt->dir))
        rc = io_error(err, location, "fsync: ");
    free(path);
    free(to);
    return rc;
}

static const struct hd_ckpt_ops ops = {
    .struct_size = sizeof ops,
    .open = posix_open,
    .close = posix_close,
    .begin = posix_begin,
    .write = posix_write,
    .flush = posix_flush,
    .commit = posix_commit,
    .cancel = posix_cancel,
    .list = posix_list,
    .size = posix_size,
    .read = posix_read,
    .remove = posix_remove,
    .read_back = posix_read_back,
    .move = posix_move,
};

HD_PLUGIN("ckpt-posix", "0.1.0", "Apache-2.0", .kind = HD_KIND_CKPT, .name = "posix",
          .summary = "checkpoints as folders of a directory, renamed into place when complete",
          HD_OPTIONS(options, struct posix_settings), .ops = &ops)
