/* The rendezvous server: one thread in poll(), no blocking call, every buffer bounded.
 *
 * A connection is a stranger until its HELLO shows the secret; strangers are few and short-lived, and may send nothing
 * else. A rank's connection that ends without BYE, or is silent for dead_after, is that rank's death. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/comm/gather.h"
#include "core/comm/kv.h"
#include "core/comm/liveness.h"
#include "core/comm/store.h"
#include "core/comm/wire.h"

enum { STRANGERS_MAX = 32, WAITS_PER_RANK = 64 };
#define STRANGER_SECONDS 5.0
#define OUT_MAX (16u << 20) /* bytes that a rank may leave unread */

struct conn {
    int fd;
    int32_t rank;         /* -1: a stranger */
    int closing;          /* 1: close once `out` is written */
    int leaving;          /* 1: said goodbye, and is let go when the parts are handed over */
    double heard, opened;
    uint8_t *in;          /* `in_room`: a greeting's size for a stranger, WIRE_FRAME_MAX for a rank */
    size_t in_room;
    uint8_t *out;
    size_t in_bytes, out_at, out_bytes, out_room;
};

/* A GET or a BARRIER whose reply is not due yet. */
struct wait {
    int32_t rank;
    uint32_t type, id;
    double deadline;
    size_t key_bytes;
    char key[WIRE_KEY_MAX];
};


struct hd__server {
    struct hd__server_options options;
    int listener, wake;
    uint16_t port;
    _Atomic int stop;
    _Atomic int32_t gone; /* ranks that left or died */
    pthread_t thread;
    struct hd__kv kv;
    uint8_t *ranks; /* HD__PART_... */
    HD__ARRAY(struct conn *) conns;
    HD__ARRAY(struct wait) waits;
    struct {
        int32_t code, rank, fault; /* HD_E_PEER or HD_E_CANCELLED; who; why who gave up did */
        char cause[512];
    } end; /* the first death or abort, told to ranks that connect later too */
    struct hd__gather gather;
    double slept, woke; /* how long this process was stopped the last time, and until when */
};

/* ---- connections */

static void conn_send(struct conn *c, const struct hd__frame *frame)
{
    size_t need = WIRE_HEADER + (size_t)frame->key_bytes + frame->value_bytes;
    if (c->out_at == c->out_bytes)
        c->out_at = c->out_bytes = 0;
    if (c->out_bytes + need > OUT_MAX) { /* it reads nothing: dead soon enough */
        c->closing = 1;
        return;
    }
    if (c->out_bytes + need > c->out_room) {
        c->out_room = HD__MAX(c->out_room * 2, c->out_bytes + need);
        c->out = hd__realloc(c->out, c->out_room);
    }
    c->out_bytes += hd__wire_write(c->out + c->out_bytes, frame);
}

static void reply(struct conn *c, uint32_t id, int32_t code, const void *value, size_t bytes)
{
    conn_send(c, &(struct hd__frame){.type = WIRE_REPLY,
                                     .id = id,
                                     .arg = code,
                                     .value = value,
                                     .value_bytes = (uint32_t)HD__MIN(bytes, (size_t)WIRE_VALUE_MAX)});
}

static void reject(struct conn *c, const char *why)
{
    conn_send(c, &(struct hd__frame){
                     .type = WIRE_REJECT, .value = (const uint8_t *)why, .value_bytes = (uint32_t)strlen(why)});
    c->closing = 1;
}

static struct conn *conn_of(struct hd__server *s, int32_t rank)
{
    for (uint32_t i = 0; i < s->conns.count; i++)
        if (s->conns.at[i]->rank == rank)
            return s->conns.at[i];
    return NULL;
}

static void tell_end(struct hd__server *s, struct conn *c)
{
    conn_send(c, &(struct hd__frame){.type = s->end.code == HD_E_PEER ? WIRE_DEAD : WIRE_ABORT,
                                     .arg = s->end.rank,
                                     .value = (const uint8_t *)s->end.cause,
                                     .value_bytes = (uint32_t)strlen(s->end.cause)});
}

