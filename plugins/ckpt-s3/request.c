/* One request to the store: signed by libcurl (AWS Signature Version 4), tried again where that may help. */
#include <curl/curl.h>
#include <errno.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

#include "heddle/comm.h"
#include "internal.h"

enum { CONNECT_SECONDS = 10, STALLED_SECONDS = 30, ANSWER_MAX = 1 << 30 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- one attempt */

struct attempt {
    const struct s3_request *request;
    struct s3_answer *answer;
    CURL *curl;
    size_t sent, got;       /* of the body; into request->into */
    struct hd_deadline end; /* of all tries */
};

static size_t on_body(char *data, size_t one, size_t bytes, void *user)
{
    struct attempt *a = user;
    struct s3_answer *answer = a->answer;
    long status = 0;
    (void)one;
    curl_easy_getinfo(a->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status == 206 && a->request->into) {
        if (bytes > a->request->room - a->got)
            return 0;
        memcpy((char *)a->request->into + a->got, data, bytes);
        a->got += bytes;
        return bytes;
    }
    if (answer->bytes + bytes + 1 > answer->room) {
        size_t room = 2 * (answer->bytes + bytes) + 4096;
        char *more = room > ANSWER_MAX ? NULL : realloc(answer->text, room);
        if (!more)
            return 0;
        answer->text = more;
        answer->room = room;
    }
    memcpy(answer->text + answer->bytes, data, bytes);
    answer->bytes += bytes;
    answer->text[answer->bytes] = 0;
    return bytes;
}

static void copy_header(const char *line, size_t bytes, const char *name, char *out, size_t room)
{
    size_t n = strlen(name);
    if (bytes <= n || strncasecmp(line, name, n) != 0)
        return;
    while (n < bytes && line[n] == ' ')
        n++;
    while (bytes > n && (unsigned char)line[bytes - 1] <= ' ')
        bytes--;
    snprintf(out, room, "%.*s", (int)(bytes - n), line + n);
}

static size_t on_header(char *line, size_t one, size_t bytes, void *user)
{
    struct s3_answer *answer = ((struct attempt *)user)->answer;
    (void)one;
    copy_header(line, bytes, "etag:", answer->etag, sizeof answer->etag);
    copy_header(line, bytes, "x-amz-bucket-region:", answer->region, sizeof answer->region);
    return bytes;
}

static size_t on_send(char *to, size_t one, size_t room, void *user)
{
    struct attempt *a = user;
    size_t left = a->request->bytes - a->sent, n = left < room * one ? left : room * one;
    memcpy(to, (const char *)a->request->body + a->sent, n);
    a->sent += n;
    return n;
}

static int on_seek(void *user, curl_off_t offset, int origin)
{
    struct attempt *a = user;
    if (origin != SEEK_SET || offset < 0 || (size_t)offset > a->request->bytes)
        return CURL_SEEKFUNC_FAIL;
    a->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* Called by libcurl once a second, so that time for which the process is stopped does not count. */
static int on_progress(void *user, curl_off_t to_get, curl_off_t got, curl_off_t to_send, curl_off_t sent)
{
    (void)to_get, (void)got, (void)to_send, (void)sent;
    (void)hd_deadline_passed(&((struct attempt *)user)->end, now());
    return 0;
}

/* Adds a header; 0, or -1 without memory. */
static int add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *more = curl_slist_append(*list, line);
    if (more)
        *list = more;
    return more ? 0 : -1;
}

/* SHA-256 of the body: in hexadecimal it is signed, and in base64 the server keeps it with the object. */
static int add_digests(struct curl_slist **list, const struct s3_request *r)
{
    unsigned char digest[EVP_MAX_MD_SIZE], base64[64];
    char line[128] = "x-amz-content-sha256: ";
    unsigned int n = 0;
    if (!EVP_Digest(r->body ? r->body : "", r->bytes, digest, &n, EVP_sha256(), NULL))
        return -1;
    for (unsigned int i = 0; i < n; i++)
        snprintf(line + 22 + 2 * i, 3, "%02x", digest[i]);
    if (add_header(list, line))
        return -1;
    if (!r->bytes) /* of a copy: the server has its own */
        return 0;
    EVP_EncodeBlock(base64, digest, (int)n);
    snprintf(line, sizeof line, "x-amz-checksum-sha256: %s", (char *)base64);
    return add_header(list, line);
}

static int32_t perform(const struct hd_ckpt *ckpt, struct attempt *a, const char *url, struct curl_slist *headers,
                       char *why)
{
    CURL *c = a->curl;
    double left = a->end.at - a->end.looked;
    const struct s3_request *r = a->request;
    curl_easy_reset(c);
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(c, CURLOPT_AWS_SIGV4, ckpt->signing);
    curl_easy_setopt(c, CURLOPT_USERNAME, ckpt->key_id);
    curl_easy_setopt(c, CURLOPT_PASSWORD, ckpt->secret);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "heddle");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALLED_SECONDS);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, left < 1e6 ? (long)(left * 1000) + 1 : 1000000000L);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, a);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, a);
    if (ckpt->ca)
        curl_easy_setopt(c, CURLOPT_CAINFO, ckpt->ca);
    if (r->body) {
        curl_easy_setopt(c, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(c, CURLOPT_INFILESIZE_LARGE, (curl_off_t)r->bytes);
        curl_easy_setopt(c, CURLOPT_READFUNCTION, on_send);
        curl_easy_setopt(c, CURLOPT_READDATA, a);
        curl_easy_setopt(c, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(c, CURLOPT_SEEKDATA, a);
    } else if (strcmp(r->method, "GET") != 0) {
        curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, r->method);
    }
    a->answer->bytes = a->got = a->sent = 0;
    a->answer->status = 0;
    *a->answer->etag = *a->answer->region = *why = 0;
    CURLcode code = curl_easy_perform(c);
    (void)on_progress(a, 0, 0, 0, 0);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &a->answer->status);
    return (int32_t)code;
}

