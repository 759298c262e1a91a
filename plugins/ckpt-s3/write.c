/* A checkpoint that is being written: a rank's bytes go into the open segment, and a full one to the server by the
 * thread that filled it. */
#include <stdlib.h>

#include "internal.h"

struct segment {
    char *data; /* NULL once it is on the server */
    uint64_t used, room;
};

struct hd_ckpt_tx {
    struct hd_ckpt *ckpt;
    char *name;
    struct s3_table own, all; /* all: of every rank that has flushed */
    struct segment *segments; /* by their number in `own` */
    pthread_mutex_t lock;     /* guards what follows and what is above */
    char attempt[S3_TOKEN], rank[S3_TOKEN];
    int32_t leader;
    int32_t open;   /* own.segments' last takes more */
    int32_t failed; /* an upload; it stays so */
    int32_t merged; /* leader: all.table is there */
    struct hd_error failure;
};

static void tx_free(struct hd_ckpt_tx *tx)
{
    for (uint32_t i = 0; tx->segments && i < tx->own.n_segments; i++)
        free(tx->segments[i].data);
    free(tx->segments);
    s3_table_free(&tx->own);
    s3_table_free(&tx->all);
    pthread_mutex_destroy(&tx->lock);
    free(tx->name);
    free(tx);
}

/* ---- begin */

/* Removes the remains of interrupted attempts, of whatever name. */
static int32_t clean_all(struct hd_ckpt *ckpt, const char *name, struct hd_error *err)
{
    char **keys = NULL;
    size_t n = 0;
    int32_t rc = s3_keys(ckpt, "pending/", &keys, &n, err);
    for (size_t i = 0; i < n && !rc; i++)
        if (!s3_check_name(keys[i] + 8, NULL) && strcmp(keys[i] + 8, name) != 0)
            rc = s3_clean(ckpt, keys[i] + 8, err);
    s3_keys_free(keys, n);
    return rc ? rc : s3_clean(ckpt, name, err);
}

static int32_t join(struct hd_ckpt_tx *tx, const char *pending, struct hd_error *err)
{
    struct s3_answer a;
    int32_t rc = s3_get(tx->ckpt, pending, &a, err);
    if (rc == HD_E_NOTFOUND)
        return hd_fail(err, HD_E_IO, "%s/%s is not there: do all ranks have the same checkpoint.dir and endpoint?",
                       tx->ckpt->location, pending);
    if (!rc && (!a.bytes || a.bytes >= sizeof tx->attempt || s3_check_name(a.text, NULL)))
        rc = hd_fail(err, HD_E_CORRUPT, "%s/%s is not what rank 0 wrote", tx->ckpt->location, pending);
    if (!rc)
        snprintf(tx->attempt, sizeof tx->attempt, "%s", a.text);
    free(a.text);
    return rc;
}

int32_t s3_begin(struct hd_ckpt *ckpt, const char *name, int32_t leader, struct hd_ckpt_tx **out, struct hd_error *err)
{
    int32_t rc = s3_check_name(name, err);
    struct hd_ckpt_tx *tx = rc ? NULL : calloc(1, sizeof *tx);
    if (!tx)
        return rc ? rc : s3_no_memory(err);
    char *pending = s3_format("pending/%s", name);
    tx->ckpt = ckpt;
    tx->leader = leader;
    tx->name = strdup(name);
    pthread_mutex_init(&tx->lock, NULL);
    rc = tx->name && pending ? s3_token(tx->rank, err) : s3_no_memory(err);
    if (!rc && leader) {
        rc = s3_token(tx->attempt, err);
        rc = rc ? rc : clean_all(ckpt, name, err);
        rc = rc ? rc : s3_put(ckpt, pending, tx->attempt, strlen(tx->attempt), err);
    } else if (!rc) {
        rc = join(tx, pending, err);
    }
    free(pending);
    if (rc)
        tx_free(tx);
    else
        *out = tx;
    return rc;
}

/* ---- writing */

