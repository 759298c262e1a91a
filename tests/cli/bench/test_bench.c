/* heddle bench's engine: it measures all operations, and a transport that computes wrongly is found out. */
#include <check.h>
#include <stdlib.h>

#include "cli/bench/ranks.h"
#include "core/base/option.h"
#include "runtime/rendezvous/host_store.h"
#include "tests/suite.h"

static const char *folder;
static struct hd__plugins *plugins;
static struct hd__arena arena;

struct seen {
    uint32_t rows, ops, in_place;
    uint64_t errors, bytes;
};

static void on_row(void *user, const struct hd__bench_row *row)
{
    struct seen *seen = user;
    seen->rows++;
    seen->ops |= 1u << row->op;
    seen->errors += row->errors;
    seen->in_place += (uint32_t)row->in_place;
    seen->bytes += row->bytes;
    ck_assert(row->time_us > 0 && row->p50_us > 0 && row->p99_us >= row->p50_us);
    if (row->op == HD__BENCH_ALL_REDUCE) { /* 3 ranks: 2 (n - 1) / n */
        double factor = row->busbw / row->algbw;
        ck_assert(factor > 4.0 / 3 - 1e-9 && factor < 4.0 / 3 + 1e-9);
    }
}

static struct hd__bench a_bench(void)
{
    struct hd__bench b = {.ranks = 3,
                          .dtype = HD_F32,
                          .first = 8,
                          .last = 40000,
                          .factor = 10,
                          .iterations = 20,
                          .warmup = 1,
                          .timeout = 30,
                          .n_ops = HD__BENCH_OP_COUNT};
    struct hd_error err = HD_ERROR_INIT;
    const struct hd__component *c;
    ck_assert_msg(hd__plugin_find(plugins, HD_KIND_COMM, "shm", &c, &err) == HD_OK, "%s", err.message);
    struct hd__options table = {c->options, c->n_options, sizeof(struct hd_option)};
    void *settings = hd__arena_alloc(&arena, c->settings_size);
    ck_assert_int_eq(hd__options_defaults(&table, settings, &arena, &err), HD_OK);
    b.component = c;
    b.settings = settings;
    for (uint32_t op = 0; op < HD__BENCH_OP_COUNT; op++)
        b.ops[op] = op;
    return b;
}

START_TEST(all_operations)
{
    const uint32_t dtypes[] = {HD_F32, HD_BF16, HD_F16, HD_F64, HD_I32, HD_U8};
    struct hd__bench b = a_bench();
    struct hd_error err = HD_ERROR_INIT;
    struct seen seen = {0};
    b.dtype = dtypes[_i];
    b.plain = _i & 1;
    ck_assert_msg(hd__bench_run(&b, on_row, &seen, &err) == HD_OK, "%s", err.message);
    ck_assert_uint_eq(seen.ops, (1u << HD__BENCH_OP_COUNT) - 1);
    ck_assert_uint_eq(seen.errors, 0);
    ck_assert(seen.rows > 20);
    b.in_place = 1;
    b.n_ops = 5; /* all_to_all has no in-place form */
    ck_assert_msg(hd__bench_run(&b, on_row, &seen, &err) == HD_OK, "%s", err.message);
    ck_assert_uint_eq(seen.errors, 0);
}
END_TEST

/* ---- products: a device whose every instruction lasts 20 us */

static int32_t slow_open(const struct hd_host *host, const void *settings, const struct hd_device_place *place,
                         struct hd_device **device, struct hd_error *err)
{
    (void)host, (void)settings, (void)place, (void)device, (void)err;
    return HD_OK;
}

static void slow_close(struct hd_device *device)
{
    (void)device;
}

static int32_t slow_prepare(struct hd_device *device, const struct hd_instr_desc *d, struct hd_kernel **kernel,
                            struct hd_error *err)
{
    (void)device, (void)kernel;
    if (d->op != HD_OP_EINSUM || d->n_in != 2 || hd_operand_count(&d->in[0]) != 64 * 64)
        return hd_fail(err, HD_E_INVALID, "no product of 64 x 64");
    return HD_OK;
}

static int32_t slow_launch(struct hd_device *device, struct hd_kernel *kernel, uint32_t stream, struct hd_error *err)
{
    double end = hd__now() + 20e-6;
    (void)device, (void)kernel, (void)stream, (void)err;
    while (hd__now() < end)
        ;
    return HD_OK;
}

static void on_overlap(void *user, const struct hd__bench_row *row)
{
    double less = row->products_us < row->alone_us ? row->products_us : row->alone_us;
    double hidden = (row->products_us + row->alone_us - row->both_us) / less;
    on_row(user, row);
    ck_assert_uint_ge(row->products, 1);
    ck_assert_msg(row->products_us >= 20.0 * row->products, "%u products in %g us", row->products, row->products_us);
    ck_assert_msg(row->both_us >= 20.0 * row->products, "%u products and more in %g us", row->products, row->both_us);
    ck_assert(row->hidden > hidden - 1e-9 && row->hidden < hidden + 1e-9);
    ck_assert(row->exposed_us == row->both_us - row->products_us);
}

