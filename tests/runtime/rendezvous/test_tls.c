/* The rendezvous by TLS: ranks with certificates of one CA meet; nobody else gets in, each refused by name; and who
 * stands in between reads nothing and changes nothing. The strangers are OpenSSL's own client and server. */
#include <check.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "runtime/rendezvous/auth.h"
#include "runtime/rendezvous/liveness.h"
#include "runtime/rendezvous/store.h"
#include "runtime/rendezvous/tls.h"
#include "tests/runtime/rendezvous/sockets.h"
#include "tests/suite.h"
#include "tests/support/certificates.h"
#include "tests/support/scratch.h"

enum { DAY = 86400 };
static struct scratch folder;
static struct hd__server *server;
static double dead_after = 30;
static uint8_t secret[HD__SECRET_BYTES];

/* Certificates and keys: of the ranks, expired, of another CA. */
static void set_up(void)
{
    scratch_init(&folder);
    ck_assert_int_eq(chdir(folder.dir), 0);
    make_certificate("ca", NULL, DAY);
    make_certificate("rank", "ca", DAY);
    make_certificate("expired", "ca", 60); /* an hour ago and no longer */
    make_certificate("other-ca", NULL, DAY);
    make_certificate("other", "other-ca", DAY);
}

static void tear_down(void)
{
    scratch_finish(&folder);
}

static void use_files(const char *ca, const char *cert, const char *key)
{
    const char *const names[] = {"HEDDLE_TLS_CA", "HEDDLE_TLS_CERT", "HEDDLE_TLS_KEY"}, *values[] = {ca, cert, key};
    for (int i = 0; i < 3; i++)
        values[i] ? setenv(names[i], values[i], 1) : unsetenv(names[i]);
}

static struct ssl_ctx_st *context(void)
{
    struct hd_error err = HD_ERROR_INIT;
    struct ssl_ctx_st *ctx;
    use_files("ca.pem", "rank.pem", "rank.key");
    ck_assert_msg(!hd__tls_context(&ctx, &err) && ctx, "%s", err.message);
    return ctx;
}

static void serve(struct ssl_ctx_st *tls, int32_t size)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server_options o = {
        .address = "127.0.0.1", .size = size, .rank = -1, .dead_after = dead_after, .tls = tls};
    hd__store_secret_generate(secret);
    memcpy(o.secret, secret, sizeof secret);
    ck_assert_msg(hd__server_open(&o, &server, &err) == HD_OK, "%s", err.message);
}

static int32_t join_at(uint16_t port, struct ssl_ctx_st *tls, int32_t rank, struct hd_store **store,
                       struct hd_error *err)
{
    struct hd__store_options o = {
        .host = "127.0.0.1", .port = port, .rank = rank, .size = 2, .dead_after = dead_after, .tls = tls};
    memcpy(o.secret, secret, sizeof secret);
    return hd__store_connect(&o, hd__now() + 40, store, err);
}

static struct hd_store *join(struct ssl_ctx_st *tls, int32_t rank)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    ck_assert_msg(!join_at(hd__server_port(server), tls, rank, &store, &err), "%s", err.message);
    return store;
}

