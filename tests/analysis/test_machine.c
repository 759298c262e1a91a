/* The token machine: correct programs finish, faults of one rank are named with rank, instruction and
 * partner, numbers do not depend on the order of events, and times are what they must be. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "analysis/sim/machine.h"
#include "core/program/ops.h"
#include "tests/suite.h"
#include "tests/support/tiny.h"

enum { BEGIN, MICRO, MICRO_LAST, UPDATE };

static struct hd_error err;

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
}

/* All ranks run `p`, but `rank` runs `odd`, and every rank of pipeline stage 1 runs `second`, where these are
 * given. */
static struct hd__sim *machine(const struct hd_program *p, const struct hd_program *second, int32_t rank,
                               const struct hd_program *odd, const struct hd__sim_options *options)
{
    const struct hd_program **programs = hd__alloc((size_t)p->mesh.ranks * sizeof *programs);
    int32_t per_stage = p->mesh.ranks / p->mesh.size[HD_AXIS_PP];
    for (int32_t r = 0; r < p->mesh.ranks; r++)
        programs[r] = odd && r == rank ? odd : second && r >= per_stage ? second : p;
    struct hd__sim *m = hd__sim_create(&p->mesh, programs, options);
    free(programs);
    return m;
}

static void assert_proven(struct hd_program *p, uint64_t collectives)
{
    struct hd__sim *m = machine(p, NULL, 0, NULL, NULL);
    ck_assert_msg(hd__sim_run(m, NULL, 1, &err) == HD_OK, "%s", err.message);
    ck_assert_uint_eq(hd__sim_stats(m).collectives, collectives);
    hd__sim_destroy(m);
    hd__program_free(p);
}

static void assert_says(const char *part)
{
    ck_assert_msg(strstr(err.message, part) != NULL, "'%s' is not in: %s", part, err.message);
}

/* Rank `rank` runs `odd`: the report has all of these. */
static void assert_broken(struct hd_program *p, struct hd_program *second, int32_t rank, struct hd_program *odd,
                          const char *const *parts)
{
    struct hd__sim *m = machine(p, second, rank, odd, NULL);
    ck_assert_int_eq(hd__sim_run(m, NULL, 1, &err), HD_E_MISMATCH);
    for (; *parts; parts++)
        assert_says(*parts);
    ck_assert_int_eq(strncmp(hd__sim_report(m), err.message, 100), 0);
    hd__sim_destroy(m);
    hd__program_free(p);
    hd__program_free(second);
    hd__program_free(odd);
}
#define SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})

START_TEST(correct_steps_finish)
{
    assert_proven(tiny_step(4, 2, 0), 4 + 2);             /* tp groups of the norm, dp groups of the flat */
    assert_proven(tiny_step(4, 2, 1), 4 + 2 + 2);         /* and the gather */
    assert_proven(tiny_step(4, 2, 2), 3 * 4 + 3 * 2 + 2); /* in every micro-batch */
    assert_proven(tiny_step(1, 1, 0), 0);
}
END_TEST

/* ---- one rank differs */

START_TEST(a_rank_lacks_a_collective)
{
    struct hd_program *odd = tiny_step(2, 2, 1);
    tiny_drop(odd, MICRO_LAST, tiny_find(odd, MICRO_LAST, HD_OP_REDUCE_SCATTER, NULL, 0));
    assert_broken(tiny_step(2, 2, 1), NULL, 1, odd,
                  SAYS("mismatch: rank ", "issues ", "rank 1", "update #1 all_gather(dp_shard) P (16 x fp32, from #f)",
                       "micro_last #7 reduce_scatter(dp_shard) GS (32 x fp32, sum, to #f)"));
}
END_TEST

START_TEST(a_rank_lacks_the_last_collective)
{
    struct hd_program *odd = tiny_step(2, 1, 0);
    tiny_drop(odd, MICRO_LAST, tiny_find(odd, MICRO_LAST, HD_OP_ALL_REDUCE, "G", 0));
    assert_broken(tiny_step(2, 1, 0), NULL, 1, odd,
                  SAYS("deadlock: 1 of 2 ranks cannot proceed",
                       "rank 0 at micro_last #6 wait all_reduce(dp_shard) G; first in that stream: micro_last #5 "
                       "all_reduce(dp_shard) G, which rank 1 has not reached"));
}
END_TEST

