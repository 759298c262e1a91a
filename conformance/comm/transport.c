/* Promises of every transport, against struct hd_comm_ops. Words of the command line:
 *     bare: by the core's algorithms over its send and recv
 *     few: each check with one or two numbers of ranks, for transports whose ranks take long to start
 *     any: so, and by algorithms whose sums follow an order of their own, in chunks of 4 KiB
 *     soak=N seed=S ranks=R: N random operations on R ranks, and nothing else
 *     huge=BYTES: operations of that size on two ranks, and nothing else; 4.5 x BYTES of memory a rank
 *     whole=BYTES: a broadcast and a message of so many, in one buffer: BYTES of memory a rank
 *     room=BYTES: skipped (77) where the machine has less memory left
 *     sums=BYTES: an all_reduce and a reduce of so many, in one buffer: 2 x BYTES of memory a rank, over MPI
 *     alone: no liveness tells it of a rank that died; strict: messages name ranks and sizes, as those of this tree do
 *     failures: deaths, deadlines, aborts and disagreement alone; results: all but them */
#include <stdlib.h>
#include <unistd.h>

#include "conformance/check.h"
#include "conformance/comm/huge.h"
#include "conformance/comm/jobs.h"
#include "conformance/comm/soak.h"
#include "core/plugin/plugin.h"
#include "runtime/comm/open.h"
#include "runtime/rendezvous/store.h"

/* Without memory of the transport all kinds are one. */
static int first_memory(const struct rank *rank)
{
    return rank->ops->memory ? NO_ARENA : MIXED;
}

/* ---- all collectives */

static int all_shapes(struct rank *rank, struct hd_comm_group *group, struct buffers *b, struct job job)
{
    size_t esize = hd_dtype_size(job.dtype);
    /* The last: two steps of staging for the dtypes of training, less for the others, to save time. */
    const uint64_t counts[] = {0, 1, 13, 4096 / esize - 1, 4096 / esize + 1, job.dtype <= HD_BF16 ? 20011 : 5003};
    /* More than four ranks: what a small group and a large one do differently shows without the middle sizes. */
    size_t few = rank->size > 4 ? 3 : HD__COUNT(counts);
    for (size_t s = 0; s < few; s++)
        for (job.memory = rank->size > 4 ? MIXED : first_memory(rank); job.memory <= MIXED; job.memory++)
            for (job.in_place = 0; job.in_place < 2; job.in_place++) {
                job.count = few == 3 && s == 0 ? 1021 : counts[s];
                if (job.in_place && job.coll == HD_COLL_ALL_TO_ALL)
                    continue;
                job.root = coll_is_rooted(job.coll) ? (int32_t)(s + job.dtype) % job.n : 0;
                if (job_run(rank, group, b, &job, job.count % 3 * esize))
                    return 1;
            }
    return 0;
}

static int collectives(struct rank *rank)
{
    struct buffers b;
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    if (buffers_open(rank, &b) || world_group(rank, "world", &group))
        return 1;
    for (uint32_t coll = HD_COLL_ALL_REDUCE; coll <= HD_COLL_REDUCE; coll++)
        for (size_t d = 0; d < HD__COUNT(all_dtypes); d++) {
            for (uint32_t redop = HD_SUM; redop <= (coll_reduces(coll) ? HD_AVG : HD_SUM); redop++) {
                struct job job = {
                    .coll = coll, .dtype = all_dtypes[d], .redop = redop, .n = rank->size, .me = rank->rank};
                if (all_shapes(rank, group, &b, job))
                    return 1;
            }
        }
    for (int i = 0; i < 200; i++) {
        struct hd_comm_call call = {.struct_size = sizeof call, .coll = HD_COLL_BARRIER, .tag = (uint64_t)i};
        hd_request request;
        EXPECT(rank->ops->collective(group, &call, &request, &err) == HD_OK, "%s", err.message);
        EXPECT(finish(rank, request, &err) == HD_OK, "%s", err.message);
    }
    rank->ops->group_free(group);
    return 0;
}

