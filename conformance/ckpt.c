/* Promises of every store of checkpoints: whole or not at all, whatever ends a save. A save is ended at each of its
 * system calls in turn, by SIGKILL: what the kernel has taken stays, so no power failure is simulated. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/check.h"
#include "core/plugin/plugin.h"
#include "runtime/rendezvous/host_store.h"

static struct hd_error err = HD_ERROR_INIT;
static const struct hd_ckpt_ops *ops;
static char location[256]; /* does not exist at first */

#define OK(call)                                                                      \
    do {                                                                              \
        int32_t ok_rc = (call);                                                       \
        ck_assert_msg(ok_rc == HD_OK, "%s: error %d: %s", #call, ok_rc, err.message); \
    } while (0)

static struct hd_ckpt *open_store(void)
{
    struct hd_ckpt *store = NULL;
    void *settings = conf_settings(&err);
    ops = &conf_target.component->ops.ckpt;
    const char *folder = conf_folder();
    if (conf_target.at)
        snprintf(location, sizeof location, "%.150s/%.60s/store", conf_target.at, strrchr(folder, '/') + 1);
    else
        snprintf(location, sizeof location, "%s/new/store", folder);
    OK(ops->open(hd__store_host_table(), settings, location, &store, &err));
    return store;
}

/* ---- a checkpoint: two files, of which two ranks write pieces in turn; every byte follows from the version */

enum { FILES = 2, RANKS = 2, BLOCK = 4096 };
static const char *const file_names[FILES] = {"model-00001.safetensors", "index.json"};
/* Blocks for the first file, so that a store which aligns has something to do; short and odd for the other. */
static const uint64_t pieces[FILES][5] = {{0, 3 * BLOCK, 16 * BLOCK, 64 * BLOCK, 64 * BLOCK + 17}, {0, 1, 7, 500, 501}};

static uint64_t size_of(int file, int version)
{
    return pieces[file][4] + (version % 2 ? 0 : 100);
}

static uint8_t byte_of(int version, int file, uint64_t at)
{
    uint64_t x =
        (at + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)(version * 31 + file) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint8_t)(x >> 40);
}

static uint8_t *bytes_of(int version, int file, uint64_t first, uint64_t count)
{
    uint8_t *at = aligned_alloc(BLOCK, (count / BLOCK + 1) * BLOCK);
    for (uint64_t i = 0; i < count; i++)
        at[i] = byte_of(version, file, first + i);
    return at;
}

static int32_t write_pieces(struct hd_ckpt_tx *tx, int rank, int version, int backwards)
{
    int32_t rc = HD_OK;
    for (int k = 0; k < FILES * 4 && !rc; k++) {
        int piece = backwards ? FILES * 4 - 1 - k : k, file = piece / 4, n = piece % 4;
        uint64_t first = pieces[file][n], end = n == 3 ? size_of(file, version) : pieces[file][n + 1];
        if (piece % RANKS != rank)
            continue;
        uint8_t *data = bytes_of(version, file, first, end - first);
        rc = ops->write(tx, file_names[file], first, data, end - first, &err);
        free(data);
    }
    return rc;
}

/* By two ranks, each with a store of its own. */
static void save(struct hd_ckpt *stores[RANKS], const char *name, int version)
{
    struct hd_ckpt_tx *tx[RANKS];
    for (int r = 0; r < RANKS; r++)
        OK(ops->begin(stores[r], name, r == 0, &tx[r], &err));
    for (int r = RANKS; r-- > 0;)
        OK(write_pieces(tx[r], r, version, r));
    for (int r = 0; r < RANKS; r++)
        OK(ops->flush(tx[r], &err));
    for (int r = RANKS; r-- > 0;)
        OK(ops->commit(tx[r], &err));
}

struct names {
    char at[16][64];
    int n;
};

static void note_name(void *user, const char *name)
{
    struct names *names = user;
    ck_assert_msg(names->n < 16, "list names more than was ever saved");
    snprintf(names->at[names->n++], 64, "%s", name);
}

static struct names list(struct hd_ckpt *store)
{
    struct names names = {0};
    OK(ops->list(store, note_name, &names, &err));
    return names;
}

