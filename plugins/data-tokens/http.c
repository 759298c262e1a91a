/* Ranges of files behind HTTP, in one cache of blocks that all open files share. A block is fetched by the thread that
 * asks for it first, which may be one that reads ahead; others that ask for it meanwhile wait. The block that was not
 * used for longest makes room. */
#include "http.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#pragma GCC diagnostic ignored "-Wpadded" /* what follows never crosses the ABI */

#define SLOW_TIMES 10 /* of the timeout: a request that takes longer has failed, though bytes come */
enum { AHEAD_THREADS = 4, LEAST_BLOCKS = 4, MOST_REDIRECTS = 5 };

enum block_state { BLOCK_EMPTY, BLOCK_PENDING, BLOCK_READY };

struct block {
    const struct http_file *file;
    uint64_t number, used; /* used: the clock of its last use */
    enum block_state state;
    uint8_t *at;
};

/* libcurl, loaded by the first URL: it needs thirty libraries, and every start would wait for them. */
#define CURL_FUNCTIONS(_) \
    _(global_init)        \
    _(easy_init)          \
    _(easy_reset)         \
    _(easy_setopt)        \
    _(easy_perform)       \
    _(easy_getinfo)       \
    _(easy_strerror)      \
    _(easy_cleanup)
static struct {
#define MEMBER(name) __typeof__(curl_##name) *name;
    CURL_FUNCTIONS(MEMBER)
#undef MEMBER
    char missing[256]; /* why it cannot be loaded; "": it is */
} curl;

/* An idle connection, which the next request goes on with. */
struct connection {
    CURL *curl;
    struct connection *next;
};

struct http_file {
    const struct hd_host *host;
    struct http_settings settings;
    char *url, *name;  /* name: for messages */
    char version[256]; /* ETag or Last-Modified of the first answer; "": none */
    uint64_t bytes, n_blocks;
    bool in_order, closing;
};

/* One for the process: made by the first file that is opened, with its settings, and freed by the last. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct block *slots;
    struct connection *idle;
    pthread_t threads[AHEAD_THREADS];
    uint32_t n_slots, n_threads, files;
    uint64_t clock;
    /* Blocks that are to be fetched ahead, of the file that was read last. */
    struct http_file *ahead;
    uint64_t wanted, wanted_end;
    bool stop;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* One request and what came of it. */
struct request {
    struct http_file *file;
    uint8_t *out;
    uint64_t first, want, got, total;
    double seconds;
    char version[256];
    long status;
    bool has_etag, too_long;
};

uint64_t http_bytes(const struct http_file *f)
{
    return f->bytes;
}

/* ---- one request */

static size_t on_body(char *data, size_t size, size_t count, void *user)
{
    struct request *r = user;
    uint64_t n = size * count;
    r->too_long = n > r->want - r->got;
    if (r->too_long)
        return 0; /* curl ends the transfer: not the range that was asked for */
    memcpy(r->out + r->got, data, n);
    r->got += n;
    return n;
}

/* The value of a header's line; NULL: another header. */
static const char *header_value(const char *line, size_t bytes, const char *name, size_t *length)
{
    size_t n = strlen(name);
    if (bytes <= n || strncasecmp(line, name, n) || line[n] != ':')
        return NULL;
    const char *from = line + n + 1, *to = line + bytes;
    while (from < to && (*from == ' ' || *from == '\t'))
        from++;
    while (to > from && strchr("\r\n \t", to[-1]))
        to--;
    *length = (size_t)(to - from);
    return from;
}

/* Content-Range: bytes 0-1023/4096 */
static void read_content_range(struct request *r, const char *value, size_t length)
{
    char text[96];
    unsigned long long first, last, total;
    if (length >= sizeof text)
        return;
    memcpy(text, value, length);
    text[length] = 0;
    if (sscanf(text, "bytes %llu-%llu/%llu", &first, &last, &total) == 3 && first == r->first && last < total)
        r->total = total;
}

