/* strategy-zero's plan: when it communicates, what it keeps, what each option changes, and what it refuses. */
#include <stdlib.h>

#include "core/program/ops.h"
#include "core/verify/verify.h"
#include "tests/suite.h"
#include "tests/support/compile.h"

static const char job[] = "job: {name: zero, steps: 3}\n"
                          "mesh: {dp: 4}\n"
                          "strategies:\n  - {use: zero, stage: 0, bucket: 0}\n"
                          "optimizer: {use: adamw, lr: 1e-3, clip: 1.0}\n"
                          "model: {use: transformer, family: llama, layers: 4, hidden: 64, heads: 4, vocab: 256}\n"
                          "data: {train: none, seq_len: 32, batch: 16, micro_batch: 1}\n"; /* 4 micro-batches */

enum { BLOCKS = 6 }; /* embed, four layers, head */

static struct hd_error err;
static struct compiled built;

static struct hd_program *compile(const char *const *options, size_t n, int64_t ranks)
{
    compile_text(&built, job, options, n, ranks);
    return built.c->stage[0];
}

#define COMPILE(...) \
    compile((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), 4)

/* Collectives over `axes` that move more than scalars. */
static int count(struct hd_program *p, const char *section, uint16_t op, uint32_t axes)
{
    const struct hd__code_section *s = hd__program_section(p, section);
    int n = 0;
    for (uint32_t k = 0; k < s->code.count; k++)
        n += s->code.at[k].op == op && s->code.at[k].axes == axes &&
             hd__numel(p, hd__tensor_const(p, s->code.at[k].in[0])) > 1;
    return n;
}

static const uint32_t shard = HD_AXIS_BIT(HD_AXIS_DP_SHARD), replicate = HD_AXIS_BIT(HD_AXIS_DP_REPLICATE);

static void expect_counts(struct hd_program *p, const char *section, int all_reduces, int reduce_scatters,
                          int all_gathers)
{
    ck_assert_int_eq(count(p, section, HD_OP_ALL_REDUCE, shard), all_reduces);
    ck_assert_int_eq(count(p, section, HD_OP_REDUCE_SCATTER, shard), reduce_scatters);
    ck_assert_int_eq(count(p, section, HD_OP_ALL_GATHER, shard), all_gathers);
}

static void expect_fault(struct hd_program *p, const char *words)
{
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, words), "%s", err.message);
    compiled_free(&built);
}

/* ---- gradient accumulation */

START_TEST(stages_0_and_1_reduce_once_a_step)
{
    struct hd_program *p = COMPILE("strategies.zero.stage=0");
    ck_assert_int_eq(hd__program_section(p, "micro")->repeat, 3);
    expect_counts(p, "micro", 0, 0, 0);
    expect_counts(p, "micro_last", BLOCKS, 0, 0);
    expect_counts(p, "update", 0, 0, 0);
    compiled_free(&built);
    p = COMPILE("strategies.zero.stage=1", "strategies.zero.gather_in_forward=false");
    expect_counts(p, "micro", 0, 0, 0);
    expect_counts(p, "micro_last", 0, BLOCKS, 0);
    expect_counts(p, "update", 0, 0, BLOCKS);
    compiled_free(&built);
}
END_TEST

/* What is reduced in a micro-batch is that micro-batch's alone: a temporary, added to the shard afterwards. */
START_TEST(stages_2_and_3_reduce_every_micro_batch)
{
    static const char *const sections[] = {"micro", "micro_last"};
    for (int stage = 2; stage <= 3; stage++) {
        struct hd_program *p = COMPILE(stage == 2 ? "strategies.zero.stage=2" : "strategies.zero.stage=3");
        for (int s = 0; s < 2; s++) {
            const hd__code *code = &hd__program_section(p, sections[s])->code;
            expect_counts(p, sections[s], 0, BLOCKS,
                          stage == 3 ? 2 * BLOCKS - 3
                                     : 0); /* the head and the layer before it stay; embed has no use backward */
            for (uint32_t k = 0; k < code->count; k++)
                if (code->at[k].op == HD_OP_REDUCE_SCATTER)
                    ck_assert_int_eq(p->buffers.at[hd__tensor_const(p, code->at[k].in[0])->buffer].life, HD__LIFE_TEMP);
        }
        expect_counts(p, "update", 0, 0, stage == 2 ? 1 : 0); /* the others: see below */
        compiled_free(&built);
    }
}
END_TEST

