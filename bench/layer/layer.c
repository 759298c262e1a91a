/* What the core adds to a transport's call: the executor's start and wait of an instruction
 * (runtime/exec/comm_op/comm_op.c with its flight recorder) against the same two slots called directly, of a transport
 * that does nothing.
 *
 *     build/bench/layer/layer [BATCHES]
 *
 * Both take turns, batch by batch; the least batch counts, so that other work on the machine does not show. */
#include "runtime/exec/comm_op/comm_op.c" /* an exchange is made here by hand, without a program */

#include <stdio.h>

enum { CALLS = 1000 };

extern const struct hd_comm_ops empty_ops;

static struct hd_error err = HD_ERROR_INIT;

static double bare(struct hd__comm_op *x)
{
    const struct hd_comm_ops *ops = x->group.transport->ops;
    struct hd_comm_call call = x->call;
    double start = hd__now(), deadline = start + 60;
    int32_t rc = 0;
    for (int i = 0; i < CALLS; i++) {
        rc |= ops->collective(x->group.of->group, &call, &x->requests[0], &err);
        rc |= ops->wait(x->group.transport->comm, x->requests[0], deadline, &err);
    }
    return rc ? -1 : (hd__now() - start) / CALLS;
}

static double layered(struct hd__comm_op *x)
{
    double start = hd__now(), seconds = 0;
    int32_t rc = 0;
    for (int i = 0; i < CALLS; i++) {
        rc |= hd__exec_comm_op_start(x, &err);
        rc |= hd__exec_comm_op_wait(x, &seconds, &err);
    }
    return rc ? -1 : (hd__now() - start) / CALLS;
}

static double clock_alone(struct hd__comm_op *x)
{
    double start = hd__now(), last = 0;
    for (int i = 0; i < CALLS; i++)
        last = hd__now();
    (void)x;
    return (last - start) / CALLS;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *what;
        double (*run)(struct hd__comm_op *x);
    } ways[] = {{"the transport's slots", bare}, {"by the executor", layered}, {"one look at the clock", clock_alone}};
    double best[HD__COUNT(ways)] = {1, 1, 1};
    int batches = argc > 1 ? atoi(argv[1]) : 2000;
    int32_t ranks[2] = {0, 1};
    float data[2] = {0};
    hd_request request;
    struct hd__transport transport = {.ops = &empty_ops};
    struct hd__device device = {0};
    struct hd__transports transports = {.device = &device, .flight = hd__comm_flight_create(64)};
    struct hd__comm_engine *engine = hd__exec_comm_engine_create(&transports, 0, 60);
    struct hd__group group = {.name = "dp", .ranks = ranks, .n = 2};
    struct hd__comm_op x = {.engine = engine,
                            .path = &engine->host,
                            .group = {&transport, &group},
                            .call = {.struct_size = sizeof x.call,
                                     .coll = HD_COLL_ALL_REDUCE,
                                     .dtype = HD_F32,
                                     .redop = HD_SUM,
                                     .send = data,
                                     .recv = data,
                                     .count = 2},
                            .n_calls = 1,
                            .n_requests = 1,
                            .requests = &request};
    x.flight_op =
        (struct hd__flight_op){.name = "all_reduce",
                               .section = "",
                               .block = "",
                               .channel = hd__comm_flight_channel(transports.flight, "dp", ranks, 2, -1, -1, 0)};
    hd__push(&transports.opened, &transport);
    for (int i = 0; i < batches; i++)
        for (size_t w = 0; w < HD__COUNT(ways); w++) {
            double t = ways[w].run(&x);
            if (t < 0) {
                fprintf(stderr, "layer: %s\n", err.message);
                return 1;
            }
            best[w] = HD__MIN(best[w], t);
        }
    for (size_t w = 0; w < HD__COUNT(ways); w++)
        printf("%-24s %6.1f ns a call\n", ways[w].what, best[w] * 1e9);
    printf("%-24s %6.1f ns a call\n", "what the core adds", (best[1] - best[0]) * 1e9);
    hd__free_array(&transports.opened);
    hd__exec_comm_engine_free(engine);
    hd__comm_flight_destroy(transports.flight);
    return 0;
}
