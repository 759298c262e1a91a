/* Token files and the endless stream of sequences. */
#include "service/data/data.h"
#include "tests/support/scratch.h"

static struct hd_error err = HD_ERROR_INIT;

enum { TOKENS = 1000, SEQ = 16 };

static struct hd__data *open_one(const struct hd__data_config *config)
{
    struct hd__data *d = NULL;
    ck_ok(hd__data_open(config, &d, &err));
    return d;
}

/* ---- formats: 1000 tokens 0, 7, 14, ... mod 251 in each of them */

static uint32_t token(uint32_t i)
{
    return i * 7 % 251;
}

static size_t put_tokens(uint8_t *out, uint32_t bytes)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        uint64_t t = token(i);
        memcpy(out + i * bytes, &t, bytes);
    }
    return TOKENS * bytes;
}

static const char *put_llmc(const struct scratch *s, const char *name, int32_t magic, int32_t version, uint32_t bytes)
{
    static uint8_t file[1024 + TOKENS * 4];
    int32_t header[256] = {magic, version, TOKENS};
    memcpy(file, header, sizeof header);
    return scratch_write(s, name, file, 1024 + put_tokens(file + 1024, bytes));
}

static const char *put_plain(const struct scratch *s, const char *name, uint32_t bytes)
{
    static uint8_t file[TOKENS * 8];
    return scratch_write(s, name, file, put_tokens(file, bytes));
}

/* Three documents of 1, 0 and 999 tokens; the layout of Megatron-LM's
 * megatron/core/datasets/indexed_dataset.py */
static const char *put_megatron(const struct scratch *s, uint8_t code, uint32_t bytes, uint8_t idx[128], size_t *n)
{
    const int32_t lengths[] = {1, 0, 999};
    const uint64_t head[] = {3, 4};
    const int64_t pointers[] = {0, bytes, bytes}, documents[] = {0, 1, 2, 3};
    const uint64_t version = 1;
    uint8_t *p = idx;
    memcpy(p, "MMIDIDX\0\0", 9), p += 9;
    memcpy(p, &version, 8), p += 8;
    *p++ = code;
    memcpy(p, head, 16), p += 16;
    memcpy(p, lengths, 12), p += 12;
    memcpy(p, pointers, 24), p += 24;
    memcpy(p, documents, 32), p += 32;
    *n = (size_t)(p - idx);
    scratch_write(s, "corpus.idx", idx, *n);
    return put_plain(s, "corpus.bin", bytes);
}

static void check_tokens(const char *path, uint32_t format, uint32_t token_bytes)
{
    struct hd__data_token_file f;
    int32_t out[TOKENS];
    ck_ok(hd__data_token_file_open(path, format, token_bytes, &f, &err));
    ck_assert_uint_eq(f.count, TOKENS);
    ck_ok(hd__data_token_file_read(&f, 0, TOKENS, 251, out, &err));
    for (uint32_t i = 0; i < TOKENS; i++)
        ck_assert_int_eq(out[i], token(i));
    hd__data_token_file_close(&f);
}

START_TEST(formats)
{
    struct scratch s;
    uint8_t idx[128];
    size_t n;
    scratch_init(&s);
    check_tokens(put_plain(&s, "a.txt", 1), HD__DATA_AUTO, 0);
    check_tokens(put_plain(&s, "a.bin", 2), HD__DATA_AUTO, 0);
    check_tokens(put_plain(&s, "b.bin", 4), HD__DATA_NANOGPT, 4);
    check_tokens(put_llmc(&s, "c.bin", 20240520, 1, 2), HD__DATA_AUTO, 0);
    check_tokens(put_llmc(&s, "d.tokens", 20240801, 7, 4), HD__DATA_AUTO, 0);
    check_tokens(put_megatron(&s, 8, 2, idx, &n), HD__DATA_AUTO, 0);
    check_tokens(put_megatron(&s, 4, 4, idx, &n), HD__DATA_AUTO, 0);
    check_tokens(put_megatron(&s, 5, 8, idx, &n), HD__DATA_MEGATRON, 0);
    check_tokens(put_megatron(&s, 1, 1, idx, &n), HD__DATA_MEGATRON, 0);
    scratch_finish(&s);
}
END_TEST

