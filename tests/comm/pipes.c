/* The smallest transport that trains: send and recv over local sockets, and nothing else. All collectives over it are
 * the core's own. One stream socket a pair of ranks; a message travels with its group, stream and length before it. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "heddle/comm.h"
#include "heddle/host.h"

struct header {
    uint64_t group, bytes;
    uint32_t stream, reserved;
};

struct message {
    struct message *next;
    struct header header;
    char *data;
    uint64_t moved; /* bytes, the header's too while it is sent */
    int done, owned; /* owned: nobody had asked for it when it came */
};

struct link { /* to one rank */
    int fd;
    struct message *out, *wanted, *early; /* to send; asked for; come too early; each in order */
    struct message *coming;
    struct header header; /* of the next message, as far as it was read */
    uint64_t header_read;
};

struct hd_comm {
    const struct hd_host *host;
    struct hd_world world;
    struct link *link; /* by rank */
};

struct hd_comm_group {
    struct hd_comm *comm;
    uint64_t id;
    int32_t n, reserved;
    int32_t ranks[];
};

static void append(struct message **list, struct message *m)
{
    while (*list)
        list = &(*list)->next;
    *list = m;
    m->next = NULL;
}

/* ---- opening: rank r connects to those below it and takes the connections of those above */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int32_t key_of(const struct hd_world *world, int32_t rank, char key[128])
{
    return snprintf(key, 128, "%s/pipes/%d", world->instance, rank) < 128 ? HD_OK : HD_E_INVALID;
}

static int32_t listen_here(struct hd_comm *c, int *fd, struct hd_error *err)
{
    struct sockaddr_un me = {.sun_family = AF_UNIX}; /* no name: the kernel gives one */
    socklen_t length = sizeof me.sun_family;
    char key[128];
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || bind(*fd, (struct sockaddr *)&me, length) || listen(*fd, c->world.size))
        return hd_fail(err, HD_E_IO, "cannot listen at a local socket: %s", strerror(errno));
    length = sizeof me;
    getsockname(*fd, (struct sockaddr *)&me, &length);
    key_of(&c->world, c->world.rank, key);
    return c->host->store_put(c->world.store, key, &me, length, err);
}

static int32_t connect_to(struct hd_comm *c, int32_t rank, struct hd_error *err)
{
    struct sockaddr_un peer;
    size_t length = sizeof peer;
    char key[128];
    int32_t rc;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    c->link[rank].fd = fd;
    key_of(&c->world, rank, key);
    rc = c->host->store_get(c->world.store, key, &peer, &length, now() + c->world.timeout, err);
    if (rc)
        return rc;
    if (fd < 0 || connect(fd, (struct sockaddr *)&peer, (socklen_t)length) ||
        write(fd, &c->world.rank, sizeof c->world.rank) != sizeof c->world.rank)
        return hd_fail(err, HD_E_IO, "cannot connect to rank %d: %s", rank, strerror(errno));
    return HD_OK;
}

static int32_t take_one(struct hd_comm *c, int listener, struct hd_error *err)
{
    struct pollfd wait = {.fd = listener, .events = POLLIN};
    int32_t rank = -1;
    int fd = poll(&wait, 1, (int)(1000 * c->world.timeout)) == 1 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (fd < 0 || read(fd, &rank, sizeof rank) != sizeof rank || rank <= c->world.rank || rank >= c->world.size)
        return hd_fail(err, HD_E_IO, "a rank above %d did not connect", c->world.rank);
    c->link[rank].fd = fd;
    return HD_OK;
}

static void pipes_close(struct hd_comm *c);