START_TEST(a_rank_swaps_two_collectives)
{
    struct hd_program *p[2];
    for (uint32_t k = 0; k < 2; k++) {
        p[k] = tiny_program(1, 4, 1, 0);
        tiny_section(p[k], "update", 1);
        hd_tensor a = tiny_state(p[k], "a", 16), b = tiny_state(p[k], "b", 16);
        tiny_collective(p[k], 0, HD_OP_ALL_REDUCE, HD_AXIS_DP_SHARD, k ? b : a, k ? b : a);
        tiny_collective(p[k], 0, HD_OP_ALL_REDUCE, HD_AXIS_DP_SHARD, k ? a : b, k ? a : b);
        tiny_finish(p[k]);
    }
    assert_broken(p[0], NULL, 2, p[1],
                  SAYS("mismatch: ", "rank 2", "all_reduce(dp_shard) b (16 x fp32, sum)", "all_reduce(dp_shard) a"));
}
END_TEST

START_TEST(a_rank_disagrees_about_size_or_operation)
{
    for (uint32_t fault = 0; fault < 3; fault++) {
        struct hd_program *odd = tiny_step(2, 1, 0);
        struct hd__instr *i =
            &odd->sections.at[MICRO_LAST].code.at[tiny_find(odd, MICRO_LAST, HD_OP_ALL_REDUCE, "G", 0)];
        if (fault == 0)
            hd__tensor_at(odd, i->in[0])->dim[0] = hd__dim_new(odd, "#f", 24);
        else if (fault == 1)
            hd__tensor_at(odd, i->in[0])->dtype = HD_BF16;
        else
            i->redop = HD_MAX;
        const char *says[] = {"24 x fp32", "32 x bf16", "32 x fp32, max"};
        assert_broken(tiny_step(2, 1, 0), NULL, 1, odd, SAYS("mismatch: ", says[fault], "32 x fp32, sum"));
    }
}
END_TEST

START_TEST(a_cyclic_wait)
{
    struct hd_program *p[2];
    for (uint32_t k = 0; k < 2; k++) { /* two streams, waited for in opposite order */
        p[k] = tiny_program(1, 2, 2, 0);
        tiny_section(p[k], "micro", 1);
        hd_tensor a = tiny_state(p[k], "a", 16), b = tiny_state(p[k], "b", 16), c = tiny_vector(p[k], "c", 16);
        for (uint32_t n = 0; n < 2; n++) {
            hd_tensor t = n == k ? a : b;
            tiny_collective(p[k], 0, HD_OP_ALL_REDUCE, n == k ? HD_AXIS_DP_SHARD : HD_AXIS_TP, t, t);
            tiny_op(p[k], 0, HD_OP_RMSNORM, T(t, t), T(c));
        }
        tiny_finish(p[k]);
    }
    /* ranks: 0 1 / 2 3 are tp pairs; 0 2 and 1 3 dp pairs. Ranks 0 and 3 begin with dp, 1 and 2 with tp. */
    const struct hd_program *programs[] = {p[0], p[1], p[1], p[0]};
    struct hd__sim *m = hd__sim_create(&p[0]->mesh, programs, NULL);
    ck_assert_int_eq(hd__sim_run(m, NULL, 1, &err), HD_E_MISMATCH);
    assert_says("deadlock: 4 of 4 ranks cannot proceed");
    assert_says("cycle: rank 0 waits for rank 2 (micro #0 all_reduce(dp_shard) a), rank 2 waits for rank 3 "
                "(micro #0 all_reduce(tp) b),"
                " rank 3 waits for rank 1 (micro #0 all_reduce(dp_shard) a), rank 1 waits for rank 0 (micro "
                "#0 all_reduce(tp) b)");
    hd__sim_destroy(m);
    hd__program_free(p[0]);
    hd__program_free(p[1]);
}
END_TEST

START_TEST(a_wait_for_nothing)
{
    struct hd_program *odd = tiny_step(2, 1, 0);
    uint32_t at = tiny_find(odd, MICRO_LAST, HD_OP_WAIT, NULL, 0);
    struct hd__instr wait = odd->sections.at[MICRO_LAST].code.at[at];
    wait.wait = odd->next_id + 10;
    tiny_insert(odd, MICRO_LAST, 0, wait);
    assert_broken(tiny_step(2, 1, 0), NULL, 1, odd,
                  SAYS("rank 1 at micro_last #0 wait for what is not here, which was never started",
                       "which rank 1 has not reached"));
}
END_TEST