static int is_listed(struct hd_ckpt *store, const char *name)
{
    struct names names = list(store);
    int found = 0;
    for (int i = 0; i < names.n; i++)
        found += !strcmp(names.at[i], name);
    ck_assert_msg(found < 2, "list names %s twice", name);
    return found;
}

static void expect_file(struct hd_ckpt *store, const char *name, int file, int version)
{
    uint64_t size = 0, want = size_of(file, version);
    OK(ops->size(store, name, file_names[file], &size, &err));
    ck_assert_msg(size == want, "%s of %s has %llu bytes, %llu were saved", file_names[file], name,
                  (unsigned long long)size, (unsigned long long)want);
    uint8_t *data = aligned_alloc(BLOCK, (size / BLOCK + 1) * BLOCK);
    OK(ops->read(store, name, file_names[file], 0, data, size, &err));
    for (uint64_t i = 0; i < size; i++)
        ck_assert_msg(data[i] == byte_of(version, file, i), "%s of %s: byte %llu is not what was saved",
                      file_names[file], name, (unsigned long long)i);
    free(data);
}

static void expect_whole(struct hd_ckpt *store, const char *name, int version)
{
    ck_assert_msg(is_listed(store, name), "%s is complete, and list does not name it", name);
    for (int file = 0; file < FILES; file++)
        expect_file(store, name, file, version);
}

static void expect_none(struct hd_ckpt *store, const char *name)
{
    uint64_t size;
    uint8_t byte;
    ck_assert_msg(!is_listed(store, name), "list names %s, which is not complete", name);
    ck_assert_msg(ops->size(store, name, file_names[0], &size, &err) == HD_E_NOTFOUND,
                  "size of a file of %s, which is not complete, is not HD_E_NOTFOUND", name);
    ck_assert_msg(ops->read(store, name, file_names[0], 0, &byte, 1, &err) != HD_OK,
                  "%s is not complete, and can be read", name);
}

static void open_both(struct hd_ckpt *stores[RANKS])
{
    for (int r = 0; r < RANKS; r++)
        stores[r] = open_store();
}

static void close_both(struct hd_ckpt *stores[RANKS])
{
    for (int r = 0; r < RANKS; r++)
        ops->close(stores[r]);
}

/* ---- checks */

START_TEST(an_empty_store_has_nothing)
{
    struct hd_ckpt *store = open_store();
    expect_none(store, "step-00000001");
    ck_assert_msg(list(store).n == 0, "list names something in a new place");
    ops->close(store);
    ops->close(NULL);
}
END_TEST

START_TEST(ranges_of_several_ranks_are_one_file)
{
    struct hd_ckpt *stores[RANKS];
    open_both(stores);
    save(stores, "step-00000001", 1);
    for (int r = 0; r < RANKS; r++)
        expect_whole(stores[r], "step-00000001", 1);
    static const uint64_t from[] = {0, 1, 511, BLOCK - 1, BLOCK, 2 * BLOCK + 13, 64 * BLOCK};
    for (size_t a = 0; a < HD__COUNT(from); a++)
        for (uint64_t count = 0; from[a] + count <= size_of(0, 1); count = count * 7 + 1) {
            uint8_t *got = aligned_alloc(BLOCK, (count / BLOCK + 1) * BLOCK + BLOCK);
            got[count] = 0xa5;
            OK(ops->read(stores[1], "step-00000001", file_names[0], from[a], got, count, &err));
            for (uint64_t i = 0; i < count; i++)
                ck_assert_msg(got[i] == byte_of(1, 0, from[a] + i), "%llu bytes at %llu: byte %llu is another's",
                              (unsigned long long)count, (unsigned long long)from[a], (unsigned long long)i);
            ck_assert_msg(got[count] == 0xa5, "read wrote beyond what was asked for");
            free(got);
        }
    close_both(stores);
}
END_TEST