/* The open segment, a new one where there is none. With the lock held. */
static int32_t open_segment(struct hd_ckpt_tx *tx, struct hd_error *err)
{
    uint32_t n = tx->own.n_segments;
    if (tx->open)
        return HD_OK;
    char *name = s3_format("%s/%s-%u", tx->attempt, tx->rank, n);
    struct segment *more = realloc(tx->segments, (n + (size_t)1) * sizeof *more);
    if (more) {
        tx->segments = more;
        more[n] = (struct segment){0};
    }
    int32_t rc = name && more && s3_table_add_name(&tx->own.segments, &tx->own.n_segments, name) == n
                     ? HD_OK
                     : s3_no_memory(err);
    free(name);
    tx->open = !rc;
    return rc;
}

/* Copies as much as the open segment takes. With the lock held. */
static int32_t fill(struct hd_ckpt_tx *tx, uint32_t file, uint64_t offset, const char *data, uint64_t *bytes,
                    struct hd_error *err)
{
    int32_t rc = open_segment(tx, err);
    if (rc)
        return rc;
    struct segment *s = &tx->segments[tx->own.n_segments - 1];
    uint64_t most = (uint64_t)tx->ckpt->settings->segment, n = *bytes < most - s->used ? *bytes : most - s->used;
    if (s->used + n > s->room) {
        uint64_t room = 2 * (s->used + n) < most ? 2 * (s->used + n) : most;
        char *more = realloc(s->data, room);
        if (!more)
            return s3_no_memory(err);
        s->data = more;
        s->room = room;
    }
    memcpy(s->data + s->used, data, n);
    const struct s3_extent e = {offset, n, s->used, file, tx->own.n_segments - 1};
    rc = s3_table_add(&tx->own, &e, err);
    s->used += rc ? 0 : n;
    *bytes = n;
    return rc;
}

/* Closes the open segment and sends it, meanwhile without the lock, which is held before and after. */
static int32_t upload(struct hd_ckpt_tx *tx, struct hd_error *err)
{
    uint32_t number = tx->own.n_segments - 1;
    const char *data = tx->segments[number].data;
    uint64_t used = tx->segments[number].used;
    char *key = s3_format("segments/%s/%s", tx->name, tx->own.segments[number]);
    tx->open = 0;
    pthread_mutex_unlock(&tx->lock);
    int32_t rc = key ? s3_put(tx->ckpt, key, data, used, err) : s3_no_memory(err);
    free(key);
    pthread_mutex_lock(&tx->lock);
    if (rc && !tx->failed) {
        tx->failed = rc;
        hd_error_copy(&tx->failure, err);
    } else if (!rc) {
        free(tx->segments[number].data);
        tx->segments[number].data = NULL;
    }
    return rc;
}

static int32_t earlier_failure(const struct hd_ckpt_tx *tx, struct hd_error *err)
{
    if (tx->failed)
        hd_error_copy(err, &tx->failure);
    return tx->failed;
}

int32_t s3_write(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, const void *data, uint64_t bytes,
                 struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    const char *p = data;
    int32_t rc = s3_check_name(file, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&tx->lock);
    uint32_t number = s3_table_file(&tx->own, file);
    rc = number == UINT32_MAX ? s3_no_memory(&why) : earlier_failure(tx, &why);
    while (bytes && !rc) {
        uint64_t n = bytes;
        rc = fill(tx, number, offset, p, &n, &why);
        if (!rc && tx->segments[tx->own.n_segments - 1].used == (uint64_t)tx->ckpt->settings->segment)
            rc = upload(tx, &why);
        p += n;
        offset += n;
        bytes -= n;
    }
    pthread_mutex_unlock(&tx->lock);
    if (rc)
        hd_error_copy(err, &why);
    return rc;
}