/* Infinities, NaN, zeros of both signs, what rounds to them: through every reduction. */
static int specials(struct rank *rank)
{
    static const uint32_t colls[] = {HD_COLL_ALL_REDUCE, HD_COLL_REDUCE_SCATTER, HD_COLL_REDUCE};
    static const uint64_t counts[] = {5, 20011};
    struct buffers b;
    struct hd_comm_group *group;
    if (buffers_open(rank, &b) || world_group(rank, "world", &group))
        return 1;
    for (size_t k = 0; k < HD__COUNT(colls) * HD__COUNT(counts); k++)
        for (int d = 0; d < 4; d++)
            for (uint32_t redop = HD_SUM; redop <= HD_AVG; redop++) {
                struct job job = {.coll = colls[k / HD__COUNT(counts)],
                                  .count = counts[k % HD__COUNT(counts)],
                                  .dtype = all_dtypes[d],
                                  .redop = redop,
                                  .n = rank->size,
                                  .me = rank->rank,
                                  .memory = k % 3 == 0 ? NO_ARENA : MIXED,
                                  .seed = VALUES_SPECIAL};
                if (sums_in_order(rank, &job) && job_run(rank, group, &b, &job, 0))
                    return 1;
            }
    return 0;
}

/* 1 MiB, through staging of 64 KiB chunks and in the arena, streaming stores on. */
static int large(struct rank *rank)
{
    struct buffers b;
    struct hd_comm_group *group;
    if (buffers_open(rank, &b) || world_group(rank, "world", &group))
        return 1;
    for (uint32_t coll = HD_COLL_ALL_REDUCE; coll <= HD_COLL_REDUCE; coll++)
        for (int d = 0; d < 2; d++) {
            uint64_t count = (1u << 20) / hd_dtype_size(all_dtypes[d]);
            struct job job = {.coll = coll, .dtype = all_dtypes[d], .redop = HD_SUM, .n = rank->size, .me = rank->rank};
            int parts = coll >= HD_COLL_ALL_GATHER && coll <= HD_COLL_ALL_TO_ALL;
            job.count = parts ? count / (uint64_t)rank->size + 1 : count;
            for (job.memory = first_memory(rank); job.memory <= MIXED; job.memory++)
                for (job.in_place = 0; job.in_place <= (coll != HD_COLL_ALL_TO_ALL); job.in_place++)
                    if (job_run(rank, group, &b, &job, 0))
                        return 1;
        }
    return 0;
}

/* ---- several groups, many in flight */

static int in_flight(struct rank *rank)
{
    enum { JOBS = 24, ROOM = 160 << 10 };
    struct buffers b;
    struct hd_comm_group *groups[3] = {0};
    struct hd_error err = HD_ERROR_INIT;
    struct job jobs[3][JOBS];
    int32_t low[] = {0, 1}, high[] = {2, 1, 0}; /* 2, 1, 0: the order of members is not that of ranks */
    int32_t n[] = {rank->size, 2, 3}, me[] = {rank->rank, rank->rank, 2 - rank->rank};
    if (buffers_open(rank, &b) || world_group(rank, "world", &groups[0]))
        return 1;
    if (rank->rank < 2)
        EXPECT(rank->ops->group(rank->comm, "low", low, 2, &groups[1], &err) == HD_OK, "%s", err.message);
    if (rank->rank < 3)
        EXPECT(rank->ops->group(rank->comm, "high", high, 3, &groups[2], &err) == HD_OK, "%s", err.message);
    uint8_t *memory[2] = {rank_memory(rank, 3 * JOBS * ROOM), rank_memory(rank, 3 * JOBS * ROOM)};
    EXPECT(memory[0] && memory[1], "memory");
    for (int k = 0; k < JOBS; k++)
        for (int g = 0; g < 3; g++) {
            struct job *j = &jobs[g][k];
            *j = (struct job){.coll = 1 + (uint32_t)(k * 5 + g) % 6,
                              .dtype = k & 1 ? HD_F32 : HD_BF16,
                              .redop = HD_SUM,
                              .n = n[g],
                              .me = me[g],
                              .count = (uint64_t)(k % 4 == 3 ? 9001 : 1 + 37 * k),
                              .seed = 5000 + (uint64_t)(g * JOBS + k)};
            size_t at = (size_t)(g * JOBS + k) * ROOM;
            int arena = k % 3 == 0 && (size_t)(k / 3 + 8 * g + 1) * ROOM < LARGEST;
            uint8_t *s = arena ? b.send[1] + (size_t)(k / 3 + 8 * g) * ROOM : memory[0] + at;
            uint8_t *r = arena ? b.recv[1] + (size_t)(k / 3 + 8 * g) * ROOM : memory[1] + at;
            if (groups[g] && job_start(rank, groups[g], j, s, r))
                return 1;
        }
    for (int g = 2; g >= 0; g--) { /* the last of each group first: all before it are then done */
        if (!groups[g])
            continue;
        EXPECT(finish(rank, jobs[g][JOBS - 1].request, &err) == HD_OK, "%s", err.message);
        for (int k = 0; k < JOBS - 1; k++) {
            int32_t done = 0;
            EXPECT(attempt(rank, jobs[g][k].request, &done, &err) == HD_OK && done, "order of completion");
        }
        for (int k = 0; k < JOBS; k++)
            if (job_check(rank, &jobs[g][k]))
                return 1;
    }
    int32_t done;
    EXPECT(rank->ops->test(rank->comm, jobs[0][0].request, &done, &err) == HD_E_INVALID, "a request counts once");
    return 0;
}

