/* Opening, closing, aborting. */
#include <sched.h>

#include "internal.h"

/* Looks without a result before a wait gives the core away between two. */
#define SPINS_CROWDED 32
#define SPINS_ALONE 16384

/* Is MPI's world the job's? It is not where something else than MPI's launcher started the ranks: each is then
 * alone. */
static int32_t check_size(const struct hd_world *world, struct hd_error *err)
{
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == world->size)
        return HD_OK;
    if (size > world->size)
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "mpi: MPI has %d ranks here, and %d of them are to have a transport of their own: it serves all "
                       "of them or none, so inside the machines or nodes of a job name another",
                       size, world->size);
    return hd_fail(err, HD_E_INVALID,
                   "mpi: MPI has %d rank%s here, the job %d: let heddle start the ranks, or start them with mpirun "
                   "-n %d or srun --mpi=pmix -n %d, and with the MPI that this plugin was built for",
                   size, size == 1 ? "" : "s", world->size, world->size, world->size);
}

/* Which ranks are here, as MPI sees it, and do they share cores? Then a wait gives the core away at once. */
static int look_at_machine(struct hd_comm *c)
{
    MPI_Comm here;
    cpu_set_t mine, all;
    int code = MPI_Comm_split_type(c->mpi, MPI_COMM_TYPE_SHARED, c->world.rank, MPI_INFO_NULL, &here), ranks = 1;
    if (code != MPI_SUCCESS)
        return code;
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof mine, &mine))
        CPU_SET(0, &mine);
    MPI_Comm_size(here, &ranks);
    c->node = c->world.rank;
    code = MPI_Bcast(&c->node, 1, MPI_INT32_T, 0, here);
    if (code == MPI_SUCCESS)
        code = MPI_Allreduce(&mine, &all, sizeof mine, MPI_BYTE, MPI_BOR, here);
    c->spins = ranks > CPU_COUNT(&all) ? SPINS_CROWDED : SPINS_ALONE;
    MPI_Comm_free(&here);
    return code;
}

/* All ranks, in heddle's order, which need not be MPI's. What follows the barrier cannot wait for long: all are
 * there. */
static int32_t make_world(struct hd_comm *c, struct hd_error *err)
{
    MPI_Request here;
    int *tag, has_tag;
    int32_t rc = check_size(&c->world, err);
    int code = rc ? MPI_SUCCESS : MPI_Ibarrier(MPI_COMM_WORLD, &here);
    if (rc || code != MPI_SUCCESS)
        return rc ? rc : cm_fail(err, code, "MPI_Ibarrier");
    if ((rc = cm_wait_all(c, 1, &here, "opening the transport", err)))
        return rc;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag, &has_tag);
    c->largest_tag = has_tag ? *tag : INT16_MAX; /* the least that MPI allows */
    code = MPI_Comm_split(MPI_COMM_WORLD, 0, c->world.rank, &c->mpi);
    if (code == MPI_SUCCESS)
        code = look_at_machine(c);
    return code == MPI_SUCCESS ? cm_control_listen(c, err) : cm_fail(err, code, "MPI_Comm_split");
}

int32_t cm_open(const struct hd_host *host, const void *settings, const struct hd_world *world, struct hd_comm **comm,
                struct hd_error *err)
{
    struct hd_comm *c = host->alloc(sizeof *c);
    int32_t rc = c ? cm_process_open(err) : hd_fail(err, HD_E_NOMEM, "mpi: no memory");
    if (rc) {
        host->free(c);
        return rc;
    }
    c->host = host;
    rq_init(&c->ops, host, sizeof(struct cm_op), 0);
    c->settings = *(const struct cm_settings *)settings;
    c->world = *world;
    c->mpi = MPI_COMM_NULL;
    c->listening = MPI_REQUEST_NULL;
    c->error = (struct hd_error)HD_ERROR_INIT;
    if ((rc = make_world(c, err))) {
        c->failed = 1;
        cm_close(c);
        return rc;
    }
    *comm = c;
    return HD_OK;
}

/* MPI_Finalize waits for everybody, so it is only called when everybody is known to be there. */
static int all_leave(struct hd_comm *c)
{
    MPI_Request here;
    struct hd_error err = HD_ERROR_INIT;
    return !c->failed && c->error.code == HD_OK && MPI_Ibarrier(c->mpi, &here) == MPI_SUCCESS &&
           cm_wait_all(c, 1, &here, "closing the transport", &err) == HD_OK;
}

void cm_close(struct hd_comm *c)
{
    int in_order;
    if (!c)
        return;
    while (c->groups) {
        c->failed |= c->groups->error.code != HD_OK || c->groups->head || c->groups->n_messages;
        cm_group_free((struct hd_comm_group *)c->groups);
    }
    if (c->mpi != MPI_COMM_NULL && c->failed && c->error.code == HD_OK)
        cm_control_send(c, NULL, HD_E_PEER, "left after a failure");
    in_order = all_leave(c);
    cm_control_stop(c); /* into *c, which goes */
    cm_control_release(c);
    if (in_order)
        MPI_Comm_free(&c->mpi);
    cm_process_close(in_order);
    cm_ops_free(c);
    c->host->free(c->hashes);
    c->host->free(c);
}

/* From any thread: a note for the one that calls MPI. */
void cm_abort(struct hd_comm *c, const char *reason)
{
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&c->aborting, &none, 1))
        return;
    snprintf(c->reason, sizeof c->reason, "%s", reason ? reason : "aborted");
    atomic_store_explicit(&c->aborting, 2, memory_order_release);
}
