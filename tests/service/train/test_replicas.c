/* Copies of parameters and states on all ranks of a mesh: which there are, and which of them has a flipped bit. */
#include <check.h>
#include <stdlib.h>

#include "core/program/ops.h"
#include "service/train/replicas.h"
#include "tests/suite.h"
#include "tests/support/compile.h"

#define JOB(ranks, mesh, strategies, optimizer)                                                           \
    "job: {name: r, steps: 4}\nlaunch: {ranks: " ranks "}\nmesh: " mesh "\nstrategies: " strategies       \
    "\noptimizer: {use: " optimizer "}\nmodel: {use: transformer, family: llama, layers: 2, hidden: 32, " \
    "heads: 4, kv_heads: 2, ffn: 64, vocab: 64}\ndata: {train: none.bin, seq_len: 16, batch: 8, micro_batch: 2}\n"

/* An arena of every rank; equal where the program says so: each element has a value by its global number. */
struct cluster {
    struct compiled job;
    const struct hd__compiled *c;
    int32_t ranks;
    void **arena;
    struct hd__replicated_list *list; /* by stage */
};

static const int32_t *coord_of(const struct cluster *k, int32_t rank)
{
    static int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(&k->c->mesh, rank, coord);
    return coord;
}

static void cluster_open(struct cluster *k, const char *text)
{
    compile_text(&k->job, text, NULL, 0, 0);
    k->c = k->job.c;
    k->ranks = k->c->mesh.ranks;
    k->arena = hd__alloc((size_t)k->ranks * sizeof *k->arena);
    k->list = hd__alloc((size_t)k->c->n_stages * sizeof *k->list);
    for (int32_t s = 0; s < k->c->n_stages; s++)
        hd__replicated_find(k->c->stage[s], &k->list[s]);
    for (int32_t r = 0; r < k->ranks; r++) {
        const struct hd_program *p = hd__compiled_program(k->c, r);
        k->arena[r] = hd__alloc((size_t)hd__arena_total_bytes(p));
        memset(k->arena[r], 0x11, (size_t)hd__arena_total_bytes(p));
    }
}

static void cluster_close(struct cluster *k)
{
    for (int32_t r = 0; r < k->ranks; r++)
        free(k->arena[r]);
    for (int32_t s = 0; s < k->c->n_stages; s++)
        hd__free_array(&k->list[s].at);
    free(k->arena);
    free(k->list);
    compiled_free(&k->job);
}

/* Judges every piece of a stage; how many differ. `v` of the last one, whose words the caller frees. */
static int judge(const struct cluster *k, int32_t stage, const struct hd__replicated **piece,
                 struct hd__replicas_verdict *v)
{
    uint64_t *value = hd__alloc((size_t)k->ranks * sizeof *value);
    int n = 0;
    for (uint32_t i = 0; i < k->list[stage].at.count; i++) {
        struct hd__replicas_verdict one = {0};
        for (int32_t r = 0; r < k->ranks; r++)
            if (hd__compiled_program(k->c, r)->stage == stage)
                value[r] =
                    hd__replicated_hash(k->c->stage[stage], &k->list[stage].at.at[i], coord_of(k, r), k->arena[r]);
        hd__replicas_judge(&k->c->mesh, stage, k->list[stage].at.at[i].axes, value, &one);
        if (!one.n_wrong)
            continue;
        n++;
        *piece = &k->list[stage].at.at[i];
        hd__text_free(&v->words);
        *v = one;
    }
    free(value);
    return n;
}

