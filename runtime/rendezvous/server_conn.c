/* Connections of the server: every buffer is bounded, and a stranger may send nothing but a greeting. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/rendezvous/address.h"
#include "runtime/rendezvous/server_internal.h"

enum { STRANGERS_MAX = 32 };
#define OUT_MAX (16u << 20) /* bytes that a rank may leave unread */

void hd__server_conn_send(struct server_conn *c, const struct hd__frame *frame)
{
    size_t need = WIRE_HEADER + (size_t)frame->key_bytes + frame->value_bytes + WIRE_TAG;
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
    c->out_bytes += c->proved ? hd__auth_seal(&c->to, c->out + c->out_bytes, frame)
                              : hd__store_wire_write(c->out + c->out_bytes, frame);
}

/* A terminal's signal comes to the ranks as it comes to the launcher, which may be slower to take it. */
static int is_stopping(struct hd__server *s)
{
    sigset_t pending;
    if (s->options.stops && !sigpending(&pending) && !sigandset(&pending, &pending, s->options.stops) &&
        !sigisemptyset(&pending))
        hd__server_stopping(s);
    return atomic_load(&s->stopping.all);
}

/* `cause` may be text of the connection's own. */
void hd__server_conn_free(struct hd__server *s, uint32_t i, const char *cause)
{
    struct server_conn *c = s->conns.at[i];
    close(c->fd);
    s->conns.at[i] = s->conns.at[--s->conns.count];
    if (c->rank >= 0) {
        if (s->conn_of[c->rank] == c)
            s->conn_of[c->rank] = NULL;
        if (s->rank_state[c->rank] == HD__RANK_CONNECTED && is_stopping(s)) {
            s->rank_state[c->rank] = HD__RANK_LEFT; /* before the first step a signal ends it */
            if (!(s->stopping.since > 0)) {
                s->stopping.rank = c->rank;
                s->stopping.since = hd__now();
            }
        } else if (s->rank_state[c->rank] == HD__RANK_CONNECTED) {
            hd__server_rank_died(s, c->rank, cause);
        }
        if (s->options.members) {
            s->rank_state[c->rank] = HD__RANK_ABSENT;
            atomic_fetch_add(&s->visits[c->rank], 1);
        }
        hd__server_drop_waits(s, c->rank);
        atomic_fetch_add(&s->gone, 1);
    }
    hd__tls_free(c->tls);
    free(c->in);
    free(c->out);
    free(c);
}

static int accept_one(struct hd__server *s, double now)
{
    uint32_t strangers = 0, oldest = 0, most = STRANGERS_MAX + (uint32_t)s->options.size;
    struct sockaddr_storage peer = {0}, own = {0};
    socklen_t bytes = sizeof peer;
    int one = 1, fd = accept4(s->listener, (struct sockaddr *)&peer, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            usleep(10000); /* who knocks goes on knocking, and poll says so at once */
        return 0;
    }
    for (uint32_t i = 0; s->conns.count >= most && i < s->conns.count; i++)
        if (s->conns.at[i]->rank < 0 && (!strangers++ || s->conns.at[i]->opened < s->conns.at[oldest]->opened))
            oldest = i;
    /* Ours greet at once: who has waited longest is least likely one of them. */
    if (strangers >= most)
        hd__server_conn_free(s, oldest, "");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct server_conn *c = hd__alloc(sizeof *c);
    c->fd = fd;
    c->rank = -1;
    c->last_heard = c->opened = now;
    bytes = sizeof own;
    c->local = !getsockname(fd, (struct sockaddr *)&own, &bytes) && hd__address_same_host(&own, &peer);
    c->tls = s->options.tls ? hd__tls_new(s->options.tls, fd, 1) : NULL;
    memcpy(c->secret, s->options.secret, sizeof c->secret);
    hd__address_text(&peer, c->peer);
    c->in_room = WIRE_HEADER + WIRE_HELLO;
    c->in = hd__alloc(c->in_room);
    hd__push(&s->conns, c);
    return 1;
}

/* All that knock; of many only some, so that those in front of them have the time to greet before they make room. */
void hd__server_conn_accept(struct hd__server *s, double now)
{
    for (int32_t left = (STRANGERS_MAX + s->options.size) / 8; left-- && accept_one(s, now);)
        continue;
}

