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

static FILE *open_file(const char *folder, const char *name)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return fopen(path, "re");
}

json_t *hd__scratch_lines(const char *folder, const char *name)
{
    FILE *file = open_file(folder, name);
    json_t *lines = json_array();
    char *line = NULL;
    size_t room = 0;
    while (file && getline(&line, &room, file) > 0)
        json_array_append_new(lines, json_loads(line, 0, NULL));
    free(line);
    if (file)
        fclose(file);
    return lines;
}

void hd__scratch_show(const char *folder, const char *name)
{
    FILE *file = open_file(folder, name);
    char line[4096];
    while (file && fgets(line, sizeof line, file))
        fputs(line, stderr);
    if (file)
        fclose(file);
}