/* ---- an optimizer that updates whole matrices */

static void expect_dealt(struct hd_program *p, double *load)
{
    for (uint32_t f = 0; f < p->flats.count; f++) {
        const struct hd__flat *flat = &p->flats.at[f];
        int64_t shard = flat->count / hd__mesh_ways(&p->mesh, flat->axes), end = 0;
        for (uint32_t k = 0; k < flat->n_params; k++) {
            const struct hd__param *param = &p->params.at[flat->params[k]];
            ck_assert_int_ge(flat->offset[k], end);
            end = flat->offset[k] + param->optim.count;
            ck_assert_uint_eq(flat->n_states, param->whole ? 1 : 2);
            ck_assert_uint_eq(param->whole, p->params.at[flat->params[0]].whole);
            ck_assert_int_eq(flat->optim[k].first, flat->offset[k]);
            if (!param->whole)
                continue;
            ck_assert_int_eq(flat->offset[k] / shard, (end - 1) / shard);
            load[flat->offset[k] / shard] += param->update_flops;
        }
        ck_assert_int_le(end, flat->count);
    }
}

/* None is cut, at any stage, in buckets of any size, and a step's work is about the same for all ranks. */
START_TEST(matrices_are_dealt_to_ranks)
{
    static const char *const stages[] = {"strategies.zero.stage=1", "strategies.zero.stage=2",
                                         "strategies.zero.stage=3", "strategies.zero.stage=3"};
    static const char *const buckets[] = {"strategies.zero.bucket=0", "strategies.zero.bucket=25MB",
                                          "strategies.zero.gather_bucket=0", "strategies.zero.gather_bucket=1MB"};
    struct hd_program *p = COMPILE("optimizer={\"use\":\"muon\"}", stages[_i], buckets[_i]);
    double load[4] = {0}, most = 0, sum = 0;
    ck_assert_msg(!hd__verify(p, &err), "%s", err.message);
    expect_dealt(p, load);
    for (int r = 0; r < 4; r++) {
        sum += load[r];
        most = load[r] > most ? load[r] : most;
    }
    ck_assert_double_gt(sum, 0);
    ck_assert_double_le(most, 1.25 * sum / 4);
    compiled_free(&built);
}
END_TEST

/* ---- when parameters are gathered after the update */

/* The position of the wait for instruction `at`. */
static uint32_t wait_for(const hd__code *code, uint32_t at)
{
    uint32_t k = at;
    while (code->at[k].op != HD_OP_WAIT || code->at[k].wait != code->at[at].id)
        ck_assert_uint_lt(++k, code->count);
    return k;
}

/* All begin before anything is computed, and each is waited for where its block begins. */
static void expect_gathered_ahead(struct hd_program *p, const char *section)
{
    const hd__code *code = &hd__program_section(p, section)->code;
    uint32_t before = 0;
    for (uint32_t k = 0; k + 1 < BLOCKS; k++) {
        uint32_t wait = wait_for(code, k), products = 0;
        ck_assert_uint_eq(code->at[k].op, HD_OP_ALL_GATHER);
        for (uint32_t n = before; n < wait; n++)
            products += code->at[n].op == HD_OP_EINSUM;
        ck_assert_uint_eq(products > 0, k > 0); /* the embedding has none */
        before = wait;
    }
}

START_TEST(parameters_are_gathered_behind_the_next_forward_pass)
{
    for (int stage = 1; stage <= 2; stage++) {
        struct hd_program *p = COMPILE(stage == 1 ? "strategies.zero.stage=1" : "strategies.zero.stage=2");
        const hd__code *update = &hd__program_section(p, "update")->code;
        uint32_t gather = 0, updates = 0;
        ck_assert_int_eq(hd__program_section(p, "micro_first")->repeat, 1);
        ck_assert_int_eq(hd__program_section(p, "micro")->repeat, 2);
        expect_counts(p, "micro_first", 0, stage == 2 ? BLOCKS : 0, BLOCKS - 1);
        expect_counts(p, "micro", 0, stage == 2 ? BLOCKS : 0, 0);
        expect_counts(p, "micro_last", 0, BLOCKS, 0);
        expect_counts(p, "update", 0, 0, 1);
        expect_counts(p, "restore", 0, 0, BLOCKS);
        expect_gathered_ahead(p, "micro_first");
        while (update->at[gather].op !=
               HD_OP_ALL_GATHER) /* what the next step needs first, behind the others' update */
            gather++;
        ck_assert_str_eq(p->blocks.at[update->at[gather].block], "embed");
        for (uint32_t k = gather; k < wait_for(update, gather); k++)
            updates += update->at[k].op == update->at[gather - 1].op;
        ck_assert_uint_eq(updates, BLOCKS - 1);
        compiled_free(&built);
    }
}
END_TEST

