/* The rendezvous: keys, barriers, refusals, deaths. */
#include <arpa/inet.h>
#include <check.h>
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/base.h"
#include "heddle/comm.h"
#include "runtime/rendezvous/auth.h"
#include "runtime/rendezvous/kv.h"
#include "runtime/rendezvous/liveness.h"
#include "runtime/rendezvous/server_internal.h"
#include "runtime/rendezvous/store.h"
#include "runtime/rendezvous/wire.h"
#include "tests/runtime/rendezvous/served.h"
#include "tests/runtime/rendezvous/sockets.h"
#include "tests/suite.h"

/* ---- keys */

static void open_two(struct hd_store *store[2])
{
    serve(2, 10);
    for (int r = 0; r < 2; r++)
        store[r] = join(r);
}

static void close_two(struct hd_store *store[2])
{
    hd__store_close(store[0]);
    hd__store_close(store[1]);
    hd__server_close(server);
}

/* By a launcher, which hears of its ranks' end before the server's thread has read their words. */
START_TEST(exit_codes_are_read_to_the_end)
{
    for (int i = 0; i < 50; i++) {
        struct hd_store *store[2];
        open_two(store);
        for (int r = 0; r < 2; r++) {
            hd__store_say_exit(store[r], 3 * r);
            hd__store_close(store[r]);
        }
        ck_assert_int_eq(hd__server_exit_code(server), 3);
        hd__server_close(server);
    }
}
END_TEST

START_TEST(put_and_get)
{
    struct hd_store *store[2];
    struct hd_error err = HD_ERROR_INIT;
    static uint8_t big[WIRE_VALUE_MAX + 1], got[WIRE_VALUE_MAX];
    size_t bytes = sizeof got;
    open_two(store);
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (uint8_t)(i * 7);
    ck_assert_int_eq(hd__store_put(store[0], "a/b", big, WIRE_VALUE_MAX, &err), HD_OK);
    ck_assert_int_eq(hd__store_get(store[1], "a/b", got, &bytes, hd__now() + 5, &err), HD_OK);
    ck_assert_uint_eq(bytes, WIRE_VALUE_MAX);
    ck_assert(memcmp(got, big, bytes) == 0);
    ck_assert_int_eq(hd__store_put(store[0], "a/b", "x", 1, &err), HD_OK); /* replaced */
    bytes = sizeof got;
    ck_assert_int_eq(hd__store_get(store[1], "a/b", got, &bytes, hd__now() + 5, &err), HD_OK);
    ck_assert(bytes == 1 && got[0] == 'x');
    ck_assert_int_eq(hd__store_put(store[1], "empty", NULL, 0, &err), HD_OK);
    ck_assert_int_eq(hd__store_get(store[0], "empty", got, &bytes, hd__now() + 5, &err), HD_OK);
    ck_assert_uint_eq(bytes, 0);
    bytes = 3;
    ck_assert_int_eq(hd__store_put(store[0], "four", "four", 4, &err), HD_OK);
    ck_assert_int_eq(hd__store_get(store[0], "four", got, &bytes, hd__now() + 5, &err), HD_E_INVALID);
    ck_assert_int_eq(hd__store_put(store[0], "big", big, sizeof big, &err), HD_E_INVALID);
    ck_assert_int_eq(hd__store_put(store[0], "", "x", 1, &err), HD_E_INVALID);
    bytes = sizeof got;
    ck_assert_int_eq(hd__store_get(store[0], "never", got, &bytes, hd__now() + 0.05, &err), HD_E_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(err.message, "never"));
    ck_assert_int_eq(hd__store_get(store[1], "a/b", got, &bytes, hd__now(), &err), HD_OK); /* as it is now */
    ck_assert_int_eq(hd__store_get(store[0], "never", got, &bytes, hd__now(), &err), HD_E_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(err.message, "never")); /* the server's answer */
    close_two(store);
}
END_TEST

/* Half a second is far from what a round trip takes here. 77: this machine lets nobody have clocks of his own. */
static int shifted_clock(const struct hd__store_options *o)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    double offset;
    FILE *shift = unshare(CLONE_NEWUSER | CLONE_NEWTIME) ? NULL : fopen("/proc/self/timens_offsets", "w");
    int writes = shift && fprintf(shift, "monotonic 5000 0\n") > 0, status;
    if (!shift || fclose(shift) || !writes)
        return 77;
    pid_t pid = fork(); /* the first process in the new clock */
    if (!pid)
        _exit(hd__store_connect(o, hd__now() + 10, &store, &err) || hd__store_clock_offset(store, &offset, &err) ||
              offset < -5000.5 || offset > -4999.5);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

START_TEST(clocks)
{
    struct hd_error err = HD_ERROR_INIT;
    double offset = 1;
    int status;
    serve(2, 20);
    struct hd__store_options o = client_options(1);
    struct hd_store *store = join(0);
    ck_assert_int_eq(hd__store_clock_offset(store, &offset, &err), HD_OK);
    ck_assert_double_eq(offset, 0);
    pid_t pid = fork();
    if (!pid)
        _exit(shifted_clock(&o));
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77));
    hd__store_close(store);
    hd__server_close(server);
}
END_TEST

