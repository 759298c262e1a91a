/* cli/train: a job's training, for the commands that train it. */
#ifndef HD_CLI_TRAIN_H
#define HD_CLI_TRAIN_H

#include "cli/ranks.h"
#include "service/launch/agents.h"

/* A command line, and its job as it is compiled at present. */
struct hd__cli_training {
    struct hd__cli_job_arguments arguments; /* of hd__cli_job_arguments; before_resolve may change the job */
    const char *options[3];                 /* --nodes, --node-rank, --rendezvous */
    int print_config, dry;
    int leads; /* out: the one process that speaks for all ranks */

    /* hd__cli_train's own */
    struct hd__cli_job_arguments given; /* `arguments` as the command gave them */
    int64_t launched;                   /* ranks of another launcher; 0: none */
    struct hd__launch_nodes nodes;
    struct hd__cli_job loaded;
};

enum { HD__CLI_NODES, HD__CLI_NODE_RANK, HD__CLI_RENDEZVOUS };
/* Their rows in a command's table of flags. */
/* clang-format off */
#define HD__CLI_NODE_FLAGS(training)                               \
    {"--nodes", &(training).options[HD__CLI_NODES], NULL},         \
    {"--node-rank", &(training).options[HD__CLI_NODE_RANK], NULL}, \
    {"--rendezvous", &(training).options[HD__CLI_RENDEZVOUS], NULL}
/* clang-format on */

/* Calls `run`, a command's own. Ranks that another launcher started on one machine see the same job and the same files:
 * the first of them says what is wrong. The others speak only where it went on without them. */
int hd__cli_as_rank(int (*run)(int argc, char **argv), int argc, char **argv);
/* Trains, in processes of its own or as one rank of another launcher's, and prints what is wrong. `argv` is this
 * command, for a launcher that starts it again. Returns the exit code. */
int hd__cli_train(struct hd__cli_training *t, int argc, char **argv);

#endif
