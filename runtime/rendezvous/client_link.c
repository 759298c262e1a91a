/* The connection to the server: whole frames out, a thread that listens and beats, and what this rank tells of itself. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "core/base/base.h"
#include "runtime/rendezvous/client_internal.h"

/* ---- sending */

static int32_t send_all(struct hd_store *s, const uint8_t *data, size_t bytes, double deadline)
{
    while (bytes) {
        ssize_t done = send(s->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done > 0) {
            data += done;
            bytes -= (size_t)done;
        } else if (errno == EAGAIN) {
            struct pollfd out = {.fd = s->fd, .events = POLLOUT};
            if (hd__now() > deadline)
                return HD_E_TIMEOUT;
            poll(&out, 1, 50);
        } else if (errno != EINTR) {
            return HD_E_PEER;
        }
    }
    return HD_OK;
}

int32_t hd__store_send(struct hd_store *s, const struct hd__frame *frame, double deadline)
{
    uint8_t small[2048], *data = small;
    if (WIRE_HEADER + frame->key_bytes + frame->value_bytes > sizeof small)
        data = hd__alloc(WIRE_FRAME_MAX);
    size_t bytes = hd__wire_write(data, frame);
    pthread_mutex_lock(&s->write_lock);
    int32_t code = send_all(s, data, bytes, deadline);
    pthread_mutex_unlock(&s->write_lock);
    if (data != small)
        free(data);
    return code;
}

/* ---- what comes */

static void wake_pending(struct hd_store *s)
{
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->replied);
    pthread_mutex_unlock(&s->lock);
}

static void on_reply(struct hd_store *s, const struct hd__frame *f)
{
    pthread_mutex_lock(&s->lock);
    for (struct pending *p = s->pending; p; p = p->next)
        if (p->id == f->id && !p->done) {
            p->done = 1;
            p->code = f->arg;
            p->bytes = f->value_bytes;
            memcpy(p->value, f->value, HD__MIN(p->room, f->value_bytes));
        }
    pthread_cond_broadcast(&s->replied);
    pthread_mutex_unlock(&s->lock);
}

void hd__store_ends(struct hd_store *s, int32_t code, int32_t fault, int32_t rank, const char *cause)
{
    hd__live_record(&s->live, code, fault, rank, cause);
    wake_pending(s);
}

/* ---- the witness */

void hd__store_tell(struct hd_store *s, int32_t what)
{
    pthread_mutex_lock(&s->witness_lock);
    if (s->witness.tell && !s->told) {
        uint8_t *text = hd__alloc(WIRE_VALUE_MAX);
        struct hd__frame f = {.type = WIRE_PART, .arg = what, .value = text};
        f.value_bytes = (uint32_t)s->witness.tell(s->witness.user, (char *)text, WIRE_VALUE_MAX);
        s->told = what == HD__GATHER_END;
        hd__store_send(s, &f, hd__now() + (s->told ? 0.5 : s->dead_after)); /* a frame cut short is the end of the connection */
        free(text);
    }
    pthread_mutex_unlock(&s->witness_lock);
}

/* Has this rank waited for long? Then the server asks all what they do. */
static void ask(struct hd_store *s)
{
    double waited = 0;
    pthread_mutex_lock(&s->witness_lock);
    if (s->witness.waited)
        waited = s->witness.waited(s->witness.user);
    if (waited < s->witness.ask_after)
        s->next_ask = s->witness.ask_after;
    int due = s->witness.waited && waited >= s->next_ask;
    if (due)
        s->next_ask *= 2;
    pthread_mutex_unlock(&s->witness_lock);
    if (due)
        hd__store_send(s, &(struct hd__frame){.type = WIRE_LATE, .arg = (int32_t)(HD__MIN(waited, 1e6) * 1e3)}, hd__now() + 0.5);
}