/* Keys come and go; what is there is what should be. */
START_TEST(remove_keys)
{
    enum { KEYS = 300, STEPS = 6000 };
    struct hd__kv kv = {0};
    int there[KEYS] = {0};
    uint32_t state = 1;
    for (int i = 0; i < STEPS; i++) {
        int k = (int)((state = state * 1664525 + 1013904223) >> 8) % KEYS, n = 0;
        char key[16];
        snprintf(key, sizeof key, "key/%d", k);
        if (state & 1 << 30) {
            ck_assert_int_eq(hd__store_kv_put(&kv, key, strlen(key), &k, sizeof k), 0);
            there[k] = 1;
        } else {
            ck_assert_int_eq(hd__store_kv_remove(&kv, key, strlen(key)), there[k]);
            there[k] = 0;
        }
        for (int j = i % 7; j < KEYS; j += 7) {
            const struct hd__kv_item *item;
            snprintf(key, sizeof key, "key/%d", j);
            item = hd__store_kv_get(&kv, key, strlen(key));
            ck_assert(!item == !there[j] && (!item || !memcmp(item->value, &j, sizeof j)));
        }
        for (int j = 0; j < KEYS; j++)
            n += there[j];
        ck_assert_int_eq(n, (int)kv.count);
    }
    hd__store_kv_free(&kv);
    ck_assert_uint_eq(kv.bytes, 0);
}
END_TEST

START_TEST(removed)
{
    struct hd_store *store[2];
    struct hd_error err = HD_ERROR_INIT;
    char got[8];
    size_t bytes = sizeof got;
    open_two(store);
    ck_assert_int_eq(hd__store_put(store[0], "k", "value", 5, &err), HD_OK);
    ck_assert_int_eq(hd__store_get(store[1], "k", got, &bytes, hd__now() + 5, &err), HD_OK);
    ck_assert_int_eq(hd__store_remove(store[1], "k", &err), HD_OK);
    ck_assert_int_eq(hd__store_remove(store[1], "never", &err), HD_OK);
    ck_assert_int_eq(hd__store_get(store[0], "k", got, &bytes, hd__now() + 0.05, &err), HD_E_TIMEOUT);
    close_two(store);
}
END_TEST

static void *put_later(void *arg)
{
    struct hd_error err = HD_ERROR_INIT;
    usleep(30000);
    return (void *)(intptr_t)hd__store_put(arg, "later", "value", 5, &err);
}

START_TEST(get_waits)
{
    struct hd_store *store[2];
    struct hd_error err = HD_ERROR_INIT;
    pthread_t thread;
    void *code;
    char got[16];
    size_t bytes = sizeof got;
    open_two(store);
    pthread_create(&thread, NULL, put_later, store[1]);
    ck_assert_int_eq(hd__store_get(store[0], "later", got, &bytes, hd__now() + 20, &err), HD_OK);
    ck_assert(bytes == 5 && memcmp(got, "value", 5) == 0);
    pthread_join(thread, &code);
    ck_assert_ptr_null(code);
    close_two(store);
}
END_TEST

static void *three_barriers(void *arg)
{
    struct hd_error err = HD_ERROR_INIT;
    intptr_t code = HD_OK;
    for (int i = 0; i < 3 && code == HD_OK; i++)
        code = hd__store_barrier(arg, "again", hd__now() + 20, &err);
    return (void *)code;
}

START_TEST(barriers)
{
    struct hd_store *store[2];
    struct hd_error err = HD_ERROR_INIT;
    pthread_t thread;
    void *code;
    open_two(store);
    pthread_create(&thread, NULL, three_barriers, store[1]);
    ck_assert_ptr_null(three_barriers(store[0]));
    pthread_join(thread, &code);
    ck_assert_ptr_null(code);
    ck_assert_int_eq(hd__store_barrier(store[0], "alone", hd__now() + 0.05, &err), HD_E_TIMEOUT);
    ck_assert_msg(strstr(err.message, "rank 1") != NULL, "%s", err.message);
    close_two(store);
}
END_TEST

