/* The endless stream of sequences, over sources in memory. */
#include <unistd.h>

#include "service/data/data.h"
#include "tests/support/scratch.h"

static struct hd_error err = HD_ERROR_INIT;

enum { TOKENS = 1000, SEQ = 16, FILES = 8 };

/* ---- a plug-in whose files are in memory */

struct hd_data {
    const char *name;
    const int64_t *tokens;
    uint64_t count;
    int64_t max_token;
    uint32_t hints, opened; /* of the last open; how many have not been closed */
    int silent;             /* reading fails without a message */
};

static struct hd_data files[FILES];

static int32_t memory_open(const struct hd_host *host, const void *settings, const struct hd_data_source *source,
                           struct hd_data **data, struct hd_error *why)
{
    (void)host, (void)settings;
    for (int k = 0; k < FILES && files[k].name; k++)
        if (!strcmp(files[k].name, source->path)) {
            files[k].hints = source->hints;
            files[k].opened++;
            *data = &files[k];
            return HD_OK;
        }
    return hd_fail(why, HD_E_NOTFOUND, "%s: No such file or directory", source->path);
}

static void memory_close(struct hd_data *f)
{
    f->opened--;
}

static int32_t memory_info(struct hd_data *f, struct hd_data_info *info, struct hd_error *why)
{
    if (!f->tokens)
        return hd_fail(why, HD_E_CORRUPT, "%s: no tokens", f->name);
    info->tokens = f->count;
    info->max_token = f->max_token;
    return HD_OK;
}

static int32_t memory_read(struct hd_data *f, uint64_t first, uint64_t count, int64_t *tokens, struct hd_error *why)
{
    if (f->silent)
        return HD_E_IO;
    if (first > f->count || count > f->count - first)
        return hd_fail(why, HD_E_INVALID, "%s: beyond its end", f->name);
    memcpy(tokens, f->tokens + first, count * sizeof *tokens);
    return HD_OK;
}

static const struct hd_data_ops memory = {
    .struct_size = sizeof memory, .open = memory_open, .close = memory_close, .info = memory_info, .read = memory_read};

static const char *put(int file, const char *name, const int64_t *tokens, uint64_t count)
{
    files[file] = (struct hd_data){.name = name, .tokens = tokens, .count = count};
    return name;
}

static struct hd__data *open_one(const struct hd__data_config *config)
{
    struct hd__data *d = NULL;
    ck_ok(hd__data_open(config, &d, &err));
    return d;
}

static void close_all(struct hd__data *d)
{
    hd__data_close(d);
    for (int k = 0; k < FILES; k++)
        ck_assert_uint_eq(files[k].opened, 0);
}

/* 1000 tokens 0, 7, 14, ... mod 251 */
static int64_t token(uint32_t i)
{
    return i * 7 % 251;
}