/* ---- messages */

/* Two stages that exchange two tensors; `crossed`: both send first, and wait for it before they receive. */
static struct hd_program *exchange(int32_t stage, int crossed, int with_recv)
{
    struct hd_program *p = tiny_program(2, 1, 1, stage);
    hd_tensor out = tiny_state(p, "out", 16), in = tiny_state(p, "in", 16);
    tiny_section(p, "step", 1);
    if (with_recv && !crossed)
        tiny_recv(p, 0, 1 - stage, 7, in);
    tiny_send(p, 0, 1 - stage, 7, out);
    if (crossed)
        tiny_op(p, 0, HD_OP_FILL0, NONE, T(out));
    if (with_recv && crossed)
        tiny_recv(p, 0, 1 - stage, 7, in);
    tiny_op(p, 0, HD_OP_GELU, T(in), T(tiny_vector(p, "y", 16)));
    tiny_finish(p);
    return p;
}

START_TEST(messages_meet)
{
    struct hd_program *a = exchange(0, 0, 1), *b = exchange(1, 0, 1);
    struct hd__sim *m = machine(a, b, 0, NULL, NULL);
    ck_assert_msg(hd__sim_run(m, NULL, 1, &err) == HD_OK, "%s", err.message);
    ck_assert_uint_eq(hd__sim_stats(m).messages, 2);
    hd__sim_destroy(m);
    hd__program_free(a);
    hd__program_free(b);
}
END_TEST

START_TEST(synchronous_sends_that_cross_are_stuck)
{
    assert_broken(exchange(0, 1, 1), exchange(1, 1, 1), 0, NULL,
                  SAYS("deadlock: 2 of 2",
                       "rank 0 at step #1 wait send out; first in that stream: step #0 send out, which rank 1 has "
                       "not answered",
                       "cycle: rank 0 waits for rank 1 (step #0 send out), rank 1 waits for rank 0"));
}
END_TEST

START_TEST(a_missing_receive)
{
    assert_broken(exchange(0, 0, 1), exchange(1, 0, 0), 0, NULL,
                  SAYS("deadlock: ", "rank 0 at step #", "send out, which rank 1 has not answered"));
}
END_TEST

START_TEST(a_message_of_another_size)
{
    struct hd_program *b = exchange(1, 0, 1);
    uint32_t at = tiny_find(b, 0, HD_OP_RECV, NULL, 0);
    hd_tensor in = b->sections.at[0].code.at[at].out[0];
    hd__tensor_at(b, in)->dim[0] = hd__dim_new(b, "#n", 8);
    assert_broken(exchange(0, 0, 1), b, 0, NULL,
                  SAYS("mismatch: rank 0 sends step #1 send out (16 x fp32), rank 1 receives step #0 recv in "
                       "(8 x fp32)"));
}
END_TEST

/* ---- numbers. Kernels of the test: fill0, accum, and y = x + 1 + rank for gelu and for the sum of a single row. */

struct op_kernel {
    uint32_t op;
    int32_t rank;
    float *in, *out;
    int64_t n;
};

static int32_t prepare(void *user, int32_t rank, const struct hd_instr_desc *desc, void **kernel, struct hd_error *e)
{
    struct op_kernel *k = hd__alloc(sizeof *k);
    (void)user;
    (void)e;
    *k = (struct op_kernel){desc->op, rank, desc->n_in ? desc->in[0].data : NULL, desc->out[0].data,
                            hd_operand_count(&desc->out[0])};
    *kernel = k;
    return HD_OK;
}

static int32_t run(void *user, int32_t rank, void *kernel, struct hd_error *e)
{
    struct op_kernel *k = kernel;
    (void)user;
    (void)rank;
    for (int64_t n = 0; n < k->n; n++)
        switch (k->op) {
        case HD_OP_FILL0:
            k->out[n] = 0;
            break;
        case HD_OP_ACCUM:
            k->out[n] += k->in[n];
            break;
        case HD_OP_GELU:
        case HD_OP_BIAS_DW:
            k->out[n] = k->in[n] + 1 + (float)k->rank;
            break;
        case HD_OP_SGD:
            k->out[n] -= k->in[n];
            break;
        default:
            return hd_fail(e, HD_E_UNSUPPORTED, "op %u", k->op);
        }
    return HD_OK;
}