static void job_ends(struct hd__server *s, int32_t fault, int32_t rank, const char *cause)
{
    char slept[128];
    if (s->end.code != HD_OK)
        return;
    if (s->options.rank >= 0 && s->slept > hd__live_silence(s->options.dead_after) && hd__now() < s->woke + 2) {
        /* The others have ended because of that, whatever it looks like from here. */
        snprintf(slept, sizeof slept, "rank %d, which serves the rendezvous, had been stopped for %.1f s", s->options.rank, s->slept);
        fault = HD_E_PEER;
        rank = s->options.rank;
        cause = slept;
    }
    s->end.code = fault == HD_E_PEER ? HD_E_PEER : HD_E_CANCELLED;
    s->end.fault = fault;
    s->end.rank = rank;
    snprintf(s->end.cause, sizeof s->end.cause, "%s", cause);
    for (uint32_t i = 0; i < s->conns.count; i++)
        if (s->conns.at[i]->rank >= 0)
            tell_end(s, s->conns.at[i]);
    hd__gather_begin(&s->gather, HD__GATHER_END, 0, hd__now());
}

/* ---- what everybody was doing */

static void look(struct hd__server *s, double waited, double now)
{
    if (s->end.code != HD_OK || !s->options.gathered || !hd__gather_begin(&s->gather, HD__GATHER_LOOK, waited, now))
        return;
    for (uint32_t i = 0; i < s->conns.count; i++)
        if (s->conns.at[i]->rank >= 0)
            conn_send(s->conns.at[i], &(struct hd__frame){.type = WIRE_SHOW, .arg = HD__GATHER_LOOK});
}

static void hand_over(struct hd__server *s)
{
    struct hd__gathered all = {.code = s->end.fault, .rank = s->end.rank, .cause = s->end.cause, .state = s->ranks};
    int32_t rank = -1, code = HD_OK;
    char cause[512] = "";
    hd__gather_show(&s->gather, &all);
    if (s->options.gathered)
        code = s->options.gathered(s->options.user, &all, &rank, cause);
    free(all.part);
    for (uint32_t i = 0; i < s->conns.count; i++)
        s->conns.at[i]->closing |= s->conns.at[i]->leaving;
    if (code != HD_OK && s->end.code == HD_OK)
        job_ends(s, code, rank, cause);
}

/* ---- waiting requests */

static void drop_waits(struct hd__server *s, int32_t rank)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->waits.count; i++)
        if (s->waits.at[i].rank != rank)
            s->waits.at[kept++] = s->waits.at[i];
    s->waits.count = kept;
}

static int same_wait(const struct wait *w, uint32_t type, const char *key, size_t key_bytes)
{
    return w->type == type && w->key_bytes == key_bytes && memcmp(w->key, key, key_bytes) == 0;
}

/* Answers and forgets every waiting request of this type and key. */
static void answer_waits(struct hd__server *s, uint32_t type, const char *key, size_t key_bytes, const void *value,
                         size_t bytes)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->waits.count; i++) {
        struct wait *w = &s->waits.at[i];
        struct conn *c = same_wait(w, type, key, key_bytes) ? conn_of(s, w->rank) : NULL;
        if (c)
            reply(c, w->id, HD_OK, value, bytes);
        else
            s->waits.at[kept++] = *w;
    }
    s->waits.count = kept;
}

/* "2, 5 and 3 more": the ranks without a waiting request for this barrier. */
static void missing_ranks(struct hd__server *s, const struct wait *barrier, char *out, size_t room)
{
    int listed = 0, more = 0;
    size_t n = 0;
    for (int32_t r = 0; r < s->options.size; r++) {
        int here = 0;
        for (uint32_t i = 0; i < s->waits.count && !here; i++)
            here = s->waits.at[i].rank == r && same_wait(&s->waits.at[i], barrier->type, barrier->key, barrier->key_bytes);
        if (here)
            continue;
        if (listed++ < 16)
            n += (size_t)snprintf(out + n, room - n, "%s%d", listed > 1 ? ", " : "", r);
        else
            more++;
    }
    if (more)
        snprintf(out + n, room - n, " and %d more", more);
}

