/* Ranks of one machine that know an id in common find each other; who does not belong is not let in. */
#include <check.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/base.h"
#include "runtime/rendezvous/local_discovery.h"
#include "tests/suite.h"

static char id[64];

static void set_up(void)
{
    snprintf(id, sizeof id, "test-meet-%d", (int)getpid());
}

/* A rank in a process of its own; its exit code says whether it got what it should. */
static pid_t join(int32_t rank, double patience)
{
    pid_t pid = fork();
    if (!pid) {
        struct hd_error err = HD_ERROR_INIT;
        uint8_t secret[HD__SECRET_BYTES];
        uint16_t port = 0;
        int32_t code = hd__store_discovery_find(id, rank, &port, secret, hd__now() + patience, &err);
        _exit(code == HD_E_TIMEOUT ? 2 : code || port != 4711 || secret[0] != 1 || secret[15] != 16);
    }
    return pid;
}

static int32_t host(int32_t size, double patience, struct hd_error *err)
{
    uint8_t secret[HD__SECRET_BYTES];
    for (uint8_t i = 0; i < sizeof secret; i++)
        secret[i] = (uint8_t)(i + 1);
    return hd__store_discovery_serve(id, size, 4711, secret, hd__now() + patience, err);
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
    pid_t early[2] = {join(2, 30), join(1, 30)}, late;
    late = join(3, 30);
    ck_assert_msg(host(4, 30, &err) == HD_OK, "%s", err.message);
    ended(early[0], 0);
    ended(early[1], 0);
    ended(late, 0);
    ck_assert_int_eq(host(1, 30, &err), HD_OK); /* alone: nobody to wait for, and the name is free again */
}
END_TEST

/* Ranks that there are not, and one that came twice, do not count. */
START_TEST(who_does_not_belong)
{
    struct hd_error err = HD_ERROR_INIT;
    pid_t stranger = join(7, 1.5), twice[2] = {join(1, 1.5), join(1, 1.5)};
    ck_assert_int_eq(host(3, 1, &err), HD_E_TIMEOUT);
    ck_assert_msg(strstr(err.message, "rank 2 did not join the rendezvous of job test-meet") != NULL, "%s",
                  err.message);
    ended(stranger, 2);
    int codes = 0, status;
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(waitpid(twice[i], &status, 0), twice[i]);
        codes += WEXITSTATUS(status);
    }
    ck_assert_int_eq(codes, 2); /* 0 and 2 */
}
END_TEST

START_TEST(nobody)
{
    struct hd_error err = HD_ERROR_INIT;
    uint8_t secret[HD__SECRET_BYTES];
    uint16_t port;
    ck_assert_int_eq(hd__store_discovery_find(id, 1, &port, secret, hd__now() + 0.1, &err), HD_E_TIMEOUT);
    ck_assert_msg(strstr(err.message, "rank 0 of job test-meet") != NULL, "%s", err.message);
    ck_assert_int_eq(host(9, 0.1, &err), HD_E_TIMEOUT);
    ck_assert_msg(strstr(err.message, "rank 1 and others did not join") != NULL, "%s", err.message);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("meet");
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_add_test(tc, all_come);
    tcase_add_test(tc, who_does_not_belong);
    tcase_add_test(tc, nobody);
    return suite_run_case("meet", tc);
}
