/* The outcome of a round on all machines: its exit code, and the machine whose fault it was. */
#include <inttypes.h>
#include <stdlib.h>

#include "service/launch/agent_internal.h"

enum { MOST_FAILURES = 3 }; /* of a machine, in a row, without a newer checkpoint */

int hd__agent_is_gone(const struct hd__agent_node *n)
{
    return n->in && (n->gone || n->leaves);
}

static void add_lost(struct hd__agent_lead *l, int32_t rank, int killed)
{
    l->lost[l->n_lost++] = rank;
    l->killed |= killed;
}

static void add_code(struct hd__agent_lead *l, int32_t ended)
{
    int32_t code = ended < 0 ? 1 : ended;
    /* A refusal before a failure, and that before an orderly end. */
    static const int rank_of[] = {0, 2, 3, 1};
    if (code >= 0 && code <= 3 && l->code >= 0 && l->code <= 3 ? rank_of[code] > rank_of[l->code] : code > l->code)
        l->code = code;
}

/* The word of node i's agent about its ranks, the first of which is `rank`; without a word from it they are lost. */
static void collect_node(struct hd__agent_lead *l, int32_t i, int32_t rank)
{
    struct hd__agent *g = l->g;
    struct hd__launch_progress *p = g->tally.progress;
    struct hd__agent_node *n = &l->node[i];
    double began = hd__now(), said = 0;
    struct hd_deadline late = hd_deadline_in(g->a->timeout, began);
    json_t *done = NULL, *ended;
    char key[48];
    snprintf(key, sizeof key, "done/%" PRId64 "/%d", g->at, i);
    while (!done && !hd_deadline_passed(&late, hd__now())) {
        int here = hd__server_visits(l->server, i) == n->at; /* else its word has come before it went, or never will */
        if (!hd__agent_get(g, key, hd__now() + (here ? 0.1 : 0), &done, NULL) || !here)
            break;
        if (hd__agent_is_late(g, g->a->timeout - (late.at - late.looked), &said))
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
    p->failed_step = HD__MAX(p->failed_step, json_integer_value(json_object_get(done, "failed_step")));
    hd__launch_note_saved(p, json_integer_value(json_object_get(done, "saved")));
    json_decref(done);
    hd__store_remove(g->store, key, NULL);
}

void hd__agent_collect(struct hd__agent_lead *l)
{
    struct hd__agent *g = l->g;
    const struct hd__launch_outcome *own = &g->out;
    int32_t rank = 0, culprit = own->culprit;
    if (own->code && own->code != 3)
        hd__agent_put(g, "failed", json_pack("{s:I}", "round", (json_int_t)g->at), NULL);
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

/* Machines that the next round has without node i. */
static int32_t count_others(const struct hd__agent_lead *l, int32_t i)
{
    int32_t count = 0;
    for (int32_t k = 0; k < l->g->nodes->max; k++)
        count += k != i && l->node[k].here && !l->node[k].out && !hd__agent_is_gone(&l->node[k]);
    return count;
}

void hd__agent_count_failures(struct hd__agent_lead *l, int newer)
{
    for (int32_t i = 0; i < l->g->nodes->max; i++) {
        struct hd__agent_node *n = &l->node[i];
        if (!n->in)
            continue;
        n->failures = !n->failed ? 0 : newer ? 1 : n->failures + 1;
        if (!i || n->failures < MOST_FAILURES)
            continue;
        n->out = count_others(l, i) >= l->g->nodes->min;
        if (n->out)
            hd__log(HD_LOG_ERROR, NULL, "node %d is left out: it failed %d rounds in a row", i, n->failures);
        else if (n->failures == MOST_FAILURES)
            hd__log(HD_LOG_WARN, NULL, "node %d failed %d rounds in a row, and stays: launch.nodes wants %d machines",
                    i, n->failures, l->g->nodes->min);
    }
}

int hd__agent_only_machines_went(const struct hd__agent_lead *l)
{
    int32_t gone = 0;
    for (int32_t i = 0; i < l->g->nodes->max; i++)
        gone += hd__agent_is_gone(&l->node[i]);
    return gone && l->g->nodes->min < l->g->nodes->max && l->killed && l->n_lost == gone * l->g->round.n;
}
