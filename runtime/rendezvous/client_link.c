/* The connection to the server: whole frames out, a thread that listens and beats, and what this rank tells of
 * itself. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "core/base/base.h"
#include "runtime/rendezvous/client_internal.h"

/* ---- sending */

/* *bytes: what is left. */
static int32_t send_all(struct hd_store *s, const uint8_t *data, size_t *bytes, double deadline)
{
    while (*bytes) {
        ssize_t done = hd__tls_send(s->fd, s->tls, data, *bytes);
        if (done > 0) {
            data += done;
            *bytes -= (size_t)done;
        } else if (errno == EAGAIN) {
            struct pollfd out = {.fd = s->fd, .events = POLLOUT};
            if (hd__now() > deadline)
                return HD_E_TIMEOUT;
            poll(&out, 1, 50);
        } else if (errno != EINTR) {
            return HD_E_PEER;
        }
    }
    while (hd__tls_unflushed(s->tls) && hd__now() < deadline)
        poll(&(struct pollfd){.fd = s->fd, .events = POLLOUT}, 1, 50);
    return HD_OK;
}

int32_t hd__store_send(struct hd_store *s, const struct hd__frame *frame, double deadline)
{
    uint8_t small[2048], *data = small;
    if (WIRE_HEADER + frame->key_bytes + frame->value_bytes + WIRE_TAG > sizeof small)
        data = hd__alloc(WIRE_SEALED_MAX);
    pthread_mutex_lock(&s->write_lock);
    size_t bytes = s->sealed ? hd__auth_seal(&s->to, data, frame) : hd__store_wire_write(data, frame), left = bytes;
    int32_t code = send_all(s, data, &left, deadline);
    if (s->sealed && left == bytes) /* nothing went: its number is still free */
        s->to.frames--;
    pthread_mutex_unlock(&s->write_lock);
    if (data != small)
        free(data);
    return code;
}

/* ---- what comes */

static void wake_waiters(struct hd_store *s)
{
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->replied);
    pthread_mutex_unlock(&s->lock);
}

static void on_reply(struct hd_store *s, const struct hd__frame *f)
{
    pthread_mutex_lock(&s->lock);
    for (struct store_request *p = s->requests; p; p = p->next)
        if (p->id == f->id && !p->done) {
            p->done = 1;
            p->code = f->arg;
            p->bytes = f->value_bytes;
            memcpy(p->value, f->value, HD__MIN(p->room, f->value_bytes));
        }
    pthread_cond_broadcast(&s->replied);
    pthread_mutex_unlock(&s->lock);
}

void hd__store_record_end(struct hd_store *s, int32_t code, int32_t fault, int32_t rank, uint64_t origin,
                          const char *cause)
{
    hd__store_liveness_record(&s->live, code, fault, rank, origin, cause);
    wake_waiters(s);
}

/* ---- the witness */

void hd__store_send_dump(struct hd_store *s, int32_t what)
{
    pthread_mutex_lock(&s->status_lock);
    if (s->status.write_dump && !s->final_dump_sent) {
        uint8_t *text = hd__alloc(WIRE_VALUE_MAX);
        struct hd__frame f = {.type = WIRE_DUMP, .arg = what, .value = text};
        f.value_bytes = (uint32_t)s->status.write_dump(s->status.user, (char *)text, WIRE_VALUE_MAX);
        s->final_dump_sent = what == HD__DUMP_FINAL;
        hd__store_send(s, &f,
                       hd__now() + (s->final_dump_sent
                                        ? 0.5
                                        : s->dead_after)); /* a frame cut short is the end of the connection */
        free(text);
    }
    pthread_mutex_unlock(&s->status_lock);
}

/* Has this rank waited for long? Then the server asks all what they do. */
static void request_dumps_when_late(struct hd_store *s)
{
    double waited = 0;
    pthread_mutex_lock(&s->status_lock);
    if (s->status.wait_seconds)
        waited = s->status.wait_seconds(s->status.user);
    double end = s->status.timeout + 1; /* what waits inside the call gives up by itself, and knows more */
    double first = HD__MIN(s->status.poll_after, end);
    if (waited < first)
        s->next_dump_request = first;
    double asked = s->next_dump_request;
    int due = s->status.wait_seconds && waited >= asked;
    if (due)
        s->next_dump_request =
            s->next_dump_request < end ? HD__MIN(2 * s->next_dump_request, end) : 2 * s->next_dump_request - end + 1;
    pthread_mutex_unlock(&s->status_lock);
    const struct hd__frame waiting = {.type = WIRE_WAITING, .arg = (int32_t)(HD__MIN(waited, 1e6) * 1e3)};
    if (!due || !hd__store_send(s, &waiting, hd__now() + 0.5))
        return;
    pthread_mutex_lock(&s->status_lock); /* it could not be sent in time: again with the next beat */
    s->next_dump_request = asked;
    pthread_mutex_unlock(&s->status_lock);
}

void hd__store_set_status_provider(struct hd_store *store, const struct hd__store_status_provider *witness)
{
    pthread_mutex_lock(&store->status_lock);
    store->status = witness ? *witness : (struct hd__store_status_provider){0};
    store->next_dump_request = store->status.poll_after;
    pthread_mutex_unlock(&store->status_lock);
    if (witness && hd__store_liveness_check(&store->live, NULL, NULL)) /* the end came before it could be told of */
        hd__store_send_dump(store, HD__DUMP_FINAL);
}

