/* The rendezvous server: one thread in poll(), no blocking call, every buffer bounded.
 *
 * A connection is a stranger until it has proved that it knows the secret; strangers are few and short-lived, and may
 * send nothing else. A rank's connection that ends without BYE, or is silent for dead_after, is that rank's death. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "heddle/comm.h"
#include "runtime/rendezvous/address.h"
#include "runtime/rendezvous/liveness.h"
#include "runtime/rendezvous/local_discovery.h"
#include "runtime/rendezvous/server_internal.h"

#define STOP_SECONDS 2.0 /* between the ends of ranks that are all stopped before the first step */

/* ---- how a job ends */

void hd__server_send_end(struct hd__server *s, struct server_conn *c)
{
    uint8_t value[WIRE_ORIGIN + sizeof s->end.cause];
    struct hd__frame f = {.type = s->end.code == HD_E_PEER ? WIRE_DEAD : WIRE_ABORT,
                          .id = (uint32_t)s->end.fault,
                          .arg = s->end.rank,
                          .value = value,
                          .value_bytes = hd__store_wire_put_end(value, sizeof value, s->end.origin, s->end.cause)};
    hd__server_conn_send(c, &f);
}

void hd__server_end_job(struct hd__server *s, int32_t fault, int32_t rank, uint64_t origin, const char *cause)
{
    char slept[128];
    if (s->end.code != HD_OK || s->options.members)
        return;
    if (s->options.rank >= 0 && s->slept > hd__store_silence_seconds(s->options.dead_after) &&
        hd__now() < s->woke + 2) {
        /* The others have ended because of that, whatever it looks like from here. */
        snprintf(slept, sizeof slept, "rank %d, which serves the rendezvous, had been stopped for %.1f s",
                 s->options.rank, s->slept);
        fault = HD_E_PEER;
        rank = s->options.rank;
        origin = 0;
        cause = slept;
    }
    s->end.code = fault == HD_E_PEER ? HD_E_PEER : HD_E_CANCELLED;
    s->end.fault = fault;
    s->end.rank = rank;
    s->end.origin = origin;
    atomic_store(&s->ended_by, rank);
    snprintf(s->end.cause, sizeof s->end.cause, "%s", cause);
    for (uint32_t i = 0; i < s->conns.count; i++)
        if (s->conns.at[i]->rank >= 0)
            hd__server_send_end(s, s->conns.at[i]);
    hd__server_dump_begin(&s->dumps, HD__DUMP_FINAL, 0, hd__now());
}

/* ---- what everybody was doing */

void hd__server_request_dumps(struct hd__server *s, double waited, double now)
{
    if (s->options.timeout > 0 && waited > s->options.timeout) { /* the one that may end the job is not put off, */
        s->dumps.next_snapshot = 0;
        s->dumps.again = s->dumps.active ? HD__MAX(s->dumps.again, waited) : 0; /* but by another */
    }
    if (s->end.code != HD_OK || !s->options.on_dumps ||
        !hd__server_dump_begin(&s->dumps, HD__DUMP_SNAPSHOT, waited, now))
        return;
    for (uint32_t i = 0; i < s->conns.count; i++)
        if (s->conns.at[i]->rank >= 0)
            hd__server_conn_send(s->conns.at[i],
                                 &(struct hd__frame){.type = WIRE_DUMP_REQUEST, .arg = HD__DUMP_SNAPSHOT});
}

static void wake(struct hd__server *server)
{
    uint64_t one = 1;
    if (write(server->wake, &one, sizeof one) < 0)
        hd__log(HD_LOG_DEBUG, "store", "wake: %s", strerror(errno)); /* it wakes by itself within a beat */
}