static void release(void *user, int32_t rank, void *kernel)
{
    (void)user;
    (void)rank;
    free(kernel);
}

static const struct hd__sim_kernels kernels = {.prepare = prepare, .run = run, .release = release};

static void run_emulated(struct hd__sim *m, const struct hd_program *p)
{
    for (int32_t r = 0; r < p->mesh.ranks; r++)
        memset(hd__sim_tensor_data(m, r, p->flats.at[0].tensor[HD__FLAT_MASTER]), 0,
               (size_t)hd__tensor_bytes(p, hd__tensor_const(p, p->flats.at[0].tensor[HD__FLAT_MASTER])));
    ck_assert_msg(hd__sim_run(m, NULL, 1, &err) == HD_OK, "%s", err.message);
}

/* 4 data ranks x 2 tp: every gradient is 1 + rank, three micro-batches. w is summed over dp, n over dp and
 * tp. */
START_TEST(sums_are_right_whatever_the_order)
{
    for (int32_t stage = 0; stage < 3; stage++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            struct hd_program *p = tiny_step(4, 2, stage);
            struct hd__sim *m = machine(p, NULL, 0, NULL, &(struct hd__sim_options){.kernels = &kernels, .seed = seed});
            run_emulated(m, p);
            for (int32_t r = 0; r < 8; r++) {
                const float *w = hd__sim_tensor_data(m, r, p->flats.at[0].tensor[HD__FLAT_FULL]);
                float over_dp = (float)(r % 2 ? 2 + 4 + 6 + 8 : 1 + 3 + 5 + 7), over_all = 36;
                for (uint32_t n = 0; n < 32; n++)
                    ck_assert_float_eq(w[n], -3 * (n < 16 ? over_dp : over_all));
            }
            hd__sim_destroy(m);
            hd__program_free(p);
        }
}
END_TEST

START_TEST(a_missing_wait_shows_as_nan)
{
    struct hd_program *p = tiny_step(2, 1, 2);
    uint32_t seen = 0;
    uint32_t at = tiny_find(p, MICRO_LAST, HD_OP_WAIT, NULL, 0); /* of the reduce_scatter, before the accum */
    struct hd__instr wait = p->sections.at[MICRO_LAST].code.at[at];
    tiny_drop(p, MICRO_LAST, at);
    tiny_insert(p, MICRO_LAST, p->sections.at[MICRO_LAST].code.count, wait);
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct hd__sim *m = machine(p, NULL, 0, NULL, &(struct hd__sim_options){.kernels = &kernels, .seed = seed});
        run_emulated(m, p);
        seen += isnan(*(float *)hd__sim_tensor_data(m, 0, p->flats.at[0].tensor[HD__FLAT_FULL])) != 0;
        hd__sim_destroy(m);
    }
    ck_assert_uint_gt(seen, 0);
    hd__program_free(p);
}
END_TEST

