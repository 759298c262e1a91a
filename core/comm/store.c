/* The ranks' side of the store: one connection, a thread that listens and beats, requests matched by number. */
#include "core/comm/store.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/comm/kv.h"
#include "core/comm/liveness.h"
#include "core/comm/wire.h"

/* A request that waits for its reply; lives on the caller's stack. */
struct pending {
    struct pending *next;
    uint32_t id;
    int32_t code;
    int done;
    size_t bytes, room; /* bytes: as sent; what exceeds `room` is cut */
    uint8_t *value;
};

struct hd__space {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct hd__kv kv;
    int32_t size;
    uint32_t handles;
    struct hd_store **ranks;
};

struct hd_store {
    struct hd__live live;
    struct hd__space *space; /* the store without sockets; then nothing below is used but `rank` and `size` */
    int32_t rank, size;
    int32_t server_rank;
    int fd, wake;
    double dead_after, heard;
    pthread_t thread;
    pthread_mutex_t write_lock; /* whole frames */
    pthread_mutex_t lock;       /* pending, next_id, stop */
    pthread_cond_t replied;
    struct pending *pending;
    uint32_t next_id;
    int stop;
    pthread_mutex_t witness_lock; /* held while the witness tells */
    struct hd__witness witness;   /* tell NULL: there is none */
    double next_ask;              /* of the present wait */
    int told;                     /* at the end */
    size_t in_bytes;
    uint8_t *in; /* WIRE_FRAME_MAX */
};

static struct timespec at_time(double t)
{
    return (struct timespec){.tv_sec = (time_t)t, .tv_nsec = (long)((t - (double)(time_t)t) * 1e9)};
}