/* ---- again */

static int may_pass(int32_t code, const struct s3_answer *answer)
{
    char word[64], message[200];
    long status = answer->status;
    switch (code) {
    case CURLE_OK:
        break;
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_SSL_CONNECT_ERROR:
        return 1;
    default:
        return 0;
    }
    if (status == 408 || status == 429 || status == 500 || (status >= 502 && status <= 504))
        return 1;
    s3_error_read(answer, word, message);
    return status == 400 && !strcmp(word, "RequestTimeout");
}

/* Doubling from 0.1 s to 10 s, of which a random half: ranks that failed together do not come back together. */
static void back_off(int64_t tries, struct hd_deadline *end)
{
    uint32_t bits = 0;
    double began = now(), most = 0.1 * (double)(1 << (tries < 7 ? tries : 7)), left = end->at - began;
    if (getrandom(&bits, sizeof bits, 0) < 0)
        bits = (uint32_t)tries;
    most = most < 10 ? most : 10;
    most *= 0.5 + 0.5 * (double)bits / UINT32_MAX;
    most = most < left ? most : left;
    struct timespec t = {(time_t)most, (long)((most - (double)(time_t)most) * 1e9)};
    while (most > 0 && nanosleep(&t, &t) && errno == EINTR)
        ;
    end->looked = now();
    end->at += hd_slept(began, most + HD_LOOK_SECONDS, end->looked);
}

static CURL *take_handle(struct hd_ckpt *ckpt)
{
    CURL *curl = NULL;
    pthread_mutex_lock(&ckpt->lock);
    if (ckpt->n_idle)
        curl = ckpt->idle[--ckpt->n_idle];
    pthread_mutex_unlock(&ckpt->lock);
    return curl ? curl : curl_easy_init();
}

static void give_handle(struct hd_ckpt *ckpt, CURL *curl)
{
    pthread_mutex_lock(&ckpt->lock);
    if (ckpt->n_idle < S3_HANDLES) {
        ckpt->idle[ckpt->n_idle++] = curl;
        curl = NULL;
    }
    pthread_mutex_unlock(&ckpt->lock);
    curl_easy_cleanup(curl);
}

void s3_handles_close(struct hd_ckpt *ckpt)
{
    while (ckpt->n_idle)
        curl_easy_cleanup(ckpt->idle[--ckpt->n_idle]);
}

static int32_t transport_error(const struct hd_ckpt *ckpt, const struct s3_request *r, int32_t code, const char *why,
                               int64_t tries, struct hd_error *err)
{
    const char *remedy = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE
                             ? ": name the authority's certificate by checkpoint.ca or AWS_CA_BUNDLE"
                         : code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST
                             ? ": see to checkpoint.endpoint, and that the server runs"
                             : "";
    if (err)
        err->native = code;
    return hd_fail(err, HD_E_IO, "%s: %s %s: %s%s (tried %lld time%s)", ckpt->location, r->method,
                   r->key ? r->key : "(list)", *why ? why : curl_easy_strerror((CURLcode)code), remedy,
                   (long long)tries, tries == 1 ? "" : "s");
}

/* A retry that helps at once is not worth a line; a minute is not to be waited in silence. */
static void say_retry(const struct hd_ckpt *ckpt, const struct attempt *a, int32_t code, const char *why, int64_t tries)
{
    char status[40];
    snprintf(status, sizeof status, "the server answers with status %ld", a->answer->status);
    if (tries == 3)
        ckpt->host->log(HD_LOG_WARN, "ckpt-s3", "%s: %s %s: %s; trying again, up to %lld times within %g s",
                        ckpt->location, a->request->method, a->request->key ? a->request->key : "(list)",
                        !code  ? status
                        : *why ? why
                               : curl_easy_strerror((CURLcode)code),
                        (long long)ckpt->settings->retries, ckpt->settings->timeout);
}