/* Written by NumPy: 0, 5, 10, ... 245 */
START_TEST(numpy)
{
    static const char *const dtype[] = {"uint8", "uint16", "uint32", "int32", "int64"};
    for (size_t i = 0; i < HD__COUNT(dtype); i++) {
        char path[512];
        struct hd__data_token_file f;
        int32_t out[50];
        snprintf(path, sizeof path, "%s/tokens-%s.npy", GOLDEN, dtype[i]);
        ck_ok(hd__data_token_file_open(path, HD__DATA_AUTO, 0, &f, &err));
        ck_assert_uint_eq(f.count, 50);
        ck_ok(hd__data_token_file_read(&f, 0, 50, 256, out, &err));
        for (int32_t k = 0; k < 50; k++)
            ck_assert_int_eq(out[k], k * 5);
        hd__data_token_file_close(&f);
    }
}
END_TEST

START_TEST(refusals)
{
    struct scratch s;
    struct hd__data_token_file f;
    uint8_t idx[128];
    size_t n;
    scratch_init(&s);
    ck_refused(hd__data_token_file_open("/nowhere/x.bin", 0, 0, &f, &err), HD_E_NOTFOUND, "/nowhere/x.bin");
    ck_refused(hd__data_token_file_open(s.dir, 0, 0, &f, &err), HD_E_INVALID, "regular");
    ck_refused(hd__data_token_file_open(scratch_write(&s, "empty", "", 0), 0, 0, &f, &err), HD_E_INVALID, "empty");
    ck_refused(hd__data_token_file_open(scratch_write(&s, "odd.bin", "abc", 3), 0, 0, &f, &err), HD_E_CORRUPT,
               "odd.bin");
    ck_refused(hd__data_token_file_open(put_llmc(&s, "l", 20240520, 3, 2), 0, 0, &f, &err), HD_E_UNSUPPORTED,
               "version 3");
    ck_refused(hd__data_token_file_open(put_llmc(&s, "l", 20240520, 1, 4), 0, 0, &f, &err), HD_E_CORRUPT,
               "promises 1000");
    ck_refused(hd__data_token_file_open(put_llmc(&s, "l", 7, 1, 4), HD__DATA_LLMC, 0, &f, &err), HD_E_CORRUPT, "magic");
    ck_refused(hd__data_token_file_open(scratch_write(&s, "x.npy", "abc", 3), 0, 0, &f, &err), HD_E_CORRUPT, "x.npy");
    ck_refused(hd__data_token_file_open(put_megatron(&s, 7, 4, idx, &n), 0, 0, &f, &err), HD_E_UNSUPPORTED, "code 7");
    ck_refused(hd__data_token_file_open(put_megatron(&s, 4, 2, idx, &n), 0, 0, &f, &err), HD_E_CORRUPT, "sequence 1");
    scratch_finish(&s);
}
END_TEST

/* Every type, at every place around the borders of blocks: what a scan finds is what a read finds. */
START_TEST(scan)
{
    static const struct {
        uint32_t type, bytes;
        int64_t vocab, bad;
    } rows[] = {{0, 1, 250, 250},        {1, 2, 300, 300},      {1, 2, 40000, 65535},
                {2, 4, 300, UINT32_MAX}, {3, 2, 60000, -1},     {3, 2, 60000, -20000},
                {4, 4, 300, -1},         {4, 4, INT32_MAX, -2}, {5, 8, 300, INT64_C(0x100000003)},
                {5, 8, 300, -1}};
    static const uint64_t places[] = {0, 1, 2047, 2048, 2049, 4095, 4096, 4998, 4999};
    uint8_t *tokens = hd__alloc(5000 * 8 + 1), *at = tokens + 1; /* unaligned, as a header may leave them */
    int32_t *out = hd__alloc(5000 * sizeof *out);
    for (size_t r = 0; r < HD__COUNT(rows); r++)
        for (size_t k = 0; k < HD__COUNT(places); k++) {
            struct hd__data_token_file f = {.path = (char *)"mem", .at = at, .count = 5000, .type = rows[r].type};
            struct hd_error other = HD_ERROR_INIT;
            memset(at, 0, 5000 * 8);
            memcpy(at + places[k] * rows[r].bytes, &rows[r].bad, rows[r].bytes);
            ck_assert_int_eq(hd__data_token_file_read(&f, 0, 5000, rows[r].vocab, out, &other), HD_E_INVALID);
            ck_refused(hd__data_token_file_scan(&f, 0, 5000, rows[r].vocab, &err), HD_E_INVALID, other.message);
            ck_ok(hd__data_token_file_scan(&f, 0, places[k], rows[r].vocab, &err));
            ck_ok(hd__data_token_file_scan(&f, places[k] + 1, 4999 - places[k], rows[r].vocab, &err));
        }
    free(out);
    free(tokens);
}
END_TEST

