/* Preloaded into a command: every disk has HEDDLE_TEST_DISK bytes left. */
#include <stdlib.h>
#include <sys/statvfs.h>

int statvfs(const char *path, struct statvfs *at)
{
    (void)path;
    *at = (struct statvfs){.f_frsize = 1, .f_bavail = strtoull(getenv("HEDDLE_TEST_DISK"), NULL, 10)};
    return 0;
}
