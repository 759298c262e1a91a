/* The ranks' side of the store: one connection, requests matched by number. */
#include "runtime/rendezvous/store.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/base.h"
#include "runtime/rendezvous/client_internal.h"

/* ---- opening and closing */

static void store_free(struct hd_store *s)
{
    hd__tls_free(s->tls);
    if (s->fd >= 0)
        close(s->fd);
    if (s->wake >= 0)
        close(s->wake);
    pthread_mutex_destroy(&s->write_lock);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->status_lock);
    pthread_cond_destroy(&s->replied);
    hd__store_liveness_finish(&s->live);
    free(s->in);
    free(s);
}

/* Tries again while nobody listens yet, and says so now and then. */
static int32_t greet_until(struct hd_store *s, const struct hd__store_options *o, double deadline, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    double began = hd__now(), told = 0;
    struct hd_deadline end = hd_deadline_from(deadline, began);
    int32_t code;
    while ((code = hd__store_handshake(s, o, &end, &why)) == HD_E_IO && !hd_deadline_passed(&end, hd__now())) {
        double waited = hd__now() - began;
        if (o->late_after > 0 && waited >= (told ? 2 * told : o->late_after)) {
            told = waited;
            hd__log(HD_LOG_WARN, NULL, "%s %d: waiting for %s 0 at %s since %.0f s (%s)", s->noun, o->rank, s->noun,
                    s->server, waited, why.message);
        }
        usleep(20000);
    }
    if (code == HD_E_IO && o->members)
        return hd_fail(err, HD_E_TIMEOUT, "%s", why.message);
    if (code == HD_E_IO)
        return hd_fail(err, HD_E_TIMEOUT, "%s %d waited %.6g s for %s 0 at %s (%s)", s->noun, o->rank,
                       hd__now() - began, s->noun, s->server, why.message);
    return code ? hd_fail(err, code, "%s", why.message) : HD_OK;
}

int32_t hd__store_connect(const struct hd__store_options *options, double deadline, struct hd_store **store,
                          struct hd_error *err)
{
    struct hd_store *s = hd__alloc(sizeof *s);
    int32_t code = HD_OK;
    hd__store_liveness_init(&s->live);
    pthread_mutex_init(&s->write_lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->status_lock, NULL);
    hd__cond_init(&s->replied);
    s->rank = options->rank;
    s->noun = options->members ? "node" : "rank";
    s->size = options->size;
    s->fd = -1;
    s->dead_after = options->dead_after;
    s->owner = pthread_self();
    s->in = hd__alloc(WIRE_SEALED_MAX);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake < 0)
        code = hd_fail(err, HD_E_IO, "eventfd: %s", strerror(errno));
    else
        code = greet_until(s, options, deadline, err);
    if (code == HD_OK && pthread_create(&s->thread, NULL, hd__store_thread, s) != 0)
        code = hd_fail(err, HD_E_IO, "the store's thread cannot start");
    if (code != HD_OK) {
        store_free(s);
        return code;
    }
    *store = s;
    return HD_OK;
}

/* A launcher may kill all ranks as soon as one has failed: none leaves before the server has put the report
 * together, and let go of it. */
static void wait_for_close(struct hd_store *s, double deadline)
{
    struct pollfd in = {.fd = s->fd, .events = POLLIN};
    ssize_t got = 1;
    for (double left; got != 0 && (left = deadline - hd__now()) > 0;)
        if (poll(&in, 1, (int)(left * 1e3) + 1) == 1)
            got = recv(s->fd, s->in, WIRE_SEALED_MAX, MSG_DONTWAIT) > 0;
}

/* Has the job ended by a fault, and is there still somebody who could write about it? */
static int expects_report(struct hd_store *s)
{
    int32_t rank = -1, code = hd__store_liveness_check(&s->live, &rank, NULL);
    return code && !(code == HD_E_PEER && rank == s->server_rank);
}

void hd__store_say_exit(struct hd_store *store, int32_t exit_code)
{
    store->exit_code = exit_code + 1;
}

void hd__store_leave(struct hd_store *store)
{
    uint64_t one = 1;
    pthread_mutex_lock(&store->lock);
    store->stop = 1;
    pthread_mutex_unlock(&store->lock);
    if (write(store->wake, &one, sizeof one) < 0)
        hd__log(HD_LOG_DEBUG, "store", "wake: %s", strerror(errno)); /* it wakes by itself within a beat */
    pthread_join(store->thread, NULL);
    hd__store_send(store, &(struct hd__frame){.type = WIRE_BYE, .arg = store->exit_code}, hd__now() + 1);
    if (expects_report(store) && store->server_rank != store->rank)
        wait_for_close(store, hd__now() + HD__REPORT_SECONDS);
}

void hd__store_close(struct hd_store *store)
{
    if (!store)
        return;
    hd__store_leave(store);
    store_free(store);
}

/* ---- requests */