/* A budget is shared among files, and only what will be read is looked at. */
START_TEST(scan_of_many)
{
    struct scratch s;
    uint16_t tokens[100] = {0};
    scratch_init(&s);
    struct hd__data_source sources[3] = {{scratch_write(&s, "a.bin", tokens, sizeof tokens), 0},
                                         {scratch_write(&s, "b.bin", tokens, sizeof tokens), 0},
                                         {NULL, 0}};
    tokens[29] = 300;
    sources[2].path = scratch_write(&s, "c.bin", tokens, sizeof tokens);
    struct hd__data_config c = {.sources = sources, .n_sources = 3, .seq_len = SEQ, .vocab = 250};
    struct hd__data *d = open_one(&c);
    ck_ok(hd__data_scan(d, 87, &err));
    ck_refused(hd__data_scan(d, 90, &err), HD_E_INVALID, "c.bin: token 29 is 300");
    ck_ok(hd__data_scan(d, 0, &err));
    hd__data_close(d);
    c.val_fraction = 0.3; /* 210 tokens to train on, the tail of c held out */
    d = open_one(&c);
    ck_ok(hd__data_scan(d, 1000, &err));
    hd__data_close(d);
    c.held_out = 1;
    d = open_one(&c);
    ck_refused(hd__data_scan(d, 1000, &err), HD_E_INVALID, "c.bin: token 29 is 300");
    hd__data_close(d);
    scratch_finish(&s);
}
END_TEST

START_TEST(vocabulary)
{
    struct scratch s;
    int32_t ids[SEQ], labels[SEQ];
    uint16_t tokens[100] = {0};
    int64_t wide[40] = {0};
    scratch_init(&s);
    tokens[53] = 250;
    struct hd__data_source source = {scratch_write(&s, "v.bin", tokens, sizeof tokens), 0};
    struct hd__data_config c = {.sources = &source, .n_sources = 1, .seq_len = SEQ, .vocab = 250};
    struct hd__data *d = open_one(&c);
    ck_ok(hd__data_read(d, 2, ids, labels, 0, SEQ, &err));
    ck_refused(hd__data_read(d, 3, ids, labels, 0, SEQ, &err), HD_E_INVALID, "v.bin: token 53 is 250");
    hd__data_close(d);
    c.vocab = 251;
    d = open_one(&c);
    ck_ok(hd__data_read(d, 3, ids, labels, 0, SEQ, &err));
    hd__data_close(d);
    /* a negative id, and one that would be in range if it were cut to 32 bits */
    struct hd__data_token_file f = {.path = (char *)"mem", .at = (uint8_t *)wide, .count = 40, .type = 5};
    int32_t out[40];
    wide[7] = -1;
    ck_refused(hd__data_token_file_read(&f, 0, 40, 250, out, &err), HD_E_INVALID, "token 7 is -1");
    wide[7] = INT64_C(0x100000003);
    ck_refused(hd__data_token_file_read(&f, 0, 40, 250, out, &err), HD_E_INVALID, "token 7 is 4294967299");
    ck_refused(hd__data_token_file_scan(&f, 0, 40, 250, &err), HD_E_INVALID, "token 7 is 4294967299");
    ck_ok(hd__data_token_file_scan(&f, 8, 32, 250, &err));
    scratch_finish(&s);
}
END_TEST

/* ---- sequences */

