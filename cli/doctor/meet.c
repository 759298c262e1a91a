/* heddle doctor: whether ranks find each other: the launcher's variables, the rendezvous address, the secret. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"

#define OK HD__DOCTOR_OK
#define WARN HD__DOCTOR_WARN
#define BAD HD__DOCTOR_BAD

enum { CONNECT_SECONDS = 3 };

/* 0 or errno of a bind: to any port tells whether the address is this machine's. */
static int try_bind(const struct addrinfo *at, uint16_t port)
{
    struct sockaddr_in in = *(const struct sockaddr_in *)(const void *)at->ai_addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, why;
    in.sin_port = htons(port);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    why = fd < 0 || bind(fd, (const struct sockaddr *)&in, sizeof in) || (port && listen(fd, 1)) ? errno : 0;
    if (fd >= 0)
        close(fd);
    return why;
}

/* 0 or errno. */
static int try_connect(const struct addrinfo *at, uint16_t port)
{
    struct sockaddr_in in = *(const struct sockaddr_in *)(const void *)at->ai_addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), why = 0;
    socklen_t n = sizeof why;
    in.sin_port = htons(port);
    if (fd < 0 || (connect(fd, (const struct sockaddr *)&in, sizeof in) && errno != EINPROGRESS))
        why = errno;
    else if (poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 1000 * CONNECT_SECONDS) < 1)
        why = ETIMEDOUT;
    else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n);
    if (fd >= 0)
        close(fd);
    return why;
}

static void check_here(struct hd__doctor *d, const struct addrinfo *at, const char *address, uint16_t port, int several)
{
    uint32_t in = ntohl(((const struct sockaddr_in *)(const void *)at->ai_addr)->sin_addr.s_addr);
    int why = try_bind(at, port);
    if (several && in >> 24 == 127)
        hd__doctor_add(d, BAD, "rendezvous", "MASTER_ADDR", "an address of the network, or a corrected /etc/hosts",
                       "%s is on its own machine, where ranks of other machines cannot reach it", address);
    else if (why == EADDRINUSE)
        hd__doctor_add(d, WARN, "rendezvous", "MASTER_PORT",
                       "another MASTER_PORT, unless the job that runs is this one",
                       "%s, this machine: a program listens at port %d", address, port);
    else if (why)
        hd__doctor_add(d, BAD, "rendezvous", "MASTER_PORT", "a port above 1023", "%s, this machine: port %d: %s",
                       address, port, strerror(why));
    else
        hd__doctor_add(d, OK, "rendezvous", "MASTER_ADDR", NULL, "%s, this machine; port %d is free", address, port);
}

static void check_address(struct hd__doctor *d, const char *host, uint16_t port, int several)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *list;
    char address[INET_ADDRSTRLEN], name[300];
    int why = getaddrinfo(host, NULL, &hints, &list);
    if (why) {
        hd__doctor_add(d, BAD, "rendezvous", "MASTER_ADDR",
                       "rank 0's machine by a name that getent hosts finds, or its IPv4 address",
                       "%.200s cannot be resolved: %s", host, gai_strerror(why));
        return;
    }
    inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)list->ai_addr)->sin_addr, address, sizeof address);
    snprintf(name, sizeof name, "%.200s (%s)", host, address);
    if (!try_bind(list, 0)) {
        check_here(d, list, name, port, several);
    } else if (!(why = try_connect(list, port)) || why == ECONNREFUSED) {
        hd__doctor_add(d, OK, "rendezvous", "MASTER_ADDR", NULL, "%s answers; %s at port %d", name,
                       why ? "nobody listens yet" : "somebody listens", port);
    } else {
        hd__doctor_add(d, BAD, "rendezvous", "MASTER_ADDR", "a route to it, and a firewall that lets the port through",
                       "%s, port %d: %s", name, port, strerror(why));
    }
    freeaddrinfo(list);
}

/* Variables of a shell in which a launcher is still to be called: what its ranks will be told. */
static void check_shell(struct hd__doctor *d)
{
    const char *host = getenv("MASTER_ADDR"), *word = getenv("MASTER_PORT"), *secret = getenv("HEDDLE_SECRET");
    char *end;
    long port = word ? strtol(word, &end, 10) : 0;
    uint8_t bytes[HD__SECRET_BYTES];
    if (!host && !word) {
        hd__doctor_add(d, OK, "rendezvous", "ranks", NULL,
                       "no launcher: heddle starts them on this machine, where they need no secret");
        return;
    }
    if (!host || !word || *end || port < 1 || port > 65534)
        hd__doctor_add(d, BAD, "rendezvous", "MASTER_PORT",
                       "MASTER_ADDR, and a MASTER_PORT from 1 to 65534, both or neither",
                       "MASTER_ADDR=%.200s MASTER_PORT=%.20s", host ? host : "", word ? word : "");
    else
        check_address(d, host, (uint16_t)port, 0);
    if (secret && !hd__store_secret_parse(secret, bytes))
        hd__doctor_add(d, BAD, "rendezvous", "secret",
                       "export HEDDLE_SECRET=$(openssl rand -hex 32), the same for every rank",
                       "HEDDLE_SECRET is not 32 or 64 hexadecimal digits");
    else if (!secret && !getenv("HEDDLE_SECRET_FILE"))
        hd__doctor_add(d, WARN, "rendezvous", "secret",
                       "export HEDDLE_SECRET=$(openssl rand -hex 32), the same for every rank",
                       "none: ranks of several machines are refused without");
    else
        hd__doctor_add(d, OK, "rendezvous", "secret", NULL, "%s is set",
                       secret ? "HEDDLE_SECRET" : "HEDDLE_SECRET_FILE");
}

void hd__doctor_rendezvous(struct hd__doctor *d)
{
    struct hd__launch_env env;
    struct hd_error err = HD_ERROR_INIT;
    int found = 0;
    if (hd__launch_detect(&env, &found, &err)) {
        hd__doctor_add(d, BAD, "rendezvous", "launcher",
                       "the variables of one launcher, all of them: docs/running.md, launching", "%s", err.message);
        return;
    }
    if (!found) {
        check_shell(d);
        return;
    }
    hd__doctor_add(d, OK, "rendezvous", "ranks", NULL, "this is rank %d of %d, %d on this machine", env.rank, env.size,
                   env.local_size);
    if (env.size == 1 || *env.discovery_id || env.launched_by_heddle) {
        hd__doctor_add(d, OK, "rendezvous", "secret", NULL, "all ranks are on this machine and need none");
        return;
    }
    check_address(d, env.store.host, env.store.port, env.local_size < env.size);
    hd__doctor_add(d, OK, "rendezvous", "secret", NULL, "it is there%s", env.store.tls ? ", and TLS" : "");
}
