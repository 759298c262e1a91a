/* Copies of the state in memory: whole or none, and taken by ranks of another mesh. */
#include "service/checkpoint/memory_copy.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/scratch.h"

static struct hd_error err = HD_ERROR_INIT;

enum { ROWS = 97, COLUMNS = 31, ALL = ROWS * COLUMNS, BIAS = 5, MOST = 8 };

static const struct hd__ckpt_tensor tensors[] = {
    {"model", "weight", HD_F32, 2, {ROWS, COLUMNS}},
    {"model", "bias", HD_BF16, 1, {BIAS}},
    {"model", "empty", HD_F32, 1, {0}},
    {"strategy-ranks", "error", HD_F32, 2, {2, 3}},
};

static float weight[ALL];
static uint16_t bias[BIAS];

static void init_values(void)
{
    for (int i = 0; i < ALL; i++)
        weight[i] = (float)i + 0.5f;
    for (int i = 0; i < BIAS; i++)
        bias[i] = (uint16_t)(1000 + i);
}

/* Rank r of n has every element from its first to that of the next; the bias is the last one's. */
static int64_t first_of(int32_t r, int32_t n)
{
    return (int64_t)ALL * r / n;
}

static struct hd__copy_header copy_rank(struct hd__copy_file *file, int32_t r, int32_t n, int64_t step)
{
    const struct hd__ckpt_run runs[] = {
        {.tensor = 0,
         .first = first_of(r, n),
         .count = first_of(r + 1, n) - first_of(r, n),
         .data = weight + first_of(r, n)},
        {.tensor = 2},
        {.tensor = 1, .count = r == n - 1 ? BIAS : 0, .data = bias},
    };
    struct hd__copy_header h = {.round = 2, .round_id = 77, .rank = r, .ranks = n};
    json_t *state = json_pack("{s:I}", "rank", (json_int_t)r);
    const struct hd__ckpt_save save = {.step = (uint64_t)step,
                                       .tensors = tensors,
                                       .n_tensors = HD__COUNT(tensors),
                                       .runs = runs,
                                       .n_runs = HD__COUNT(runs),
                                       .state = state,
                                       .run = "the run"};
    ck_ok(hd__copy_write(file, &save, &h, &err));
    json_decref(state);
    return h;
}

struct files {
    int fd[MOST];
};

static int32_t read_file_of(void *user, int32_t source, uint64_t offset, void *data, uint64_t bytes, struct hd_error *e)
{
    const struct files *f = user;
    if (pread(f->fd[source], data, bytes, (off_t)offset) != (ssize_t)bytes)
        return hd_fail(e, HD_E_IO, "cannot be read");
    return HD_OK;
}

static struct hd__copy_run *table_of(int fd, const struct hd__copy_header *h)
{
    struct hd__copy_run *runs = hd__alloc(h->n_runs * sizeof *runs);
    ck_assert_int_eq(pread(fd, runs, h->n_runs * sizeof *runs, HD__COPY_HEADER), (ssize_t)(h->n_runs * sizeof *runs));
    return runs;
}

/* Copies of `n` ranks, loaded by one of `m` in uneven pieces. `lacks`: that copy is left out. */
static int32_t load(int32_t n, int32_t m, int32_t lacks)
{
    struct files f;
    struct hd__copy_header of[MOST];
    struct hd__copy_run *runs[MOST];
    struct hd__copy_set set = {.of = of, .runs = runs, .read = read_file_of, .user = &f};
    int32_t rc = HD_OK;
    for (int32_t r = 0; r < n; r++) {
        if (r == lacks)
            continue;
        f.fd[set.n] = memfd_create("copy", 0);
        struct hd__copy_file file = {.fd = f.fd[set.n]};
        of[set.n] = copy_rank(&file, r, n, 10);
        hd__copy_seal(&file, &of[set.n]);
        hd__copy_unmap(&file);
        ck_assert_int_eq(hd__copy_read_header(f.fd[set.n], &of[set.n]), 1);
        runs[set.n] = table_of(f.fd[set.n], &of[set.n]);
        set.n++;
    }
    float *got = hd__alloc(sizeof weight);
    uint16_t got_bias[BIAS] = {0};
    for (int32_t r = 0; r < m && !rc; r++) {
        int64_t a = first_of(r, m), b = first_of(r + 1, m), middle = a + (b - a) / 3;
        const struct hd__ckpt_run wanted[] = {
            {.tensor = 0, .first = middle, .count = b - middle, .data = got + middle},
            {.tensor = 0, .first = a, .count = middle - a, .data = got + a},
            {.tensor = 1, .first = 1, .count = BIAS - 1, .data = got_bias + 1},
        };
        rc = hd__copy_load(&set, tensors, HD__COUNT(tensors), wanted, HD__COUNT(wanted), &err);
    }
    if (!rc) {
        ck_assert_int_eq(memcmp(got, weight, sizeof weight), 0);
        ck_assert_int_eq(memcmp(got_bias + 1, bias + 1, sizeof bias - sizeof *bias), 0);
    }
    for (int32_t i = 0; i < set.n; i++) {
        free(runs[i]);
        close(f.fd[i]);
    }
    free(got);
    return rc;
}

