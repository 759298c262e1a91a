/* The shm provider names its memory in /dev/shm, PID:UID:N as in its address, and a killed process would leave it
 * there. The name is unlinked once every other rank has mapped the memory. Names of a job that is killed before that
 * are removed by the next one. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

/* Names like 1234:0:1 of ours, of processes that are no more. */
void lf_names_sweep(const struct hd_comm *c)
{
    DIR *dir = lf_by_shm(c) ? opendir("/dev/shm") : NULL;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        struct stat about;
        int pid, uid, number, used = 0;
        if (sscanf(e->d_name, "%d:%d:%d%n", &pid, &uid, &number, &used) != 3 || e->d_name[used] || pid < 2 ||
            uid != (int)getuid())
            continue;
        if (kill(pid, 0) && errno == ESRCH && !fstatat(dirfd(dir), e->d_name, &about, AT_SYMLINK_NOFOLLOW) &&
            about.st_uid == getuid())
            unlinkat(dirfd(dir), e->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

/* A message to each rank: its sender has then mapped the receiver's memory, which some versions do no sooner. */
static int32_t greet_all(struct hd_comm *c, struct hd_error *err)
{
    int32_t *ranks = c->host->alloc((size_t)c->world.size * sizeof *ranks), code = HD_OK;
    if (!ranks)
        return hd_fail(err, HD_E_NOMEM, "libfabric: no memory");
    for (int32_t r = 0; r < c->world.size; r++)
        ranks[r] = r;
    for (int32_t r = 0; r < c->world.size && code == HD_OK; r++)
        code = lf_peer_connect(c, r, err);
    if (code == HD_OK)
        code = lf_greet(c, "of all", ranks, c->world.size, err);
    c->host->free(ranks);
    return code;
}

int32_t lf_names_settle(struct hd_comm *c, struct hd_error *err)
{
    char name[256] = "";
    size_t bytes = sizeof name - 1;
    int32_t code;
    if (!lf_by_shm(c))
        return HD_OK;
    lf_names_sweep(c);
    code = greet_all(c, err);
    if (code == HD_OK && fi_getname(&c->ep->fid, name, &bytes) == 0)
        shm_unlink(strstr(name, "://") ? strstr(name, "://") + 3 : name);
    return code;
}
