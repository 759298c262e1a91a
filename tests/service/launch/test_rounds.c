/* Rounds of two machines, each with an agent and a rank that does nothing but save: what its agent, and that of node 0,
 * which serves the rendezvous, let it do after a fault. */
#include <arpa/inet.h>
#include <check.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/rendezvous/liveness.h"
#include "service/launch/agents.h"
#include "service/train/save/store_gather.h"
#include "tests/suite.h"

enum { GRACE = 4, STEP = 7 }; /* seconds that ranks have to end by themselves after another failed */

/* Memory of all processes. */
static struct shared {
    _Atomic int answered;
    _Atomic int64_t saved[2]; /* as ranks of the second round know */
} * shared;

/* Both are there. Rank 0 dies, and with it all ranks of node 0; the other saves for longer than anybody's grace, and
 * then asks the rendezvous. */
static int first_round(const struct hd__launch_env *env, struct hd_store *store)
{
    struct hd_error err = HD_ERROR_INIT;
    const struct hd__train_session session = {.env = env, .store = store};
    struct hd__store_gather left = {.session = &session};
    if (hd__store_barrier(store, "here", hd__now() + 60, &err))
        return 2;
    if (!env->rank)
        kill(getpid(), SIGKILL);
    while (!hd__store_liveness_check(hd__store_liveness(store), NULL, NULL))
        usleep(1000);
    hd__store_outlive(store);
    hd__store_gather_busy(&left, UINT64_C(1) << 40);
    sleep(GRACE + 2);
    shared->answered = !hd__store_put(store, "saved", "x", 1, &err);
    env->progress->saved = STEP;
    hd__store_gather_busy(&left, 0);
    return 1;
}

static int body(void *user, const struct hd__launch_env *env)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    int code = 0;
    (void)user;
    if (hd__store_connect(&env->store, hd__now() + 60, &store, &err))
        return 2;
    shared->saved[env->rank] = env->n_restarts ? env->progress->saved : -1;
    if (!env->n_restarts)
        code = first_round(env, store);
    hd__store_close(store);
    return code;
}

static int prepare(void *user, int32_t ranks)
{
    (void)user;
    return ranks != 2;
}

/* This port and the next are free. */
static uint16_t free_ports(void)
{
    for (;;) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t bytes = sizeof at;
        int one = socket(AF_INET, SOCK_STREAM, 0), two = socket(AF_INET, SOCK_STREAM, 0), bad;
        bad = bind(one, (void *)&at, sizeof at) || getsockname(one, (void *)&at, &bytes);
        uint16_t port = ntohs(at.sin_port);
        at.sin_port = htons((uint16_t)(port + 1));
        bad = bad || port == UINT16_MAX || bind(two, (void *)&at, sizeof at);
        close(one);
        close(two);
        if (!bad)
            return port;
    }
}

static pid_t start_agent(int32_t node, uint16_t port)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    const struct hd__launch_nodes nodes = {.min = 2, .max = 2, .node = node, .port = port, .host = "127.0.0.1"};
    const struct hd__launch_policy policy = {.restarts = 1, .pause = 0.01};
    const struct hd__launch_agents agents = {.nodes = &nodes,
                                             .ranks = 1,
                                             .timeout = 60,
                                             .dead_after = 30,
                                             .policy = &policy,
                                             .prepare = prepare,
                                             .body = body};
    _exit(hd__launch_agents_run(&agents));
}

START_TEST(all_ranks_of_node_0_die)
{
    uint16_t port = free_ports();
    pid_t agent[2];
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    setenv("HEDDLE_SECRET", "00112233445566778899aabbccddeeff", 1);
    for (int i = 0; i < 2; i++)
        agent[i] = start_agent(i, port);
    for (int i = 0; i < 2; i++) {
        int status;
        waitpid(agent[i], &status, 0);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "agent %d: status %x", i, (unsigned)status);
    }
    ck_assert_msg(shared->answered, "the rendezvous was gone before the save was over");
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(shared->saved[i], STEP);
}
END_TEST

int main(void)
{
#ifdef __SANITIZE_THREAD__ /* a forked rank's thread has the address of an agent's, which TSan takes for alive */
    return 77;
#endif
    TCase *tc = tcase_create("rounds");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, all_ranks_of_node_0_die);
    return suite_run_case("launch-rounds", tc);
}