static const char *put_plain(int file, const char *name)
{
    static int64_t tokens[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = token(i);
    return put(file, name, tokens, TOKENS);
}

/* ---- the vocabulary */

/* Ids at every place around the borders of blocks, also those that would be in range if they were cut to 32 bits: a
 * scan finds what a read finds. */
START_TEST(vocabulary)
{
    enum { COUNT = 5000 };
    static const int64_t bad[] = {250, 65535, -1, INT64_C(0x100000003), INT64_MIN, INT64_MAX};
    static const uint64_t places[] = {0, 1, 2047, 2048, 2049, 4095, 4096, 4998, 4999};
    static int64_t tokens[COUNT];
    static int32_t ids[COUNT], labels[COUNT];
    const struct hd__data_source source = {put(0, "v.bin", tokens, COUNT), 0};
    const struct hd__data_config c = {
        .ops = &memory, .sources = &source, .n_sources = 1, .seq_len = COUNT - 1, .vocab = 250};
    struct hd__data *d = open_one(&c);
    for (size_t r = 0; r < HD__COUNT(bad); r++)
        for (size_t k = 0; k < HD__COUNT(places); k++) {
            char words[64];
            snprintf(words, sizeof words, "v.bin: token %lu is %ld, outside the model's vocabulary of 250",
                     (unsigned long)places[k], (long)bad[r]);
            tokens[places[k]] = bad[r];
            ck_refused(hd__data_read(d, 0, ids, labels, 0, COUNT - 1, &err), HD_E_INVALID, words);
            ck_refused(hd__data_scan(d, COUNT, &err), HD_E_INVALID, words);
            ck_ok(hd__data_scan(d, places[k], &err));
            tokens[places[k]] = 249;
            ck_ok(hd__data_read(d, 0, ids, labels, 0, COUNT - 1, &err));
            ck_ok(hd__data_scan(d, COUNT, &err));
        }
    close_all(d);
    /* A source that is wrong about what it cannot hold is found out. */
    tokens[7] = 250;
    for (int64_t most = 249; most <= 250; most++) {
        files[0].max_token = most;
        d = open_one(&c);
        ck_refused(hd__data_scan(d, COUNT, &err), HD_E_INVALID, "token 7 is 250");
        ck_refused(hd__data_read(d, 0, ids, labels, 0, COUNT - 1, &err), HD_E_INVALID, "token 7 is 250");
        close_all(d);
    }
}
END_TEST

/* What a source refuses is refused in its words, and what was opened before is closed; it is told how it will be
 * read. */
START_TEST(sources)
{
    struct hd__data *d = NULL;
    struct hd__data_source two[] = {{put_plain(0, "a.txt"), 0}, {"gone.txt", 0}};
    struct hd__data_config c = {.ops = &memory, .sources = two, .n_sources = 2, .seq_len = SEQ, .vocab = 256};
    files[1] = (struct hd_data){0};
    ck_refused(hd__data_open(&c, &d, &err), HD_E_NOTFOUND, "gone.txt: No such file");
    close_all(d);
    two[1].path = put(1, "bad.txt", NULL, 0);
    ck_refused(hd__data_open(&c, &d, &err), HD_E_CORRUPT, "bad.txt: no tokens");
    close_all(d);
    for (c.n_sources = 1, c.shuffle = 0; c.shuffle < 2; c.shuffle++) {
        d = open_one(&c);
        ck_assert_uint_eq(files[0].hints, c.shuffle ? 0 : HD_DATA_IN_ORDER);
        close_all(d);
    }
}
END_TEST

/* A budget is shared among files, and only what will be read is looked at. */
START_TEST(scan_of_many)
{
    static const int64_t zeros[100], tokens[100] = {[29] = 300};
    const struct hd__data_source sources[3] = {
        {put(0, "a.bin", zeros, 100), 0}, {put(1, "b.bin", zeros, 100), 0}, {put(2, "c.bin", tokens, 100), 0}};
    struct hd__data_config c = {.ops = &memory, .sources = sources, .n_sources = 3, .seq_len = SEQ, .vocab = 250};
    struct hd__data *d = open_one(&c);
    ck_ok(hd__data_scan(d, 87, &err));
    ck_refused(hd__data_scan(d, 90, &err), HD_E_INVALID, "c.bin: token 29 is 300");
    ck_ok(hd__data_scan(d, 0, &err));
    close_all(d);
    c.val_fraction = 0.3; /* 210 tokens to train on, the tail of c held out */
    d = open_one(&c);
    ck_ok(hd__data_scan(d, 1000, &err));
    close_all(d);
    c.held_out = 1;
    d = open_one(&c);
    ck_refused(hd__data_scan(d, 1000, &err), HD_E_INVALID, "c.bin: token 29 is 300");
    close_all(d);
}
END_TEST

/* ---- sequences */

START_TEST(in_order)
{
    int32_t ids[SEQ], labels[SEQ], part[4], next[4];
    struct hd__data_source source = {put_plain(0, "a.txt"), 0};
    const struct hd__data_config c = {.ops = &memory, .sources = &source, .n_sources = 1, .seq_len = SEQ, .vocab = 256};
    struct hd__data *d = open_one(&c);
    ck_assert_uint_eq(hd__data_sequences(d), (TOKENS - 1) / SEQ);
    for (uint32_t i = 0; i < 130; i++) {
        uint32_t at = i % ((TOKENS - 1) / SEQ) * SEQ;
        ck_ok(hd__data_read(d, i, ids, labels, 0, SEQ, &err));
        for (uint32_t k = 0; k < SEQ; k++) {
            ck_assert_int_eq(ids[k], token(at + k));
            ck_assert_int_eq(labels[k], token(at + k + 1));
        }
        ck_ok(hd__data_read(d, i, part, next, 8, 4, &err));
        ck_assert_mem_eq(part, ids + 8, sizeof part);
        ck_assert_mem_eq(next, labels + 8, sizeof next);
    }
    ck_assert_int_eq(hd__data_read(d, 0, ids, labels, 1, SEQ, &err), HD_E_INTERNAL);
    close_all(d);
}
END_TEST

/* Two files and an empty one between them give what one file gives. */
START_TEST(several_files)
{
    int32_t a[SEQ], b[SEQ], la[SEQ], lb[SEQ];
    struct hd__data_source one = {put_plain(0, "a.txt"), 0};
    const int64_t *all = files[0].tokens;
    struct hd__data_source three[] = {
        {put(1, "1.txt", all, 333), 0}, {put(2, "2.npy", all, 0), 0}, {put(3, "3.txt", all + 333, TOKENS - 333), 0}};
    struct hd__data_config c = {
        .ops = &memory, .sources = &one, .n_sources = 1, .seq_len = SEQ, .vocab = 256, .shuffle = 1, .seed = 9};
    struct hd__data *d = open_one(&c);
    c.sources = three;
    c.n_sources = 3;
    struct hd__data *e = open_one(&c);
    ck_assert_uint_eq(hd__data_tokens(e), TOKENS);
    for (uint32_t i = 0; i < 200; i++) {
        ck_ok(hd__data_read(d, i, a, la, 0, SEQ, &err));
        ck_ok(hd__data_read(e, i, b, lb, 0, SEQ, &err));
        ck_assert_mem_eq(a, b, sizeof a);
        ck_assert_mem_eq(la, lb, sizeof a);
    }
    hd__data_close(d);
    close_all(e);
}
END_TEST

START_TEST(held_out)
{
    int32_t ids[SEQ], labels[SEQ];
    struct hd__data_source source = {put_plain(0, "a.txt"), 0};
    struct hd__data_config c = {
        .ops = &memory, .sources = &source, .n_sources = 1, .seq_len = SEQ, .vocab = 256, .val_fraction = 0.1};
    struct hd__data *train = open_one(&c);
    c.held_out = 1;
    struct hd__data *val = open_one(&c);
    ck_assert_uint_eq(hd__data_tokens(train), 900);
    ck_assert_uint_eq(hd__data_tokens(val), 100);
    ck_assert_uint_eq(hd__data_sequences(train), 899 / SEQ);
    ck_assert_uint_eq(hd__data_sequences(val), 99 / SEQ);
    ck_ok(hd__data_read(val, 0, ids, labels, 0, SEQ, &err));
    for (uint32_t k = 0; k < SEQ; k++)
        ck_assert_int_eq(ids[k], token(900 + k));
    hd__data_close(train);
    close_all(val);
    c.seq_len = 100;
    ck_refused(hd__data_open(&c, &val, &err), HD_E_INVALID,
               "100 tokens are too few for one sequence of seq_len 100, "
               "which takes 101");
    c.seq_len = 900, c.held_out = 0;
    ck_refused(hd__data_open(&c, &val, &err), HD_E_INVALID, "900 tokens (without the held-out part)");
}
END_TEST

/* ---- shuffling */

START_TEST(permutation)
{
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 1000, 65537};
    for (size_t k = 0; k < HD__COUNT(sizes); k++) {
        uint64_t n = sizes[k], moved = 0, differs = 0;
        uint8_t *seen = hd__alloc(n);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t p = hd__data_permute(i, n, 1337);
            ck_assert_uint_lt(p, n);
            ck_assert_uint_eq(seen[p]++, 0);
            moved += p != i;
            differs += p != hd__data_permute(i, n, 1338);
        }
        if (n >= 255) { /* about one fixed point is expected, and one agreement of two permutations */
            ck_assert_uint_gt(moved, n - 12);
            ck_assert_uint_gt(differs, n - 12);
        }
        free(seen);
    }
    ck_assert_uint_lt(hd__data_permute(UINT64_C(1) << 62, (UINT64_C(1) << 62) + 1, 1), (UINT64_C(1) << 62) + 1);
}
END_TEST