static void expire_waits(struct hd__server *s, double now)
{
    for (uint32_t i = 0; i < s->waits.count;) {
        struct wait w = s->waits.at[i];
        char text[256] = "";
        if (w.deadline > now) {
            i++;
            continue;
        }
        if (w.type == WIRE_BARRIER)
            missing_ranks(s, &w, text, sizeof text);
        struct conn *c = conn_of(s, w.rank);
        if (c)
            reply(c, w.id, HD_E_TIMEOUT, text, strlen(text));
        memmove(&s->waits.at[i], &s->waits.at[i + 1], (--s->waits.count - i) * sizeof w);
    }
}

static void add_wait(struct hd__server *s, struct conn *c, const struct hd__frame *f, double now)
{
    struct wait w = {.rank = c->rank, .type = f->type, .id = f->id, .key_bytes = f->key_bytes};
    int mine = 0;
    for (uint32_t i = 0; i < s->waits.count; i++)
        mine += s->waits.at[i].rank == c->rank;
    if (mine >= WAITS_PER_RANK) {
        reply(c, f->id, HD_E_INVALID, "too many waiting requests", 25);
        return;
    }
    w.deadline = now + f->arg / 1e3;
    memcpy(w.key, f->key, f->key_bytes);
    hd__push(&s->waits, w);
}

/* ---- requests */

static void on_hello(struct hd__server *s, struct conn *c, const struct hd__frame *f)
{
    uint8_t body[8];
    if (f->type != WIRE_SAY_HELLO || f->value_bytes != WIRE_HELLO ||
        !hd__wire_equal(f->value + 8, s->options.secret, WIRE_SECRET)) {
        reject(c, "this is another job's rendezvous (the secret differs)");
        return;
    }
    int32_t rank = (int32_t)hd__wire_u32(f->value), size = (int32_t)hd__wire_u32(f->value + 4);
    char why[128] = "";
    if (size != s->options.size)
        snprintf(why, sizeof why, "the job has %d ranks here and %d there", s->options.size, size);
    else if (rank < 0 || rank >= size)
        snprintf(why, sizeof why, "rank %d is not one of 0 to %d", rank, size - 1);
    else if (s->ranks[rank] != HD__PART_NONE)
        snprintf(why, sizeof why, "rank %d has connected before", rank);
    if (why[0]) {
        reject(c, why);
        return;
    }
    c->rank = rank;
    c->in_room = WIRE_FRAME_MAX;
    s->ranks[rank] = HD__PART_HERE;
    hd__wire_put_u32(body, (uint32_t)size);
    hd__wire_put_u32(body + 4, (uint32_t)s->options.rank);
    conn_send(c, &(struct hd__frame){.type = WIRE_WELCOME, .arg = s->options.rank, .value = body, .value_bytes = 8});
    if (s->end.code != HD_OK)
        tell_end(s, c);
}

static void on_put(struct hd__server *s, struct conn *c, const struct hd__frame *f)
{
    if (hd__kv_put(&s->kv, f->key, f->key_bytes, f->value, f->value_bytes) != 0) {
        reply(c, f->id, HD_E_NOMEM, "the store is full", 17);
        return;
    }
    answer_waits(s, WIRE_GET, f->key, f->key_bytes, f->value, f->value_bytes);
    reply(c, f->id, HD_OK, NULL, 0);
}

static void on_get(struct hd__server *s, struct conn *c, const struct hd__frame *f, double now)
{
    const struct hd__kv_item *item = hd__kv_get(&s->kv, f->key, f->key_bytes);
    if (item)
        reply(c, f->id, HD_OK, item->value, item->value_bytes);
    else
        add_wait(s, c, f, now);
}

static void on_barrier(struct hd__server *s, struct conn *c, const struct hd__frame *f, double now)
{
    int32_t here = 0;
    add_wait(s, c, f, now);
    for (uint32_t i = 0; i < s->waits.count; i++)
        here += same_wait(&s->waits.at[i], WIRE_BARRIER, f->key, f->key_bytes);
    if (here == s->options.size)
        answer_waits(s, WIRE_BARRIER, f->key, f->key_bytes, NULL, 0);
}

