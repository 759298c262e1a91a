#include "service/launch/agent_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/rendezvous/auth.h"
#include "runtime/rendezvous/liveness.h"
#include "runtime/rendezvous/tls.h"
#include "service/launch/notice.h"

#define POLL_SECONDS 0.2 /* between two looks at the plan */

/* ---- waiting, and the store */

int hd__agent_sleep(struct hd__agent *g)
{
    struct timespec wait = {.tv_nsec = 100000000};
    if (hd__launch_asks_to_stop(sigtimedwait(&g->round.signals, NULL, &wait)))
        g->stopped = 1;
    return !g->stopped;
}

int hd__agent_is_late(const struct hd__agent *g, double waited, double *said)
{
    if (g->a->late_after <= 0 || waited < (*said > 0 ? 2 * *said : g->a->late_after))
        return 0;
    *said = waited;
    return 1;
}

/* Tells node 0 that this machine is here. */
static int32_t say_name(struct hd__agent *g, struct hd_error *err)
{
    uint8_t random[8];
    char key[32];
    hd__auth_random(random, sizeof random);
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(g->name + 2 * i, 3, "%02x", random[i]);
    snprintf(key, sizeof key, "node/%d", g->nodes->node);
    return hd__agent_put(g, key, json_pack("[s]", g->name), err);
}

int32_t hd__agent_connect(struct hd__agent *g, double deadline, struct hd_error *err)
{
    double began = hd__now(), said = 0;
    struct hd_deadline end = hd_deadline_from(deadline, began);
    int32_t rc;
    hd__store_close(g->store);
    g->store = NULL;
    for (;;) {
        struct hd_error why = HD_ERROR_INIT;
        rc = hd__store_connect(&g->store_options, hd__now() + 0.5, &g->store, &why);
        if (!rc)
            return say_name(g, err);
        /* One that was here before may be known for a while yet. */
        if (hd_deadline_passed(&end, hd__now()) || (rc != HD_E_TIMEOUT && rc != HD_E_IO && !g->at))
            return hd_fail(err, rc, "%s", why.message);
        if (!hd__agent_sleep(g))
            return hd_fail(err, HD_E_CANCELLED, "stopped while it waited for node 0");
        if (hd__agent_is_late(g, deadline - began - (end.at - end.looked), &said))
            hd__log(HD_LOG_WARN, NULL, "node %d: waiting for node 0 at %s:%u since %.0f s, at most %.0f s (%s)",
                    g->nodes->node, g->nodes->host, g->nodes->port, said, deadline - began, why.message);
    }
}

int32_t hd__agent_get(struct hd__agent *g, const char *key, double deadline, json_t **value, struct hd_error *err)
{
    size_t bytes = 65536;
    char *text = hd__alloc(bytes);
    int32_t rc = hd__store_get(g->store, key, text, &bytes, deadline, err);
    *value = rc ? NULL : json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
    free(text);
    if (!rc && !*value)
        rc = hd_fail(err, HD_E_CORRUPT, "node 0 has put no JSON at %s", key);
    return rc;
}

int32_t hd__agent_put(struct hd__agent *g, const char *key, json_t *value, struct hd_error *err)
{
    char *text = json_dumps(value, JSON_COMPACT);
    int32_t rc = hd__store_put(g->store, key, text, strlen(text), err);
    free(text);
    json_decref(value);
    return rc;
}

/* ---- the ranks of this machine */

static int64_t number(const json_t *of, const char *key)
{
    return json_integer_value(json_object_get(of, key));
}

/* The ranks of a round have a secret of their own: who is left over from another does not get in. */
static void round_secret(const struct hd__agent *g, const json_t *plan, uint8_t secret[HD__SECRET_BYTES])
{
    uint8_t salt[HD__SECRET_BYTES] = {0};
    const char *text = json_string_value(json_object_get(plan, "salt"));
    memcpy(secret, g->store_options.secret, HD__SECRET_BYTES);
    if (text)
        hd__store_secret_parse(text, salt);
    hd__auth_bind(secret, salt);
}