/* Each collective against its definition, [3][4] cut along dim 1 on tp 2. */
START_TEST(collectives_move_the_right_pieces)
{
    struct hd_program *p = tiny_program(1, 1, 2, 0);
    uint16_t rows = hd__dim_new(p, "r", 4), columns = hd__dim_new(p, "c", 6);
    struct hd__tensor t = {
        .ndim = 2, .dtype = HD_F32, .role = HD__ROLE_STATE, .dim = {rows, columns}, .placement.redop = HD_SUM};
    hd_tensor by_row, by_column, all, sum;
    tiny_section(p, "update", 1);
    t.name = "all";
    all = hd__tensor_new(p, &t);
    t.name = "sum";
    sum = hd__tensor_new(p, &t);
    t.name = "by_column";
    t.placement.shard[1] = hd__shard_push(0, HD_AXIS_TP);
    by_column = hd__tensor_new(p, &t);
    t.name = "by_row";
    t.placement.shard[1] = 0;
    t.placement.shard[0] = hd__shard_push(0, HD_AXIS_TP);
    by_row = hd__tensor_new(p, &t);
    struct hd__instr *i = tiny_collective(p, 0, HD_OP_ALL_TO_ALL, HD_AXIS_TP, by_column, by_row);
    i->from = columns;
    i->to = rows;
    i = tiny_collective(p, 0, HD_OP_ALL_GATHER, HD_AXIS_TP, by_column, all);
    i->from = columns;
    tiny_collective(p, 0, HD_OP_ALL_REDUCE, HD_AXIS_TP, all, sum);
    hd_tensor part = hd__tensor_new(p, &t);
    hd__tensor_at(p, part)->name = "part";
    i = tiny_collective(p, 0, HD_OP_REDUCE_SCATTER, HD_AXIS_TP, sum, part);
    i->to = rows;
    tiny_finish(p);
    struct hd__sim *m = machine(p, NULL, 0, NULL, &(struct hd__sim_options){.kernels = &kernels, .seed = 3});
    for (int32_t r = 0; r < 2; r++)
        for (uint32_t n = 0; n < 12; n++) /* element (row, column) of the whole is 10 row + column */
            ((float *)hd__sim_tensor_data(m, r, by_column))[n] = (float)(10 * (n / 3) + n % 3 + 3 * (uint32_t)r);
    ck_assert_msg(hd__sim_run(m, NULL, 1, &err) == HD_OK, "%s", err.message);
    for (int32_t r = 0; r < 2; r++)
        for (uint32_t n = 0; n < 24; n++) {
            float value = (float)(10 * (n / 6) + n % 6);
            ck_assert_float_eq(((float *)hd__sim_tensor_data(m, r, all))[n], value);
            ck_assert_float_eq(((float *)hd__sim_tensor_data(m, r, sum))[n], 2 * value);
            if (n < 12) {
                value = (float)(10 * (n / 6 + 2 * (uint32_t)r) + n % 6);
                ck_assert_float_eq(((float *)hd__sim_tensor_data(m, r, by_row))[n], value);
                ck_assert_float_eq(((float *)hd__sim_tensor_data(m, r, part))[n], 4 * value);
            }
        }
    hd__sim_destroy(m);
    hd__program_free(p);
}
END_TEST

/* ---- times */

static double one_second(void *user, const struct hd_program *p, const struct hd__instr *i)
{
    (void)user;
    (void)p;
    return i->op == HD_OP_GELU ? 1 : 0;
}

START_TEST(communication_hides_behind_what_does_not_need_it)
{
    struct hd_program *p = tiny_program(1, 1, 2, 0);
    hd_tensor x = tiny_state(p, "x", 1000), y = tiny_vector(p, "y", 1000), a = tiny_state(p, "a", 16),
              b = tiny_state(p, "b", 16);
    tiny_section(p, "micro", 2);
    tiny_collective(p, 0, HD_OP_ALL_REDUCE, HD_AXIS_TP, x, y); /* 4,000 bytes at 1,000 a second, 0.5 s latency */
    tiny_op(p, 0, HD_OP_GELU, T(a), T(b));
    tiny_op(p, 0, HD_OP_GELU, T(y), T(x));
    tiny_finish(p);
    struct hd__sim_costs costs = {.seconds = one_second, .latency[HD_AXIS_TP] = 0.5, .bandwidth[HD_AXIS_TP] = 1000};
    struct hd__sim *m = machine(p, NULL, 0, NULL, &(struct hd__sim_options){.costs = &costs});
    ck_assert_msg(hd__sim_run(m, NULL, 1, &err) == HD_OK, "%s", err.message);
    ck_assert_double_eq_tol(hd__sim_stats(m).seconds, 2 * (4.5 + 1), 1e-12); /* 1 s of it is hidden */
    ck_assert_double_eq_tol(hd__sim_finish_time(m, 1), 11, 1e-12);
    ck_assert_double_eq_tol(hd__sim_busy_time(m, 1), 4, 1e-12);
    ck_assert_double_eq_tol(hd__sim_stats(m).idle, 7.0 / 11, 1e-12);
    hd__sim_destroy(m);
    hd__program_free(p);
}
END_TEST

/* ---- size */

