/* The handshake of the rendezvous: who does not know the secret is not let in, learns nothing and is not believed; and
 * somebody on the way between two who do cannot change, repeat, drop or swap what they say. */
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/base.h"
#include "runtime/rendezvous/auth.h"
#include "runtime/rendezvous/liveness.h"
#include "runtime/rendezvous/store.h"
#include "tests/runtime/rendezvous/sockets.h"
#include "tests/suite.h"

static struct hd__server *server;
static struct hd__server_options server_options;

static void serve_with(int32_t size, double dead_after)
{
    struct hd_error err = HD_ERROR_INIT;
    server_options =
        (struct hd__server_options){.address = "127.0.0.1", .size = size, .rank = -1, .dead_after = dead_after};
    hd__store_secret_generate(server_options.secret);
    ck_assert_msg(hd__server_open(&server_options, &server, &err) == HD_OK, "%s", err.message);
}

static void serve(int32_t size)
{
    serve_with(size, 30);
}

/* A rank that looks for its server at `port`. */
static int32_t join_at(uint16_t port, int32_t rank, struct hd_store **store, struct hd_error *err)
{
    struct hd__store_options o = {.host = "127.0.0.1",
                                  .port = port,
                                  .rank = rank,
                                  .size = server_options.size,
                                  .dead_after = server_options.dead_after};
    memcpy(o.secret, server_options.secret, sizeof o.secret);
    return hd__store_connect(&o, hd__now() + 20, store, err);
}

/* Receives until the other side closes, or `most` bytes. */
static size_t receive(int fd, uint8_t *out, size_t most)
{
    size_t at = 0;
    for (ssize_t got; at < most && (got = recv(fd, out + at, most - at, 0)) > 0;)
        at += (size_t)got;
    return at;
}

static void say(int fd, uint32_t type, const uint8_t *value, uint32_t bytes)
{
    uint8_t frame[WIRE_HEADER + 256];
    struct hd__frame f = {.type = type, .value = value, .value_bytes = bytes};
    size_t n = hd__store_wire_write(frame, &f);
    ck_assert_int_eq(send(fd, frame, n, MSG_NOSIGNAL), (ssize_t)n);
}

/* ---- against other people's HMAC and HKDF: tests/golden/auth.py */

static void expect_hex(const uint8_t *bytes, const char *hex)
{
    char text[HD__SECRET_TEXT];
    hd__store_secret_format(bytes, text);
    ck_assert_str_eq(text, hex);
}

START_TEST(golden)
{
    static const struct {
        enum hd__auth_role role;
        const char *proof, *heartbeat[2];
    } is[] = {{HD__AUTH_RANK,
               "17dcabf44a23a95a8d0f670b30faac41b151534b7984448b702059ce428c4e00",
               {"721839f6626b521833a5ae1fb5adcd5b71c7cfa9768725c284ffd711fb1bb325",
                "519c00efed7b6efad35271f0316cea19d8b93c2638f47c7362bbf95f7c0464b3"}},
              {HD__AUTH_SERVER,
               "7faa6f9703e6c22425a4b0049a0af8258a7bd3433380d7e94c1e1727a14645dd",
               {"cfe984b33d3d23b0780fdd4ebed511d4292487c7d81599c5936e52f56be508c0",
                "0e2fa8d46f5cee0ad29aa38f38ffec5953b920d193192e3d1be32ccab5c1d04b"}}};
    struct hd__auth_handshake h = {.rank = 1, .size = 4};
    uint8_t secret[WIRE_SECRET], proof[WIRE_TAG], out[WIRE_SEALED_MAX];
    for (uint8_t i = 0; i < 32; i++) {
        secret[i] = i;
        h.rank_nonce[i] = (uint8_t)(100 + i);
        h.server_nonce[i] = (uint8_t)(200 + i);
    }
    for (size_t k = 0; k < HD__COUNT(is); k++) {
        struct hd__auth_channel to, from;
        struct hd__frame f = {.type = WIRE_HEARTBEAT}, back;
        hd__auth_prove(secret, is[k].role, &h, proof);
        expect_hex(proof, is[k].proof);
        ck_assert(hd__auth_check_proof(secret, is[k].role, &h, proof));
        ck_assert(!hd__auth_check_proof(secret, !is[k].role, &h, proof));
        hd__auth_channel_init(&to, secret, is[k].role, &h);
        hd__auth_channel_init(&from, secret, is[k].role, &h);
        for (int n = 0; n < 2; n++) {
            ck_assert_uint_eq(hd__auth_seal(&to, out, &f), WIRE_HEADER + WIRE_TAG);
            expect_hex(out + WIRE_HEADER, is[k].heartbeat[n]);
            for (size_t have = 0; have < WIRE_HEADER + WIRE_TAG; have++)
                ck_assert_int_eq(hd__auth_open(&from, out, have, &back), 0);
            ck_assert_int_eq(hd__auth_open(&from, out, sizeof out, &back), WIRE_HEADER + WIRE_TAG);
            ck_assert_int_eq(hd__auth_open(&from, out, sizeof out, &back), -2); /* once */
        }
    }
}
END_TEST

