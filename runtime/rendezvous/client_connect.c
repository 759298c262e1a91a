/* Finding the server, and the handshake with it. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/base.h"
#include "runtime/rendezvous/address.h"
#include "runtime/rendezvous/client_internal.h"
#include "runtime/rendezvous/local_discovery.h"

#define ANSWER_SECONDS 10.0 /* for the server's part of a handshake; it lets go of strangers sooner */

static int connect_once(const char *host, uint16_t at_port, struct hd_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list;
    struct timeval timeout = {.tv_sec = 2}; /* connect() obeys the send time-out */
    char port[8];
    int one = 1, fd = -1;
    snprintf(port, sizeof port, "%u", at_port);
    int bad = getaddrinfo(host, port, &hints, &list);
    if (bad) {
        hd_fail(err, HD_E_IO, "%s: %s", host, gai_strerror(bad));
        return -1;
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        if (fd >= 0)
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
        if (fd < 0 || connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            hd_fail(err, HD_E_IO, "%s", errno == EINPROGRESS ? "no answer" : strerror(errno));
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static int is_here(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t bytes = sizeof here, same = sizeof there;
    return !getsockname(fd, (struct sockaddr *)&here, &bytes) && !getpeername(fd, (struct sockaddr *)&there, &same) &&
           hd__address_same_host(&here, &there);
}

static ptrdiff_t open_frame(struct hd_store *s, struct hd__frame *frame)
{
    return s->sealed ? hd__auth_open(&s->from, s->in, s->in_bytes, frame)
                     : hd__store_wire_parse(s->in, s->in_bytes, frame);
}

static int32_t fail_closed(struct hd_store *s, struct hd_error *err)
{
    const char *why = hd__tls_error(s->tls);
    return why ? hd_fail(err, HD_E_INVALID, "TLS with the server at %s failed: %s", s->server, why)
               : hd_fail(err, HD_E_IO, "it closed the connection");
}

/* The next frame; it points into s->in, and `used` bytes of that are its own. */
static int32_t receive(struct hd_store *s, struct hd__frame *frame, size_t *used, struct hd_deadline *end,
                       struct hd_error *err)
{
    for (;;) {
        struct pollfd in = {.fd = s->fd, .events = POLLIN};
        ptrdiff_t n = open_frame(s, frame);
        if (n > 0) {
            *used = (size_t)n;
            return HD_OK;
        }
        if (n < 0 && s->sealed)
            return hd_fail(err, HD_E_INVALID, "an answer from the server at %s was altered on its way", s->server);
        if (n < 0 && s->in[0] && s->in[0] < HD__TLS_ALERT - 1 && s->in[0] != WIRE_VERSION)
            return hd_fail(err, HD_E_INVALID,
                           "the server at %s speaks version %d of the rendezvous protocol, and this rank version %d: "
                           "start all ranks with the same build of heddle",
                           s->server, s->in[0], WIRE_VERSION);
        if (n < 0 && s->in[0] == HD__TLS_ALERT)
            return hd_fail(err, HD_E_INVALID,
                           "the server at %s speaks TLS, and this rank does not: set HEDDLE_TLS_CA, _CERT and _KEY on "
                           "all ranks, or on none",
                           s->server);
        if (n < 0)
            return hd_fail(err, HD_E_IO, "what answers there is not heddle");
        if (hd_deadline_passed(end, hd__now()))
            return hd_fail(err, HD_E_IO, "it accepted the connection and said nothing");
        poll(&in, 1, 50);
        ssize_t got = hd__tls_recv(s->fd, s->tls, s->in + s->in_bytes, WIRE_SEALED_MAX - s->in_bytes);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return fail_closed(s, err);
        s->in_bytes += got > 0 ? (size_t)got : 0;
    }
}

static int32_t send_to(struct hd_store *s, uint32_t type, const uint8_t *value, uint32_t bytes, double deadline,
                       struct hd_error *err)
{
    struct hd__frame f = {.type = type, .value = value, .value_bytes = bytes};
    return hd__store_send(s, &f, deadline) ? fail_closed(s, err) : HD_OK;
}

static void drop_received(struct hd_store *s, size_t used)
{
    memmove(s->in, s->in + used, s->in_bytes - used);
    s->in_bytes -= used;
}

/* Until the server has proved that it knows the secret, it is told who asks, and no more. */
static int32_t authenticate(struct hd_store *s, const struct hd__store_options *o, const uint8_t *secret,
                            struct hd_deadline *end, struct hd_error *err)
{
    struct hd__auth_handshake h = {.rank = (uint32_t)o->rank, .size = (uint32_t)o->size};
    struct hd__frame f;
    uint8_t hello[WIRE_HELLO], proof[WIRE_TAG];
    size_t used = 0;
    int32_t code;
    hd__auth_random(h.rank_nonce, WIRE_NONCE);
    hd__store_wire_put_u32(hello, h.rank);
    hd__store_wire_put_u32(hello + 4, h.size);
    memcpy(hello + 8, h.rank_nonce, WIRE_NONCE);
    code = send_to(s, WIRE_SAY_HELLO, hello, WIRE_HELLO, end->at, err);
    if (!code)
        code = receive(s, &f, &used, end, err);
    if (code)
        return code;
    if (f.type == WIRE_CHALLENGE_RANK && f.value_bytes == WIRE_CHALLENGE)
        memcpy(h.server_nonce, f.value, WIRE_NONCE);
    if (f.type != WIRE_CHALLENGE_RANK || f.value_bytes != WIRE_CHALLENGE ||
        !hd__auth_check_proof(secret, HD__AUTH_SERVER, &h, f.value + WIRE_NONCE))
        return hd_fail(err, HD_E_INVALID,
                       "the server at %s did not prove that it knows the job's secret: is HEDDLE_SECRET the same on "
                       "all ranks, and does no other program or job listen there?",
                       s->server);
    drop_received(s, used);
    hd__auth_prove(secret, HD__AUTH_RANK, &h, proof);
    code = send_to(s, WIRE_PROVE, proof, WIRE_TAG, end->at, err);
    hd__auth_channel_init(&s->from, secret, HD__AUTH_SERVER, &h);
    hd__auth_channel_init(&s->to, secret, HD__AUTH_RANK, &h);
    s->sealed = 1;
    return code;
}

static int32_t enter(struct hd_store *s, const struct hd__store_options *o, uint8_t *secret, struct hd_deadline *end,
                     struct hd_error *err)
{
    struct hd__frame f;
    size_t used = 0;
    int32_t code = HD_OK;
    if (o->tls) {
        s->tls = hd__tls_new(o->tls, s->fd, 0);
        code = hd__tls_connect(s->tls, end, err);
        if (code)
            return hd__tls_error(s->tls) ? fail_closed(s, err) : code;
        hd__tls_bind(s->tls, secret);
    }
    code = authenticate(s, o, secret, end, err);
    if (!code)
        code = receive(s, &f, &used, end, err);
    if (code)
        return code;
    if (f.type != WIRE_WELCOME)
        return hd_fail(err, f.arg ? HD_E_IO : HD_E_INVALID, "the rendezvous refused %s %d: %.*s", s->noun, o->rank,
                       (int)HD__MIN(f.value_bytes, 400u), f.type == WIRE_REJECT ? (const char *)f.value : "");
    s->server_rank = f.arg;
    drop_received(s, used);
    return HD_OK;
}

int32_t hd__store_handshake(struct hd_store *s, const struct hd__store_options *o, struct hd_deadline *end,
                            struct hd_error *err)
{
    uint8_t secret[HD__SECRET_BYTES];
    uint16_t port = o->port;
    int32_t code = HD_OK;
    memcpy(secret, o->secret, sizeof secret);
    s->in_bytes = 0;
    s->sealed = 0;
    hd__address_join(o->host, port, s->server, sizeof s->server);
    if (o->discovery_id)
        snprintf(s->server, sizeof s->server, "the local socket of port or job %.60s", o->discovery_id);
    if (o->discovery_id && hd__store_discovery_find(o->discovery_id, &port, secret, err))
        return HD_E_IO;
    s->fd = connect_once(o->host, port, err);
    if (s->fd < 0)
        return HD_E_IO;
    s->here = is_here(s->fd);
    /* A server answers at once: its word is not cut off by a deadline that is near. */
    double now = hd__now(), at = HD__MIN(HD__MAX(end->at, now + 1), now + ANSWER_SECONDS);
    struct hd_deadline answer = {at, now};
    code = enter(s, o, secret, &answer, err);
    end->at += answer.at - at; /* while this process was stopped */
    end->looked = answer.looked;
    if (code != HD_OK) {
        hd__tls_free(s->tls);
        s->tls = NULL;
        close(s->fd);
        s->fd = -1;
    }
    return code;
}