START_TEST(aborts)
{
    struct hd_store *store[2];
    struct hd_error err = HD_ERROR_INIT;
    char got[8];
    size_t bytes = sizeof got;
    int32_t rank = -1;
    open_two(store);
    ck_assert_int_eq(hd__store_liveness_check(hd__store_liveness(store[1]), &rank, &err), HD_OK);
    struct hd_error mine = HD_ERROR_INIT;
    hd_fail(&mine, HD_E_CANCELLED, "no more data");
    hd__store_end(store[0], &mine);
    ck_assert_int_eq(hd__store_get(store[1], "never", got, &bytes, hd__now() + 20, &err), HD_E_PEER);
    ck_assert_uint_ne(err.origin,
                      0); /* the identity of the failure: in what failed by it, and of the end on all ranks */
    ck_assert_int_eq(hd__origin_rank(err.origin), 0);
    ck_assert_int_eq(hd__store_liveness_check(hd__store_liveness(store[0]), NULL, &mine), HD_E_CANCELLED);
    ck_assert_uint_eq(mine.origin, err.origin);
    err.origin = 0;
    ck_assert_int_eq(hd__store_liveness_check(hd__store_liveness(store[1]), &rank, &err), HD_E_CANCELLED);
    ck_assert_int_eq(rank, 0);
    ck_assert_uint_eq(err.origin, mine.origin);
    ck_assert_msg(strstr(err.message, "no more data") != NULL, "%s", err.message);
    struct { /* of a plug-in that was built before there was an origin */
        char error[offsetof(struct hd_error, origin)];
        uint64_t beyond;
    } older = {.beyond = 7};
    struct hd_error *old = (struct hd_error *)(void *)&older;
    old->struct_size = sizeof older.error;
    hd__store_liveness_check(hd__store_liveness(store[1]), &rank, old);
    hd_error_copy(old, &mine);
    ck_assert_uint_eq(older.beyond, 7);
    close_two(store);
}
END_TEST

/* ---- refusals */

START_TEST(strangers)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL, *one;
    serve(2, 10);
    one = join(1);
    struct hd__store_options o = client_options(0);
    o.secret[15] ^= 1;
    ck_assert_int_eq(hd__store_connect(&o, hd__now() + 5, &store, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "secret") != NULL, "%s", err.message);
    o = client_options(0);
    ck_assert_int_eq(hd__store_connect(&o, hd__now() + 5, &store, &err), HD_OK);
    hd__store_close(store);
    hd__store_close(one);
    hd__server_close(server);
    ck_assert_int_eq(hd__store_connect(&o, hd__now() + 0.1, &store, &err), HD_E_TIMEOUT);
    ck_assert_msg(strstr(err.message, "s for rank 0 at 127.0.0.1:") && strstr(err.message, "(Connection refused)"),
                  "%s", err.message);
}
END_TEST

/* A rank that knows the secret, but is none that the job waits for: one that it does wait for will not come. */
START_TEST(mistaken)
{
    static const struct {
        int32_t rank, size;
        const char *message;
    } rows[] = {{1, 2, "rank 1 has connected before: two processes were started as this rank"},
                {2, 2, "rank 2 is not one of 0 to 1"},
                {0, 3, "the job has 2 ranks here and 3 there"}};
    for (int complete = 0; complete < 2; complete++) {
        struct hd_error err = HD_ERROR_INIT, end = HD_ERROR_INIT;
        struct hd_store *store[2] = {NULL}, *mistaken;
        serve(2, 10);
        store[1] = join(1);
        store[0] = complete ? join(0) : NULL;
        struct hd__store_options o = client_options(rows[_i].rank);
        o.size = rows[_i].size;
        ck_assert_int_eq(hd__store_connect(&o, hd__now() + 5, &mistaken, &err), HD_E_INVALID);
        ck_assert_msg(strstr(err.message, rows[_i].message) != NULL, "%s", err.message);
        if (!complete)
            store[0] = join(0); /* whoever comes later hears of it, too */
        for (int r = 0; r < 2; r++) {
            const struct hd__liveness *live = hd__store_liveness(store[r]);
            for (double until = hd__now() + 5; !complete && !hd__store_liveness_fault(live) && hd__now() < until;)
                usleep(1000);
            ck_assert_int_eq(hd__store_liveness_fault(live), complete ? HD_OK : HD_E_INVALID);
            hd__store_liveness_check(hd__store_liveness(store[r]), NULL, &end);
            ck_assert_msg(complete || strstr(end.message, rows[_i].message), "%s", end.message);
            if (complete) /* they go on */
                ck_assert_int_eq(hd__store_put(store[r], "key", "x", 1, &err), HD_OK);
        }
        close_two(store);
    }
}
END_TEST

START_TEST(addresses)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server_options o = {.address = "localhost", .size = 1, .rank = -1, .dead_after = 10};
    struct hd__server *first, *second;
    ck_assert_msg(hd__server_open(&o, &first, &err) == HD_OK, "%s", err.message);
    o.port = hd__server_port(first);
    ck_assert_int_eq(hd__server_open(&o, &second, &err), HD_E_IO); /* taken */
    ck_assert_msg(strstr(err.message, "localhost") != NULL, "%s", err.message);
    hd__server_close(first);
    o.address = "192.0.2.1"; /* nobody's (RFC 5737) */
    ck_assert_int_eq(hd__server_open(&o, &second, &err), HD_E_IO);
    ck_assert_msg(strstr(err.message, "MASTER_ADDR") != NULL, "%s", err.message);
}
END_TEST