enum { AHEAD_ROOM = 4 * GUARD + 8 * 40 }; /* bytes of one buffer */

static int post_some(struct rank *rank, struct hd_comm_group *group, struct job *jobs, int from, int to, uint8_t *send,
                     uint8_t *recv)
{
    for (int k = from; k < to; k++) {
        jobs[k] = (struct job){.coll = 1 + (uint32_t)k % 6,
                               .dtype = HD_I32,
                               .redop = HD_SUM,
                               .n = rank->size,
                               .me = rank->rank,
                               .count = 1 + (uint64_t)k % 10,
                               .seed = 7000 + (uint64_t)k};
        if (job_start(rank, group, &jobs[k], send + k * AHEAD_ROOM, recv + k * AHEAD_ROOM))
            return 1;
    }
    return 0;
}

/* Member 0 posts before another posts the first, one more than the notes that members leave each other may have room
 * for; when others have taken what they found, it posts the rest. */
static int far_ahead(struct rank *rank)
{
    enum { AHEAD = 150, FIRST = 65 };
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct job jobs[AHEAD];
    uint8_t *send = rank_memory(rank, AHEAD * AHEAD_ROOM), *recv = rank_memory(rank, AHEAD * AHEAD_ROOM);
    EXPECT(send && recv, "memory");
    if (world_group(rank, "world", &group))
        return 1;
    if (!rank->rank && post_some(rank, group, jobs, 0, FIRST, send, recv))
        return 1;
    EXPECT(hd__store_barrier(rank->store, "ahead", hd__now() + rank->timeout, &err) == HD_OK, "%s", err.message);
    if (rank->rank && post_some(rank, group, jobs, 0, AHEAD, send, recv))
        return 1;
    for (int i = 0; i < 100 && rank->rank && rank->ops->progress; i++)
        EXPECT(rank->ops->progress(rank->comm, &err) >= 0, "%s", err.message);
    EXPECT(hd__store_barrier(rank->store, "taken", hd__now() + rank->timeout, &err) == HD_OK, "%s", err.message);
    if (!rank->rank && post_some(rank, group, jobs, FIRST, AHEAD, send, recv))
        return 1;
    for (int k = 0; k < AHEAD; k++) {
        EXPECT(finish(rank, jobs[k].request, &err) == HD_OK, "operation %d: %s", k, err.message);
        if (job_check(rank, &jobs[k]))
            return 1;
    }
    return 0;
}

/* ---- send and recv */

static int exchange(struct rank *rank, struct hd_comm_group *group, struct buffers *b, uint64_t bytes, int memory)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t to = (rank->rank + 1) % rank->size, from = (rank->rank + rank->size - 1) % rank->size;
    uint8_t *s = b->send[memory & 1], *r = b->recv[memory >> 1 & 1];
    hd_request out, in;
    static uint64_t seed = 4000;
    seed++;
    values_fill(s, HD_U8, seed, rank->rank, 0, bytes);
    memset(r, 0xa5, bytes + GUARD);
    EXPECT(rank->ops->send(group, to, 0, s, bytes, &out, &err) == HD_OK, "%s", err.message);
    EXPECT(rank->ops->recv(group, from, 0, r, bytes, &in, &err) == HD_OK, "%s", err.message);
    EXPECT(finish(rank, in, &err) == HD_OK, "%s", err.message);
    EXPECT(finish(rank, out, &err) == HD_OK, "%s", err.message);
    uint64_t at = values_differ(r, HD_U8, seed, from, 0, bytes);
    while (at >= bytes && at < bytes + GUARD && r[at] == 0xa5)
        at++;
    EXPECT(at == bytes + GUARD, "message of %llu bytes, memory %d: byte %llu", (unsigned long long)bytes, memory,
           (unsigned long long)at);
    return 0;
}

