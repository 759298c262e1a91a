/* The slots of metrics-prometheus: an HTTP endpoint that libmicrohttpd serves from a thread of its own, and a file for
 * node_exporter. Both have the text that the last record left. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../common/nvml.h"
#include "heddle/host.h"
#include "heddle/metrics.h"
#include "machine.h"
#include "text.h"

enum { CONNECTIONS = 16, CONNECTION_SECONDS = 10 };

struct prometheus_settings {
    const char *address, *textfile;
    int64_t port;
    int32_t machine, reserved;
};

struct hd_metrics {
    struct MHD_Daemon *server; /* NULL: textfile alone */
    char *path, *temporary;    /* NULL: no textfile */
    pthread_mutex_t lock;      /* of what follows */
    char *text;
    size_t bytes;
    struct values values;
    int32_t with_machine, without_steps;
    int32_t lock_fd, reserved;  /* of PATH.lock; -1: none */
    struct nvml *gpus;          /* NULL: none */
    char *machine;              /* the machine's part of a scrape, */
    struct timespec machine_at; /* which was read then */
};

static const struct hd_option options[] = {
    {.name = "port",
     .type = HD_OPT_INT,
     .value = "-1",
     .min = -1,
     .max = 65535,
     .offset = offsetof(struct prometheus_settings, port),
     .help = "TCP port of http://ADDRESS:PORT/metrics, on each machine of the job; 0: a free one, which is logged; -1: "
             "no endpoint"},
    {.name = "address",
     .type = HD_OPT_STRING,
     .value = "127.0.0.1",
     .offset = offsetof(struct prometheus_settings, address),
     .needs = "port!=-1",
     .help = "numeric address that the endpoint listens at; 0.0.0.0 or ::  is every interface, without a password"},
    {.name = "textfile",
     .type = HD_OPT_STRING,
     .flags = HD_OPTION_PATH,
     .offset = offsetof(struct prometheus_settings, textfile),
     .help = "FILE.prom in the folder of node_exporter's --collector.textfile.directory, replaced at every record"},
    {.name = "machine",
     .type = HD_OPT_BOOL,
     .value = "true",
     .offset = offsetof(struct prometheus_settings, machine),
     .needs = "port!=-1",
     .help = "counters of the machine in the endpoint, which then every machine of the job has: CPU, memory, network, "
             "disks, and GPUs by NVML"},
};

/* ---- the endpoint */

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned status, const char *text, size_t bytes,
                             const char *header, const char *value)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(bytes, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, header, value);
    enum MHD_Result queued = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return queued;
}

/* The machine's counters, read at most once a second however many scrape; "" without memory. */
static const char *machine_text(struct hd_metrics *m)
{
    struct timespec now;
    size_t bytes;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double passed = (double)(now.tv_sec - m->machine_at.tv_sec) + 1e-9 * (double)(now.tv_nsec - m->machine_at.tv_nsec);
    if (m->with_machine && (!m->machine || passed >= 1)) {
        free(m->machine);
        m->machine = NULL;
        m->machine_at = now;
        FILE *out = open_memstream(&m->machine, &bytes);
        if (out) {
            machine_print(out, "/proc", m->gpus);
            if (fclose(out)) {
                free(m->machine);
                m->machine = NULL;
            }
        }
    }
    return m->machine ? m->machine : "";
}

static enum MHD_Result scrape(struct hd_metrics *m, struct MHD_Connection *connection)
{
    char *whole = NULL;
    pthread_mutex_lock(&m->lock);
    int bytes = asprintf(&whole, "%s%s", m->without_steps ? "" : m->text, machine_text(m));
    pthread_mutex_unlock(&m->lock);
    if (bytes < 0)
        return MHD_NO;
    enum MHD_Result queued = reply(connection, MHD_HTTP_OK, whole, (size_t)bytes, MHD_HTTP_HEADER_CONTENT_TYPE,
                                   "text/plain; version=0.0.4; charset=utf-8");
    free(whole);
    return queued;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_bytes, void **state)
{
    static const char lost[] = "heddle serves /metrics alone\n", refused[] = "GET and HEAD are the methods here\n";
    struct hd_metrics *m = user;
    (void)version, (void)upload, (void)state;
    *upload_bytes = 0;
    if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD))
        return reply(connection, MHD_HTTP_METHOD_NOT_ALLOWED, refused, sizeof refused - 1, MHD_HTTP_HEADER_ALLOW,
                     "GET, HEAD");
    if (strcmp(url, "/metrics"))
        return reply(connection, MHD_HTTP_NOT_FOUND, lost, sizeof lost - 1, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain");
    return scrape(m, connection);
}