/* Where no section of a step is repeated none is written twice. */
START_TEST(one_section_begins_a_step)
{
    static const struct {
        const char *option;
        int micros;
    } rows[] = {{"data.micro_batch=4", 1}, {"data.micro_batch=2", 2}};
    for (size_t n = 0; n < HD__COUNT(rows); n++) {
        struct hd_program *p = COMPILE("strategies.zero.stage=1", rows[n].option);
        ck_assert(!hd__program_section(p, "micro_first"));
        expect_gathered_ahead(p, rows[n].micros == 1 ? "micro_last" : "micro");
        compiled_free(&built);
    }
    struct hd_program *p = COMPILE("strategies.zero.stage=1", "strategies.zero.compress.kind=int8",
                                   "strategies.zero.compress.warmup=2", "data.micro_batch=4");
    expect_gathered_ahead(p, "micro_last_warmup"); /* both begin a step */
    expect_gathered_ahead(p, "micro_last");
    compiled_free(&built);
}
END_TEST

static void drop(struct hd_program *p, const char *section, uint32_t at)
{
    hd__code *code = &hd__program_section(p, section)->code;
    code->at[wait_for(code, at)].op = code->at[at].op = 0;
    hd__code_compact(code);
}

/* What is not gathered is old where it is read, in the section itself or in the next step, and after a load. */
START_TEST(the_proof_finds_what_is_not_gathered)
{
    struct hd_program *p = COMPILE("strategies.zero.stage=2");
    drop(p, "micro_first", 1);
    expect_fault(p, "which is stale: the master weights");
    p = COMPILE("strategies.zero.stage=2");
    for (uint32_t k = 0; k < hd__program_section(p, "update")->code.count; k++)
        if (hd__program_section(p, "update")->code.at[k].op == HD_OP_ALL_GATHER)
            drop(p, "update", k);
    expect_fault(p, "which is stale: the master weights");
    p = COMPILE("strategies.zero.stage=2");
    drop(p, "restore", 2);
    expect_fault(p, "is not refreshed");
}
END_TEST

/* A copy of the reduction of `flat` in micro_last, with a wait, at the end of `section`. */
static void plant(struct hd_program *p, const char *section, uint16_t op)
{
    struct hd__code_section *from = hd__program_section(p, "micro_last"), *to = hd__program_section(p, section);
    for (uint32_t k = 0; k < from->code.count; k++) {
        struct hd__instr i = from->code.at[k], wait;
        if (i.op != op || hd__numel(p, hd__tensor_const(p, i.in[0])) == 1)
            continue;
        i.id = ++p->next_id;
        wait = hd__instr_new(p, HD_OP_WAIT);
        wait.wait = i.id;
        hd__push(&to->code, i);
        hd__push(&to->code, wait);
        return;
    }
    ck_abort_msg("there is no such reduction");
}

/* The proof of obligations finds a gradient that is reduced early, or twice, or never. */
START_TEST(the_proof_finds_what_is_reduced_early_or_twice)
{
    struct hd_program *p = COMPILE("strategies.zero.stage=0");
    plant(p, "micro", HD_OP_ALL_REDUCE);
    expect_fault(p, "accumulated after it was partly reduced");
    p = COMPILE("strategies.zero.stage=0");
    plant(p, "micro_last", HD_OP_ALL_REDUCE);
    expect_fault(p, "reduced twice over dp_shard");
    p = COMPILE("strategies.zero.stage=1");
    plant(p, "micro", HD_OP_REDUCE_SCATTER);
    expect_fault(p, "accumulated after it was partly reduced");
    p = COMPILE("strategies.zero.stage=1", "mesh.dp={\"replicate\":2,\"shard\":2}");
    const hd__code *code = &hd__program_section(p, "update")->code;
    for (uint32_t k = 0; k < code->count; k++) /* the replicas' sum becomes a broadcast */
        if (code->at[k].op == HD_OP_ALL_REDUCE && code->at[k].axes == replicate)
            code->at[k].op = HD_OP_BROADCAST;
    expect_fault(p, "not reduced over dp_replicate");
}
END_TEST

