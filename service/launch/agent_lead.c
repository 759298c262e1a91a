/* The agent of node 0: who takes part in a round, how it ended, and whether there is another. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/rendezvous/auth.h"
#include "service/launch/agent_internal.h"

#define GOODBYE_SECONDS 5.0 /* for the other agents to read that the job has ended */
enum { MOST_FAILURES = 3 }; /* of a machine, in a row, without a newer checkpoint */

struct node {
    char name[HD__AGENT_NAME];
    uint32_t visits; /* as the server counted when the name was read */
    uint32_t at;     /* the same, when the round began */
    uint32_t left;   /* visits of an agent that was asked to stop, and leaves; 0: none does */
    int here, out;   /* has said its name; is left out */
    int in, gone;    /* of the round: takes part; went away in it */
    int leaves;      /* was asked to stop in it */
    int failed;      /* in this round, by a fault that is not the job's */
    int failures;    /* rounds in a row */
};

struct lead {
    struct hd__agent *g;
    struct hd__server *server;
    struct node *node;    /* [nodes.max] */
    int32_t n, ranks;     /* machines and ranks of the round */
    int32_t considered;   /* machines for which it was last asked whether the job would grow */
    int32_t n_lost, code; /* of the round, over all machines */
    int32_t *lost;        /* room for all ranks */
    int killed, stopping; /* some were killed or are gone; the ranks agreed on the end */
    struct hd__launch_outcome sum;
};

/* ---- who is there */

/* Reads the names of those who came since the last look; returns how many are there and not left out. */
static int32_t look_around(struct lead *l)
{
    int32_t count = 0;
    for (int32_t i = 0; i < l->g->nodes->max; i++) {
        struct node *n = &l->node[i];
        uint32_t visits = i ? hd__server_visits(l->server, i) : 1;
        char key[32];
        json_t *name = NULL;
        if (!i)
            n->here = 1;
        else if (visits % 2 == 0 || visits == n->left)
            n->here = 0;
        else if (visits != n->visits || !n->here) {
            snprintf(key, sizeof key, "node/%d", i);
            n->here = 0;
            if (!hd__agent_get(l->g, key, hd__now() + 0.05, &name, NULL)) {
                const char *text = json_string_value(json_array_get(name, 0));
                n->here = text && strcmp(text, n->name) != 0; /* not that of the visit before */
                snprintf(n->name, sizeof n->name, "%s", text ? text : "");
            }
            json_decref(name);
            n->visits = visits;
        }
        count += n->here && !n->out;
    }
    return count;
}

static const char *list_nodes(const struct lead *l, int (*is)(const struct node *), char out[256])
{
    char list[200] = "";
    size_t at = 0, count = 0;
    for (int32_t i = 0; i < l->g->nodes->max; i++)
        if (is(&l->node[i]) && ++count && at < sizeof list - 16)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%d", count > 1 ? ", " : "", i);
    snprintf(out, 256, "%s%s%s",
             count > 1 ? "nodes "
             : count   ? "node "
                       : "",
             list, at < sizeof list - 16 ? "" : " and more");
    return out;
}

static int is_absent(const struct node *n)
{
    return !n->here && !n->out;
}

static int is_gone(const struct node *n)
{
    return n->in && (n->gone || n->leaves);
}

static int32_t count_left_out(const struct lead *l)
{
    int32_t count = 0;
    for (int32_t i = 0; i < l->g->nodes->max; i++)
        count += l->node[i].out;
    return count;
}

/* Waits for machines: until `soon` for all of them, then until there are enough, and no longer than `late`; never
 * shorter than `least`. Returns how many there are; 0: too few, or asked to stop. */