/* The log, from here on. */
static void keep_log(void)
{
    fflush(stderr);
    int fd = open("log", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    ck_assert(fd >= 0 && dup2(fd, 2) == 2);
    close(fd);
}

/* Waits until it has these words. */
static void expect_logged(const char *words)
{
    static char text[65536];
    for (double until = hd__now() + 40; hd__now() < until; usleep(2000)) {
        FILE *f = fopen("log", "r");
        text[fread(text, 1, sizeof text - 1, f)] = '\0';
        fclose(f);
        if (strstr(text, words))
            return;
    }
    ck_abort_msg("not logged: %s\n%s", words, text);
}

/* ---- the files */

START_TEST(files)
{
    static const struct {
        const char *ca, *cert, *key, *says;
    } rows[] = {
        {"ca.pem", "rank.pem", NULL, "HEDDLE_TLS_CERT is set, but not HEDDLE_TLS_KEY: TLS needs"},
        {NULL, NULL, "rank.key", "HEDDLE_TLS_KEY is set, but not HEDDLE_TLS_CERT"},
        {"nowhere", "rank.pem", "rank.key", "HEDDLE_TLS_CA: nowhere: No such file"},
        {".", "rank.pem", "rank.key", "HEDDLE_TLS_CA: . is not a regular file"},
        {"fifo", "rank.pem", "rank.key", "HEDDLE_TLS_CA: fifo is not a regular file"},
        {"ca.key", "rank.pem", "rank.key", "HEDDLE_TLS_CA: ca.key holds no certificate in PEM"},
        {"ca.pem", "empty", "rank.key", "HEDDLE_TLS_CERT: empty holds no certificate in PEM"},
        {"ca.pem", "rank.pem", "other.key", "HEDDLE_TLS_KEY: other.key is not the private key of HEDDLE_TLS_CERT"},
        {"ca.pem", "rank.pem", "rank.pem", "HEDDLE_TLS_KEY: rank.pem is not the private key of HEDDLE_TLS_CERT"},
        {"ca.pem", "rank.pem", "open.key", "HEDDLE_TLS_KEY: open.key can be read by others"},
        {"ca.pem", "rank.pem", "group.key", "HEDDLE_TLS_KEY: group.key can be read by others"},
        {"ca.pem", "rank.pem", "locked.key", "HEDDLE_TLS_KEY: locked.key is encrypted: a rank cannot ask"},
        {"ca.pem", "expired.pem", "expired.key", "expired.pem is refused by the CA in ca.pem: certificate has expired"},
        {"ca.pem", "other.pem", "other.key", "other.pem is refused by the CA in ca.pem: unable to get local issuer"},
        {"other-ca.pem", "rank.pem", "rank.key", "rank.pem is refused by the CA in other-ca.pem: unable to get local"},
    };
    struct hd_error err = HD_ERROR_INIT;
    struct ssl_ctx_st *ctx;
    ck_assert_int_eq(system("cp rank.key open.key && chmod 604 open.key && cp rank.key group.key && "
                            "chmod 640 group.key && mkfifo -m 600 fifo && : > empty"),
                     0);
    FILE *f = fopen("rank.key", "r"), *out = fopen("locked.key", "w");
    EVP_PKEY *key = PEM_read_PrivateKey(f, NULL, NULL, NULL);
    ck_assert_int_eq(PEM_write_PrivateKey(out, key, EVP_aes_128_cbc(), NULL, 0, NULL, (void *)"word"), 1);
    EVP_PKEY_free(key);
    fclose(f);
    fclose(out);
    chmod("locked.key", 0600);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        use_files(rows[i].ca, rows[i].cert, rows[i].key);
        ck_assert_int_ne(hd__tls_context(&ctx, &err), HD_OK);
        ck_assert_msg(!ctx && strstr(err.message, rows[i].says), "%s", err.message);
    }
    use_files(NULL, NULL, NULL);
    ck_assert(!hd__tls_context(&ctx, &err) && !ctx);
}
END_TEST

/* ---- somebody in between who hands on bytes */

static struct {
    int listener;
    _Atomic int alter; /* which byte of what the server sends next has a bit turned; 0: none */
    _Atomic int cut;   /* hands nothing more on, and closes */
    uint8_t seen[1 << 20];
    size_t bytes;
} way;