static size_t on_header(char *line, size_t size, size_t count, void *user)
{
    struct request *r = user;
    size_t n = size * count, length;
    const char *value;
    if (n > 5 && !strncmp(line, "HTTP/", 5)) { /* of the answer after a redirection: forget the earlier one's */
        r->total = 0;
        r->version[0] = 0;
        r->has_etag = false;
    }
    if ((value = header_value(line, n, "Content-Range", &length)))
        read_content_range(r, value, length);
    bool is_etag = (value = header_value(line, n, "ETag", &length)) != NULL;
    if (!is_etag && !r->has_etag)
        value = header_value(line, n, "Last-Modified", &length);
    if (value && length < sizeof r->version) {
        memcpy(r->version, value, length);
        r->version[length] = 0;
        r->has_etag |= is_etag;
    }
    return n;
}

static struct connection *take_connection(void)
{
    pthread_mutex_lock(&cache.lock);
    struct connection *c = cache.idle;
    if (c)
        cache.idle = c->next;
    pthread_mutex_unlock(&cache.lock);
    if (!c && (c = calloc(1, sizeof *c)) && !(c->curl = curl.easy_init())) {
        free(c);
        c = NULL;
    }
    return c;
}

static void give_connection(struct connection *c)
{
    pthread_mutex_lock(&cache.lock);
    c->next = cache.idle;
    cache.idle = c;
    pthread_mutex_unlock(&cache.lock);
}

/* Sends one request. `why` is what failed, "" if nothing; a failure that may pass is HD_E_IO. */
static int32_t send_request(struct request *r, char *why, size_t room)
{
    struct http_file *f = r->file;
    struct connection *c = take_connection();
    char range[64], detail[CURL_ERROR_SIZE] = "";
    if (!c) {
        snprintf(why, room, "no memory");
        return HD_E_NOMEM;
    }
    r->got = r->total = 0;
    r->status = 0;
    r->too_long = false;
    snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)r->first,
             (unsigned long long)(r->first + r->want - 1));
    curl.easy_reset(c->curl);
    curl.easy_setopt(c->curl, CURLOPT_URL, f->url);
    curl.easy_setopt(c->curl, CURLOPT_RANGE, range);
    curl.easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(c->curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl.easy_setopt(c->curl, CURLOPT_MAXREDIRS, (long)MOST_REDIRECTS);
    curl.easy_setopt(c->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl.easy_setopt(c->curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl.easy_setopt(c->curl, CURLOPT_NETRC, (long)CURL_NETRC_OPTIONAL);
    curl.easy_setopt(c->curl, CURLOPT_USERAGENT, "heddle");
    curl.easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)(f->settings.timeout * 1000));
    curl.easy_setopt(c->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl.easy_setopt(c->curl, CURLOPT_LOW_SPEED_TIME, (long)(f->settings.timeout < 1 ? 1 : f->settings.timeout));
    curl.easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, (long)(f->settings.timeout * SLOW_TIMES * 1000));
    curl.easy_setopt(c->curl, CURLOPT_ERRORBUFFER, detail);
    curl.easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl.easy_setopt(c->curl, CURLOPT_WRITEDATA, r);
    curl.easy_setopt(c->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl.easy_setopt(c->curl, CURLOPT_HEADERDATA, r);
    CURLcode code = curl.easy_perform(c->curl);
    curl.easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &r->status);
    curl.easy_getinfo(c->curl, CURLINFO_TOTAL_TIME, &r->seconds);
    give_connection(c);
    if (r->status == 404 || r->status == 410) {
        snprintf(why, room, "the server has no such file (status %ld)", r->status);
        return HD_E_NOTFOUND;
    }
    if (r->status == 416) {
        snprintf(why, room, "the file is empty, or shorter than it was (status 416)");
        return HD_E_CORRUPT;
    }
    if (r->status == 200) {
        snprintf(why, room, "the server ignores ranges (status 200 instead of 206): copy the file to this machine");
        return HD_E_UNSUPPORTED;
    }
    if (r->status && r->status != 206) {
        snprintf(why, room, "the server answers with status %ld", r->status);
        return r->status >= 500 || r->status == 408 || r->status == 429 ? HD_E_IO : HD_E_INVALID;
    }
    if (code || !r->total) {
        snprintf(why, room, "%s",
                 r->too_long ? "the server sent more than was asked for"
                 : code      ? (*detail ? detail : curl.easy_strerror(code))
                             : "the answer does not say which range it has (Content-Range)");
        return HD_E_IO;
    }
    return HD_OK;
}