int hd__agent_run_ranks(struct hd__agent *g, const json_t *plan, size_t index, struct hd__server_options *serve)
{
    struct hd__launch_round *r = &g->round;
    struct hd__launch_progress *p = g->tally.progress;
    const char *run = json_string_value(json_object_get(plan, "run"));
    r->first = (int32_t)index * r->n;
    r->serve = serve;
    r->env.size = (int32_t)number(plan, "ranks");
    r->env.n_restarts = (int32_t)number(plan, "restarts");
    round_secret(g, plan, r->env.store.secret);
    if (serve)
        memcpy(serve->secret, r->env.store.secret, sizeof serve->secret);
    snprintf(p->run, sizeof p->run, "%s", run ? run : "");
    p->saved = number(plan, "saved");
    p->stopping = 0;
    p->grow = 0;
    g->at = number(plan, "round");
    g->out.stopped = 0;
    int code = hd__launch_run_round(r, &g->out);
    g->stopped |= g->out.stopped;
    return code;
}

/* ---- an agent that follows */

/* The plan, if there is one: HD_E_PEER where the connection is gone. */
static int32_t look_at_plan(struct hd__agent *g, json_t **plan)
{
    g->polled = hd__now();
    return hd__agent_get(g, "plan", hd__now() + POLL_SECONDS, plan, NULL);
}

static int is_in(const struct hd__agent *g, const json_t *list, size_t *index)
{
    for (*index = 0; *index < json_array_size(list); ++*index) {
        const json_t *item = json_array_get(list, *index);
        const char *name = json_string_value(json_array_get(item, 1));
        if (json_integer_value(json_array_get(item, 0)) == g->nodes->node && (!name || !strcmp(name, g->name)))
            return 1;
    }
    return 0;
}

/* While the ranks run: is their round still the plan, and has it not failed on node 0? Its ranks may have ended before
 * these came to the rendezvous, which then are not told there. */
static int follow_tick(void *user, struct hd__server *server)
{
    struct hd__agent *g = user;
    json_t *plan = NULL, *failed = NULL;
    int over = 0;
    (void)server;
    if (hd__now() < g->polled + 1)
        return 0;
    if (hd__store_liveness_check(hd__store_liveness(g->store), NULL, NULL))
        return 1; /* node 0 is gone, and so is the rendezvous of the ranks */
    if (!look_at_plan(g, &plan))
        over = json_object_get(plan, "exit") || number(plan, "round") != g->at;
    if (!over && !hd__agent_get(g, "failed", hd__now(), &failed, NULL))
        over = number(failed, "round") >= g->at;
    json_decref(failed);
    json_decref(plan);
    return over;
}

static void say_done(struct hd__agent *g)
{
    struct hd__launch_progress *p = g->tally.progress;
    json_t *ended = json_array();
    char key[48];
    for (int32_t i = 0; i < g->round.n; i++)
        json_array_append_new(ended, json_integer(g->out.ended[i]));
    snprintf(key, sizeof key, "done/%" PRId64 "/%d", g->at, g->nodes->node);
    hd__agent_put(g, key,
                  json_pack("{s:o,s:i,s:i,s:I,s:I}", "ended", ended, "stopped", g->stopped, "stopping", p->stopping,
                            "saved", (json_int_t)p->saved, "failed_step", (json_int_t)p->failed_step),
                  NULL);
}

/* Node 0 decides by its own values. */
static void warn_unlike(const struct hd__agent *g, const json_t *plan)
{
    static int said;
    const struct {
        const char *name;
        int64_t here, there;
    } rows[] = {{"launch.restarts", g->a->policy->restarts, number(plan, "allowed")},
                {"the least of launch.nodes", g->nodes->min, number(plan, "least")}};
    for (size_t i = 0; i < HD__COUNT(rows) && !said; i++)
        if (rows[i].here != rows[i].there)
            hd__log(HD_LOG_WARN, NULL, "%s is %" PRId64 " on node %d and %" PRId64 " on node 0, which decides",
                    rows[i].name, rows[i].here, g->nodes->node, rows[i].there);
    said = 1;
}