static int32_t gather(struct lead *l, double least, double soon, double late)
{
    const struct hd__launch_nodes *nodes = l->g->nodes;
    double began = hd__now(), said = 0;
    char who[256];
    for (;;) {
        int32_t count = look_around(l), most = nodes->max - count_left_out(l);
        double now = hd__now();
        if (most < nodes->min) {
            hd__log(HD_LOG_ERROR, NULL, "%d machines are left that could take part, and launch.nodes wants %d", most,
                    nodes->min);
            return 0;
        }
        if (now >= least && (count == most || (count >= nodes->min && now >= soon)))
            return count;
        if (now >= late) {
            hd__log(HD_LOG_ERROR, NULL, "%s did not come within %.0f s: %d of %d machines are here, %d are needed",
                    list_nodes(l, is_absent, who), now - began, count, nodes->max, nodes->min);
            return 0;
        }
        if (!hd__agent_sleep(l->g))
            return 0;
        if (count < most && hd__agent_is_late(l->g, hd__now() - began, &said))
            hd__log(HD_LOG_WARN, NULL, "waiting for %s since %.0f s, at most %.0f s: %d of %d machines are here",
                    list_nodes(l, is_absent, who), said, late - began, count, nodes->max);
    }
}

/* ---- a round */

/* As many of those that are here as the job fits on. Returns 0, or the exit code of its refusal. */
static int choose(struct lead *l, int32_t count)
{
    const struct hd__launch_nodes *nodes = l->g->nodes;
    int32_t each = l->g->round.n, k = count, chosen = 0;
    int code = 0;
    while (k >= nodes->min && (code = l->g->a->prepare(l->g->a->user, k * each)))
        k--;
    if (k < nodes->min)
        return code;
    for (int32_t i = 0; i < nodes->max; i++) {
        struct node *n = &l->node[i];
        n->in = n->here && !n->out && chosen < k;
        chosen += n->in;
        n->gone = n->leaves = 0;
        n->at = n->visits;
        if (n->here && !n->out && !n->in)
            hd__log(HD_LOG_WARN, NULL, "node %d stands by: the job does not fit on %d machines, but on %d", i, count,
                    k);
    }
    l->n = k;
    l->ranks = k * each;
    l->considered = count;
    return 0;
}

static int32_t publish(struct lead *l, int64_t round, json_t **plan)
{
    struct hd__agent *g = l->g;
    json_t *nodes = json_array(), *out = json_array();
    uint8_t salt[HD__SECRET_BYTES];
    char text[HD__SECRET_TEXT];
    for (int32_t i = 0; i < g->nodes->max; i++) {
        if (l->node[i].in)
            json_array_append_new(nodes, json_pack("[i,s]", i, i ? l->node[i].name : g->name));
        if (l->node[i].out)
            json_array_append_new(out, json_pack("[i]", i));
    }
    hd__auth_random(salt, sizeof salt);
    hd__store_secret_format(salt, text);
    *plan = json_pack("{s:I,s:i,s:i,s:s,s:s,s:I,s:i,s:o,s:o}", "round", (json_int_t)round, "ranks", l->ranks, "each",
                      g->round.n, "salt", text, "run", g->tally.progress->run, "saved",
                      (json_int_t)g->tally.progress->saved, "restarts", (int)g->tally.restarts.count, "nodes", nodes,
                      "out", out);
    return hd__agent_put(g, "plan", json_incref(*plan), NULL);
}

/* A machine that has come is taken in with the next checkpoint, where the job fits on more than it has. */
static void consider_growing(struct lead *l)
{
    const struct hd__launch_agents *a = l->g->a;
    int32_t count = look_around(l), k = count;
    if (count == l->considered)
        return;
    l->considered = count;
    while (k > l->n && a->grows && a->prepare(a->user, k * l->g->round.n))
        k--;
    if (k <= l->n)
        return;
    if (!a->grows)
        hd__log(HD_LOG_WARN, NULL,
                "%d machines are here, and %d train: without checkpoint.every the others wait for a "
                "restart",
                count, l->n);
    l->g->tally.progress->grow = a->grows;
    if (a->grows)
        hd__log(HD_LOG_INFO, NULL, "%d machines are here, and %d train: the round ends with its next checkpoint", count,
                l->n);
}