static bool is_closing(const struct http_file *f)
{
    pthread_mutex_lock(&cache.lock);
    bool closing = f->closing;
    pthread_mutex_unlock(&cache.lock);
    return closing;
}

/* Waits 0.5, 1, 2, ... at most 30 s, unless the file is closed. */
static void back_off(const struct http_file *f, int64_t attempt)
{
    struct timespec until;
    double seconds = attempt > 5 ? 30 : 0.5 * (double)(1 << attempt);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&cache.lock);
    for (int rc = 0; !f->closing && rc != ETIMEDOUT;)
        rc = pthread_cond_timedwait(&cache.changed, &cache.lock, &until);
    pthread_mutex_unlock(&cache.lock);
}

/* A request, sent again while its failure may pass. */
static int32_t fetch(struct request *r, struct hd_error *err)
{
    struct http_file *f = r->file;
    char why[CURL_ERROR_SIZE + 64];
    int32_t rc = HD_E_IO;
    for (int64_t attempt = 0; rc == HD_E_IO && !is_closing(f); attempt++) {
        rc = send_request(r, why, sizeof why);
        uint64_t end = r->first + r->want < r->total ? r->first + r->want : r->total;
        if (!rc && r->got != end - r->first) {
            snprintf(why, sizeof why, "the connection ended after %llu of %llu bytes", (unsigned long long)r->got,
                     (unsigned long long)(end - r->first));
            rc = HD_E_IO;
        }
        if (rc != HD_E_IO || attempt >= f->settings.retries)
            break;
        if (f->host)
            f->host->log(HD_LOG_WARN, "data-tokens", "%s: bytes %llu to %llu: %s; trying again, %lld of %lld", f->name,
                         (unsigned long long)r->first, (unsigned long long)(r->first + r->want - 1), why,
                         (long long)attempt + 1, (long long)f->settings.retries);
        back_off(f, attempt);
    }
    if (!rc && r->seconds > f->settings.timeout && f->host)
        f->host->log(HD_LOG_WARN, "data-tokens", "%s: slow: bytes %llu to %llu took %.3g s", f->name,
                     (unsigned long long)r->first, (unsigned long long)(r->first + r->got - 1), r->seconds);
    if (rc)
        return hd_fail(err, rc, "%s: bytes %llu to %llu: %s", f->name, (unsigned long long)r->first,
                       (unsigned long long)(r->first + r->want - 1), why);
    if (f->bytes && (r->total != f->bytes || strcmp(r->version, f->version)))
        return hd_fail(err, HD_E_CORRUPT,
                       "%s: has changed on the server since it was opened (%llu bytes, %s; now %llu, %s)", f->name,
                       (unsigned long long)f->bytes, *f->version ? f->version : "without ETag",
                       (unsigned long long)r->total, *r->version ? r->version : "without ETag");
    return HD_OK;
}

/* ---- blocks */

static struct block *find_block(const struct http_file *f, uint64_t number)
{
    for (uint32_t i = 0; i < cache.n_slots; i++)
        if (cache.slots[i].state != BLOCK_EMPTY && cache.slots[i].file == f && cache.slots[i].number == number)
            return &cache.slots[i];
    return NULL;
}

/* A slot to fetch into: an empty one, or that which was not used for longest; NULL: all are being fetched. */
static struct block *free_block(void)
{
    struct block *best = NULL;
    for (uint32_t i = 0; i < cache.n_slots; i++) {
        struct block *b = &cache.slots[i];
        if (b->state == BLOCK_EMPTY)
            return b;
        if (b->state == BLOCK_READY && (!best || b->used < best->used))
            best = b;
    }
    return best;
}