/* The first byte that a rank has of a piece; 0 where it has none. */
static char *byte_of(const struct cluster *k, const struct hd__replicated *piece, int32_t rank)
{
    const struct hd_program *p = hd__compiled_program(k->c, rank);
    const struct hd__tensor *t = hd__tensor_const(p, piece->tensor);
    const struct hd__flat *flat = &p->flats.at[piece->flat];
    char *data = hd__tensor_address(p, piece->tensor, coord_of(k, rank), k->arena[rank]);
    int64_t at =
        piece->param == UINT32_MAX ? 0 : flat->offset[piece->param] - hd__global_start(p, t, 0, coord_of(k, rank));
    return at < 0 || at >= hd__numel(p, t) ? NULL : data + at * (int64_t)hd_dtype_size(t->dtype);
}

/* Flips a bit in the piece on a rank: it is found there, and nowhere else. */
static void flip(struct cluster *k, int32_t rank, const struct hd__replicated *piece)
{
    const struct hd__replicated *found = NULL;
    struct hd__replicas_verdict v = {0};
    int32_t stage = hd__compiled_program(k->c, rank)->stage, ranks[64];
    char *byte = byte_of(k, piece, rank), word[32];
    if (!byte)
        return;
    int32_t copies = hd__mesh_group(&k->c->mesh, rank, piece->axes, 0, ranks);
    *byte ^= 4;
    int n = judge(k, stage, &found, &v);
    ck_assert_msg(n == 1 && found == piece, "%d pieces differ", n);
    ck_assert_int_eq(v.n_wrong, copies > 2 ? 1 : 2);
    snprintf(word, sizeof word, copies > 2 ? "rank %d is not" : "ranks %d", copies > 2 ? rank : ranks[0]);
    ck_assert_msg(strstr(v.words.at, word) != NULL, "%s", v.words.at);
    ck_assert(copies == 2 || v.wrong == rank);
    hd__text_free(&v.words);
    *byte ^= 4;
}

static const struct {
    const char *text;
    uint32_t axes, never; /* along which there are copies, and are none */
    int lasting;          /* gradients of several micro-batches: their sums live from step to step */
} jobs[] = {
    {JOB("4", "{dp: 4}", "[{use: zero, stage: 0}]", "adamw"), HD_AXIS_BIT(HD_AXIS_DP_SHARD), 0},
    {JOB("4", "{dp: {replicate: 2, shard: 2}}", "[{use: zero, stage: 1}]", "adamw"), HD_AXIS_BIT(HD_AXIS_DP_REPLICATE),
     HD_AXIS_BIT(HD_AXIS_DP_SHARD)},
    {JOB("8", "{dp: 4, tp: 2}", "[{use: 3d}, {use: zero, stage: 3}]", "adamw"), HD_AXIS_BIT(HD_AXIS_TP),
     HD_AXIS_BIT(HD_AXIS_DP_SHARD)},
    {JOB("8", "{pp: 2, dp: 4}", "[{use: 3d}, {use: zero, stage: 0}]", "adafactor"), HD_AXIS_BIT(HD_AXIS_DP_SHARD),
     HD_AXIS_BIT(HD_AXIS_PP)},
    {JOB("4", "{dp: 4}", "[{use: zero, stage: 1}]", "adamw"), 0, HD_AXIS_BIT(HD_AXIS_DP_SHARD)},
    {JOB("4", "{cp: 2, dp: 2}", "[{use: 3d}, {use: zero, stage: 0}]", "lion"),
     HD_AXIS_BIT(HD_AXIS_CP) | HD_AXIS_BIT(HD_AXIS_DP_SHARD), 0, 1},
    {JOB("2", "{dp: 2}", "[{use: zero, stage: 0}]", "adamw"), HD_AXIS_BIT(HD_AXIS_DP_SHARD), 0, 1},
    {JOB("4", "{dp: 2, tp: 2}", "[{use: 3d}, {use: zero, stage: 2}]", "adamw"), HD_AXIS_BIT(HD_AXIS_TP),
     HD_AXIS_BIT(HD_AXIS_DP_SHARD), 1},
    {JOB("2", "{dp: 2}", "[{use: zero, stage: 1}]", "adamw"), 0, HD_AXIS_BIT(HD_AXIS_DP_SHARD)},
};