void hd__store_witness(struct hd_store *store, const struct hd__witness *witness)
{
    pthread_mutex_lock(&store->witness_lock);
    store->witness = witness ? *witness : (struct hd__witness){0};
    store->next_ask = store->witness.ask_after;
    pthread_mutex_unlock(&store->witness_lock);
    if (witness && hd__live_dead(&store->live, NULL, NULL)) /* the end came before it could be told of */
        hd__store_tell(store, HD__GATHER_END);
}

/* ---- the thread */

static void on_frame(struct hd_store *s, const struct hd__frame *f)
{
    char cause[512];
    snprintf(cause, sizeof cause, "%.*s", (int)HD__MIN(f->value_bytes, 500u), (const char *)f->value);
    if (f->type == WIRE_REPLY)
        on_reply(s, f);
    else if (f->type == WIRE_SHOW)
        hd__store_tell(s, HD__GATHER_LOOK);
    else if (f->type == WIRE_DEAD || f->type == WIRE_ABORT) /* before anything is cancelled */
        hd__store_tell(s, HD__GATHER_END);
    if (f->type == WIRE_DEAD)
        hd__store_ends(s, HD_E_PEER, HD_E_PEER, f->arg, cause);
    else if (f->type == WIRE_ABORT)
        hd__store_ends(s, HD_E_CANCELLED, (int32_t)f->id, f->arg, cause);
}

/* Reads what is there. NULL, or why the connection is over. */
static const char *read_frames(struct hd_store *s)
{
    struct hd__frame f;
    size_t at = 0;
    ptrdiff_t used;
    ssize_t got = recv(s->fd, s->in + s->in_bytes, WIRE_FRAME_MAX - s->in_bytes, MSG_DONTWAIT);
    if (got == 0)
        return "closed the connection";
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? NULL : strerror(errno);
    s->heard = hd__now();
    s->in_bytes += (size_t)got;
    while ((used = hd__wire_parse(s->in + at, s->in_bytes - at, &f)) > 0) {
        on_frame(s, &f);
        at += (size_t)used;
    }
    memmove(s->in, s->in + at, s->in_bytes - at);
    s->in_bytes -= at;
    return used < 0 ? "sent no frame of ours" : NULL;
}

static void lost_server(struct hd_store *s, const char *why)
{
    char cause[256];
    if (s->server_rank >= 0)
        snprintf(cause, sizeof cause, "rank %d, which serves the rendezvous, is gone (%s)", s->server_rank, why);
    else
        snprintf(cause, sizeof cause, "the launcher is gone (%s)", why);
    hd__store_ends(s, HD_E_PEER, HD_E_PEER, s->server_rank, cause);
}

static int stopped(struct hd_store *s)
{
    pthread_mutex_lock(&s->lock);
    int stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    return stop;
}

void *hd__store_listen(void *arg)
{
    struct hd_store *s = arg;
    double beat = hd__live_beat(s->dead_after), next = hd__now() + beat;
    hd__live_hurry();
    s->heard = hd__now();
    while (!stopped(s)) {
        struct pollfd fds[2] = {{.fd = s->fd, .events = POLLIN}, {.fd = s->wake, .events = POLLIN}};
        double now = hd__now();
        poll(fds, 2, (int)(HD__MAX(0.0, next - now) * 1e3) + 1);
        const char *end = fds[0].revents ? read_frames(s) : NULL;
        if (hd__now() - now > s->dead_after / 2) /* we were stopped ourselves */
            s->heard = hd__now();
        if (!end && hd__now() - s->heard > hd__live_silence(s->dead_after))
            end = "it is silent";
        if (!end && hd__now() >= next) {
            next = hd__now() + beat;
            ask(s);
            if (hd__store_send(s, &(struct hd__frame){.type = WIRE_BEAT}, next) == HD_E_PEER)
                end = "broke the connection";
        }
        if (end) {
            if (!stopped(s))
                lost_server(s, end);
            break;
        }
    }
    return NULL;
}
