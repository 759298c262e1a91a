#include "runtime/rendezvous/local_discovery.h"

#include <errno.h>
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

int32_t hd__store_discovery_listen(const char *id, int *fd, struct hd_error *err)
{
    struct sockaddr_un name;
    socklen_t bytes = name_of(id, &name);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd >= 0 && !bind(*fd, (struct sockaddr *)&name, bytes) && !listen(*fd, 1024))
        return HD_OK;
    return hd_fail(err, HD_E_IO, "the rendezvous of job %s cannot listen on this machine: %s", id,
                   errno == EADDRINUSE ? "another rank 0 of it does, or a stranger took its name" : strerror(errno));
}

void hd__store_discovery_answer(int fd, uint16_t port, const uint8_t secret[HD__SECRET_BYTES])
{
    struct endpoint endpoint = {.port = port};
    int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    if (peer < 0)
        return;
    memcpy(endpoint.secret, secret, sizeof endpoint.secret);
    if (same_user(peer) && send(peer, &endpoint, sizeof endpoint, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        hd__log(HD_LOG_DEBUG, "store", "local discovery: %s", strerror(errno)); /* it asks again */
    close(peer);
}

int32_t hd__store_discovery_find(const char *id, uint16_t *port, uint8_t secret[HD__SECRET_BYTES], struct hd_error *err)
{
    struct sockaddr_un name;
    struct endpoint endpoint;
    struct timeval limit = {.tv_sec = 2}; /* of each call: connect() waits where the queue is full */
    socklen_t bytes = name_of(id, &name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), theirs = 0, told = 0;
    ssize_t got = -1;
    if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) &&
        !setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) &&
        !connect(fd, (struct sockaddr *)&name, bytes)) {
        theirs = !same_user(fd);
        got = theirs ? -1 : recv(fd, &endpoint, sizeof endpoint, MSG_WAITALL);
        told = got == sizeof endpoint;
    }
    if (!told)
        hd_fail(err, HD_E_IO, "%s",
                theirs            ? "its name is taken by another user's process"
                : got == 0        ? "it closed the connection"
                : errno == EAGAIN ? "no answer"
                                  : strerror(errno));
    if (fd >= 0)
        close(fd);
    if (!told)
        return HD_E_IO;
    *port = endpoint.port;
    memcpy(secret, endpoint.secret, sizeof endpoint.secret);
    return HD_OK;
}