/* ---- memory */

/* Bytes of parameters, gradients and states: what lives for a step or longer, but for scalars. */
static int64_t states(const struct hd_program *p, int memory)
{
    int64_t n = 0;
    for (uint32_t b = 1; b < p->buffers.count; b++)
        if (p->buffers.at[b].life != HD__LIFE_TEMP && p->buffers.at[b].bytes > 64 && p->buffers.at[b].memory == memory)
            n += p->buffers.at[b].bytes;
    return n;
}

static const char large[] =
    "job: {name: large, steps: 3}\n"
    "mesh: {dp: 64}\n"
    "strategies:\n  - {use: zero, stage: 0}\n"
    "optimizer: {use: adamw, lr: 1e-3}\n"
    "precision: {compute: bf16, grad: bf16, reduce: bf16}\n"
    "model: {use: transformer, family: llama, layers: 36, hidden: 4096, heads: 32, ffn: 11008, vocab: 32000, "
    "tied: false}\n"
    "data: {train: none, seq_len: 64, batch: 64, micro_batch: 1}\n";

/* arXiv 1910.02054, figure 1: 7.5 billion parameters on 64 ranks, 16 bytes a parameter: 120, 31.4, 16.6, 1.9 GB. */
START_TEST(the_formulas_of_the_paper)
{
    static const double gigabytes[] = {120, 31.4, 16.6, 1.9};
    for (int stage = 0; stage < 4; stage++) {
        char option[64];
        snprintf(option, sizeof option, "strategies.zero.stage=%d", stage);
        compile_text(&built, large, (const char *const[]){option}, 1, 64);
        int64_t n = hd__compiled_parameter_count(built.c), bytes = states(built.c->stage[0], HD__MEM_MAIN);
        const int64_t expected[] = {16 * n, 4 * n + 12 * n / 64, 2 * n + 14 * n / 64, 16 * n / 64};
        ck_assert_int_eq(n % 1024, 0); /* so nothing is padded, and the formulas hold to the byte */
        ck_assert_int_eq(bytes, expected[stage]);
        ck_assert_double_eq_tol((double)bytes / (double)n * 7.5, gigabytes[stage], 0.05);
        compiled_free(&built);
    }
}
END_TEST

/* What the options add to the formulas. */
START_TEST(what_options_add)
{
    const int64_t norms = 36 * 2 * 4096 + 4096; /* the only parameters below 5000 elements */
    compile_text(&built, large, (const char *const[]){"strategies.zero.stage=3", "strategies.zero.persist_below=5000"},
                 2, 64);
    int64_t n = hd__compiled_parameter_count(built.c);
    ck_assert_int_eq(states(built.c->stage[0], HD__MEM_MAIN), 14 * n / 64 + 2 * norms + 2 * (n - norms) / 64);
    compiled_free(&built);
    compile_text(&built, large,
                 (const char *const[]){"strategies.zero.stage=2", "strategies.zero.offload.optimizer=host"}, 2, 64);
    ck_assert_int_eq(states(built.c->stage[0], HD__MEM_MAIN), 2 * n + 2 * n / 64);
    ck_assert_int_eq(states(built.c->stage[0], HD__MEM_HOST), 12 * n / 64);
    compiled_free(&built);
    compile_text(&built, large,
                 (const char *const[]){"strategies.zero.stage=3", "strategies.zero.offload.optimizer=file",
                                       "strategies.zero.offload.path=/tmp", "strategies.zero.offload.params=host"},
                 4, 64);
    ck_assert_int_eq(states(built.c->stage[0], HD__MEM_MAIN), 2 * n / 64);
    ck_assert_int_eq(states(built.c->stage[0], HD__MEM_HOST), 2 * n / 64);
    ck_assert_int_ge(built.c->stage[0]->bytes[HD__MEM_FILE], 12 * n / 64);
    ck_assert_int_le(built.c->stage[0]->bytes[HD__MEM_FILE],
                     12 * n / 64 + 3 * 4096 * 38); /* whole pages, a flat and state each */
    compiled_free(&built);
}
END_TEST

