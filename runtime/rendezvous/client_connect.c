/* Finding the server, greeting it. */
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/base.h"
#include "runtime/rendezvous/client_internal.h"

static int connect_once(const struct hd__store_options *o, struct hd_error *err)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *list;
    struct timeval timeout = {.tv_sec = 2}; /* connect() obeys the send time-out */
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
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
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
        ptrdiff_t n = hd__store_wire_parse(s->in, s->in_bytes, frame);
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

static int32_t send_hello(struct hd_store *s, const struct hd__store_options *o, double deadline, struct hd_error *err)
{
    uint8_t hello[WIRE_HELLO];
    struct hd__frame f = {.type = WIRE_SAY_HELLO, .value = hello, .value_bytes = WIRE_HELLO};
    size_t used = 0;
    hd__store_wire_put_u32(hello, (uint32_t)o->rank);
    hd__store_wire_put_u32(hello + 4, (uint32_t)o->size);
    memcpy(hello + 8, o->secret, WIRE_SECRET);
    if (hd__store_send(s, &f, deadline) != HD_OK)
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
int32_t hd__store_handshake(struct hd_store *s, const struct hd__store_options *o, double deadline,
                            struct hd_error *err)
{
    int32_t code;
    s->in_bytes = 0;
    s->fd = connect_once(o, err);
    if (s->fd < 0)
        return HD_E_IO;
    code = send_hello(s, o, deadline, err);
    if (code != HD_OK) {
        close(s->fd);
        s->fd = -1;
    }
    return code;
}