/* Dumps of thousands of ranks take seconds to parse, and a server that is silent meanwhile counts as dead. */
static void *report(void *arg)
{
    struct hd__server *s = arg;
    hd__store_thread_wakes();
    if (s->options.on_dumps)
        s->report.code = s->options.on_dumps(s->options.user, &s->report.all, &s->report.rank, s->report.cause);
    atomic_store(&s->report.done, 1);
    wake(s);
    hd__store_thread_sleeps();
    return NULL;
}

static void begin_report(struct hd__server *s)
{
    s->report.what = s->dumps.active;
    s->report.all =
        (struct hd__rank_dumps){.code = s->end.fault, .rank = s->end.rank, .cause = s->end.code ? s->end.cause : ""};
    s->report.code = HD_OK;
    atomic_store(&s->report.done, 0);
    hd__server_dump_take(&s->dumps, s->rank_state, &s->report.arena, &s->report.all);
    s->report.threads = !pthread_create(&s->report.thread, NULL, report, s);
    if (!s->report.threads)
        report(s);
}

static void end_report(struct hd__server *s)
{
    if (s->report.threads)
        pthread_join(s->report.thread, NULL);
    hd__arena_free(&s->report.arena);
    for (uint32_t i = 0; i < s->conns.count && !s->dumps.active; i++) /* else the report of the end is yet to come */
        s->conns.at[i]->closing |= s->conns.at[i]->leaving;
    s->report.what = 0;
    if (s->report.code != HD_OK && s->end.code == HD_OK)
        hd__server_end_job(s, s->report.code, s->report.rank, 0, s->report.cause);
    if (s->dumps.again > 0)
        hd__server_request_dumps(s, s->dumps.again, hd__now());
}

/* ---- who has not come */

int32_t hd__server_format_ranks(const struct hd__server *s, const uint8_t *is, char *out, size_t room)
{
    enum { MOST = 16 };
    int32_t n = 0;
    size_t at = 0;
    for (int32_t r = 0; r < s->options.size; r++)
        if (is[r] && n++ < MOST)
            at += (size_t)snprintf(out + at, room - at, "%s%d", n > 1 ? ", " : "", r);
    if (n > MOST)
        snprintf(out + at, room - at, " and %d more", n - MOST);
    return n;
}

int32_t hd__server_absent_ranks(const struct hd__server *s, char out[256])
{
    uint8_t *absent = hd__alloc((size_t)s->options.size);
    int32_t first = -1, n;
    char list[240] = "";
    for (int32_t r = s->options.size; r-- > 0;)
        if ((absent[r] = s->rank_state[r] == HD__RANK_ABSENT))
            first = r;
    n = hd__server_format_ranks(s, absent, list, sizeof list);
    snprintf(out, 256, "rank%s %s", n > 1 ? "s" : "", list);
    free(absent);
    return first;
}

/* When it has to be looked for them; far away where all have come. Counted from the first that came: how long a
 * launcher takes is not the job's. */
static double next_absent_log(const struct hd__server *s)
{
    double due = s->absent_logged ? 2 * s->absent_logged : s->options.late_after;
    if (s->all_connected || s->end.code != HD_OK || s->options.late_after <= 0)
        return 1e300;
    if (!s->first_connected)
        return s->opened + due;
    return s->first_connected + (s->options.timeout > 0 ? HD__MIN(due, s->options.timeout) : due);
}

static void log_absent_ranks(struct hd__server *s, double now)
{
    char who[256], cause[600];
    int32_t first;
    if (now < next_absent_log(s))
        return;
    first = hd__server_absent_ranks(s, who);
    s->all_connected = first < 0;
    if (s->all_connected)
        return;
    s->absent_logged = now - (s->first_connected ? s->first_connected : s->opened);
    snprintf(cause, sizeof cause, "%s did not connect within %.0f s to %s", who, s->absent_logged, s->at);
    if (s->first_connected && s->options.timeout > 0 && s->absent_logged >= s->options.timeout)
        hd__server_end_job(s, HD_E_PEER, first, 0, cause);
    else
        hd__log(HD_LOG_WARN, NULL, "%s", cause);
}