START_TEST(secrets)
{
    uint8_t a[HD__SECRET_BYTES], b[HD__SECRET_BYTES];
    char text[HD__SECRET_TEXT];
    hd__store_secret_generate(a);
    hd__store_secret_format(a, text);
    ck_assert(hd__store_secret_parse(text, b) && memcmp(a, b, sizeof a) == 0);
    for (int i = 0; text[i]; i++)
        text[i] = (char)toupper((unsigned char)text[i]);
    ck_assert(hd__store_secret_parse(text, b) && memcmp(a, b, sizeof a) == 0);
    text[32] = 0;
    ck_assert(hd__store_secret_parse(text, b) && memcmp(a, b, 16) == 0 && b[16] == 0 && b[31] == 0);
    text[3] = 'g';
    ck_assert(!hd__store_secret_parse(text, b));
    ck_assert(!hd__store_secret_parse("00", b));
}
END_TEST

/* ---- death */

/* A rank of its own, forked while there is one thread only; it waits until the server is there. */
struct notice {
    _Atomic uint32_t port;
    struct hd__server_options options;
};
static struct notice *notice;
static struct hd__store_options child_options;

static pid_t child(void (*body)(void))
{
    notice = mmap(NULL, sizeof *notice, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(notice != MAP_FAILED);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (!atomic_load(&notice->port))
            usleep(200);
        child_options = (struct hd__store_options){.host = "127.0.0.1",
                                                   .port = (uint16_t)atomic_load(&notice->port),
                                                   .rank = 1,
                                                   .size = notice->options.size,
                                                   .dead_after = notice->options.dead_after};
        memcpy(child_options.secret, notice->options.secret, HD__SECRET_BYTES);
        body();
        _exit(0);
    }
    return pid;
}

static void tell_child(void)
{
    notice->options = server_options;
    atomic_store(&notice->port, hd__server_port(server));
}

static struct hd_store *join_as_child(void)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    if (hd__store_connect(&child_options, hd__now() + 10, &store, &err) != HD_OK) {
        fprintf(stderr, "%s\n", err.message);
        _exit(1);
    }
    return store;
}

static void join_and_sleep(void)
{
    struct hd_store *store = join_as_child();
    struct hd_error err = HD_ERROR_INIT;
    hd__store_put(store, "here", "", 0, &err);
    for (;;)
        pause();
}

static void join_and_leave(void)
{
    hd__store_close(join_as_child());
}

static void await_here(struct hd_store *store)
{
    struct hd_error err = HD_ERROR_INIT;
    size_t bytes = 0;
    ck_assert_int_eq(hd__store_get(store, "here", NULL, &bytes, hd__now() + 10, &err), HD_OK);
}

static void *call_roll(void *arg)
{
    static uint8_t present[3];
    struct hd_error err = HD_ERROR_INIT;
    int32_t rc = hd__store_roll_call(arg, "left", present, hd__now() + 30, &err);
    return rc ? NULL : present;
}

/* Rank 1 of three dies, and the others go on by themselves. _i: 1: it was stopped, and is not waited for */
START_TEST(those_that_are_left)
{
    struct hd_error err = HD_ERROR_INIT;
    uint8_t present[3] = {9, 9, 9};
    char got[8];
    size_t bytes = sizeof got;
    pthread_t thread;
    void *other;
    pid_t pid = child(join_and_sleep);
    serve(3, 30);
    struct hd_store *store[2] = {join(0), join(2)};
    tell_child();
    await_here(store[0]);
    ck_assert_int_eq(hd__store_roll_call(store[0], "early", present, hd__now() + 0.05, &err), HD_OK);
    ck_assert(present[0] == 1 && !present[1] && !present[2]); /* at the deadline: who had called */
    kill(pid, _i ? SIGSTOP : SIGKILL);
    if (_i)
        hd__store_abort(store[1], "no reason");
    ck_assert_int_eq(hd__store_get(store[0], "never", NULL, &bytes, hd__now() + 30, &err), HD_E_PEER);
    for (int r = 0; r < 2; r++)
        hd__store_outlive(store[r]);
    bytes = sizeof got;
    ck_assert_int_eq(hd__store_put(store[0], "after", "x", 1, &err), HD_OK);
    ck_assert_int_eq(hd__store_get(store[1], "after", got, &bytes, hd__now() + 30, &err), HD_OK);
    ck_assert_int_eq(hd__store_get(store[1], "never", got, &bytes, hd__now() + 0.05, &err), HD_E_TIMEOUT);
    pthread_create(&thread, NULL, call_roll, store[1]);
    usleep(20000); /* it waits for rank 0 */
    ck_assert_int_eq(hd__store_roll_call(store[0], "left", present, hd__now() + (_i ? 0.2 : 30), &err), HD_OK);
    pthread_join(thread, &other);
    ck_assert(present[0] == 1 && !present[1] && present[2] == 1);
    ck_assert(other && !memcmp(other, present, sizeof present));
    memset(present, 9, sizeof present);
    ck_assert_int_eq(hd__store_roll_call(store[1], "left", present, hd__now() + 30, &err), HD_OK); /* once more */
    ck_assert(present[0] == 1 && !present[1] && present[2] == 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    hd__store_close(store[0]);
    hd__server_close(server);
    ck_assert_int_eq(hd__store_put(store[1], "after", "x", 1, &err), HD_E_PEER); /* the server is gone */
    hd__store_close(store[1]);
}
END_TEST

/* _i: 0 killed, 1 stopped */
START_TEST(a_death_is_told)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t rank = -1, status;
    size_t bytes = 0;
    pid_t pid = child(join_and_sleep);
    serve(2, _i ? 0.5 : 30);
    struct hd_store *store = join(0);
    tell_child();
    await_here(store);
    kill(pid, _i ? SIGSTOP : SIGKILL);
    ck_assert_int_eq(hd__store_get(store, "never", NULL, &bytes, hd__now() + 30, &err), HD_E_PEER);
    ck_assert_int_eq(hd__store_liveness_check(hd__store_liveness(store), &rank, &err), HD_E_PEER);
    ck_assert_int_eq(rank, 1);
    ck_assert_msg(strstr(err.message, "rank 1 died") != NULL, "%s", err.message);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    hd__store_close(store);
    hd__server_close(server);
}
END_TEST