/* A permutation still, whose windows lie in few runs of neighbours and are mixed within. */
START_TEST(permutation_of_windows)
{
    static const uint64_t sizes[] = {1, 63, 64, 65, 1000, 4096, 10007}, windows[] = {1, 64, 100, 1024, 1 << 20};
    for (size_t k = 0; k < HD__COUNT(sizes) * HD__COUNT(windows); k++) {
        uint64_t n = sizes[k / HD__COUNT(windows)], w = windows[k % HD__COUNT(windows)], run = HD__DATA_SHUFFLE_RUN;
        uint64_t per = HD__MAX(w / run, 1), moved = 0;
        uint8_t *seen = hd__alloc(n), *touched = hd__alloc(n / run + 1);
        for (uint64_t i = 0, places = 0; i < n; i++) {
            uint64_t p = hd__data_permute_windows(i, n, w, 1337);
            ck_assert_uint_lt(p, n);
            ck_assert_uint_eq(seen[p]++, 0);
            moved += p != i;
            if (i % (per * run) == 0) {
                memset(touched, 0, n / run + 1);
                places = 0;
            }
            places += !touched[p / run]++;
            ck_assert_uint_le(places, per + 1); /* the last window, and what is left of n */
        }
        ck_assert_uint_ge(moved, n >= 1000 ? n * 9 / 10 : 0);
        free(touched);
        free(seen);
    }
}
END_TEST

/* The mean of many first items is the middle, and neighbours fall apart: chi-squared over 16 bins below
 * its 99.99 % point, for several keys. */
START_TEST(permutation_is_even)
{
    enum { N = 4096, BINS = 16, DRAWS = 4096 };
    for (uint64_t item = 0; item < 4; item++) {
        uint32_t bin[BINS] = {0}, step[BINS] = {0};
        double chi = 0, chi_step = 0, expected = (double)DRAWS / BINS;
        for (uint64_t key = 0; key < DRAWS; key++) {
            uint64_t p = hd__data_permute(item, N, key), q = hd__data_permute(item + 1, N, key);
            bin[p * BINS / N]++;
            step[(q + N - p) % N * BINS / N]++;
        }
        for (int b = 0; b < BINS; b++) {
            chi += (bin[b] - expected) * (bin[b] - expected) / expected;
            chi_step += (step[b] - expected) * (step[b] - expected) / expected;
        }
        ck_assert_double_lt(chi, 44.3); /* 15 degrees of freedom */
        ck_assert_double_lt(chi_step, 44.3);
    }
}
END_TEST

