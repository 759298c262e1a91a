/* A transport whose slots fail without a message, return no HD_E_ code, or give nothing: each is an error by name, also
 * under the core's collectives, whose messages they carry. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "runtime/comm/open.h"
#include "tests/suite.h"

enum slot { NONE, OPEN, GROUP, SEND, RECV, TEST, PROGRESS, SLOTS };
static const char *const names[SLOTS] = {"", "open", "group", "send", "recv", "test", "progress"};

/* The slot that fails, and how; a code of 0: it gives nothing. */
static enum slot fails;
static int32_t code;
static char place; /* a handle points to it */

static int32_t result(enum slot slot, void **handle)
{
    if (slot != fails || code)
        *handle = &place;
    return slot == fails ? code : HD_OK;
}

static int32_t fake_open(const struct hd_host *host, const void *settings, const struct hd_world *world,
                         struct hd_comm **comm, struct hd_error *err)
{
    (void)host, (void)settings, (void)world, (void)err;
    return result(OPEN, (void **)comm);
}

static void fake_close(struct hd_comm *comm)
{
    (void)comm;
}

static int32_t fake_group(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n,
                          struct hd_comm_group **group, struct hd_error *err)
{
    (void)comm, (void)name, (void)ranks, (void)n, (void)err;
    return result(GROUP, (void **)group);
}

static int32_t fake_send(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                         hd_request *request, struct hd_error *err)
{
    (void)group, (void)peer, (void)stream, (void)data, (void)bytes, (void)err;
    *request = 1;
    return fails == SEND ? code : HD_OK;
}

static int32_t fake_recv(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                         hd_request *request, struct hd_error *err)
{
    (void)group, (void)peer, (void)stream, (void)data, (void)bytes, (void)err;
    *request = 2;
    return fails == RECV ? code : HD_OK;
}

static int32_t fake_progress(struct hd_comm *comm, struct hd_error *err)
{
    (void)comm, (void)err;
    return fails == PROGRESS ? code : 0;
}

static int32_t fake_test(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err)
{
    (void)comm, (void)request, (void)err;
    *done = fails != TEST;
    return fails == TEST ? code : HD_OK;
}

static void fake_abort(struct hd_comm *comm, const char *reason)
{
    (void)comm, (void)reason;
}

static const struct hd_comm_ops fake = {.struct_size = sizeof fake,
                                        .open = fake_open,
                                        .close = fake_close,
                                        .group = fake_group,
                                        .send = fake_send,
                                        .recv = fake_recv,
                                        .progress = fake_progress,
                                        .test = fake_test,
                                        .abort = fake_abort};

/* An all_reduce of rank 0 of two over such a transport, to its end. */
static int32_t all_reduce(struct hd_error *err)
{
    const struct hd_world world = {.struct_size = sizeof world, .size = 2, .local_size = 2, .instance = "t"};
    const struct hd_comm_call call = {.struct_size = sizeof call,
                                      .coll = HD_COLL_ALL_REDUCE,
                                      .dtype = HD_F32,
                                      .redop = HD_SUM,
                                      .send = (float[4]){1},
                                      .recv = (float[4]){0},
                                      .count = 4};
    const int32_t ranks[] = {0, 1};
    struct hd__comm t = {0};
    struct hd_comm_group *group = NULL;
    hd_request request;
    int32_t done = 0, rc = hd__comm_open(&fake, NULL, NULL, &world, &t, err);
    if (rc)
        return rc;
    rc = t.ops.group(t.comm, "g", ranks, 2, &group, err);
    if (!rc)
        rc = t.ops.collective(group, &call, &request, err);
    for (int n = 0; n < 1000 && !rc && !done; n++) {
        rc = HD__MIN(t.ops.progress(t.comm, err), 0);
        if (!rc)
            rc = t.ops.test(t.comm, request, &done, err);
    }
    ck_assert_msg(rc || done, "it neither ended nor failed");
    if (group && t.ops.group_free)
        t.ops.group_free(group);
    hd__comm_close(&t);
    return rc;
}

START_TEST(named)
{
    struct hd_error err = HD_ERROR_INIT;
    char words[96];
    fails = NONE;
    ck_assert_int_eq(all_reduce(&err), HD_OK);
    for (fails = OPEN; fails < SLOTS; fails++) {
        err = (struct hd_error)HD_ERROR_INIT;
        code = HD_E_IO;
        ck_assert_msg(all_reduce(&err) == HD_E_IO, "%s: %s", names[fails], err.message);
        ck_assert_int_eq(err.code, HD_E_IO);
        snprintf(words, sizeof words, "the transport's %s failed (code -4) without a message (hd_fail)", names[fails]);
        ck_assert_str_eq(err.message, words);
        if (fails == PROGRESS) /* above 0: something moved */
            continue;
        err = (struct hd_error)HD_ERROR_INIT;
        code = 5;
        ck_assert_msg(all_reduce(&err) == HD_E_INTERNAL, "%s: %s", names[fails], err.message);
        snprintf(words, sizeof words, "the transport's %s returned 5, which is no HD_E_ code", names[fails]);
        ck_assert_str_eq(err.message, words);
        if (fails > GROUP)
            continue;
        err = (struct hd_error)HD_ERROR_INIT;
        code = HD_OK;
        ck_assert_msg(all_reduce(&err) == HD_E_INTERNAL, "%s: %s", names[fails], err.message);
        snprintf(words, sizeof words, "the transport's %s returned HD_OK and gave nothing", names[fails]);
        ck_assert_str_eq(err.message, words);
    }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("silent");
    tcase_add_test(tc, named);
    return suite_run_case("silent", tc);
}
