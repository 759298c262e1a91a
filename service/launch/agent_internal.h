/* service/launch/agent_internal: the agent of one machine.
 *   agent.c        its connection, its ranks, what it tells node 0; an agent that follows
 *   agent_lead.c   node 0's: who takes part in a round, and whether there is another
 *   agent_outcome.c   how a round ended on all machines
 *
 * Keys of their store, each a JSON text:
 *   node/I     [NAME]: the agent of node I is here, by a name that is new with each connection
 *   plan       {"round", "ranks", "each", "salt", "run", "saved", "restarts", "nodes": [[I, NAME], ...]}, or {"exit"};
 *              "out": nodes that are left out, with either
 *   failed     {"round"}: the newest that failed on node 0
 *   done/R/I   {"ended": [...], "stopped", "stopping", "saved", "failed_step"}: how round R ended on node I */
#ifndef HD_SERVICE_LAUNCH_AGENT_INTERNAL_H
#define HD_SERVICE_LAUNCH_AGENT_INTERNAL_H

#include <jansson.h>

#include "service/launch/agents.h"
#include "service/launch/round_internal.h"

enum { HD__AGENT_NAME = 17 };

struct hd__agent {
    const struct hd__launch_agents *a;
    const struct hd__launch_nodes *nodes;
    struct hd__store_options store_options;
    struct hd_store *store;
    char name[HD__AGENT_NAME];
    struct hd__launch_tally tally;
    struct hd__launch_round round;
    struct hd__launch_outcome out; /* of the last round here */
    int64_t at;    /* number of the last round in which this machine took part; 0: none, -1: another connection's */
    double polled; /* when the plan was last looked at */
    int stopped;   /* this process was asked to stop */
};

/* Waits until `deadline` for node 0, and tells it that this machine is here. HD_E_CANCELLED: asked to stop. */
int32_t hd__agent_connect(struct hd__agent *g, double deadline, struct hd_error *err);
/* HD_OK; HD_E_TIMEOUT where nobody has put it until the deadline, or HD_E_PEER. The caller frees. */
int32_t hd__agent_get(struct hd__agent *g, const char *key, double deadline, json_t **value, struct hd_error *err);
int32_t hd__agent_put(struct hd__agent *g, const char *key, json_t *value, struct hd_error *err); /* takes the value */
/* Runs this machine's ranks of the plan's round, the `index`-th of its machines; serves their rendezvous with `serve`.
 * Returns 0, or an exit code where they cannot be started. */
int hd__agent_run_ranks(struct hd__agent *g, const json_t *plan, size_t index, struct hd__server_options *serve);
/* 100 ms, or less if a signal comes. Returns 0 where this process was asked to stop, and notes it. */
int hd__agent_sleep(struct hd__agent *g);
/* Is it time to say again, after so many seconds, what is waited for? At late_after, and whenever that has doubled. */
int hd__agent_is_late(const struct hd__agent *g, double waited, double *said);

/* ---- node 0 */

struct hd__agent_node {
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

struct hd__agent_lead {
    struct hd__agent *g;
    struct hd__server *server;
    struct hd__agent_node *node; /* [nodes.max] */
    int32_t n, ranks;            /* machines and ranks of the round */
    int32_t considered;          /* machines for which it was last asked whether the job would grow */
    int32_t n_lost, code;        /* of the round, over all machines */
    int32_t *lost;               /* room for all ranks */
    int killed, stopping;        /* some were killed or are gone; the ranks agreed on the end */
    struct hd__launch_outcome sum;
};

/* agent_outcome.c. Hears from every machine of the round how it ended there; fills in `sum`, `code`, `lost` and the
 * nodes. */
void hd__agent_collect(struct hd__agent_lead *lead);
/* A machine that fails round after round, while no checkpoint gets newer, is left out, if there are enough others. */
void hd__agent_count_failures(struct hd__agent_lead *lead, int newer);
/* Are all that were lost those of machines that are gone, and may there be fewer? */
int hd__agent_only_machines_went(const struct hd__agent_lead *lead);
int hd__agent_is_gone(const struct hd__agent_node *node); /* it took part, and went or leaves */

/* agent_lead.c. Node 0: until the job has ended; returns its exit code. */
int hd__agent_run_lead(struct hd__agent *g);

#endif