/* A scanner's noise fills no log: every doubling is told. */
void hd__server_log_refused(struct hd__server *s, const struct server_conn *c, const char *why)
{
    if (is_stopping(s)) /* a rank that was stopped on its way */
        return;
    s->refused++;
    if (!(s->refused & (s->refused - 1)))
        hd__log(HD_LOG_WARN, NULL, "the rendezvous refused a connection from %s (%u so far): %s", c->peer, s->refused,
                why);
}

/* Why bytes that are no frame end the connection. */
static const char *refuse_bytes(struct hd__server *s, struct server_conn *c)
{
    if (c->proved) {
        snprintf(c->end, sizeof c->end, "frame %llu from %s was altered, replayed or out of order on its way",
                 (unsigned long long)c->from.frames, c->peer);
        return c->end;
    }
    if (c->in[0] == HD__TLS_HANDSHAKE && !c->tls) { /* no record of TLS begins like our answer */
        hd__server_conn_send(c, &(struct hd__frame){.type = WIRE_REJECT});
        hd__server_conn_write(c);
        snprintf(c->end, sizeof c->end, "it speaks TLS: set HEDDLE_TLS_CA, _CERT and _KEY on all ranks, or on none");
        hd__server_log_refused(s, c, c->end);
        return c->end;
    }
    if (c->in[0] && c->in[0] < WIRE_VERSION) { /* in the words that it understands */
        static const char why[] = "its protocol is older than ours: start all ranks with the same build of heddle";
        struct hd__frame f = {.type = WIRE_REJECT, .value = (const uint8_t *)why, .value_bytes = (uint32_t)strlen(why)};
        hd__server_conn_send(c, &f);
        c->out[c->out_bytes - WIRE_HEADER - f.value_bytes] = c->in[0];
        hd__server_conn_write(c);
        snprintf(c->end, sizeof c->end, "it speaks version %d of the protocol, not %d", c->in[0], WIRE_VERSION);
        hd__server_log_refused(s, c, c->end);
    }
    return "it sent no frame of ours";
}

/* NULL while the connection lives; else why it does not. */
const char *hd__server_conn_read(struct hd__server *s, struct server_conn *c, double now)
{
    int stranger = c->rank < 0;
    ssize_t got = hd__tls_recv(c->fd, c->tls, c->in + c->in_bytes, c->in_room - c->in_bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return NULL;
    const char *refused = hd__tls_error(c->tls);
    const char *end = refused ? refused : got ? strerror(errno) : "its connection closed";
    if (got <= 0 && stranger && refused)
        hd__server_log_refused(s, c, refused);
    else if (got <= 0 && c->handshake.size && !c->proved)
        hd__server_log_refused(s, c, "it was challenged to prove that it knows the job's secret, and went away");
    if (got <= 0)
        return end;
    c->last_heard = now;
    c->in_bytes += (size_t)got;
    size_t at = 0;
    struct hd__frame f;
    ptrdiff_t used = 0;
    while (!c->closing && (used = c->proved ? hd__auth_open(&c->from, c->in + at, c->in_bytes - at, &f)
                                            : hd__store_wire_parse(c->in + at, c->in_bytes - at, &f)) > 0) {
        hd__server_on_frame(s, c, &f, now);
        at += (size_t)used;
    }
    if (used < 0 || (stranger && !at && !c->closing && c->in_bytes == c->in_room)) /* it holds no greeting */
        return refuse_bytes(s, c);
    memmove(c->in, c->in + at, c->in_bytes - at);
    c->in_bytes -= at;
    if (stranger && c->rank >= 0)
        c->in = hd__realloc(c->in, c->in_room);
    return NULL;
}

const char *hd__server_conn_write(struct server_conn *c)
{
    while (c->out_at < c->out_bytes) {
        ssize_t done = hd__tls_send(c->fd, c->tls, c->out + c->out_at, c->out_bytes - c->out_at);
        if (done < 0)
            return errno == EAGAIN || errno == EINTR ? NULL : strerror(errno);
        c->out_at += (size_t)done;
    }
    return c->closing && !hd__tls_unflushed(c->tls) ? "it left" : NULL;
}
