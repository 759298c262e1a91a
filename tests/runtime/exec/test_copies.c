/* Copies between memories: by threads and, where the kernel allows it, by io_uring. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "runtime/exec/copy/copy.h"
#include "tests/suite.h"
#include "tests/support/scratch.h"

#define PAGES 600 /* in all; more requests than a ring has entries */

static struct hd_error err = HD_ERROR_INIT;
static struct scratch scratch;

static int make_file(int64_t bytes)
{
    int fd = open(scratch_path(&scratch, "state"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, bytes), 0);
    return fd;
}

static char pattern(int64_t at)
{
    return (char)(at * 7 + at / 4096 * 13 + 1);
}

static char *filled(int64_t bytes)
{
    char *m = aligned_alloc(4096, (size_t)bytes);
    for (int64_t n = 0; n < bytes; n++)
        m[n] = pattern(n);
    return m;
}

static int32_t (*const file_engines[])(int file, struct hd__copy_engine **engine,
                                       struct hd_error *err) = {hd__exec_copy_threads_open, hd__exec_copy_uring_open};

/* Threads are everywhere; io_uring is not. NULL then. */
static struct hd__copy_engine *open_engine(size_t which, int file)
{
    static const char *const names[] = {"threads", "io_uring"};
    struct hd__copy_engine *c = NULL;
    int32_t rc = file_engines[which](file, &c, &err);
    if (rc) {
        ck_assert_msg(which && rc == HD_E_UNSUPPORTED, "%s", err.message);
        fprintf(stderr, "io_uring is not tested here: %s\n", err.message);
        err = (struct hd_error)HD_ERROR_INIT;
        return NULL;
    }
    ck_assert_str_eq(c->ops->name, names[which]);
    return c;
}

/* All pages out, then all in again, all under way at once. */
static void round_trip(struct hd__copy_engine *c, char *other)
{
    int64_t bytes = PAGES * INT64_C(4096);
    char *main = filled(bytes), *back = aligned_alloc(4096, (size_t)bytes);
    struct hd__copy_op *copy = calloc(PAGES, sizeof *copy);
    for (int out = 1; out >= 0; out--) {
        for (int64_t n = 0; n < PAGES; n++) {
            int64_t at = n * 4096;
            copy[n] = (struct hd__copy_op){.engine = c,
                                           .main = (out ? main : back) + at,
                                           .other = other ? other + at : NULL,
                                           .offset = at,
                                           .bytes = 4096,
                                           .out = out};
            ck_ok(c->ops->start(&copy[n], &err));
        }
        for (int64_t n = PAGES; n-- > 0;) /* not in the order of their start */
            ck_ok(c->ops->wait(&copy[n], hd__now() + 60, &err));
    }
    ck_assert_int_eq(memcmp(main, back, (size_t)bytes), 0);
    hd__exec_copy_engine_close(c);
    free(copy);
    free(main);
    free(back);
}

START_TEST(host_memory)
{
    char *other = aligned_alloc(4096, PAGES * 4096);
    memset(other, 0, PAGES * 4096);
    round_trip(open_engine(0, -1), other);
    for (int64_t n = 0; n < PAGES * 4096; n += 777)
        ck_assert_int_eq(other[n], pattern(n));
    free(other);
}
END_TEST

/* What arrives in the file is what pread finds there. */
START_TEST(a_file)
{
    int file = make_file(PAGES * 4096);
    char byte;
    for (size_t which = 0; which < HD__COUNT(file_engines); which++) {
        struct hd__copy_engine *c = open_engine(which, file);
        ck_assert_int_eq(ftruncate(file, 0), 0);
        ck_assert_int_eq(ftruncate(file, PAGES * 4096), 0);
        if (!c)
            break;
        round_trip(c, NULL);
        for (int64_t n = 0; n < PAGES * 4096; n += 777) {
            ck_assert_int_eq(pread(file, &byte, 1, n), 1);
            ck_assert_int_eq(byte, pattern(n));
        }
    }
    close(file);
}
END_TEST

