#include "service/train/save/peer_copies.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/cpu/parallel_for.h"
#include "runtime/rendezvous/liveness.h"
#include "service/checkpoint/memory_copy.h"
#include "service/train/save/store_gather.h"

#define ADDRESS_KEY "copies/%d" /* rank: "PORT HOST" of its server */
enum { MOST_RANKS = 1 << 20, CHUNK = 60000, CHUNKS_AT_ONCE = 16, SENDERS = 4 };

struct hd__peer_copies {
    struct hd__train_session *s;
    const int *files; /* HD__COPIES of each rank of this machine */
    int32_t me, size, each;
    int32_t peer; /* the rank that holds a second copy; -1: all ranks are on this machine */
    struct hd__server *server;
    struct hd__server_memory memory;
    struct hd__store_gather gather;
    struct hd_store **connections; /* to other ranks' servers; NULL: none yet */
    struct hd__copy_file file[2];  /* of this rank's own copies */
    int32_t own, held;             /* of the two files, the next copy's: here, and on the peer */
    /* the copy under way */
    struct hd__copy_header header;
    pthread_t thread;
    int running, made; /* the thread is to be joined; the last copy is ended or under way */
    _Atomic int done;
    _Atomic int ended; /* it is to end */
    int32_t rc;
    double began;
    struct hd_error error;
    struct hd__peer_copied last; /* step -1: it was told */
};

/* ---- the memory of this rank, for others: "FILE OFFSET" to put, "FILE OFFSET BYTES" to get */

static int own_file(const struct hd__peer_copies *c, int32_t rank, int32_t file)
{
    return c->files[rank % c->each * HD__COPIES + file];
}

static int parse_key(const char *key, int *file, uint64_t *offset, uint64_t *bytes)
{
    *bytes = 0;
    return sscanf(key, "%d %" SCNu64 " %" SCNu64, file, offset, bytes) >= 2 && *file >= 0 && *file < HD__COPIES &&
           *offset < UINT64_C(1) << 60;
}

static int32_t put_bytes(void *user, const char *key, const void *value, size_t bytes)
{
    const struct hd__peer_copies *c = user;
    uint64_t offset, unused;
    int file;
    if (!parse_key(key, &file, &offset, &unused) || file < HD__COPIES_HELD)
        return HD_E_INVALID;
    return pwrite(own_file(c, c->me, file), value, bytes, (off_t)offset) == (ssize_t)bytes ? HD_OK : HD_E_NOMEM;
}

static int32_t get_bytes(void *user, const char *key, void *value, size_t *bytes)
{
    const struct hd__peer_copies *c = user;
    uint64_t offset, wanted;
    int file;
    if (!parse_key(key, &file, &offset, &wanted) || wanted > *bytes)
        return HD_E_INVALID;
    *bytes = wanted;
    return pread(own_file(c, c->me, file), value, wanted, (off_t)offset) == (ssize_t)wanted ? HD_OK : HD_E_NOTFOUND;
}

static int32_t connect_to(struct hd__peer_copies *c, int32_t rank, struct hd_error *err)
{
    struct hd__store_options options = c->s->env->store;
    double deadline = hd__now() + c->s->compiled->job->comm_dead_after;
    char key[32], address[80] = "";
    size_t bytes = sizeof address - 1;
    int at = 0, port = 0;
    if (c->connections[rank])
        return HD_OK;
    snprintf(key, sizeof key, ADDRESS_KEY, rank);
    int32_t rc = hd__store_get(c->s->store, key, address, &bytes, deadline, err);
    if (rc || sscanf(address, "%d %n", &port, &at) < 1)
        return rc ? rc : hd_fail(err, HD_E_CORRUPT, "rank %d has put no address at %s", rank, key);
    options.host = address + at;
    options.port = (uint16_t)port;
    options.rank = c->me;
    options.size = c->size;
    options.dead_after = c->s->compiled->job->comm_dead_after;
    options.members = 1;
    return hd__store_connect(&options, deadline, &c->connections[rank], err);
}

static void disconnect(struct hd__peer_copies *c, int32_t rank)
{
    hd__store_close(c->connections[rank]);
    c->connections[rank] = NULL;
}

/* ---- opening */