/* ---- the thread */

static void on_frame(struct hd_store *s, const struct hd__frame *f)
{
    char cause[512] = "";
    uint64_t origin = 0;
    if (f->type == WIRE_REPLY)
        on_reply(s, f);
    else if (f->type == WIRE_HEARTBEAT)
        s->server_thread = s->here ? f->arg : 0;
    else if (f->type == WIRE_DUMP_REQUEST)
        hd__store_send_dump(s, HD__DUMP_SNAPSHOT);
    else if (f->type == WIRE_DEAD || f->type == WIRE_ABORT) /* before anything is cancelled */
        hd__store_send_dump(s, HD__DUMP_FINAL);
    if (f->type == WIRE_DEAD || f->type == WIRE_ABORT)
        hd__store_wire_end(f, &origin, cause, sizeof cause);
    if (f->type == WIRE_DEAD)
        hd__store_record_end(s, HD_E_PEER, HD_E_PEER, f->arg, origin, cause);
    else if (f->type == WIRE_ABORT)
        hd__store_record_end(s, HD_E_CANCELLED, (int32_t)f->id, f->arg, origin, cause);
}

/* Reads what is there. NULL, or why the connection is over. */
static const char *read_frames(struct hd_store *s)
{
    struct hd__frame f;
    size_t at = 0;
    ptrdiff_t used;
    ssize_t got = hd__tls_recv(s->fd, s->tls, s->in + s->in_bytes, WIRE_SEALED_MAX - s->in_bytes);
    if (got == 0)
        return "closed the connection";
    if (got < 0 && hd__tls_error(s->tls))
        return hd__tls_error(s->tls);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? NULL : strerror(errno);
    s->last_heard = hd__now();
    s->in_bytes += (size_t)got;
    while ((used = hd__auth_open(&s->from, s->in + at, s->in_bytes - at, &f)) > 0) {
        on_frame(s, &f);
        at += (size_t)used;
    }
    memmove(s->in, s->in + at, s->in_bytes - at);
    s->in_bytes -= at;
    if (used == 0)
        return NULL;
    shutdown(s->fd, SHUT_RDWR); /* who sits in between says nothing more in this rank's name, either */
    snprintf(s->end, sizeof s->end, "frame %llu from %s was altered, replayed or out of order on its way",
             (unsigned long long)s->from.frames, s->server);
    return s->end;
}

static void record_server_loss(struct hd_store *s, const char *why)
{
    char cause[400];
    atomic_store(&s->lost, 1);
    if (s->server_rank >= 0)
        snprintf(cause, sizeof cause, "%s %d, which serves the rendezvous, is gone (%s)", s->noun, s->server_rank, why);
    else
        snprintf(cause, sizeof cause, "the launcher is gone (%s)", why);
    hd__store_record_end(s, HD_E_PEER, HD_E_PEER, s->server_rank, 0, cause);
}

static int stopped(struct hd_store *s)
{
    pthread_mutex_lock(&s->lock);
    int stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    return stop;
}

/* Time slept beyond the plan is neither the server's silence nor this rank's waiting. A process can also be stopped
 * outside of poll(): `looked` is the end of the poll() before. */
static void excuse(struct hd_store *s, double looked, double before, double planned, double now)
{
    s->last_heard = now - looked > s->dead_after / 2 ? now : hd_excuse(s->last_heard, before, planned, now);
    if (!hd_slept(looked, planned + HD_LOOK_SECONDS, now))
        return;
    pthread_mutex_lock(&s->status_lock);
    if (s->status.went_on)
        s->status.went_on(s->status.user, now);
    pthread_mutex_unlock(&s->status_lock);
}

void *hd__store_thread(void *arg)
{
    struct hd_store *s = arg;
    double interval = hd__store_heartbeat_seconds(s->dead_after), next = hd__now() + interval;
    hd__store_favour_thread();
    hd__store_thread_wakes();
    double looked = s->last_heard = hd__now();
    while (!stopped(s)) {
        struct pollfd fds[2] = {{.fd = s->fd, .events = POLLIN}, {.fd = s->wake, .events = POLLIN}};
        double before = hd__now();
        int planned = (int)(HD__MAX(0.0, next - before) * 1e3) + 1;
        hd__store_thread_sleeps();
        poll(fds, 2, planned);
        hd__store_thread_wakes();
        const char *end = NULL;
        double now = hd__now();
        excuse(s, looked, before, planned / 1e3, now);
        looked = now;
        for (int ready = fds[0].revents; !end && ready; ready = hd__tls_pending(s->tls))
            end = read_frames(s);
        if (!end && now - s->last_heard > hd__store_silence_seconds(s->dead_after) &&
            !hd__store_is_starved(s->server_thread, now - s->last_heard, s->dead_after))
            end = "it is silent";
        if (!end && now >= next) {
            struct hd__frame beat = {.type = WIRE_HEARTBEAT, .arg = hd__store_thread_id()};
            next = now + interval;
            request_dumps_when_late(s);
            if (hd__store_send(s, &beat, next) == HD_E_PEER)
                end = "broke the connection";
        }
        if (end) {
            if (!stopped(s))
                record_server_loss(s, end);
            break;
        }
    }
    hd__store_thread_sleeps();
    return NULL;
}
