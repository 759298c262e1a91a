/* The fuzzer's harness over its seeds and, with a fixed generator, mutations of them: the same run every
 * time. */
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "tests/core/job/common.h"
#include "tests/fuzz/job.h"
#include "tests/suite.h"

enum { MUTATIONS = 1500, ROOM = 16384 };

struct bytes {
    uint8_t at[ROOM];
    size_t size;
};

static struct bytes seeds[16];
static uint32_t n_seeds;

/* xorshift64* (Vigna 2016) */
static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * UINT64_C(2685821657736338717)) >> 33) % below;
}

static void read_seeds(void)
{
    DIR *dir = opendir(SEEDS);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir)) && n_seeds < HD__COUNT(seeds);) {
        if (*e->d_name == '.')
            continue;
        char *path = hd__format("%s/%s", SEEDS, e->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = read(fd, seeds[n_seeds].at, ROOM / 2);
        close(fd);
        free(path);
        ck_assert_int_gt(n, 0);
        seeds[n_seeds++].size = (size_t)n;
    }
    closedir(dir);
    ck_assert_uint_ge(n_seeds, 4);
}

/* Names vary with the file system: the order of the seeds must not. */
static int by_content(const void *a, const void *b)
{
    const struct bytes *x = a, *y = b;
    return x->size != y->size ? (x->size > y->size) - (x->size < y->size) : memcmp(x->at, y->at, x->size);
}

static void cut(struct bytes *b, size_t at, size_t n)
{
    memmove(b->at + at, b->at + at + n, b->size - at - n);
    b->size -= n;
}

static void insert(struct bytes *b, size_t at, const void *data, size_t n)
{
    if (b->size + n > ROOM)
        return;
    memmove(b->at + at + n, b->at + at, b->size - at);
    memcpy(b->at + at, data, n);
    b->size += n;
}

static void mutate(struct bytes *b, uint64_t *state)
{
    static const char *const words[] = {": ",
                                        "- ",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "\n",
                                        "\n  ",
                                        "\t",
                                        "\"",
                                        "'",
                                        "#",
                                        "&a ",
                                        "*a",
                                        "!x ",
                                        "~",
                                        "null",
                                        "auto",
                                        "1e-4",
                                        "25MB",
                                        "300s",
                                        "99999999999999999999",
                                        "-1",
                                        "0",
                                        "use: ",
                                        ",",
                                        "|\n",
                                        ">\n",
                                        "---\n",
                                        "\xff",
                                        "\xe2\x80\xa8",
                                        "\xef\xbb\xbf",
                                        "\\0",
                                        "? ",
                                        "<<: "};
    size_t at = b->size ? draw(state, (uint32_t)b->size) : 0;
    size_t few = 1 + draw(state, 12), many = 1 + draw(state, 60), n = HD__MIN(b->size - at, few);
    const char *word = words[draw(state, HD__COUNT(words))];
    const struct bytes *other = &seeds[draw(state, n_seeds)];
    size_t from = draw(state, (uint32_t)other->size);
    switch (draw(state, 6)) {
    case 0:
        if (b->size)
            b->at[at] = (uint8_t)draw(state, 256);
        break;
    case 1:
        cut(b, at, n);
        break;
    case 2:
        insert(b, at, word, strlen(word));
        break;
    case 3:
        cut(b, at, n);
        insert(b, at, word, strlen(word));
        break;
    case 4:
        insert(b, at, other->at + from, HD__MIN(other->size - from, many));
        break;
    default:
        b->size = draw(state, 8) ? b->size : at;
    }
}

START_TEST(replay)
{
    static struct bytes b;
    uint64_t state = UINT64_C(88172645463325252);
    uint32_t accepted = 0;
    read_seeds();
    qsort(seeds, n_seeds, sizeof seeds[0], by_content);
    for (uint32_t s = 0; s < n_seeds; s++)
        for (int i = 0; i < MUTATIONS; i++) {
            b = seeds[s];
            for (uint32_t k = i ? 1 + draw(&state, 3) : 0; k; k--)
                mutate(&b, &state);
            accepted += (uint32_t)fuzz_job(b.at, b.size);
        }
    /* Most are refused, as they should be; but many get to the end, or this test would see only the YAML
     * reader. */
    ck_assert_msg(accepted > n_seeds * MUTATIONS / 20 && accepted < n_seeds * MUTATIONS * 19 / 20, "%u of %u accepted",
                  accepted, n_seeds * MUTATIONS);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("fuzz");
    tcase_set_timeout(tc, 50);
    tcase_add_test(tc, replay);
    return suite_run_case("fuzz job", tc);
}