/* The arena of a model that is parameters for the most part. (What processes have: tests/system/test_parity.c.) */
START_TEST(stage_3_needs_a_third)
{
    int64_t bytes[2];
    for (int s = 0; s < 2; s++) {
        struct hd_program *p = COMPILE(s ? "strategies.zero.stage=3" : "strategies.zero.stage=0", "model.hidden=256",
                                       "model.layers=48", "model.ffn=704", "data.seq_len=16", "data.batch=4");
        bytes[s] = p->arena_bytes;
        compiled_free(&built);
    }
    ck_assert_double_le((double)bytes[1], 0.3 * (double)bytes[0]);
}
END_TEST

/* ---- hybrid */

START_TEST(hybrid_sharding_at_every_stage)
{
    static const char *const stages[] = {"strategies.zero.stage=1", "strategies.zero.stage=2",
                                         "strategies.zero.stage=HYBRID_SHARD", "strategies.zero.stage=SHARD_GRAD_OP"};
    for (size_t s = 0; s < HD__COUNT(stages); s++) {
        struct hd_program *p = COMPILE(stages[s], "mesh.dp={\"replicate\":2,\"shard\":2}");
        ck_assert_int_eq(count(p, "micro_last", HD_OP_REDUCE_SCATTER, shard), BLOCKS); /* inside a group */
        ck_assert_int_eq(count(p, "update", HD_OP_ALL_REDUCE, replicate), BLOCKS);     /* across groups, on the shard */
        ck_assert_int_eq(count(p, "micro_last", HD_OP_ALL_REDUCE, replicate), 0);
        for (uint32_t f = 0; f < p->flats.count; f++)
            ck_assert_int_eq(hd__numel(p, hd__tensor_const(p, p->flats.at[f].tensor[HD__FLAT_SHARD])),
                             p->flats.at[f].count / 2);
        compiled_free(&built);
    }
    struct hd_program *p = COMPILE("strategies.zero.stage=3", "mesh.dp={\"replicate\":2,\"shard\":2}",
                                   "strategies.zero.axes=[dp_replicate, dp_shard]");
    ck_assert_int_eq(count(p, "micro_last", HD_OP_REDUCE_SCATTER, shard | replicate), BLOCKS);
    ck_assert_int_eq(count(p, "update", HD_OP_ALL_REDUCE, replicate), 0);
    compiled_free(&built);
}
END_TEST

/* ---- options */

/* Gathers that are under way, or done and not yet used, at most at once: issued before what they are used by is
 * reached. */
static int most_ahead(struct hd_program *p, const char *section)
{
    const hd__code *code = &hd__program_section(p, section)->code;
    uint32_t *position = hd__alloc((p->next_id + 1) * sizeof *position);
    int ahead = 0, most = 0;
    for (uint32_t k = 0; k < code->count; k++) {
        const struct hd__instr *i = &code->at[k];
        position[i->id] = k + 1;
        ahead += i->op == HD_OP_ALL_GATHER;
        most = HD__MAX(most, ahead);
        if (i->op == HD_OP_WAIT && position[i->wait] && code->at[position[i->wait] - 1].op == HD_OP_ALL_GATHER)
            ahead--;
    }
    free(position);
    return most;
}

static int gathers_with(const char *option, int *ahead)
{
    struct hd_program *p = COMPILE("strategies.zero.stage=3", option);
    int n = count(p, "micro", HD_OP_ALL_GATHER, shard);
    *ahead = most_ahead(p, "micro");
    compiled_free(&built);
    return n;
}