/* Three streams, from `first` on, to one peer, received in another order than sent, more than any mailbox holds. */
static int streams(struct rank *rank, struct hd_comm_group *group, uint32_t first)
{
    enum { EACH = 60, STREAMS = 3, BYTES = 1000 };
    struct hd_error err = HD_ERROR_INIT;
    uint8_t(*out)[EACH][BYTES] = rank_memory(rank, (size_t)STREAMS * EACH * BYTES);
    uint8_t(*in)[EACH][BYTES] = rank_memory(rank, (size_t)STREAMS * EACH * BYTES);
    hd_request sends[STREAMS][EACH], recvs[STREAMS][EACH];
    int32_t peer = rank->rank ^ 1;
    if (peer >= rank->size)
        return 0;
    EXPECT(out && in, "memory");
    for (uint32_t s = 0; s < STREAMS; s++)
        for (int k = 0; k < EACH; k++) {
            values_fill(out[s][k], HD_U8, 900 + s, rank->rank, (uint64_t)k * BYTES, BYTES);
            uint64_t bytes = k & 1 ? BYTES : 100;
            EXPECT(rank->ops->send(group, peer, first + s, out[s][k], bytes, &sends[s][k], &err) == HD_OK, "%s",
                   err.message);
        }
    for (uint32_t s = STREAMS; s-- > 0;)
        for (int k = 0; k < EACH; k++)
            EXPECT(rank->ops->recv(group, peer, first + s, in[s][k], k & 1 ? BYTES : 100, &recvs[s][k], &err) == HD_OK,
                   "%s", err.message);
    for (uint32_t s = 0; s < STREAMS; s++)
        for (int k = 0; k < EACH; k++) {
            uint8_t want[BYTES];
            EXPECT(finish(rank, recvs[s][k], &err) == HD_OK, "%s", err.message);
            EXPECT(finish(rank, sends[s][k], &err) == HD_OK, "%s", err.message);
            values_fill(want, HD_U8, 900 + s, peer, (uint64_t)k * BYTES, BYTES);
            EXPECT(memcmp(want, in[s][k], k & 1 ? BYTES : 100) == 0, "stream %u message %d", first + s, k);
        }
    return 0;
}

/* A row of receives from all others in turn, of sizes small and large, before anything is sent. */
static int crossed(struct rank *rank, struct hd_comm_group *group)
{
    enum { EACH = 15, LARGE = 30000 };
    static const uint64_t sizes[] = {8, 1000, LARGE, 0};
    struct hd_error err = HD_ERROR_INIT;
    int32_t n = rank->size, me = rank->rank;
    uint8_t(*out)[EACH][LARGE] = rank_memory(rank, (size_t)n * EACH * LARGE);
    uint8_t(*in)[EACH][LARGE] = rank_memory(rank, (size_t)n * EACH * LARGE);
    hd_request sends[8][EACH], recvs[8][EACH];
    EXPECT(out && in && n <= 8, "memory");
    for (int k = 0; k < EACH; k++)
        for (int32_t peer = 0; peer < n; peer++)
            if (peer != me)
                EXPECT(rank->ops->recv(group, peer, 0, in[peer][k], sizes[k % 4], &recvs[peer][k], &err) == HD_OK, "%s",
                       err.message);
    for (int32_t peer = 0; peer < n; peer++)
        for (int k = 0; k < EACH; k++) {
            memset(out[peer][k], 100 * me + 10 * peer + k, LARGE);
            if (peer != me)
                EXPECT(rank->ops->send(group, peer, 0, out[peer][k], sizes[k % 4], &sends[peer][k], &err) == HD_OK,
                       "%s", err.message);
        }
    for (int32_t peer = 0; peer < n; peer++)
        for (int k = 0; k < EACH && peer != me; k++) {
            EXPECT(finish(rank, recvs[peer][k], &err) == HD_OK, "%s", err.message);
            EXPECT(finish(rank, sends[peer][k], &err) == HD_OK, "%s", err.message);
            for (uint64_t i = 0; i < sizes[k % 4]; i++)
                EXPECT(in[peer][k][i] == (uint8_t)(100 * peer + 10 * me + k), "message %d of rank %d, byte %zu", k,
                       peer, (size_t)i);
        }
    return 0;
}