/* The socket is made here, so that a port that is taken is refused with the system's reason. */
static int32_t listen_at(const struct prometheus_settings *s, int *fd, int *family, struct hd_error *err)
{
    const struct addrinfo hints = {
        .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[24];
    int one = 1, rc = HD_OK;
    snprintf(port, sizeof port, "%lld", (long long)s->port);
    if (!s->address || !*s->address || getaddrinfo(s->address, port, &hints, &found))
        return hd_fail(err, HD_E_INVALID, "address: '%s' is no numeric address: set one as 127.0.0.1 or ::1",
                       s->address ? s->address : "");
    *family = found->ai_family;
    *fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        bind(*fd, found->ai_addr, found->ai_addrlen) || listen(*fd, CONNECTIONS))
        rc = hd_fail(err, HD_E_IO, "port %s of %s cannot be listened at: %s", port, s->address, strerror(errno));
    if (rc && *fd >= 0)
        close(*fd);
    freeaddrinfo(found);
    return rc;
}

static void log_endpoint(const struct hd_host *host, const struct prometheus_settings *s, int fd, int family)
{
    struct sockaddr_storage at;
    socklen_t bytes = sizeof at;
    int port = (int)s->port;
    if (!getsockname(fd, (struct sockaddr *)(void *)&at, &bytes))
        port = ntohs(family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&at)->sin6_port
                                        : ((struct sockaddr_in *)(void *)&at)->sin_port);
    if (host)
        host->log(HD_LOG_INFO, "metrics-prometheus",
                  family == AF_INET6 ? "http://[%s]:%d/metrics" : "http://%s:%d/metrics", s->address, port);
}

static int32_t serve(struct hd_metrics *m, const struct hd_host *host, const struct prometheus_settings *s,
                     struct hd_error *err)
{
    int fd = -1, family;
    int32_t rc = listen_at(s, &fd, &family, err);
    if (rc)
        return rc;
    m->server = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | (family == AF_INET6 ? MHD_USE_IPv6 : 0), 0, NULL,
                                 NULL, on_request, m, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)CONNECTION_SECONDS,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)32768, MHD_OPTION_END);
    if (!m->server) {
        close(fd);
        return hd_fail(err, HD_E_IO, "libmicrohttpd does not start: %s", strerror(errno));
    }
    log_endpoint(host, s, fd, family);
    return HD_OK;
}

/* ---- the file: renamed into place, so that node_exporter never reads a part */

static int32_t write_file(const struct hd_metrics *m, struct hd_error *err)
{
    int fd = open(m->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666), why = 0;
    if (fd < 0)
        return hd_fail(err, HD_E_IO, "%s: %s", m->temporary, strerror(errno));
    ssize_t n = write(fd, m->text, m->bytes);
    if (n != (ssize_t)m->bytes)
        why = n < 0 ? errno : ENOSPC;
    if (close(fd) && !why)
        why = errno;
    if (!why && rename(m->temporary, m->path))
        why = errno;
    if (!why)
        return HD_OK;
    unlink(m->temporary);
    return hd_fail(err, HD_E_IO, "%s: %s", m->path, strerror(why));
}

static int32_t check_settings(const struct prometheus_settings *s, struct hd_error *err)
{
    size_t n = s->textfile ? strlen(s->textfile) : 0, end = strlen(".prom");
    if (s->port < 0 && !s->textfile)
        return hd_fail(err, HD_E_INVALID, "there is nowhere to write to: set port, textfile or both");
    if (s->textfile && (n <= end || strcmp(s->textfile + n - end, ".prom")))
        return hd_fail(err, HD_E_INVALID, "textfile: %s: node_exporter reads files that end with .prom alone",
                       s->textfile);
    return HD_OK;
}

/* A lock on a file beside it, as each record is another file; it stays, and node_exporter reads no such name. flock()
 * locks another user's file as well. Without a lock the job goes on, and write_file says what the folder lacks. */