static void *hand_on(void *arg)
{
    int rank = accept(way.listener, NULL, NULL), to = connect_to(hd__server_port(server));
    for (int open = 1; open;) {
        struct pollfd in[2] = {{.fd = rank, .events = POLLIN}, {.fd = to, .events = POLLIN}};
        uint8_t part[4096];
        poll(in, 2, 1000);
        for (int k = 0; k < 2 && open; k++) {
            ssize_t n = in[k].revents ? recv(in[k].fd, part, sizeof part, 0) : -1;
            if (atomic_load(&way.cut) && n > 1)
                send(in[!k].fd, part, (size_t)n / 2, MSG_NOSIGNAL);
            if ((in[k].revents && n <= 0) || (atomic_load(&way.cut) && n > 1)) {
                open = 0;
                break;
            }
            if (n > 0 && way.bytes + (size_t)n <= sizeof way.seen) {
                memcpy(way.seen + way.bytes, part, (size_t)n);
                way.bytes += (size_t)n;
            }
            int at = k == 1 && n > 0 ? atomic_exchange(&way.alter, 0) : 0;
            if (at)
                part[HD__MIN(at, (int)n) - 1] ^= 0x10;
            if (n > 0)
                send(in[!k].fd, part, (size_t)n, MSG_NOSIGNAL);
        }
    }
    shutdown(rank, SHUT_RDWR);
    shutdown(to, SHUT_RDWR);
    close(rank);
    close(to);
    return arg;
}

/* Values of all sizes in both directions, from two threads' sides at once with the heartbeats; and nothing of it can be
 * read on the way, where without TLS it can. */
START_TEST(ranks_meet)
{
    static const char name[] = "a/name/that/nobody/else/has", words[] = "and a value that nobody else has";
    static uint8_t big[WIRE_VALUE_MAX], got[WIRE_VALUE_MAX];
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    pthread_t thread;
    uint16_t port;
    struct ssl_ctx_st *tls = _i ? context() : NULL;
    serve(tls, 2);
    way.listener = listen_anywhere(&port);
    pthread_create(&thread, NULL, hand_on, NULL);
    ck_assert_msg(!join_at(port, tls, 1, &store, &err), "%s", err.message);
    struct hd_store *other = join(tls, 0);
    ck_assert_int_eq(hd__store_put(store, name, words, sizeof words, &err), HD_OK);
    ck_assert((memmem(way.seen, way.bytes, name, strlen(name)) == NULL) == _i);
    ck_assert((memmem(way.seen, way.bytes, words, strlen(words)) == NULL) == _i);
    for (size_t bytes = 0; bytes <= sizeof big; bytes = bytes * 3 + (bytes < sizeof big / 3) + 7) {
        size_t room = sizeof got;
        for (size_t i = 0; i < bytes; i++)
            big[i] = (uint8_t)(i * 7 + bytes);
        ck_assert_msg(!hd__store_put(store, "k", big, bytes, &err), "%s", err.message);
        ck_assert_msg(!hd__store_get(other, "k", got, &room, hd__now() + 20, &err), "%s", err.message);
        ck_assert(room == bytes && !memcmp(big, got, bytes));
        ck_assert_msg(!hd__store_put(other, "k", big, sizeof big, &err), "%s", err.message);
        room = sizeof got;
        ck_assert_msg(!hd__store_get(store, "k", got, &room, hd__now() + 20, &err), "%s", err.message);
        ck_assert(room == sizeof big && !memcmp(big, got, room));
    }
    hd__store_abort(other, "enough");
    while (hd__store_liveness_check(hd__store_liveness(store), NULL, &err) == HD_OK)
        usleep(1000);
    ck_assert_str_eq(err.message, "rank 0: enough");
    hd__store_close(other);
    hd__store_close(store);
    pthread_join(thread, NULL);
    hd__server_close(server);
    SSL_CTX_free(tls);
}
END_TEST

