#include "runtime/rendezvous/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "heddle/comm.h"
#include "runtime/rendezvous/auth.h"

struct hd__tls {
    SSL *ssl;
    BIO *out; /* records that the socket has not taken yet */
    int fd, is_server, begun;
    pthread_mutex_t lock; /* an SSL is for one thread at a time */
    char why[200];
};

/* ---- the files */

enum { CA, CERT, KEY, FILES };
static const char *const names[FILES] = {"HEDDLE_TLS_CA", "HEDDLE_TLS_CERT", "HEDDLE_TLS_KEY"};

static int32_t check_file(int i, const char *path, struct hd_error *err)
{
    struct stat about;
    if (stat(path, &about) || access(path, R_OK))
        return hd_fail(err, HD_E_IO, "%s: %s: %s", names[i], path, strerror(errno));
    if (!S_ISREG(about.st_mode))
        return hd_fail(err, HD_E_INVALID, "%s: %s is not a regular file", names[i], path);
    if (i == KEY && (about.st_mode & 077 || about.st_uid != geteuid()))
        return hd_fail(err, HD_E_INVALID, "%s: %s can be read by others: chown it to yourself and chmod 600", names[i],
                       path);
    return HD_OK;
}

/* A key under a passphrase: nobody is there to type it. */
static int no_passphrase(char *out, int room, int writing, void *user)
{
    (void)out, (void)room, (void)writing;
    *(int *)user = 1;
    return -1;
}

static const char *reason(void)
{
    const char *text = ERR_reason_error_string(ERR_peek_error());
    return text ? text : "it cannot be read";
}

/* The verdict on this rank's certificate, as the others will give it. */
static int verify_own(SSL_CTX *ctx)
{
    STACK_OF(X509) *chain = NULL;
    X509_STORE_CTX *check = X509_STORE_CTX_new();
    int bad = X509_V_ERR_UNSPECIFIED;
    SSL_CTX_get0_chain_certs(ctx, &chain);
    if (check && X509_STORE_CTX_init(check, SSL_CTX_get_cert_store(ctx), SSL_CTX_get0_certificate(ctx), chain) == 1)
        bad = X509_verify_cert(check) == 1 ? X509_V_OK : X509_STORE_CTX_get_error(check);
    X509_STORE_CTX_free(check);
    return bad;
}

static int32_t load_files(SSL_CTX *ctx, const char *const path[FILES], struct hd_error *err)
{
    int locked = 0, bad;
    SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    SSL_CTX_set_default_passwd_cb_userdata(ctx, &locked);
    ERR_clear_error();
    if (SSL_CTX_load_verify_locations(ctx, path[CA], NULL) != 1)
        return hd_fail(err, HD_E_INVALID, "%s: %s holds no certificate in PEM: %s", names[CA], path[CA], reason());
    if (SSL_CTX_use_certificate_chain_file(ctx, path[CERT]) != 1)
        return hd_fail(err, HD_E_INVALID, "%s: %s holds no certificate in PEM: %s", names[CERT], path[CERT], reason());
    if (SSL_CTX_use_PrivateKey_file(ctx, path[KEY], SSL_FILETYPE_PEM) != 1)
        return hd_fail(err, HD_E_INVALID,
                       locked ? "%s: %s is encrypted: a rank cannot ask for its passphrase%s"
                              : "%s: %s is not the private key of HEDDLE_TLS_CERT, in PEM: %s",
                       names[KEY], path[KEY], locked ? "" : reason());
    if ((bad = verify_own(ctx)) != X509_V_OK)
        return hd_fail(err, HD_E_INVALID, "%s: %s is refused by the CA in %s: %s", names[CERT], path[CERT], path[CA],
                       X509_verify_cert_error_string(bad));
    return HD_OK;
}