/* Every epoch has every sequence once, in an order of its own, which the seed decides. */
START_TEST(epochs)
{
    static int64_t tokens[101 * SEQ + 1];
    int32_t ids[SEQ], labels[SEQ], order[2][3][101], same = 0;
    for (uint32_t i = 0; i < HD__COUNT(tokens); i++)
        tokens[i] = i / SEQ;
    struct hd__data_source source = {put(0, "e.bin", tokens, HD__COUNT(tokens)), 0};
    for (uint32_t seed = 0; seed < 2; seed++) {
        const struct hd__data_config c = {.ops = &memory,
                                          .sources = &source,
                                          .n_sources = 1,
                                          .seq_len = SEQ,
                                          .vocab = 102,
                                          .shuffle = 1,
                                          .seed = seed};
        struct hd__data *d = open_one(&c);
        for (uint32_t epoch = 0; epoch < 3; epoch++) {
            uint8_t seen[101] = {0};
            for (uint32_t i = 0; i < 101; i++) {
                ck_ok(hd__data_read(d, epoch * 101 + i, ids, labels, 0, SEQ, &err));
                ck_assert_int_eq(seen[ids[0]]++, 0);
                order[seed][epoch][i] = ids[0];
            }
        }
        close_all(d);
    }
    for (uint32_t i = 0; i < 101; i++)
        same += (order[0][0][i] == order[0][1][i]) + (order[0][1][i] == order[0][2][i]) +
                (order[0][0][i] == order[1][0][i]) + (order[0][0][i] == (int32_t)i);
    ck_assert_int_lt(same, 30); /* four times about one is expected */
}
END_TEST

/* ---- mixes */

/* ---- files that are skipped */

/* Sequence i of 64 has i as its tokens; a file has `count` of them. */
static const char *put_numbered(int file, const char *name, uint32_t first, uint32_t count)
{
    static int64_t tokens[4][17 * SEQ];
    for (uint32_t i = 0; i < count * SEQ; i++)
        tokens[file][i] = first + i / SEQ;
    return put(file, name, tokens[file], count * SEQ);
}

static int32_t sequence_of(struct hd__data *d, uint64_t number)
{
    int32_t ids[SEQ], labels[SEQ];
    ck_ok(hd__data_read(d, number, ids, labels, 0, SEQ, &err));
    for (int i = 1; i < SEQ; i++)
        ck_assert_int_eq(ids[i], ids[0]);
    ck_assert_int_eq(labels[SEQ - 1] - ids[0], 1); /* the label of its last token is the next sequence's first */
    return ids[0];
}

/* All other sequences keep their numbers; those of a file that is skipped, and the one whose last label lies there, are
 * others of the rest. */
START_TEST(skipped)
{
    struct hd__data_source sources[4];
    for (int k = 0; k < 4; k++)
        sources[k] =
            (struct hd__data_source){.path = put_numbered(k, (char *[]){"a", "b", "c", "d"}[k], (uint32_t)k * 16, 16)};
    put_numbered(3, "d", 48, 17);
    struct hd__data_config c = {
        .ops = &memory, .sources = sources, .n_sources = 4, .seq_len = SEQ, .vocab = 256, .shuffle = 1, .seed = 7};
    struct hd__data *all = open_one(&c), *d = open_one(&c), *later;
    ck_ok(hd__data_skip(d, 1, &err));
    sources[1] = (struct hd__data_source){.path = "is gone", .skipped = 1, .tokens = 16 * SEQ};
    later = open_one(&c);
    for (uint64_t i = 0; i < 1024; i++) {
        int32_t was = sequence_of(all, i), is = sequence_of(d, i);
        ck_assert(was >= 15 && was < 32 ? is < 15 || is >= 32 : is == was);
        ck_assert_int_eq(sequence_of(later, i), is);
    }
    ck_assert_uint_eq(hd__data_sequences(d), hd__data_sequences(all));
    ck_ok(hd__data_skip(d, 0, &err));
    ck_ok(hd__data_skip(d, 2, &err));
    for (uint64_t i = 0; i < 256; i++)
        ck_assert_int_ge(sequence_of(d, i), 48);
    ck_refused(hd__data_skip(d, 3, &err), HD_E_INVALID, "4 of 4 files are skipped, and no sequence is left");
    hd__data_close(later);
    hd__data_close(d);
    close_all(all);
}
END_TEST

START_TEST(failures)
{
    int32_t ids[SEQ], labels[SEQ], failed = -2;
    struct hd__data_source sources[] = {{.path = put_plain(0, "a")}, {.path = put_plain(1, "b")}, {.path = "none"}};
    struct hd__data_config c = {
        .ops = &memory, .sources = sources, .n_sources = 3, .seq_len = SEQ, .vocab = 251, .failed = &failed};
    struct hd__data *d;
    ck_refused(hd__data_open(&c, &d, &err), HD_E_NOTFOUND, "none: No such file");
    ck_assert_int_eq(failed, 2);
    c.n_sources = 2;
    d = open_one(&c);
    ck_assert_int_eq(failed, -1);
    ck_assert_int_eq(hd__data_failed(d), -1);
    files[1].count = 100; /* it became shorter */
    ck_refused(hd__data_read(d, 100, ids, labels, 0, SEQ, &err), HD_E_INVALID, "b: beyond its end");
    files[1].silent = 1;
    err = (struct hd_error)HD_ERROR_INIT;
    ck_refused(hd__data_read(d, 100, ids, labels, 0, SEQ, &err), HD_E_IO,
               "the data source's read failed (code -4) without a message");
    files[1].silent = 0;
    ck_assert_int_eq(hd__data_failed(d), 1);
    ck_ok(hd__data_skip(d, 1, &err));
    ck_ok(hd__data_read(d, 100, ids, labels, 0, SEQ, &err));
    close_all(d);
}
END_TEST

