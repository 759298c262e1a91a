/* The overlay over a transport that does nothing by itself: what it posts, on which streams, and when it says that
 * an operation is done. What the algorithms compute: test_algorithms.c, and the conformance suite over every
 * transport. */
#include <check.h>

#include "runtime/comm/open.h"
#include "tests/suite.h"

static struct message {
    uint32_t stream;
    int32_t done;
} messages[64];
static uint32_t n_messages;

static int32_t open_it(const struct hd_host *host, const void *settings, const struct hd_world *world,
                       struct hd_comm **comm, struct hd_error *err)
{
    (void)host, (void)settings, (void)world, (void)err;
    *comm = (struct hd_comm *)messages; /* not looked into */
    return HD_OK;
}

static void close_it(struct hd_comm *comm)
{
    (void)comm;
}

static int32_t group(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n,
                     struct hd_comm_group **out, struct hd_error *err)
{
    (void)comm, (void)name, (void)ranks, (void)n, (void)err;
    *out = (struct hd_comm_group *)messages;
    return HD_OK;
}

static int32_t post(uint32_t stream, hd_request *request, struct hd_error *err)
{
    if (n_messages == HD__COUNT(messages))
        return hd_fail(err, HD_E_NOMEM, "too many messages");
    messages[n_messages] = (struct message){.stream = stream};
    *request = n_messages++;
    return HD_OK;
}

static int32_t send_it(struct hd_comm_group *g, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                       hd_request *request, struct hd_error *err)
{
    (void)g, (void)peer, (void)data, (void)bytes;
    return post(stream, request, err);
}

static int32_t recv_it(struct hd_comm_group *g, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                       hd_request *request, struct hd_error *err)
{
    (void)g, (void)peer, (void)data, (void)bytes;
    return post(stream, request, err);
}

static int32_t progress(struct hd_comm *comm, struct hd_error *err)
{
    (void)comm, (void)err;
    return 0;
}

static int32_t test_it(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err)
{
    (void)comm, (void)err;
    *done = messages[request].done;
    return HD_OK;
}

static void abort_it(struct hd_comm *comm, const char *reason)
{
    (void)comm, (void)reason;
}

static const struct hd_comm_ops silent = {.struct_size = sizeof silent,
                                          .open = open_it,
                                          .close = close_it,
                                          .group = group,
                                          .send = send_it,
                                          .recv = recv_it,
                                          .progress = progress,
                                          .test = test_it,
                                          .abort = abort_it};

static struct hd__comm transport;
static struct hd_comm_group *pair;
static float buffer[8][64];

static void setup(void)
{
    static const int32_t ranks[] = {0, 1};
    const struct hd_world world = {.struct_size = sizeof world, .rank = 0, .size = 2};
    struct hd_error err = HD_ERROR_INIT;
    n_messages = 0;
    ck_assert_msg(!hd__comm_open(&silent, NULL, NULL, &world, &transport, &err), "%s", err.message);
    ck_assert_msg(!transport.ops.group(transport.comm, "pair", ranks, 2, &pair, &err), "%s", err.message);
}

static void teardown(void)
{
    hd__comm_close(&transport);
}

static hd_request gather(uint32_t n)
{
    const struct hd_comm_call call = {.struct_size = sizeof call,
                                      .coll = HD_COLL_ALL_GATHER,
                                      .dtype = HD_F32,
                                      .send = buffer[2 * n],
                                      .recv = buffer[2 * n + 1],
                                      .count = 16};
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    ck_assert_msg(!transport.ops.collective(pair, &call, &request, &err), "%s", err.message);
    return request;
}

static int32_t done(hd_request request)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t is = 0;
    ck_assert_msg(!transport.ops.test(transport.comm, request, &is, &err), "%s", err.message);
    return is;
}

static void complete(uint32_t first, uint32_t behind)
{
    struct hd_error err = HD_ERROR_INIT;
    for (uint32_t i = first; i < behind; i++)
        messages[i].done = 1;
    ck_assert_int_ge(transport.ops.progress(transport.comm, &err), 0);
}

START_TEST(two_are_under_way_on_streams_of_their_own)
{
    uint32_t one, two;
    gather(0);
    one = n_messages;
    ck_assert_uint_gt(one, 0);
    gather(1);
    two = n_messages;
    ck_assert_uint_eq(two, 2 * one);
    gather(2);
    ck_assert_uint_eq(n_messages, two); /* waits: its stream is the first's */
    for (uint32_t i = 0; i < two; i++)
        ck_assert_uint_eq(messages[i].stream, messages[i < one ? 0 : one].stream);
    ck_assert_uint_ne(messages[0].stream, messages[one].stream);
    complete(0, one);
    ck_assert_uint_eq(n_messages, 3 * one);
    ck_assert_uint_eq(messages[two].stream, messages[0].stream);
}
END_TEST

START_TEST(they_are_done_in_their_order)
{
    hd_request first = gather(0), second;
    uint32_t one = n_messages;
    second = gather(1);
    complete(one, 2 * one);
    ck_assert(!done(second));
    ck_assert(!done(first));
    complete(0, one);
    ck_assert(done(first));
    ck_assert(done(second));
}
END_TEST

START_TEST(their_streams_are_refused_to_others)
{
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    gather(0);
    gather(1);
    for (uint32_t i = 0; i < n_messages; i++)
        ck_assert_int_eq(transport.ops.send(pair, 1, messages[i].stream, buffer[7], 4, &request, &err), HD_E_INVALID);
    ck_assert_int_eq(transport.ops.send(pair, 1, 0, buffer[7], 4, &request, &err), HD_OK);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("overlay");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, two_are_under_way_on_streams_of_their_own);
    tcase_add_test(tc, they_are_done_in_their_order);
    tcase_add_test(tc, their_streams_are_refused_to_others);
    return suite_run_case("overlay", tc);
}
