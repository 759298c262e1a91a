/* Scratch folders. */
#include "cli/scratch.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int32_t hd__scratch_make(const char *name, char folder[64], struct hd_error *err)
{
    const char *parent = getenv("TMPDIR");
    snprintf(folder, 64, "%.30s/%.20s-XXXXXX", parent && *parent && strlen(parent) <= 30 ? parent : "/tmp", name);
    return mkdtemp(folder)
               ? HD_OK
               : hd_fail(err, HD_E_IO, "%s: %s: name a folder for its files by TMPDIR", folder, strerror(errno));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

void hd__scratch_remove(const char *folder)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