static int32_t send_with(struct hd_ckpt *ckpt, struct attempt *a, const char *url, struct curl_slist *headers,
                         struct hd_error *err)
{
    const struct s3_request *r = a->request;
    char why[CURL_ERROR_SIZE];
    int32_t code = 0;
    int64_t tries = 0;
    a->end.looked = now();
    a->end.at = a->end.looked + ckpt->settings->timeout;
    do {
        if (tries) {
            say_retry(ckpt, a, code, why, tries);
            back_off(tries - 1, &a->end);
        }
        if (tries && a->end.at <= a->end.looked)
            break;
        code = perform(ckpt, a, url, headers, why);
        tries++;
    } while (may_pass(code, a->answer) && tries <= ckpt->settings->retries);
    if (code && !(code == CURLE_WRITE_ERROR && a->answer->status == 206))
        return transport_error(ckpt, r, code, why, tries, err);
    long status = a->answer->status;
    if (code || (r->into && status == 206 && a->got != r->room) || (r->into && status == 200))
        return hd_fail(err, HD_E_CORRUPT, "%s: GET %s: %zu bytes were asked for, and the server sent %s",
                       ckpt->location, r->key, r->room,
                       code            ? "more"
                       : status == 200 ? "all it has"
                                       : "fewer: it was cut");
    return (status >= 200 && status < 300) || status == 304 ? HD_OK : s3_explain(ckpt, r, a->answer, err);
}

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

int32_t s3_send(struct hd_ckpt *ckpt, const struct s3_request *request, struct s3_answer *answer, struct hd_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct curl_slist *headers = NULL;
    pthread_once(&once, init_curl);
    struct attempt a = {.request = request, .answer = answer, .curl = take_handle(ckpt)};
    int32_t rc;
    char *url = s3_format("%s%s%s%s%s", ckpt->base, request->key ? ckpt->prefix : "", request->key ? request->key : "",
                          request->query ? "?" : "", request->query ? request->query : "");
    if (!a.curl || !url || add_digests(&headers, request) || (ckpt->session && add_header(&headers, ckpt->session)) ||
        (request->header && add_header(&headers, request->header)))
        rc = s3_no_memory(err);
    else
        rc = send_with(ckpt, &a, url, headers, err);
    curl_slist_free_all(headers);
    free(url);
    if (a.curl)
        give_handle(ckpt, a.curl);
    return rc;
}

/* ---- what is asked for */

int32_t s3_put(struct hd_ckpt *ckpt, const char *key, const void *data, size_t bytes, struct hd_error *err)
{
    struct s3_request r = {.method = "PUT", .key = key, .body = data, .bytes = bytes};
    struct s3_answer a = {0};
    int32_t rc = s3_send(ckpt, &r, &a, err);
    free(a.text);
    return rc;
}

int32_t s3_get(struct hd_ckpt *ckpt, const char *key, struct s3_answer *answer, struct hd_error *err)
{
    struct s3_request r = {.method = "GET", .key = key};
    *answer = (struct s3_answer){0};
    int32_t rc = s3_send(ckpt, &r, answer, err);
    if (!rc && !answer->text && !(answer->text = calloc(1, 1)))
        rc = s3_no_memory(err);
    if (rc) {
        free(answer->text);
        answer->text = NULL;
    }
    return rc;
}

int32_t s3_get_range(struct hd_ckpt *ckpt, const char *key, uint64_t first, void *data, uint64_t bytes,
                     struct hd_error *err)
{
    char range[80];
    struct s3_request r = {.method = "GET", .key = key, .header = range, .into = data, .room = bytes};
    struct s3_answer a = {0};
    snprintf(range, sizeof range, "Range: bytes=%llu-%llu", (unsigned long long)first,
             (unsigned long long)(first + bytes - 1));
    int32_t rc = s3_send(ckpt, &r, &a, err);
    free(a.text);
    return rc;
}

int32_t s3_delete(struct hd_ckpt *ckpt, const char *key, struct hd_error *err)
{
    struct s3_request r = {.method = "DELETE", .key = key};
    struct s3_answer a = {0};
    int32_t rc = s3_send(ckpt, &r, &a, err);
    free(a.text);
    return rc == HD_E_NOTFOUND ? HD_OK : rc;
}

/* ---- many of a kind */

struct many {
    pthread_mutex_t lock;
    size_t next, n;
    int32_t (*one)(void *user, size_t i, struct hd_error *err);
    void *user;
    struct hd_error err;
    int32_t rc, reserved;
};