int32_t hd__tls_context(struct ssl_ctx_st **context, struct hd_error *err)
{
    enum { CHAIN_BYTES = 16384 }; /* a stranger may send */
    const char *path[FILES];
    int missing = -1, given = -1;
    int32_t code = HD_OK;
    *context = NULL;
    for (int i = 0; i < FILES; i++)
        *((path[i] = getenv(names[i])) ? &given : &missing) = i;
    if (given < 0)
        return HD_OK;
    if (missing >= 0)
        return hd_fail(err, HD_E_INVALID,
                       "%s is set, but not %s: TLS needs HEDDLE_TLS_CA, _CERT and _KEY; or unset all", names[given],
                       names[missing]);
    for (int i = 0; i < FILES && !code; i++)
        code = check_file(i, path[i], err);
    if (code)
        return code;
    hd__auth_use_library();
    SSL_CTX *ctx = OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, NULL) ? SSL_CTX_new(TLS_method()) : NULL;
    if (!ctx)
        return hd_fail(err, HD_E_NOMEM, "libssl: %s", reason());
    SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(ctx), X509_V_FLAG_PARTIAL_CHAIN); /* an intermediate may be the CA */
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);                         /* a rank comes once */
    SSL_CTX_set_num_tickets(ctx, 0);
    SSL_CTX_set_max_cert_list(ctx, CHAIN_BYTES);
    SSL_CTX_set_options(ctx, SSL_OP_IGNORE_UNEXPECTED_EOF); /* frames have an end of their own: BYE */
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
    code = load_files(ctx, path, err);
    if (code)
        SSL_CTX_free(ctx);
    else
        *context = ctx;
    return code;
}

/* ---- a connection */