/* A watcher that slept too long does not know whether the others were silent meanwhile. */
START_TEST(a_late_watcher_blames_nobody)
{
    ck_assert_double_eq(hd_excuse(100, 101, 0.5, 101.25), 100); /* something came: it was in time */
    ck_assert_double_eq(hd_excuse(100, 101, 0.5, 101.5), 100);
    ck_assert_double_eq(hd_excuse(100, 101, 0.5, 103.5), 102);
    ck_assert_double_eq(hd_excuse(101, 101, 0, 103), 103); /* never later than now */
}
END_TEST

/* The end of a wait is put off by the time in which nobody looked, and by nothing else. */
START_TEST(a_deadline_of_who_was_stopped)
{
    struct hd_deadline end = {.at = 110, .looked = 100};
    ck_assert(!hd_deadline_passed(&end, 101));
    ck_assert(!hd_deadline_passed(&end, 202)); /* stopped for 101 s: 100 more than a look takes */
    for (double now = 202; now <= 210; now += 0.5)
        ck_assert(!hd_deadline_passed(&end, now));
    ck_assert(hd_deadline_passed(&end, 210.5));
    end = hd_deadline_from(0, 100);
    ck_assert(hd_deadline_passed(&end, 100)); /* one look only */
    end = hd_deadline_from(110, 122);         /* stopped before the wait began: the others get time to go on */
    ck_assert(!hd_deadline_passed(&end, 122.5));
    ck_assert(hd_deadline_passed(&end, 123.5));
    end = hd_deadline_from(110, 110.001); /* a look at what is there, as of who polls the store */
    ck_assert(hd_deadline_passed(&end, 110.002));
}
END_TEST

static void *let_the_server_go_on(void *arg)
{
    usleep(300000);
    kill(getppid(), SIGCONT);
    return arg;
}

/* As if both processes had been stopped, this one while its thread was not in poll(), and the server went on later. */
static double stop_outside_of_poll(void *user)
{
    atomic_int *times = user;
    pthread_t thread;
    if (atomic_fetch_add(times, 1) == 1) {
        kill(getppid(), SIGSTOP);
        usleep(2500000);
        pthread_create(&thread, NULL, let_the_server_go_on, NULL);
        pthread_detach(thread);
    }
    return 0;
}

static void join_and_be_stopped(void)
{
    struct hd_store *store = join_as_child();
    atomic_int times = 0;
    struct hd__store_status_provider status = {.user = &times, .wait_seconds = stop_outside_of_poll, .poll_after = 60};
    struct hd_error err = HD_ERROR_INIT;
    hd__store_set_status_provider(store, &status);
    while (atomic_load(&times) < 8 && !hd__store_liveness_check(hd__store_liveness(store), NULL, &err))
        usleep(1000);
    fprintf(stderr, "%s", err.message);
    _exit(err.message[0] != 0);
}

START_TEST(a_rank_stopped_outside_of_poll)
{
    int32_t status;
    pid_t pid = child(join_and_be_stopped);
    serve(2, 2);
    struct hd_store *store = join(0);
    tell_child();
    waitpid(pid, &status, 0);
    ck_assert_int_eq(status, 0);
    hd__store_close(store);
    hd__server_close(server);
}
END_TEST

static void *get_later(void *arg)
{
    struct hd_error err = HD_ERROR_INIT;
    size_t bytes = 0;
    return hd__store_get(arg, "later", NULL, &bytes, hd__now() + 3, &err) ? NULL : arg;
}