/* ---- the loop */

static int wait_ms(struct hd__server *s, double now)
{
    double until = HD__MIN(now + hd__store_heartbeat_seconds(s->options.dead_after), next_absent_log(s));
    double silence = hd__store_silence_seconds(s->options.dead_after);
    if (s->dumps.active && !s->report.what)
        until = HD__MIN(until, s->dumps.deadline);
    for (uint32_t i = 0; i < s->conns.count; i++)
        if (s->conns.at[i]->rank >= 0 && !s->conns.at[i]->leaving)
            until = HD__MIN(until, HD__MAX(s->conns.at[i]->last_heard + silence, now + silence / 32));
    for (uint32_t i = 0; i < s->waits.count; i++)
        until = HD__MIN(until, s->waits.at[i].deadline);
    return (int)(HD__MAX(0.0, until - now) * 1e3) + 1;
}

static void serve_conns(struct hd__server *s, const struct pollfd *fds, uint32_t n, double now)
{
    /* Backwards: conn_free moves the last one, which was served already, into the hole. */
    for (uint32_t i = n; i-- > 0;) {
        struct server_conn *c = s->conns.at[i];
        char text[64];
        const char *end = NULL;
        for (int ready = fds[i].revents & (POLLIN | POLLHUP | POLLERR); !end && ready;
             ready = !c->closing && hd__tls_pending(c->tls))
            end = hd__server_conn_read(s, c, now);
        if (!end)
            end = hd__server_conn_check_timeout(s, c, now, text);
        if (end)
            hd__server_conn_free(s, i, end);
    }
}

static void flush_conns(struct hd__server *s)
{
    for (uint32_t i = s->conns.count; i-- > 0;) {
        const char *end = hd__server_conn_write(s->conns.at[i]);
        if (end)
            hd__server_conn_free(s, i, end);
    }
}

/* Woken by another thread: to stop, or to end the job. */
static void on_wake(struct hd__server *s)
{
    uint64_t times;
    if (read(s->wake, &times, sizeof times) < 0 && errno != EAGAIN)
        hd__log(HD_LOG_DEBUG, "store", "wake: %s", strerror(errno));
    if (atomic_load(&s->ask.is))
        hd__server_end_job(s, HD_E_PEER, s->ask.rank, 0, s->ask.cause);
}