START_TEST(any_mesh)
{
    init_values();
    for (int32_t n = 1; n <= MOST; n++)
        for (int32_t m = 1; m <= MOST; m++)
            ck_ok(load(n, m, -1));
    ck_refused(load(4, 2, 1), HD_E_CORRUPT, "the copies in memory lack element 751 of model/weight");
    ck_refused(load(4, 4, 0), HD_E_CORRUPT, "lack element");
    ck_refused(load(4, 1, 3), HD_E_CORRUPT, "lack element");
}
END_TEST

static int read_whole(int fd, struct hd__copy_header *h)
{
    return hd__copy_read_header(fd, h) && hd__copy_is_whole(fd, h);
}

static void read_errors(int fd, struct hd__copy_header h, const char *why)
{
    ck_assert_msg(!read_whole(fd, &h), "%s passes for a whole copy", why);
}

/* Unsealed, cleared, cut, or with any bit changed: none. Written again: whole, and of the new step. */
START_TEST(whole_or_none)
{
    struct hd__copy_header h, seen;
    struct stat stat;
    uint64_t state = 5;
    int fd = memfd_create("copy", 0);
    struct hd__copy_file file = {.fd = fd};
    init_values();
    read_errors(fd, (struct hd__copy_header){0}, "an empty file");
    h = copy_rank(&file, 0, 2, 10);
    read_errors(fd, h, "an unsealed copy");
    hd__copy_seal(&file, &h);
    ck_assert_int_eq(read_whole(fd, &seen), 1);
    ck_assert_int_eq(memcmp(&seen, &h, sizeof h), 0);
    ck_assert_str_eq(seen.run, "the run");
    ck_assert_int_eq(seen.step, 10);
    ck_assert_uint_eq(hd__copy_bytes(&seen), HD__COPY_HEADER + 3 * sizeof(struct hd__copy_run) + 10 + seen.data_bytes);
    ck_assert_int_eq(fstat(fd, &stat), 0);
    for (int i = 0; i < 2000; i++) {
        uint64_t at = scratch_random(&state) % hd__copy_bytes(&h);
        uint8_t byte, flipped;
        if (i < (int)sizeof h)
            at = (uint64_t)i;
        else if (at < HD__COPY_HEADER)
            continue; /* what follows the header there says nothing */
        ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
        flipped = byte ^ (uint8_t)(1u << scratch_random(&state) % 8);
        ck_assert_int_eq(pwrite(fd, &flipped, 1, (off_t)at), 1);
        read_errors(fd, h, "a copy with a flipped bit");
        ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    }
    ck_assert_int_eq(read_whole(fd, &seen), 1);
    ck_assert_int_eq(ftruncate(fd, (off_t)hd__copy_bytes(&h) - 1), 0);
    read_errors(fd, h, "a copy that was cut");
    h = copy_rank(&file, 1, 2, 20);
    hd__copy_seal(&file, &h);
    ck_assert_int_eq(read_whole(fd, &seen), 1);
    ck_assert_int_eq(seen.step, 20);
    copy_rank(&file, 1, 2, 30);
    read_errors(fd, h, "a copy that is being replaced");
    hd__copy_seal(&file, &h);
    hd__copy_clear(fd);
    read_errors(fd, h, "a cleared copy");
    hd__copy_unmap(&file);
    close(fd);
}
END_TEST

/* Sizes that exceed the file or wrap, under a checksum that fits them. */
START_TEST(sizes)
{
    static const uint64_t hostile[] = {
        1, UINT64_C(1) << 59, UINT64_C(1) << 60, UINT64_C(1) << 61, UINT64_MAX / 32, UINT64_MAX};
    struct hd__copy_header h, bad;
    int fd = memfd_create("copy", 0);
    struct hd__copy_file file = {.fd = fd};
    init_values();
    h = copy_rank(&file, 0, 1, 10);
    hd__copy_seal(&file, &h);
    for (size_t i = 0; i < HD__COUNT(hostile); i++)
        for (int field = 0; field < 3; field++) {
            bad = h;
            *(field == 0 ? &bad.n_runs : field == 1 ? &bad.state_bytes : &bad.data_bytes) += hostile[i];
            bad.hash = hd__hash(&bad, offsetof(struct hd__copy_header, hash), 0);
            ck_assert_int_eq(pwrite(fd, &bad, sizeof bad, 0), sizeof bad);
            read_errors(fd, bad, "a copy with a wrong size");
        }
    hd__copy_unmap(&file);
    close(fd);
}
END_TEST

/* The list of tensors of one job is not that of another; what is of single ranks has a checksum of its own. */
START_TEST(lists)
{
    struct hd__ckpt_tensor other[HD__COUNT(tensors)];
    uint64_t most, all, most2, all2;
    hd__copy_hash_tensors(tensors, HD__COUNT(tensors), &most, &all);
    for (uint32_t i = 0; i < HD__COUNT(tensors); i++)
        for (int change = 0; change < 4; change++) {
            memcpy(other, tensors, sizeof other);
            if (change == 0)
                other[i].name = "another";
            else if (change == 1)
                other[i].dtype = HD_F64;
            else if (change == 2)
                other[i].shape[0]++;
            else
                other[i].group = "model2";
            hd__copy_hash_tensors(other, HD__COUNT(other), &most2, &all2);
            ck_assert_uint_ne(all, all2);
            ck_assert_int_eq(most == most2, !strcmp(other[i].group, "strategy-ranks"));
        }
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"any mesh", any_mesh}, {"whole or none", whole_or_none}, {"sizes", sizes}, {"lists", lists}, {NULL, NULL}};
    return scratch_run("memory_copy", tests);
}