/* A bit turned (_i: which byte of a record), or the stream cut in the middle of one. */
START_TEST(what_is_changed_on_the_way_ends_the_connection)
{
    static const int at[] = {1, 2, 4, 6, 30, 4096, 0};
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    pthread_t thread;
    uint16_t port;
    char got[8];
    dead_after = at[_i] == 4 ? 5 : 30; /* a record that became longer is waited for */
    struct ssl_ctx_st *tls = context();
    serve(tls, 2);
    way.listener = listen_anywhere(&port);
    pthread_create(&thread, NULL, hand_on, NULL);
    ck_assert_msg(!join_at(port, tls, 1, &store, &err), "%s", err.message);
    struct hd_store *other = join(tls, 0);
    ck_assert_int_eq(hd__store_put(store, "a", "b", 1, &err), HD_OK);
    atomic_store(&way.alter, at[_i]);
    atomic_store(&way.cut, !at[_i]);
    while (hd__store_liveness_check(hd__store_liveness(store), NULL, &err) == HD_OK)
        hd__store_get(store, "a", got, &(size_t){sizeof got}, hd__now() + 1, NULL);
    ck_assert_msg(strstr(err.message, "the launcher is gone (") &&
                      (strstr(err.message, "by TLS: ") || !at[_i] || at[_i] == 4),
                  "%s", err.message);
    ck_assert_int_eq(hd__store_get(other, "never", got, &(size_t){sizeof got}, hd__now() + 40, &err), HD_E_PEER);
    ck_assert_msg(strstr(err.message, "rank 1 died") != NULL, "%s", err.message);
    hd__store_close(store);
    hd__store_close(other);
    pthread_join(thread, NULL);
    hd__server_close(server);
    SSL_CTX_free(tls);
}
END_TEST

/* ---- strangers by OpenSSL alone */

static SSL_CTX *strange_context(const char *name, const char *ca, int version)
{
    char path[64];
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    SSL_CTX_set_max_proto_version(ctx, version);
    SSL_CTX_set_verify(ctx, ca ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    if (ca)
        ck_assert_int_eq(SSL_CTX_load_verify_locations(ctx, ca, NULL), 1);
    if (name) {
        snprintf(path, sizeof path, "%s.pem", name);
        ck_assert_int_eq(SSL_CTX_use_certificate_chain_file(ctx, path), 1);
        snprintf(path, sizeof path, "%s.key", name);
        ck_assert_int_eq(SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM), 1);
    }
    return ctx;
}

static SSL *strange_session(SSL_CTX *ctx, int fd)
{
    SSL *ssl = SSL_new(ctx);
    SSL_set_fd(ssl, fd);
    return ssl;
}

/* A rank of theirs at our server: let go of at once, and the log says why. */
START_TEST(strange_ranks)
{
    static const struct {
        const char *name;
        int version;
        const char *says;
    } rows[] = {
        {NULL, TLS1_3_VERSION, "it showed no certificate"},
        {"other", TLS1_3_VERSION,
         "its certificate is refused by the CA in HEDDLE_TLS_CA: unable to get local issuer certificate"},
        {"other-ca", TLS1_3_VERSION, "its certificate is refused by the CA in HEDDLE_TLS_CA: self-signed certificate"},
        {"expired", TLS1_3_VERSION, "its certificate is refused by the CA in HEDDLE_TLS_CA: certificate has expired"},
        {"rank", TLS1_2_VERSION, "by TLS: unsupported protocol"},
        {"rank", TLS1_3_VERSION, "it did not prove that it knows the job's secret"},
    };
    static const int n = HD__COUNT(rows);
    struct hd__auth_handshake h = {.size = 2};
    uint8_t frame[WIRE_HEADER + WIRE_CHALLENGE], hello[WIRE_HELLO] = {0, 0, 0, 0, 2}, proof[WIRE_TAG];
    struct ssl_ctx_st *tls = context();
    for (int i = 0; i < n; i++) {
        SSL_CTX *ctx = strange_context(rows[i].name, NULL, rows[i].version);
        keep_log();
        serve(tls, 2); /* a new one logs its first refusal */
        int fd = connect_to(hd__server_port(server)), has_certificate = i == n - 1;
        SSL *ssl = strange_session(ctx, fd);
        SSL_connect(ssl);
        size_t bytes = hd__store_wire_write(
            frame, &(struct hd__frame){.type = WIRE_SAY_HELLO, .value = hello, .value_bytes = WIRE_HELLO});
        SSL_write(ssl, frame, (int)bytes);
        if (has_certificate) { /* and the secret: the right one, but not of this session */
            ck_assert_int_eq(SSL_read(ssl, frame, sizeof frame), sizeof frame);
            memcpy(h.server_nonce, frame + WIRE_HEADER, WIRE_NONCE);
            hd__auth_prove(secret, HD__AUTH_RANK, &h, proof);
            bytes = hd__store_wire_write(
                frame, &(struct hd__frame){.type = WIRE_PROVE, .value = proof, .value_bytes = WIRE_TAG});
            SSL_write(ssl, frame, (int)bytes);
        }
        ck_assert_int_le(SSL_read(ssl, frame, sizeof frame), 0);
        expect_logged(rows[i].says);
        SSL_free(ssl);
        SSL_CTX_free(ctx);
        close(fd);
        hd__store_close(join(tls, 0)); /* nobody else is worse off */
        hd__server_close(server);
    }
    SSL_CTX_free(tls);
}
END_TEST