/* Takes part in the plan's round. Returns -1, or an exit code where this agent ends. */
static int follow_round(struct hd__agent *g, const json_t *plan, size_t index)
{
    warn_unlike(g, plan);
    int code = g->a->prepare(g->a->user, (int32_t)number(plan, "ranks"));
    if (!code && number(plan, "each") != g->round.n) {
        hd__log(HD_LOG_ERROR, NULL,
                "launch.ranks is %d on node %d and %" PRId64 " on node 0: all machines have as many", g->round.n,
                g->nodes->node, number(plan, "each"));
        code = 2;
    }
    g->tally.progress->failed_step = 0;
    if (!code)
        code = hd__agent_run_ranks(g, plan, index, NULL);
    if (code)
        return code;
    say_done(g); /* if node 0 is gone, the next look at the plan says so */
    return -1;
}

/* Asked to stop in a round that is over: node 0 knows it, and has gone on or ended the job. */
static int leave(const struct hd__agent *g)
{
    hd__log(HD_LOG_INFO, NULL, "node %d was asked to stop, and leaves the job", g->nodes->node);
    return g->out.code == 3 || !g->out.code ? 3 : 1;
}

/* One look at the plan. Returns -1, or an exit code where this agent ends. */
static int follow_plan(struct hd__agent *g, const json_t *plan)
{
    size_t index;
    const json_t *end = json_object_get(plan, "exit");
    if (is_in(g, json_object_get(plan, "out"), &index)) {
        hd__log(HD_LOG_ERROR, NULL, "node %d is left out: it failed three rounds in a row", g->nodes->node);
        return 1;
    }
    if (!end && g->stopped && number(plan, "round") != g->at)
        return leave(g);
    if (end && (json_integer_value(end) == 1 || json_integer_value(end) == 2))
        hd__log(HD_LOG_ERROR, NULL, "node 0 has ended the job with exit code %d: its log says why",
                (int)json_integer_value(end));
    if (end)
        return (int)json_integer_value(end);
    return number(plan, "round") != g->at && is_in(g, json_object_get(plan, "nodes"), &index)
               ? follow_round(g, plan, index)
               : -1;
}

static int fail_follow(const struct hd__agent *g, int32_t rc, const struct hd_error *err)
{
    if (rc != HD_E_CANCELLED)
        hd__log(HD_LOG_ERROR, NULL, "node %d: node 0 at %s:%u, which leads the job, cannot be reached: %s",
                g->nodes->node, g->nodes->host, g->nodes->port, err->message);
    return rc == HD_E_CANCELLED ? 3 : rc == HD_E_INVALID && !g->at ? 2 : 1;
}

/* Node 0 hears of this machine's end first, so that it is not taken for lost; not for ever. */
static int waits_for_end(const struct hd__agent *g, double since)
{
    return g->store && hd__now() < since + 2 * g->a->dead_after;
}

static int follow(struct hd__agent *g)
{
    double waits = 0, said = 0;
    g->round.tick = follow_tick;
    g->round.tick_user = g;
    for (int code = -1;;) {
        struct hd_error err = HD_ERROR_INIT;
        json_t *plan = NULL;
        int32_t rc = g->store ? look_at_plan(g, &plan) : HD_E_PEER;
        int64_t before = g->at;
        if (rc && rc != HD_E_TIMEOUT) {
            if (g->store)
                hd__log(HD_LOG_WARN, NULL, "node %d has lost node 0, and tries to reach it for %.0f s", g->nodes->node,
                        g->a->timeout);
            rc = hd__agent_connect(g, hd__now() + g->a->timeout, &err);
            if (rc)
                return fail_follow(g, rc, &err);
            g->at = g->at ? -1 : 0; /* a round that names this connection is another one */
        }
        code = plan ? follow_plan(g, plan) : -1;
        json_decref(plan);
        if (code >= 0)
            return code;
        if (before != g->at || waits <= 0) {
            waits = hd__now();
            said = 0;
        }
        hd__agent_sleep(g);
        if (g->stopped && (!g->at || !waits_for_end(g, waits)))
            return leave(g);
        if (hd__agent_is_late(g, hd__now() - waits, &said))
            hd__log(HD_LOG_INFO, NULL, "node %d is ready, and waits since %.0f s for a round that it takes part in",
                    g->nodes->node, said);
    }
}

