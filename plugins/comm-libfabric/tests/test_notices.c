/* What comm-libfabric takes from the wire: notices that are whole, cut, strange, or nothing but bytes. No network is
 * there: the peers count as broken, so what this rank answers goes nowhere. Buffers end where the bytes do; the
 * sanitizers see who reads on. */
#include <stdlib.h>

#include "plugins/comm-libfabric/internal.h"
#include "tests/suite.h"

enum { RANKS = 3, STREAM = 4, SENDS = 11, BYTES = 24 };

static const uint64_t NONCE = 0x1234567890abcdef, GROUP = 77;

static void *host_alloc(size_t bytes)
{
    return calloc(1, bytes);
}

static void host_log(uint32_t level, const char *component, const char *format, ...)
{
    (void)level, (void)component, (void)format;
}

/* Every rank has the same entry, as endpoint.c leaves it: provider, bytes, address. */
static int asked; /* how often the store was */
static int32_t store_get(struct hd_store *store, const char *key, void *value, size_t *bytes, double deadline,
                         struct hd_error *err)
{
    (void)store, (void)key, (void)deadline, (void)err;
    *bytes = 64 + sizeof(uint64_t) + LF_ADDRESS;
    memset(value, 0, *bytes);
    strcpy(value, "tcp");
    asked++;
    return HD_OK;
}

static const struct hd_host host = {
    .struct_size = sizeof host, .alloc = host_alloc, .free = free, .log = host_log, .store_get = store_get};

static int av_insert(struct fid_av *av, const void *address, size_t n, fi_addr_t *to, uint64_t flags, void *context)
{
    (void)av, (void)flags, (void)context;
    *to = *(const uint8_t *)address;
    return (int)n;
}
static struct fi_ops_av av_ops = {.size = sizeof av_ops, .insert = av_insert};
static struct fid_av av = {.ops = &av_ops};
static char provider[] = "tcp";
static struct fi_fabric_attr fabric = {.prov_name = provider};
static struct fi_info info = {.fabric_attr = &fabric};

/* Rank 0 of three, in a group of all, with small messages under way to rank 1. */
struct stage {
    struct hd_comm *comm;
    struct hd_comm_group *group;
    hd_request send[SENDS];
    struct lf_head ready[SENDS]; /* what rank 1 has to say for them */
};

static void comm_init(struct hd_comm *c, int32_t ranks)
{
    c->host = &host;
    c->nonce = NONCE;
    c->settings.eager = 4048;
    c->world.size = ranks;
    c->peer = calloc((size_t)ranks, sizeof *c->peer);
    c->av = &av;
    c->info = &info;
    c->address_bytes = 16;
    for (int32_t r = 0; r < ranks; r++)
        c->peer[r].broken = FI_EIO;
    rq_init(&c->ops, &host, sizeof(struct lf_op), 1u << LF_INDEX_BITS);
}

static struct stage stage_open(void)
{
    static const uint8_t data[BYTES];
    struct stage s = {.comm = calloc(1, sizeof *s.comm),
                      .group = calloc(1, sizeof *s.group + RANKS * sizeof *s.group->member)};
    struct hd_error err = HD_ERROR_INIT;
    comm_init(s.comm, RANKS);
    s.comm->groups = s.group;
    s.group->comm = s.comm;
    s.group->id = GROUP;
    s.group->n = RANKS;
    s.group->error = (struct hd_error)HD_ERROR_INIT;
    for (int32_t r = 0; r < RANKS; r++) {
        s.comm->peer[r].known = 1;
        s.group->member[r].rank = r;
    }
    for (uint32_t k = 0; k < SENDS; k++) {
        ck_assert_int_eq(lf_send(s.group, 1, STREAM, data, BYTES, &s.send[k], &err), HD_OK);
        s.ready[k] = (struct lf_head){.nonce = NONCE,
                                      .group = GROUP,
                                      .bytes = BYTES,
                                      .stream = STREAM,
                                      .number = k,
                                      .token = k,
                                      .from = 1,
                                      .kind = LF_READY};
    }
    s.ready[0].text = (uint16_t)((SENDS - 1) * sizeof *s.ready);
    return s;
}

static void stage_close(struct stage *s)
{
    lf_groups_forget(s->comm);
    lf_tx_post(s->comm); /* of broken peers: they are put away */
    for (struct lf_tx *note = s->comm->free_tx, *next; note; note = next) {
        next = note->next;
        free(note);
    }
    rq_finish(&s->comm->ops);
    free(s->comm->peer);
    free(s->comm);
}

static void arrive(struct stage *s, const void *bytes, size_t n)
{
    uint8_t *exact = malloc(n ? n : 1);
    memcpy(exact, bytes, n);
    lf_control_received(s->comm, exact, n);
    free(exact);
}

/* How many of the sends, from the first, are done; no other is. */
static int done(struct stage *s)
{
    struct hd_error err = HD_ERROR_INIT;
    int n = 0, last = 1;
    for (int k = 0; k < SENDS; k++) {
        int32_t is = 0;
        ck_assert_int_eq(lf_test(s->comm, s->send[k], &is, &err), HD_OK);
        ck_assert_int_ge(last, is);
        n += last = is;
    }
    return n;
}

START_TEST(a_whole_row)
{
    struct stage s = stage_open();
    arrive(&s, s.ready, sizeof s.ready);
    ck_assert_int_eq(done(&s), SENDS);
    stage_close(&s);
}
END_TEST