static int32_t pipes_open(const struct hd_host *host, const void *settings, const struct hd_world *world,
                          struct hd_comm **comm, struct hd_error *err)
{
    struct hd_comm *c = host->alloc(sizeof *c);
    int listener = -1;
    int32_t rc;
    (void)settings;
    c->host = host;
    c->world = *world;
    c->link = host->alloc((size_t)world->size * sizeof *c->link);
    for (int32_t r = 0; r < world->size; r++)
        c->link[r].fd = -1;
    rc = listen_here(c, &listener, err);
    for (int32_t r = 0; r < world->rank && !rc; r++)
        rc = connect_to(c, r, err);
    for (int32_t r = world->rank + 1; r < world->size && !rc; r++)
        rc = take_one(c, listener, err);
    close(listener);
    if (rc)
        pipes_close(c);
    else
        *comm = c;
    return rc;
}

static void free_list(struct message *m)
{
    for (struct message *next; m; m = next) {
        next = m->next;
        if (m->owned)
            free(m->data);
        free(m);
    }
}

static void pipes_close(struct hd_comm *c)
{
    for (int32_t r = 0; r < c->world.size; r++) {
        struct link *l = &c->link[r];
        if (l->fd >= 0)
            close(l->fd);
        free_list(l->out);
        free_list(l->wanted);
        free_list(l->early);
        if (l->coming)
            free_list(l->coming);
    }
    c->host->free(c->link);
    c->host->free(c);
}

/* ---- groups and messages */

static int32_t pipes_group(struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n,
                           struct hd_comm_group **group, struct hd_error *err)
{
    struct hd_comm_group *g = c->host->alloc(sizeof *g + (size_t)n * sizeof *ranks);
    (void)err;
    g->comm = c;
    g->n = n;
    memcpy(g->ranks, ranks, (size_t)n * sizeof *ranks);
    for (g->id = 5381; *name; name++)
        g->id = g->id * 33 + (unsigned char)*name;
    *group = g;
    return HD_OK;
}

static void pipes_group_free(struct hd_comm_group *g)
{
    g->comm->host->free(g);
}

static struct message *message_new(const struct hd_comm_group *g, uint32_t stream, const void *data, uint64_t bytes)
{
    struct message *m = calloc(1, sizeof *m);
    m->header = (struct header){.group = g->id, .bytes = bytes, .stream = stream};
    m->data = (char *)data;
    return m;
}

/* Takes the first of this group and stream out of a list. */
static struct message *take(struct message **list, const struct header *h)
{
    for (; *list; list = &(*list)->next) {
        struct message *m = *list;
        if (m->header.group == h->group && m->header.stream == h->stream) {
            *list = m->next;
            m->next = NULL;
            return m;
        }
    }
    return NULL;
}

static int32_t pipes_send(struct hd_comm_group *g, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                          hd_request *request, struct hd_error *err)
{
    struct message *m = message_new(g, stream, data, bytes);
    (void)err;
    append(&g->comm->link[g->ranks[peer]].out, m);
    *request = (uintptr_t)m;
    return HD_OK;
}

static int32_t pipes_recv(struct hd_comm_group *g, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                          hd_request *request, struct hd_error *err)
{
    struct link *l = &g->comm->link[g->ranks[peer]];
    struct message *m = message_new(g, stream, data, bytes), *early = take(&l->early, &m->header);
    *request = (uintptr_t)m;
    if (early) {
        int32_t rc = early->header.bytes == bytes ? HD_OK : hd_fail(err, HD_E_MISMATCH, "a message of another size");
        memcpy(data, early->data, early->header.bytes < bytes ? early->header.bytes : bytes);
        free_list(early);
        m->done = 1;
        return rc;
    }
    if (l->coming && l->coming->owned && l->coming->header.group == g->id && l->coming->header.stream == stream &&
        l->coming->header.bytes == bytes) { /* the rest of it goes where it belongs */
        memcpy(data, l->coming->data, l->coming->moved);
        m->moved = l->coming->moved;
        free_list(l->coming);
        l->coming = m;
        return HD_OK;
    }
    append(&l->wanted, m);
    return HD_OK;
}

/* ---- moving bytes: each returns 1 if anything moved */

static int32_t broken(struct hd_comm *c, int32_t rank, struct hd_error *err)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        return 0;
    (void)c;
    return hd_fail(err, HD_E_PEER, "the connection to rank %d broke", rank);
}