/* Updates of the piece's flat in a step. */
static int count_updates(const struct hd_program *p, const struct hd__replicated *piece)
{
    int n = 0;
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count; k++) {
            const struct hd__instr *i = &p->sections.at[s].code.at[k];
            n += hd__op(i->op)->class == HD__CLASS_UPDATE && i->op != HD_OP_SUMSQ &&
                 hd__flat_of_update(p, i) == &p->flats.at[piece->flat];
        }
    return n;
}

START_TEST(flipped_bits)
{
    struct cluster k;
    const struct hd__replicated *found;
    struct hd__replicas_verdict v = {0};
    uint32_t axes = 0, states = 0, params = 0, lasting = 0, fleeting = 0;
    cluster_open(&k, jobs[_i].text);
    for (int32_t s = 0; s < k.c->n_stages; s++) {
        ck_assert_int_eq(judge(&k, s, &found, &v), 0);
        for (uint32_t i = 0; i < k.list[s].at.count; i++) {
            const struct hd__replicated *piece = &k.list[s].at.at[i];
            axes |= piece->axes;
            states += piece->role >= HD__FLAT_OPTIM && piece->role < HD__FLAT_OPTIM + 4;
            params += piece->role == HD__FLAT_MASTER;
            lasting += piece->role == HD__FLAT_SHARD && !piece->fleeting;
            fleeting += piece->fleeting;
            if (piece->fleeting)
                ck_assert(piece->role == HD__FLAT_SHARD && count_updates(k.c->stage[s], piece) == 1);
            ck_assert(piece->role != HD__FLAT_GRAD);
            for (int32_t r = 0; r < k.ranks; r++)
                if (hd__compiled_program(k.c, r)->stage == s)
                    flip(&k, r, piece);
        }
    }
    ck_assert_uint_eq(axes & jobs[_i].axes, jobs[_i].axes);
    ck_assert_uint_eq(axes & jobs[_i].never, 0);
    ck_assert_int_eq(lasting > 0, jobs[_i].lasting);
    ck_assert_int_eq(fleeting > 0, jobs[_i].axes && !jobs[_i].lasting);
    ck_assert((jobs[_i].axes != 0) == (states > 0) && (jobs[_i].axes != 0) == (params > 0));
    cluster_close(&k);
}
END_TEST

/* Two of five are wrong, each in its way; and two that disagree. */
START_TEST(words)
{
    const struct hd__mesh five = hd__mesh_make((const int32_t[HD_AXIS_COUNT]){1, 1, 5, 1, 1, 1, 1}),
                          two = hd__mesh_make((const int32_t[HD_AXIS_COUNT]){1, 1, 2, 1, 1, 1, 1});
    struct hd__replicas_verdict v = {0}, w = {0}, none = {0};
    hd__replicas_judge(&five, 0, HD_AXIS_BIT(HD_AXIS_DP_SHARD), (const uint64_t[]){7, 9, 7, 8, 7}, &v);
    ck_assert_str_eq(v.words.at, "rank 1, 3 are not what the other 3 copies along dp_shard are");
    ck_assert(v.n_wrong == 2 && v.wrong == 1);
    hd__replicas_judge(&two, 0, HD_AXIS_BIT(HD_AXIS_DP_SHARD), (const uint64_t[]){7, 9}, &w);
    ck_assert_str_eq(w.words.at,
                     "ranks 0, 1 differ along dp_shard, and so many copies do not say which of them is right");
    hd__replicas_judge(&two, 0, HD_AXIS_BIT(HD_AXIS_DP_SHARD), (const uint64_t[]){7, 7}, &none);
    ck_assert(!none.n_wrong && !none.words.at);
    hd__text_free(&v.words);
    hd__text_free(&w.words);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("replicas");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, flipped_bits, 0, HD__COUNT(jobs));
    tcase_add_test(t, words);
    return suite_run_case("replicas", t);
}