/* Each single part of a handshake counts. */
START_TEST(proofs_are_of_all_parts)
{
    struct hd__auth_handshake h = {.rank = 1, .size = 4}, other;
    uint8_t secret[WIRE_SECRET] = {7}, proof[WIRE_TAG];
    hd__auth_prove(secret, HD__AUTH_RANK, &h, proof);
    for (size_t bit = 0; bit < 8 * sizeof h; bit++) {
        other = h;
        ((uint8_t *)&other)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert(!hd__auth_check_proof(secret, HD__AUTH_RANK, &other, proof));
    }
    for (size_t bit = 0; bit < 8 * sizeof secret; bit++) {
        secret[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert(!hd__auth_check_proof(secret, HD__AUTH_RANK, &h, proof));
        secret[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    ck_assert(hd__auth_check_proof(secret, HD__AUTH_RANK, &h, proof));
}
END_TEST

/* A sealed frame with any bit turned, or cut after any byte, is not opened; nor is any other than the next. */
START_TEST(frames_are_opened_as_they_were_sealed)
{
    enum { FRAMES = 4 };
    struct hd__auth_handshake h = {.rank = 1, .size = 4};
    struct hd__auth_channel to, from;
    struct hd__frame f = {.type = WIRE_PUT, .id = 9, .key = "key", .key_bytes = 3, .value_bytes = 5}, back;
    uint8_t secret[WIRE_SECRET] = {7}, sealed[FRAMES][256], other[256];
    size_t bytes = 0;
    f.value = (const uint8_t *)"value";
    hd__auth_channel_init(&to, secret, HD__AUTH_RANK, &h);
    hd__auth_channel_init(&from, secret, HD__AUTH_RANK, &h);
    for (int n = 0; n < FRAMES; n++)
        bytes = hd__auth_seal(&to, sealed[n], &f);
    for (int n = 0; n < FRAMES; n++) {
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
            memcpy(other, sealed[n], bytes);
            other[bit / 8] ^= (uint8_t)(1 << bit % 8);
            ck_assert_int_le(hd__auth_open(&from, other, bytes, &back), 0); /* 0: a length, and more is waited for */
        }
        for (size_t have = 0; have < bytes; have++)
            ck_assert_int_eq(hd__auth_open(&from, sealed[n], have, &back), 0);
        for (int k = 0; k < FRAMES; k++)
            if (k != n)
                ck_assert_int_eq(hd__auth_open(&from, sealed[k], bytes, &back), -2);
        ck_assert_int_eq(hd__auth_open(&from, sealed[n], bytes, &back), (ptrdiff_t)bytes);
    }
}
END_TEST

/* ---- a program that pretends to be the server */

enum { ECHOES, RANDOM_PROOF, OLD_PROOF, WELCOMES, REJECTS, OLDER, NEWER, LIES };
static struct {
    int fd;
    uint8_t old[WIRE_CHALLENGE]; /* of a real server, for another nonce */
    uint8_t heard[4096];
    size_t bytes;
} lie;

static void *pretend(void *arg)
{
    intptr_t how = (intptr_t)arg;
    uint8_t challenge[WIRE_CHALLENGE];
    struct hd__frame f = {.type = WIRE_REJECT, .value = (const uint8_t *)"go away", .value_bytes = 7};
    uint8_t frame[WIRE_HEADER + 64];
    size_t bytes = hd__store_wire_write(frame, &f);
    int fd = accept(lie.fd, NULL, NULL);
    lie.bytes = receive(fd, lie.heard, WIRE_HEADER + WIRE_HELLO);
    hd__auth_random(challenge, sizeof challenge);
    if (how == ECHOES) {
        send(fd, lie.heard, lie.bytes, MSG_NOSIGNAL);
    } else if (how == WELCOMES) {
        say(fd, WIRE_WELCOME, challenge, 8);
    } else if (how == REJECTS || how == OLDER || how == NEWER) {
        frame[0] = (uint8_t)(WIRE_VERSION + (how == NEWER) - (how == OLDER));
        send(fd, frame, bytes, MSG_NOSIGNAL);
    } else {
        say(fd, WIRE_CHALLENGE_RANK, how == OLD_PROOF ? lie.old : challenge, WIRE_CHALLENGE);
    }
    lie.bytes += receive(fd, lie.heard + lie.bytes, sizeof lie.heard - lie.bytes);
    close(fd);
    return NULL;
}

static void send_hello(int fd, int32_t rank, int32_t size, const uint8_t nonce[WIRE_NONCE])
{
    uint8_t hello[WIRE_HELLO];
    hd__store_wire_put_u32(hello, (uint32_t)rank);
    hd__store_wire_put_u32(hello + 4, (uint32_t)size);
    memcpy(hello + 8, nonce, WIRE_NONCE);
    say(fd, WIRE_SAY_HELLO, hello, sizeof hello);
}

/* As a stranger: says HELLO and takes the real server's challenge. */
static int be_challenged(int32_t rank, int32_t size, struct hd__auth_handshake *h, uint8_t challenge[WIRE_CHALLENGE])
{
    uint8_t frame[WIRE_HEADER + WIRE_CHALLENGE];
    int fd = connect_to(hd__server_port(server));
    *h = (struct hd__auth_handshake){.rank = (uint32_t)rank, .size = (uint32_t)size};
    hd__auth_random(h->rank_nonce, WIRE_NONCE);
    send_hello(fd, rank, size, h->rank_nonce);
    ck_assert_uint_eq(receive(fd, frame, sizeof frame), sizeof frame);
    ck_assert_int_eq(frame[1], WIRE_CHALLENGE_RANK);
    memcpy(challenge, frame + WIRE_HEADER, WIRE_CHALLENGE);
    memcpy(h->server_nonce, challenge, WIRE_NONCE);
    return fd;
}

START_TEST(an_impostor_is_not_believed_and_learns_nothing)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    struct hd__auth_handshake h;
    pthread_t thread;
    uint16_t port;
    char want[200];
    serve(2);
    close(be_challenged(1, 2, &h, lie.old));
    lie.fd = listen_anywhere(&port);
    pthread_create(&thread, NULL, pretend, (void *)(intptr_t)_i);
    ck_assert_int_eq(join_at(port, 1, &store, &err), HD_E_INVALID);
    pthread_join(thread, NULL);
    snprintf(want, sizeof want,
             _i == OLDER || _i == NEWER ? "the server at 127.0.0.1:%u speaks version %d of the rendezvous protocol"
                                        : "the server at 127.0.0.1:%u did not prove that it knows the job's secret",
             port, WIRE_VERSION + (_i == NEWER) - (_i == OLDER));
    ck_assert_msg(strstr(err.message, want) != NULL, "%s", err.message);
    ck_assert_uint_eq(lie.bytes, WIRE_HEADER + WIRE_HELLO); /* who asks, and a nonce; no proof */
    ck_assert_ptr_null(memmem(lie.heard, lie.bytes, server_options.secret, 8));
    close(lie.fd);
    hd__server_close(server);
}
END_TEST

/* ---- strangers at the real server */

enum { NO_PROOF, WRONG_SECRET, WRONG_ROLE, WRONG_RANK, OLD_NONCE, NO_CHALLENGE, TWO_HELLOS, KINDS };

START_TEST(who_does_not_know_the_secret_is_refused)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    struct hd__auth_handshake h, proved;
    uint8_t challenge[WIRE_CHALLENGE], proof[WIRE_TAG] = {0}, answer[256], secret[WIRE_SECRET];
    int fd;
    serve(2);
    fd = be_challenged(1, 2, &h, challenge);
    proved = h;
    memcpy(secret, server_options.secret, sizeof secret);
    if (_i == WRONG_SECRET)
        secret[31] ^= 1;
    if (_i == WRONG_RANK)
        proved.rank = 0;
    if (_i == OLD_NONCE) /* a proof that was good on another connection */
        proved.server_nonce[0] ^= 1;
    if (_i == WRONG_ROLE) /* the server's own, sent back */
        memcpy(proof, challenge + WIRE_NONCE, WIRE_TAG);
    else if (_i != NO_PROOF)
        hd__auth_prove(secret, HD__AUTH_RANK, &proved, proof);
    if (_i == TWO_HELLOS)
        send_hello(fd, 1, 2, h.rank_nonce);
    else
        say(fd, _i == NO_CHALLENGE ? WIRE_PUT : WIRE_PROVE, proof, WIRE_TAG);
    ck_assert_uint_eq(receive(fd, answer, sizeof answer), 0); /* closed without a word */
    close(fd);
    ck_assert_int_eq(join_at(hd__server_port(server), 1, &store, &err), HD_OK); /* rank 1 is still to come */
    hd__store_close(store);
    hd__server_close(server);
}
END_TEST