static int32_t push(struct hd_comm *c, int32_t rank, struct hd_error *err)
{
    struct message *m = c->link[rank].out;
    ssize_t n;
    if (m->moved < sizeof m->header)
        n = send(c->link[rank].fd, (char *)&m->header + m->moved, sizeof m->header - m->moved, MSG_DONTWAIT | MSG_NOSIGNAL);
    else
        n = send(c->link[rank].fd, m->data + m->moved - sizeof m->header, m->header.bytes + sizeof m->header - m->moved,
                 MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0)
        return broken(c, rank, err);
    m->moved += (uint64_t)n;
    if (m->moved == m->header.bytes + sizeof m->header) {
        c->link[rank].out = m->next;
        m->next = NULL;
        m->done = 1;
    }
    return 1;
}

/* A header is there: who asked for this? */
static int32_t begin(struct link *l, struct hd_error *err)
{
    l->header_read = 0;
    l->coming = take(&l->wanted, &l->header);
    if (l->coming && l->coming->header.bytes != l->header.bytes)
        return hd_fail(err, HD_E_MISMATCH, "a message of %llu bytes where %llu were expected",
                       (unsigned long long)l->header.bytes, (unsigned long long)l->coming->header.bytes);
    if (!l->coming) {
        l->coming = calloc(1, sizeof *l->coming);
        l->coming->header = l->header;
        l->coming->owned = 1;
        l->coming->data = malloc(l->header.bytes + 1);
    }
    return 1;
}

static int32_t pull(struct hd_comm *c, int32_t rank, struct hd_error *err)
{
    struct link *l = &c->link[rank];
    struct message *m = l->coming;
    char *to = m ? m->data + m->moved : (char *)&l->header + l->header_read;
    uint64_t left = m ? m->header.bytes - m->moved : sizeof l->header - l->header_read;
    ssize_t n = left ? recv(l->fd, to, left, MSG_DONTWAIT) : 0;
    if (left && n == 0)
        return hd_fail(err, HD_E_PEER, "rank %d closed its connection", rank);
    if (n < 0)
        return broken(c, rank, err);
    if (!m) {
        l->header_read += (uint64_t)n;
        return l->header_read == sizeof l->header ? begin(l, err) : 1;
    }
    m->moved += (uint64_t)n;
    if (m->moved == m->header.bytes) {
        l->coming = NULL;
        m->done = 1;
        if (m->owned)
            append(&l->early, m);
    }
    return 1;
}

/* A rank that is through closes its end: only who still wants something from it minds. */
static int32_t pipes_progress(struct hd_comm *c, struct hd_error *err)
{
    int32_t moved = 0;
    for (int32_t r = 0; r < c->world.size; r++) {
        struct link *l = &c->link[r];
        int32_t rc = l->out ? push(c, r, err) : 0;
        if (rc >= 0 && (l->wanted || l->coming))
            moved |= rc, rc = pull(c, r, err);
        if (rc < 0)
            return rc;
        moved |= rc;
    }
    return moved;
}

static int32_t pipes_test(struct hd_comm *c, hd_request request, int32_t *done, struct hd_error *err)
{
    struct message *m = (struct message *)(uintptr_t)request;
    (void)c, (void)err;
    *done = m->done;
    if (m->done)
        free(m);
    return HD_OK;
}

static void pipes_abort(struct hd_comm *c, const char *reason)
{
    (void)reason;
    for (int32_t r = 0; r < c->world.size; r++)
        if (c->link[r].fd >= 0)
            shutdown(c->link[r].fd, SHUT_RDWR);
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

static const struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_COMM,
    .name = "pipes",
    .summary = "for tests: messages over local sockets, no collectives",
    .caps = HD_COMM_HOST_PROGRESS | HD_COMM_LOCAL_ONLY,
    .ops = &ops,
};

HD_PLUGIN_ONE("comm-pipes", "0.1.0", "Apache-2.0", component)