START_TEST(what_is_not_there_is_an_error)
{
    struct hd_ckpt *stores[RANKS];
    uint64_t size = size_of(0, 1);
    uint8_t *data = malloc(size + 2);
    open_both(stores);
    save(stores, "step-00000001", 1);
    ck_assert_msg(ops->read(stores[0], "step-00000001", file_names[0], size, data, 1, &err) != HD_OK,
                  "a byte behind the end of a file was read");
    ck_assert_msg(ops->read(stores[0], "step-00000001", file_names[0], 1, data, size, &err) != HD_OK,
                  "more than a file has was read");
    ck_assert_msg(ops->size(stores[0], "step-00000001", "other.safetensors", &size, &err) == HD_E_NOTFOUND,
                  "size of a file that was never written is not HD_E_NOTFOUND");
    ck_assert_msg(ops->read(stores[0], "step-00000001", "other.safetensors", 0, data, 1, &err) != HD_OK,
                  "a file that was never written can be read");
    ck_assert_msg(ops->remove(stores[0], "step-00000002", &err) != HD_OK, "what is not there can be removed");
    expect_none(stores[0], "step-00000002");
    expect_whole(stores[0], "step-00000001", 1);
    free(data);
    close_both(stores);
}
END_TEST

START_TEST(read_back_before_commit)
{
    struct hd_ckpt *stores[RANKS];
    struct hd_ckpt_tx *tx[RANKS];
    open_both(stores);
    for (int r = 0; r < RANKS; r++)
        OK(ops->begin(stores[r], "step-00000001", r == 0, &tx[r], &err));
    for (int r = 0; r < RANKS; r++) {
        OK(write_pieces(tx[r], r, 1, 0));
        uint8_t *own = bytes_of(1, 0, pieces[0][r], 100), got[100];
        OK(ops->read_back(tx[r], file_names[0], pieces[0][r], got, sizeof got, &err)); /* its own, at once */
        ck_assert_msg(!memcmp(own, got, sizeof got), "a rank reads back something else than it wrote");
        free(own);
    }
    expect_none(stores[0], "step-00000001");
    for (int r = 0; r < RANKS; r++)
        OK(ops->flush(tx[r], &err));
    for (int r = 0; r < RANKS; r++) /* that of others, after their flush: across the border of two ranks' pieces */
        for (int piece = 1; piece < 4; piece++) {
            uint64_t first = pieces[0][piece] - 10;
            uint8_t *want = bytes_of(1, 0, first, 20), got[20];
            uint64_t count = HD__MIN(UINT64_C(20), size_of(0, 1) - first);
            OK(ops->read_back(tx[r], file_names[0], first, got, count, &err));
            ck_assert_msg(!memcmp(want, got, count), "a rank reads back something else than the others wrote");
            free(want);
        }
    expect_none(stores[1], "step-00000001");
    for (int r = RANKS; r-- > 0;) {
        OK(ops->commit(tx[r], &err));
        if (r)
            expect_none(stores[0], "step-00000001");
    }
    expect_whole(stores[1], "step-00000001", 1);
    close_both(stores);
}
END_TEST

START_TEST(list_is_oldest_first)
{
    static const char *const names[] = {"step-00000009", "step-00000010", "step-00000100", "step-00001000"};
    struct hd_ckpt *stores[RANKS];
    open_both(stores);
    for (int i = 0; i < 4; i++)
        save(stores, names[i], i);
    close_both(stores);
    open_both(stores); /* a later run */
    struct names got = list(stores[0]);
    ck_assert_int_eq(got.n, 4);
    for (int i = 0; i < 4; i++)
        ck_assert_msg(!strcmp(got.at[i], names[i]), "list names %s in place %d, %s was saved then", got.at[i], i,
                      names[i]);
    OK(ops->remove(stores[0], names[1], &err));
    expect_none(stores[1], names[1]);
    ck_assert_int_eq(list(stores[1]).n, 3);
    for (int i = 0; i < 4; i++)
        if (i != 1)
            expect_whole(stores[1], names[i], i);
    close_both(stores);
}
END_TEST