int32_t s3_flush(struct hd_ckpt_tx *tx, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    char *text = NULL, *key = s3_format("segments/%s/%s/%s.table", tx->name, tx->attempt, tx->rank);
    size_t bytes = 0;
    pthread_mutex_lock(&tx->lock);
    int32_t rc = key ? earlier_failure(tx, &why) : s3_no_memory(&why);
    if (!rc && tx->open)
        rc = upload(tx, &why);
    s3_table_order(&tx->own); /* for read_back */
    if (!rc)
        rc = s3_table_print(&tx->own, tx->attempt, &text, &bytes, &why);
    pthread_mutex_unlock(&tx->lock);
    rc = rc ? rc : s3_put(tx->ckpt, key, text, bytes, &why);
    free(text);
    free(key);
    if (rc)
        hd_error_copy(err, &why);
    return rc;
}

/* ---- reading back */

static int ends_with(const char *name, const char *end)
{
    return strlen(name) > strlen(end) && !strcmp(name + strlen(name) - strlen(end), end);
}

/* Every segment that a table speaks of is there. */
static int32_t check_segments(const struct hd_ckpt_tx *tx, const struct s3_table *all, char **keys, size_t n,
                              struct hd_error *err)
{
    for (uint32_t i = 0; i < all->n_segments; i++) {
        char *key = s3_format("segments/%s/%s", tx->name, all->segments[i]);
        int found = key && s3_keys_have(keys, n, key);
        free(key);
        if (!found)
            return hd_fail(err, HD_E_IO,
                           "%s/segments/%s/%s is gone before the commit: does another job save there? Give each a "
                           "checkpoint.dir of its own",
                           tx->ckpt->location, tx->name, all->segments[i]);
    }
    return HD_OK;
}

static int32_t add_table(struct hd_ckpt_tx *tx, const char *key, struct s3_table *all, struct hd_error *err)
{
    struct s3_answer a;
    char attempt[S3_TOKEN];
    int32_t rc = s3_get(tx->ckpt, key, &a, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&tx->lock); /* guards *all */
    rc = s3_table_parse(all, key, a.text, a.bytes, attempt, err);
    pthread_mutex_unlock(&tx->lock);
    free(a.text);
    return rc;
}

/* Tables that are read into one. */
struct tables {
    struct hd_ckpt_tx *tx;
    struct s3_table *all;
    char **keys;
};

static int32_t add_one(void *user, size_t i, struct hd_error *err)
{
    const struct tables *t = user;
    const char *key = t->keys[i];
    int is_of_rank = ends_with(key, ".table") && !ends_with(key, "/all.table");
    return is_of_rank ? add_table(t->tx, key, t->all, err) : HD_OK;
}

/* The tables of all ranks that have flushed, in one. */
static int32_t read_tables(struct hd_ckpt_tx *tx, struct s3_table *all, struct hd_error *err)
{
    char **keys = NULL, *under = s3_format("segments/%s/%s/", tx->name, tx->attempt);
    size_t n = 0;
    int32_t rc = under ? s3_keys(tx->ckpt, under, &keys, &n, err) : s3_no_memory(err);
    rc = rc ? rc : s3_each(n, add_one, &(struct tables){tx, all, keys}, err);
    if (!rc)
        rc = check_segments(tx, all, keys, n, err);
    s3_keys_free(keys, n);
    free(under);
    return rc;
}

/* The leader merges the tables and puts the result there for the others, which get it alone: else each rank would get
 * the table of each. Another rank that does not find a byte there (`again`) looks at all tables itself. */
static int32_t load_others(struct hd_ckpt_tx *tx, int again, struct hd_error *err)
{
    struct s3_table all = {0};
    char *text = NULL, *key = s3_format("segments/%s/%s/all.table", tx->name, tx->attempt);
    size_t bytes = 0;
    int32_t rc = !key ? s3_no_memory(err) : tx->leader || again ? HD_E_NOTFOUND : add_table(tx, key, &all, err);
    if (rc == HD_E_NOTFOUND)
        rc = read_tables(tx, &all, err);
    if (!rc && tx->leader && all.n) {
        rc = s3_table_print(&all, tx->attempt, &text, &bytes, err);
        rc = rc ? rc : s3_put(tx->ckpt, key, text, bytes, err);
    }
    free(text);
    free(key);
    if (rc) {
        s3_table_free(&all);
        return rc;
    }
    s3_table_order(&all);
    pthread_mutex_lock(&tx->lock);
    struct s3_table old = tx->all;
    tx->all = all;
    tx->merged = tx->leader && all.n;
    pthread_mutex_unlock(&tx->lock);
    s3_table_free(&old);
    return HD_OK;
}