/* All of a job is stopped for longer than a request may wait: the request goes on. */
START_TEST(a_stop_is_no_waiting)
{
    struct hd_store *store[2];
    struct hd_error err = HD_ERROR_INIT;
    pthread_t thread;
    void *got;
    open_two(store);
    pthread_create(&thread, NULL, get_later, store[1]);
    usleep(20000);
    pid_t stopper = fork();
    if (!stopper) {
        struct timespec seconds = {.tv_sec = 6};
        kill(getppid(), SIGSTOP);
        nanosleep(&seconds, NULL);
        kill(getppid(), SIGCONT);
        _exit(0);
    }
    waitpid(stopper, NULL, 0);
    ck_assert_int_eq(hd__store_put(store[0], "later", NULL, 0, &err), HD_OK);
    pthread_join(thread, &got);
    ck_assert_ptr_nonnull(got);
    close_two(store);
}
END_TEST

/* A rank is bound to a core; the threads that keep it alive in the eyes of others are not. */
START_TEST(heartbeats_run_on_all_cores)
{
    cpu_set_t all, one, its;
    int threads = 0, core = 0;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    hd__store_keep_cores();
    while (!CPU_ISSET(core, &all))
        core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    serve(1, 10);
    struct hd_store *store = join(0);
    ck_assert_int_eq(hd__store_put(store, "k", "v", 1, NULL), HD_OK); /* by now both threads have begun */
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *e; (e = readdir(tasks));) {
        pid_t thread = (pid_t)atoi(e->d_name);
        if (thread <= 0 || thread == getpid())
            continue;
        ck_assert_int_eq(sched_getaffinity(thread, sizeof its, &its), 0);
        threads += CPU_EQUAL(&its, &all); /* a sanitizer has a thread of its own */
    }
    closedir(tasks);
    ck_assert_int_ge(threads, 2);
    ck_assert_int_eq(sched_getaffinity(0, sizeof its, &its), 0);
    ck_assert(CPU_EQUAL(&its, &one));
    hd__store_close(store);
    hd__server_close(server);
}
END_TEST

START_TEST(leaving_is_no_death)
{
    int status;
    struct hd_error err = HD_ERROR_INIT;
    pid_t pid = child(join_and_leave);
    serve(2, 10);
    struct hd_store *store = join(0);
    tell_child();
    waitpid(pid, &status, 0);
    ck_assert_int_eq(hd__store_put(store, "k", "v", 1, &err), HD_OK); /* the server has seen all before this */
    ck_assert_int_eq(hd__store_liveness_check(hd__store_liveness(store), NULL, &err), HD_OK);
    hd__store_close(store);
    hd__server_drain(server, hd__now() + 10);
    hd__server_close(server);
}
END_TEST

START_TEST(the_server_dies)
{
    struct hd_error err = HD_ERROR_INIT;
    size_t bytes = 0;
    serve(1, 30);
    struct hd_store *store = join(0);
    hd__server_close(server);
    ck_assert_int_eq(hd__store_get(store, "never", NULL, &bytes, hd__now() + 30, &err), HD_E_PEER);
    ck_assert_msg(strstr(err.message, "launcher") != NULL, "%s", err.message);
    hd__store_close(store);
}
END_TEST

/* Strangers that connect and say nothing, or a byte now and then, in greater number than there is room for: ranks
 * still get in, since the oldest stranger makes room, and one that was let go without a word comes again. */
static void *crowd(void *arg)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(hd__server_port(server)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static const char drop = WIRE_VERSION;
    int fd[64];
    for (int i = 0; i < 64; i++)
        fd[i] = -1;
    for (int i = 0; !atomic_load((_Atomic int *)arg); i++) {
        close(fd[i % 64]);
        fd[i % 64] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd[i % 64], (struct sockaddr *)&at, sizeof at) == 0 && i % 3 == 0)
            send(fd[i % 64], &drop, 1, MSG_NOSIGNAL);
        if (i % 64 == 63)
            usleep(2000);
    }
    for (int i = 0; i < 64; i++)
        close(fd[i]);
    return NULL;
}

