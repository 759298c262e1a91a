/* Ranks of one machine that know an id in common find each other; who does not belong is not let in. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/base.h"
#include "runtime/rendezvous/local_discovery.h"
#include "tests/suite.h"

enum { NOBODY = 65534 };
static char id[64];

static void set_up(void)
{
    snprintf(id, sizeof id, "test-meet-%d", (int)getpid());
}

static int32_t join(int32_t rank, int32_t size, double seconds, struct hd_store **store, struct hd_error *err)
{
    struct hd__store_options o = {
        .host = "127.0.0.1", .rank = rank, .size = size, .dead_after = 10, .discovery_id = id};
    return hd__store_connect(&o, hd__now() + seconds, store, err);
}

/* A rank in a process of its own, forked while there is one thread only; it comes when `gate` has a byte, -1: at
 * once. */
static pid_t start(int32_t rank, int32_t size, int gate)
{
    pid_t pid = fork();
    if (!pid) {
        struct hd_error err = HD_ERROR_INIT;
        struct hd_store *store;
        char byte;
        if (gate >= 0 && read(gate, &byte, 1) != 1)
            _exit(9);
        int32_t code = join(rank, size, 30, &store, &err);
        if (!code)
            code = hd__store_barrier(store, "all", hd__now() + 30, &err);
        if (!code)
            hd__store_close(store);
        _exit(code != HD_OK);
    }
    return pid;
}

static int32_t serve(int32_t size, struct hd__server **server, struct hd_error *err)
{
    struct hd__server_options o = {
        .address = "127.0.0.1", .size = size, .rank = 0, .dead_after = 10, .discovery_id = id};
    hd__store_secret_generate(o.secret);
    return hd__server_open(&o, server, err);
}

static void ended(pid_t pid, int code)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(WIFEXITED(status) ? WEXITSTATUS(status) : -1, code);
}

START_TEST(all_come)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server *server, *next;
    struct hd_store *store;
    int gate[2];
    ck_assert(!pipe(gate));
    pid_t early[2] = {start(2, 4, -1), start(1, 4, -1)}, late = start(3, 4, gate[0]);
    ck_assert_msg(serve(4, &server, &err) == HD_OK, "%s", err.message);
    ck_assert_int_eq(write(gate[1], "x", 1), 1);
    ck_assert_int_eq(serve(4, &next, &err), HD_E_IO); /* there is one */
    ck_assert_msg(strstr(err.message, "another rank 0 of it does") != NULL, "%s", err.message);
    ck_assert_msg(join(0, 4, 30, &store, &err) == HD_OK, "%s", err.message);
    ck_assert_msg(hd__store_barrier(store, "all", hd__now() + 30, &err) == HD_OK, "%s", err.message);
    ended(early[0], 0);
    ended(early[1], 0);
    ended(late, 0);
    ck_assert_int_eq(serve(4, &next, &err), HD_OK); /* all have come: the name is free again */
    hd__server_close(next);
    hd__store_close(store);
    hd__server_close(server);
}
END_TEST

/* A rank that there is not, and one that comes twice. */
START_TEST(who_does_not_belong)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server *server;
    struct hd_store *store, *second;
    ck_assert_msg(serve(3, &server, &err) == HD_OK, "%s", err.message);
    ck_assert_int_eq(join(7, 3, 5, &store, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "rank 7 is not one of 0 to 2") != NULL, "%s", err.message);
    ck_assert_int_eq(join(1, 3, 5, &store, &err), HD_OK);
    ck_assert_int_eq(join(1, 3, 5, &second, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "rank 1 has connected before") != NULL, "%s", err.message);
    hd__store_close(store);
    hd__server_close(server);
}
END_TEST

START_TEST(nobody)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store;
    ck_assert_int_eq(join(1, 2, 0.1, &store, &err), HD_E_TIMEOUT);
    ck_assert_msg(strstr(err.message, "s for rank 0 at the local socket of port or job test-meet") != NULL, "%s",
                  err.message);
}
END_TEST

/* The abstract name of the id, as the user who may join has it. */
static socklen_t name_of(struct sockaddr_un *name)
{
    int n = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "heddle/%u/%016llx", (unsigned)geteuid(),
                     (unsigned long long)hd__hash(id, strlen(id), 3));
    name->sun_family = AF_UNIX;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Another user, who knows uid and id: as a rank (_i = 0) it gets no answer, as the server (1) no belief. */
START_TEST(another_user)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server *server = NULL;
    struct hd_store *store;
    struct sockaddr_un name = {0};
    socklen_t bytes = name_of(&name);
    int ready[2], quit[2];
    char byte;
    pid_t pid;
    if (geteuid()) {
        printf("skipped: only root can be another user\n");
        return;
    }
    ck_assert(!pipe(ready) && !pipe(quit));
    if (!_i)
        ck_assert_msg(serve(2, &server, &err) == HD_OK, "%s", err.message);
    pid = fork();
    if (!pid) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        char got[64];
        if (setgid(NOBODY) || setuid(NOBODY))
            _exit(9);
        if (!_i)
            _exit(connect(fd, (struct sockaddr *)&name, bytes) ? 8 : recv(fd, got, sizeof got, 0) != 0);
        if (bind(fd, (struct sockaddr *)&name, bytes) || listen(fd, 1000) || write(ready[1], "x", 1) != 1)
            _exit(7);
        close(quit[1]);
        _exit(read(quit[0], got, 1) != 0);
    }
    close(quit[0]);
    if (_i) {
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        ck_assert_int_eq(join(1, 2, 0.2, &store, &err), HD_E_TIMEOUT);
        ck_assert_msg(strstr(err.message, "its name is taken by another user's process") != NULL, "%s", err.message);
        ck_assert_int_eq(serve(2, &server, &err), HD_E_IO);
        ck_assert_msg(strstr(err.message, "a stranger took its name") != NULL, "%s", err.message);
    }
    close(quit[1]);
    ended(pid, 0);
    if (!_i)
        hd__server_close(server);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("meet");
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_add_test(tc, all_come);
    tcase_add_test(tc, who_does_not_belong);
    tcase_add_test(tc, nobody);
    tcase_add_loop_test(tc, another_user, 0, 2);
    return suite_run_case("meet", tc);
}