static void monotonic_cond(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

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

static int32_t send_frame(struct hd_store *s, const struct hd__frame *frame, double deadline)
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

/* ---- the listening thread */

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

static void job_ends(struct hd_store *s, int32_t code, int32_t rank, const char *cause)
{
    hd__live_record(&s->live, code, rank, cause);
    wake_pending(s);
}

/* ---- the witness */

static void tell(struct hd_store *s, int32_t what)
{
    pthread_mutex_lock(&s->witness_lock);
    if (s->witness.tell && !s->told) {
        uint8_t *text = hd__alloc(WIRE_VALUE_MAX);
        struct hd__frame f = {.type = WIRE_PART, .arg = what, .value = text};
        f.value_bytes = (uint32_t)s->witness.tell(s->witness.user, (char *)text, WIRE_VALUE_MAX);
        s->told = what == HD__GATHER_END;
        send_frame(s, &f, hd__now() + (s->told ? 0.5 : s->dead_after)); /* a frame cut short is the end of the connection */
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
        send_frame(s, &(struct hd__frame){.type = WIRE_LATE, .arg = (int32_t)(HD__MIN(waited, 1e6) * 1e3)}, hd__now() + 0.5);
}

void hd__store_witness(struct hd_store *store, const struct hd__witness *witness)
{
    pthread_mutex_lock(&store->witness_lock);
    store->witness = witness ? *witness : (struct hd__witness){0};
    store->next_ask = store->witness.ask_after;
    pthread_mutex_unlock(&store->witness_lock);
}

static void on_frame(struct hd_store *s, const struct hd__frame *f)
{
    char cause[512];
    snprintf(cause, sizeof cause, "%.*s", (int)HD__MIN(f->value_bytes, 500u), (const char *)f->value);
    if (f->type == WIRE_REPLY)
        on_reply(s, f);
    else if (f->type == WIRE_SHOW)
        tell(s, HD__GATHER_LOOK);
    else if (f->type == WIRE_DEAD || f->type == WIRE_ABORT) /* before anything is cancelled */
        tell(s, HD__GATHER_END);
    if (f->type == WIRE_DEAD)
        job_ends(s, HD_E_PEER, f->arg, cause);
    else if (f->type == WIRE_ABORT)
        job_ends(s, HD_E_CANCELLED, f->arg, cause);
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
    job_ends(s, HD_E_PEER, s->server_rank, cause);
}

static int stopped(struct hd_store *s)
{
    pthread_mutex_lock(&s->lock);
    int stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    return stop;
}

static void *listen_and_beat(void *arg)
{
    struct hd_store *s = arg;
    double beat = hd__live_beat(s->dead_after), next = hd__now() + beat;
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
            if (send_frame(s, &(struct hd__frame){.type = WIRE_BEAT}, next) == HD_E_PEER)
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

/* ---- connecting */

static int connect_once(const struct hd__store_options *o, struct hd_error *err)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *list;
    struct timeval patience = {.tv_sec = 2}; /* connect() obeys the send time-out */
    char port[8];
    int one = 1, fd = -1;
    snprintf(port, sizeof port, "%u", o->port);
    int bad = getaddrinfo(o->host, port, &hints, &list);
    if (bad) {
        hd_fail(err, HD_E_IO, "rendezvous host %s: %s", o->host, gai_strerror(bad));
        return -1;
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        if (fd >= 0)
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            hd_fail(err, HD_E_IO, "rendezvous at %s:%u: %s", o->host, o->port, strerror(errno));
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* Waits for the first frame; `frame` points into s->in. */
static int32_t first_frame(struct hd_store *s, struct hd__frame *frame, size_t *used, double deadline,
                           struct hd_error *err)
{
    for (;;) {
        struct pollfd in = {.fd = s->fd, .events = POLLIN};
        ptrdiff_t n = hd__wire_parse(s->in, s->in_bytes, frame);
        if (n > 0) {
            *used = (size_t)n;
            return HD_OK;
        }
        if (n < 0)
            return hd_fail(err, HD_E_IO, "what answers at the rendezvous port is not heddle");
        if (hd__now() > deadline)
            return hd_fail(err, HD_E_TIMEOUT, "the rendezvous accepted the connection and then said nothing");
        poll(&in, 1, 50);
        ssize_t got = recv(s->fd, s->in + s->in_bytes, WIRE_FRAME_MAX - s->in_bytes, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return hd_fail(err, HD_E_IO, "the rendezvous closed the connection");
        s->in_bytes += got > 0 ? (size_t)got : 0;
    }
}

static int32_t greet(struct hd_store *s, const struct hd__store_options *o, double deadline, struct hd_error *err)
{
    uint8_t hello[WIRE_HELLO];
    struct hd__frame f = {.type = WIRE_SAY_HELLO, .value = hello, .value_bytes = WIRE_HELLO};
    size_t used = 0;
    hd__wire_put_u32(hello, (uint32_t)o->rank);
    hd__wire_put_u32(hello + 4, (uint32_t)o->size);
    memcpy(hello + 8, o->secret, WIRE_SECRET);
    if (send_frame(s, &f, deadline) != HD_OK)
        return hd_fail(err, HD_E_IO, "the rendezvous closed the connection");
    int32_t code = first_frame(s, &f, &used, deadline, err);
    if (code != HD_OK)
        return code;
    if (f.type != WIRE_WELCOME)
        return hd_fail(err, HD_E_INVALID, "the rendezvous refused rank %d: %.*s", o->rank,
                       (int)HD__MIN(f.value_bytes, 400u), f.type == WIRE_REJECT ? (const char *)f.value : "");
    s->server_rank = f.arg;
    memmove(s->in, s->in + used, s->in_bytes - used);
    s->in_bytes -= used;
    return HD_OK;
}

/* Once. HD_E_IO: nobody listens yet, or somebody let us go without a word: strangers may crowd the door. */
static int32_t meet(struct hd_store *s, const struct hd__store_options *o, double deadline, struct hd_error *err)
{
    int32_t code;
    s->in_bytes = 0;
    s->fd = connect_once(o, err);
    if (s->fd < 0)
        return HD_E_IO;
    code = greet(s, o, deadline, err);
    if (code != HD_OK) {
        close(s->fd);
        s->fd = -1;
    }
    return code;
}

static void store_free(struct hd_store *s)
{
    if (s->fd >= 0)
        close(s->fd);
    if (s->wake >= 0)
        close(s->wake);
    pthread_mutex_destroy(&s->write_lock);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->witness_lock);
    pthread_cond_destroy(&s->replied);
    hd__live_finish(&s->live);
    free(s->in);
    free(s);
}

static struct hd_store *store_new(int32_t rank, int32_t size)
{
    struct hd_store *s = hd__alloc(sizeof *s);
    hd__live_init(&s->live);
    pthread_mutex_init(&s->write_lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->witness_lock, NULL);
    monotonic_cond(&s->replied);
    s->rank = rank;
    s->size = size;
    s->fd = s->wake = -1;
    return s;
}

int32_t hd__store_connect(const struct hd__store_options *options, double deadline, struct hd_store **store,
                          struct hd_error *err)
{
    struct hd_store *s = store_new(options->rank, options->size);
    int32_t code = HD_OK;
    s->dead_after = options->dead_after;
    s->in = hd__alloc(WIRE_FRAME_MAX);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake < 0)
        code = hd_fail(err, HD_E_IO, "eventfd: %s", strerror(errno));
    while (code == HD_OK && (code = meet(s, options, deadline, err)) == HD_E_IO && hd__now() < deadline) {
        usleep(20000);
        code = HD_OK;
    }
    if (code == HD_OK && pthread_create(&s->thread, NULL, listen_and_beat, s) != 0)
        code = hd_fail(err, HD_E_IO, "the store's thread cannot start");
    if (code != HD_OK) {
        store_free(s);
        return code;
    }
    *store = s;
    return HD_OK;
}

static void local_close(struct hd_store *s)
{
    pthread_mutex_lock(&s->space->lock);
    s->space->ranks[s->rank] = NULL;
    pthread_mutex_unlock(&s->space->lock);
    store_free(s);
}

/* A launcher may kill all ranks as soon as one has failed: none leaves before the server has put the report together, and
 * let go of it. */
static void await_close(struct hd_store *s, double deadline)
{
    struct pollfd in = {.fd = s->fd, .events = POLLIN};
    ssize_t got = 1;
    for (double left; got != 0 && (left = deadline - hd__now()) > 0;)
        if (poll(&in, 1, (int)(left * 1e3) + 1) == 1)
            got = recv(s->fd, s->in, WIRE_FRAME_MAX, MSG_DONTWAIT) > 0;
}

/* Has the job ended by a fault, and is there still somebody who could write about it? */
static int report_comes(struct hd_store *s)
{
    int32_t rank = -1, code = hd__live_dead(&s->live, &rank, NULL);
    return code && !(code == HD_E_PEER && rank == s->server_rank);
}

void hd__store_close(struct hd_store *store)
{
    uint64_t one = 1;
    if (!store)
        return;
    if (store->space) {
        local_close(store);
        return;
    }
    pthread_mutex_lock(&store->lock);
    store->stop = 1;
    pthread_mutex_unlock(&store->lock);
    if (write(store->wake, &one, sizeof one) < 0)
        hd__log(HD_LOG_DEBUG, "store", "wake: %s", strerror(errno)); /* it wakes by itself within a beat */
    pthread_join(store->thread, NULL);
    send_frame(store, &(struct hd__frame){.type = WIRE_BYE}, hd__now() + 1);
    if (report_comes(store) && store->server_rank != store->rank)
        await_close(store, hd__now() + HD__REPORT_SECONDS);
    store_free(store);
}

/* ---- requests */

/* Sends `frame` and waits for its reply, which lands in `p`. */
static int32_t request(struct hd_store *s, struct hd__frame *frame, struct pending *p, double deadline,
                       struct hd_error *err)
{
    struct timespec until = at_time(deadline + 0.5); /* the server answers at the deadline, and knows more */
    pthread_mutex_lock(&s->lock);
    frame->id = p->id = ++s->next_id;
    p->next = s->pending;
    s->pending = p;
    pthread_mutex_unlock(&s->lock);
    int32_t sent = send_frame(s, frame, deadline), ended = HD_OK;
    int late = 0;
    pthread_mutex_lock(&s->lock);
    while (sent == HD_OK && !p->done && !late && (ended = hd__live_dead(&s->live, NULL, NULL)) == HD_OK)
        late = pthread_cond_timedwait(&s->replied, &s->lock, &until) == ETIMEDOUT;
    for (struct pending **at = &s->pending; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    pthread_mutex_unlock(&s->lock);
    if (p->done)
        return HD_OK;
    if (hd__live_dead(&s->live, NULL, err) != HD_OK)
        return HD_E_PEER;
    if (sent == HD_E_PEER)
        return hd_fail(err, HD_E_PEER, "the rendezvous closed the connection");
    return hd_fail(err, HD_E_TIMEOUT, "the rendezvous did not answer");
}

static int32_t arg_ms(double deadline)
{
    return (int32_t)(HD__MIN(HD__MAX(0.0, deadline - hd__now()), 1e6) * 1e3);
}

static int32_t check_key(const char *key, size_t bytes, struct hd_error *err)
{
    size_t n = strlen(key);
    if (n == 0 || n > WIRE_KEY_MAX)
        return hd_fail(err, HD_E_INVALID, "store key of %zu bytes (1 to %d allowed): %.40s", n, WIRE_KEY_MAX, key);
    if (bytes > WIRE_VALUE_MAX)
        return hd_fail(err, HD_E_INVALID, "store value %s of %zu bytes (at most %d)", key, bytes, WIRE_VALUE_MAX);
    return HD_OK;
}

static int32_t local_put(struct hd_store *s, const char *key, const void *value, size_t bytes, struct hd_error *err)
{
    pthread_mutex_lock(&s->space->lock);
    int bad = hd__kv_put(&s->space->kv, key, strlen(key), value, bytes);
    pthread_cond_broadcast(&s->space->changed);
    pthread_mutex_unlock(&s->space->lock);
    return bad ? hd_fail(err, HD_E_NOMEM, "the store is full") : HD_OK;
}

int32_t hd__store_put(struct hd_store *store, const char *key, const void *value, size_t bytes, struct hd_error *err)
{
    uint8_t none[256];
    struct pending p = {.value = none, .room = sizeof none};
    struct hd__frame f = {.type = WIRE_PUT,
                          .key = key,
                          .key_bytes = (uint32_t)strlen(key),
                          .value = value,
                          .value_bytes = (uint32_t)bytes};
    int32_t code = check_key(key, bytes, err);
    if (code != HD_OK)
        return code;
    if (store->space)
        return local_put(store, key, value, bytes, err);
    code = request(store, &f, &p, hd__now() + HD__MAX(5.0, store->dead_after), err);
    if (code == HD_OK && p.code != HD_OK)
        return hd_fail(err, p.code, "store key %s: %.*s", key, (int)HD__MIN(p.bytes, 200u), (const char *)p.value);
    return code;
}

static int32_t local_get(struct hd_store *s, const char *key, void *value, size_t *bytes, double deadline,
                         struct hd_error *err)
{
    struct timespec until = at_time(deadline);
    const struct hd__kv_item *item;
    int32_t code = HD_OK;
    pthread_mutex_lock(&s->space->lock);
    while (!(item = hd__kv_get(&s->space->kv, key, strlen(key))) && code == HD_OK) {
        if (hd__live_dead(&s->live, NULL, err) != HD_OK)
            code = HD_E_PEER;
        else if (pthread_cond_timedwait(&s->space->changed, &s->space->lock, &until) == ETIMEDOUT)
            code = hd_fail(err, HD_E_TIMEOUT, "nobody put %s into the store in time", key);
    }
    if (item && item->value_bytes > *bytes)
        code = hd_fail(err, HD_E_INVALID, "store value %s has %u bytes, room for %zu", key, item->value_bytes, *bytes);
    else if (item) {
        if (item->value_bytes)
            memcpy(value, item->value, item->value_bytes);
        *bytes = item->value_bytes;
        code = HD_OK;
    }
    pthread_mutex_unlock(&s->space->lock);
    return code;
}

int32_t hd__store_get(struct hd_store *store, const char *key, void *value, size_t *bytes, double deadline,
                      struct hd_error *err)
{
    int32_t code = check_key(key, 0, err);
    if (code != HD_OK)
        return code;
    if (store->space)
        return local_get(store, key, value, bytes, deadline, err);
    struct pending p = {.value = hd__alloc(WIRE_VALUE_MAX), .room = WIRE_VALUE_MAX};
    struct hd__frame f = {
        .type = WIRE_GET, .key = key, .key_bytes = (uint32_t)strlen(key), .arg = arg_ms(deadline)};
    code = request(store, &f, &p, deadline, err);
    if (code == HD_OK && p.code == HD_E_TIMEOUT)
        code = hd_fail(err, HD_E_TIMEOUT, "nobody put %s into the store in time", key);
    else if (code == HD_OK && p.code != HD_OK)
        code = hd_fail(err, p.code, "store key %s: %.*s", key, (int)HD__MIN(p.bytes, 200u), (const char *)p.value);
    else if (code == HD_OK && p.bytes > *bytes)
        code = hd_fail(err, HD_E_INVALID, "store value %s has %zu bytes, room for %zu", key, p.bytes, *bytes);
    if (code == HD_OK) {
        if (p.bytes)
            memcpy(value, p.value, p.bytes);
        *bytes = p.bytes;
    }
    free(p.value);
    return code;
}

/* Without sockets a barrier is a counter per name, stored under a key that no put can use (it starts with a space). */
static int32_t local_barrier(struct hd_store *s, const char *name, double deadline, struct hd_error *err)
{
    struct timespec until = at_time(deadline);
    char key[WIRE_KEY_MAX + 2];
    uint64_t count = 0, goal;
    int32_t code = HD_OK;
    snprintf(key, sizeof key, " %s", name);
    pthread_mutex_lock(&s->space->lock);
    const struct hd__kv_item *item = hd__kv_get(&s->space->kv, key, strlen(key));
    if (item)
        memcpy(&count, item->value, sizeof count);
    goal = (count / (uint64_t)s->size + 1) * (uint64_t)s->size;
    count++;
    hd__kv_put(&s->space->kv, key, strlen(key), &count, sizeof count);
    pthread_cond_broadcast(&s->space->changed);
    while (count < goal && code == HD_OK) {
        if (hd__live_dead(&s->live, NULL, err) != HD_OK)
            code = HD_E_PEER;
        else if (pthread_cond_timedwait(&s->space->changed, &s->space->lock, &until) == ETIMEDOUT)
            code = hd_fail(err, HD_E_TIMEOUT, "barrier %s: %d of %d ranks came", name,
                           (int)(count % (uint64_t)s->size), s->size);
        memcpy(&count, hd__kv_get(&s->space->kv, key, strlen(key))->value, sizeof count);
    }
    if (code != HD_OK && count < goal) { /* not here any more */
        count--;
        hd__kv_put(&s->space->kv, key, strlen(key), &count, sizeof count);
    }
    pthread_mutex_unlock(&s->space->lock);
    return code;
}

int32_t hd__store_barrier(struct hd_store *store, const char *name, double deadline, struct hd_error *err)
{
    uint8_t text[256];
    struct pending p = {.value = text, .room = sizeof text};
    struct hd__frame f = {
        .type = WIRE_BARRIER, .key = name, .key_bytes = (uint32_t)strlen(name), .arg = arg_ms(deadline)};
    int32_t code = check_key(name, 0, err);
    if (code != HD_OK)
        return code;
    if (store->space)
        return local_barrier(store, name, deadline, err);
    code = request(store, &f, &p, deadline, err);
    if (code == HD_OK && p.code == HD_E_TIMEOUT)
        return hd_fail(err, HD_E_TIMEOUT, "barrier %s: no sign of rank %.*s", name, (int)HD__MIN(p.bytes, 200u), text);
    if (code == HD_OK && p.code != HD_OK)
        return hd_fail(err, p.code, "barrier %s: %.*s", name, (int)HD__MIN(p.bytes, 200u), text);
    return code;
}

/* ---- the rest */

struct hd__live *hd__store_live(struct hd_store *store)
{
    return &store->live;
}

static void local_abort(struct hd_store *s, const char *cause)
{
    struct hd__space *space = s->space;
    pthread_mutex_lock(&space->lock);
    for (int32_t r = 0; r < space->size; r++)
        if (space->ranks[r])
            hd__live_record(&space->ranks[r]->live, HD_E_CANCELLED, s->rank, cause);
    pthread_cond_broadcast(&space->changed);
    pthread_mutex_unlock(&space->lock);
}

void hd__store_reset(struct hd_store *store)
{
    struct linger at_once = {.l_onoff = 1};
    if (store->space)
        return;
    setsockopt(store->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    shutdown(store->fd, SHUT_RDWR);
}

int32_t hd__store_server_rank(const struct hd_store *store)
{
    return store->space ? -1 : store->server_rank;
}

void hd__store_abort(struct hd_store *store, const char *reason)
{
    hd__store_fail(store, HD_E_CANCELLED, reason);
}

void hd__store_fail(struct hd_store *store, int32_t code, const char *reason)
{
    char cause[512];
    snprintf(cause, sizeof cause, "rank %d: %.400s", store->rank, reason);
    if (store->space) {
        local_abort(store, cause);
        return;
    }
    tell(store, HD__GATHER_END);
    send_frame(store,
               &(struct hd__frame){.type = WIRE_ABORT,
                                   .arg = code,
                                   .value = (const uint8_t *)reason,
                                   .value_bytes = (uint32_t)HD__MIN(strlen(reason), 1024u)},
               hd__now() + 1);
    job_ends(store, HD_E_CANCELLED, store->rank, cause);
}

struct hd__space *hd__space_create(int32_t size)
{
    struct hd__space *space = hd__alloc(sizeof *space);
    pthread_mutex_init(&space->lock, NULL);
    monotonic_cond(&space->changed);
    space->size = size;
    space->ranks = hd__alloc((size_t)size * sizeof *space->ranks);
    return space;
}

void hd__space_destroy(struct hd__space *space)
{
    if (!space)
        return;
    hd__kv_free(&space->kv);
    pthread_mutex_destroy(&space->lock);
    pthread_cond_destroy(&space->changed);
    free(space->ranks);
    free(space);
}

struct hd_store *hd__store_local(struct hd__space *space, int32_t rank)
{
    struct hd_store *s = store_new(rank, space->size);
    s->space = space;
    pthread_mutex_lock(&space->lock);
    space->ranks[rank] = s;
    pthread_mutex_unlock(&space->lock);
    return s;
}

void hd__secret_make(uint8_t secret[HD__SECRET_BYTES])
{
    if (getrandom(secret, HD__SECRET_BYTES, 0) != HD__SECRET_BYTES)
        hd__die("getrandom: %s", strerror(errno));
}

void hd__secret_text(const uint8_t secret[HD__SECRET_BYTES], char text[33])
{
    for (int i = 0; i < HD__SECRET_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", secret[i]);
}

int hd__secret_parse(const char *text, uint8_t secret[HD__SECRET_BYTES])
{
    uint8_t out[HD__SECRET_BYTES] = {0};
    if (strlen(text) != 2 * HD__SECRET_BYTES)
        return 0;
    for (int i = 0; i < 2 * HD__SECRET_BYTES; i++) {
        const char *digits = "0123456789abcdef", *d = strchr(digits, text[i]);
        if (!d || !*d)
            return 0;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | (d - digits));
    }
    memcpy(secret, out, sizeof out);
    return 1;
}