/* Refusals that say something are for those who know the secret. */
START_TEST(reasons_are_for_ranks)
{
    struct hd__auth_handshake h;
    uint8_t challenge[WIRE_CHALLENGE], proof[WIRE_TAG], answer[256];
    struct hd__auth_channel from;
    struct hd__frame f;
    size_t bytes;
    int fd;
    serve(2);
    fd = be_challenged(7, 9, &h, challenge); /* no word of it yet */
    hd__auth_prove(server_options.secret, HD__AUTH_RANK, &h, proof);
    say(fd, WIRE_PROVE, proof, WIRE_TAG);
    bytes = receive(fd, answer, sizeof answer);
    hd__auth_channel_init(&from, server_options.secret, HD__AUTH_SERVER, &h);
    ck_assert_int_eq(hd__auth_open(&from, answer, bytes, &f), (ptrdiff_t)bytes);
    ck_assert(f.type == WIRE_REJECT && memmem(f.value, f.value_bytes, "2 ranks here and 9 there", 24));
    close(fd);
    hd__server_close(server);
}
END_TEST

/* A rank of version 2 sends its secret at once. It is told in its own words to come with this build. */
START_TEST(an_older_rank_is_refused_by_name)
{
    uint8_t frame[WIRE_HEADER + 24] = {2, 1, 0, 0, 24}, answer[256];
    struct hd__frame f;
    size_t bytes;
    int fd;
    serve(2);
    fd = connect_to(hd__server_port(server));
    ck_assert_int_eq(send(fd, frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
    bytes = receive(fd, answer, sizeof answer);
    ck_assert_uint_gt(bytes, WIRE_HEADER);
    ck_assert_int_eq(answer[0], 2);
    answer[0] = WIRE_VERSION;
    ck_assert_int_eq(hd__store_wire_parse(answer, bytes, &f), (ptrdiff_t)bytes);
    ck_assert(f.type == WIRE_REJECT && memmem(f.value, f.value_bytes, "the same build of heddle", 24));
    close(fd);
    hd__server_close(server);
}
END_TEST

/* A handshake that stops after any byte, and one that comes byte by byte and never ends: a rank gets in meanwhile, and
 * the server lets go of both. */
START_TEST(truncated_and_slow)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    struct hd__auth_handshake h;
    uint8_t frame[WIRE_HEADER + WIRE_HELLO], challenge[WIRE_CHALLENGE], proof[WIRE_TAG], answer[256];
    uint8_t hello[WIRE_HELLO] = {0, 0, 0, 0, 2};
    int slow, silent;
    serve(2);
    hd__store_wire_write(frame, &(struct hd__frame){.type = WIRE_SAY_HELLO, .value = hello, .value_bytes = WIRE_HELLO});
    for (size_t n = 0; n < sizeof frame; n++) {
        int fd = connect_to(hd__server_port(server));
        ck_assert_int_eq(send(fd, frame, n, MSG_NOSIGNAL), (ssize_t)n);
        shutdown(fd, SHUT_WR);
        ck_assert_uint_eq(receive(fd, answer, sizeof answer), 0);
        close(fd);
    }
    for (size_t n = 0; n < WIRE_HEADER + WIRE_TAG; n++) {
        int fd = be_challenged(1, 2, &h, challenge);
        hd__auth_prove(server_options.secret, HD__AUTH_RANK, &h, proof);
        hd__store_wire_write(frame, &(struct hd__frame){.type = WIRE_PROVE, .value = proof, .value_bytes = WIRE_TAG});
        ck_assert_int_eq(send(fd, frame, n, MSG_NOSIGNAL), (ssize_t)n);
        shutdown(fd, SHUT_WR);
        ck_assert_uint_eq(receive(fd, answer, sizeof answer), 0);
        close(fd);
    }
    slow = connect_to(hd__server_port(server));
    silent = be_challenged(1, 2, &h, challenge);
    ck_assert_int_eq(join_at(hd__server_port(server), 1, &store, &err), HD_OK);
    frame[0] = WIRE_VERSION;
    for (int closed = 0; !closed;) { /* the server has a deadline for all of the handshake */
        struct pollfd in = {.fd = slow, .events = POLLIN};
        send(slow, frame, 1, MSG_NOSIGNAL);
        frame[0] = 0;
        closed = poll(&in, 1, 300) == 1 && recv(slow, answer, 1, 0) <= 0;
    }
    ck_assert_uint_eq(receive(silent, answer, sizeof answer), 0);
    ck_assert_int_eq(hd__store_put(store, "k", "v", 1, &err), HD_OK);
    close(slow);
    close(silent);
    hd__store_close(store);
    hd__server_close(server);
}
END_TEST

/* ---- somebody between a rank and the server */

enum { ALTERS_HEADER, ALTERS_VALUE, ALTERS_TAG, REPLAYS, DROPS, SWAPS, SHORTENS, REFLECTS, TO_SERVER };
static struct {
    int listener, rank, server;
    int direction;   /* attacks what the server sends (0), or the rank */
    _Atomic int how; /* -1: hands everything on */
} way;

static size_t read_frame(int fd, uint8_t *out, int sealed)
{
    size_t n = receive(fd, out, WIRE_HEADER);
    if (n < WIRE_HEADER)
        return 0;
    n += ((size_t)out[2] | (size_t)out[3] << 8) + hd__store_wire_u32(out + 4) + (sealed ? WIRE_TAG : 0);
    return receive(fd, out + WIRE_HEADER, n - WIRE_HEADER) == n - WIRE_HEADER ? n : 0;
}

/* One direction, by whole frames; an attack happens once. */
static void *hand_on(void *arg)
{
    int from_rank = arg != NULL, from = from_rank ? way.rank : way.server, to = from_rank ? way.server : way.rank;
    static uint8_t frames[2][2][WIRE_SEALED_MAX];
    uint8_t *now = frames[from_rank][0], *held = frames[from_rank][1];
    size_t bytes, kept = 0;
    for (int n = 0; (bytes = read_frame(from, now, n >= 1 + from_rank)) > 0; n++) {
        int how = from_rank == way.direction && n >= 2 ? atomic_load(&way.how) : -1;
        if (kept) { /* the one that was held back comes after this one */
            send(to, now, bytes, MSG_NOSIGNAL);
            send(to, held, kept, MSG_NOSIGNAL);
            kept = 0;
            continue;
        }
        if (how == ALTERS_HEADER)
            now[12] ^= 1; /* arg */
        else if (how == ALTERS_VALUE)
            now[bytes - WIRE_TAG - 1] ^= 0x10;
        else if (how == ALTERS_TAG)
            now[bytes - 1] ^= 0x80;
        if (how == SWAPS) {
            memcpy(held, now, kept = bytes);
        } else if (how == REFLECTS) {
            send(from, now, bytes, MSG_NOSIGNAL);
        } else if (how != DROPS) {
            send(to, now, bytes - (how == SHORTENS), MSG_NOSIGNAL);
            if (how == REPLAYS)
                send(to, now, bytes, MSG_NOSIGNAL);
        }
        if (how >= 0)
            atomic_store(&way.how, -1);
    }
    shutdown(to, SHUT_RDWR);
    shutdown(from, SHUT_RDWR);
    return NULL;
}

static void *stand_between(void *arg)
{
    pthread_t back;
    way.rank = accept(way.listener, NULL, NULL);
    way.server = connect_to(hd__server_port(server));
    pthread_create(&back, NULL, hand_on, NULL);
    hand_on(&way);
    pthread_join(back, NULL);
    close(way.rank);
    close(way.server);
    return arg;
}

START_TEST(what_is_changed_on_the_way_ends_the_connection)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL, *other = NULL;
    pthread_t thread;
    uint16_t port;
    char got[8];
    size_t bytes = sizeof got;
    int how = _i % TO_SERVER;
    way.direction = _i / TO_SERVER;
    atomic_store(&way.how, -1);
    serve(2);
    way.listener = listen_anywhere(&port);
    pthread_create(&thread, NULL, stand_between, NULL);
    ck_assert_msg(join_at(port, 1, &store, &err) == HD_OK, "%s", err.message);
    ck_assert_msg(join_at(hd__server_port(server), 0, &other, &err) == HD_OK, "%s", err.message);
    ck_assert_int_eq(hd__store_put(store, "a", "b", 1, &err), HD_OK); /* while nobody meddles */
    atomic_store(&way.how, how);
    for (int32_t k = 0; hd__store_liveness_check(hd__store_liveness(store), NULL, NULL) == HD_OK; k++)
        hd__store_get(store, "a", got, &(size_t){sizeof got}, hd__now() + 1, &err);
    hd__store_liveness_check(hd__store_liveness(store), NULL, &err);
    if (!way.direction && how != REFLECTS) /* the rank itself saw it */
        ck_assert_msg(strstr(err.message, "was altered, replayed or out of order on its way") != NULL, "%s",
                      err.message);
    /* The job ends; rank 0 is told, and where the server saw it, by which connection. */
    ck_assert_int_eq(hd__store_get(other, "never", got, &bytes, hd__now() + 40, &err), HD_E_PEER);
    ck_assert_msg(strstr(err.message, "rank 1 died") != NULL, "%s", err.message);
    if (way.direction && how != REFLECTS)
        ck_assert_msg(strstr(err.message, " from 127.0.0.1:") && strstr(err.message, "was altered, replayed or out"),
                      "%s", err.message);
    hd__store_close(store);
    hd__store_close(other);
    pthread_join(thread, NULL);
    close(way.listener);
    hd__server_close(server);
}
END_TEST