static void on_frame(struct hd__server *s, struct conn *c, const struct hd__frame *f, double now)
{
    char cause[512];
    if (c->rank < 0) {
        on_hello(s, c, f);
        return;
    }
    switch (f->type) {
    case WIRE_PUT:
        on_put(s, c, f);
        break;
    case WIRE_GET:
        on_get(s, c, f, now);
        break;
    case WIRE_BARRIER:
        on_barrier(s, c, f, now);
        break;
    case WIRE_ABORT:
        snprintf(cause, sizeof cause, "rank %d: %.*s", c->rank, (int)HD__MIN(f->value_bytes, 400u),
                 (const char *)f->value);
        /* A rank that gives up because its transport lost another did not die itself. */
        job_ends(s, f->arg < 0 && f->arg != HD_E_PEER ? f->arg : HD_E_CANCELLED, c->rank, cause);
        break;
    case WIRE_PART:
        hd__gather_put(&s->gather, c->rank, f->arg == HD__GATHER_END ? HD__GATHER_END : HD__GATHER_LOOK, f->value, f->value_bytes);
        break;
    case WIRE_LATE:
        look(s, f->arg / 1e3, now);
        break;
    case WIRE_BYE:
        s->ranks[c->rank] = HD__PART_LEFT;
        c->leaving = 1;
        c->closing = s->gather.active != HD__GATHER_END;
        break;
    case WIRE_BEAT: /* answered, so that a rank notices when the server is silent */
        conn_send(c, &(struct hd__frame){.type = WIRE_BEAT});
        break;
    default:
        c->closing = 1; /* no request: a broken client, and so a dead rank */
    }
}

/* ---- the loop */

static void conn_free(struct hd__server *s, uint32_t i, const char *cause)
{
    struct conn *c = s->conns.at[i];
    int32_t rank = c->rank;
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
    s->conns.at[i] = s->conns.at[--s->conns.count];
    if (rank < 0)
        return;
    drop_waits(s, rank);
    if (s->ranks[rank] == HD__PART_HERE) {
        char text[256];
        s->ranks[rank] = HD__PART_DEAD;
        snprintf(text, sizeof text, "rank %d died (%s)", rank, cause);
        job_ends(s, HD_E_PEER, rank, text);
    }
    atomic_fetch_add(&s->gone, 1);
}

static void accept_one(struct hd__server *s, double now)
{
    uint32_t strangers = 0, oldest = 0;
    int one = 1, fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    for (uint32_t i = 0; i < s->conns.count; i++) {
        if (s->conns.at[i]->rank < 0 && (!strangers++ || s->conns.at[i]->opened < s->conns.at[oldest]->opened))
            oldest = i;
    }
    /* Ours greet at once: who has waited longest is least likely one of them. */
    if (strangers >= STRANGERS_MAX + (uint32_t)s->options.size)
        conn_free(s, oldest, "");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct conn *c = hd__alloc(sizeof *c);
    c->fd = fd;
    c->rank = -1;
    c->heard = c->opened = now;
    c->in_room = WIRE_HEADER + WIRE_HELLO;
    c->in = hd__alloc(c->in_room);
    hd__push(&s->conns, c);
}

/* NULL while the connection lives; else why it does not. */
static const char *conn_read(struct hd__server *s, struct conn *c, double now)
{
    int stranger = c->rank < 0;
    ssize_t got = read(c->fd, c->in + c->in_bytes, c->in_room - c->in_bytes);
    if (got == 0)
        return "its connection closed";
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? NULL : strerror(errno);
    c->heard = now;
    c->in_bytes += (size_t)got;
    size_t at = 0;
    struct hd__frame f;
    ptrdiff_t used = 0;
    while (!c->closing && (used = hd__wire_parse(c->in + at, c->in_bytes - at, &f)) > 0) {
        on_frame(s, c, &f, now);
        at += (size_t)used;
    }
    if (used < 0 || (c->rank < 0 && !c->closing && c->in_bytes == c->in_room)) /* it holds no greeting */
        return "it sent no frame of ours";
    memmove(c->in, c->in + at, c->in_bytes - at);
    c->in_bytes -= at;
    if (stranger && c->rank >= 0)
        c->in = hd__realloc(c->in, c->in_room);
    return NULL;
}