static void *serve(void *arg)
{
    struct hd__server *s = arg;
    HD__ARRAY(struct pollfd) fds = {0};
    hd__store_favour_thread();
    hd__store_thread_wakes();
    double looked = hd__now();
    for (int stop = 0, more = 1; !stop || more;) {
        uint32_t n = s->conns.count;
        stop = atomic_load(&s->stop);
        fds.count = 0;
        for (uint32_t i = 0; i < n; i++) {
            struct server_conn *c = s->conns.at[i];
            short out = c->out_at < c->out_bytes || hd__tls_unflushed(c->tls) ? POLLOUT : 0;
            hd__push(&fds, ((struct pollfd){.fd = c->fd, .events = (short)(POLLIN | out)}));
        }
        hd__push(&fds, ((struct pollfd){.fd = s->listener, .events = POLLIN}));
        hd__push(&fds, ((struct pollfd){.fd = s->wake, .events = stop && !s->report.what ? 0 : POLLIN}));
        hd__push(&fds, ((struct pollfd){.fd = s->discovery, .events = POLLIN}));
        double before = hd__now();
        int planned = stop && !s->dumps.active && !s->report.what ? 0 : wait_ms(s, before);
        hd__store_thread_sleeps();
        int ready = poll(fds.at, fds.count, planned);
        hd__store_thread_wakes();
        if (ready < 0 && errno != EINTR)
            break;
        double now = hd__now();
        if (now - looked > s->options.dead_after / 2) { /* we were stopped ourselves: nobody else is to blame */
            before = looked;
            s->slept = now - looked;
            s->woke = now;
            s->opened += s->slept;
            s->first_connected += s->first_connected ? s->slept : 0;
        }
        for (uint32_t i = 0; i < s->waits.count; i++)
            s->waits.at[i].deadline += hd_slept(before, planned / 1e3, now);
        atomic_store(&s->busy_until, atomic_load(&s->busy_until) + hd_slept(before, planned / 1e3, now));
        for (uint32_t i = 0; i < n; i++) {
            double *heard = &s->conns.at[i]->last_heard;
            *heard = s->woke == now ? now : hd_excuse(*heard, before, planned / 1e3, now);
        }
        looked = now;
        if (fds.at[n + 1].revents & POLLIN)
            on_wake(s);
        serve_conns(s, fds.at, n, now);
        hd__server_expire_waits(s, now);
        if (s->stopping.since > 0 && s->conns.count && now > s->stopping.since + STOP_SECONDS) {
            s->stopping.since = 0;
            hd__server_rank_died(s, s->stopping.rank, "its connection closed");
        }
        log_absent_ranks(s, now);
        if (fds.at[n].revents & POLLIN)
            hd__server_conn_accept(s, now);
        if (fds.at[n + 2].revents & POLLIN && s->discovery >= 0)
            hd__store_discovery_answer(s->discovery, s->port, s->options.secret);
        if (s->report.what && atomic_load(&s->report.done))
            end_report(s);
        if (s->dumps.active && !s->report.what && hd__server_dump_complete(&s->dumps, s->rank_state, now))
            begin_report(s);
        flush_conns(s); /* who may leave now does not wait for the next event */
        /* what the ranks said before they ended still counts */
        more = ready > 0 || s->dumps.active || s->report.what;
    }
    hd__store_thread_sleeps();
    if (s->report.what) /* poll() failed */
        end_report(s);
    hd__free_array(&fds);
    return NULL;
}

/* ---- opening and closing */

/* At the first of the name's addresses that is this machine's. */
static int bind_to(struct hd__server *s, const struct addrinfo *list)
{
    int one = 1, why = EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        s->listener = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (s->listener < 0) {
            why = errno;
            continue;
        }
        setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (!bind(s->listener, a->ai_addr, a->ai_addrlen) && !listen(s->listener, 1024))
            return 0;
        why = errno;
        close(s->listener);
        s->listener = -1;
    }
    return why;
}

static int32_t listen_at(struct hd__server *s, struct hd_error *err)
{
    const struct hd__server_options *o = &s->options;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list;
    struct sockaddr_storage at;
    socklen_t bytes = sizeof at;
    char port[8], name[128];
    snprintf(port, sizeof port, "%u", o->port);
    int bad = getaddrinfo(o->address, port, &hints, &list);
    if (bad)
        return hd_fail(err, HD_E_INVALID, "rendezvous address %s: %s", o->address, gai_strerror(bad));
    bad = bind_to(s, list);
    freeaddrinfo(list);
    hd__address_join(o->address, o->port, name, sizeof name);
    if (bad)
        return hd_fail(err, HD_E_IO, "rendezvous cannot listen at %s: %s%s", name, strerror(bad),
                       bad == EADDRINUSE && !o->members ? ": take another MASTER_PORT"
                       : bad == EADDRINUSE ? " (node 0 of this or another job is there: on another machine of this job "
                                             "say --node-rank 1 and so on, for another job take another port)"
                       : bad != EADDRNOTAVAIL ? ""
                       : o->members           ? " (node 0 must run on the machine of launch.rendezvous)"
                                              : " (rank 0 must run on the machine of MASTER_ADDR)");
    if (getsockname(s->listener, (struct sockaddr *)&at, &bytes) != 0)
        return hd_fail(err, HD_E_IO, "getsockname: %s", strerror(errno));
    s->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&at)->sin6_port
                                             : ((struct sockaddr_in *)(void *)&at)->sin_port);
    return HD_OK;
}