/* Agents of machines come, go and come again, and nobody else's connection ends by it; over IPv6. */
START_TEST(members)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__store_options o;
    struct hd_store *store[2], *again = NULL;
    char value[8];
    size_t bytes = sizeof value;
    server_options = (struct hd__server_options){
        .address = "::1", .size = 2, .rank = 0, .dead_after = 10, .late_after = 0.01, .members = 1};
    hd__store_secret_generate(server_options.secret);
    ck_assert_msg(hd__server_open(&server_options, &server, &err) == HD_OK, "%s", err.message);
    for (int r = 0; r < 2; r++) {
        ck_assert_uint_eq(hd__server_visits(server, r), 0);
        o = client_options(r);
        o.host = "::1";
        o.members = 1;
        ck_assert_msg(!hd__store_connect(&o, hd__now() + 10, &store[r], &err), "%s", err.message);
        ck_assert_uint_eq(hd__server_visits(server, r), 1);
    }
    ck_assert_int_eq(hd__store_connect(&o, hd__now() + 0.2, &again, &err), HD_E_TIMEOUT);
    ck_assert_msg(strstr(err.message, "node 1 is here already: two agents were started as this node") != NULL, "%s",
                  err.message);
    hd__store_reset(store[1]);
    for (int waits = 0; waits < 5000 && hd__server_visits(server, 1) == 1; waits++)
        usleep(1000);
    ck_assert_uint_eq(hd__server_visits(server, 1), 2);
    hd__store_close(store[1]);
    ck_assert_int_eq(hd__store_put(store[0], "key", "new", 4, &err), HD_OK);
    ck_assert_msg(!hd__store_connect(&o, hd__now() + 10, &again, &err), "%s", err.message);
    ck_assert_uint_eq(hd__server_visits(server, 1), 3);
    ck_assert_int_eq(hd__store_get(again, "key", value, &bytes, hd__now() + 10, &err), HD_OK);
    ck_assert_str_eq(value, "new");
    hd__store_close(again);
    hd__store_close(store[0]);
    hd__server_close(server);
}
END_TEST

/* A server whose keys are memory of its process: put and get are answered from there, at once, errors too. */
static char served[64];

static int32_t put_served(void *user, const char *key, const void *value, size_t bytes)
{
    size_t at = strtoull(key, NULL, 10);
    if (user != served || at + bytes > sizeof served)
        return HD_E_NOMEM;
    memcpy(served + at, value, bytes);
    return HD_OK;
}

static int32_t get_served(void *user, const char *key, void *value, size_t *bytes)
{
    size_t at, count;
    if (user != served || sscanf(key, "%zu %zu", &at, &count) != 2 || count > *bytes || at + count > sizeof served)
        return HD_E_NOTFOUND;
    memcpy(value, served + at, count);
    *bytes = count;
    return HD_OK;
}

START_TEST(memory_served)
{
    struct hd_error err = HD_ERROR_INIT;
    const struct hd__server_memory memory = {put_served, get_served, served};
    char value[64] = "", address[64];
    size_t bytes = sizeof value;
    server_options = (struct hd__server_options){
        .address = "127.0.0.1", .size = 2, .rank = 1, .dead_after = 10, .members = 1, .memory = &memory};
    hd__store_secret_generate(server_options.secret);
    ck_assert_msg(hd__server_open(&server_options, &server, &err) == HD_OK, "%s", err.message);
    struct hd__store_options o = client_options(0);
    struct hd_store *store = NULL;
    o.members = 1;
    ck_assert_msg(!hd__store_connect(&o, hd__now() + 10, &store, &err), "%s", err.message);
    ck_assert_int_eq(hd__store_put(store, "8", "eight", 5, &err), HD_OK);
    ck_assert_int_eq(memcmp(served + 8, "eight", 5), 0);
    ck_assert_int_eq(hd__store_put(store, "60", "beyond", 6, &err), HD_E_NOMEM);
    ck_assert_int_eq(hd__store_get(store, "9 3", value, &bytes, hd__now() + 10, &err), HD_OK);
    ck_assert_uint_eq(bytes, 3);
    ck_assert_int_eq(memcmp(value, "igh", 3), 0);
    ck_assert_int_eq(hd__store_get(store, "never put", value, &bytes, hd__now() + 10, &err), HD_E_NOTFOUND);
    ck_assert_int_eq(hd__store_local_address(store, address, sizeof address, &err), HD_OK);
    ck_assert_str_eq(address, "127.0.0.1");
    hd__store_close(store);
    hd__server_close(server);
}
END_TEST

/* The server ends the job of its ranks. */
START_TEST(ended_by_the_server)
{
    struct hd_store *store[2];
    struct hd_error err = HD_ERROR_INIT;
    int32_t rank = -1, code;
    open_two(store);
    hd__server_end(server, 1, "node 1 is gone");
    hd__server_end(server, 0, "too late");
    for (int r = 0; r < 2; r++) {
        for (int waits = 0; waits < 5000 && !hd__store_liveness_check(hd__store_liveness(store[r]), NULL, NULL);
             waits++)
            usleep(1000);
        ck_assert_int_eq(hd__store_liveness_check(hd__store_liveness(store[r]), &rank, &err), HD_E_PEER);
        ck_assert_int_eq(rank, 1);
        ck_assert_msg(strstr(err.message, "node 1 is gone") != NULL, "%s", err.message);
    }
    ck_assert_int_eq(hd__server_ended_by(server, &code), 1);
    close_two(store);
}
END_TEST

static _Atomic int drained;

static void *drain(void *unused)
{
    hd__server_drain(server, hd__now());
    drained = 1;
    return unused;
}

