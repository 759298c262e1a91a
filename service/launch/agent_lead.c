/* The agent of node 0: who takes part in a round, how it ended, and whether there is another. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/rendezvous/auth.h"
#include "service/launch/agent_internal.h"

#define GOODBYE_SECONDS 5.0 /* for the other agents to read that the job has ended */
/* ---- who is there */

/* Reads the names of those who came since the last look; returns how many are there and not left out. */
static int32_t look_around(struct hd__agent_lead *l)
{
    int32_t count = 0;
    for (int32_t i = 0; i < l->g->nodes->max; i++) {
        struct hd__agent_node *n = &l->node[i];
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

static const char *list_nodes(const struct hd__agent_lead *l, int (*is)(const struct hd__agent_node *), char out[256])
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

static int is_absent(const struct hd__agent_node *n)
{
    return !n->here && !n->out;
}

static int32_t count_left_out(const struct hd__agent_lead *l)
{
    int32_t count = 0;
    for (int32_t i = 0; i < l->g->nodes->max; i++)
        count += l->node[i].out;
    return count;
}

/* Waits for machines: until `soon` for all of them, then until there are enough, and no longer than `late`; never
 * shorter than `least`. Returns how many there are; 0: too few, or asked to stop. */
static int32_t gather(struct hd__agent_lead *l, double least, double soon, double late)
{
    const struct hd__launch_nodes *nodes = l->g->nodes;
    double began = hd__now(), looked = began, slept = 0, said = 0;
    char who[256];
    for (;;) {
        int32_t count = look_around(l), most = nodes->max - count_left_out(l);
        double now = hd__now() - slept, more = hd_slept(looked, HD_LOOK_SECONDS, now);
        slept += more; /* those that are waited for most likely, too */
        looked = now -= more;
        if (now >= least && (count == most || (count >= nodes->min && now >= soon)))
            return count;
        if (now >= late) {
            hd__log(HD_LOG_ERROR, NULL, "%s did not come within %.0f s: %d of %d machines are here, %d are needed",
                    list_nodes(l, is_absent, who), now - began, count, nodes->max, nodes->min);
            return 0;
        }
        if (!hd__agent_sleep(l->g))
            return 0;
        if (count < most && hd__agent_is_late(l->g, now - began, &said))
            hd__log(HD_LOG_WARN, NULL, "waiting for %s since %.0f s, at most %.0f s: %d of %d machines are here",
                    list_nodes(l, is_absent, who), said, late - began, count, nodes->max);
    }
}

/* ---- a round */

/* As many of those that are here as the job fits on. Returns 0, or the exit code of its refusal. */
static int choose(struct hd__agent_lead *l, int32_t count)
{
    const struct hd__launch_nodes *nodes = l->g->nodes;
    int32_t each = l->g->round.n, k = count, chosen = 0;
    int code = 0;
    while (k >= nodes->min && (code = l->g->a->prepare(l->g->a->user, k * each)))
        k--;
    if (k < nodes->min)
        return code;
    for (int32_t i = 0; i < nodes->max; i++) {
        struct hd__agent_node *n = &l->node[i];
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

static int32_t publish(struct hd__agent_lead *l, int64_t round, json_t **plan)
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
    *plan = json_pack("{s:I,s:i,s:i,s:s,s:s,s:I,s:i,s:I,s:i,s:o,s:o}", "round", (json_int_t)round, "ranks", l->ranks,
                      "each", g->round.n, "salt", text, "run", g->tally.progress->run, "saved",
                      (json_int_t)g->tally.progress->saved, "restarts", (int)g->tally.restarts.count, "allowed",
                      (json_int_t)g->a->policy->restarts, "least", g->nodes->min, "nodes", nodes, "out", out);
    return hd__agent_put(g, "plan", json_incref(*plan), NULL);
}

/* A machine that has come is taken in with the next checkpoint, where the job fits on more than it has. */
static void consider_growing(struct hd__agent_lead *l)
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
                "%d machines are here, and the job runs on %d: without checkpoint.every the others wait "
                "for a restart",
                count, l->n);
    l->g->tally.progress->grow = a->grows;
    if (a->grows)
        hd__log(HD_LOG_INFO, NULL,
                "%d machines are here, and the job runs on %d: this round ends with its next checkpoint", count, l->n);
}

static int lead_tick(void *user, struct hd__server *server)
{
    struct hd__agent_lead *l = user;
    char cause[128];
    int32_t rank = 0;
    int gone = 0;
    for (int32_t i = 0; i < l->g->nodes->max; i++) {
        struct hd__agent_node *n = &l->node[i];
        if (i && n->in && !n->gone && hd__server_visits(l->server, i) != n->at) {
            n->gone = 1;
            snprintf(cause, sizeof cause,
                     "node %d is gone: its agent has ended (its own output says why), or its network is down", i);
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

/* ---- between rounds */

/* A job that is not started again names its losses. */
static void say_failure(const struct hd__agent_lead *l)
{
    struct hd__text who = {0};
    for (int32_t i = 0; i < l->n_lost; i++)
        hd__text_add(&who, "%s%d", i ? ", " : l->n_lost > 1 ? "s " : " ", l->lost[i]);
    hd__log(HD_LOG_ERROR, NULL, "the job has failed on %d machine%s%s%s", l->n, l->n > 1 ? "s" : "",
            l->n_lost ? ": lost were rank" : "", who.at ? who.at : "");
    hd__text_free(&who);
}

/* Is there another round, and when? Returns how many machines it has; 0: the job has ended, with l->code. */
static int32_t next_round(struct hd__agent_lead *l)
{
    struct hd__agent *g = l->g;
    struct hd__launch_progress *p = g->tally.progress;
    const struct hd__launch_nodes *nodes = g->nodes;
    int newer, leaves = 0, grows, free;
    int32_t before = l->ranks, count;
    double now = hd__now(), pause;
    char who[256], why[320], from[96];
    hd__agent_collect(l);
    newer = hd__launch_newest(p) > g->tally.best;
    grows = p->grow && l->code == 3 && !l->stopping && !g->stopped;
    for (int32_t i = 1; i < nodes->max; i++)
        leaves += l->node[i].in && l->node[i].leaves;
    leaves = leaves && nodes->min < nodes->max && !g->stopped && l->code == 3;
    p->stopping = l->stopping && !leaves;
    free = grows || leaves || hd__agent_only_machines_went(l);
    hd__agent_count_failures(l, newer);
    if (!hd__launch_may_restart(&g->tally, &l->sum, free)) {
        if (l->code == 1)
            say_failure(l);
        return 0;
    }
    pause = grows || leaves ? 0 : hd__launch_pause(&g->tally);
    list_nodes(l, hd__agent_is_gone, who);
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

static void say_end(struct hd__agent_lead *l)
{
    json_t *out = json_array();
    struct hd_deadline until = hd_deadline_in(GOODBYE_SECONDS, hd__now());
    int32_t here = 1;
    for (int32_t i = 0; i < l->g->nodes->max; i++)
        if (l->node[i].out)
            json_array_append_new(out, json_pack("[i]", i));
    if (hd__agent_put(l->g, "plan", json_pack("{s:i,s:o}", "exit", l->code, "out", out), NULL))
        return;
    while (here && !hd_deadline_passed(&until, hd__now())) {
        here = 0;
        for (int32_t i = 1; i < l->g->nodes->max; i++)
            here += hd__server_visits(l->server, i) % 2;
        if (here)
            hd__agent_sleep(l->g);
    }
}

static void run_all(struct hd__agent_lead *l)
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

int hd__agent_run_lead(struct hd__agent *g)
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
    struct hd__agent_lead l = {.g = g};
    struct hd_error err = HD_ERROR_INIT;
    int32_t rc;
    memcpy(o.secret, g->store_options.secret, sizeof o.secret);
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