/* ---- a rank that does not beat in time */

enum { RUNS, WAITS };
static struct {
    _Atomic int32_t thread; /* its number; it ends when that is 0 */
    int kind;
} beater;

static void *be_late(void *arg)
{
    atomic_store(&beater.thread, hd__store_thread_id());
    while (atomic_load(&beater.thread))
        if (beater.kind == WAITS)
            usleep(50000);
    return arg;
}

/* Nothing comes of rank 1. The server asks once more by a frame; if then the thread that should answer is ready to run
 * and does not get to it, its core is taken, and the rank has some more time, but not for ever. */
START_TEST(a_rank_without_a_core_has_its_time)
{
    const double dead_after = 1;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *other = NULL;
    struct hd__auth_handshake h;
    struct hd__auth_channel from, to;
    struct hd__frame f;
    uint8_t challenge[WIRE_CHALLENGE], proof[WIRE_TAG], frame[WIRE_SEALED_MAX];
    pthread_t thread;
    double silent = 0;
    int fd, nudges = -1;
    beater.kind = _i;
    pthread_create(&thread, NULL, be_late, NULL);
    while (!atomic_load(&beater.thread))
        usleep(1000);
    serve_with(2, dead_after);
    ck_assert_msg(join_at(hd__server_port(server), 0, &other, &err) == HD_OK, "%s", err.message);
    fd = be_challenged(1, 2, &h, challenge);
    hd__auth_prove(server_options.secret, HD__AUTH_RANK, &h, proof);
    say(fd, WIRE_PROVE, proof, WIRE_TAG);
    hd__auth_channel_init(&from, server_options.secret, HD__AUTH_SERVER, &h);
    hd__auth_channel_init(&to, server_options.secret, HD__AUTH_RANK, &h);
    size_t bytes =
        hd__auth_seal(&to, frame, &(struct hd__frame){.type = WIRE_HEARTBEAT, .arg = atomic_load(&beater.thread)});
    ck_assert_int_eq(send(fd, frame, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    while ((bytes = read_frame(fd, frame, 1)) > 0) {
        ck_assert_int_eq(hd__auth_open(&from, frame, bytes, &f), (ptrdiff_t)bytes);
        nudges += f.type == WIRE_HEARTBEAT; /* the first answers ours */
    }
    ck_assert_int_ge(nudges, 2);
    while (hd__store_liveness_check(hd__store_liveness(other), NULL, &err) == HD_OK)
        usleep(1000);
    ck_assert_msg(sscanf(err.message, "rank 1 died (silent for %lf s)", &silent) == 1, "%s", err.message);
    ck_assert_msg(silent >= (_i == RUNS ? 4 : 0.85) * dead_after, "%s", err.message);
    ck_assert_msg(_i == RUNS || silent < 4 * dead_after, "%s", err.message);
    atomic_store(&beater.thread, 0);
    pthread_join(thread, NULL);
    close(fd);
    hd__store_close(other);
    hd__server_close(server);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("auth");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, golden);
    tcase_add_test(tc, proofs_are_of_all_parts);
    tcase_add_test(tc, frames_are_opened_as_they_were_sealed);
    tcase_add_loop_test(tc, an_impostor_is_not_believed_and_learns_nothing, 0, LIES);
    tcase_add_loop_test(tc, who_does_not_know_the_secret_is_refused, 0, KINDS);
    tcase_add_test(tc, reasons_are_for_ranks);
    tcase_add_test(tc, an_older_rank_is_refused_by_name);
    tcase_add_test(tc, truncated_and_slow);
    tcase_add_loop_test(tc, what_is_changed_on_the_way_ends_the_connection, 0, 2 * TO_SERVER);
    tcase_add_loop_test(tc, a_rank_without_a_core_has_its_time, RUNS, WAITS + 1);
    return suite_run_case("auth", tc);
}