static void *pretend(void *arg)
{
    SSL *ssl = strange_session(arg, accept(way.listener, NULL, NULL));
    char byte[64];
    if (SSL_accept(ssl) == 1)
        SSL_read(ssl, byte, sizeof byte);
    close(SSL_get_fd(ssl));
    SSL_free(ssl);
    return NULL;
}

/* A server of theirs: a rank of ours does not stay, and says why within the first attempt. */
START_TEST(strange_servers)
{
    static const struct {
        const char *name, *ca;
        int version;
        const char *says;
    } rows[] = {
        {"other", NULL, TLS1_3_VERSION,
         "its certificate is refused by the CA in HEDDLE_TLS_CA: unable to get local issuer certificate"},
        {"expired", NULL, TLS1_3_VERSION,
         "its certificate is refused by the CA in HEDDLE_TLS_CA: certificate has expired"},
        {"rank", NULL, TLS1_2_VERSION, "it refused us by TLS: tlsv1 alert protocol version"},
        {"rank", "other-ca.pem", TLS1_3_VERSION, "it refused us by TLS: tlsv1 alert unknown ca"},
    };
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    char want[200];
    uint16_t port;
    struct ssl_ctx_st *tls = context();
    way.listener = listen_anywhere(&port);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        pthread_t thread;
        SSL_CTX *ctx = strange_context(rows[i].name, rows[i].ca, rows[i].version);
        pthread_create(&thread, NULL, pretend, ctx);
        ck_assert_int_eq(join_at(port, tls, 1, &store, &err), HD_E_INVALID);
        snprintf(want, sizeof want, "TLS with the server at 127.0.0.1:%u failed: %s", port, rows[i].says);
        ck_assert_msg(strstr(err.message, want) != NULL, "%s", err.message);
        pthread_join(thread, NULL);
        SSL_CTX_free(ctx);
    }
    SSL_CTX_free(tls);
}
END_TEST

START_TEST(one_side_without_tls)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    struct ssl_ctx_st *tls = context();
    keep_log();
    serve(tls, 2);
    ck_assert_int_eq(join_at(hd__server_port(server), NULL, 1, &store, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "speaks TLS, and this rank does not: set HEDDLE_TLS_CA, _CERT"), "%s",
                  err.message);
    expect_logged("it does not speak TLS: set HEDDLE_TLS_CA, _CERT and _KEY on all ranks, or on none");
    hd__server_close(server);
    serve(NULL, 2);
    ck_assert_int_eq(join_at(hd__server_port(server), tls, 1, &store, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "failed: it does not speak TLS: set HEDDLE_TLS_CA, _CERT"), "%s", err.message);
    expect_logged("it speaks TLS: set HEDDLE_TLS_CA, _CERT and _KEY on all ranks, or on none");
    hd__server_close(server);
    SSL_CTX_free(tls);
}
END_TEST

/* ---- somebody in between who has a certificate of the CA, and so a session with each of the two */