START_TEST(options_do_what_they_say)
{
    static const struct {
        const char *option;
        int gathers, ahead;
    } rows[] = {
        {"strategies.zero.prefetch=1", 9, 2}, /* one is used, one is ahead */
        {"strategies.zero.overlap=false", 9, 1},
        {"strategies.zero.prefetch=3", 9, 4},
        {"strategies.zero.prefetch_backward=3", 8, 2}, /* two layers stay, two are gathered */
        {"strategies.zero.forward_prefetch=4", 9, 5},
        {"strategies.zero.prefetch_size=200000", 9, 5}, /* 49,280 parameters a layer */
        {"strategies.zero.stage3_prefetch_bucket_size=100000", 9, 3},
        {"strategies.zero.reshard_after_forward=false", 6, 2},
        {"strategies.zero.gather_bucket=1GB", 1, 1},
        {"strategies.zero.allgather_bucket_size=300kB", 4, 2},
        {"strategies.zero.persist_below=100000", 0, 0},
        {"strategies.zero.stage3_max_live_parameters=70000", 9, 2},
        {"strategies.zero.max_live=1", 10, 1}, /* no room for a layer beside the head */
    };
    for (size_t n = 0; n < HD__COUNT(rows); n++) {
        int ahead, gathers = gathers_with(rows[n].option, &ahead);
        ck_assert_msg(gathers == rows[n].gathers && ahead == rows[n].ahead,
                      "%s: %d gathers, %d at once; expected %d and %d", rows[n].option, gathers, ahead, rows[n].gathers,
                      rows[n].ahead);
    }
    struct hd_program *p = COMPILE("strategies.zero.stage=3", "strategies.zero.prefetch=4",
                                   "strategies.zero.max_inflight=2", "strategies.zero.prefetch_backward=4");
    ck_assert_int_eq(most_ahead(p, "micro"), 3); /* two beyond the one in use */
    compiled_free(&built);
    p = COMPILE("strategies.zero.stage=3", "strategies.zero.reshard_after_forward=false",
                "strategies.zero.max_live=150000");
    ck_assert_int_eq(count(p, "micro", HD_OP_ALL_GATHER, shard), 6 + 2); /* the head and two layers stay */
    compiled_free(&built);
}
END_TEST

/* Layers of 213 kB, embedding and head of 66 kB: buckets of whole blocks grow from an eighth of the option to all
 * of it, and
 * shrink to it again. Of these sums none is larger than all before it, or all behind it, but for single blocks. */
START_TEST(buckets_grow_and_shrink)
{
    static const int layers[] = {0, 1, 1, 2, 3, 2, 1, 1, 1, 0}; /* the first is the head, the last the embedding */
    struct hd_program *p =
        COMPILE("strategies.zero.stage=0", "strategies.zero.reduce_bucket_size=500kB", "model.layers=12");
    const hd__code *code = &hd__program_section(p, "micro_last")->code;
    uint32_t n = 0;
    for (uint32_t k = 0; k < code->count; k++) {
        int64_t bytes = hd__tensor_bytes(p, hd__tensor_const(p, code->at[k].out[0]));
        if (code->at[k].op != HD_OP_ALL_REDUCE || bytes < 1000)
            continue;
        ck_assert_uint_lt(n, HD__COUNT(layers));
        ck_assert_int_eq(bytes / 200000, layers[n++]);
    }
    ck_assert_uint_eq(n, HD__COUNT(layers));
    compiled_free(&built);
}
END_TEST

/* What one parameter has from two blocks is complete with the later one, and holds nothing else back. */
START_TEST(tied_embeddings_come_last)
{
    struct hd_program *p = COMPILE("strategies.zero.stage=0", "model.tied=true");
    const hd__code *code = &hd__program_section(p, "micro_last")->code;
    uint32_t embedding = 0, last = 0, n = 0;
    for (uint32_t k = 0; k < p->params.count; k++)
        embedding = strstr(p->params.at[k].desc.name, "embed") ? k : embedding;
    for (uint32_t k = 0; k < code->count; k++)
        if (code->at[k].op == HD_OP_ALL_REDUCE) {
            last = code->at[k].out[0];
            n++;
        }
    ck_assert_uint_eq(n, BLOCKS); /* the head's norm has one of its own */
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t k = 0; k < p->flats.at[f].n_params; k++)
            ck_assert_int_eq(p->flats.at[f].params[k] == embedding, p->flats.at[f].tensor[HD__FLAT_GRAD] == last);
    compiled_free(&built);
}
END_TEST