static int messages(struct rank *rank)
{
    /* Where ways part: comm-shm at 40, 256 and 4096, comm-libfabric at 4048 and 8144. */
    static const uint64_t sizes[] = {0,    1,    40,   41,   256,   257,    4048,    4049,
                                     4096, 4097, 8144, 8145, 65536, 200001, 1 << 20, 3 << 20};
    struct buffers b;
    struct hd_comm_group *group;
    if (buffers_open(rank, &b) || world_group(rank, "world", &group))
        return 1;
    for (size_t s = 0; s < HD__COUNT(sizes); s++)
        for (int memory = 0; memory < 4; memory++)
            if (exchange(rank, group, &b, sizes[s], memory))
                return 1;
    if (crossed(rank, group) || streams(rank, group, 0))
        return 1;
    /* The core sends by those beyond callers', for collectives and hooks. */
    return rank->own_messages && streams(rank, group, HD__STREAM_HOOKS);
}

/* A rank that waits for a message takes part in the collective under way: here messages are sent only when that is
 * over. */
static int moves_while_it_waits(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    struct job job = {
        .coll = HD_COLL_ALL_REDUCE, .dtype = HD_F32, .redop = HD_SUM, .n = rank->size, .me = rank->rank, .count = 5003};
    size_t room = job.count * sizeof(float) + (size_t)2 * GUARD;
    uint8_t *s = rank_memory(rank, room), *r = rank_memory(rank, room), sent = 7, got = 0;
    hd_request message;
    EXPECT(s && r, "memory");
    if (world_group(rank, "world", &group) || job_start(rank, group, &job, s, r))
        return 1;
    for (int32_t from = 1; from < rank->size && rank->rank == 0; from++) {
        EXPECT(rank->ops->recv(group, from, 0, &got, 1, &message, &err) == HD_OK, "%s", err.message);
        EXPECT(finish(rank, message, &err) == HD_OK && got == sent, "%s", err.message);
    }
    EXPECT(finish(rank, job.request, &err) == HD_OK, "%s", err.message);
    if (rank->rank != 0) {
        EXPECT(rank->ops->send(group, 0, 0, &sent, 1, &message, &err) == HD_OK, "%s", err.message);
        EXPECT(finish(rank, message, &err) == HD_OK, "%s", err.message);
    }
    return job_check(rank, &job);
}

/* ---- groups that come and go */

static int regroup(struct rank *rank)
{
    struct buffers b;
    if (buffers_open(rank, &b))
        return 1;
    for (int k = 0; k < 5; k++) {
        struct hd_comm_group *group;
        struct job job = {.coll = HD_COLL_ALL_REDUCE,
                          .dtype = HD_F32,
                          .redop = HD_SUM,
                          .n = rank->size,
                          .me = rank->rank,
                          .count = 5000};
        if (world_group(rank, "again", &group) || job_run(rank, group, &b, &job, 0))
            return 1;
        rank->ops->group_free(group);
    }
    return 0;
}

/* ---- nothing left behind */

/* Files in /dev/shm that this process has mapped, for who looks when all ranks have ended: others come and go there. */
static void note_names(const char *into)
{
    FILE *maps = fopen("/proc/self/maps", "r"), *names = fopen(into, "a");
    char line[512];
    while (maps && names && fgets(line, sizeof line, maps)) {
        const char *name = strstr(line, "/dev/shm/");
        if (name)
            fprintf(names, "%.*s\n", (int)strcspn(name, " \n"), name);
    }
    if (names)
        fclose(names);
    if (maps)
        fclose(maps);
}

static int leaves_nothing(struct rank *rank)
{
    struct hd_comm_group *group;
    struct buffers b;
    struct job job = {.coll = HD_COLL_ALL_REDUCE,
                      .dtype = HD_F32,
                      .redop = HD_SUM,
                      .n = rank->size,
                      .me = rank->rank,
                      .count = 30000};
    if (buffers_open(rank, &b) || world_group(rank, "world", &group) || job_run(rank, group, &b, &job, 0))
        return 1;
    note_names(getenv("TEST_NAMES"));
    rank->ops->close(rank->comm);
    rank->comm = NULL;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && fgets(line, sizeof line, maps))
        EXPECT(!strstr(line, "memfd:heddle"), "still mapped: %s", line);
    if (maps)
        fclose(maps);
    for (int fd = 0; fd < 256; fd++) {
        char path[64], target[256] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) > 0)
            EXPECT(!strstr(target, "memfd:") && !strstr(target, "pidfd"), "descriptor %d is open: %s", fd, target);
    }
    return 0;
}