static void *do_some(void *user)
{
    struct many *m = user;
    pthread_mutex_lock(&m->lock);
    while (m->next < m->n && !m->rc) {
        struct hd_error why = HD_ERROR_INIT;
        size_t i = m->next++;
        pthread_mutex_unlock(&m->lock);
        int32_t rc = m->one(m->user, i, &why);
        pthread_mutex_lock(&m->lock);
        if (rc && !m->rc) {
            m->rc = rc;
            hd_error_copy(&m->err, &why);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

int32_t s3_each(size_t n, int32_t (*one)(void *user, size_t i, struct hd_error *err), void *user, struct hd_error *err)
{
    struct many m = {.lock = PTHREAD_MUTEX_INITIALIZER, .n = n, .one = one, .user = user, .err = HD_ERROR_INIT};
    pthread_t threads[S3_AT_ONCE - 1];
    sigset_t all, old;
    size_t k = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the caller's */
    while (k < S3_AT_ONCE - 1 && k + 1 < n && !pthread_create(&threads[k], NULL, do_some, &m))
        k++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    do_some(&m);
    while (k)
        pthread_join(threads[--k], NULL);
    if (m.rc)
        hd_error_copy(err, &m.err);
    return m.rc;
}

/* ---- listing */

struct page {
    char **keys;
    char *next; /* continuation token */
    size_t n, skip;
    int32_t truncated, no_memory, is_list, reserved;
};

static void on_list_text(void *user, const char *element, const char *text)
{
    struct page *p = user;
    if (!strcmp(element, "ListBucketResult")) {
        p->is_list = 1;
    } else if (!strcmp(element, "IsTruncated")) {
        p->truncated = !strcmp(text, "true");
    } else if (!strcmp(element, "NextContinuationToken")) {
        free(p->next);
        p->no_memory |= !(p->next = strdup(text));
    } else if (!strcmp(element, "Key") && strlen(text) >= p->skip) {
        char **more = realloc(p->keys, (p->n + 1) * sizeof *more);
        if (more)
            p->keys = more;
        if (!more || !(p->keys[p->n] = strdup(text + p->skip)))
            p->no_memory = 1;
        else
            p->n++;
    }
}

void s3_keys_free(char **keys, size_t n)
{
    while (n)
        free(keys[--n]);
    free(keys);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int s3_keys_have(char **keys, size_t n, const char *key)
{
    return n && bsearch(&key, keys, n, sizeof *keys, compare_keys);
}

/* ListObjectsV2. The query is sorted and encoded here: libcurl signs it as it stands. */
static int32_t read_page(struct hd_ckpt *ckpt, const char *prefix, struct page *p, struct hd_error *err)
{
    struct s3_answer a = {0};
    char *token = p->next ? curl_easy_escape(NULL, p->next, 0) : NULL;
    char *query = s3_format("%s%s%slist-type=2&prefix=%s", token ? "continuation-token=" : "", token ? token : "",
                            token ? "&" : "", prefix);
    struct s3_request r = {.method = "GET", .query = query};
    int32_t rc = query && (token || !p->next) ? s3_send(ckpt, &r, &a, err) : s3_no_memory(err);
    if (rc == HD_E_NOTFOUND)
        rc = HD_E_IO;
    free(p->next);
    p->next = NULL;
    p->truncated = p->is_list = 0;
    if (!rc && (s3_xml_read(a.text ? a.text : "", a.bytes, on_list_text, p) || !p->is_list))
        rc = hd_fail(err, HD_E_IO, "%s: the server's answer is no list of objects: see to checkpoint.endpoint",
                     ckpt->location);
    if (!rc && p->no_memory)
        rc = s3_no_memory(err);
    if (!rc && p->truncated && !p->next)
        rc = hd_fail(err, HD_E_IO, "%s: the server cut its list and does not say how it goes on", ckpt->location);
    free(query);
    curl_free(token);
    free(a.text);
    return rc;
}

int32_t s3_keys(struct hd_ckpt *ckpt, const char *under, char ***keys, size_t *n, struct hd_error *err)
{
    struct page p = {.skip = strlen(ckpt->prefix)};
    char *plain = s3_format("%s%s", ckpt->prefix, under), *prefix = plain ? curl_easy_escape(NULL, plain, 0) : NULL;
    int32_t rc = prefix ? HD_OK : s3_no_memory(err);
    do
        rc = rc ? rc : read_page(ckpt, prefix, &p, err);
    while (!rc && p.truncated);
    free(p.next);
    curl_free(prefix);
    free(plain);
    if (rc) {
        s3_keys_free(p.keys, p.n);
        return rc;
    }
    if (p.n)
        qsort(p.keys, p.n, sizeof *p.keys, compare_keys);
    *keys = p.keys;
    *n = p.n;
    return HD_OK;
}