static const char *conn_write(struct conn *c)
{
    while (c->out_at < c->out_bytes) {
        ssize_t done = send(c->fd, c->out + c->out_at, c->out_bytes - c->out_at, MSG_NOSIGNAL);
        if (done < 0)
            return errno == EAGAIN || errno == EINTR ? NULL : strerror(errno);
        c->out_at += (size_t)done;
    }
    return c->closing ? "it left" : NULL;
}

static const char *conn_late(struct hd__server *s, struct conn *c, double now, char text[64])
{
    if (c->rank < 0)
        return now - c->opened > STRANGER_SECONDS ? "no greeting" : NULL;
    if (c->leaving || now - c->heard < hd__live_silence(s->options.dead_after))
        return NULL;
    snprintf(text, 64, "silent for %.1f s", now - c->heard);
    return text;
}

static int wait_ms(struct hd__server *s, double now)
{
    double until = now + hd__live_beat(s->options.dead_after);
    if (s->gather.active)
        until = HD__MIN(until, s->gather.deadline);
    for (uint32_t i = 0; i < s->conns.count; i++)
        if (s->conns.at[i]->rank >= 0 && !s->conns.at[i]->leaving)
            until = HD__MIN(until, s->conns.at[i]->heard + hd__live_silence(s->options.dead_after));
    for (uint32_t i = 0; i < s->waits.count; i++)
        until = HD__MIN(until, s->waits.at[i].deadline);
    return (int)(HD__MAX(0.0, until - now) * 1e3) + 1;
}

static void serve_conns(struct hd__server *s, const struct pollfd *fds, uint32_t n, double now)
{
    /* Backwards: conn_free moves the last one, which was served already, into the hole. */
    for (uint32_t i = n; i-- > 0;) {
        struct conn *c = s->conns.at[i];
        char text[64];
        const char *end = NULL;
        if (fds[i].revents & (POLLIN | POLLHUP | POLLERR))
            end = conn_read(s, c, now);
        if (!end)
            end = conn_late(s, c, now, text);
        if (end)
            conn_free(s, i, end);
    }
}

static void flush_conns(struct hd__server *s)
{
    for (uint32_t i = s->conns.count; i-- > 0;) {
        const char *end = conn_write(s->conns.at[i]);
        if (end)
            conn_free(s, i, end);
    }
}

static void *serve(void *arg)
{
    struct hd__server *s = arg;
    HD__ARRAY(struct pollfd) fds = {0};
    for (int stop = 0, more = 1; !stop || more;) {
        uint32_t n = s->conns.count;
        stop = atomic_load(&s->stop);
        fds.count = 0;
        for (uint32_t i = 0; i < n; i++) {
            struct conn *c = s->conns.at[i];
            short out = c->out_at < c->out_bytes ? POLLOUT : 0;
            hd__push(&fds, ((struct pollfd){.fd = c->fd, .events = (short)(POLLIN | out)}));
        }
        hd__push(&fds, ((struct pollfd){.fd = s->listener, .events = POLLIN}));
        hd__push(&fds, ((struct pollfd){.fd = s->wake, .events = stop ? 0 : POLLIN}));
        double before = hd__now();
        int ready = poll(fds.at, fds.count, stop && !s->gather.active ? 0 : wait_ms(s, before));
        if (ready < 0 && errno != EINTR)
            break;
        double now = hd__now();
        if (now - before > s->options.dead_after / 2) { /* we were stopped ourselves: nobody else is to blame */
            s->slept = now - before;
            s->woke = now;
        }
        if (s->woke == now)
            for (uint32_t i = 0; i < n; i++)
                s->conns.at[i]->heard = now;
        serve_conns(s, fds.at, n, now);
        expire_waits(s, now);
        if (fds.at[n].revents & POLLIN)
            accept_one(s, now);
        if (s->gather.active && hd__gather_complete(&s->gather, s->ranks, now))
            hand_over(s);
        flush_conns(s); /* who may leave now does not wait for the next event */
        more = ready > 0 || s->gather.active; /* what the ranks said before they ended still counts */
    }
    hd__free_array(&fds);
    return NULL;
}

