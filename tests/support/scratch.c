#include "tests/support/scratch.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/suite.h"

void scratch_init(struct scratch *s)
{
    snprintf(s->dir, sizeof s->dir, "/tmp/heddle-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(s->dir));
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

void scratch_finish(const struct scratch *s)
{
    nftw(s->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *scratch_path(const struct scratch *s, const char *name)
{
    static struct hd__arena arena;
    return hd__arena_format(&arena, "%s/%s", s->dir, name);
}

const char *scratch_write(const struct scratch *s, const char *name, const void *data, size_t bytes)
{
    const char *path = scratch_path(s, name);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, data, bytes), bytes);
    close(fd);
    return path;
}

void *scratch_read(const char *path, size_t *bytes)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_msg(fd >= 0, "%s", path);
    fstat(fd, &st);
    char *data = hd__alloc((size_t)st.st_size + 1);
    ck_assert_int_eq(read(fd, data, (size_t)st.st_size), st.st_size);
    close(fd);
    *bytes = (size_t)st.st_size;
    return data;
}

uint64_t scratch_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

size_t scratch_damage(uint64_t *state, uint8_t *data, size_t bytes)
{
    static const uint8_t feared[] = {0, 0xff, 0x7f, 0x80, '"', '{', '}', '[', ']', '-', '9', ',', '\\', 'e', '.', ' '};
    uint64_t times = 1 + scratch_random(state) % 4;
    for (uint64_t k = 0; k < times && bytes; k++) {
        size_t at = scratch_random(state) % bytes, from = scratch_random(state) % bytes;
        size_t n = scratch_random(state) % 16, room = bytes - HD__MAX(at, from);
        n = HD__MIN(n, room);
        switch (scratch_random(state) % 8) {
        case 0:
            bytes = at;
            break;
        case 1:
            memmove(data + at, data + from, n);
            break;
        case 2:
            memset(data + at, feared[scratch_random(state) % sizeof feared], n);
            break;
        case 3:
        case 4:
            data[at] ^= (uint8_t)(1 << scratch_random(state) % 8);
            break;
        default:
            data[at] = feared[scratch_random(state) % sizeof feared];
        }
    }
    return bytes;
}

int scratch_run(const char *name, const struct scratch_test *tests)
{
    Suite *suite = suite_create(name);
    for (; tests->name; tests++) {
        TCase *tcase = tcase_create(tests->name);
        tcase_set_timeout(tcase, 240);
        tcase_add_test(tcase, tests->test);
        suite_add_tcase(suite, tcase);
    }
    return suite_run(suite);
}