/* Fetches a block into a slot; the lock is held on entry and on return, not while bytes travel. */
static int32_t fill_block(struct http_file *f, struct block *b, uint64_t number, struct hd_error *err)
{
    uint64_t size = (uint64_t)f->settings.block, first = number * size;
    struct request r = {
        .file = f, .first = first, .want = f->bytes && f->bytes - first < size ? f->bytes - first : size};
    int32_t rc = HD_OK;
    *b = (struct block){.file = f, .number = number, .used = ++cache.clock, .state = BLOCK_PENDING, .at = b->at};
    pthread_mutex_unlock(&cache.lock);
    if (!b->at && !(b->at = malloc(size)))
        rc = hd_fail(err, HD_E_NOMEM, "%s: no memory for %llu bytes", f->name, (unsigned long long)size);
    r.out = b->at;
    if (!rc)
        rc = fetch(&r, err);
    pthread_mutex_lock(&cache.lock);
    if (!rc && !f->bytes) {
        f->bytes = r.total;
        f->n_blocks = (r.total + size - 1) / size;
        memcpy(f->version, r.version, sizeof f->version);
    }
    b->state = rc ? BLOCK_EMPTY : BLOCK_READY;
    pthread_cond_broadcast(&cache.changed);
    return rc;
}

/* A block that is ready; the lock is held but for waiting and fetching. */
static int32_t take_block(struct http_file *f, uint64_t number, struct block **block, struct hd_error *err)
{
    for (;;) {
        struct block *b = find_block(f, number);
        if (b && b->state == BLOCK_READY) {
            b->used = ++cache.clock;
            *block = b;
            return HD_OK;
        }
        if (!b && (b = free_block())) {
            int32_t rc = fill_block(f, b, number, err);
            if (rc)
                return rc;
        } else {
            pthread_cond_wait(&cache.changed, &cache.lock);
        }
    }
}

static void want_ahead(struct http_file *f, uint64_t next)
{
    uint64_t end = next + (uint64_t)f->settings.read_ahead;
    cache.ahead = f;
    cache.wanted = next;
    cache.wanted_end = end < f->n_blocks ? end : f->n_blocks;
    pthread_cond_broadcast(&cache.changed);
}

int32_t http_read(struct http_file *f, uint64_t at, uint64_t bytes, void *out, struct hd_error *err)
{
    uint64_t size = (uint64_t)f->settings.block;
    int32_t rc = HD_OK;
    if (at > f->bytes || bytes > f->bytes - at)
        return hd_fail(err, HD_E_INVALID, "%s: bytes %llu to %llu of %llu were asked for", f->name,
                       (unsigned long long)at, (unsigned long long)(at + bytes), (unsigned long long)f->bytes);
    pthread_mutex_lock(&cache.lock);
    for (uint8_t *to = out; bytes && !rc;) {
        struct block *b;
        uint64_t skip = at % size, n = bytes < size - skip ? bytes : size - skip;
        if (f->in_order)
            want_ahead(f, at / size + 1);
        if (!(rc = take_block(f, at / size, &b, err)))
            memcpy(to, b->at + skip, n);
        to += n;
        at += n;
        bytes -= n;
    }
    pthread_mutex_unlock(&cache.lock);
    return rc;
}

/* Fetches ahead. An error is dropped here: the thread that asks for the block meets it again. */
static void *ahead_thread(void *unused)
{
    pthread_mutex_lock(&cache.lock);
    while (!cache.stop) {
        struct hd_error err = HD_ERROR_INIT;
        struct block *b = NULL;
        while (cache.wanted < cache.wanted_end && find_block(cache.ahead, cache.wanted))
            cache.wanted++;
        if (cache.wanted < cache.wanted_end && (b = free_block()))
            fill_block(cache.ahead, b, cache.wanted++, &err);
        else
            pthread_cond_wait(&cache.changed, &cache.lock);
    }
    pthread_mutex_unlock(&cache.lock);
    return unused;
}

/* ---- opening */