/* ---- opening and closing */

static int32_t resolve(const char *address, struct sockaddr_in *at, struct hd_error *err)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *list;
    int bad = getaddrinfo(address, NULL, &hints, &list);
    if (bad)
        return hd_fail(err, HD_E_INVALID, "rendezvous address %s: %s", address, gai_strerror(bad));
    *at = *(const struct sockaddr_in *)(const void *)list->ai_addr;
    freeaddrinfo(list);
    return HD_OK;
}

static int32_t listen_at(struct hd__server *s, struct hd_error *err)
{
    const struct hd__server_options *o = &s->options;
    struct sockaddr_in at;
    socklen_t bytes = sizeof at;
    int one = 1;
    int32_t code = resolve(o->address, &at, err);
    if (code != HD_OK)
        return code;
    at.sin_port = htons(o->port);
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listener < 0)
        return hd_fail(err, HD_E_IO, "socket: %s", strerror(errno));
    setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(s->listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(s->listener, 1024) != 0)
        return hd_fail(err, HD_E_IO, "rendezvous cannot listen at %s:%u: %s%s", o->address, o->port, strerror(errno),
                       errno == EADDRNOTAVAIL ? " (rank 0 must run on the machine of MASTER_ADDR)" : "");
    if (getsockname(s->listener, (struct sockaddr *)&at, &bytes) != 0)
        return hd_fail(err, HD_E_IO, "getsockname: %s", strerror(errno));
    s->port = ntohs(at.sin_port);
    return HD_OK;
}

static void server_free(struct hd__server *s)
{
    for (uint32_t i = s->conns.count; i-- > 0;) {
        close(s->conns.at[i]->fd);
        free(s->conns.at[i]->in);
        free(s->conns.at[i]->out);
        free(s->conns.at[i]);
    }
    hd__free_array(&s->conns);
    hd__free_array(&s->waits);
    hd__kv_free(&s->kv);
    hd__gather_finish(&s->gather);
    free(s->ranks);
    if (s->listener >= 0)
        close(s->listener);
    if (s->wake >= 0)
        close(s->wake);
    free(s);
}

int32_t hd__server_open(const struct hd__server_options *options, struct hd__server **server, struct hd_error *err)
{
    struct hd__server *s = hd__alloc(sizeof *s);
    s->options = *options;
    s->listener = -1;
    s->ranks = hd__alloc((size_t)options->size);
    hd__gather_init(&s->gather, options->size);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int32_t code = s->wake < 0 ? hd_fail(err, HD_E_IO, "eventfd: %s", strerror(errno)) : listen_at(s, err);
    if (code == HD_OK && pthread_create(&s->thread, NULL, serve, s) != 0)
        code = hd_fail(err, HD_E_IO, "the rendezvous thread cannot start");
    if (code != HD_OK) {
        server_free(s);
        return code;
    }
    *server = s;
    return HD_OK;
}

uint16_t hd__server_port(const struct hd__server *server)
{
    return server->port;
}

void hd__server_drain(struct hd__server *server, double deadline)
{
    while (atomic_load(&server->gone) < server->options.size && hd__now() < deadline)
        usleep(2000);
}

void hd__server_close(struct hd__server *server)
{
    uint64_t one = 1;
    if (!server)
        return;
    atomic_store(&server->stop, 1);
    if (write(server->wake, &one, sizeof one) < 0)
        hd__log(HD_LOG_DEBUG, "store", "wake: %s", strerror(errno)); /* it wakes by itself within a beat */
    pthread_join(server->thread, NULL);
    server_free(server);
}