static int lead_tick(void *user, struct hd__server *server)
{
    struct lead *l = user;
    char cause[128];
    int32_t rank = 0;
    int gone = 0;
    for (int32_t i = 0; i < l->g->nodes->max; i++) {
        struct node *n = &l->node[i];
        if (i && n->in && !n->gone && hd__server_visits(l->server, i) != n->at) {
            n->gone = 1;
            snprintf(cause, sizeof cause, "node %d is gone: its agent has ended, or its network is down", i);
            if (server)
                hd__server_end(server, rank, cause);
        }
        gone |= n->gone;
        rank += n->in ? l->g->round.n : 0;
    }
    if (!gone && !l->g->tally.progress->grow)
        consider_growing(l);
    return gone;
}

/* ---- how it ended */

static void add_lost(struct lead *l, int32_t rank, int killed)
{
    l->lost[l->n_lost++] = rank;
    l->killed |= killed;
}

static void add_code(struct lead *l, int32_t ended)
{
    int32_t code = ended < 0 ? 1 : ended;
    /* A refusal before a failure, and that before an orderly end. */
    static const int rank_of[] = {0, 2, 3, 1};
    if (code >= 0 && code <= 3 && l->code >= 0 && l->code <= 3 ? rank_of[code] > rank_of[l->code] : code > l->code)
        l->code = code;
}

/* What the agent of node i says of its ranks, the first of which is `rank`; without a word from it they are lost. */
static void collect_node(struct lead *l, int32_t i, int32_t rank)
{
    struct hd__agent *g = l->g;
    struct node *n = &l->node[i];
    double began = hd__now(), late = began + g->a->timeout, said = 0;
    json_t *done = NULL, *ended;
    char key[48];
    snprintf(key, sizeof key, "done/%" PRId64 "/%d", g->at, i);
    while (!done && hd__now() < late) {
        int here = hd__server_visits(l->server, i) == n->at; /* its word may have come before it went */
        if (!hd__agent_get(g, key, hd__now() + 0.1, &done, NULL) || !here)
            break;
        if (hd__agent_is_late(g, hd__now() - began, &said))
            hd__log(HD_LOG_WARN, NULL, "waiting for the end of the ranks of node %d since %.0f s", i, said);
    }
    n->gone |= !done;
    ended = json_object_get(done, "ended");
    for (int32_t k = 0; k < g->round.n; k++) {
        int32_t code = done ? (int32_t)json_integer_value(json_array_get(ended, (size_t)k)) : -1;
        add_code(l, code);
        if (code < 0)
            add_lost(l, rank + k, 1);
        n->failed |= code < 0;
    }
    n->leaves = json_integer_value(json_object_get(done, "stopped")) != 0;
    n->left = n->leaves ? n->at : 0;
    l->stopping |= json_integer_value(json_object_get(done, "stopping")) != 0;
    g->tally.progress->failed_step =
        HD__MAX(g->tally.progress->failed_step, json_integer_value(json_object_get(done, "failed_step")));
    json_decref(done);
    hd__store_remove(g->store, key, NULL);
}

static void collect(struct lead *l)
{
    struct hd__agent *g = l->g;
    const struct hd__launch_outcome *own = &g->out;
    int32_t rank = 0, culprit = own->culprit;
    l->n_lost = l->code = l->killed = 0;
    l->stopping = g->tally.progress->stopping;
    for (int32_t i = 0; i < g->nodes->max; i++)
        l->node[i].failed = 0;
    for (int32_t k = 0; k < g->round.n; k++) {
        add_code(l, own->ended[k]);
        if (own->ended[k] < 0)
            add_lost(l, k, 1);
        l->node[0].failed |= own->ended[k] < 0;
    }
    for (int32_t i = 0; i < g->nodes->max; i++) {
        if (i && l->node[i].in)
            collect_node(l, i, rank);
        if (l->node[i].in && culprit >= rank && culprit < rank + g->round.n && !g->tally.progress->failed_step)
            l->node[i].failed = 1;
        rank += l->node[i].in ? g->round.n : 0;
    }
    if (!l->code && own->code)
        l->code = own->code;
    if (!l->n_lost && culprit >= 0 && l->code && l->code != 3)
        add_lost(l, culprit, 0);
    l->sum = (struct hd__launch_outcome){.code = l->code,
                                         .stopped = own->stopped,
                                         .culprit = culprit,
                                         .killed = l->killed,
                                         .n_lost = l->n_lost,
                                         .lost = l->lost,
                                         .since = own->since > 0 ? own->since : hd__now()};
}