START_TEST(a_thousand_ranks)
{
    struct hd_program *p = tiny_program(1, 128, 8, 0);
    hd_tensor x = tiny_state(p, "x", 64), y = tiny_state(p, "y", 64);
    tiny_section(p, "micro", 1);
    for (uint32_t n = 0; n < 330; n++) { /* 1,980 instructions with the waits */
        tiny_op(p, 0, HD_OP_GELU, T(x), T(y));
        tiny_collective(p, 0, HD_OP_ALL_REDUCE, n % 3 ? HD_AXIS_TP : HD_AXIS_DP_SHARD, y, y);
        tiny_op(p, 0, HD_OP_GELU, T(y), T(x));
        tiny_op(p, 0, HD_OP_GELU, T(x), T(y));
        tiny_op(p, 0, HD_OP_GELU, T(y), T(x));
    }
    tiny_finish(p);
    double began = hd__now();
    struct hd__sim *m = machine(p, NULL, 0, NULL, NULL);
    ck_assert_msg(hd__sim_run(m, NULL, 1, &err) == HD_OK, "%s", err.message);
    ck_assert_uint_eq(hd__sim_stats(m).collectives, 110 * 8 + 220 * 128);
    fprintf(stderr, "proof of 1,024 ranks x %u instructions: %.3f s\n", p->sections.at[0].code.count,
            hd__now() - began);
    hd__sim_destroy(m);
    hd__program_free(p);
}
END_TEST

static int every_one_blocks(void *user, const struct hd__instr *i)
{
    (void)user, (void)i;
    return 1; /* where it is alone in its group: a rank is not because those of its group are alike */
}

/* Two stages that exchange a message along pp, and collectives along all other axes; each rank gets its own copy of the
 * programs with `apart`. Returns what the machine counted. */
static struct hd__sim_stats run_stages(int32_t dp, int32_t tp, int apart, double finish[])
{
    struct hd__sim_costs costs = {.seconds = one_second, .blocks = every_one_blocks, .latency = {1, 1, 1, 1, 1, 1}};
    int32_t ranks = 2 * dp * tp;
    struct hd_program **p = hd__alloc((size_t)ranks * sizeof *p);
    for (int32_t r = 0; r < ranks; r++) {
        int32_t stage = r / (ranks / 2);
        p[r] = r % (ranks / 2) && !apart ? p[r - 1] : tiny_program(2, dp, tp, stage);
        if (r % (ranks / 2) && !apart)
            continue;
        hd_tensor x = tiny_state(p[r], "x", 64), y = tiny_state(p[r], "y", 64), z = tiny_state(p[r], "z", 64);
        tiny_section(p[r], "micro", 3);
        for (uint32_t n = 0; n <= (uint32_t)stage; n++)
            tiny_op(p[r], 0, HD_OP_GELU, T(x), T(y));
        tiny_collective(p[r], 0, HD_OP_ALL_REDUCE, HD_AXIS_TP, y, y);
        tiny_collective(p[r], 0, HD_OP_ALL_REDUCE, HD_AXIS_DP_SHARD, y, y);
        tiny_op(p[r], 0, HD_OP_GELU, T(z), T(z)); /* hidden behind both */
        tiny_op(p[r], 0, HD_OP_GELU, T(y), T(x));
        if (stage)
            tiny_recv(p[r], 0, 0, 1, x);
        else
            tiny_send(p[r], 0, 1, 1, x);
        tiny_collective(p[r], 0, HD_OP_ALL_REDUCE, HD_AXIS_PP, y, y)->axes |= HD_AXIS_BIT(HD_AXIS_DP_SHARD);
        tiny_finish(p[r]);
    }
    struct hd__sim *m =
        hd__sim_create(&p[0]->mesh, (const struct hd_program *const *)p, &(struct hd__sim_options){.costs = &costs});
    ck_assert_msg(hd__sim_run(m, NULL, 1, &err) == HD_OK, "%s", err.message);
    struct hd__sim_stats stats = hd__sim_stats(m);
    for (int32_t r = 0; r < ranks && finish; r++) {
        finish[r] = hd__sim_finish_time(m, r);
        ck_assert_int_eq(hd__sim_alike(m, r), apart ? r : r / (ranks / 2) * (ranks / 2));
    }
    hd__sim_destroy(m);
    for (int32_t r = 0; r < ranks; r++)
        if (!r || p[r] != p[r - 1])
            hd__program_free(p[r]);
    free(p);
    return stats;
}