/* ---- the suite */

static double patience;
static int32_t soak_ranks = 4;
static int few;
static char one_buffer; /* 0; w: whole, s: sums */

#define TRANSPORT_TEST(name, body, ...)                                           \
    START_TEST(name)                                                              \
    {                                                                             \
        struct ranks_options o = {.size = _i, .patience = patience, __VA_ARGS__}; \
        ck_assert_msg(run_ranks(&o, body, NULL) == 0, "with %d ranks", _i);       \
    }                                                                             \
    END_TEST

TRANSPORT_TEST(collectives_are_exact, collectives, .settings = "small=1KiB small_crowded=1KiB stage=64KiB")
TRANSPORT_TEST(special_values, specials, .settings = "stage=64KiB")
TRANSPORT_TEST(large_ones_too, large, .settings = "stage=64KiB stream=256KiB quantum=64KiB halves=wide")
TRANSPORT_TEST(huge_ones_too, huge, .timeout = patience)
TRANSPORT_TEST(huge_in_one_buffer, huge_in_place, .timeout = patience)
TRANSPORT_TEST(huge_sums_in_one_buffer, huge_sums, .timeout = patience)
TRANSPORT_TEST(sums_in_pieces, huge_sums, .settings = "largest=1000003")
TRANSPORT_TEST(many_in_flight, in_flight, .settings = "stage=64KiB largest=3000")
TRANSPORT_TEST(one_is_far_ahead, far_ahead, .settings = NULL)
TRANSPORT_TEST(messages_arrive, messages, .settings = "stage=64KiB stream=512KiB largest=3000")
TRANSPORT_TEST(a_wait_moves_all, moves_while_it_waits, .settings = NULL)
TRANSPORT_TEST(groups_again, regroup, .settings = NULL)
TRANSPORT_TEST(random_operations, soak, .settings = "stage=64KiB largest=3000")

START_TEST(nothing_is_left)
{
    struct ranks_options o = {.size = transport_most == 1 ? 1 : 2};
    char names[] = "/tmp/heddle-names-XXXXXX", name[512];
    int fd = mkstemp(names), there = 0;
    ck_assert_int_ge(fd, 0);
    setenv("TEST_NAMES", names, 1); /* ranks may be started by a launcher */
    int bad = run_ranks(&o, leaves_nothing, NULL);
    FILE *f = fdopen(fd, "r");
    while (fgets(name, sizeof name, f)) {
        name[strcspn(name, "\n")] = '\0';
        there += access(name, F_OK) == 0;
    }
    fclose(f);
    unlink(names);
    ck_assert_int_eq(bad, 0);
    ck_assert_int_eq(there, 0);
}
END_TEST

static int brief; /* for a second provider of one transport: nothing that depends on the number of ranks alone */

/* Numbers of ranks from `from` to before `to`, as far as the transport can have them. */
void conf_with_ranks(const char *name, void (*test)(int i), int from, int to)
{
    conf_run(name, test, from, transport_most ? HD__MIN(to, transport_most + 1) : to, "ranks");
}

static void run_all(void)
{
    WITH_RANKS(collectives_are_exact, brief ? 2 : 1, brief ? 4 : 9);
    if (!transport_narrow)
        WITH_RANKS(special_values, 2, 4);
    WITH_RANKS(large_ones_too, 2, 5);
    WITH_RANKS(huge_ones_too, 2, 4);
    WITH_RANKS(sums_in_pieces, 2, 3);
    WITH_RANKS(many_in_flight, 3, 5);
    WITH_RANKS(one_is_far_ahead, 2, 5);
    WITH_RANKS(messages_arrive, 1, 5);
    WITH_RANKS(a_wait_moves_all, 3, 5);
    WITH_RANKS(groups_again, 2, 4);
    WITH_RANKS(random_operations, 4, brief ? 5 : 6);
    RUN_TEST(nothing_is_left);
}