static int32_t serve(struct hd__peer_copies *c, struct hd_error *err)
{
    const struct hd__launch_env *env = c->s->env;
    char host[64], key[32], address[80];
    struct hd__server_options options = {.address = host,
                                         .size = c->size,
                                         .rank = c->me,
                                         .dead_after = c->s->compiled->job->comm_dead_after,
                                         .tls = env->store.tls,
                                         .members = 1,
                                         .memory = &c->memory};
    int32_t rc = hd__store_local_address(c->s->store, host, sizeof host, err);
    memcpy(options.secret, env->store.secret, sizeof options.secret);
    if (!rc)
        rc = hd__server_open(&options, &c->server, err);
    if (rc)
        return rc;
    snprintf(key, sizeof key, ADDRESS_KEY, c->me);
    snprintf(address, sizeof address, "%u %s", hd__server_port(c->server), host);
    return hd__store_put(c->s->store, key, address, strlen(address), err);
}

int32_t hd__peer_copies_open(struct hd__train_session *s, struct hd__peer_copies **copies, struct hd_error *err)
{
    const struct hd__launch_env *env = s->env;
    struct hd__peer_copies *c = *copies = hd__alloc(sizeof *c);
    c->s = s;
    c->files = env->copies;
    c->me = env->rank;
    c->size = env->size;
    c->each = env->local_size;
    c->peer = c->size > c->each ? (c->me + c->each) % c->size : -1;
    for (int i = 0; i < 2; i++)
        c->file[i].fd = own_file(c, c->me, HD__COPIES_OWN + i);
    c->memory = (struct hd__server_memory){put_bytes, get_bytes, c};
    c->gather = (struct hd__store_gather){.session = s, .name = "copies", .n = c->size};
    c->connections = hd__alloc((size_t)c->size * sizeof(struct hd_store *));
    c->last.step = -1;
    return c->peer < 0 ? HD_OK : serve(c, err);
}

static void join(struct hd__peer_copies *c)
{
    if (c->running)
        pthread_join(c->thread, NULL);
    c->running = 0;
}

void hd__peer_copies_close(struct hd__peer_copies *c)
{
    if (!c)
        return;
    atomic_store(&c->ended, 1);
    if (c->running && !atomic_load(&c->done) && c->peer >= 0 && c->connections[c->peer])
        hd__store_reset(c->connections[c->peer]); /* a peer that is gone answers nothing */
    join(c);
    for (int32_t r = 0; r < c->size; r++)
        disconnect(c, r);
    hd__server_close(c->server);
    for (int i = 0; i < 2; i++)
        hd__copy_unmap(&c->file[i]);
    free(c->connections);
    free(c);
}

/* ---- a copy */

struct sending {
    const struct hd__peer_copies *c;
    struct hd_store *to;
    const char *from;
    uint64_t bytes;
    int32_t file;
};

static int32_t put_range(const struct sending *s, uint64_t begin, uint64_t end, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint64_t at = begin; at < end && !rc; at += CHUNK) {
        char key[64];
        if (atomic_load(&s->c->ended))
            return hd_fail(err, HD_E_CANCELLED, "the job has ended");
        snprintf(key, sizeof key, "%d %" PRIu64, s->file, at);
        rc = hd__store_put(s->to, key, s->from + at, HD__MIN(CHUNK, end - at), err);
    }
    return rc;
}

static int32_t send_part(void *user, uint64_t i, char *block, struct hd_error *err)
{
    const struct sending *s = user;
    const uint64_t part = (uint64_t)CHUNK * CHUNKS_AT_ONCE;
    uint64_t begin = HD__COPY_HEADER + i * part;
    (void)block;
    return put_range(s, begin, HD__MIN(begin + part, s->bytes), err);
}

/* First the peer's file becomes none, and last it gets the header. */
static int32_t send_copy(struct hd__peer_copies *c, struct hd_error *err)
{
    static const char none[HD__COPY_HEADER];
    struct sending s = {.c = c, .file = HD__COPIES_HELD + c->held, .bytes = hd__copy_bytes(&c->header), .from = none};
    uint64_t parts = (s.bytes - HD__COPY_HEADER + CHUNK * CHUNKS_AT_ONCE - 1) / (CHUNK * CHUNKS_AT_ONCE);
    int32_t rc = connect_to(c, c->peer, err);
    if (rc)
        return rc;
    s.to = c->connections[c->peer];
    rc = put_range(&s, 0, HD__COPY_HEADER, err);
    s.from = c->file[c->own].at;
    if (!rc)
        rc = hd__parallel_for(SENDERS, parts, 1, send_part, &s, err);
    if (!rc)
        rc = put_range(&s, 0, HD__COPY_HEADER, err);
    return rc;
}

static void *copy_thread(void *user)
{
    struct hd__peer_copies *c = user;
    hd__copy_seal(&c->file[c->own], &c->header);
    c->rc = c->peer >= 0 ? send_copy(c, &c->error) : HD_OK;
    c->last.seconds = hd__now() - c->began;
    atomic_store(&c->done, 1);
    return NULL;
}

