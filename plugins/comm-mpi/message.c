/* Send and recv: MPI's own, in the group's communicator; the stream is the tag. */
#include "internal.h"

int cm_type(uint64_t count, MPI_Datatype element, int64_t largest, int *n, MPI_Datatype *type, int *is_new)
{
    uint64_t whole = count / (uint64_t)largest, rest = count % (uint64_t)largest;
    int lengths[2] = {(int)whole, (int)rest}, bytes, code;
    MPI_Aint at[2] = {0};
    MPI_Datatype types[2] = {MPI_DATATYPE_NULL, element};
    *is_new = whole > 1 || (whole && rest);
    *n = *is_new ? 1 : (int)count;
    *type = element;
    if (!*is_new)
        return MPI_SUCCESS;
    MPI_Type_size(element, &bytes);
    at[1] = (MPI_Aint)(whole * (uint64_t)largest * (uint64_t)bytes);
    if ((code = MPI_Type_contiguous((int)largest, element, &types[0])) != MPI_SUCCESS)
        return code;
    code = MPI_Type_create_struct(rest ? 2 : 1, lengths, at, types, type);
    MPI_Type_free(&types[0]);
    return code == MPI_SUCCESS ? MPI_Type_commit(type) : code;
}

/* Room for one more message under way. */
static int32_t make_room(struct cm_group *g, struct hd_error *err)
{
    const struct hd_host *host = g->comm->host;
    uint32_t room = CM_MAX(16, 2 * g->message_room);
    if (g->n_messages < g->message_room)
        return HD_OK;
    struct cm_op **message = host->alloc(room * sizeof *message);
    MPI_Request *request = host->alloc(room * sizeof *request);
    int *index = host->alloc(room * sizeof *index);
    MPI_Status *status = host->alloc(room * sizeof *status);
    if (!message || !request || !index || !status) {
        host->free(message), host->free(request), host->free(index), host->free(status);
        return hd_fail(err, HD_E_NOMEM, "mpi: no memory");
    }
    memcpy(message, g->n_messages ? g->message : message, g->n_messages * sizeof *message);
    memcpy(request, g->n_messages ? g->request : request, g->n_messages * sizeof *request);
    host->free(g->message), host->free(g->request), host->free(g->index), host->free(g->status);
    g->message = message;
    g->request = request;
    g->index = index;
    g->status = status;
    g->message_room = room;
    return HD_OK;
}

/* Streams of the core are the largest numbers, and tags are few: UCX has 2^23, Intel MPI 2^19. */
static int tag_of(uint32_t stream)
{
    return stream >= HD_STREAMS_OF_CALLERS ? (int)(stream - HD_STREAMS_OF_CALLERS) : (int)stream + CM_TAG_CALLERS;
}

static int start(struct cm_op *op, const void *from, void *to, MPI_Request *request)
{
    struct cm_group *g = op->group;
    MPI_Datatype type;
    int n, is_new, tag = tag_of(op->stream);
    int code = cm_type(op->bytes, MPI_BYTE, g->comm->settings.largest, &n, &type, &is_new);
    if (code == MPI_SUCCESS)
        code = op->kind == CM_SEND ? MPI_Isend(from, n, type, op->peer, tag, g->mpi, request)
                                   : MPI_Irecv(to, n, type, op->peer, tag, g->mpi, request);
    if (is_new)
        MPI_Type_free(&type);
    return code;
}

static int32_t check(const struct cm_group *g, int32_t peer, uint32_t stream, struct hd_error *err)
{
    if (peer < 0 || peer >= g->n)
        return hd_fail(err, HD_E_INVALID, "mpi: a message for member %d of group %s of %d", peer, g->name, g->n);
    int32_t last = g->comm->largest_tag - CM_TAG_CALLERS;
    if (stream < HD_STREAMS_OF_CALLERS && (int32_t)stream > last)
        return hd_fail(err, HD_E_UNSUPPORTED, "mpi: stream %u: with this MPI, whose largest tag is %d, the last is %d",
                       stream, g->comm->largest_tag, last);
    if (stream >= HD_STREAMS_OF_CALLERS && stream - HD_STREAMS_OF_CALLERS >= CM_CORE_STREAMS)
        return hd_fail(err, HD_E_INVALID, "mpi: stream %u: the last is %u", stream,
                       HD_STREAMS_OF_CALLERS + CM_CORE_STREAMS - 1);
    return HD_OK;
}