START_TEST(in_order)
{
    struct scratch s;
    int32_t ids[SEQ], labels[SEQ], part[4], next[4];
    scratch_init(&s);
    struct hd__data_source source = {put_plain(&s, "a.txt", 1), 0};
    const struct hd__data_config c = {.sources = &source, .n_sources = 1, .seq_len = SEQ, .vocab = 256};
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
    hd__data_close(d);
    scratch_finish(&s);
}
END_TEST

/* Two files and an empty one between them give what one file gives. */
START_TEST(several_files)
{
    struct scratch s;
    uint8_t all[TOKENS];
    int32_t a[SEQ], b[SEQ], la[SEQ], lb[SEQ];
    static const uint8_t none[] = "\x93NUMPY\1\0v\0{'descr': '|u1', 'fortran_order': False, 'shape': (0,), }"
                                  "                                                           \n";
    scratch_init(&s);
    put_tokens(all, 1);
    struct hd__data_source one = {put_plain(&s, "a.txt", 1), 0};
    struct hd__data_source three[] = {{scratch_write(&s, "1.txt", all, 333), 0},
                                      {scratch_write(&s, "2.npy", none, 128), 0},
                                      {scratch_write(&s, "3.txt", all + 333, TOKENS - 333), 0}};
    struct hd__data_config c = {.sources = &one, .n_sources = 1, .seq_len = SEQ, .vocab = 256, .shuffle = 1, .seed = 9};
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
    hd__data_close(e);
    scratch_finish(&s);
}
END_TEST

START_TEST(held_out)
{
    struct scratch s;
    int32_t ids[SEQ], labels[SEQ];
    scratch_init(&s);
    struct hd__data_source source = {put_plain(&s, "a.txt", 1), 0};
    struct hd__data_config c = {.sources = &source, .n_sources = 1, .seq_len = SEQ, .vocab = 256, .val_fraction = 0.1};
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
    hd__data_close(val);
    c.seq_len = 100;
    ck_refused(hd__data_open(&c, &val, &err), HD_E_INVALID,
               "100 tokens are too few for one sequence of seq_len 100, "
               "which takes 101");
    c.seq_len = 900, c.held_out = 0;
    ck_refused(hd__data_open(&c, &val, &err), HD_E_INVALID, "900 tokens (without the held-out part)");
    scratch_finish(&s);
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
    struct scratch s;
    uint16_t tokens[101 * SEQ + 1];
    int32_t ids[SEQ], labels[SEQ], order[2][3][101], same = 0;
    scratch_init(&s);
    for (uint32_t i = 0; i < HD__COUNT(tokens); i++)
        tokens[i] = (uint16_t)(i / SEQ);
    struct hd__data_source source = {scratch_write(&s, "e.bin", tokens, sizeof tokens), 0};
    for (uint32_t seed = 0; seed < 2; seed++) {
        const struct hd__data_config c = {
            .sources = &source, .n_sources = 1, .seq_len = SEQ, .vocab = 102, .shuffle = 1, .seed = seed};
        struct hd__data *d = open_one(&c);
        for (uint32_t epoch = 0; epoch < 3; epoch++) {
            uint8_t seen[101] = {0};
            for (uint32_t i = 0; i < 101; i++) {
                ck_ok(hd__data_read(d, epoch * 101 + i, ids, labels, 0, SEQ, &err));
                ck_assert_int_eq(seen[ids[0]]++, 0);
                order[seed][epoch][i] = ids[0];
            }
        }
        hd__data_close(d);
    }
    for (uint32_t i = 0; i < 101; i++)
        same += (order[0][0][i] == order[0][1][i]) + (order[0][1][i] == order[0][2][i]) +
                (order[0][0][i] == order[1][0][i]) + (order[0][0][i] == (int32_t)i);
    ck_assert_int_lt(same, 30); /* four times about one is expected */
    scratch_finish(&s);
}
END_TEST

/* ---- mixes */