/* A file that someone cut short is an error with its place, not a hang and not zeros. */
START_TEST(a_short_file)
{
    int file = make_file(4096);
    char *main = aligned_alloc(4096, 8192);
    for (size_t which = 0; which < HD__COUNT(file_engines); which++) {
        struct hd__copy_engine *c = open_engine(which, file);
        struct hd__copy_op in = {.engine = c, .main = main, .bytes = 8192, .offset = 0};
        if (!c)
            break;
        ck_ok(c->ops->start(&in, &err));
        ck_assert_int_eq(c->ops->wait(&in, hd__now() + 60, &err), HD_E_IO);
        ck_assert_str_eq(err.message,
                         "reading 4096 bytes at 4096 of the file of offloaded state: it is shorter than planned");
        hd__exec_copy_engine_close(c);
    }
    free(main);
    close(file);
}
END_TEST

/* A request larger than one call takes. */
START_TEST(a_large_request)
{
    int64_t bytes = (INT64_C(1) << 26) + 8192;
    int file = make_file(bytes);
    char *main = filled(bytes), *back = aligned_alloc(4096, (size_t)bytes);
    for (size_t which = 0; which < HD__COUNT(file_engines); which++) {
        struct hd__copy_engine *c = open_engine(which, file);
        struct hd__copy_op out = {.engine = c, .main = main, .bytes = bytes, .out = 1},
                           in = {.engine = c, .main = back, .bytes = bytes};
        if (!c)
            break;
        memset(back, 0, (size_t)bytes);
        ck_ok(c->ops->start(&out, &err));
        ck_ok(c->ops->wait(&out, hd__now() + 60, &err));
        ck_ok(c->ops->start(&in, &err));
        ck_ok(c->ops->wait(&in, hd__now() + 60, &err));
        ck_assert_int_eq(memcmp(main, back, (size_t)bytes), 0);
        hd__exec_copy_engine_close(c);
    }
    free(main);
    free(back);
    close(file);
}
END_TEST

/* The arenas of a program, mapped: zeroed, apart from each other, and nothing with a name is left. */
START_TEST(memories)
{
    struct hd__mesh mesh = hd__mesh_make((const int32_t[HD_AXIS_COUNT]){1, 1, 1, 1, 1, 1, 1});
    struct hd_program *p = hd__program_new(&mesh, 0);
    const struct hd__device device = {0};
    struct hd__host_pools m;
    char arena[64], *host, *file, *page = aligned_alloc(4096, 4096);
    p->bytes[HD__MEM_HOST] = 10000;
    p->bytes[HD__MEM_FILE] = 3 * 4096;
    p->file_folder = scratch_path(&scratch, "");
    ck_ok(hd__exec_host_pools_open(p, arena, &device, &m, &err));
    host = (char *)((uintptr_t)arena + (uintptr_t)p->arena_base[HD__MEM_HOST]);
    file = (char *)((uintptr_t)arena + (uintptr_t)p->arena_base[HD__MEM_FILE]);
    ck_assert_ptr_eq(host, m.base[HD__MEM_HOST]);
    ck_assert_int_eq(host[9999], 0);
    file[5000] = 3; /* as a checkpoint that is loaded */
    ck_assert_int_eq(pread(m.file, page, 4096, 4096), 4096);
    ck_assert_int_eq(page[5000 - 4096], 3);
    ck_assert_int_eq(rmdir(p->file_folder), 0); /* empty */
    hd__exec_host_pools_close(&m, &device);
    free(page);
    p->file_folder = "/nowhere/at/all";
    ck_assert_int_eq(hd__exec_host_pools_open(p, arena, &device, &m, &err), HD_E_IO);
    ck_assert_str_eq(err.message,
                     "cannot create the offload file in /nowhere/at/all (offload.path): No such file or directory");
    hd__program_free(p);
}
END_TEST

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
    scratch_init(&scratch);
}

static void tear_down(void)
{
    scratch_finish(&scratch);
}

int main(void)
{
    TCase *c = tcase_create("copies");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, host_memory);
    tcase_add_test(c, a_file);
    tcase_add_test(c, a_short_file);
    tcase_add_test(c, a_large_request);
    tcase_add_test(c, memories);
    return suite_run_case("copies", c);
}