static int32_t lock_file(struct hd_metrics *m, struct hd_error *err)
{
    char *path = NULL;
    m->lock_fd = asprintf(&path, "%s.lock", m->path) < 0
                     ? -1
                     : open(path, O_RDONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    free(path);
    if (m->lock_fd >= 0 && flock(m->lock_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return hd_fail(err, HD_E_INVALID,
                       "textfile: %s: another process is writing it: wait for its end, or name another file", m->path);
    return HD_OK;
}

static int32_t name_file(struct hd_metrics *m, const char *path, struct hd_error *err)
{
    m->path = strdup(path);
    if (m->path && asprintf(&m->temporary, "%s.tmp", path) >= 0)
        return lock_file(m, err);
    m->temporary = NULL;
    return hd_fail(err, HD_E_NOMEM, "%s: no memory", path);
}

/* ---- slots */

/* Replaces the text, in the endpoint at once. */
static int32_t publish(struct hd_metrics *m, struct hd_error *err)
{
    size_t bytes = 0;
    char *text = values_text(&m->values, &bytes), *before;
    if (!text)
        return hd_fail(err, HD_E_NOMEM, "no memory for the text of a scrape");
    pthread_mutex_lock(&m->lock);
    before = m->text;
    m->text = text;
    m->bytes = bytes;
    pthread_mutex_unlock(&m->lock);
    free(before);
    return m->path ? write_file(m, err) : HD_OK;
}

/* Could a file be made beside it, and replace it? */
static int32_t check_file(const char *path, struct hd_error *err)
{
    const char *slash = strrchr(path, '/');
    struct stat st;
    char *probe = NULL;
    int why = asprintf(&probe, "%.*s.heddle-XXXXXX", slash ? (int)(slash + 1 - path) : 0, path) < 0 ? ENOMEM
              : mkdtemp(probe) && !rmdir(probe)                                                     ? 0
                                                                                                    : errno;
    free(probe);
    if (why)
        return hd_fail(err, HD_E_IO, "%s.tmp: %s", path, strerror(why));
    return !lstat(path, &st) && S_ISDIR(st.st_mode) ? hd_fail(err, HD_E_IO, "%s: %s", path, strerror(EISDIR)) : HD_OK;
}

/* Is it free, while those of the sinks before this one are listened at? */
static int32_t check_port(const struct prometheus_settings *s, const struct hd_check_job *job, struct hd_error *err)
{
    uint64_t n = job->struct_size >= sizeof *job && job->n_before < 16 ? job->n_before : 0;
    int fds[16], family, own = -1;
    for (uint64_t i = 0; i < n; i++) {
        const struct prometheus_settings *other = job->before[i];
        struct hd_error unused = HD_ERROR_INIT;
        fds[i] = -1;
        if (other->port > 0 && listen_at(other, &fds[i], &family, &unused))
            fds[i] = -1;
    }
    int32_t rc = listen_at(s, &own, &family, err);
    for (uint64_t i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (!rc)
        close(own);
    return rc;
}

static int32_t prometheus_check(const struct hd_host *host, const void *settings, const struct hd_check_job *job,
                                struct hd_error *err)
{
    const struct prometheus_settings *s = settings;
    int32_t rc = check_settings(s, err);
    (void)host;
    if (!rc && s->textfile)
        rc = check_file(s->textfile, err);
    return !rc && s->port >= 0 ? check_port(s, job, err) : rc;
}

static void prometheus_close(struct hd_metrics *m)
{
    if (!m)
        return;
    if (m->server)
        MHD_stop_daemon(m->server); /* closes the socket */
    pthread_mutex_destroy(&m->lock);
    if (m->lock_fd >= 0)
        close(m->lock_fd);
    free(m->path);
    free(m->temporary);
    free(m->text);
    free(m->machine);
    nvml_close(m->gpus);
    free(m);
}

static int32_t prometheus_open(const struct hd_host *host, const void *settings, const struct hd_metrics_start *start,
                               struct hd_metrics **metrics, struct hd_error *err)
{
    const struct prometheus_settings *s = settings;
    if (check_settings(s, err))
        return HD_E_INVALID;
    struct hd_metrics *m = calloc(1, sizeof *m);
    char none[256]; /* the reason why there are no GPUs */
    if (!m)
        return hd_fail(err, HD_E_NOMEM, "no memory");
    pthread_mutex_init(&m->lock, NULL);
    m->lock_fd = -1;
    if (start->record) /* else another machine than rank 0's: no steps, and node_exporter has the machine */
        values_start(&m->values, start->step);
    m->with_machine = s->machine;
    m->gpus = s->machine && s->port >= 0 ? nvml_open(none) : NULL;
    m->without_steps = !start->record;
    int32_t rc = s->textfile && start->record ? name_file(m, s->textfile, err) : HD_OK;
    if (!rc)
        rc = publish(m, err);
    if (!rc && s->port >= 0 && (start->record || s->machine))
        rc = serve(m, host, s, err);
    if (rc)
        prometheus_close(m);
    else
        *metrics = m;
    return rc;
}

static int32_t prometheus_write(struct hd_metrics *m, const struct hd_metrics_record *record, struct hd_error *err)
{
    values_set(&m->values, record);
    return publish(m, err);
}

static const struct hd_metrics_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_METRICS_EACH_MACHINE,
    .open = prometheus_open,
    .write = prometheus_write,
    .close = prometheus_close,
};

static const struct hd_component prometheus_component = {
    .struct_size = sizeof prometheus_component,
    .kind = HD_KIND_METRICS,
    .name = "prometheus",
    .summary = "an HTTP endpoint that Prometheus scrapes, and node_exporter's textfile",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .option_size = sizeof options[0],
    .settings_size = sizeof(struct prometheus_settings),
    .check = prometheus_check,
    .ops = &ops,
};

HD_PLUGIN_ONE("metrics-prometheus", "0.1.0", "Apache-2.0", prometheus_component)