/* Files that go on are one source of a mix: in turn with the other one, in order. */
START_TEST(mix_of_shards)
{
    struct hd__data_source sources[] = {{.path = put_numbered(0, "a", 0, 8), .weight = 1},
                                        {.path = put_numbered(1, "b", 8, 9), .weight = 1, .goes_on = 1},
                                        {.path = put_numbered(2, "c", 32, 17), .weight = 1}};
    struct hd__data_config c = {
        .ops = &memory, .sources = sources, .n_sources = 3, .mix = 1, .seq_len = SEQ, .vocab = 256};
    struct hd__data *d = open_one(&c);
    for (uint64_t i = 0; i < 64; i++) {
        int32_t is = sequence_of(d, i);
        ck_assert_int_eq(is, i % 2 ? 32 + i / 2 % 16 : i / 2 % 16);
    }
    close_all(d);
}
END_TEST

START_TEST(mix)
{
    static int64_t tokens[3][33 * SEQ + 1];
    static const char *const name[] = {"a", "b", "c"};
    int32_t ids[SEQ], labels[SEQ];
    uint32_t served[3] = {0};
    static const double weight[] = {5, 3, 2};
    struct hd__data_source sources[3];
    for (uint32_t k = 0; k < 3; k++) {
        for (uint32_t i = 0; i < HD__COUNT(tokens[k]); i++)
            tokens[k][i] = k * 64 + i / SEQ;
        sources[k] = (struct hd__data_source){put((int)k, name[k], tokens[k], HD__COUNT(tokens[k])), weight[k]};
    }
    struct hd__data_config c = {
        .ops = &memory, .sources = sources, .n_sources = 3, .mix = 1, .seq_len = SEQ, .vocab = 256};
    struct hd__data *d = open_one(&c);
    ck_assert_uint_eq(hd__data_sequences(d), 99);
    for (uint32_t i = 0; i < 3 * HD__DATA_MIX_SLOTS; i++) {
        ck_ok(hd__data_read(d, i, ids, labels, 0, SEQ, &err));
        uint32_t k = (uint32_t)ids[0] / 64;
        /* in order within a source, whatever the round */
        ck_assert_uint_eq(ids[0] % 64, served[k]++ % 33);
        /* at no moment more than one turn from the weights; the rounding of shares to turns adds a little */
        for (uint32_t j = 0; j < 3; j++)
            ck_assert_double_le(served[j] - weight[j] / 10 * (i + 1), 2);
    }
    close_all(d);
    sources[1].weight = 0;
    ck_refused(hd__data_open(&c, &d, &err), HD_E_INVALID, "weight 0");
    sources[1].weight = 1e-6;
    ck_refused(hd__data_open(&c, &d, &err), HD_E_INVALID, "less than 1/65536");
}
END_TEST

/* Sources by how often a number of sequences reads them: by their weights and their sizes. */
START_TEST(repeats_of_a_mix)
{
    static int64_t tokens[8 * SEQ + 1];
    static const struct {
        uint64_t source;
        double share, times;
    } want[] = {{3, 0.2, 20}, {1, 0.5, 12.5}, {0, 0.2, 10}, {2, 0.1, 1.25}};
    struct hd__data_source sources[] = {{put(0, "a", tokens, 2 * SEQ + 1), 4},
                                        {put(1, "b", tokens, 4 * SEQ + 1), 10},
                                        {put(2, "c", tokens, 8 * SEQ + 1), 2},
                                        {put(3, "d", tokens, SEQ + 1), 4}};
    struct hd__data_config c = {
        .ops = &memory, .sources = sources, .n_sources = 4, .mix = 1, .seq_len = SEQ, .vocab = 256};
    struct hd__data *d = open_one(&c);
    for (uint32_t n = 1; n <= 5; n++) {
        struct hd__data_repeats x[6];
        ck_assert_uint_eq(hd__data_most_repeated(d, 100, x, n), HD__MIN(n, 4));
        for (uint32_t i = 0; i < HD__MIN(n, 4); i++) {
            ck_assert_uint_eq(x[i].source, want[i].source);
            ck_assert_double_eq_tol(x[i].share, want[i].share, 1.0 / HD__DATA_MIX_SLOTS);
            ck_assert_double_eq_tol(x[i].times, want[i].times, 100.0 / HD__DATA_MIX_SLOTS);
        }
    }
    hd__data_close(d);
    c.mix = 0;
    d = open_one(&c);
    struct hd__data_repeats all[5];
    ck_assert_uint_eq(hd__data_most_repeated(d, 30, all, 4), 1);
    ck_assert_double_eq(all->share, 1);
    ck_assert_double_eq(all->times, 2); /* 15 sequences, and the ends of three files in between */
    close_all(d);
}
END_TEST

/* ---- reading ahead */

static uint64_t row_number(void *user, uint64_t request, uint32_t row)
{
    return request * *(uint64_t *)user + row;
}