START_TEST(cancel_leaves_nothing)
{
    struct hd_ckpt *stores[RANKS];
    struct hd_ckpt_tx *tx[RANKS];
    open_both(stores);
    save(stores, "step-00000001", 1);
    for (int flushed = 0; flushed < 2; flushed++) {
        for (int r = 0; r < RANKS; r++)
            OK(ops->begin(stores[r], "step-00000002", r == 0, &tx[r], &err));
        for (int r = 0; r < RANKS; r++)
            OK(write_pieces(tx[r], r, 4, 0));
        for (int r = 0; r < RANKS && flushed; r++)
            OK(ops->flush(tx[r], &err));
        for (int r = RANKS; r-- > 0;)
            ops->cancel(tx[r]);
        expect_none(stores[0], "step-00000002");
    }
    save(stores, "step-00000002", 3); /* shorter: nothing of the first attempt may stand behind its end */
    expect_whole(stores[0], "step-00000002", 3);
    expect_whole(stores[0], "step-00000001", 1);
    close_both(stores);
}
END_TEST

START_TEST(a_name_that_is_saved_again_is_replaced)
{
    struct hd_ckpt *stores[RANKS];
    open_both(stores);
    save(stores, "step-00000001", 2);
    save(stores, "step-00000001", 3);
    expect_whole(stores[0], "step-00000001", 3);
    ck_assert_int_eq(list(stores[0]).n, 1);
    close_both(stores);
}
END_TEST

/* ---- a process that ends in the middle */

/* Versions that `name` may have then: `before` (0: none) or `after` (0: none), and the checkpoint before it, which
 * nothing has touched, is whole; the next save of this name succeeds. */
static int expect_old_or_new(const char *name, int before, int after, const char *when)
{
    struct hd_ckpt *stores[RANKS];
    uint64_t size = 0;
    int version = 0;
    open_both(stores);
    fprintf(stderr, "a save that ended %s: ", when); /* shown where what follows fails */
    expect_whole(stores[0], "step-00000001", 1);
    if (is_listed(stores[0], name)) {
        OK(ops->size(stores[0], name, file_names[0], &size, &err));
        version = after && size == size_of(0, after) ? after : before;
        ck_assert_msg(version, "list names %s, and its first file has %llu bytes", name, (unsigned long long)size);
        expect_whole(stores[0], name, version);
    } else {
        ck_assert_msg(!before || !after, "%s is gone: neither the old nor the new one is there", name);
        expect_none(stores[0], name);
    }
    save(stores, name, 5);
    expect_whole(stores[1], name, 5);
    OK(ops->remove(stores[0], name, &err));
    close_both(stores);
    return version;
}

static void saver(int version, int stop)
{
    struct hd_ckpt *stores[RANKS];
    struct hd_ckpt_tx *tx[RANKS];
    open_both(stores);
    for (int r = 0; r < RANKS; r++) {
        OK(ops->begin(stores[r], "step-00000002", r == 0, &tx[r], &err));
        if (stop == 0)
            raise(SIGKILL);
    }
    for (int r = 0; r < RANKS; r++) {
        OK(write_pieces(tx[r], r, version, 0));
        if (stop == 1)
            raise(SIGKILL);
    }
    for (int r = 0; r < RANKS; r++) {
        OK(ops->flush(tx[r], &err));
        if (stop == 2 + r)
            raise(SIGKILL);
    }
    if (stop == 4)
        raise(SIGSTOP); /* who traces it kills it at a later call */
    for (int r = RANKS; r-- > 0;)
        OK(ops->commit(tx[r], &err));
    _exit(0);
}

static void remover(int version, int stop)
{
    (void)version, (void)stop;
    struct hd_ckpt *store = open_store();
    raise(SIGSTOP);
    OK(ops->remove(store, "step-00000002", &err));
    _exit(0);
}

START_TEST(killed_between_calls)
{
    static const char *const when[] = {"after begin", "after a rank's writes", "after a flush", "after the last flush"};
    struct hd_ckpt *stores[RANKS];
    int status;
    open_both(stores);
    save(stores, "step-00000001", 1);
    if (_i > 3)
        save(stores, "step-00000002", 2);
    close_both(stores);
    pid_t pid = fork();
    if (!pid)
        saver(3, _i % 4);
    ck_assert(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ck_assert_int_eq(expect_old_or_new("step-00000002", _i > 3 ? 2 : 0, _i > 3 ? 2 : 0, when[_i % 4]), _i > 3 ? 2 : 0);
}
END_TEST

/* Runs `body` and kills it at its n-th system call from where it stopped itself. 1: it came to its end before. */
static int kill_at_call(void (*body)(int version, int stop), int version, int n)
{
    int status;
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ck_assert_msg(!ptrace(PTRACE_TRACEME, 0, NULL, NULL), "ptrace is not permitted here: allow it (in a container, "
                                                              "--cap-add SYS_PTRACE)");
        body(version, 4);
    }
    for (int calls = -1;;) { /* two stops a call: before it and after it */
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        if (!WIFSTOPPED(status)) {
            ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "the process that saves ends by itself: %x",
                          status);
            return 1;
        }
        if (WSTOPSIG(status) == SIGSTOP && calls < 0)
            calls = 0;
        else if (WSTOPSIG(status) == SIGTRAP)
            calls++;
        if (calls >= n) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return 0;
        }
        ptrace(calls < 0 ? PTRACE_CONT : PTRACE_SYSCALL, pid, NULL,
               (void *)(intptr_t)(WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status)));
    }
}

