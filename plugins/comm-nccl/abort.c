/* Aborts. Whoever calls `abort` may be in a hurry (the thread that hears of deaths), and ncclCommAbort waits for the
 * device: so the error is noted, and a thread ends the communicators and tells the others by the store. Each rank has a
 * thread that waits for such a note. */
#include <time.h>

#include "internal.h"

#define FOREVER 3600.0
#define BLOCKED_SECONDS 2

struct note {
    int32_t code, rank; /* 0: end of the listening */
    char text[NC_REASON];
};

/* 1 for the first, who then says `publish`. */
static int claim(struct hd_comm *c, int32_t code, int64_t peer, const char *text)
{
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&c->stopped, &none, 1))
        return 0;
    c->error = (struct hd_error)HD_ERROR_INIT;
    c->error.peer = peer;
    c->error.scope = HD_SCOPE_GROUP;
    hd_fail(&c->error, code, "nccl: %s", text);
    return 1;
}

static void publish(struct hd_comm *c)
{
    atomic_store(&c->stopped, 2);
}

/* Nobody is inside NCCL for long, unless its calls block: then it is this that brings them back. */
static int take_lock(struct hd_comm *c)
{
    struct timespec until;
    if (!c->settings.blocking)
        return !pthread_mutex_lock(&c->lock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += BLOCKED_SECONDS;
    return !pthread_mutex_clocklock(&c->lock, CLOCK_MONOTONIC, &until);
}

static void end_all(struct hd_comm *c)
{
    int locked;
    nc_enter(c);
    locked = take_lock(c);
    nc_queues_end(c, NULL, 0);
    if (locked)
        pthread_mutex_unlock(&c->lock);
}

static void tell(struct hd_comm *c, int32_t rank, const struct note *note)
{
    char key[128];
    struct hd_error none = HD_ERROR_INIT;
    snprintf(key, sizeof key, "%s%d", c->key, rank);
    c->host->store_put(c->world.store, key, note, sizeof *note, &none);
}

/* Between its claim and `publish`, a thread that aborts is about to say so. */
static void wait_until_published(const struct hd_comm *c)
{
    for (uint32_t idle = 0; c->stopped == 1; idle++)
        rq_relax(idle);
}

static void *end_and_tell(void *arg)
{
    struct hd_comm *c = arg;
    struct note note = {.code = c->error.code, .rank = c->world.rank};
    snprintf(note.text, sizeof note.text, "%s", c->error.message + strlen("nccl: "));
    for (int32_t r = 0; r < c->world.size; r++)
        if (r != c->world.rank)
            tell(c, r, &note);
    wait_until_published(c); /* communicators that end fire their events, which before would mean that all is done */
    end_all(c);
    return NULL;
}

void nc_abort(struct hd_comm *c, const char *reason)
{
    char text[NC_REASON];
    snprintf(text, sizeof text, "rank %d aborted: %s", c->world.rank, reason);
    if (!claim(c, HD_E_CANCELLED, c->world.rank, text))
        return;
    c->ending = !pthread_create(&c->ender, NULL, end_and_tell, c);
    publish(c);
}

static void *listen_for(void *arg)
{
    struct hd_comm *c = arg;
    struct hd_error err = HD_ERROR_INIT;
    struct note note = {0};
    char key[128];
    int32_t rc;
    snprintf(key, sizeof key, "%s%d", c->key, c->world.rank);
    do {
        size_t bytes = sizeof note;
        rc = c->host->store_get(c->world.store, key, &note, &bytes, nc_now() + FOREVER, &err);
    } while (rc == HD_E_TIMEOUT);
    note.text[sizeof note.text - 1] = '\0';
    if ((rc == HD_OK && note.code && claim(c, note.code, note.rank, note.text)) ||
        (rc == HD_E_PEER && claim(c, err.code, err.peer, err.message))) { /* the job ends, and why */
        publish(c);
        end_all(c);
    }
    return NULL;
}

int32_t nc_listen(struct hd_comm *c, struct hd_error *err)
{
    if (pthread_create(&c->listener, NULL, listen_for, c))
        return hd_fail(err, HD_E_NOMEM, "nccl: no thread can be started");
    c->listening = 1;
    return HD_OK;
}

void nc_stop_listening(struct hd_comm *c)
{
    struct note bye = {0};
    if (c->listening) {
        tell(c, c->world.rank, &bye);
        pthread_join(c->listener, NULL);
    }
    c->listening = 0;
    wait_until_published(c);
    if (c->ending)
        pthread_join(c->ender, NULL);
}

int32_t nc_poll_abort(struct hd_comm *c, struct hd_error *err)
{
    if (__builtin_expect(atomic_load_explicit(&c->stopped, memory_order_acquire) != 2, 1))
        return HD_OK;
    if (!c->taken) {
        c->taken = 1;
        for (struct nc_group *g = c->groups; g; g = g->next)
            nc_group_fail(g, &c->error);
        c->failure = c->error;
    }
    hd_error_copy(err, &c->error);
    return c->error.code;
}