/* Finds the bytes at `offset`. 1: they were copied from memory; 0: they are on the server, under *key;
 * -1: nobody has flushed them. *bytes: how many it has of them. */
static int locate(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, char *data, uint64_t *bytes,
                  uint64_t *position, char **key)
{
    int where = -1;
    pthread_mutex_lock(&tx->lock);
    const struct s3_table *t = &tx->own;
    const struct s3_extent *e = s3_table_find(t, file, offset);
    const char *memory = e ? tx->segments[e->segment].data : NULL;
    if (!e)
        e = s3_table_find(t = &tx->all, file, offset);
    if (e) {
        uint64_t skip = offset - e->offset;
        *bytes = *bytes < e->bytes - skip ? *bytes : e->bytes - skip;
        *position = e->position + skip;
        where = memory != NULL;
        if (memory)
            memcpy(data, memory + *position, *bytes);
        else
            *key = s3_format("segments/%s/%s", tx->name, t->segments[e->segment]);
    }
    pthread_mutex_unlock(&tx->lock);
    return where;
}

int32_t s3_read_back(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, void *data, uint64_t bytes,
                     struct hd_error *err)
{
    char *p = data;
    int loads = 0;
    pthread_mutex_lock(&tx->lock);
    int first = tx->leader && !tx->merged;
    pthread_mutex_unlock(&tx->lock);
    int32_t rc = first ? load_others(tx, 0, err) : HD_OK; /* also where it needs no other's bytes */
    while (bytes && !rc) {
        uint64_t n = bytes, position = 0;
        char *key = NULL;
        int where = locate(tx, file, offset, p, &n, &position, &key);
        if (where < 0 && loads == 2)
            return hd_fail(err, HD_E_CORRUPT, "checkpoint %s: %s: no rank has flushed byte %llu", tx->name, file,
                           (unsigned long long)offset);
        if (where < 0) {
            rc = load_others(tx, loads++, err);
            continue;
        }
        if (!where)
            rc = key ? s3_get_range(tx->ckpt, key, position, p, n, err) : s3_no_memory(err);
        free(key);
        p += n;
        offset += n;
        bytes -= n;
    }
    return rc;
}

/* ---- the end */

static int32_t publish(struct hd_ckpt_tx *tx, struct hd_error *err)
{
    struct s3_table all = {0};
    struct hd_error unused = HD_ERROR_INIT;
    char *text = NULL, *key = s3_format("commits/%s", tx->name);
    size_t bytes = 0;
    int32_t rc = key ? read_tables(tx, &all, err) : s3_no_memory(err);
    rc = rc ? rc : s3_table_sort(&all, tx->name, err);
    rc = rc ? rc : s3_table_print(&all, tx->attempt, &text, &bytes, err);
    rc = rc ? rc : s3_put(tx->ckpt, key, text, bytes, err);
    if (!rc && s3_clean(tx->ckpt, tx->name, &unused)) /* it is there all the same */
        tx->ckpt->host->log(HD_LOG_WARN, "ckpt-s3", "%s is saved; what it replaced is removed by the next save: %s",
                            tx->name, unused.message);
    free(text);
    free(key);
    s3_table_free(&all);
    return rc;
}

int32_t s3_commit(struct hd_ckpt_tx *tx, struct hd_error *err)
{
    int32_t rc = tx->leader ? publish(tx, err) : HD_OK;
    tx_free(tx);
    return rc;
}

void s3_cancel(struct hd_ckpt_tx *tx)
{
    struct hd_error why = HD_ERROR_INIT;
    if (tx->leader && s3_clean(tx->ckpt, tx->name, &why))
        tx->ckpt->host->log(HD_LOG_WARN, "ckpt-s3", "what was written of %s is removed by the next save: %s", tx->name,
                            why.message);
    tx_free(tx);
}