/* A sanitizer maps memory now and then: the n-th call is not the same one in every run. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CALLS_ARE_ALIKE = 0 };
#else
enum { CALLS_ARE_ALIKE = 1 };
#endif

/* 0: a new name, 1: one that is replaced, 2: a remove. */
START_TEST(killed_at_each_system_call)
{
    static const char *const what[] = {"commit", "a commit that replaces", "remove"};
    int before = _i ? 2 : 0, after = _i == 2 ? 0 : 3, seen = 0, ended = 0, n = 0;
    char when[64];
    for (; !ended; n++) {
        struct hd_ckpt *stores[RANKS];
        open_both(stores);
        if (!is_listed(stores[0], "step-00000001"))
            save(stores, "step-00000001", 1);
        if (_i)
            save(stores, "step-00000002", 2);
        close_both(stores);
        ended = kill_at_call(_i == 2 ? remover : saver, 3, n);
        snprintf(when, sizeof when, "in %s, at stop %d of its system calls", what[_i], n);
        int version = _i == 2 ? expect_old_or_new("step-00000002", 2, 0, when)
                              : expect_old_or_new("step-00000002", before, after, when);
        ck_assert_msg(!ended || version == after, "%s came to its end, and version %d is there", what[_i], version);
        ck_assert_msg(!seen || version == after || !CALLS_ARE_ALIKE,
                      "the new state was there, and then the old one again");
        seen = version == after && (after || _i == 2);
        ck_assert_msg(n < 5000, "more system calls than can be tried");
    }
    ck_assert_msg(n > 1, "%s made no system call after flush", what[_i]);
}
END_TEST

/* ---- storage that fails */

/* Full in the middle of a large write, or of the last, short one. */
START_TEST(a_full_disk_is_an_error)
{
    const struct rlimit limit = {_i ? 64 * BLOCK + 8 : 20 * BLOCK, RLIM_INFINITY};
    struct hd_ckpt *stores[RANKS];
    struct hd_ckpt_tx *tx = NULL;
    open_both(stores);
    save(stores, "step-00000001", 1);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    int32_t rc = ops->begin(stores[0], "step-00000002", 1, &tx, &err);
    for (int r = 0; r < RANKS && !rc; r++)
        rc = write_pieces(tx, r, 3, 0);
    rc = rc ? rc : ops->flush(tx, &err);
    if (!rc) { /* it keeps no large file: then it must be whole */
        OK(ops->commit(tx, &err));
        expect_whole(stores[0], "step-00000002", 3);
    } else {
        ck_assert_msg(*err.message, "the error has no message");
        if (tx)
            ops->cancel(tx);
        expect_none(stores[0], "step-00000002");
    }
    expect_whole(stores[0], "step-00000001", 1);
    close_both(stores);
}
END_TEST

static void halve(const char *folder)
{
    char command[512];
    snprintf(
        command, sizeof command,
        "find '%s' -type f -size +0 -exec sh -c 'for f; do truncate -s $(($(stat -c %%s \"$f\") / 2)) \"$f\"; done' _ "
        "{} +",
        folder);
    ck_assert_int_eq(system(command), 0);
}

