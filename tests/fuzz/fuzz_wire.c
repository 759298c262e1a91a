/* libFuzzer over what the rendezvous reads: frames, a server with a stranger and a rank that send them, a rank whose
 * server sends them, and the parts of a report. Whatever the bytes are: nothing is read beyond them, a frame that is
 * taken is written back to the same bytes, the server goes on, no stranger is believed, and the judge says something.
 * tests/fuzz/run builds and runs it. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/base.h"
#include "runtime/rendezvous/auth.h"
#include "runtime/rendezvous/store.h"
#include "runtime/rendezvous/wire.h"
#include "service/report/diagnose.h"
#include "service/report/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void parse(const uint8_t *data, size_t bytes)
{
    static uint8_t back[WIRE_FRAME_MAX];
    struct hd__frame f;
    ptrdiff_t used;
    for (size_t at = 0; at < bytes && (used = hd__store_wire_parse(data + at, bytes - at, &f)) > 0; at += (size_t)used)
        if ((size_t)used > sizeof back || hd__store_wire_write(back, &f) != (size_t)used ||
            memcmp(back, data + at, (size_t)used))
            abort();
}

static void judge(const uint8_t *data, size_t bytes)
{
    json_t *report = json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, NULL);
    struct hd__report_diagnosis verdict;
    struct hd__text text = {0};
    if (json_is_object(report) && json_integer_value(json_object_get(report, "ranks")) < 64) {
        hd__report_diagnose(report, &verdict);
        if (!memchr(verdict.summary, 0, sizeof verdict.summary))
            abort();
        hd__report_summary(report, &text);
        hd__report_table(report, &text);
    }
    json_decref(report);
    hd__text_free(&text);
}

/* ---- a server, and who talks to it */

static int32_t gathered(void *user, const struct hd__rank_dumps *g, int32_t *rank, char cause[512])
{
    size_t n = 0;
    (void)user;
    for (int32_t r = 0; r < g->size; r++)
        n += g->dump[r] ? strlen(g->dump[r]) : 0;
    *rank = 0;
    snprintf(cause, 512, "%zu", n);
    return n % 7 == 6 ? HD_E_MISMATCH : HD_OK;
}

static int dial(uint16_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        abort();
    if (!connect(fd, (struct sockaddr *)&at, sizeof at))
        return fd;
    close(fd);
    return -1; /* after thousands of rounds ports may be used up for a while */
}

static void say(int fd, const void *data, size_t bytes)
{
    if (send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return;
}

static void hear(int fd, uint8_t *out, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t got = recv(fd, out + at, bytes - at, 0);
        if (got == 0 || (got < 0 && errno != EINTR)) /* the fuzzer's own timer interrupts */
            abort();
        at += got > 0 ? (size_t)got : 0;
    }
}

/* A rank that knows the secret; `to` seals what it says. */
static void greet(int fd, const struct hd__server_options *o, struct hd__auth_channel *to)
{
    struct hd__auth_handshake h = {.size = (uint32_t)o->size};
    uint8_t hello[WIRE_HELLO] = {0}, proof[WIRE_TAG], frame[WIRE_HEADER + WIRE_CHALLENGE];
    hd__store_wire_put_u32(hello + 4, h.size);
    hd__store_wire_write(frame, &(struct hd__frame){.type = WIRE_SAY_HELLO, .value = hello, .value_bytes = WIRE_HELLO});
    say(fd, frame, WIRE_HEADER + WIRE_HELLO);
    hear(fd, frame, sizeof frame);
    memcpy(h.server_nonce, frame + WIRE_HEADER, WIRE_NONCE);
    hd__auth_prove(o->secret, HD__AUTH_RANK, &h, proof);
    hd__store_wire_write(frame, &(struct hd__frame){.type = WIRE_PROVE, .value = proof, .value_bytes = WIRE_TAG});
    say(fd, frame, WIRE_HEADER + WIRE_TAG);
    hear(fd, frame, WIRE_HEADER + 8 + WIRE_TAG);
    if (frame[1] != WIRE_WELCOME)
        abort();
    hd__auth_channel_init(to, o->secret, HD__AUTH_RANK, &h);
}

/* The frames of the data, each sealed, and what follows the last as it is. */
static void say_sealed(int fd, struct hd__auth_channel *to, const uint8_t *data, size_t bytes)
{
    static uint8_t sealed[WIRE_SEALED_MAX];
    struct hd__frame f;
    size_t at = 0;
    for (ptrdiff_t used; (used = hd__store_wire_parse(data + at, bytes - at, &f)) > 0; at += (size_t)used)
        say(fd, sealed, hd__auth_seal(to, sealed, &f));
    say(fd, data + at, bytes - at);
}

static void serve(const uint8_t *data, size_t bytes)
{
    struct hd__server_options o = {
        .address = "127.0.0.1", .size = 2, .rank = -1, .dead_after = 5, .on_dumps = gathered};
    struct hd__server *server;
    struct hd_error err = HD_ERROR_INIT;
    memset(o.secret, 7, sizeof o.secret);
    if (hd__server_open(&o, &server, &err))
        return;
    int stranger = dial(hd__server_port(server)), rank = dial(hd__server_port(server));
    if (stranger >= 0)
        say(stranger, data, bytes);
    if (rank >= 0) {
        struct hd__auth_channel to;
        greet(rank, &o, &to);
        say_sealed(rank, &to, data, bytes);
        shutdown(rank, SHUT_WR);
    }
    struct pollfd over = {.fd = rank, .events = POLLIN};
    uint8_t reply[4096];
    while (poll(&over, 1, 3000) == 1 && recv(rank, reply, sizeof reply, MSG_DONTWAIT) > 0)
        continue; /* it reads to the end, and closes */
    close(rank);
    close(stranger);
    hd__server_close(server);
}

/* ---- a server that does not know the secret, and a rank that talks to it */

struct answer {
    int listener;
    const uint8_t *data;
    size_t bytes;
};

static void *pretend(void *arg)
{
    const struct answer *a = arg;
    uint8_t hello[WIRE_HEADER + WIRE_HELLO];
    int fd = accept(a->listener, NULL, NULL);
    close(a->listener); /* a second try finds nobody */
    if (fd < 0)
        return NULL;
    hear(fd, hello, sizeof hello);
    say(fd, a->data, a->bytes);
    shutdown(fd, SHUT_WR);
    while (recv(fd, hello, sizeof hello, 0) > 0)
        continue;
    close(fd);
    return NULL;
}

static void ask(const uint8_t *data, size_t bytes)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    struct answer answer = {.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .data = data, .bytes = bytes};
    struct hd__store_options o = {.host = "127.0.0.1", .size = 2, .rank = 1, .dead_after = 5};
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store;
    pthread_t thread;
    if (bind(answer.listener, (struct sockaddr *)&at, sizeof at) || listen(answer.listener, 1) ||
        getsockname(answer.listener, (struct sockaddr *)&at, &length) ||
        pthread_create(&thread, NULL, pretend, &answer))
        abort();
    o.port = ntohs(at.sin_port);
    memset(o.secret, 7, sizeof o.secret);
    if (hd__store_connect(&o, hd__now() + 0.05, &store, &err) == HD_OK)
        abort();
    pthread_join(thread, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!bytes)
        return 0;
    switch (data[0] % 8) { /* a server takes long: less often */
    case 0:
        serve(data + 1, bytes - 1);
        break;
    case 3:
        ask(data + 1, bytes - 1);
        break;
    case 1:
    case 2:
        judge(data + 1, bytes - 1);
        break;
    default:
        parse(data + 1, bytes - 1);
    }
    return 0;
}