/* Every collective of the strategy is followed by its wait. */
START_TEST(without_overlap_nothing_is_in_flight)
{
    for (int stage = 0; stage < 4; stage++) {
        char option[64];
        snprintf(option, sizeof option, "strategies.zero.stage=%d", stage);
        struct hd_program *p = COMPILE(option, "strategies.zero.overlap=false");
        for (uint32_t s = 0; s < p->sections.count; s++) {
            const hd__code *code = &p->sections.at[s].code;
            for (uint32_t k = 0; k < code->count; k++)
                if (hd__is_collective(code->at[k].op) && code->at[k].out[0] != p->loss_sum)
                    ck_assert_msg(code->at[k + 1].op == HD_OP_WAIT && code->at[k + 1].wait == code->at[k].id,
                                  "stage %d, %s #%u", stage, p->sections.at[s].name, k);
        }
        compiled_free(&built);
    }
}
END_TEST

/* ---- refusals */

START_TEST(what_makes_no_sense_is_refused)
{
    static const struct {
        const char *option[2];
        const char *words;
    } rows[] = {
        {{"strategies.zero.stage=HYBRID_SHARD", "mesh.dp=4"},
         "mesh.dp is {replicate: 1, shard: 4}: make both larger than 1"},
        {{"strategies.zero.stage=FULL_SHARD", "mesh.dp={\"replicate\":2,\"shard\":2}"},
         "say HYBRID_SHARD (or 3), or mesh.dp: 4"},
        {{"strategies.zero.stage=SHARD_GRAD_OP", "strategies.zero.reshard_after_forward=true"},
         "reshard_after_forward is true, and stage SHARD_GRAD_OP keeps parameters whole"},
        {{"strategies.zero.stage=2", "mesh.dp={\"replicate\":4,\"shard\":1}"}, "stage 2 would shard nothing"},
        {{"strategies.zero.stage=1", "strategies.zero.axes=[cp]"}, "stage 1 would shard nothing"},
        {{"strategies.zero.stage=1", "strategies.zero.axes=[tp]"}, "axes: 'tp' is no axis"},
        {{"strategies.zero.bucket_cap_mb=50", "mesh.dp=4"},
         "bucket is 50 bytes: a size without a unit is bytes; write 50MB"},
        {{"strategies.zero.stage=2", "strategies.zero.offload.params=host"}, "offload.params: host needs stage: 3"},
        {{"strategies.zero.stage=2", "strategies.zero.offload.optimizer=file"}, "needs strategies.zero.offload.path"},
        {{"strategies.zero.stage=2", "strategies.zero.offload.path=/tmp"}, "used by offload.optimizer: file alone"},
        {{"strategies.zero.stage=4", "mesh.dp=4"}, "strategies.zero.stage"},
        {{"strategies.zero.prefech=4", "mesh.dp=4"}, "prefetch"},
    };
    for (size_t n = 0; n < HD__COUNT(rows); n++) {
        ck_assert_msg(try_compile_text(&built, job, rows[n].option, 2, 4, &err) == HD_E_INVALID, "%s is accepted",
                      rows[n].option[0]);
        ck_assert_msg(strstr(err.message, rows[n].words), "\"%s\" lacks \"%s\"", err.message, rows[n].words);
        compiled_free(&built);
    }
    COMPILE("strategies.zero.sharding_strategy=NO_SHARD");
    compiled_free(&built);
    COMPILE("strategies.zero.stage=SHARD_GRAD_OP", "strategies.zero.reshard_after_forward=false");
    compiled_free(&built);
}
END_TEST

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
}

int main(void)
{
    TCase *c = tcase_create("zero");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, matrices_are_dealt_to_ranks, 0, 4);
    tcase_add_test(c, stages_0_and_1_reduce_once_a_step);
    tcase_add_test(c, stages_2_and_3_reduce_every_micro_batch);
    tcase_add_test(c, parameters_are_gathered_behind_the_next_forward_pass);
    tcase_add_test(c, one_section_begins_a_step);
    tcase_add_test(c, the_proof_finds_what_is_not_gathered);
    tcase_add_test(c, the_proof_finds_what_is_reduced_early_or_twice);
    tcase_add_test(c, the_formulas_of_the_paper);
    tcase_add_test(c, what_options_add);
    tcase_add_test(c, stage_3_needs_a_third);
    tcase_add_test(c, hybrid_sharding_at_every_stage);
    tcase_add_test(c, options_do_what_they_say);
    tcase_add_test(c, buckets_grow_and_shrink);
    tcase_add_test(c, tied_embeddings_come_last);
    tcase_add_test(c, without_overlap_nothing_is_in_flight);
    tcase_add_test(c, what_makes_no_sense_is_refused);
    return suite_run_case("zero", c);
}
