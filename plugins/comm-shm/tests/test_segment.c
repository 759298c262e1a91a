/* Segments of 2 MiB pages where the machine has free ones, and this process may have none of them. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "plugins/comm-shm/internal.h"
#include "tests/suite.h"

#define POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"

/* A limit of the hugetlb cgroup; the descriptor that was to have pages of 2 MiB, and its bytes that are there. */
static int limited, huge_fd;
static off_t there;

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = flags & O_CREAT ? va_arg(rest, int) : 0, fd;
    va_end(rest);
    if (strcmp(path, POOL))
        return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    fd = (int)syscall(SYS_memfd_create, "pool", 0);
    ck_assert_int_eq(write(fd, "1000\n", 5), 5);
    lseek(fd, 0, SEEK_SET);
    return fd;
}

int memfd_create(const char *name, unsigned flags)
{
    int fd = (int)syscall(SYS_memfd_create, name, flags & ~MFD_HUGETLB); /* ordinary pages stand for them */
    if (flags & MFD_HUGETLB)
        huge_fd = fd;
    return fd;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (limited) {
        errno = ENOSPC;
        return -1;
    }
    there = bytes;
    return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}

static void make(struct shm_segment *segment)
{
    struct hd_comm comm = {.settings = {.huge = SHM_AUTO}};
    struct hd_error err = HD_ERROR_INIT;
    size_t bytes = 3 * SHM_HUGE + 5;
    huge_fd = -1;
    ck_assert_msg(shm_segment_create(&comm, bytes, 1, segment, &err) == HD_OK, "%s", err.message);
    ck_assert_int_ge(huge_fd, 0);
    memset(segment->base, 7, bytes);
}

START_TEST(all_pages_are_there)
{
    struct shm_segment segment;
    make(&segment);
    ck_assert_int_eq(segment.fd, huge_fd);
    ck_assert_int_ge(there, (off_t)segment.bytes); /* before anything was written */
    shm_segment_free(&segment);
}
END_TEST

START_TEST(ordinary_pages_where_the_limit_is_0)
{
    struct shm_segment segment;
    struct stat is;
    limited = 1;
    make(&segment);
    ck_assert_int_eq(fstat(segment.fd, &is), 0);
    ck_assert_int_lt(is.st_size, 4 * SHM_HUGE); /* no whole number of 2 MiB pages */
    shm_segment_free(&segment);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("segment");
    tcase_add_test(tc, all_pages_are_there);
    tcase_add_test(tc, ordinary_pages_where_the_limit_is_0);
    return suite_run_case("segment", tc);
}
