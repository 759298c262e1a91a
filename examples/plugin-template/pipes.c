/* comm-pipes: a transport that offers send and recv, and nothing else: all collectives over it are heddle's own.
 * One pipe a pair of ranks and direction; a header with group, stream and length travels before each message.
 * A template for your own: it is built outside heddle's tree, from the installed headers alone. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "heddle/comm.h"
#include "heddle/host.h"

struct header {
    uint64_t group;
    uint32_t stream, bad; /* nothing follows: MISMATCH, one of your messages had another size; or ABORTED */
    uint64_t bytes;
};

enum { SENT, WANTED, CAME, DONE };
enum { MISMATCH = 1, ABORTED };
struct message {
    struct message *next;
    struct header header;
    char *data;     /* the caller's; behind this struct if it CAME */
    uint64_t moved; /* bytes, the header's too */
    uint32_t kind, done;
};

struct link {             /* with one rank, oneself too */
    int fd[3];            /* to read; to write; the end that the other opens: while it is there, writing is no signal */
    int32_t wanted;       /* how many are asked for */
    struct message *list; /* in order: to be sent, asked for, come before they were */
    struct message *going, *coming;
};

struct hd_comm {
    struct hd_world world;
    struct hd_error error; /* the first; everything after it fails with it */
    _Atomic int64_t aborted;
    char reason[128];   /* of aborted */
    struct link link[]; /* by rank, and one without pipes, of what is done and was not asked for since */
};

struct hd_comm_group {
    struct hd_comm *comm;
    uint64_t id;
    int32_t ranks[];
};

static int32_t broken(struct hd_comm *c, int32_t code, int32_t rank, const char *what)
{
    if (!c->error.code)
        c->error.peer = hd_job_rank(&c->world, rank), hd_fail(&c->error, code, "rank %d: %s", (int)c->error.peer, what);
    return c->error.code;
}

static int32_t state(struct hd_comm *c, struct hd_error *err)
{
    for (int32_t r = 0; c->aborted && !c->error.code && r < c->world.size; r++)
        if (!c->link[r].going)
            (void)!write(c->link[r].fd[1], &(struct header){.bad = ABORTED}, sizeof(struct header));
    if (c->aborted)
        broken(c, HD_E_CANCELLED, c->world.rank, c->reason);
    if (c->error.code && err)
        err->peer = c->error.peer, hd_fail(err, c->error.code, "%s", c->error.message);
    return c->error.code;
}

/* Takes the first of a kind, of h's group and stream unless h is NULL, out of the list. */
static struct message *take(struct link *l, uint32_t kind, const struct header *h)
{
    struct message **at = &l->list, *m;
    while (*at && ((*at)->kind != kind || (h && memcmp(&(*at)->header, h, offsetof(struct header, bytes)))))
        at = &(*at)->next;
    if ((m = *at))
        *at = m->next, m->next = NULL;
    return m;
}

static void append(struct link *l, struct message *m, uint32_t kind)
{
    struct message **at = &l->list;
    while (*at)
        at = &(*at)->next;
    l->wanted += kind == WANTED;
    (*at = m)->kind = kind;
}

/* ---- opening: a rank makes the pipes that it writes; the others open them by its process and descriptor number */

/* Nobody closes before all have opened. */
static int32_t all_opened(const struct hd_host *host, struct hd_comm *c, double deadline, struct hd_error *err)
{
    char text[160], one = 1;
    size_t bytes = 1;
    snprintf(text, sizeof text, "%s/pipes/%d/opened", c->world.instance, c->world.rank);
    int32_t rc = host->store_put(c->world.store, text, &one, 1, err);
    for (int32_t r = 0; r < c->world.size && !rc; r++) {
        snprintf(text, sizeof text, "%s/pipes/%d/opened", c->world.instance, r);
        rc = host->store_get(c->world.store, text, &one, &bytes, deadline, err);
    }
    return rc;
}

