#include "runtime/rendezvous/local_discovery.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/base.h"

struct endpoint {
    uint8_t secret[HD__SECRET_BYTES];
    uint16_t port;
};

/* Abstract socket name: a zero byte, then the user and a hash of the id. */
static socklen_t name_of(const char *id, struct sockaddr_un *name)
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "heddle/%u/%016llx", (unsigned)geteuid(),
                     (unsigned long long)hd__hash(id, strlen(id), 3));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Any user may bind an abstract name, so each side checks the other's. */
static int same_user(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) && peer.uid == geteuid();
}

/* Waits for input and reads all of it. */
static int recv_exact(int fd, void *data, size_t bytes, double deadline)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    for (size_t at = 0; at < bytes;) {
        double left = deadline - hd__now();
        ssize_t n =
            left > 0 && poll(&wait, 1, (int)(left * 1000) + 1) == 1 ? recv(fd, (char *)data + at, bytes - at, 0) : 0;
        if (n <= 0)
            return 0;
        at += (size_t)n;
    }
    return 1;
}

/* ---- rank 0 */

static int32_t missing_ranks_error(const char *id, const uint8_t *found, int32_t size, struct hd_error *err)
{
    int32_t first = 1, absent = 0;
    for (int32_t r = size - 1; r > 0; r--)
        if (!found[r]) {
            first = r;
            absent++;
        }
    return hd_fail(err, HD_E_TIMEOUT, "rank %d%s did not join the rendezvous of job %s on this machine in time", first,
                   absent > 1 ? " and others" : "", id);
}

/* Answers one connection; strangers and invalid ranks get nothing. 1: a rank was answered. */
static int32_t answer_rank(int fd, const struct endpoint *endpoint, uint8_t *found, int32_t size, double deadline)
{
    int32_t rank = 0;
    double limit = HD__MIN(deadline, hd__now() + 1);
    if (!same_user(fd) || !recv_exact(fd, &rank, sizeof rank, limit) || rank < 1 || rank >= size || found[rank])
        return 0;
    if (send(fd, endpoint, sizeof *endpoint, MSG_NOSIGNAL) != sizeof *endpoint)
        return 0;
    found[rank] = 1;
    return 1;
}

static int listen_abstract(const char *id, int32_t size, struct hd_error *err)
{
    struct sockaddr_un name;
    socklen_t bytes = name_of(id, &name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&name, bytes) && !listen(fd, size))
        return fd;
    hd_fail(err, HD_E_IO,
            errno == EADDRINUSE ? "another rank 0 of job %s listens on this machine: %s"
                                : "the rendezvous of job %s cannot listen: %s",
            id, strerror(errno));
    close(fd);
    return -1;
}

int32_t hd__store_discovery_serve(const char *id, int32_t size, uint16_t port, const uint8_t secret[HD__SECRET_BYTES],
                                  double deadline, struct hd_error *err)
{
    struct endpoint endpoint = {.port = port};
    struct pollfd wait = {.fd = listen_abstract(id, size, err), .events = POLLIN};
    uint8_t *found = hd__alloc((size_t)size);
    int32_t left = size - 1, code = wait.fd < 0 ? HD_E_IO : HD_OK;
    memcpy(endpoint.secret, secret, sizeof endpoint.secret);
    while (left && !code) {
        double rest = deadline - hd__now();
        int fd =
            rest > 0 && poll(&wait, 1, (int)(rest * 1000) + 1) == 1 ? accept4(wait.fd, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd >= 0) {
            left -= answer_rank(fd, &endpoint, found, size, deadline);
            close(fd);
        } else if (rest <= 0) {
            code = missing_ranks_error(id, found, size, err);
        }
    }
    if (wait.fd >= 0)
        close(wait.fd);
    free(found);
    return code;
}

/* ---- other ranks */

static int query_rank_0(const char *id, int32_t rank, struct endpoint *endpoint, double deadline)
{
    struct sockaddr_un name;
    socklen_t bytes = name_of(id, &name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int ok = fd >= 0 && !connect(fd, (struct sockaddr *)&name, bytes) && same_user(fd) &&
             send(fd, &rank, sizeof rank, MSG_NOSIGNAL) == sizeof rank &&
             recv_exact(fd, endpoint, sizeof *endpoint, deadline);
    if (fd >= 0)
        close(fd);
    return ok;
}

int32_t hd__store_discovery_find(const char *id, int32_t rank, uint16_t *port, uint8_t secret[HD__SECRET_BYTES],
                                 double deadline, struct hd_error *err)
{
    struct endpoint endpoint;
    while (!query_rank_0(id, rank, &endpoint, deadline)) {
        if (hd__now() > deadline)
            return hd_fail(err, HD_E_TIMEOUT, "rank 0 of job %s was not found on this machine in time", id);
        usleep(20000);
    }
    *port = endpoint.port;
    memcpy(secret, endpoint.secret, sizeof endpoint.secret);
    return HD_OK;
}
