/* The file that a hook leaves for each rank: FOLDER/NAME-TRANSPORT-rankN.json. */
#ifndef HD_COMMON_HOOK_FILE_H
#define HD_COMMON_HOOK_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "heddle/hook.h"
#include "heddle/host.h"

/* Has `write` fill it; what cannot be written is a line in the log. */
static inline void hook_file_write(const struct hd_host *host, const struct hd_hook_place *place, const char *name,
                                   void (*write)(const void *user, FILE *file), const void *user)
{
    char path[512];
    FILE *file;
    mkdir(place->folder, 0777); /* the last part of it; what else is missing shows when the file is opened */
    snprintf(path, sizeof path, "%.400s/%s-%s-rank%d.json", place->folder, name, place->transport, place->world->rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666); /* nor a FIFO */
    file = fd < 0 ? NULL : fdopen(fd, "w");
    if (file)
        write(user, file);
    if (!file || fclose(file))
        host->log(HD_LOG_WARN, name, "%s: %s", path, strerror(errno));
}

#endif