static void server_free(struct hd__server *s)
{
    for (uint32_t i = s->conns.count; i-- > 0;) {
        hd__tls_free(s->conns.at[i]->tls);
        close(s->conns.at[i]->fd);
        free(s->conns.at[i]->in);
        free(s->conns.at[i]->out);
        free(s->conns.at[i]);
    }
    hd__free_array(&s->conns);
    hd__free_array(&s->waits);
    hd__store_kv_free(&s->kv);
    hd__server_dump_finish(&s->dumps);
    free(s->rank_state);
    free(s->conn_of);
    free((void *)s->visits);
    if (s->listener >= 0)
        close(s->listener);
    if (s->wake >= 0)
        close(s->wake);
    if (s->discovery >= 0)
        close(s->discovery);
    free(s);
}

int32_t hd__server_open(const struct hd__server_options *options, struct hd__server **server, struct hd_error *err)
{
    struct hd__server *s = hd__alloc(sizeof *s);
    s->options = *options;
    s->listener = s->discovery = -1;
    s->ended_by = -1;
    s->opened = hd__now();
    s->rank_state = hd__alloc((size_t)options->size);
    s->conn_of = hd__alloc((size_t)options->size * sizeof *s->conn_of);
    s->visits = options->members ? hd__alloc((size_t)options->size * sizeof *s->visits) : NULL;
    hd__server_dump_init(&s->dumps, options->size);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int32_t code = s->wake < 0 ? hd_fail(err, HD_E_IO, "eventfd: %s", strerror(errno)) : listen_at(s, err);
    if (code == HD_OK && options->discovery_id)
        code = hd__store_discovery_listen(options->discovery_id, &s->discovery, err);
    hd__address_join(options->address, s->port, s->at, sizeof s->at);
    if (options->discovery_id)
        snprintf(s->at, sizeof s->at,
                 "the local socket of port or job %.60s (ranks of another machine need HEDDLE_SECRET)",
                 options->discovery_id);
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

int32_t hd__server_ended_by(const struct hd__server *server, int32_t *code)
{
    int32_t rank = atomic_load(&server->ended_by);
    *code = atomic_load(&server->end.code);
    return rank;
}

static void stop_thread(struct hd__server *server)
{
    if (atomic_exchange(&server->stop, 1))
        return;
    wake(server);
    pthread_join(server->thread, NULL);
}

int32_t hd__server_exit_code(struct hd__server *server)
{
    stop_thread(server); /* when it has read to the end */
    int all = !atomic_load(&server->end.code) && atomic_load(&server->said) == server->options.size;
    return all ? atomic_load(&server->exit_code) : -1;
}

int hd__server_is_complete(const struct hd__server *server)
{
    return atomic_load(&server->come) >= server->options.size;
}

uint32_t hd__server_visits(const struct hd__server *server, int32_t rank)
{
    return atomic_load(&server->visits[rank]);
}

void hd__server_stopping(struct hd__server *server)
{
    atomic_store(&server->stopping.all, 1);
}

void hd__server_end(struct hd__server *server, int32_t rank, const char *cause)
{
    if (atomic_load(&server->ask.is) || atomic_load(&server->end.code))
        return;
    server->ask.rank = rank;
    snprintf(server->ask.cause, sizeof server->ask.cause, "%s", cause);
    atomic_store(&server->ask.is, 1);
    wake(server);
}

double hd__server_busy_until(const struct hd__server *server)
{
    return atomic_load(&server->busy_until);
}

void hd__server_drain(struct hd__server *server, double deadline)
{
    struct hd_deadline end = {deadline, hd__now()};
    while (atomic_load(&server->gone) < server->options.size &&
           (!hd_deadline_passed(&end, hd__now()) || end.looked < hd__server_busy_until(server)))
        usleep(2000);
}

void hd__server_close(struct hd__server *server)
{
    if (!server)
        return;
    stop_thread(server);
    server_free(server);
}