START_TEST(prefetch)
{
    enum { ROWS = 3 };
    int32_t ids[SEQ], labels[SEQ];
    const int32_t *got, *next;
    uint64_t batch = 12;
    struct hd__data_source source = {put_plain(0, "a.txt"), 0};
    struct hd__data_config c = {
        .ops = &memory, .sources = &source, .n_sources = 1, .seq_len = SEQ, .vocab = 256, .shuffle = 1};
    struct hd__data *d = open_one(&c);
    for (uint32_t depth = 0; depth < 4; depth++) {
        struct hd__data_prefetch *p;
        const struct hd__data_prefetch_config pc = {.data = d,
                                                    .number = row_number,
                                                    .user = &batch,
                                                    .first = 5,
                                                    .rows = ROWS,
                                                    .depth = depth,
                                                    .ranges = {{4, 3}, {7, 5}}};
        ck_ok(hd__data_prefetch_start(&pc, &p, &err));
        for (uint64_t r = 5; r < 200; r++) {
            ck_ok(hd__data_prefetch_next(p, &got, &next, &err));
            for (uint32_t j = 0; j < ROWS; j++) {
                ck_ok(hd__data_read(d, r * batch + j, ids, labels, 4, 8, &err));
                ck_assert_mem_eq(got + j * 8, ids, 8 * sizeof *ids);
                ck_assert_mem_eq(next + j * 8, labels, 8 * sizeof *ids);
            }
        }
        hd__data_prefetch_stop(p);
    }
    close_all(d);
    /* token 36 is 252 mod 251 = 1, the largest of the first 100 is 250 at position 215: the error comes with
     * its turn
     */
    c.vocab = 250, c.shuffle = 0;
    d = open_one(&c);
    batch = 1;
    struct hd__data_prefetch *p;
    const struct hd__data_prefetch_config pc = {
        .data = d, .number = row_number, .user = &batch, .rows = 1, .ranges = {{0, SEQ}}};
    ck_ok(hd__data_prefetch_start(&pc, &p, &err));
    uint32_t bad = 0;
    while (token(bad) != 250)
        bad++;
    for (uint32_t r = 0; r < (bad - 1) / SEQ; r++)
        ck_ok(hd__data_prefetch_next(p, &got, &next, &err));
    ck_refused(hd__data_prefetch_next(p, &got, &next, &err), HD_E_INVALID, "is 250");
    ck_refused(hd__data_prefetch_next(p, &got, &next, &err), HD_E_INVALID, "is 250");
    hd__data_prefetch_stop(p);
    close_all(d);
}
END_TEST

/* Labels of their own: every third token has none. */
static int32_t read_labels(struct hd_data *data, uint64_t first, uint64_t count, int64_t *labels, struct hd_error *why)
{
    int32_t rc = memory.read(data, first, count, labels, why);
    for (uint64_t i = 0; i < count && !rc; i++)
        labels[i] = (first + i) % 3 ? labels[i] : -100;
    return rc;
}

static int32_t is_labeled(const void *settings)
{
    return *(const int32_t *)settings;
}

/* The warnings of the look before the start. */
static const char *scanned(const struct hd_data_ops *ops, const char *name, char said[1024])
{
    FILE *f = tmpfile();
    struct hd__data_source source = {name, 0};
    struct hd__data_config c = {.ops = ops, .sources = &source, .n_sources = 1, .seq_len = SEQ, .vocab = 256};
    struct hd__data *d = open_one(&c);
    int before = dup(STDERR_FILENO);
    dup2(fileno(f), STDERR_FILENO);
    ck_ok(hd__data_scan(d, TOKENS, &err));
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(f);
    said[fread(said, 1, 1023, f)] = '\0';
    fclose(f);
    close_all(d);
    return said;
}

/* Labels by the function that reads the tokens count, too; those that are their own tokens' ids get a warning, and
 * those of tokens that are all the same do not. */
START_TEST(labels_of_their_own_tokens)
{
    static const char own[] = "warning: a.txt: each label that counts is the id of its own token";
    static const int64_t zeros[TOKENS];
    char said[1024];
    struct hd_data_ops ops = memory;
    const char *name = put_plain(0, "a.txt");
    for (int same = 0; same < 2; same++) {
        ops.labels = same ? memory.read : read_labels;
        scanned(&ops, name, said);
        ck_assert_msg(strstr(said, own) && strstr(said, same ? "a.txt: 1000 of 1000 tokens" : "a.txt: 666 of 1000 tok"),
                      "%s", said);
    }
    files[0].tokens = zeros;
    ck_assert_msg(!strstr(scanned(&ops, name, said), own), "%s", said);
}
END_TEST

/* What the next requests count, whatever was read of them already; labels that the settings do not have are not
 * read. */