START_TEST(mix)
{
    struct scratch s;
    uint8_t tokens[3][33 * SEQ + 1];
    int32_t ids[SEQ], labels[SEQ];
    uint32_t served[3] = {0};
    static const double weight[] = {5, 3, 2};
    struct hd__data_source sources[3];
    scratch_init(&s);
    for (uint32_t k = 0; k < 3; k++) {
        char name[] = {(char)('a' + k), '\0'};
        for (uint32_t i = 0; i < sizeof tokens[k]; i++)
            tokens[k][i] = (uint8_t)(k * 64 + i / SEQ);
        sources[k] = (struct hd__data_source){scratch_write(&s, name, tokens[k], sizeof tokens[k]), weight[k]};
    }
    struct hd__data_config c = {.sources = sources, .n_sources = 3, .mix = 1, .seq_len = SEQ, .vocab = 256};
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
    hd__data_close(d);
    sources[1].weight = 0;
    ck_refused(hd__data_open(&c, &d, &err), HD_E_INVALID, "weight 0");
    sources[1].weight = 1e-6;
    ck_refused(hd__data_open(&c, &d, &err), HD_E_INVALID, "less than 1/65536");
    scratch_finish(&s);
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
    struct scratch s;
    int32_t ids[SEQ], labels[SEQ];
    const int32_t *got, *next;
    uint64_t batch = 12;
    scratch_init(&s);
    struct hd__data_source source = {put_plain(&s, "a.txt", 1), 0};
    struct hd__data_config c = {.sources = &source, .n_sources = 1, .seq_len = SEQ, .vocab = 256, .shuffle = 1};
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
    hd__data_close(d);
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
    hd__data_close(d);
    scratch_finish(&s);
}
END_TEST

/* ---- hostile files: every damaged file is refused with its name, or read without harm */

static void try_file(const char *path, uint32_t format)
{
    struct hd__data_token_file f;
    int32_t out[64];
    int32_t rc = hd__data_token_file_open(path, format, 0, &f, &err);
    if (rc) {
        ck_assert_ptr_nonnull(strstr(err.message, "/tmp/heddle-test-"));
        return;
    }
    for (uint64_t at = 0; at < f.count; at += 64)
        hd__data_token_file_read(&f, at, HD__MIN(64, f.count - at), 256, out, &err);
    ck_assert_int_eq(hd__data_token_file_read(&f, f.count, 1, 256, out, &err), HD_E_INVALID);
    ck_assert_int_eq(hd__data_token_file_read(&f, UINT64_MAX, 2, 256, out, &err), HD_E_INVALID);
    hd__data_token_file_close(&f);
}

START_TEST(hostile)
{
    struct scratch s;
    uint64_t state = 42;
    uint8_t idx[128], copy[2048];
    size_t n, idx_bytes, npy_bytes;
    scratch_init(&s);
    uint8_t *npy = scratch_read(GOLDEN "/tokens-uint16.npy", &npy_bytes);
    const char *bin = put_megatron(&s, 8, 2, idx, &idx_bytes);
    int32_t llmc[512] = {20240520, 1, 512};
    for (int k = 0; k < 1000; k++) {
        memcpy(copy, npy, npy_bytes);
        n = scratch_damage(&state, copy, npy_bytes);
        try_file(scratch_write(&s, "h.npy", copy, n), HD__DATA_NPY);
        memcpy(copy, idx, idx_bytes);
        n = scratch_damage(&state, copy, idx_bytes);
        scratch_write(&s, "corpus.idx", copy, n);
        try_file(bin, HD__DATA_MEGATRON);
        memcpy(copy, llmc, sizeof llmc);
        n = scratch_damage(&state, copy, k % 2 ? 12 : sizeof llmc);
        try_file(scratch_write(&s, "h.llmc", copy, n < 12 ? n : sizeof llmc), HD__DATA_LLMC);
    }
    free(npy);
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"formats", formats},
        {"numpy", numpy},
        {"refusals", refusals},
        {"vocabulary", vocabulary},
        {"scan", scan},
        {"scan of many", scan_of_many},
        {"in order", in_order},
        {"several files", several_files},
        {"held out", held_out},
        {"permutation", permutation},
        {"even", permutation_is_even},
        {"epochs", epochs},
        {"mix", mix},
        {"prefetch", prefetch},
        {"hostile", hostile},
        {NULL, NULL},
    };
    return scratch_run("data", tests);
}