START_TEST(cut_anywhere)
{
    for (size_t n = 0; n < SENDS * sizeof(struct lf_head); n++) {
        struct stage s = stage_open();
        arrive(&s, s.ready, n);
        ck_assert_int_eq(done(&s), 0);
        s.ready[0].text = (uint16_t)(n - sizeof *s.ready); /* so long, it says: what is whole of it counts */
        arrive(&s, s.ready, n);
        ck_assert_int_eq(done(&s), (int)(n / sizeof *s.ready));
        stage_close(&s);
    }
}
END_TEST

/* One head of the row is not what it should be: those before it count. */
START_TEST(one_is_strange)
{
    for (int at = 1; at < SENDS; at++) {
        struct stage s = stage_open();
        struct lf_head *head = &s.ready[at];
        switch (_i) {
        case 0:
            head->nonce++;
            break;
        case 1:
            head->from = 2;
            break;
        case 2:
            head->kind = LF_EAGER;
            break;
        case 3:
            head->text = sizeof *head;
            break;
        default:
            head->group++; /* of a group that is not there yet: kept for it, and the row goes on */
        }
        arrive(&s, s.ready, sizeof s.ready);
        if (_i < 4)
            ck_assert_int_eq(done(&s), at);
        else
            ck_assert_int_eq(s.comm->n_orphans, 1);
        stage_close(&s);
    }
}
END_TEST

/* Heads with a bit turned here and there, and bytes behind them. */
START_TEST(anything)
{
    uint64_t state = 88172645463325252u + (uint64_t)_i;
    for (int k = 0; k < 3000; k++) {
        struct stage s = stage_open();
        uint8_t bytes[sizeof s.ready];
        for (int few = 0; few < 5; few++) {
            size_t n = sizeof bytes;
            memcpy(bytes, s.ready, sizeof bytes);
            state = state * 6364136223846793005u + 1442695040888963407u;
            if (state >> 63)
                n = (state >> 20) % (sizeof bytes + 1);
            for (uint64_t turns = state >> 60 & 7; turns; turns--) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                bytes[(state >> 33) % (state >> 62 ? sizeof *s.ready : sizeof bytes)] ^=
                    (uint8_t)(1u << (state >> 30 & 7));
            }
            if (n >= sizeof *s.ready && state >> 61 & 1) { /* one that hangs together, whatever it is */
                struct lf_head head = s.ready[0];
                head.kind = (uint16_t)(LF_EAGER + (state >> 40) % 7);
                head.stream = state >> 50 & 1 ? STREAM : STREAM + 1;
                head.number = state >> 44 & 15;
                head.text = (uint16_t)(n - sizeof head);
                head.bytes = n - sizeof head;
                memcpy(bytes, &head, sizeof head);
            }
            arrive(&s, bytes, n);
        }
        stage_close(&s);
    }
}
END_TEST

/* The kinds of the messages that wait for a peer, in their order: "71", HELLO and EAGER. */
static const char *waiting(const struct hd_comm *c, int32_t rank)
{
    static char kinds[16];
    size_t n = 0;
    for (const struct lf_tx *tx = c->peer[rank].first; tx && n < sizeof kinds - 1; tx = tx->next)
        kinds[n++] = (char)('0' + ((const struct lf_head *)tx->data)->kind);
    kinds[n] = 0;
    return kinds;
}

/* Members of a large group become known when they first talk, by the store or by a HELLO, and whoever is known hears of
 * the group's end, be it later. */
START_TEST(a_large_group)
{
    enum { MANY = LF_GREETED + 40 };
    struct {
        struct lf_head head;
        uint8_t address[16];
    } hello = {.head = {.nonce = NONCE, .kind = LF_HELLO, .text = 16}, .address = {42}};
    struct stage s = {.comm = calloc(1, sizeof *s.comm)};
    struct lf_head ready = {.nonce = NONCE, .stream = STREAM, .bytes = BYTES + 1, .from = 7, .kind = LF_READY};
    static const uint8_t data[BYTES];
    int32_t ranks[MANY];
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    comm_init(s.comm, MANY);
    asked = 0;
    for (int32_t r = 0; r < MANY; r++)
        ranks[r] = r;
    ck_assert_int_eq(lf_group(s.comm, "all", ranks, MANY, &s.group, &err), HD_OK);
    ck_assert_int_eq(asked, 0);
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(lf_send(s.group, 7, STREAM, data, BYTES, &request, &err), HD_OK);
        ck_assert_int_eq(asked, 1);
    }
    ck_assert_str_eq(waiting(s.comm, 7), "711");
    hello.head.from = 9;
    arrive(&s, &hello, sizeof hello);
    ck_assert(s.comm->peer[9].heard && s.comm->peer[9].known && s.comm->peer[9].address == 42);
    ck_assert_int_eq(lf_send(s.group, 9, STREAM, data, BYTES, &request, &err), HD_OK);
    ck_assert_int_eq(asked, 1);
    ck_assert_str_eq(waiting(s.comm, 9), "1");
    ready.group = s.group->id;
    arrive(&s, &ready, sizeof ready); /* of another size: the group is given up */
    ck_assert_int_eq(lf_send(s.group, 9, STREAM, data, BYTES, &request, &err), HD_E_MISMATCH);
    ck_assert_str_eq(waiting(s.comm, 7), "7114");
    ck_assert_str_eq(waiting(s.comm, 9), "14");
    ck_assert_str_eq(waiting(s.comm, 8), "");
    hello.head.from = 8;
    arrive(&s, &hello, sizeof hello);
    ck_assert_str_eq(waiting(s.comm, 8), "4");
    ck_assert_int_eq(asked, 1);
    stage_close(&s);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("notices");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_whole_row);
    tcase_add_test(tc, cut_anywhere);
    tcase_add_loop_test(tc, one_is_strange, 0, 5);
    tcase_add_loop_test(tc, anything, 0, 4);
    tcase_add_test(tc, a_large_group);
    return suite_run_case("notices", tc);
}