/* Will nothing be answered any more? */
static int is_over(struct hd_store *s, int outlives)
{
    return outlives ? atomic_load(&s->lost) : hd__store_liveness_check(&s->live, NULL, NULL) != HD_OK;
}

/* Sends `frame` and waits for its reply, which lands in `p`. */
static int32_t request(struct hd_store *s, struct hd__frame *frame, struct store_request *p, double deadline,
                       struct hd_error *err)
{
    /* The server answers at the deadline, and knows more: on a busy machine that takes a while. */
    struct hd_deadline end = hd_deadline_from(deadline + HD__MAX(0.5, s->dead_after), hd__now());
    pthread_mutex_lock(&s->lock);
    frame->id = p->id = ++s->next_id;
    p->next = s->requests;
    s->requests = p;
    pthread_mutex_unlock(&s->lock);
    int waits = (frame->type == WIRE_GET || frame->type == WIRE_BARRIER || frame->type == WIRE_ROLL_CALL) &&
                pthread_equal(pthread_self(), s->owner);
    atomic_fetch_add(&s->waiting, waits);
    int32_t sent = hd__store_send(s, frame, deadline), outlives = atomic_load(&s->outlives);
    int late = 0;
    pthread_mutex_lock(&s->lock);
    while (sent == HD_OK && !p->done && !late && !is_over(s, outlives)) {
        struct timespec look = hd__cond_until(HD__MIN(end.at, end.looked + HD_LOOK_SECONDS / 2));
        pthread_cond_timedwait(&s->replied, &s->lock, &look);
        late = hd_deadline_passed(&end, hd__now());
    }
    if (waits)
        atomic_store(&s->waited, hd__now());
    atomic_fetch_sub(&s->waiting, waits);
    for (struct store_request **at = &s->requests; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    pthread_mutex_unlock(&s->lock);
    if (p->done)
        return HD_OK;
    if (is_over(s, outlives) && hd__store_liveness_check(&s->live, NULL, err) != HD_OK)
        return HD_E_PEER;
    if (sent == HD_E_PEER)
        return hd_fail(err, HD_E_PEER, "the rendezvous closed the connection");
    return hd_fail(err, HD_E_TIMEOUT, "the rendezvous did not answer%s%.*s", frame->key_bytes ? " about " : "",
                   (int)frame->key_bytes, frame->key_bytes ? frame->key : "");
}

static int32_t milliseconds(double seconds)
{
    return (int32_t)(HD__MIN(HD__MAX(0.0, seconds), 1e6) * 1e3);
}

static int32_t deadline_ms(double deadline)
{
    double now = hd__now();
    return milliseconds(hd_deadline_from(deadline, now).at - now);
}

void hd__store_busy(struct hd_store *store, double seconds)
{
    hd__store_send(store, &(struct hd__frame){.type = WIRE_BUSY, .arg = milliseconds(seconds)}, hd__now() + 1);
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

int32_t hd__store_put(struct hd_store *store, const char *key, const void *value, size_t bytes, struct hd_error *err)
{
    uint8_t none[256];
    struct store_request p = {.value = none, .room = sizeof none};
    struct hd__frame f = {.type = WIRE_PUT,
                          .key = key,
                          .key_bytes = (uint32_t)strlen(key),
                          .value = value,
                          .value_bytes = (uint32_t)bytes};
    int32_t code = check_key(key, bytes, err);
    if (code != HD_OK)
        return code;
    code = request(store, &f, &p, hd__now() + HD__MAX(5.0, store->dead_after), err);
    if (code == HD_OK && p.code != HD_OK)
        return hd_fail(err, p.code, "store key %s: %.*s", key, (int)HD__MIN(p.bytes, 200u), (const char *)p.value);
    return code;
}

int32_t hd__store_remove(struct hd_store *store, const char *key, struct hd_error *err)
{
    uint8_t none[256];
    struct store_request p = {.value = none, .room = sizeof none};
    struct hd__frame f = {.type = WIRE_REMOVE, .key = key, .key_bytes = (uint32_t)strlen(key)};
    int32_t code = check_key(key, 0, err);
    return code ? code : request(store, &f, &p, hd__now() + HD__MAX(5.0, store->dead_after), err);
}

static int32_t get_value(struct hd_store *store, uint32_t type, const char *key, void *value, size_t *bytes,
                         double deadline, struct hd_error *err)
{
    int32_t code = check_key(key, 0, err);
    if (code != HD_OK)
        return code;
    struct store_request p = {.value = hd__alloc(WIRE_VALUE_MAX), .room = WIRE_VALUE_MAX};
    struct hd__frame f = {.type = type, .key = key, .key_bytes = (uint32_t)strlen(key), .arg = deadline_ms(deadline)};
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

int32_t hd__store_get(struct hd_store *store, const char *key, void *value, size_t *bytes, double deadline,
                      struct hd_error *err)
{
    return get_value(store, WIRE_GET, key, value, bytes, deadline, err);
}

void hd__store_outlive(struct hd_store *store)
{
    atomic_store(&store->outlives, 1);
}

int32_t hd__store_roll_call(struct hd_store *store, const char *name, uint8_t *present, double deadline,
                            struct hd_error *err)
{
    size_t bytes = (size_t)store->size;
    return get_value(store, WIRE_ROLL_CALL, name, present, &bytes, deadline, err);
}

int32_t hd__store_clock_offset(struct hd_store *store, double *offset, struct hd_error *err)
{
    enum { ROUNDS = 16 };
    double shortest = INFINITY;
    int32_t code = HD_OK;
    *offset = 0;
    for (int n = 0; n < ROUNDS && code == HD_OK; n++) {
        uint8_t value[8] = {0};
        struct store_request p = {.value = value, .room = sizeof value};
        struct hd__frame f = {.type = WIRE_CLOCK};
        double sent = hd__now(), took;
        code = request(store, &f, &p, sent + HD__MAX(5.0, store->dead_after), err);
        took = hd__now() - sent;
        if (code != HD_OK || took >= shortest)
            continue;
        shortest = took;
        *offset = (double)(hd__store_wire_u32(value) | (uint64_t)hd__store_wire_u32(value + 4) << 32) * 1e-9 - sent -
                  took / 2;
    }
    if (fabs(*offset) < shortest) /* one clock, as far as this can tell */
        *offset = 0;
    return code;
}

int32_t hd__store_barrier(struct hd_store *store, const char *name, double deadline, struct hd_error *err)
{
    uint8_t text[256];
    struct store_request p = {.value = text, .room = sizeof text};
    struct hd__frame f = {
        .type = WIRE_BARRIER, .key = name, .key_bytes = (uint32_t)strlen(name), .arg = deadline_ms(deadline)};
    int32_t code = check_key(name, 0, err);
    if (code != HD_OK)
        return code;
    code = request(store, &f, &p, deadline, err);
    if (code == HD_OK && p.code == HD_E_TIMEOUT)
        return hd_fail(err, HD_E_TIMEOUT, "barrier %s: no sign of rank %.*s", name, (int)HD__MIN(p.bytes, 200u), text);
    if (code == HD_OK && p.code != HD_OK)
        return hd_fail(err, p.code, "barrier %s: %.*s", name, (int)HD__MIN(p.bytes, 200u), text);
    return code;
}

/* ---- the rest */

struct hd__liveness *hd__store_liveness(struct hd_store *store)
{
    return &store->live;
}

int hd__store_is_waiting(const struct hd_store *store)
{
    return atomic_load(&store->waiting) > 0;
}

double hd__store_last_wait(const struct hd_store *store)
{
    return hd__store_is_waiting(store) ? hd__now() : atomic_load(&store->waited);
}

void hd__store_reset(struct hd_store *store)
{
    struct linger at_once = {.l_onoff = 1};
    setsockopt(store->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    shutdown(store->fd, SHUT_RDWR);
}

int32_t hd__store_server_rank(const struct hd_store *store)
{
    return store->server_rank;
}

int32_t hd__store_local_address(const struct hd_store *store, char *out, size_t room, struct hd_error *err)
{
    struct sockaddr_storage here = {0};
    socklen_t bytes = sizeof here;
    int bad = getsockname(store->fd, (struct sockaddr *)&here, &bytes);
    if (!bad)
        bad = getnameinfo((struct sockaddr *)&here, bytes, out, (socklen_t)room, NULL, 0, NI_NUMERICHOST);
    return bad ? hd_fail(err, HD_E_IO, "the address of the connection to %s is not known", store->server) : HD_OK;
}

void hd__store_abort(struct hd_store *store, const char *reason)
{
    hd__store_fail(store, HD_E_CANCELLED, reason);
}

void hd__store_fail(struct hd_store *store, int32_t code, const char *reason)
{
    struct hd_error err = HD_ERROR_INIT;
    hd_fail(&err, code, "%s", reason);
    hd__store_end(store, &err);
}

void hd__store_end(struct hd_store *store, const struct hd_error *err)
{
    uint64_t origin = hd__origin_of(err, store->rank);
    uint8_t value[1024];
    char cause[512];
    snprintf(cause, sizeof cause, "rank %d: %.400s", store->rank, err->message);
    struct hd__frame f = {.type = WIRE_ABORT,
                          .arg = err->code,
                          .value = value,
                          .value_bytes = hd__store_wire_put_end(value, sizeof value, origin, err->message)};
    double until = hd__now() + 1;
    hd__store_send_dump(store, HD__DUMP_FINAL);
    if (hd__store_send(store, &f, until) == HD_OK)
        while (hd__store_liveness_check(&store->live, NULL, NULL) == HD_OK &&
               hd__now() < until) /* the server's answer */
            usleep(200);
    hd__store_record_end(store, HD_E_CANCELLED, err->code, store->rank, origin, cause);
}