struct hd__tls *hd__tls_new(struct ssl_ctx_st *context, int fd, int is_server)
{
    struct hd__tls *t = hd__alloc(sizeof *t);
    BIO *in = BIO_new_socket(fd, BIO_NOCLOSE);
    t->ssl = SSL_new(context);
    t->out = BIO_new(BIO_s_mem());
    if (!t->ssl || !t->out || !in || fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
        hd__die("libssl: %s", reason());
    SSL_set_bio(t->ssl, in, t->out);
    t->fd = fd;
    t->is_server = is_server;
    (is_server ? SSL_set_accept_state : SSL_set_connect_state)(t->ssl);
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void hd__tls_free(struct hd__tls *t)
{
    if (!t)
        return;
    SSL_free(t->ssl);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

const char *hd__tls_error(struct hd__tls *t)
{
    if (!t)
        return NULL;
    pthread_mutex_lock(&t->lock);
    const char *why = *t->why ? t->why : NULL; /* written once */
    pthread_mutex_unlock(&t->lock);
    return why;
}

/* Sends what the socket takes of it; -1: the connection is over. */
static int flush(struct hd__tls *t)
{
    char *data, part[4096];
    long left = BIO_get_mem_data(t->out, &data);
    while (left > 0) {
        ssize_t done = send(t->fd, data, (size_t)HD__MIN(left, (long)sizeof part), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -1;
        BIO_read(t->out, part, (int)done);
        left = BIO_get_mem_data(t->out, &data);
    }
    return 0;
}

/* Result of a failed SSL call: 0: the end of the stream; -1 and errno. */
static int explain(struct hd__tls *t, int result)
{
    unsigned long error = ERR_peek_error();
    int why = SSL_get_error(t->ssl, result), code = ERR_GET_REASON(error);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        errno = EAGAIN;
    else if (why == SSL_ERROR_ZERO_RETURN || (why == SSL_ERROR_SYSCALL && !error && !errno))
        return 0;
    if (why != SSL_ERROR_SSL)
        return -1;
    errno = EPROTO;
    if (*t->why)
        return -1;
    if (code == SSL_R_CERTIFICATE_VERIFY_FAILED)
        snprintf(t->why, sizeof t->why, "its certificate is refused by the CA in HEDDLE_TLS_CA: %s",
                 X509_verify_cert_error_string(SSL_get_verify_result(t->ssl)));
    else if (code == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
        snprintf(t->why, sizeof t->why, "it showed no certificate");
    else if (code > SSL_AD_REASON_OFFSET) /* an alert: its own words */
        snprintf(t->why, sizeof t->why, "it refused us by TLS: %s", reason());
    else
        snprintf(t->why, sizeof t->why, "by TLS: %s", reason());
    return -1;
}

/* 0 where the other side is known not to speak TLS; it is answered so that it knows what we do. */
static int speaks_tls(struct hd__tls *t)
{
    static const uint8_t protocol_version[] = {HD__TLS_ALERT, 3, 3, 0, 2, 2, 70};
    uint8_t first[512];
    if (t->begun || recv(t->fd, first, 1, MSG_PEEK | MSG_DONTWAIT) != 1)
        return 1;
    t->begun = *first >= HD__TLS_ALERT - 1 && *first <= HD__TLS_HANDSHAKE + 1;
    if (t->begun)
        return 1;
    snprintf(t->why, sizeof t->why,
             "it does not speak TLS: set HEDDLE_TLS_CA, _CERT and _KEY on all ranks, or on none");
    if (t->is_server && recv(t->fd, first, sizeof first, MSG_DONTWAIT) > 0 &&
        send(t->fd, protocol_version, sizeof protocol_version, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        hd__log(HD_LOG_DEBUG, "store", "alert: %s", strerror(errno));
    errno = EPROTO;
    return 0;
}

ssize_t hd__tls_read(struct hd__tls *t, void *out, size_t bytes)
{
    size_t at = 0, got;
    int code = 1;
    pthread_mutex_lock(&t->lock);
    if (!speaks_tls(t))
        code = -1;
    while (code > 0 && at < bytes) {
        ERR_clear_error();
        errno = 0;
        code = SSL_read_ex(t->ssl, (char *)out + at, bytes - at, &got);
        at += code > 0 ? got : 0;
        code = code > 0 ? 1 : explain(t, code);
    }
    int error = errno;
    flush(t); /* the handshake's answer, or an alert */
    pthread_mutex_unlock(&t->lock);
    errno = error;
    return at ? (ssize_t)at : code;
}

ssize_t hd__tls_write(struct hd__tls *t, const void *data, size_t bytes)
{
    enum { RECORD = 16384 };
    size_t done = 0;
    char byte;
    pthread_mutex_lock(&t->lock);
    int code = flush(t);
    if (!code && BIO_pending(t->out)) {
        errno = EAGAIN;
        code = -1;
    } else if (!code) {
        ERR_clear_error();
        errno = 0;
        code = SSL_write_ex(t->ssl, data, HD__MIN(bytes, (size_t)RECORD), &done);
        code = code > 0 ? flush(t) : explain(t, code) ? -1 : (errno = EPIPE, -1);
    }
    if (code < 0 && errno != EAGAIN && !*t->why) { /* it may have said why */
        int error = errno;
        ERR_clear_error();
        explain(t, SSL_peek(t->ssl, &byte, 1));
        errno = error;
    }
    pthread_mutex_unlock(&t->lock);
    return code < 0 ? -1 : (ssize_t)done;
}

int hd__tls_unflushed(struct hd__tls *t)
{
    int left = 0;
    if (!t)
        return 0;
    pthread_mutex_lock(&t->lock);
    left = !flush(t) && BIO_pending(t->out);
    pthread_mutex_unlock(&t->lock);
    return left;
}

int hd__tls_pending(struct hd__tls *t)
{
    int pending = 0;
    if (!t)
        return 0;
    pthread_mutex_lock(&t->lock);
    pending = SSL_pending(t->ssl) > 0;
    pthread_mutex_unlock(&t->lock);
    return pending;
}

int32_t hd__tls_connect(struct hd__tls *t, struct hd_deadline *deadline, struct hd_error *err)
{
    for (int code = 0; code <= 0;) {
        struct pollfd in = {.fd = t->fd, .events = POLLIN};
        ERR_clear_error();
        errno = 0;
        code = speaks_tls(t) ? SSL_do_handshake(t->ssl) : -1;
        int end = code <= 0 && (*t->why || !explain(t, code) || errno != EAGAIN);
        if ((flush(t) || end) && !*t->why)
            return hd_fail(err, HD_E_IO, "it closed the connection");
        if (end)
            return HD_E_INVALID; /* hd__tls_error */
        if (code <= 0 && hd_deadline_passed(deadline, hd__now()))
            return hd_fail(err, HD_E_IO, "it accepted the connection and said nothing");
        if (code <= 0)
            poll(&in, 1, 50);
    }
    return HD_OK;
}

void hd__tls_bind(struct hd__tls *t, uint8_t secret[WIRE_SECRET])
{
    static const char label[] = "EXPORTER-Channel-Binding"; /* RFC 9266 */
    uint8_t session[WIRE_SECRET];
    if (!t)
        return;
    if (SSL_export_keying_material(t->ssl, session, sizeof session, label, strlen(label), NULL, 0, 0) != 1)
        hd__die("libssl: %s", reason());
    hd__auth_bind(secret, session);
}