static int32_t post(struct cm_group *g, uint32_t kind, int32_t peer, uint32_t stream, const void *from, void *to,
                    uint64_t bytes, hd_request *request, struct hd_error *err)
{
    int32_t rc = cm_usable(g, err);
    struct cm_op *op =
        rc || (rc = check(g, peer, stream, err)) || (rc = make_room(g, err)) ? NULL : cm_op_new(g, kind, err);
    char text[160];
    if (!op)
        return rc ? rc : HD_E_NOMEM;
    op->peer = peer;
    op->stream = stream;
    op->bytes = bytes;
    int code = start(op, from, to, &g->request[g->n_messages]);
    if (code != MPI_SUCCESS) {
        struct hd_error why = HD_ERROR_INIT;
        cm_fail(&why, code, cm_op_text(op, text));
        cm_op_release(g->comm, op);
        cm_group_give_up(g, &why);
        return cm_usable(g, err);
    }
    g->message[g->n_messages++] = op;
    *request = rq_number(&op->id);
    return HD_OK;
}

int32_t cm_send(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                hd_request *request, struct hd_error *err)
{
    return post((struct cm_group *)group, CM_SEND, peer, stream, data, NULL, bytes, request, err);
}

int32_t cm_recv(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                hd_request *request, struct hd_error *err)
{
    return post((struct cm_group *)group, CM_RECV, peer, stream, NULL, data, bytes, request, err);
}

/* ---- completion */

static void wrong_size(struct cm_op *op, uint64_t sent)
{
    struct cm_group *g = op->group;
    struct hd_error err = HD_ERROR_INIT;
    err.peer = g->ranks[op->peer];
    hd_fail(&err, HD_E_MISMATCH, "mpi: message in group %s, stream %u: rank %d sends %llu bytes, rank %d receives %llu",
            g->name, op->stream, g->ranks[op->peer], (unsigned long long)sent, g->ranks[g->me],
            (unsigned long long)op->bytes);
    cm_group_give_up(g, &err);
}

static void finish(struct cm_op *op, int code, MPI_Status *status)
{
    struct cm_group *g = op->group;
    struct hd_error err = HD_ERROR_INIT;
    MPI_Count got = 0;
    int class = MPI_SUCCESS;
    char text[160];
    MPI_Error_class(code, &class);
    if (op->kind == CM_RECV)
        MPI_Get_elements_x(status, MPI_BYTE, &got);
    if (class == MPI_ERR_TRUNCATE || (class == MPI_SUCCESS && op->kind == CM_RECV && (uint64_t)got != op->bytes)) {
        wrong_size(op, (uint64_t)got);
    } else if (class != MPI_SUCCESS) {
        cm_fail(&err, code, cm_op_text(op, text));
        cm_group_give_up(g, &err);
    } else {
        cm_op_finish(op, HD_OK);
    }
}

int cm_messages_advance(struct cm_group *g)
{
    int n = 0, code = MPI_Testsome((int)g->n_messages, g->request, &n, g->index, g->status);
    if (n == MPI_UNDEFINED || n <= 0)
        return 0;
    for (int k = 0; k < n; k++) { /* nothing is moved yet: a failure ends all that are still listed */
        struct cm_op *op = g->message[g->index[k]];
        finish(op, code == MPI_ERR_IN_STATUS ? g->status[k].MPI_ERROR : code, &g->status[k]);
        if (g->error.code != HD_OK)
            return 1;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < g->n_messages; i++)
        if (!g->message[i]->done) {
            g->message[kept] = g->message[i];
            g->request[kept++] = g->request[i];
        }
    g->n_messages = kept;
    return 1;
}