/* A machine whose ranks fail round after round, while no checkpoint gets newer, is left out. */
static void count_failures(struct lead *l, int newer)
{
    for (int32_t i = 0; i < l->g->nodes->max; i++) {
        struct node *n = &l->node[i];
        if (!n->in)
            continue;
        n->failures = !n->failed ? 0 : newer ? 1 : n->failures + 1;
        if (i && n->failures >= MOST_FAILURES && !n->out) {
            n->out = 1;
            hd__log(HD_LOG_ERROR, NULL, "node %d is left out: it failed %d rounds in a row", i, n->failures);
        }
    }
}

/* Are all that were lost those of machines that are gone, and may there be fewer? */
static int only_machines_went(const struct lead *l)
{
    int32_t gone = 0;
    for (int32_t i = 0; i < l->g->nodes->max; i++)
        gone += is_gone(&l->node[i]);
    return gone && l->g->nodes->min < l->g->nodes->max && l->killed && l->n_lost == gone * l->g->round.n;
}

/* Of a job that is not started again. */
static void say_failure(const struct lead *l)
{
    struct hd__text who = {0};
    for (int32_t i = 0; i < l->n_lost; i++)
        hd__text_add(&who, "%s%d", i ? ", " : l->n_lost > 1 ? "s " : " ", l->lost[i]);
    hd__log(HD_LOG_ERROR, NULL, "the job has failed on %d machine%s%s%s", l->n, l->n > 1 ? "s" : "",
            l->n_lost ? ": lost were rank" : "", who.at ? who.at : "");
    hd__text_free(&who);
}

/* Is there another round, and when? Returns how many machines it has; 0: the job has ended, with l->code. */
static int32_t next_round(struct lead *l)
{
    struct hd__agent *g = l->g;
    struct hd__launch_progress *p = g->tally.progress;
    const struct hd__launch_nodes *nodes = g->nodes;
    int newer = p->saved > g->tally.best, leaves = 0, grows, free;
    int32_t before = l->ranks, count;
    double now = hd__now(), pause;
    char who[256], why[320], from[96];
    collect(l);
    grows = p->grow && l->code == 3 && !l->stopping && !g->stopped;
    for (int32_t i = 1; i < nodes->max; i++)
        leaves += l->node[i].in && l->node[i].leaves;
    leaves = leaves && nodes->min < nodes->max && !g->stopped && l->code == 3;
    p->stopping = l->stopping && !leaves;
    free = grows || leaves || only_machines_went(l);
    count_failures(l, newer);
    if (!hd__launch_may_restart(&g->tally, &l->sum, free)) {
        if (l->code == 1)
            say_failure(l);
        return 0;
    }
    pause = grows || leaves ? 0 : hd__launch_pause(&g->tally);
    list_nodes(l, is_gone, who);
    if (grows)
        snprintf(why, sizeof why, "machines have come");
    else if (free)
        snprintf(why, sizeof why, "%s %s", who, leaves ? "leaves" : "is gone");
    else
        snprintf(why, sizeof why, "restart %d of %" PRId64 " in a row", g->tally.in_a_row, g->tally.policy->restarts);
    hd__log(HD_LOG_WARN, NULL, "%s: all ranks are started again in %.3g s, from %s", why, pause,
            hd__launch_from(&g->tally, from));
    count = gather(l, now + pause, now + pause, now + HD__MAX(pause, g->a->timeout));
    if (!count) {
        if (g->stopped)
            l->code = p->saved ? 3 : l->code;
        return 0;
    }
    l->code = choose(l, count);
    if (l->code)
        return 0;
    g->round.env.size = l->ranks;
    hd__launch_note_restart(&g->tally,
                            l->ranks < before   ? "shrink"
                            : l->ranks > before ? "grow"
                                                : "restart",
                            &l->sum, &g->round.env);
    hd__log(HD_LOG_INFO, NULL, "round %d: %d rank%s on %d of %d machines", (int)g->tally.restarts.count, l->ranks,
            l->ranks > 1 ? "s" : "", l->n, nodes->max);
    return count;
}