START_TEST(behind_products)
{
    struct hd__component device = {.kind = HD_KIND_DEVICE, .name = "slow"};
    struct hd__bench b = a_bench();
    struct hd_error err = HD_ERROR_INIT;
    struct seen seen = {0};
    device.ops.device = (struct hd_device_ops){.struct_size = sizeof device.ops.device,
                                               .open = slow_open,
                                               .close = slow_close,
                                               .prepare = slow_prepare,
                                               .launch = slow_launch};
    b.device = &device;
    b.product = 64;
    b.first = b.last = 40000;
    ck_assert_msg(hd__bench_run(&b, on_overlap, &seen, &err) == HD_OK, "%s", err.message);
    ck_assert_uint_eq(seen.rows, HD__BENCH_OP_COUNT);
    ck_assert_uint_eq(seen.errors, 0);
}
END_TEST

START_TEST(several_groups)
{
    struct hd__bench b = a_bench();
    struct hd_error err = HD_ERROR_INIT;
    struct seen seen = {0};
    b.ranks = 6;
    b.groups = 2; /* of 3: on_row looks for its bus factor */
    b.first = b.last = 4096;
    b.both = 1;
    ck_assert_msg(hd__bench_run(&b, on_row, &seen, &err) == HD_OK, "%s", err.message);
    ck_assert_uint_eq(seen.rows, HD__BENCH_OP_COUNT + 5);
    ck_assert_uint_eq(seen.errors, 0);
}
END_TEST

START_TEST(out_of_place_and_in_place)
{
    struct hd__bench b = a_bench();
    struct hd_error err = HD_ERROR_INIT;
    struct seen out = {0}, both = {0};
    b.first = b.last = 4096;
    ck_assert_msg(hd__bench_run(&b, on_row, &out, &err) == HD_OK, "%s", err.message);
    b.both = 1;
    ck_assert_msg(hd__bench_run(&b, on_row, &both, &err) == HD_OK, "%s", err.message);
    ck_assert_uint_eq(out.rows, HD__BENCH_OP_COUNT);
    ck_assert_uint_eq(out.in_place, 0);
    ck_assert_uint_eq(both.rows, HD__BENCH_OP_COUNT + 5);
    ck_assert_uint_eq(both.in_place, 5); /* not all_to_all, messages, barriers */
    ck_assert_uint_eq(both.errors, 0);
}
END_TEST

/* ---- a transport that spoils one element of every result on rank 1 */

static const struct hd_comm_ops *honest;
static uint8_t *last_result;
static int32_t me;

static int32_t lying_open(const struct hd_host *host, const void *settings, const struct hd_world *world,
                          struct hd_comm **comm, struct hd_error *err)
{
    me = world->rank;
    return honest->open(host, settings, world, comm, err);
}

static int32_t lying_collective(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                                struct hd_error *err)
{
    last_result = call->coll == HD_COLL_ALL_REDUCE ? call->recv : NULL;
    return honest->collective(group, call, request, err);
}

static int32_t lying_wait(struct hd_comm *comm, hd_request request, double deadline, struct hd_error *err)
{
    int32_t code = honest->wait(comm, request, deadline, err);
    if (me == 1 && last_result)
        last_result[3] ^= 1;
    return code;
}

START_TEST(wrong_results_are_counted)
{
    struct hd__bench b = a_bench();
    struct hd__component liar = *b.component;
    struct hd_error err = HD_ERROR_INIT;
    struct seen seen = {0};
    honest = &b.component->ops.comm;
    liar.ops.comm.open = lying_open;
    liar.ops.comm.collective = lying_collective;
    liar.ops.comm.wait = lying_wait;
    b.component = &liar;
    b.n_ops = 1;
    b.in_place = _i;
    ck_assert_msg(hd__bench_run(&b, on_row, &seen, &err) == HD_OK, "%s", err.message);
    ck_assert_uint_eq(seen.errors, seen.rows); /* one element a size */
}
END_TEST

START_TEST(names)
{
    for (uint32_t op = 0; op < HD__BENCH_OP_COUNT; op++)
        ck_assert_int_eq(hd__bench_op_find(hd__bench_op_name(op)), (int32_t)op);
    ck_assert_int_eq(hd__bench_op_find("allreduce"), HD__BENCH_ALL_REDUCE);
    ck_assert_int_eq(hd__bench_op_find("reducescatter"), HD__BENCH_REDUCE_SCATTER);
    ck_assert_int_eq(hd__bench_op_find("alltoall"), HD__BENCH_ALL_TO_ALL);
    ck_assert_int_eq(hd__bench_op_find("all_"), -1);
    ck_assert_int_eq(hd__bench_op_find("all_reduce_"), -1);
    ck_assert_int_eq(hd__bench_op_find("all-reduce"), -1);
}
END_TEST

int main(int argc, char **argv)
{
    TCase *tc = tcase_create("bench");
    struct hd_error err = HD_ERROR_INIT;
    folder = argc > 1 ? argv[1] : ".";
    plugins = hd__plugins_create(hd__store_host_table());
    if (hd__plugins_add_folder(plugins, folder, &err) != HD_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, all_operations, 0, 6);
    tcase_add_loop_test(tc, wrong_results_are_counted, 0, 2);
    tcase_add_test(tc, out_of_place_and_in_place);
    tcase_add_test(tc, behind_products);
    tcase_add_test(tc, several_groups);
    tcase_add_test(tc, names);
    return suite_run_case("bench", tc);
}