static void init_curl(void)
{
    void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(curl.missing, sizeof curl.missing, "%s", dlerror());
    library = library ? library : dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
    const char *why = NULL;
#define LOAD(name)                                                          \
    if (library && !(*(void **)&curl.name = dlsym(library, "curl_" #name))) \
        why = "it has no curl_" #name;
    CURL_FUNCTIONS(LOAD)
#undef LOAD
    if (library)
        snprintf(curl.missing, sizeof curl.missing, "%s", why ? why : "");
    if (library && !why)
        curl.global_init(CURL_GLOBAL_DEFAULT);
}

/* The lock is held. A missing thread costs waiting, nothing else. */
static int32_t open_cache(const struct http_settings *settings)
{
    int64_t slots = settings->cache / settings->block;
    cache.n_slots = (uint32_t)(slots < LEAST_BLOCKS ? LEAST_BLOCKS : slots);
    cache.stop = false;
    cache.wanted = cache.wanted_end = 0;
    if (!(cache.slots = calloc(cache.n_slots, sizeof *cache.slots)))
        return HD_E_NOMEM;
    for (int64_t i = 0; i < AHEAD_THREADS && i < settings->read_ahead; i++)
        if (!pthread_create(&cache.threads[cache.n_threads], NULL, ahead_thread, NULL))
            cache.n_threads++;
    return HD_OK;
}

/* The lock is not held, and no file is open. */
static void close_cache(void)
{
    for (uint32_t i = 0; i < cache.n_threads; i++)
        pthread_join(cache.threads[i], NULL);
    for (struct connection *c = cache.idle, *next; c; c = next) {
        next = c->next;
        curl.easy_cleanup(c->curl);
        free(c);
    }
    for (uint32_t i = 0; i < cache.n_slots; i++)
        free(cache.slots[i].at);
    free(cache.slots);
    cache.slots = NULL;
    cache.idle = NULL;
    cache.n_slots = cache.n_threads = 0;
}

int32_t http_open(const struct hd_host *host, const struct http_settings *settings, const char *url, bool in_order,
                  struct http_file **file, struct hd_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct http_file *f = calloc(1, sizeof *f);
    struct block *first;
    pthread_once(&once, init_curl);
    if (!f)
        return hd_fail(err, HD_E_NOMEM, "data-tokens: no memory");
    f->host = host;
    f->settings = *settings;
    f->in_order = in_order && settings->read_ahead;
    f->url = strdup(url);
    f->name = http_printable(url);
    pthread_mutex_lock(&cache.lock);
    int32_t rc = cache.files++ ? HD_OK : open_cache(settings);
    if (f->settings.read_ahead > cache.n_slots - 2)
        f->settings.read_ahead = cache.n_slots - 2;
    if (rc || !f->url || !f->name)
        rc = hd_fail(err, HD_E_NOMEM, "data-tokens: no memory");
    else if (*curl.missing)
        rc = hd_fail(
            err, HD_E_UNSUPPORTED,
            "%s: libcurl, which reads URLs, cannot be loaded (%s): install libcurl (7.85 or newer), or copy the "
            "file to this machine",
            f->name, curl.missing);
    else
        rc = take_block(f, 0, &first, err);
    pthread_mutex_unlock(&cache.lock);
    if (rc)
        http_close(f);
    else
        *file = f;
    return rc;
}

int32_t http_open_sibling(const struct http_file *f, const char *from, const char *to, struct http_file **sibling,
                          struct hd_error *err)
{
    size_t path = strcspn(f->url, "?#"), n = strlen(from);
    char *url;
    if (path < n || memcmp(f->url + path - n, from, n) != 0)
        return hd_fail(err, HD_E_INVALID, "%s: the name does not end in %s", f->name, from);
    if (asprintf(&url, "%.*s%s%s", (int)(path - n), f->url, to, f->url + path) < 0)
        return hd_fail(err, HD_E_NOMEM, "data-tokens: no memory");
    int32_t rc = http_open(f->host, &f->settings, url, false, sibling, err);
    free(url);
    return rc;
}

/* Blocks of the file under way are waited for: their requests give up before they are sent again. */
static void forget_blocks(struct http_file *f)
{
    f->closing = true;
    if (cache.ahead == f)
        cache.wanted = cache.wanted_end = 0;
    for (uint32_t i = 0; i < cache.n_slots; i++) {
        struct block *b = &cache.slots[i];
        pthread_cond_broadcast(&cache.changed);
        while (b->file == f && b->state == BLOCK_PENDING)
            pthread_cond_wait(&cache.changed, &cache.lock);
        if (b->file == f)
            b->state = BLOCK_EMPTY;
    }
}

void http_close(struct http_file *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&cache.lock);
    forget_blocks(f);
    bool last = !--cache.files;
    cache.stop = last;
    pthread_cond_broadcast(&cache.changed);
    pthread_mutex_unlock(&cache.lock);
    if (last)
        close_cache();
    free(f->name);
    free(f->url);
    free(f);
}
