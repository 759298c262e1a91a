#include "core/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "heddle/file.h"

static int output_is_file; /* or a pipe: that of the launcher, which may give its ranks terminals all the same */

int hd__is_folder(const char *path)
{
    struct stat st;
    return path && !stat(path, &st) && S_ISDIR(st.st_mode);
}

int hd__same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Without empty parts, "." and "..", from the root; of a path without links. Caller frees. */
static char *plain_path(const char *path)
{
    char here[PATH_MAX] = "", *all, *out, *rest, *part;
    if (path[0] != '/' && !getcwd(here, sizeof here))
        here[0] = 0;
    all = hd__format("%s/%s", here, path);
    out = hd__alloc(strlen(all) + 1);
    for (rest = all; (part = strsep(&rest, "/"));) {
        if (!strcmp(part, "..") && *out)
            *strrchr(out, '/') = 0;
        else if (*part && strcmp(part, ".") && strcmp(part, ".."))
            strcat(strcat(out, "/"), part);
    }
    free(all);
    return out;
}

int hd__same_path(const char *a, const char *b)
{
    char *x = plain_path(a), *y = plain_path(b);
    int same = hd__same_file(a, b) || !strcmp(x, y);
    free(x);
    free(y);
    return same;
}

int hd__make_folders(const char *path)
{
    char *copy = hd__strdup(path);
    int why = 0;
    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (!mkdir(copy, 0777) || errno == EEXIST)
            why = 0;
        else if (!why) /* keep the first errno: the folders below it fail in consequence */
            why = errno;
        *slash = '/';
    }
    free(copy);
    return why;
}

FILE *hd__open_regular(const char *path, const char *what, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    uint64_t bytes;
    int fd = -1;
    FILE *in = hd_open_regular(path, &fd, &bytes, &why) ? NULL : fdopen(fd, "rb");
    if (!in)
        hd_fail(err, HD_E_INVALID, "%s: cannot open the %s%s", path, what,
                fd < 0 ? why.message + strlen(path) : ": no memory");
    return in;
}

char *hd__read_text(const char *path, const char *what, size_t most, size_t *bytes, struct hd_error *err)
{
    FILE *in = hd__open_regular(path, what, err);
    if (!in)
        return NULL;
    char *text = hd__alloc(most + 2), size[32];
    *bytes = fread(text, 1, most + 1, in);
    int broken = ferror(in) ? errno : 0;
    fclose(in);
    if (broken)
        hd_fail(err, HD_E_INVALID, "%s: cannot read the %s: %s", path, what, strerror(broken));
    else if (*bytes > most)
        hd_fail(err, HD_E_INVALID, "%s: larger than the %s that a %s may have", path, hd__bytes_text(most, size), what);
    else
        return text; /* memory of hd__alloc is zero */
    free(text);
    return NULL;
}

int hd__can_write(const char *path)
{
    char *folder = hd__strdup(path), *slash;
    int file = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), why = file < 0 ? errno : 0;
    if (file >= 0)
        close(file);
    for (int more = 1; why == ENOENT && more; more = slash && slash != folder && access(folder, F_OK)) {
        if ((slash = strrchr(folder, '/')))
            slash[slash == folder] = 0; /* "/" stays */
        char *probe = hd__format("%s/.heddle-XXXXXX", slash ? folder : ".");
        why = mkdtemp(probe) && !rmdir(probe) ? 0 : errno; /* /proc may be written, and holds no files */
        free(probe);
        if (why == ENOENT && slash && !lstat(folder, &(struct stat){0}))
            break; /* a link to what is not there */
    }
    free(folder);
    return why;
}

/* So does a shorter file, which a full disk may have left. */
static int begins_with(int fd, const char *begins, size_t bytes)
{
    char text[64];
    size_t n = HD__MIN(HD__MIN(strlen(begins), bytes), sizeof text);
    return pread(fd, text, n, 0) == (ssize_t)n && !memcmp(text, begins, n);
}

static int open_output(const char *path, const char *begins, int *is_new, struct hd_error *err)
{
    static const int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    struct stat st;
    int fd, there;
    do { /* again where another process checked it, too, and removed it between the two */
        fd = open(path, flags | O_CREAT | O_EXCL, 0666);
        *is_new = fd >= 0;
        there = !*is_new && errno == EEXIST;
        if (there)
            fd = open(path, flags);
    } while (there && fd < 0 && errno == ENOENT);
    if (fd < 0)
        hd_fail(err, HD_E_IO, "%s: %s", path,
                errno == ELOOP ? "a symbolic link: name the file itself" : strerror(errno));
    else if (fstat(fd, &st) || !(S_ISREG(st.st_mode) || S_ISCHR(st.st_mode)))
        hd_fail(err, HD_E_INVALID, "%s: not a regular file", path);
    else if (S_ISREG(st.st_mode) && !begins_with(fd, begins, (size_t)st.st_size))
        hd_fail(err, HD_E_INVALID, "%s is there, and heddle did not write it: name another file, or move this one away",
                path);
    else
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

const char *hd__store_of(const char *location, char name[HD__STORE_NAME])
{
    size_t scheme = strcspn(location, "/:");
    if (!scheme || strncmp(location + scheme, ":/", 2) != 0)
        return "posix";
    if (scheme >= HD__STORE_NAME || location[scheme + 2] != '/' || !strncmp(location, "file:", 5) ||
        strspn(location, "abcdefghijklmnopqrstuvwxyz0123456789") < scheme)
        return NULL;
    snprintf(name, HD__STORE_NAME, "%.*s", (int)scheme, location);
    return name;
}

int32_t hd__output_check(const char *path, const char *begins, struct hd_error *err)
{
    int is_new, fd = open_output(path, begins, &is_new, err);
    if (fd < 0)
        return err->code;
    close(fd);
    if (is_new)
        unlink(path);
    return HD_OK;
}

FILE *hd__output_create(const char *path, const char *begins, struct hd_error *err)
{
    int is_new, fd = open_output(path, begins, &is_new, err);
    FILE *file = fd < 0 || (ftruncate(fd, 0) && errno != EINVAL) ? NULL : fdopen(fd, "w"); /* EINVAL: a device */
    if (!file && fd >= 0) {
        hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
        close(fd);
    }
    return file;
}

int32_t hd__output_close(FILE *file, const char *path, struct hd_error *err)
{
    int bad = ferror(file);
    return fclose(file) || bad ? hd_fail(err, HD_E_IO, "%s: cannot be written: %s", path, strerror(errno)) : HD_OK;
}

void hd__output_set_not_terminal(void)
{
    output_is_file = 1;
}

int hd__output_is_terminal(void)
{
    return !output_is_file && isatty(STDOUT_FILENO);
}