START_TEST(ranks_that_are_alike_are_walked_once)
{
    double alike[2 * 3 * 4], apart[2 * 3 * 4];
    struct hd__sim_stats one = run_stages(3, 4, 0, alike), all = run_stages(3, 4, 1, apart);
    ck_assert_uint_eq(all.walked, all.events);
    ck_assert_uint_eq(one.walked * 3 * 4, all.events);
    ck_assert_uint_eq(one.events, all.events);
    ck_assert_uint_eq(one.collectives, all.collectives);
    ck_assert_uint_eq(one.collectives, 3 * (2 * (3 + 4) + 4)); /* rounds x (stages x (tp + dp) + pp.dp) */
    ck_assert_uint_eq(one.messages, all.messages);
    ck_assert_uint_eq(one.messages, 3 * 3 * 4);
    ck_assert_double_eq_tol(one.seconds, all.seconds, 1e-12);
    ck_assert_double_eq_tol(one.idle, all.idle, 1e-12);
    for (size_t r = 0; r < HD__COUNT(apart); r++)
        ck_assert_double_eq_tol(alike[r], apart[r], 1e-12);
}
END_TEST

/* The work of a proof does not grow with ranks that are alike. */
START_TEST(more_ranks_are_no_more_work)
{
    struct hd__sim_stats few = run_stages(2, 2, 0, NULL), many = run_stages(2048, 8, 0, NULL);
    ck_assert_uint_eq(few.walked, many.walked);
    ck_assert_uint_eq(many.events, few.events * (2048 * 8 / 4));
    ck_assert_uint_eq(many.messages, 3 * 2048 * 8);
}
END_TEST

/* Ranks that a collective leaves out run the same program, and are not like those that are in its group. */
START_TEST(a_rank_outside_of_its_group)
{
    struct hd_program *p = tiny_program(1, 2, 4, 0);
    hd_tensor x = tiny_state(p, "x", 16);
    tiny_section(p, "micro", 1);
    tiny_collective(p, 0, HD_OP_ALL_REDUCE, HD_AXIS_TP, x, x)->members = 7; /* not rank 3, nor 7 */
    tiny_finish(p);
    assert_broken(p, NULL, 0, NULL, (const char *const[]){"2 of 8 ranks", "rank 3 at", "whose group", NULL});
}
END_TEST

/* All ranks of a stage fail alike: the report counts and names them all. */
START_TEST(ranks_that_are_alike_are_reported_one_by_one)
{
    struct hd_program *p = tiny_program(2, 2, 2, 0), *second = tiny_program(2, 2, 2, 1);
    hd_tensor x = tiny_state(p, "x", 16);
    tiny_section(p, "micro", 1);
    tiny_send(p, 0, 1, 1, x);
    tiny_state(second, "x", 16);
    tiny_section(second, "micro", 1);
    tiny_finish(p);
    tiny_finish(second);
    assert_broken(
        p, second, 0, NULL,
        (const char *const[]){"4 of 8 ranks", "rank 0 at", "rank 3 at", "which rank 7 has not answered", NULL});
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("machine");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 50);
    tcase_add_test(c, correct_steps_finish);
    tcase_add_test(c, a_rank_lacks_a_collective);
    tcase_add_test(c, a_rank_lacks_the_last_collective);
    tcase_add_test(c, a_rank_swaps_two_collectives);
    tcase_add_test(c, a_rank_disagrees_about_size_or_operation);
    tcase_add_test(c, a_cyclic_wait);
    tcase_add_test(c, a_wait_for_nothing);
    tcase_add_test(c, messages_meet);
    tcase_add_test(c, synchronous_sends_that_cross_are_stuck);
    tcase_add_test(c, a_missing_receive);
    tcase_add_test(c, a_message_of_another_size);
    tcase_add_test(c, sums_are_right_whatever_the_order);
    tcase_add_test(c, a_missing_wait_shows_as_nan);
    tcase_add_test(c, collectives_move_the_right_pieces);
    tcase_add_test(c, communication_hides_behind_what_does_not_need_it);
    tcase_add_test(c, ranks_that_are_alike_are_walked_once);
    tcase_add_test(c, more_ranks_are_no_more_work);
    tcase_add_test(c, a_rank_outside_of_its_group);
    tcase_add_test(c, ranks_that_are_alike_are_reported_one_by_one);
    tcase_add_test(c, a_thousand_ranks);
    return suite_run_case("machine", c);
}