static int32_t connect_all(const struct hd_host *host, struct hd_comm *c, struct hd_error *err)
{
    int32_t rc, n = c->world.size, mine[1025] = {getpid()}, theirs[1025], ends[2];
    size_t bytes = (size_t)(1 + n) * sizeof *mine;
    struct timespec t;
    char text[160];
    for (int32_t r = 0; r < n; r++) {
        if (pipe2(ends, O_NONBLOCK | O_CLOEXEC))
            return hd_fail(err, HD_E_IO, "cannot make a pipe: %s", strerror(errno));
        mine[1 + r] = c->link[r].fd[2] = ends[0];
        c->link[r].fd[1] = ends[1];
    }
    snprintf(text, sizeof text, "%s/pipes/%d", c->world.instance, c->world.rank);
    rc = host->store_put(c->world.store, text, mine, bytes, err);
    clock_gettime(CLOCK_MONOTONIC, &t);
    for (int32_t r = 0; r < n && !rc; r++) {
        snprintf(text, sizeof text, "%s/pipes/%d", c->world.instance, r);
        rc = host->store_get(c->world.store, text, theirs, &bytes, (double)t.tv_sec + c->world.timeout, err);
        snprintf(text, sizeof text, "/proc/%d/fd/%d", theirs[0], theirs[1 + c->world.rank]);
        if (!rc && (c->link[r].fd[0] = open(text, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0)
            rc = hd_fail(err, HD_E_IO, "cannot open %s of rank %d: %m", text, hd_job_rank(&c->world, r));
    }
    return rc ? rc : all_opened(host, c, (double)t.tv_sec + c->world.timeout, err);
}

static void pipes_close(struct hd_comm *c)
{
    for (int32_t r = 0; c && r <= c->world.size; r++) {
        struct link *l = &c->link[r];
        for (int i = 0; i < 3; i++)
            close(l->fd[i]);
        for (struct message *m; (m = l->list); free(m))
            l->list = m->next;
        free(l->going);
        free(l->coming);
    }
    free(c);
}

static int32_t pipes_open(const struct hd_host *host, const void *settings, const struct hd_world *world,
                          struct hd_comm **comm, struct hd_error *err)
{
    struct hd_comm *c = calloc(1, sizeof *c + (size_t)(world->size + 1) * sizeof *c->link);
    (void)settings; /* it has no options */
    if (!c || world->size > 1024)
        return free(c), hd_fail(err, HD_E_NOMEM, "no room for %d ranks (1024 at most)", world->size);
    *c = (struct hd_comm){.world = *world, .error = HD_ERROR_INIT};
    for (int32_t r = 0; r <= world->size; r++)
        c->link[r].fd[0] = c->link[r].fd[1] = c->link[r].fd[2] = -1;
    int32_t rc = connect_all(host, c, err);
    *comm = rc ? *comm : c;
    if (rc)
        pipes_close(c);
    return rc;
}

static int32_t pipes_group(struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n,
                           struct hd_comm_group **group, struct hd_error *err)
{
    struct hd_comm_group *g = calloc(1, sizeof *g + (size_t)n * sizeof *ranks);
    if (!g)
        return hd_fail(err, HD_E_NOMEM, "no memory for group %s", name);
    g->comm = c;
    while (*name) /* a number of the name and the members: the same on all of them */
        g->id = g->id * 33 + (unsigned char)*name++;
    for (int32_t i = 0; i < n; i++)
        g->id = g->id * 1000003 + (uint64_t)(g->ranks[i] = ranks[i]);
    *group = g;
    return HD_OK;
}

static void pipes_group_free(struct hd_comm_group *g)
{
    free(g);
}

static int32_t post(struct hd_comm_group *g, int32_t peer, uint32_t kind, struct header header, void *data,
                    hd_request *request, struct hd_error *err)
{
    int32_t rc = state(g->comm, err);
    struct message *m = rc ? NULL : calloc(1, sizeof *m);
    if (!m)
        return rc ? rc : hd_fail(err, HD_E_NOMEM, "no memory for a message");
    *m = (struct message){.header = header, .data = data};
    append(&g->comm->link[g->ranks[peer]], m, kind);
    *request = (uintptr_t)m;
    return HD_OK;
}

static int32_t pipes_send(struct hd_comm_group *g, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                          hd_request *request, struct hd_error *err)
{
    return post(g, peer, SENT, (struct header){g->id, stream, 0, bytes}, (void *)data, request, err);
}

static int32_t pipes_recv(struct hd_comm_group *g, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                          hd_request *request, struct hd_error *err)
{
    return post(g, peer, WANTED, (struct header){g->id, stream, 0, bytes}, data, request, err);
}

/* ---- moving: each returns 1 if anything moved, 0 if not, or an error */

/* The next bytes of a message through a pipe, of its header first. */
static int32_t move(struct hd_comm *c, int32_t rank, struct message *m, int writes)
{
    const struct link *l = &c->link[rank];
    uint64_t head = sizeof m->header, begins = m->moved < head;
    uint64_t left = (begins ? head : head + m->header.bytes) - m->moved;
    char *at = begins ? (char *)&m->header + m->moved : m->data + (m->moved - head);
    ssize_t n = writes ? write(l->fd[1], at, left) : read(l->fd[0], at, left);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : broken(c, HD_E_PEER, rank, strerror(errno));
    if (n == 0) /* a rank that is through closes its end: only who still wants something from it minds */
        return m->moved || l->going || l->wanted ? broken(c, HD_E_PEER, rank, "it left") : 0;
    m->moved += (uint64_t)n;
    m->done = m->moved == head + m->header.bytes;
    return 1;
}

static int32_t push(struct hd_comm *c, int32_t rank)
{
    struct link *l = &c->link[rank];
    l->going = l->going ? l->going : take(l, SENT, NULL);
    int32_t rc = l->going ? move(c, rank, l->going, 1) : 0;
    if (rc > 0 && l->going->done)
        append(&c->link[c->world.size], l->going, DONE), l->going = NULL;
    return rc;
}

static int32_t pull(struct hd_comm *c, int32_t rank)
{
    struct link *l = &c->link[rank];
    struct message *m = l->coming = l->coming ? l->coming : calloc(1, sizeof *m);
    int32_t rc = m ? move(c, rank, m, 0) : 0;
    if (rc > 0 && m->moved == sizeof m->header) {
        if (m->header.bad)
            return m->header.bad == ABORTED ? broken(c, HD_E_CANCELLED, rank, "it gave up")
                                            : broken(c, HD_E_MISMATCH, rank, "expected a message of another size");
        if (!(m = realloc(m, sizeof *m + m->header.bytes)))
            return broken(c, HD_E_NOMEM, rank, "no memory for a message");
        l->coming = m;
        m->data = (char *)(m + 1);
    }
    if (rc > 0 && m->done)
        append(l, m, CAME), l->coming = NULL;
    return rc;
}

/* Gives all that came to who asked for it. */
static int32_t match(struct hd_comm *c, int32_t rank)
{
    struct link *l = &c->link[rank];
    struct message *came = l->list, *m = NULL;
    while (came && (came->kind != CAME || !(m = take(l, WANTED, &came->header))))
        came = came->next;
    if (!came)
        return 0;
    take(l, CAME, &came->header); /* this one: the first of its group and stream */
    l->wanted--;
    if (came->header.bytes == m->header.bytes)
        m->done = !m->header.bytes || memcpy(m->data, came->data, m->header.bytes);
    else if (!l->going)
        (void)!write(l->fd[1], &(struct header){.bad = MISMATCH}, sizeof(struct header));
    free(came), append(&c->link[c->world.size], m, DONE);
    return m->done ? match(c, rank) | 1 : broken(c, HD_E_MISMATCH, rank, "a message does not have the expected size");
}

static int32_t pipes_progress(struct hd_comm *c, struct hd_error *err)
{
    int32_t (*const steps[])(struct hd_comm *, int32_t) = {push, match, pull}, moved = 0;
    for (int32_t i = 0; i < 3 * c->world.size && !state(c, NULL); i++)
        moved |= steps[i % 3](c, i / 3) > 0;
    return state(c, err) ? c->error.code : moved;
}

static int32_t pipes_test(struct hd_comm *c, hd_request request, int32_t *done, struct hd_error *err)
{
    struct message *m = (struct message *)(uintptr_t)request, **at = &c->link[c->world.size].list;
    for (*done = (int32_t)m->done; *done && *at != m; at = &(*at)->next)
        continue;
    if (*done)
        *at = m->next, free(m);
    return *done ? HD_OK : state(c, err);
}

static void pipes_abort(struct hd_comm *c, const char *reason)
{
    if (!c->aborted)
        snprintf(c->reason, sizeof c->reason, "%s", reason);
    c->aborted = 1;
}

static const struct hd_comm_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_COMM_HOST_PROGRESS | HD_COMM_LOCAL_ONLY,
    .open = pipes_open,
    .close = pipes_close,
    .group = pipes_group,
    .group_free = pipes_group_free,
    .send = pipes_send,
    .recv = pipes_recv,
    .progress = pipes_progress,
    .test = pipes_test,
    .abort = pipes_abort,
};

HD_PLUGIN("comm-pipes", "1.0.0", "Apache-2.0", .kind = HD_KIND_COMM, .name = "pipes",
          .summary = "messages through pipes, no collectives of its own", .ops = &ops)
