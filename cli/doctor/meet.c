/* heddle doctor: whether ranks find each other: the launcher's variables, the rendezvous address, the secret. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "runtime/rendezvous/address.h"
#include "runtime/rendezvous/tls.h"

#define OK HD__DOCTOR_OK
#define WARN HD__DOCTOR_WARN
#define BAD HD__DOCTOR_BAD

enum { CONNECT_SECONDS = 3 };

/* A place to meet: the key or variable that names it, for messages. */
struct meeting {
    const char *key, *host;
    uint16_t port;
    int several; /* ranks of other machines come here */
    const struct addrinfo *at;
    char text[HD__ADDRESS_TEXT + 300];
};

/* 0 or errno. */
static int try_listen(const struct addrinfo *at)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, why;
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    why = fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) || listen(fd, 1) ? errno : 0;
    if (fd >= 0)
        close(fd);
    return why;
}

/* 0 or errno. */
static int try_connect(const struct addrinfo *at)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), why = 0;
    socklen_t n = sizeof why;
    if (fd < 0 || (connect(fd, at->ai_addr, at->ai_addrlen) && errno != EINPROGRESS))
        why = errno;
    else if (poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 1000 * CONNECT_SECONDS) < 1)
        why = ETIMEDOUT;
    else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n);
    if (fd >= 0)
        close(fd);
    return why;
}

static void check_here(struct hd__doctor *d, const struct meeting *m)
{
    struct sockaddr_storage at = {0};
    int why = try_listen(m->at);
    memcpy(&at, m->at->ai_addr, m->at->ai_addrlen);
    if (m->several && hd__address_is_loopback(&at))
        hd__doctor_add(d, BAD, "rendezvous", m->key, "name an address of the network, or correct /etc/hosts",
                       "%s is a loopback address, which other machines cannot reach", m->text);
    else if (why == EADDRINUSE)
        hd__doctor_add(d, WARN, "rendezvous", m->key, "another port, unless the job that runs is this one",
                       "%s, this machine: a program listens there", m->text);
    else if (why)
        hd__doctor_add(d, BAD, "rendezvous", m->key, "a port above 1023", "%s, this machine: %s", m->text,
                       strerror(why));
    else
        hd__doctor_add(d, OK, "rendezvous", m->key, NULL, "%s, this machine; the port is free", m->text);
}

static void check_address(struct hd__doctor *d, struct meeting *m)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list;
    struct sockaddr_storage at = {0};
    char port[8], address[HD__ADDRESS_TEXT];
    snprintf(port, sizeof port, "%u", m->port);
    int why = getaddrinfo(m->host, port, &hints, &list);
    if (why) {
        hd__doctor_add(d, BAD, "rendezvous", m->key,
                       "name rank 0's machine as getent hosts finds it, or by its address",
                       "%.200s cannot be resolved: %s", m->host, gai_strerror(why));
        return;
    }
    memcpy(&at, list->ai_addr, list->ai_addrlen);
    hd__address_text(&at, address);
    snprintf(m->text, sizeof m->text, "%.200s (%s)", m->host, address);
    m->at = list;
    if (hd__address_is_here(m->host))
        check_here(d, m);
    else if (!(why = try_connect(list)) || why == ECONNREFUSED)
        hd__doctor_add(d, OK, "rendezvous", m->key, NULL, "%s answers; %s", m->text,
                       why ? "nobody listens yet" : "somebody listens");
    else
        hd__doctor_add(d, BAD, "rendezvous", m->key, "a route to it, and a firewall that lets the port through",
                       "%s: %s", m->text, strerror(why));
    freeaddrinfo(list);
}

