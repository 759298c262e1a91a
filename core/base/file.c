#include "core/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "heddle/file.h"

static int output_is_file; /* or a pipe: that of the launcher, which may give its ranks terminals all the same */

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

int hd__can_write(const char *path)
{
    char *folder = hd__strdup(path), *slash;
    int file = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), why = file < 0 ? errno : 0;
    if (file >= 0)
        close(file);
    while (why == ENOENT && (slash = strrchr(folder, '/'))) {
        slash[slash == folder] = 0; /* "/" stays */
        why = faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) ? errno : 0;
        if (slash == folder)
            break;
    }
    if (why == ENOENT && !strchr(folder, '/'))
        why = faccessat(AT_FDCWD, ".", W_OK | X_OK, AT_EACCESS) ? errno : 0;
    free(folder);
    return why;
}

void hd__output_set_not_terminal(void)
{
    output_is_file = 1;
}

int hd__output_is_terminal(void)
{
    return !output_is_file && isatty(STDOUT_FILENO);
}