START_TEST(counting)
{
    struct hd_data_ops own = memory;
    const int32_t *got, *labels, off = 0, on = 1;
    uint64_t batch = 3;
    struct hd__data_source source = {put_plain(0, "a.txt"), 0};
    struct hd__data_config c = {
        .ops = &own, .settings = &on, .sources = &source, .n_sources = 1, .seq_len = SEQ, .vocab = 256};
    own.labels = read_labels;
    own.labeled = is_labeled;
    struct hd__data *d = open_one(&c);
    for (uint32_t depth = 2; depth < 6; depth++) {
        struct hd__data_prefetch *p;
        const struct hd__data_prefetch_config pc = {
            .data = d, .number = row_number, .user = &batch, .rows = 3, .depth = depth, .ranges = {{2, 3}, {9, 2}}};
        ck_ok(hd__data_prefetch_start(&pc, &p, &err));
        for (int step = 0; step < 20; step++) {
            int64_t counted, again, found = 0;
            ck_ok(hd__data_prefetch_count(p, depth, &counted, &err));
            ck_ok(hd__data_prefetch_count(p, depth, &again, &err));
            ck_assert_int_eq(counted, again);
            for (uint32_t r = 0; r < depth; r++) {
                ck_ok(hd__data_prefetch_next(p, &got, &labels, &err));
                for (int i = 0; i < 3 * 5; i++)
                    found += labels[i] >= 0;
            }
            ck_assert_int_eq(counted, found);
            ck_assert(found > 0 && found < 15 * (int64_t)depth);
        }
        hd__data_prefetch_stop(p);
    }
    close_all(d);
    c.settings = &off;
    d = open_one(&c);
    int32_t ids[SEQ], next[SEQ];
    ck_ok(hd__data_read(d, 0, ids, next, 0, SEQ, &err));
    ck_assert_mem_eq(ids + 1, next, (SEQ - 1) * sizeof *ids);
    close_all(d);
}
END_TEST

/* ---- documents: tokens 1, 2, 3, ..., and the numbers of those that begin one */

enum { MOST = 400 };
static uint64_t begins[MOST];
static uint32_t n_documents;

static int32_t begins_end(struct hd_data *f, uint64_t token, uint64_t limit, uint64_t *end, struct hd_error *why)
{
    uint64_t number = (uint64_t)f->tokens[token] - 1;
    (void)why;
    *end = limit;
    for (uint32_t k = 0; k < n_documents; k++)
        if (begins[k] > number && begins[k] - number < limit - token) {
            *end = token + begins[k] - number;
            break;
        }
    return HD_OK;
}

static const char *put_documents(const uint64_t *lengths, uint32_t n)
{
    static int64_t tokens[MOST * SEQ * 3];
    uint64_t all = 0;
    for (n_documents = 0; n_documents < n; all += lengths[n_documents++])
        begins[n_documents] = all;
    for (uint64_t i = 0; i < all; i++)
        tokens[i] = (int64_t)i + 1;
    return put(0, "documents", tokens, all);
}

/* One to 2.5 sequences long, many of them short. */
static const char *put_random_documents(void)
{
    static uint64_t lengths[MOST];
    for (uint32_t k = 0; k < MOST; k++)
        lengths[k] = 1 + hd__data_permute(k, MOST, 5) * hd__data_permute(k, MOST, 6) % (k % 4 ? SEQ / 2 : SEQ * 5 / 2);
    return put_documents(lengths, MOST);
}

static int is_begin(uint64_t number)
{
    for (uint32_t k = 0; k < n_documents; k++)
        if (begins[k] == number)
            return 1;
    return number >= files[0].count;
}

/* A sequence's labels and positions follow from its tokens; parts of it are what the whole has there. */
static void check_sequence(struct hd__data *d, uint64_t number, uint8_t *seen)
{
    int32_t ids[SEQ], labels[SEQ], positions[SEQ], part[5], next[5];
    ck_ok(hd__data_read(d, number, ids, labels, 0, SEQ, &err));
    ck_ok(hd__data_positions(d, number, positions, &err));
    for (int k = 0; k < SEQ; k++) {
        uint64_t at = (uint64_t)ids[k] - 1;
        int follows = k && ids[k] && ids[k] == ids[k - 1] + 1 && !is_begin(at), padded = k && !ids[k] && !ids[k - 1];
        ck_assert_int_eq(positions[k], follows || padded ? positions[k - 1] + 1 : 0);
        ck_assert_int_eq(labels[k], !ids[k] || is_begin(at + 1) ? -1 : ids[k] + 1);
        ck_assert(k == 0 || ids[k - 1] || !ids[k]); /* padding is behind all documents */
        if (ids[k])
            ck_assert_int_eq(seen[at]++, 0);
    }
    for (int at = 0; at + 5 <= SEQ; at++) {
        ck_ok(hd__data_read(d, number, part, next, at, 5, &err));
        ck_assert_mem_eq(part, ids + at, sizeof part);
        ck_assert_mem_eq(next, labels + at, sizeof part);
    }
}