static void say_failed(const struct hd__peer_copies *c)
{
    if (hd__store_liveness_check(hd__store_liveness(c->s->store), NULL, NULL) == HD_OK)
        hd__log(HD_LOG_WARN, NULL,
                "checkpoint.peers: the copy of step %" PRId64
                " is not in the memory of rank %d: %s; the one before stays",
                c->header.step, c->peer, c->error.message);
}

int32_t hd__peer_copies_ready(struct hd__peer_copies *c, int *ready, struct hd_error *err)
{
    enum { MADE, FAILED, BUSY };
    int32_t mine = MADE, all = MADE;
    if (c->made)
        mine = !atomic_load(&c->done) ? BUSY : c->rc ? FAILED : MADE;
    int32_t rc = hd__exec_all_reduce_max(c->s->exec, mine, &all, err);
    *ready = all != BUSY;
    if (rc || all == BUSY)
        return rc;
    if (mine == FAILED) {
        join(c);
        say_failed(c);
        if (c->peer >= 0)
            disconnect(c, c->peer);
    }
    if (c->made && all == MADE) { /* a whole set: the next one replaces the other */
        c->own ^= 1;
        c->held ^= 1;
    }
    c->made = 0;
    return HD_OK;
}

int32_t hd__peer_copies_save(struct hd__peer_copies *c, const struct hd__ckpt_save *save, struct hd_error *err)
{
    sigset_t all, old;
    join(c);
    c->began = hd__now();
    c->header = (struct hd__copy_header){.round = c->s->env->n_restarts,
                                         .round_id = hd__hash(c->s->env->store.secret, HD__SECRET_BYTES, 0),
                                         .rank = c->me,
                                         .ranks = c->size};
    int32_t rc = hd__copy_write(&c->file[c->own], save, &c->header, err);
    if (rc)
        return rc;
    c->error = (struct hd_error)HD_ERROR_INIT;
    c->last = (struct hd__peer_copied){
        .step = (int64_t)save->step, .bytes = (int64_t)hd__copy_bytes(&c->header), .exposed = hd__now() - c->began};
    c->made = 1;
    atomic_store(&c->done, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    c->running = !pthread_create(&c->thread, NULL, copy_thread, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!c->running)
        copy_thread(c);
    return HD_OK;
}

int hd__peer_copies_finished(struct hd__peer_copies *c, struct hd__peer_copied *copied)
{
    if (!c || c->last.step < 0 || !atomic_load(&c->done))
        return 0;
    *copied = c->last;
    c->last.step = -1;
    return !c->rc;
}

/* ---- the newest whole set */

/* The files of a rank, as it tells the others. */
struct offer {
    struct hd__copy_header of[HD__COPIES];
    int32_t sealed[HD__COPIES];
    int64_t step; /* of the newest checkpoint elsewhere */
};

/* A copy of a set: the rank that has it, and in which file. */
struct place {
    int32_t rank, file;
};

struct choice {
    struct hd__peer_copies *c;
    const struct offer *offers; /* by rank */
    const char *run;
    struct hd__copy_header set; /* of one of its copies */
    struct place *at;           /* by the rank whose it is */
    struct hd__copy_header *of;
    struct hd__copy_run **runs;
};

static int is_usable(const struct choice *s, const struct offer *offer, int32_t file)
{
    const struct hd__copy_header *h = &offer->of[file];
    return offer->sealed[file] && h->ranks > 0 && h->ranks <= MOST_RANKS && h->rank >= 0 && h->rank < h->ranks &&
           !strncmp(h->run, s->run, sizeof h->run);
}

static int is_of(const struct choice *s, const struct offer *offer, int32_t file)
{
    const struct hd__copy_header *h = &offer->of[file], *set = &s->set;
    return is_usable(s, offer, file) && h->round_id == set->round_id && h->step == set->step && h->ranks == set->ranks;
}

/* A newer round counts more than a newer step. */
static int compare_sets(const struct hd__copy_header *a, const struct hd__copy_header *b)
{
    if (a->round != b->round)
        return a->round < b->round ? -1 : 1;
    if (a->step != b->step)
        return a->step < b->step ? -1 : 1;
    return (a->round_id > b->round_id) - (a->round_id < b->round_id);
}

/* The next older set. 0: there is none. */
static int take_older(struct choice *s)
{
    const struct hd__copy_header *next = NULL;
    for (int32_t r = 0; r < s->c->size; r++)
        for (int32_t f = 0; f < HD__COPIES; f++) {
            const struct hd__copy_header *h = &s->offers[r].of[f];
            if (is_usable(s, &s->offers[r], f) && compare_sets(h, &s->set) < 0 && (!next || compare_sets(h, next) > 0))
                next = h;
        }
    if (next)
        s->set = *next;
    return next != NULL;
}

/* Finds its copies, on this machine where possible. Returns 1 where there are all. */
static int find_places(struct choice *s)
{
    const struct hd__peer_copies *c = s->c;
    int32_t found = 0;
    int32_t n = s->set.ranks;
    s->at = hd__realloc(s->at, (size_t)n * sizeof *s->at);
    s->of = hd__realloc(s->of, (size_t)n * sizeof *s->of);
    for (int32_t r = 0; r < n; r++)
        s->at[r].rank = -1;
    for (int32_t i = 0; i < c->size; i++) {
        int32_t r = (c->me / c->each * c->each + i) % c->size;
        for (int32_t f = 0; f < HD__COPIES; f++) {
            int32_t whose = s->offers[r].of[f].rank;
            if (!is_of(s, &s->offers[r], f) || s->at[whose].rank >= 0)
                continue;
            s->at[whose] = (struct place){r, f};
            s->of[whose] = s->offers[r].of[f];
            found++;
        }
    }
    return found == n;
}

static int32_t read_copy(void *user, int32_t source, uint64_t offset, void *data, uint64_t bytes, struct hd_error *err)
{
    const struct choice *s = user;
    struct hd__peer_copies *c = s->c;
    struct place at = s->at[source];
    int32_t rc = HD_OK;
    if (at.rank / c->each == c->me / c->each) {
        for (uint64_t n = 0; n < bytes;) {
            ssize_t got = pread(own_file(c, at.rank, at.file), (char *)data + n, bytes - n, (off_t)(offset + n));
            if (got <= 0)
                return hd_fail(err, HD_E_IO, "the copy of rank %d: %s", source, got ? strerror(errno) : "it ends");
            n += (uint64_t)got;
        }
        return HD_OK;
    }
    rc = connect_to(c, at.rank, err);
    for (uint64_t n = 0; n < bytes && !rc; n += CHUNK) {
        size_t room = HD__MIN(CHUNK, bytes - n);
        char key[96];
        snprintf(key, sizeof key, "%d %" PRIu64 " %zu", at.file, offset + n, room);
        rc = hd__store_get(c->connections[at.rank], key, (char *)data + n, &room,
                           hd__now() + c->s->compiled->job->comm_timeout, err);
    }
    return rc;
}

static int32_t read_state(struct choice *s, json_t **state, struct hd_error *err)
{
    char *text = hd__alloc(s->of[0].state_bytes + 1);
    int32_t rc = read_copy(s, 0, HD__COPY_HEADER + s->of[0].n_runs * sizeof(struct hd__copy_run), text,
                           s->of[0].state_bytes, err);
    *state = rc ? NULL : json_loadb(text, s->of[0].state_bytes, 0, NULL);
    free(text);
    return rc || *state ? rc : hd_fail(err, HD_E_CORRUPT, "the copy of rank 0 has no state");
}

/* Fills the runs from the copies of these ranks of the set. */
static int32_t read_runs(struct choice *s, int32_t first, int32_t n, const struct hd__peer_wanted *wanted,
                         int rank_state, struct hd_error *err)
{
    const struct hd__copy_set set = {.of = s->of, .runs = s->runs, .n = s->set.ranks, .read = read_copy, .user = s};
    int32_t rc = HD_OK;
    for (int32_t r = first; r < first + n && !rc; r++) {
        uint64_t bytes = s->of[r].n_runs * sizeof(struct hd__copy_run);
        s->runs[r] = s->runs[r] ? s->runs[r] : hd__alloc(bytes + 1);
        rc = read_copy(s, r, HD__COPY_HEADER, s->runs[r], bytes, err);
    }
    return rc ? rc
              : hd__copy_load(&set, wanted->tensors, wanted->n_tensors, wanted->runs,
                              rank_state ? wanted->n_runs : wanted->n_own_runs, err);
}

/* A rank that is what it was finds all that it had sharded in its own copy, and asks nobody. */
static int32_t read_set(struct choice *s, const struct hd__peer_wanted *wanted, int rank_state, json_t **state,
                        struct hd_error *err)
{
    int32_t rc = read_state(s, state, err);
    s->runs = hd__alloc((size_t)s->set.ranks * sizeof *s->runs);
    if (!rc && s->set.ranks == s->c->size && !read_runs(s, s->c->me, 1, wanted, rank_state, err))
        return HD_OK;
    return rc ? rc : read_runs(s, 0, s->set.ranks, wanted, rank_state, err);
}

/* The files that have the set are the last to be replaced. */
static void keep_set(const struct choice *s)
{
    struct hd__peer_copies *c = s->c;
    c->own = is_of(s, &s->offers[c->me], HD__COPIES_OWN);
    c->held = c->peer >= 0 && is_of(s, &s->offers[c->peer], HD__COPIES_HELD);
}

static int32_t gather_offers(struct hd__peer_copies *c, int64_t step, const int *damaged, struct offer *all,
                             struct hd_error *err)
{
    struct hd__ckpt_peers peers = hd__store_gather_peers(&c->gather);
    struct offer mine = {.step = step};
    for (int32_t f = 0; f < HD__COPIES; f++)
        mine.sealed[f] = !damaged[f] && hd__copy_read_header(own_file(c, c->me, f), &mine.of[f]);
    if (c->size > 1)
        return peers.all_gather(peers.user, &mine, sizeof mine, all, err);
    *all = mine;
    return HD_OK;
}

/* Reads what this rank has of the set. Returns 1 where some is damaged. */
static int find_damaged(const struct choice *s, int *damaged)
{
    const struct hd__peer_copies *c = s->c;
    int any = 0;
    for (int32_t f = 0; f < HD__COPIES; f++) {
        const struct hd__copy_header *h = &s->offers[c->me].of[f];
        if (!is_of(s, &s->offers[c->me], f) || hd__copy_is_whole(own_file(c, c->me, f), h))
            continue;
        hd__log(HD_LOG_WARN, NULL,
                "checkpoint.peers: the copy of rank %d's state of step %" PRId64
                " in memory is damaged (another checksum), and is not used",
                h->rank, h->step);
        any = damaged[f] = 1;
    }
    return any;
}

/* The newest whole set that is newer than what is elsewhere; set.step -1: there is none. */
static int32_t choose_set(struct choice *s, int64_t step, struct offer *offers, struct hd_error *err)
{
    int damaged[HD__COPIES] = {0};
    int32_t any = 1, rc = HD_OK;
    while (!rc && any) {
        int found = 0;
        any = 0;
        rc = gather_offers(s->c, step, damaged, offers, err);
        s->set = (struct hd__copy_header){.round = INT64_MAX};
        while (!rc && !found && take_older(s))
            found = find_places(s);
        if (!found || s->set.step <= offers[0].step)
            s->set.step = -1;
        else
            rc = hd__exec_all_reduce_max(s->c->s->exec, find_damaged(s, damaged), &any, err);
    }
    return rc;
}

/* Could all ranks read it? */
static int32_t agree_on_read(struct hd__peer_copies *c, int32_t rc, int *all_could, struct hd_error *err)
{
    int32_t failed = rc != HD_OK, any = 0, result = hd__exec_all_reduce_max(c->s->exec, failed, &any, err);
    *all_could = !any;
    return result;
}

int32_t hd__peer_copies_load(struct hd__peer_copies *c, const struct hd__peer_wanted *wanted, int64_t *found,
                             json_t **state, int *rank_state, struct hd_error *err)
{
    struct offer *offers = hd__alloc((size_t)c->size * sizeof *offers);
    struct choice s = {.c = c, .offers = offers, .run = wanted->run};
    struct hd_error why = HD_ERROR_INIT;
    uint64_t most, every;
    int loaded = 0;
    int32_t rc = choose_set(&s, wanted->step, offers, err), read, whole = !rc && s.set.step >= 0;
    hd__copy_hash_tensors(wanted->tensors, wanted->n_tensors, &most, &every);
    *found = -1;
    *state = NULL;
    if (whole && s.of[0].tensors != most && !c->me)
        hd__log(HD_LOG_WARN, NULL,
                "checkpoint.peers: the copies of step %" PRId64
                " are of another number of local-SGD replicas: a checkpoint on disk is taken",
                s.set.step);
    if (whole && s.of[0].tensors == most) {
        *rank_state = s.of[0].all_tensors == every;
        read = read_set(&s, wanted, *rank_state, state, &why);
        if (read)
            hd__log(HD_LOG_WARN, NULL, "checkpoint.peers: the copies of step %" PRId64 " cannot be read: %s",
                    s.set.step, why.message);
        rc = agree_on_read(c, read, &loaded, err);
    }
    if (loaded) {
        keep_set(&s);
        *found = s.set.step;
    } else {
        json_decref(*state);
        *state = NULL;
    }
    for (int32_t r = 0; r < s.set.ranks && s.runs; r++)
        free(s.runs[r]);
    free(s.runs);
    free(s.at);
    free(s.of);
    free(offers);
    return rc;
}