/* Every file below the location is cut in half: reads fail or are right, and nothing else happens. */
START_TEST(damaged_objects_are_errors)
{
    struct hd_ckpt *stores[RANKS];
    struct names names = {0};
    uint64_t size = size_of(0, 1);
    uint8_t *data = malloc(size);
    open_both(stores);
    save(stores, "step-00000001", 1);
    close_both(stores);
    if (!access(location, F_OK))
        halve(location);
    open_both(stores);
    int32_t rc = ops->list(stores[0], note_name, &names, &err);
    rc = rc ? rc : ops->read(stores[0], "step-00000001", file_names[0], 0, data, size, &err);
    for (uint64_t i = 0; i < size && !rc; i++)
        ck_assert_msg(data[i] == byte_of(1, 0, i), "a file that was cut short was read as if it was whole");
    free(data);
    close_both(stores);
}
END_TEST

struct thread {
    struct hd_ckpt_tx *tx;
    int rank;
    int32_t rc;
};

static void *write_in_thread(void *arg)
{
    struct thread *t = arg;
    struct hd_error own = HD_ERROR_INIT;
    for (int piece = t->rank; piece < 64 && !t->rc; piece += 4) {
        uint8_t *data = bytes_of(1, 0, (uint64_t)piece * BLOCK, BLOCK);
        t->rc = ops->write(t->tx, file_names[0], (uint64_t)piece * BLOCK, data, BLOCK, &own);
        free(data);
    }
    return NULL;
}

START_TEST(threads_write_at_once)
{
    struct hd_ckpt *store = open_store();
    struct thread threads[4];
    pthread_t id[4];
    uint8_t *got = malloc(64 * BLOCK);
    struct hd_ckpt_tx *tx;
    OK(ops->begin(store, "step-00000001", 1, &tx, &err));
    for (int i = 0; i < 4; i++) {
        threads[i] = (struct thread){tx, i, 0};
        ck_assert(!pthread_create(&id[i], NULL, write_in_thread, &threads[i]));
    }
    for (int i = 0; i < 4; i++)
        ck_assert(!pthread_join(id[i], NULL) && !threads[i].rc);
    OK(ops->flush(tx, &err));
    OK(ops->commit(tx, &err));
    OK(ops->read(store, "step-00000001", file_names[0], 0, got, 64 * BLOCK, &err));
    for (uint64_t i = 0; i < 64 * BLOCK; i++)
        ck_assert_msg(got[i] == byte_of(1, 0, i), "byte %llu is not what its thread wrote", (unsigned long long)i);
    ops->close(store);
    free(got);
}
END_TEST

START_TEST(move_takes_a_checkpoint_elsewhere)
{
    struct hd_ckpt *stores[RANKS], *there = NULL;
    char other[300];
    open_both(stores);
    save(stores, "step-00000001", 1);
    snprintf(other, sizeof other, "%s-aside", location);
    OK(ops->move(stores[0], "step-00000001", other, &err));
    expect_none(stores[1], "step-00000001");
    OK(ops->open(hd__store_host_table(), conf_settings(&err), other, &there, &err));
    expect_whole(there, "step-00000001", 1);
    ops->close(there);
    close_both(stores);
}
END_TEST

int conf_ckpt_word(const char *word)
{
    if (!strncmp(word, "at=", 3) && word[3])
        return (conf_target.at = word + 3) != NULL;
    return !strncmp(word, "set:", 4) && strchr(word, '=');
}

void conf_ckpt(void)
{
    RUN_TEST(an_empty_store_has_nothing);
    RUN_TEST(ranges_of_several_ranks_are_one_file);
    RUN_TEST(what_is_not_there_is_an_error);
    RUN_TEST(read_back_before_commit);
    RUN_TEST(list_is_oldest_first);
    RUN_TEST(cancel_leaves_nothing);
    RUN_TEST(a_name_that_is_saved_again_is_replaced);
    RUN_LOOP(killed_between_calls, 0, 8, NULL);
    if (!conf_target.at) /* a server goes on with a request whose process has ended */
        RUN_LOOP(killed_at_each_system_call, 0, 3, NULL);
    RUN_LOOP(a_full_disk_is_an_error, 0, 2, NULL);
    RUN_TEST(damaged_objects_are_errors);
    RUN_TEST(threads_write_at_once);
    if (conf_target.component->ops.ckpt.move)
        RUN_TEST(move_takes_a_checkpoint_elsewhere);
}