START_TEST(documents)
{
    struct hd_data_ops ops = memory;
    ops.document_end = begins_end;
    for (int32_t mode = HD__DATA_MASK; mode <= HD__DATA_PACK; mode++) {
        struct hd__data_source source = {put_random_documents(), 0};
        const struct hd__data_config c = {.ops = &ops,
                                          .sources = &source,
                                          .n_sources = 1,
                                          .seq_len = SEQ,
                                          .vocab = 1 << 20,
                                          .shuffle = 1,
                                          .documents = mode};
        struct hd__data *d = open_one(&c);
        uint64_t sequences = hd__data_sequences(d), read = 0;
        for (uint64_t epoch = 0; epoch < 2; epoch++) { /* all tokens in each, but for the rest of the last sequence */
            uint8_t *seen = hd__alloc(files[0].count + 1);
            for (uint64_t i = 0; i < sequences; i++)
                check_sequence(d, epoch * sequences + i, seen);
            for (uint64_t i = read = 0; i < files[0].count; i++)
                read += seen[i];
            ck_assert_uint_eq(read, mode == HD__DATA_PACK ? files[0].count : sequences * SEQ);
            free(seen);
        }
        if (mode == HD__DATA_PACK)
            ck_assert_uint_le(sequences * SEQ * 95 / 100, read);
        close_all(d);
    }
}
END_TEST

/* Each into the fullest sequence that has room: 6 2 | 5 3 | 4; of two alike the later. */
START_TEST(best_fit)
{
    static const uint64_t lengths[] = {2, 3, 4, 5, 6};
    static const int32_t want[3][8] = {
        {15, 16, 17, 18, 19, 20, 1, 2}, {10, 11, 12, 13, 14, 3, 4, 5}, {6, 7, 8, 9, 0, 0, 0, 0}};
    struct hd_data_ops ops = memory;
    struct hd__data_source source = {put_documents(lengths, 5), 0};
    const struct hd__data_config c = {
        .ops = &ops, .sources = &source, .n_sources = 1, .seq_len = 8, .vocab = 100, .documents = HD__DATA_PACK};
    ops.document_end = begins_end;
    struct hd__data *d = open_one(&c);
    uint64_t cut, whole;
    ck_assert_uint_eq(hd__data_sequences(d), 3);
    ck_assert_uint_eq(hd__data_pieces(d, &cut, &whole), 5);
    ck_assert(cut == 0 && whole == 5);
    for (uint64_t i = 0; i < 3; i++) {
        int32_t ids[8], labels[8];
        ck_ok(hd__data_read(d, i, ids, labels, 0, 8, &err));
        ck_assert_mem_eq(ids, want[i], sizeof ids);
    }
    close_all(d);
    source.path = put_documents((const uint64_t[]){20, 8, 3}, 3); /* 8 8 4 | 8 | 3 */
    d = open_one(&c);
    ck_assert_uint_eq(hd__data_pieces(d, &cut, &whole), 5);
    ck_assert(cut == 1 && whole == 2);
    close_all(d);
}
END_TEST

/* A document ends with its file, and with the part that is trained on; a source that does not know is asked at once. */
START_TEST(documents_end_with_their_file)
{
    int32_t ids[SEQ], labels[SEQ], positions[SEQ];
    struct hd_data_ops ops = memory;
    const char *all = put_documents((const uint64_t[]){3 * SEQ}, 1);
    struct hd__data_source two[] = {{all, 0}, {put(1, "second", files[0].tokens, SEQ), 0}};
    struct hd__data_config c = {
        .ops = &ops, .sources = two, .n_sources = 2, .seq_len = SEQ, .vocab = 100, .documents = HD__DATA_MASK};
    ops.document_end = begins_end;
    two[0].path = put(0, "first", files[0].tokens, SEQ / 2);
    struct hd__data *d = open_one(&c);
    ck_ok(hd__data_read(d, 0, ids, labels, 0, SEQ, &err));
    ck_ok(hd__data_positions(d, 0, positions, &err));
    ck_assert_int_eq(labels[SEQ / 2 - 1], -1);
    ck_assert_int_eq(positions[SEQ / 2], 0);
    ck_assert_int_eq(positions[SEQ - 1], SEQ / 2 - 1);
    close_all(d);
    c.documents = HD__DATA_PACK;
    c.seq_len = 2 * SEQ;
    c.n_sources = 1;
    c.val_fraction = 0.5;
    d = open_one(&c); /* half of the first file, in a sequence that is padded */
    ck_assert_uint_eq(hd__data_sequences(d), 1);
    ck_ok(hd__data_read(d, 0, ids, labels, 0, SEQ, &err));
    ck_assert_int_eq(ids[SEQ / 4 - 1], SEQ / 4);
    ck_assert_int_eq(labels[SEQ / 4 - 1], -1);
    ck_assert_int_eq(ids[SEQ / 4], 0);
    close_all(d);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"vocabulary", vocabulary},
        {"sources", sources},
        {"scan of many", scan_of_many},
        {"in order", in_order},
        {"several files", several_files},
        {"held out", held_out},
        {"permutation", permutation},
        {"windows", permutation_of_windows},
        {"even", permutation_is_even},
        {"epochs", epochs},
        {"mix", mix},
        {"repeats_of_a_mix", repeats_of_a_mix},
        {"skipped", skipped},
        {"failures", failures},
        {"mix_of_shards", mix_of_shards},
        {"prefetch", prefetch},
        {"labels_of_their_own_tokens", labels_of_their_own_tokens},
        {"counting", counting},
        {"documents", documents},
        {"best fit", best_fit},
        {"documents and files", documents_end_with_their_file},
        {NULL, NULL},
    };
    return scratch_run("data", tests);
}