/* ---- both */

int32_t hd__launch_agents_secret(const struct hd__launch_nodes *nodes, uint8_t secret[HD__SECRET_BYTES],
                                 struct hd_error *err)
{
    int given;
    int32_t rc = hd__launch_read_secret(secret, &given, err);
    if (!rc && !given)
        rc = hd_fail(err, HD_E_INVALID,
                     "machines meet at %s:%u and have no secret, so that anybody could join them: `export "
                     "HEDDLE_SECRET=$(openssl rand -hex 32)`, the same on all of them",
                     nodes->host, nodes->port);
    return rc;
}

static int32_t open_agent(struct hd__agent *g, struct hd_error *err)
{
    const struct hd__launch_nodes *nodes = g->nodes;
    struct hd__store_options *o = &g->store_options;
    int32_t rc = hd__launch_agents_secret(nodes, o->secret, err);
    if (!rc)
        rc = hd__tls_context(&o->tls, err);
    if (rc)
        return rc;
    o->host = nodes->host;
    o->port = nodes->port;
    o->rank = nodes->node;
    o->size = nodes->max;
    o->dead_after = g->a->dead_after;
    o->members = 1;
    g->round = (struct hd__launch_round){.n = g->a->ranks,
                                         .dead_after = g->a->dead_after,
                                         .body = g->a->body,
                                         .user = g->a->user,
                                         .env = {.local_size = g->a->ranks,
                                                 .agents = 1,
                                                 .reporter = g->a->reporter,
                                                 .deadline = g->a->policy->deadline,
                                                 .store = *o}};
    g->round.env.store.port++;
    g->round.env.store.members = 0;
    g->round.env.store.late_after = g->a->late_after;
    return HD_OK;
}

int hd__launch_agents_run(const struct hd__launch_agents *agents)
{
    struct hd__agent g = {.a = agents, .nodes = agents->nodes};
    struct hd_error err = HD_ERROR_INIT;
    size_t all = (size_t)agents->nodes->max * (size_t)agents->ranks;
    pid_t notice = 0;
    int code;
    if (open_agent(&g, &err)) {
        hd__log(HD_LOG_ERROR, NULL, "%s", err.message);
        return 2;
    }
    if (hd__launch_tally_open(&g.tally, agents->policy, agents->ranks))
        return hd__launch_fail_start("mmap or memfd_create");
    g.round.env.progress = g.tally.progress;
    g.round.env.copies = g.tally.copies.at;
    g.out.lost = hd__alloc(all * sizeof *g.out.lost);
    g.out.ended = hd__alloc((size_t)agents->ranks * sizeof *g.out.ended);
    hd__launch_warn_loopback("launch.rendezvous", agents->nodes->host);
    hd__launch_block_signals(&g.round.signals); /* a notice may be there already */
    if (agents->notice_file || agents->notice_command)
        notice = hd__launch_notice_start(getpid(), agents->notice_file, agents->notice_command, agents->notice_every);
    signal(SIGPIPE, SIG_IGN);
    code = agents->nodes->node ? follow(&g) : hd__agent_run_lead(&g);
    hd__store_close(g.store);
    hd__launch_notice_stop(notice);
    hd__launch_tally_close(&g.tally);
    free(g.out.lost);
    free(g.out.ended);
    return code;
}