/* The secret and the certificates, which ranks of several machines have to hold. */
static void check_secret(struct hd__doctor *d)
{
    struct hd_error err = HD_ERROR_INIT;
    uint8_t secret[HD__SECRET_BYTES];
    struct ssl_ctx_st *tls = NULL;
    int given;
    if (hd__launch_read_secret(secret, &given, &err))
        hd__doctor_add(d, BAD, "rendezvous", "secret",
                       "set one of HEDDLE_SECRET and HEDDLE_SECRET_FILE to what `openssl rand -hex 32` prints", "%s",
                       err.message);
    else if (!given)
        hd__doctor_add(d, WARN, "rendezvous", "secret",
                       "export HEDDLE_SECRET=$(openssl rand -hex 32), the same for every rank",
                       "none: ranks of several machines are refused without");
    else
        hd__doctor_add(d, OK, "rendezvous", "secret", NULL, "it is there");
    memset(secret, 0, sizeof secret);
    if (!getenv("HEDDLE_TLS_CA") && !getenv("HEDDLE_TLS_CERT") && !getenv("HEDDLE_TLS_KEY"))
        return;
    if (hd__tls_context(&tls, &err))
        hd__doctor_add(d, BAD, "rendezvous", "TLS",
                       "HEDDLE_TLS_CA, HEDDLE_TLS_CERT and HEDDLE_TLS_KEY: SECURITY.md, TLS", "%s", err.message);
    else
        hd__doctor_add(d, OK, "rendezvous", "TLS", NULL, "certificate and key are there, and fit");
}

/* A shell in which a launcher, or the agent of a machine, is still to be called. */
static void check_shell(struct hd__doctor *d, const struct hd__job *job)
{
    const char *host = getenv("MASTER_ADDR"), *word = getenv("MASTER_PORT"),
               *place = job ? job->launch_rendezvous : NULL;
    struct meeting m = {.key = place ? "launch.rendezvous" : "MASTER_ADDR", .host = host, .several = place != NULL};
    struct hd_error err = HD_ERROR_INIT;
    char *end, name[256];
    long port = word ? strtol(word, &end, 10) : 0;
    if (!place && hd__launch_check_alone(&err))
        hd__doctor_add(d, WARN, "rendezvous", "launcher", "heddle train with --nodes, --node-rank and --rendezvous",
                       "%s", err.message);
    if (!place && !host && !word) {
        if (hd__launch_check_local(&err))
            check_secret(d);
        hd__doctor_add(d, OK, "rendezvous", "ranks", NULL,
                       "no launcher: heddle starts them on this machine, where they need no secret");
        return;
    }
    if (place && hd__address_split(place, name, sizeof name, &m.port)) {
        m.host = name;
        check_address(d, &m);
    } else if (place) {
        hd__doctor_add(d, BAD, "rendezvous", m.key, "HOST:PORT, or [ADDRESS]:PORT", "%.200s", place);
    } else if (!host || !word || *end || port < 1 || port > 65534) {
        hd__doctor_add(d, BAD, "rendezvous", "MASTER_PORT", "set both, with a port from 1 to 65534, or unset both",
                       "MASTER_ADDR=%.200s MASTER_PORT=%.20s", host ? host : "", word ? word : "");
    } else {
        m.port = (uint16_t)port;
        check_address(d, &m);
    }
    check_secret(d);
}

void hd__doctor_rendezvous(struct hd__doctor *d, const struct hd__job *job)
{
    struct hd__launch_env env;
    struct hd_error err = HD_ERROR_INIT;
    int found = 0;
    if (hd__launch_detect(&env, &found, &err)) {
        hd__doctor_add(d, BAD, "rendezvous", "launcher",
                       "set all variables of one launcher, or unset them: docs/running.md, launching", "%s",
                       err.message);
        return;
    }
    if (!found) {
        check_shell(d, job);
        return;
    }
    hd__doctor_add(d, OK, "rendezvous", "ranks", NULL, "this is rank %d of %d, %d on this machine", env.rank, env.size,
                   env.local_size);
    if (env.size == 1 || *env.discovery_id || env.launched_by_heddle) {
        hd__doctor_add(d, OK, "rendezvous", "secret", NULL, "all ranks are on this machine and need none");
        return;
    }
    struct meeting m = {
        .key = "MASTER_ADDR", .host = env.store.host, .port = env.store.port, .several = env.local_size < env.size};
    check_address(d, &m);
    check_secret(d);
}