/* For transports whose ranks take long to start: each check with the one or two numbers that it is about. */
static void run_few(void)
{
    WITH_RANKS(collectives_are_exact, 2, 4);
    WITH_RANKS(collectives_are_exact, 5, 6);
    if (!transport_narrow)
        WITH_RANKS(special_values, 3, 4);
    WITH_RANKS(large_ones_too, 3, 4);
    WITH_RANKS(huge_ones_too, 2, 3);
    WITH_RANKS(sums_in_pieces, 3, 4);
    WITH_RANKS(many_in_flight, 4, 5);
    WITH_RANKS(one_is_far_ahead, 2, 4);
    WITH_RANKS(messages_arrive, 3, 4);
    WITH_RANKS(groups_again, 3, 4);
    WITH_RANKS(random_operations, 4, 5);
    RUN_TEST(nothing_is_left);
}

static int in_any_order(void)
{
    static const char *const names[][2] = {{"ring", "halving"}, {"ring", "ring"}};
    static const uint32_t colls[] = {HD_COLL_ALL_REDUCE, HD_COLL_REDUCE_SCATTER};
    static struct hd__tuning tuning = {.any_order = 1};
    for (int k = 0; k < 4; k++) { /* rings for groups of three and four, others for larger ones */
        struct hd__tuning_rule rule = {colls[k & 1], k < 2 ? 4 : INT32_MAX, UINT64_MAX,
                                       hd__comm_algorithm_find(colls[k & 1], names[k & 1][k / 2]), 4096};
        hd__push(&tuning.rules, rule);
    }
    transport_tuning = &tuning;
    return transport_bare = 1;
}

static unsigned long long room_needed;
static int only; /* f: failures, r: results, 0: both */

static int has_room(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && !kib && fgets(line, sizeof line, f))
        sscanf(line, "MemAvailable: %llu kB", &kib);
    if (f)
        fclose(f);
    if (kib * 1024 < room_needed)
        printf("skipped: %llu bytes are left, %llu are wanted\n", kib * 1024, room_needed);
    return kib * 1024 >= room_needed;
}

/* What is run by hand may take hours: a minute for each thousand operations, or 64 MiB. */
int conf_comm_word(const char *word)
{
    unsigned long long n = 0;
    if (transport_word(word))
        return 1;
    if (strcmp(word, "brief") == 0)
        return brief = 1;
    if (strcmp(word, "few") == 0)
        return few = 1;
    if (strcmp(word, "failures") == 0 || strcmp(word, "results") == 0)
        return only = *word;
    if (strcmp(word, "any") == 0)
        return in_any_order();
    if (sscanf(word, "room=%llu", &room_needed) == 1)
        return 1;
    if (sscanf(word, "seed=%llu", &n) == 1)
        return soak_seed = n, 1;
    if (sscanf(word, "ranks=%llu", &n) == 1 && n >= 1 && n <= 16)
        return soak_ranks = (int32_t)n;
    if (sscanf(word, "soak=%llu", &n) == 1) {
        soak_operations = n;
        patience = 60 * (1 + (double)n / 1000);
    } else if (sscanf(word, "huge=%llu", &n) == 1 || sscanf(word, "whole=%llu", &n) == 1 ||
               sscanf(word, "sums=%llu", &n) == 1) {
        huge_bytes = n;
        one_buffer = *word == 'h' ? 0 : *word;
        patience = 60 * (1 + (double)n / (64 << 20));
    } else {
        return 0;
    }
    return 1;
}

void conf_comm(void)
{
    if (!has_room())
        exit(77);
    transport_bare |= !conf_target.component->ops.comm.collective;
    conf_seconds = patience > 0 ? patience : conf_seconds;
    if (patience == 0 && only != 'f')
        few ? run_few() : run_all();
    if (patience == 0 && only != 'r')
        conf_comm_failures(few);
    if (patience == 0)
        return;
    if (one_buffer == 'w')
        WITH_RANKS(huge_in_one_buffer, 2, 3);
    else if (one_buffer == 's')
        WITH_RANKS(huge_sums_in_one_buffer, 2, 3);
    else if (huge_bytes != 12 << 20)
        WITH_RANKS(huge_ones_too, 2, 3);
    else
        WITH_RANKS(random_operations, soak_ranks, soak_ranks + 1);
}
