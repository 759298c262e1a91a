/* service/launch/agents: a job on several machines: one `heddle train` a machine, its agent, starts the ranks there.
 *
 * The agents are members of a store (runtime/rendezvous/store.h) that node 0 serves at launch.rendezvous; their
 * connections last as long as the job. Node 0 decides who takes part in a round, and publishes it as the plan; every
 * agent that it names starts its ranks, which meet at the next port of node 0, and says how they ended. Then there is
 * another round, of who is there by then, or the plan is to end. */
#ifndef HD_SERVICE_LAUNCH_AGENTS_H
#define HD_SERVICE_LAUNCH_AGENTS_H

#include "service/launch/launch.h"

/* Which machines a job runs on, and which of them this is. */
struct hd__launch_nodes {
    int32_t min, max; /* both 1: this one alone */
    int32_t node;
    uint16_t port; /* of the rendezvous; ranks meet at the next one */
    char host[256];
};

/* Words of the job and the command line; NULL: none. `*_at`: where, for messages. */
struct hd__launch_nodes_given {
    const char *nodes, *nodes_at;           /* "2", "2:4" */
    const char *rendezvous, *rendezvous_at; /* "HOST:PORT" */
    const char *node_rank;                  /* --node-rank */
    int any_node;                           /* 1: nothing has to say which one this is */
};

enum { HD__LAUNCH_NODES = 2048 }; /* at most: a plan names all of them in one value of the store */
/* nodes.c. With NNODES, NODE_RANK, JOB_COMPLETION_INDEX, MASTER_ADDR and MASTER_PORT; two that say different things are
 * refused by their names. */
int32_t hd__launch_nodes_find(const struct hd__launch_nodes_given *given, struct hd__launch_nodes *out,
                              struct hd_error *err);

struct hd__launch_agents {
    const struct hd__launch_nodes *nodes;
    int32_t ranks; /* of each machine */
    int32_t grows; /* machines that come are taken in: there are checkpoints at intervals */
    double timeout, dead_after, late_after;
    const struct hd__reporter *reporter;
    const struct hd__launch_policy *policy;
    /* Makes ready the job on so many ranks. Returns 0, or the exit code of a refusal, which it has said. */
    int (*prepare)(void *user, int32_t ranks);
    int (*body)(void *user, const struct hd__launch_env *env);
    void *user;
    const char *notice_file, *notice_command; /* as hd__launch_notice_start */
    double notice_every;
};

/* The secret that the machines share; refused where there is none. */
int32_t hd__launch_agents_secret(const struct hd__launch_nodes *nodes, uint8_t secret[HD__SECRET_BYTES],
                                 struct hd_error *err);
/* Runs the agent of this machine until the job has ended. Returns its exit code. */
int hd__launch_agents_run(const struct hd__launch_agents *agents);

#endif