/* ---- the job */

static void say_end(struct lead *l)
{
    json_t *out = json_array();
    double until = hd__now() + GOODBYE_SECONDS;
    int32_t here = 1;
    for (int32_t i = 0; i < l->g->nodes->max; i++)
        if (l->node[i].out)
            json_array_append_new(out, json_pack("[i]", i));
    if (hd__agent_put(l->g, "plan", json_pack("{s:i,s:o}", "exit", l->code, "out", out), NULL))
        return;
    while (here && hd__now() < until) {
        here = 0;
        for (int32_t i = 1; i < l->g->nodes->max; i++)
            here += hd__server_visits(l->server, i) % 2;
        if (here)
            hd__agent_sleep(l->g);
    }
}

static void run_all(struct lead *l)
{
    struct hd__agent *g = l->g;
    double late = hd__now() + g->a->timeout;
    int32_t count = gather(l, 0, late, late + 0.1);
    l->code = count ? choose(l, count) : g->stopped ? 3 : 1;
    for (int64_t round = 1; !l->code && count; round++) {
        struct hd__server_options serve = hd__launch_server_options(l->ranks, g->a->dead_after, g->a->reporter);
        json_t *plan;
        serve.address = g->nodes->host;
        serve.port = g->round.env.store.port;
        serve.tls = g->store_options.tls;
        l->code = publish(l, round, &plan) ? 1 : 0;
        if (!l->code)
            l->code = hd__agent_run_ranks(g, plan, 0, &serve);
        json_decref(plan);
        count = l->code ? 0 : next_round(l);
    }
}

int hd__agent_lead(struct hd__agent *g)
{
    const struct hd__launch_nodes *nodes = g->nodes;
    const struct hd__server_options options = {.address = nodes->host,
                                               .port = nodes->port,
                                               .size = nodes->max,
                                               .rank = 0,
                                               .dead_after = g->a->dead_after,
                                               .tls = g->store_options.tls,
                                               .members = 1};
    struct hd__server_options o = options;
    struct lead l = {.g = g};
    struct hd_error err = HD_ERROR_INIT;
    int32_t rc;
    memcpy(o.secret, g->store_options.secret, sizeof o.secret);
    hd__launch_warn_loopback("launch.rendezvous", nodes->host);
    rc = hd__server_open(&o, &l.server, &err);
    if (!rc)
        rc = hd__agent_connect(g, hd__now() + 10, &err);
    if (rc) {
        hd__log(HD_LOG_ERROR, NULL, "%s", err.message);
        hd__server_close(l.server);
        return 2;
    }
    l.node = hd__alloc((size_t)nodes->max * sizeof *l.node);
    l.lost = hd__alloc((size_t)nodes->max * (size_t)g->round.n * sizeof *l.lost);
    g->round.tick = lead_tick;
    g->round.tick_user = &l;
    run_all(&l);
    say_end(&l);
    hd__store_close(g->store);
    g->store = NULL;
    hd__server_close(l.server);
    free(l.node);
    free(l.lost);
    return l.code;
}
