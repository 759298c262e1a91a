/* Control messages between ranks: short, so that MPI sends them at once, received or not. They are polled for while an
 * operation waits, and sent only after a failure. */
#include "internal.h"

#define TAG_NOTE 1

int32_t cm_control_listen(struct hd_comm *c, struct hd_error *err)
{
    int code = MPI_Irecv(&c->note, sizeof c->note, MPI_BYTE, MPI_ANY_SOURCE, TAG_NOTE, c->mpi, &c->listening);
    return code == MPI_SUCCESS ? HD_OK : cm_fail(err, code, "MPI_Irecv");
}

void cm_control_stop(struct hd_comm *c)
{
    if (c->listening == MPI_REQUEST_NULL)
        return;
    MPI_Cancel(&c->listening);
    MPI_Wait(&c->listening, MPI_STATUS_IGNORE);
}

/* Frees the messages that MPI has sent. */
static void free_sent(struct hd_comm *c)
{
    for (struct cm_sent **at = &c->sent, *sent; (sent = *at);) {
        int done = 0;
        if (MPI_Test(&sent->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done) {
            *at = sent->next;
            c->host->free(sent);
        } else {
            at = &sent->next;
        }
    }
}

/* Waits for nobody: MPI may read what a rank that is gone never took, so those bytes stay until the process ends. */
void cm_control_release(struct hd_comm *c)
{
    free_sent(c);
    for (struct cm_sent *sent = c->sent; sent; sent = sent->next)
        MPI_Request_free(&sent->request);
    c->sent = NULL;
}

/* Below MPI's eager size a note is on its way when the call returns; its bytes must stay until MPI has done with
 * them. */
static void send_note(struct hd_comm *c, const struct cm_note *note, int32_t rank)
{
    struct cm_sent *sent = c->host->alloc(sizeof *sent);
    if (!sent)
        return;
    sent->note = *note;
    if (MPI_Isend(&sent->note, sizeof sent->note, MPI_BYTE, rank, TAG_NOTE, c->mpi, &sent->request) != MPI_SUCCESS) {
        c->host->free(sent);
        return;
    }
    sent->next = c->sent;
    c->sent = sent;
}

static int shares_group(const struct hd_comm *c, int32_t rank)
{
    for (const struct cm_group *g = c->groups; g; g = g->next)
        for (int32_t i = 0; i < g->n; i++)
            if (g->ranks[i] == rank)
                return 1;
    return !c->groups; /* closing: it had them */
}

void cm_control_send(struct hd_comm *c, const struct cm_group *g, int32_t code, const char *text)
{
    struct cm_note note = {.group = g ? g->id : 0, .rank = c->world.rank, .code = code};
    snprintf(note.text, sizeof note.text, "%s", text);
    for (int32_t i = 0; i < (g ? g->n : c->world.size); i++) {
        int32_t rank = g ? g->ranks[i] : i;
        if (rank != c->world.rank && (g || shares_group(c, rank)))
            send_note(c, &note, rank);
    }
    free_sent(c);
}

/* Everything ends with it, now and later. */
static void end(struct hd_comm *c, const struct hd_error *err)
{
    if (c->error.code != HD_OK)
        return;
    c->error = *err;
    c->failed = 1;
    for (struct cm_group *g = c->groups; g; g = g->next)
        cm_group_fail(g, err);
}

static void take(struct hd_comm *c, const struct cm_note *note)
{
    struct hd_error err = HD_ERROR_INIT;
    err.peer = note->rank;
    if (!note->group) {
        hd_fail(&err, note->code, "mpi: rank %d %s%.*s", note->rank, note->code == HD_E_CANCELLED ? "aborted: " : "",
                CM_REASON, note->text);
        end(c, &err);
        return;
    }
    for (struct cm_group *g = c->groups; g; g = g->next)
        if (g->id == note->group) {
            hd_fail(&err, note->code, "mpi: rank %d gave group %s up: %.*s", note->rank, g->name, CM_REASON,
                    note->text);
            cm_group_fail(g, &err);
        }
}

void cm_control_poll(struct hd_comm *c)
{
    struct hd_error err = HD_ERROR_INIT;
    int come = 0;
    if (!c->told && atomic_load_explicit(&c->aborting, memory_order_acquire) == 2) {
        c->told = 1;
        err.peer = c->world.rank;
        hd_fail(&err, HD_E_CANCELLED, "mpi: rank %d aborted: %s", c->world.rank, c->reason);
        if (c->mpi != MPI_COMM_NULL)
            cm_control_send(c, NULL, HD_E_CANCELLED, c->reason);
        end(c, &err);
    }
    while (c->listening != MPI_REQUEST_NULL && MPI_Test(&c->listening, &come, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
           come) {
        struct cm_note note = c->note;
        cm_control_listen(c, NULL);
        take(c, &note);
    }
    free_sent(c);
}