/* The server stays as long as ranks said that they need it; the last word counts. */
START_TEST(busy_ranks)
{
    struct hd_store *store[2];
    struct hd_error err = HD_ERROR_INIT;
    pthread_t thread;
    open_two(store);
    ck_assert(hd__server_busy_until(server) <= 0);
    hd__store_busy(store[0], 1e9);
    ck_assert_int_eq(hd__store_put(store[0], "said", "x", 1, &err), HD_OK);
    ck_assert_double_gt(hd__server_busy_until(server), hd__now() + 9e5);
    pthread_create(&thread, NULL, drain, NULL);
    usleep(100000);
    ck_assert_int_eq(hd__store_put(store[1], "after", "x", 1, &err), HD_OK);
    ck_assert_int_eq(drained, 0);
    hd__store_busy(store[1], 0);
    pthread_join(thread, NULL);
    close_two(store);
}
END_TEST

/* A process with a server and a store forks while both are busy: its children use theirs. */
START_TEST(forks)
{
    struct hd_store *store[2];
    open_two(store);
    for (int i = 0; i < 50; i++) {
        struct hd_error err = HD_ERROR_INIT;
        int status;
        ck_assert_int_eq(hd__store_put(store[i % 2], "key", "value", 6, &err), HD_OK);
        pid_t pid = hd__store_fork();
        if (pid == 0) {
            uint8_t secret[HD__SECRET_BYTES];
            alarm(20);
            hd__store_secret_generate(secret); /* OpenSSL and the allocator */
            free(hd__alloc(100000));
            pid_t child = hd__store_fork();
            if (child == 0)
                _exit(0);
            _exit(waitpid(child, &status, 0) == child ? 0 : 1);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
    }
    close_two(store);
}
END_TEST

/* One round of the server lets in all that have come. */
START_TEST(all_at_the_door)
{
    enum { COMERS = 8 }; /* as many as listen_anywhere lets wait */
    struct hd__server s = {.options = {.size = 1024}};
    uint16_t port;
    int fd[COMERS], unsent = 1;
    s.listener = listen_anywhere(&port);
    fcntl(s.listener, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < COMERS; i++, unsent = 1) {
        fd[i] = connect_to(port);
        ck_assert_int_eq(send(fd[i], "x", 1, MSG_NOSIGNAL), 1);
        while (unsent) /* a byte that was received is one of a connection that waits to be accepted */
            ck_assert_int_eq(ioctl(fd[i], TIOCOUTQ, &unsent), 0);
    }
    hd__server_conn_accept(&s, hd__now());
    ck_assert_uint_eq(s.conns.count, COMERS);
    for (int i = 0; i < COMERS; i++) {
        hd__server_conn_free(&s, 0, "");
        close(fd[i]);
    }
    hd__free_array(&s.conns);
    close(s.listener);
}
END_TEST

START_TEST(a_crowd_at_the_door)
{
    _Atomic int enough = 0;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store[4];
    pthread_t thread;
    serve(4, 30);
    pthread_create(&thread, NULL, crowd, (void *)&enough);
    usleep(100000);
    for (int r = 0; r < 4; r++) {
        struct hd__store_options o = client_options(r);
        ck_assert_msg(!hd__store_connect(&o, hd__now() + 50, &store[r], &err), "%s", err.message);
    }
    ck_assert_msg(!hd__store_put(store[0], "k", "v", 1, &err), "%s", err.message);
    atomic_store(&enough, 1);
    pthread_join(thread, NULL);
    for (int r = 0; r < 4; r++)
        hd__store_close(store[r]);
    hd__server_close(server);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("store");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, exit_codes_are_read_to_the_end);
    tcase_add_test(tc, put_and_get);
    tcase_add_test(tc, removed);
    tcase_add_test(tc, clocks);
    tcase_add_test(tc, remove_keys);
    tcase_add_test(tc, get_waits);
    tcase_add_test(tc, barriers);
    tcase_add_test(tc, aborts);
    tcase_add_test(tc, strangers);
    tcase_add_loop_test(tc, mistaken, 0, 3);
    tcase_add_test(tc, addresses);
    tcase_add_test(tc, secrets);
    tcase_add_loop_test(tc, a_death_is_told, 0, 2);
    tcase_add_loop_test(tc, those_that_are_left, 0, 2);
    tcase_add_test(tc, a_late_watcher_blames_nobody);
    tcase_add_test(tc, a_deadline_of_who_was_stopped);
    tcase_add_test(tc, a_stop_is_no_waiting);
    tcase_add_test(tc, a_rank_stopped_outside_of_poll);
    tcase_add_test(tc, heartbeats_run_on_all_cores);
    tcase_add_test(tc, leaving_is_no_death);
    tcase_add_test(tc, members);
    tcase_add_test(tc, memory_served);
    tcase_add_test(tc, ended_by_the_server);
    tcase_add_test(tc, busy_ranks);
    tcase_add_test(tc, forks);
    tcase_add_test(tc, the_server_dies);
    tcase_add_test(tc, all_at_the_door);
    tcase_add_test(tc, a_crowd_at_the_door);
    return suite_run_case("store", tc);
}
