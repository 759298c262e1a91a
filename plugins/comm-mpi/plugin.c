/* Options and the table. */
#include <stdlib.h>

#include "internal.h"

static const struct hd_option options[] = {
    {.name = "collectives",
     .value = "mpi",
     .help = "collectives of MPI, sums in its order; or the core's own over messages, with the bits of comm-shm",
     .choices = "mpi|core",
     .type = HD_OPT_ENUM,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct cm_settings, order)},
    {.name = "halves",
     .value = "narrow",
     .help =
         "sums of bf16 and fp16 travel as they are, rounded at each step; or as fp32: twice the bytes, rounded once",
     .choices = "narrow|wide",
     .type = HD_OPT_ENUM,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct cm_settings, halves)},
    {.name = "compare",
     .value = "true",
     .help =
         "members tell each other what they call before MPI is called: a difference is named; without it MPI may crash",
     .type = HD_OPT_BOOL,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct cm_settings, compare)},
    {.name = "boards",
     .needs = "compare=true",
     .value = "true",
     .help = "members of a machine compare in memory that they share; or by messages, as between machines",
     .type = HD_OPT_BOOL,
     .level = HD_LEVEL_DEV,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct cm_settings, boards)},
    {.name = "largest",
     .value = "1073741824",
     .unit = "elements",
     .help = "the most elements, or bytes of a message, that one call of MPI is given; more are cut",
     .min = 1,
     .max = 2147483647,
     .type = HD_OPT_INT,
     .level = HD_LEVEL_DEV,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct cm_settings, largest)},
};

static uint64_t caps_with(const void *settings)
{
    const struct cm_settings *s = settings;
    return HD_COMM_HOST_PROGRESS | (s->order == CM_ORDER_CORE ? HD_COMM_MESSAGES_ONLY : HD_COMM_ANY_ORDER);
}

/* For ranks that share cores: MPI waits by polling, and has to yield the core between two polls. */
static const char *const environment[] = {
    "OMPI_MCA_mpi_yield_when_idle=1",
    "OMPI_MCA_rmaps_base_oversubscribe=1",
    "OMPI_ALLOW_RUN_AS_ROOT=1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
    "PRTE_ALLOW_RUN_AS_ROOT=1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    NULL,
};

/* Open MPI listens on all networks, also where all ranks are on this machine: there shared memory is enough for the
 * ranks, and the loopback interface for mpirun. */
static const char *const local_environment[] = {"OMPI_MCA_btl=self,vader", "OMPI_MCA_oob_tcp_if_include=lo", NULL};

static const char *const command[] = {"mpirun", "-n", "%n", "--bind-to", "none", NULL};

static const struct hd_comm_launcher launcher = {
    .struct_size = sizeof launcher,
    .command = command,
    .environment = environment,
    .local_environment = local_environment,
    .source = "Debian's package openmpi-bin",
};

static const struct hd_comm_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_COMM_HOST_PROGRESS | HD_COMM_ANY_ORDER,
    .open = cm_open,
    .close = cm_close,
    .group = cm_group,
    .group_free = cm_group_free,
    .collective = cm_collective,
    .send = cm_send,
    .recv = cm_recv,
    .progress = cm_progress,
    .test = cm_test,
    .wait = cm_wait,
    .abort = cm_abort,
    .launcher = &launcher,
    .caps_with = caps_with,
};

HD_PLUGIN("comm-mpi", "0.1.0", "Apache-2.0", .kind = HD_KIND_COMM, .name = "mpi",
          .summary = "collectives and messages by Open MPI, inside a machine and between machines",
          .caps = HD_COMM_HOST_PROGRESS | HD_COMM_ANY_ORDER, HD_OPTIONS(options, struct cm_settings), .ops = &ops)