static void *stand_between(void *arg)
{
    SSL_CTX *ctx = arg;
    SSL *ssl[2] = {strange_session(ctx, accept(way.listener, NULL, NULL)),
                   strange_session(ctx, connect_to(hd__server_port(server)))};
    char part[4096];
    ck_assert(SSL_accept(ssl[0]) == 1 && SSL_connect(ssl[1]) == 1);
    for (int n, k = 0; (n = SSL_read(ssl[k], part, sizeof part)) > 0; k = !k) /* they take turns */
        SSL_write(ssl[!k], part, n);
    for (int k = 0; k < 2; k++) {
        close(SSL_get_fd(ssl[k]));
        SSL_free(ssl[k]);
    }
    return NULL;
}

START_TEST(another_certificate_of_the_ca_is_not_enough)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    pthread_t thread;
    uint16_t port;
    make_certificate("insider", "ca", DAY);
    struct ssl_ctx_st *tls = context();
    SSL_CTX *ctx = strange_context("insider", "ca.pem", TLS1_3_VERSION);
    serve(tls, 2);
    way.listener = listen_anywhere(&port);
    pthread_create(&thread, NULL, stand_between, ctx);
    ck_assert_int_eq(join_at(port, tls, 1, &store, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "did not prove that it knows the job's secret") != NULL, "%s", err.message);
    pthread_join(thread, NULL);
    hd__server_close(server);
    SSL_CTX_free(ctx);
    SSL_CTX_free(tls);
}
END_TEST

/* ---- noise, below TLS and inside of it */

static uint32_t draw(void)
{
    static uint32_t state = 12345;
    state = state * 1664525 + 1013904223;
    return state >> 8;
}

static size_t make_noise(uint8_t out[512])
{
    size_t n = 1 + draw() % 511;
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)draw();
    if (draw() % 2) { /* a header that might be one */
        out[0] = WIRE_VERSION;
        out[1] = (uint8_t)(draw() % (WIRE_TYPE_COUNT + 1));
        memset(out + 2, 0, HD__MIN(n, 6u) > 2 ? HD__MIN(n, 6u) - 2 : 0);
    }
    return n;
}

START_TEST(noise)
{
    enum { TIMES = 150 };
    uint8_t bytes[512];
    struct ssl_ctx_st *tls = context();
    SSL_CTX *ctx = strange_context("rank", NULL, TLS1_3_VERSION);
    keep_log();
    serve(tls, 2);
    struct hd_store *store = join(tls, 0);
    for (int i = 0; i < TIMES; i++) {
        int fd = connect_to(hd__server_port(server)), inside = i % 3 == 0;
        SSL *ssl = strange_session(ctx, fd);
        size_t n = make_noise(bytes);
        if (inside)
            ck_assert_int_eq(SSL_connect(ssl), 1);
        if (!inside && i % 3 == 1) { /* a record of a handshake */
            static const uint8_t head[] = {HD__TLS_HANDSHAKE, 3, 1};
            memcpy(bytes, head, HD__MIN(n, sizeof head));
        }
        if (inside)
            SSL_write(ssl, bytes, (int)n);
        else
            send(fd, bytes, n, MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        while (recv(fd, bytes, sizeof bytes, 0) > 0)
            continue;
        SSL_free(ssl);
        close(fd);
    }
    ck_assert_int_eq(hd__store_put(store, "k", "v", 1, NULL), HD_OK);
    hd__store_close(join(tls, 1));
    hd__store_close(store);
    hd__server_close(server);
    SSL_CTX_free(ctx);
    SSL_CTX_free(tls);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("tls");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, files);
    tcase_add_loop_test(tc, ranks_meet, 0, 2);
    tcase_add_loop_test(tc, what_is_changed_on_the_way_ends_the_connection, 0, 7);
    tcase_add_test(tc, strange_ranks);
    tcase_add_test(tc, strange_servers);
    tcase_add_test(tc, one_side_without_tls);
    tcase_add_test(tc, another_certificate_of_the_ca_is_not_enough);
    tcase_add_test(tc, noise);
    return suite_run_case("tls", tc);
}
