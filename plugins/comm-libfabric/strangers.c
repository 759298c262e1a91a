/* Strangers at the port that libfabric's tcp provider listens at. libfabric accepts whoever connects, and keeps a
 * connection that says nothing for as long as it likes, in this process' table of descriptors: when that is full, no
 * file can be opened any more. libfabric has no limit and no deadline for them, so they are looked for here: a
 * connection to our port that has not sent a head of libfabric's is shut down after STRANGER_SECONDS, or at once
 * where the table is half full. libfabric sees the end and lets go of it. Connections are accepted in calls of progress
 * only (FI_PROGRESS_MANUAL), and these look after them. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

#define STRANGER_SECONDS 5.0
#define CROWD_SECONDS 0.02 /* in a crowd */
#define LOOK_SECONDS 1.0
enum {
    HEAD_BYTES = 16, /* no message of libfabric's is shorter */
    OWN = 64,        /* descriptors for files */
    ESTABLISHED = 1  /* as <netinet/tcp.h> calls it, which cannot be included beside <linux/tcp.h> */
};

static int port_of(int fd, uint16_t *port)
{
    struct sockaddr_in6 at; /* IPv4 has its port at the same place */
    socklen_t bytes = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &bytes) || (at.sin6_family != AF_INET && at.sin6_family != AF_INET6))
        return 0;
    *port = at.sin6_port;
    return 1;
}

static int64_t most_files(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > INT32_MAX ? INT32_MAX : (int64_t)limit.rlim_cur;
}

/* How many descriptors lie close together from 0 on. */
static int64_t files_open(const struct hd_comm *c)
{
    int fd = fcntl(c->listener, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return most_files();
    close(fd);
    return fd;
}

void lf_strangers_init(struct hd_comm *c, const void *address, size_t bytes)
{
    const struct sockaddr_in6 *own = address;
    int64_t most = most_files();
    uint16_t port;
    if (strncmp(c->info->fabric_attr->prov_name, "tcp", 3) || bytes < sizeof(struct sockaddr_in))
        return;
    for (int fd = 1; fd < 65536 && fd < most && !c->listener; fd++) {
        int on = 0;
        socklen_t room = sizeof on;
        if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &room) && on && port_of(fd, &port) &&
            port == own->sin6_port)
            c->listener = fd;
    }
    if (!c->listener)
        return;
    c->expected = files_open(c) + 2 * (int64_t)c->world.size + OWN;
    if (c->expected > most)
        c->host->log(HD_LOG_WARN, "comm-libfabric",
                     "this process may open %lld files, and %d ranks may need %lld: `ulimit -n %lld`", (long long)most,
                     c->world.size, (long long)c->expected, (long long)(2 * c->expected));
}

/* Shuts down connections to our port that have said nothing for `seconds`. */
static int shut_silent(const struct hd_comm *c, int64_t files, double seconds)
{
    uint16_t own, port;
    int n = 0;
    if (!port_of(c->listener, &own))
        return 0;
    for (int fd = 0; fd < files; fd++) {
        struct tcp_info about = {0};
        socklen_t bytes = sizeof about;
        if (fd == c->listener || !port_of(fd, &port) || port != own ||
            getsockopt(fd, IPPROTO_TCP, TCP_INFO, &about, &bytes) ||
            bytes < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof about.tcpi_bytes_received)
            continue;
        if (about.tcpi_state == ESTABLISHED && about.tcpi_bytes_received < HEAD_BYTES &&
            about.tcpi_last_data_recv >= seconds * 1e3)
            n += !shutdown(fd, SHUT_RDWR);
    }
    return n;
}

void lf_strangers(struct hd_comm *c)
{
    double now = lf_now();
    int64_t files, most;
    if (!c->listener || now < c->next_look)
        return;
    files = files_open(c);
    most = most_files();
    c->next_look = now + (files > most / 4 ? 1e-3 : LOOK_SECONDS / 10);
    if (files < most / 2 && (files <= c->expected - OWN || now < c->looked + LOOK_SECONDS))
        return;
    c->looked = now;
    if (shut_silent(c, files, files >= most / 2 ? CROWD_SECONDS : STRANGER_SECONDS) && !c->strangers++)
        c->host->log(
            HD_LOG_WARN, "comm-libfabric",
            "connections to this rank's port that say nothing are closed: comm.interface chooses a network that "
            "strangers do not reach");
}
