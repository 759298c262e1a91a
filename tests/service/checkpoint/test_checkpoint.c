/* Checkpoints: saved on one mesh, loaded on another; damage; kill -9; the store. */
#include "service/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "heddle/plugin.h"
#include "service/checkpoint/safetensors.h"
#include "tests/service/checkpoint/reduce.h"
#include "tests/support/scratch.h"

const struct hd_plugin *heddle_plugin_v1_posix(void);

static struct hd_error err = HD_ERROR_INIT;
static const struct hd_host host = {.struct_size = sizeof host};

/* struct posix_settings, as the option table lays it out */
static struct settings {
    int32_t direct, fsync;
} settings = {0, 0};

static struct hd__ckpt_store open_store(const char *dir)
{
    const struct hd_component *c = heddle_plugin_v1_posix()->components[0];
    struct hd__ckpt_store store = {.ops = c->ops};
    ck_assert_uint_eq(c->settings_size, sizeof settings);
    ck_ok(store.ops->open(&host, &settings, dir, &store.ckpt, &err));
    return store;
}

static const struct hd_ckpt_ops *sound;

static void close_store(struct hd__ckpt_store *store)
{
    store->ops->close(store->ckpt);
}

/* ---- a model: several groups, dtypes and shapes; 5.4 MB, so that tensors cross blocks */

static const struct hd__ckpt_tensor model[] = {
    {"model", "embed.weight", HD_F32, 2, {700, 1000}},
    {"model", "norm.bias", HD_F32, 1, {7}},
    {"model", "low.weight", HD_BF16, 3, {3, 5, 1001}},
    {"model", "empty", HD_F32, 2, {0, 4}},
    {"optim-exp_avg", "embed.weight", HD_F32, 2, {700, 1000}},
    {"optim-exp_avg", "norm.bias", HD_F32, 1, {7}},
    {"optim-count", "scalar", HD_I32, 0, {0}},
};

enum { TENSORS = HD__COUNT(model) };

static int64_t elements(uint32_t t)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < model[t].ndim; d++)
        n *= model[t].shape[d];
    return n;
}

struct values {
    uint8_t *at[TENSORS];
};

static size_t size_of(uint32_t t)
{
    return hd_dtype_size(model[t].dtype);
}

/* Whole tensors; every byte is a function of the seed. Seed 0: all 0xee, to be loaded into. */
static struct values make_values(uint64_t seed)
{
    struct values v;
    for (uint32_t t = 0; t < TENSORS; t++) {
        size_t n = (size_t)elements(t) * size_of(t);
        uint64_t state = seed * 1000 + t + 1;
        v.at[t] = hd__alloc(n + 8);
        for (size_t i = 0; i < n; i += 8) {
            uint64_t word = seed ? scratch_random(&state) : UINT64_C(0xeeeeeeeeeeeeeeee);
            memcpy(v.at[t] + i, &word, 8);
        }
    }
    return v;
}

static void free_values(struct values *v)
{
    for (uint32_t t = 0; t < TENSORS; t++)
        free(v->at[t]);
}

static void check_equal(const struct values *a, const struct values *b)
{
    for (uint32_t t = 0; t < TENSORS; t++)
        ck_assert_msg(!memcmp(a->at[t], b->at[t], (size_t)elements(t) * size_of(t)), "%s %s differs", model[t].group,
                      model[t].name);
}

/* ---- meshes: ways to deal the elements of a tensor to ranks, as runs */
typedef struct {
    HD__ARRAY(struct hd__ckpt_run) list;
} runs;

static void add_run(runs *r, struct values *v, uint32_t t, int64_t first, int64_t count)
{
    struct hd__ckpt_run run = {t, 0, first, count, v->at[t] + (size_t)first * size_of(t)};
    if (count > 0)
        hd__push(&r->list, run);
}

/* Equal flat stretches, as ZeRO cuts. */
static runs deal_flat(struct values *v, int rank, int ranks)
{
    runs r = {0};
    for (uint32_t t = 0; t < TENSORS; t++) {
        int64_t n = elements(t), from = n * rank / ranks, to = n * (rank + 1) / ranks;
        add_run(&r, v, t, from, to - from);
    }
    return r;
}

/* Columns of the last dimension, as tensor parallelism cuts: many short runs, all blocks shared. */
static runs deal_columns(struct values *v, int rank, int ranks)
{
    runs r = {0};
    for (uint32_t t = 0; t < TENSORS; t++) {
        int64_t n = elements(t), width = model[t].ndim ? model[t].shape[model[t].ndim - 1] : 1;
        int64_t from = width * rank / ranks, to = width * (rank + 1) / ranks;
        for (int64_t row = 0; row < n; row += width)
            add_run(&r, v, t, row + from, to - from);
    }
    return r;
}

/* Short stretches at random, in a random order. */
static runs deal_random(struct values *v, int rank, int ranks)
{
    runs r = {0};
    uint64_t state = 99;
    for (uint32_t t = 0; t < TENSORS; t++) {
        for (int64_t at = 0, n = elements(t); at < n;) {
            int64_t count = 1 + (int64_t)(scratch_random(&state) % 60000);
            count = HD__MIN(count, n - at);
            if ((int)(scratch_random(&state) % (uint64_t)ranks) == rank)
                add_run(&r, v, t, at, count);
            at += count;
        }
    }
    for (uint32_t i = 1; i < r.list.count; i++) {
        uint32_t j = (uint32_t)(scratch_random(&state) % (i + 1));
        struct hd__ckpt_run swap = r.list.at[i];
        r.list.at[i] = r.list.at[j];
        r.list.at[j] = swap;
    }
    return r;
}

typedef runs (*deal)(struct values *v, int rank, int ranks);
static const deal deals[] = {deal_flat, deal_columns, deal_random};

/* ---- ranks as threads */
struct world {
    pthread_barrier_t barrier;
    pthread_mutex_t lock;
    char *all;
    int ranks, gathers;
};

struct member {
    struct world *world;
    const char *dir;
    struct values *values;
    deal deal;
    uint64_t step;
    int rank, skip; /* skip: one run is left out */
    uint32_t keep;
    uint64_t file_bytes, busy, saved; /* busy: bytes that it was told of first; saved: the step, at the end */
    const char *run;
    const struct hd_ckpt_ops *ops; /* instead of the store's own */
    int32_t rc;
    struct hd_error error;
};

static int32_t exchange(void *user, const void *mine, uint64_t bytes, void *all, struct hd_error *e)
{
    struct member *m = user;
    struct world *w = m->world;
    (void)e;
    pthread_mutex_lock(&w->lock);
    if (!w->all)
        w->all = hd__alloc(bytes * (uint64_t)w->ranks);
    memcpy(w->all + bytes * (uint64_t)m->rank, mine, bytes);
    pthread_mutex_unlock(&w->lock);
    pthread_barrier_wait(&w->barrier);
    memcpy(all, w->all, bytes * (uint64_t)w->ranks);
    if (pthread_barrier_wait(&w->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
        free(w->all);
        w->all = NULL;
    }
    pthread_barrier_wait(&w->barrier);
    return HD_OK;
}

static int32_t reduce(void *user, void *mine, uint64_t bytes, void (*fold)(void *sum, const void *other),
                      struct hd_error *e)
{
    const struct hd__ckpt_peers peers = {
        .ranks = ((struct member *)user)->world->ranks, .all_gather = exchange, .user = user};
    return reduce_by_gather(&peers, mine, bytes, fold, e);
}

static int32_t gather(void *user, const void *mine, uint64_t bytes,
                      void (*take)(void *to, const void *part, uint64_t bytes), void *to, void *answer,
                      uint64_t answer_bytes, struct hd_error *e)
{
    struct member *m = user;
    const struct hd__ckpt_peers peers = {
        .rank = m->rank, .ranks = m->world->ranks, .all_gather = exchange, .user = user};
    if (m->rank == 0)
        m->world->gathers++;
    return gather_by_gather(&peers, mine, bytes, take, to, answer, answer_bytes, e);
}

static void *save_member(void *user)
{
    struct member *m = user;
    runs r = m->deal(m->values, m->rank, m->world->ranks);
    struct hd__ckpt_store store = open_store(m->dir);
    json_t *state = json_pack("{s:I, s:f}", "step", (json_int_t)m->step, "lr", 0.1);
    store.peers = (struct hd__ckpt_peers){
        .rank = m->rank, .ranks = m->world->ranks, .gather = gather, .all_reduce = reduce, .user = m};
    store.file_bytes = m->file_bytes;
    store.ops = m->ops ? m->ops : store.ops;
    const struct hd__ckpt_save save = {.step = m->step,
                                       .tensors = model,
                                       .n_tensors = TENSORS,
                                       .runs = r.list.at,
                                       .n_runs = r.list.count - (uint32_t)m->skip,
                                       .state = state,
                                       .keep = m->keep,
                                       .run = m->run,
                                       .version = "0.0.0"};
    m->error = (struct hd_error)HD_ERROR_INIT;
    m->rc = hd__ckpt_save(&store, &save, &m->error);
    json_decref(state);
    close_store(&store);
    hd__free_array(&r.list);
    return NULL;
}

/* Saves on `ranks` ranks; the code of rank 0, and its error in err. */
static int32_t save_as(const struct member *like, int ranks)
{
    struct world world = {.ranks = ranks};
    struct member members[8];
    pthread_t threads[8];
    pthread_barrier_init(&world.barrier, NULL, (unsigned)ranks);
    pthread_mutex_init(&world.lock, NULL);
    for (int r = 0; r < ranks; r++) {
        members[r] = *like;
        members[r].world = &world;
        members[r].rank = r;
        members[r].skip = like->skip && r == ranks - 1;
        pthread_create(&threads[r], NULL, save_member, &members[r]);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    for (int r = 1; r < ranks; r++)
        ck_assert_int_eq(members[r].rc, members[0].rc);
    pthread_barrier_destroy(&world.barrier);
    err = members[0].error;
    return members[0].rc;
}

static void load_as(const char *dir, struct values *v, deal how, int ranks)
{
    char name[32];
    struct hd__ckpt *c;
    struct hd__ckpt_store store = open_store(dir);
    ck_ok(hd__ckpt_latest(&store, name, &err));
    ck_ok(hd__ckpt_open(&store, name, &c, &err));
    for (int rank = 0; rank < ranks; rank++) {
        runs r = how(v, rank, ranks);
        ck_ok(hd__ckpt_load(c, model, TENSORS, r.list.at, r.list.count, &err));
        hd__free_array(&r.list);
    }
    hd__ckpt_close(c);
    close_store(&store);
}

/* ---- any mesh to any mesh, buffered and direct */

static void *read_all(const struct scratch *s, const char *path, size_t *bytes)
{
    char name[256];
    snprintf(name, sizeof name, "%s/%s", s->dir, path);
    return scratch_read(name, bytes);
}

START_TEST(resharding)
{
    static const int counts[] = {1, 2, 4, 3};
    struct scratch s;
    struct values in = make_values(5);
    size_t bytes, first_bytes = 0;
    char *first = NULL;
    scratch_init(&s);
    uint64_t step = 0;
    for (uint32_t d = 0; d < HD__COUNT(deals); d++) {
        for (uint32_t k = 0; k < HD__COUNT(counts); k++) {
            char path[64];
            settings.direct = k % 2;
            const struct member like = {.dir = s.dir, .values = &in, .deal = deals[d], .step = ++step, .keep = 1};
            ck_ok(save_as(&like, counts[k]));
            for (uint32_t e = 0; e < HD__COUNT(deals); e++) {
                struct values out = make_values(0);
                load_as(s.dir, &out, deals[e], counts[(k + e + 1) % 4]);
                check_equal(&in, &out);
                free_values(&out);
            }
            /* whatever the mesh, the same file */
            snprintf(path, sizeof path, "step-%08lu/model-00001-of-00001.safetensors", (unsigned long)step);
            char *file = read_all(&s, path, &bytes);
            if (!first)
                first = file, first_bytes = bytes;
            ck_assert_uint_eq(bytes, first_bytes);
            ck_assert_mem_eq(file, first, bytes);
            if (file != first)
                free(file);
        }
    }
    free(first);
    free_values(&in);
    scratch_finish(&s);
}
END_TEST

/* The files are safetensors that anyone reads; small files when asked for. */
START_TEST(files)
{
    struct scratch s;
    struct hd__ckpt_st *st;
    struct values in = make_values(6);
    float x[7];
    scratch_init(&s);
    const struct member like = {.dir = s.dir, .values = &in, .deal = deal_flat, .step = 12, .file_bytes = 100000};
    ck_ok(save_as(&like, 2));
    ck_ok(hd__ckpt_st_open(scratch_path(&s, "step-00000012/model-00002-of-00002.safetensors"), &st, &err));
    const struct hd__ckpt_st_tensor *t = hd__ckpt_st_find(st, "norm.bias");
    ck_assert_uint_eq(t->dtype, HD_F32);
    ck_ok(hd__ckpt_st_read(st, t, 0, sizeof x, x, &err));
    ck_assert_mem_eq(x, in.at[1], sizeof x);
    ck_assert_int_eq(hd__ckpt_st_find(st, "low.weight")->shape[2], 1001);
    hd__ckpt_st_close(st);
    struct values out = make_values(0);
    load_as(s.dir, &out, deal_columns, 3);
    check_equal(&in, &out);
    free_values(&out);
    free_values(&in);
    scratch_finish(&s);
}
END_TEST

/* ---- state, latest, keep, same step again */

START_TEST(housekeeping)
{
    struct scratch s;
    struct values in = make_values(7);
    char name[32];
    uint64_t *steps;
    uint32_t n;
    struct hd__ckpt *c;
    scratch_init(&s);
    const char *dir = scratch_path(&s, "a/b/checkpoints");
    struct hd__ckpt_store store = open_store(dir);
    ck_refused(hd__ckpt_latest(&store, name, &err), HD_E_NOTFOUND, "no checkpoint");
    for (uint64_t step = 10; step <= 60; step += 10) {
        const struct member like = {.dir = dir, .values = &in, .deal = deal_flat, .step = step, .keep = 3};
        ck_ok(save_as(&like, 1));
    }
    mkdir(scratch_path(&s, "a/b/checkpoints/step-00000099"), 0755);      /* nothing in it */
    mkdir(scratch_path(&s, "a/b/checkpoints/step-1000"), 0755);          /* not a name of ours */
    mkdir(scratch_path(&s, "a/b/checkpoints/.tmp-step-00000070"), 0755); /* interrupted */
    ck_ok(hd__ckpt_list_steps(&store, &steps, &n, NULL, &err));
    ck_assert_uint_eq(n, 3);
    ck_assert_uint_eq(steps[0], 40);
    ck_assert_uint_eq(steps[2], 60);
    free(steps);
    /* the same step again replaces it, and the leftover goes */
    struct values other = make_values(8), out = make_values(0);
    const struct member like = {.dir = dir, .values = &other, .deal = deal_flat, .step = 60};
    ck_ok(save_as(&like, 2));
    ck_assert_int_ne(access(scratch_path(&s, "a/b/checkpoints/.tmp-step-00000070"), F_OK), 0);
    ck_assert_int_ne(access(scratch_path(&s, "a/b/checkpoints/.tmp-step-00000060"), F_OK), 0);
    load_as(dir, &out, deal_flat, 1);
    check_equal(&other, &out);
    ck_ok(hd__ckpt_latest(&store, name, &err));
    ck_assert_str_eq(name, "step-00000060");
    ck_ok(hd__ckpt_open(&store, name, &c, &err));
    ck_assert_uint_eq(hd__ckpt_step(c), 60);
    ck_assert_int_eq(json_integer_value(json_object_get(hd__ckpt_state(c), "step")), 60);
    ck_assert_double_eq(json_real_value(json_object_get(hd__ckpt_state(c), "lr")), 0.1);
    ck_ok(hd__ckpt_verify(c, &err));
    hd__ckpt_close(c);
    close_store(&store);
    free_values(&in);
    free_values(&other);
    free_values(&out);
    scratch_finish(&s);
}
END_TEST

/* Old ones of this run go; those of another, or of none, stay. One moves to another folder whole. */
static int32_t held(struct hd_ckpt *ckpt, const char *name, struct hd_error *e)
{
    (void)ckpt;
    return strcmp(name, "step-00000002") ? sound->remove(ckpt, name, e) : hd_fail(e, HD_E_IO, "%s is held open", name);
}

/* A save stands, though an old checkpoint cannot be removed; the others go. */
START_TEST(an_old_one_stays)
{
    struct scratch s;
    struct values in = make_values(7);
    struct hd_ckpt_ops ops;
    uint64_t *steps;
    uint32_t n;
    scratch_init(&s);
    const char *dir = scratch_path(&s, "held");
    struct hd__ckpt_store store = open_store(dir);
    sound = store.ops;
    ops = *sound;
    ops.remove = held;
    for (uint64_t step = 1; step <= 4; step++) {
        const struct member like = {.dir = dir,
                                    .values = &in,
                                    .deal = deal_flat,
                                    .step = step,
                                    .keep = step < 4 ? 3 : 1,
                                    .run = "a",
                                    .ops = &ops};
        ck_ok(save_as(&like, 2));
    }
    ck_ok(hd__ckpt_list_steps(&store, &steps, &n, NULL, &err));
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(steps[0], 2);
    ck_assert_uint_eq(steps[1], 4);
    free(steps);
    close_store(&store);
    free_values(&in);
    scratch_finish(&s);
}
END_TEST

START_TEST(runs_of_a_folder)
{
    struct scratch s;
    struct values in = make_values(7), out = make_values(0);
    uint64_t *steps;
    uint32_t n;
    struct hd__ckpt *c;
    scratch_init(&s);
    const char *dir = scratch_path(&s, "all"), *aside = scratch_path(&s, "deep/all.1");
    struct hd__ckpt_store store = open_store(dir);
    static const char *const of[] = {NULL, "a", "a", "b", "b", "b"};
    for (uint64_t step = 1; step <= HD__COUNT(of); step++) {
        const struct member like = {
            .dir = dir, .values = &in, .deal = deal_flat, .step = step, .keep = 2, .run = of[step - 1]};
        ck_ok(save_as(&like, 2));
    }
    ck_ok(hd__ckpt_list_steps(&store, &steps, &n, NULL, &err));
    ck_assert_uint_eq(n, 5);
    ck_assert_uint_eq(steps[3], 5); /* 4 is gone */
    free(steps);
    ck_ok(hd__ckpt_open(&store, "step-00000003", &c, &err));
    ck_assert_str_eq(hd__ckpt_run_id(c), "a");
    hd__ckpt_close(c);
    ck_ok(hd__ckpt_open(&store, "step-00000001", &c, &err));
    ck_assert_str_eq(hd__ckpt_run_id(c), "");
    hd__ckpt_close(c);
    ck_ok(store.ops->move(store.ckpt, "step-00000006", aside, &err));
    ck_refused(store.ops->move(store.ckpt, "step-00000006", aside, &err), HD_E_IO, "there is ");
    ck_assert_int_ne(access(scratch_path(&s, "all/step-00000006"), F_OK), 0);
    load_as(aside, &out, deal_columns, 2);
    check_equal(&in, &out);
    close_store(&store);
    free_values(&in);
    free_values(&out);
    scratch_finish(&s);
}
END_TEST

/* Leftovers of a save go; hidden folders that it cannot have written stay. */
START_TEST(leftovers)
{
    static const char *const stay[] = {".tmp-mywork/notes.txt", ".tmp-step-mine/index.json", ".tmp-step-9/index.json",
                                       ".tmp-model/model.safetensors", ".tmp-step-00000008x/a"};
    static const char *const go[] = {".tmp-step-00000008/model-00001-of-00001.safetensors",
                                     ".tmp-removed-step-00000003/index.json"};
    struct scratch s;
    struct values in = make_values(7);
    char folder[128];
    scratch_init(&s);
    const struct member like = {.dir = s.dir, .values = &in, .deal = deal_flat, .step = 1};
    for (size_t i = 0; i < HD__COUNT(stay) + HD__COUNT(go); i++) {
        const char *name = i < HD__COUNT(stay) ? stay[i] : go[i - HD__COUNT(stay)];
        snprintf(folder, sizeof folder, "%.*s", (int)(strchr(name, '/') - name), name);
        ck_assert_int_eq(mkdir(scratch_path(&s, folder), 0755), 0);
        scratch_write(&s, name, "x", 1);
    }
    ck_ok(save_as(&like, 1));
    for (size_t i = 0; i < HD__COUNT(stay); i++)
        ck_assert_int_eq(access(scratch_path(&s, stay[i]), F_OK), 0);
    for (size_t i = 0; i < HD__COUNT(go); i++)
        ck_assert_int_ne(access(scratch_path(&s, go[i]), F_OK), 0);
    /* in the way of a save, and not of one */
    mkdir(scratch_path(&s, ".tmp-step-00000002"), 0755);
    scratch_write(&s, ".tmp-step-00000002/notes.txt", "x", 1);
    ck_refused(save_as(&like, 1), HD_E_INVALID, ".tmp-step-00000002 has files that no save wrote");
    ck_assert_int_eq(access(scratch_path(&s, ".tmp-step-00000002/notes.txt"), F_OK), 0);
    free_values(&in);
    scratch_finish(&s);
}
END_TEST

/* A FIFO does not stop the reader for ever; a URL is no folder. */
START_TEST(not_files)
{
    struct scratch s;
    struct values in = make_values(7);
    struct hd__ckpt *c;
    struct hd_ckpt *none;
    char name[32];
    scratch_init(&s);
    const struct member like = {.dir = s.dir, .values = &in, .deal = deal_flat, .step = 1};
    ck_ok(save_as(&like, 1));
    const char *file = scratch_path(&s, "step-00000001/model-00001-of-00001.safetensors"),
               *index = scratch_path(&s, "step-00000001/index.json");
    struct hd__ckpt_store store = open_store(s.dir);
    ck_ok(hd__ckpt_open(&store, "step-00000001", &c, &err));
    ck_assert(!unlink(file) && !mkfifo(file, 0644));
    ck_refused(hd__ckpt_verify(c, &err), HD_E_INVALID, "not a regular file but a FIFO");
    hd__ckpt_close(c);
    ck_assert(!unlink(index) && !mkfifo(index, 0644));
    ck_refused(hd__ckpt_open(&store, "step-00000001", &c, &err), HD_E_INVALID, "not a regular file but a FIFO");
    ck_refused(hd__ckpt_latest(&store, name, &err), HD_E_NOTFOUND, "no checkpoint");
    ck_refused(store.ops->open(&host, &settings, "gs://bucket/x", &none, &err), HD_E_INVALID, "gs://bucket/x is a URL");
    close_store(&store);
    free_values(&in);
    scratch_finish(&s);
}
END_TEST

/* ---- another model */

START_TEST(other_model)
{
    struct scratch s;
    struct values in = make_values(9);
    struct hd__ckpt_tensor list[TENSORS];
    struct hd__ckpt *c;
    scratch_init(&s);
    const struct member like = {.dir = s.dir, .values = &in, .deal = deal_flat, .step = 1};
    ck_ok(save_as(&like, 1));
    struct hd__ckpt_store store = open_store(s.dir);
    ck_ok(hd__ckpt_open(&store, "step-00000001", &c, &err));
    memcpy(list, model, sizeof list);
    ck_ok(hd__ckpt_check_tensors(c, list, TENSORS, &err));
    ck_ok(hd__ckpt_check_tensors(c, list, 4, &err)); /* the weights alone */
    list[2].name = "high.weight";
    ck_refused(hd__ckpt_check_tensors(c, list, TENSORS, &err), HD_E_MISMATCH, "no tensor high.weight");
    list[2] = model[2];
    list[0].shape[1] = 1001;
    ck_refused(hd__ckpt_check_tensors(c, list, TENSORS, &err), HD_E_MISMATCH,
               "model embed.weight is fp32 [700, 1000] there, fp32 [700, 1001] here");
    list[0] = model[0];
    list[1].dtype = HD_BF16;
    ck_refused(hd__ckpt_check_tensors(c, list, TENSORS, &err), HD_E_MISMATCH, "norm.bias");
    list[1] = model[1];
    ck_refused(hd__ckpt_check_tensors(c, list, 2, &err), HD_E_MISMATCH, "this one has no tensor empty of group model");
    hd__ckpt_close(c);
    ck_refused(hd__ckpt_open(&store, "step-00000002", &c, &err), HD_E_NOTFOUND, "step-00000002");
    ck_refused(hd__ckpt_open(&store, "../x", &c, &err), HD_E_INVALID, "../x");
    close_store(&store);
    free_values(&in);
    scratch_finish(&s);
}
END_TEST

/* ---- damage */

static void flip(const char *path, size_t at)
{
    uint8_t byte;
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 16;
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

START_TEST(flipped_bits)
{
    static const char *const names[] = {"model-00001-of-00001.safetensors", "optim-exp_avg-00001-of-00001.safetensors",
                                        "index.json"};
    struct scratch s;
    struct values in = make_values(10), out = make_values(0);
    uint64_t state = 3;
    scratch_init(&s);
    const struct member like = {.dir = s.dir, .values = &in, .deal = deal_flat, .step = 1};
    ck_ok(save_as(&like, 1));
    struct hd__ckpt_store store = open_store(s.dir);
    for (int k = 0; k < 60; k++) {
        char path[256];
        struct stat st;
        struct hd__ckpt *c = NULL;
        const char *name = names[k % 3];
        snprintf(path, sizeof path, "%s/step-00000001/%s", s.dir, name);
        stat(path, &st);
        size_t at = scratch_random(&state) % (uint64_t)st.st_size;
        flip(path, at);
        runs r = deal_flat(&out, 0, 1);
        int32_t rc = hd__ckpt_open(&store, "step-00000001", &c, &err);
        if (!rc)
            rc = hd__ckpt_load(c, model, TENSORS, r.list.at, r.list.count, &err);
        ck_assert_msg(rc == HD_E_CORRUPT || rc == HD_E_UNSUPPORTED, "%s byte %zu: %d", name, at, rc);
        ck_assert_msg(strstr(err.message, name) != NULL, "%s", err.message);
        if (k % 3 < 2) {
            char block[32];
            snprintf(block, sizeof block, "block %zu ", at >> 22);
            ck_assert_msg(strstr(err.message, block) && strstr(err.message, "tensor "), "%s", err.message);
            ck_assert_int_eq(hd__ckpt_verify(c, &err), HD_E_CORRUPT);
        }
        hd__ckpt_close(c);
        hd__free_array(&r.list);
        flip(path, at);
    }
    /* only blocks that are needed are read: the bias lies in the last block, damage in the first is not seen
     */
    struct hd__ckpt *c;
    const struct hd__ckpt_run bias = {1, 0, 0, 7, out.at[1]};
    const char *first = scratch_path(&s, "step-00000001/optim-exp_avg-00001-of-00001.safetensors");
    flip(first, 5000);
    ck_ok(hd__ckpt_open(&store, "step-00000001", &c, &err));
    ck_ok(hd__ckpt_load(c, model, TENSORS, &bias, 1, &err));
    ck_assert_mem_eq(out.at[1], in.at[1], 28);
    ck_assert_int_eq(truncate(first, 100000), 0);
    ck_refused(hd__ckpt_load(c, model, TENSORS, &bias, 1, &err), HD_E_CORRUPT, "has 100000 bytes");
    ck_assert_int_eq(unlink(first), 0);
    ck_refused(hd__ckpt_load(c, model, TENSORS, &bias, 1, &err), HD_E_NOTFOUND, "optim-exp_avg");
    hd__ckpt_close(c);
    store.peers = (struct hd__ckpt_peers){.rank = 1, .ranks = 2}; /* others ask for the files that they read */
    ck_ok(hd__ckpt_open(&store, "step-00000001", &c, &err));
    ck_ok(hd__ckpt_load(c, model, TENSORS, &bias, 1, &err));
    hd__ckpt_close(c);
    close_store(&store);
    free_values(&in);
    free_values(&out);
    scratch_finish(&s);
}
END_TEST

/* A hostile index with a checksum that is right for it: refused, or loaded without harm. */
START_TEST(hostile_index)
{
    static const char *const swaps[][2] = {
        {"\"bytes\": ", "\"bytes\": -"},
        {"\"bytes\": ", "\"bytes\": 9"},
        {"\"offset\": ", "\"offset\": 99"},
        {"\"offset\": ", "\"offset\": -"},
        {"\"file\": ", "\"file\": 7"},
        {"\"file\": ", "\"file\": -1"},
        {"700,", "70000000000000000,"},
        {"\"F32\"", "\"F33\""},
        {"\"name\": \"model", "\"name\": \"../model"},
        {"\"tensors\"", "\"tensor\""},
        {"\"files\"", "\"file\""},
        {"\"step\": ", "\"step\": -"},
        {"\"block_bytes\": ", "\"block_bytes\": 1"},
        {"low.weight", "norm.bias"},
        {"\"xxh3\"", "\"xxh4\""},
        {"\"shape\"", "\"shapes\""},
        {"\"offset\": 2804096", "\"offset\": 4096"}, /* two tensors at one place */
        {"\"offset\": 2804096", "\"offset\": 2804092"},
    };
    struct scratch s;
    struct values in = make_values(11);
    size_t bytes;
    scratch_init(&s);
    const struct member like = {.dir = s.dir, .values = &in, .deal = deal_flat, .step = 1};
    ck_ok(save_as(&like, 1));
    struct hd__ckpt_store store = open_store(s.dir);
    char *text = read_all(&s, "step-00000001/index.json", &bytes);
    for (size_t k = 0; k < HD__COUNT(swaps); k++) {
        struct hd__text out = {0};
        struct hd__ckpt *c;
        char sum[17];
        const char *at = strstr(text, swaps[k][0]);
        ck_assert_msg(at != NULL, "%s", swaps[k][0]);
        hd__text_add(&out, "%.*s%s%s", (int)(at - text), text, swaps[k][1], at + strlen(swaps[k][0]));
        json_t *json = json_loads(out.at, 0, NULL);
        ck_assert_msg(json != NULL, "%s", out.at);
        json_object_del(json, "checksum");
        char *plain = json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);
        snprintf(sum, sizeof sum, "%016llx", (unsigned long long)hd__hash(plain, strlen(plain), 0));
        free(plain);
        json_object_set_new(json, "checksum", json_string(sum));
        plain = json_dumps(json, 0);
        scratch_write(&s, "step-00000001/index.json", plain, strlen(plain));
        ck_refused(hd__ckpt_open(&store, "step-00000001", &c, &err), HD_E_CORRUPT, "index.json");
        ck_assert_msg(!strstr(err.message, "checksum differs"), "%s", err.message);
        free(plain);
        json_decref(json);
        hd__text_free(&out);
    }
    free(text);
    close_store(&store);
    free_values(&in);
    scratch_finish(&s);
}
END_TEST

/* ---- what saving refuses */

START_TEST(bad_saves)
{
    struct scratch s;
    struct values in = make_values(12);
    scratch_init(&s);
    struct member like = {.dir = s.dir, .values = &in, .deal = deal_flat, .step = 1, .skip = 1};
    ck_refused(save_as(&like, 3), HD_E_INTERNAL, "owned by no rank");
    ck_assert_int_ne(access(scratch_path(&s, ".tmp-step-00000001"), F_OK), 0); /* cancelled, cleaned */
    ck_assert_int_ne(access(scratch_path(&s, "step-00000001"), F_OK), 0);
    struct hd__ckpt_store store = open_store(s.dir);
    struct hd__ckpt_run run[2] = {{1, 0, 0, 7, in.at[1]}, {1, 0, 3, 2, in.at[1]}};
    struct hd__ckpt_save save = {.step = 1, .tensors = model, .n_tensors = TENSORS, .runs = run, .n_runs = 2};
    ck_refused(hd__ckpt_save(&store, &save, &err), HD_E_INTERNAL, "overlap");
    run[1].count = 5;
    ck_refused(hd__ckpt_save(&store, &save, &err), HD_E_INTERNAL, "5 elements at 3 of 7");
    const struct hd__ckpt_tensor twice[] = {model[1], model[1]};
    save = (struct hd__ckpt_save){.step = 1, .tensors = twice, .n_tensors = 2};
    ck_refused(hd__ckpt_save(&store, &save, &err), HD_E_INVALID, "a duplicate");
    close_store(&store);
    /* a folder that cannot be made: all ranks fail alike, rank 1 with rank 0's words */
    like = (struct member){.dir = scratch_path(&s, "file/x"), .values = &in, .deal = deal_flat, .step = 1};
    scratch_write(&s, "file", "", 0);
    ck_refused(save_as(&like, 2), HD_E_IO, "file/x");
    free_values(&in);
    scratch_finish(&s);
}
END_TEST

/* ---- in the background */

/* ---- many blocks: each small tensor is a file of its own */

enum { SMALL = 300, SMALL_RANKS = 4, SMALL_ELEMENTS = 4 };
static struct hd__ckpt_tensor small[SMALL];
static float small_values[SMALL][SMALL_ELEMENTS];
static char small_groups[SMALL][8];

static void note_busy(void *user, uint64_t bytes)
{
    struct member *m = user;
    m->busy = m->busy ? m->busy : bytes;
}

static void note_saved(void *user, uint64_t step)
{
    struct member *m = user;
    m->saved = step;
}

/* Fails where it is too late to undo the save. */
static int32_t reduce_unheard(void *user, void *mine, uint64_t bytes, void (*fold)(void *sum, const void *other),
                              struct hd_error *e)
{
    const struct member *m = user;
    char index[256], name[32];
    int32_t rc = reduce(user, mine, bytes, fold, e);
    hd__ckpt_step_name(m->step, name);
    snprintf(index, sizeof index, "%s/%s/index.json", m->dir, name);
    return rc || access(index, F_OK) ? rc : hd_fail(e, HD_E_PEER, "a rank is gone");
}

/* skip: rank 0 has all; else each has its share, and of every tenth tensor two ranks have a half */
static void *save_small(void *user)
{
    struct member *m = user;
    struct hd__ckpt_run run[SMALL];
    uint32_t n = 0;
    for (int t = 0; t < SMALL; t++) {
        int owner = m->skip ? 0 : t % SMALL_RANKS, half = !m->skip && t % 10 == 0;
        if (m->rank == owner || (half && m->rank == (owner + 1) % SMALL_RANKS)) {
            int64_t first = half && m->rank != owner ? SMALL_ELEMENTS / 2 : 0;
            run[n++] = (struct hd__ckpt_run){.tensor = (uint32_t)t,
                                             .first = first,
                                             .count = half ? SMALL_ELEMENTS / 2 : SMALL_ELEMENTS,
                                             .data = small_values[t] + first};
        }
    }
    struct hd__ckpt_store store = open_store(m->dir);
    store.peers = (struct hd__ckpt_peers){.rank = m->rank,
                                          .ranks = SMALL_RANKS,
                                          .gather = gather,
                                          .all_reduce = m->skip == 2 ? reduce_unheard : reduce,
                                          .busy = note_busy,
                                          .saved = note_saved,
                                          .user = m};
    const struct hd__ckpt_save save = {
        .step = m->step, .tensors = small, .n_tensors = SMALL, .runs = run, .n_runs = n, .version = "0.0.0"};
    m->error = (struct hd_error)HD_ERROR_INIT;
    m->rc = hd__ckpt_save(&store, &save, &m->error);
    close_store(&store);
    return NULL;
}

/* All checksums travel at once, however many a rank has, and once more where blocks are shared. */
START_TEST(gathers_of_checksums)
{
    struct world world = {.ranks = SMALL_RANKS};
    struct member members[SMALL_RANKS];
    pthread_t threads[SMALL_RANKS];
    struct hd__ckpt *c;
    struct scratch s;
    scratch_init(&s);
    settings.direct = 0;
    pthread_barrier_init(&world.barrier, NULL, SMALL_RANKS);
    pthread_mutex_init(&world.lock, NULL);
    for (int t = 0; t < SMALL; t++) {
        snprintf(small_groups[t], sizeof small_groups[t], "g%d", t);
        small[t] = (struct hd__ckpt_tensor){small_groups[t], "x", HD_F32, 1, {SMALL_ELEMENTS}};
        for (int i = 0; i < SMALL_ELEMENTS; i++)
            small_values[t][i] = (float)(t * SMALL_ELEMENTS + i);
    }
    for (int skip = 0; skip < 3; skip++) { /* 2: nobody hears of the end */
        char name[32];
        for (int r = 0; r < SMALL_RANKS; r++) {
            members[r] =
                (struct member){.world = &world, .dir = s.dir, .rank = r, .skip = skip, .step = 1 + (uint64_t)skip};
            pthread_create(&threads[r], NULL, save_small, &members[r]);
        }
        for (int r = 0; r < SMALL_RANKS; r++) {
            pthread_join(threads[r], NULL);
            ck_assert_msg(members[r].rc == (skip < 2 ? HD_OK : HD_E_PEER), "%s", members[r].error.message);
            /* what the busiest has to write, said by all of them */
            ck_assert_uint_eq(members[r].busy, members[0].busy);
            ck_assert_uint_eq(members[r].saved, skip < 2 || !r ? members[r].step : 0);
        }
        ck_assert_uint_gt(members[0].busy, SMALL / (skip ? 1 : SMALL_RANKS) * sizeof small_values[0]);
        ck_assert_int_eq(world.gathers, skip ? 1 : 2);
        world.gathers = 0;
        struct hd__ckpt_store store = open_store(s.dir);
        hd__ckpt_step_name(members[0].step, name);
        ck_ok(hd__ckpt_open(&store, name, &c, &err));
        ck_ok(hd__ckpt_verify(c, &err));
        hd__ckpt_close(c);
        close_store(&store);
    }
    pthread_barrier_destroy(&world.barrier);
    scratch_finish(&s);
}
END_TEST

START_TEST(background)
{
    struct scratch s;
    scratch_init(&s);
    struct hd__ckpt_store store = open_store(s.dir);
    struct hd__ckpt_async_writer *saver = hd__ckpt_async_writer_create(&store);
    for (uint64_t step = 1; step <= 4; step++) {
        struct values v = make_values(step), out = make_values(0), wanted = make_values(step);
        runs r = deal_flat(&v, 0, 1);
        json_t *state = json_pack("{s:I}", "step", (json_int_t)step);
        const struct hd__ckpt_save save = {.step = step,
                                           .tensors = model,
                                           .n_tensors = TENSORS,
                                           .runs = r.list.at,
                                           .n_runs = r.list.count,
                                           .state = state};
        ck_ok(hd__ckpt_async_writer_start(saver, &save, &err));
        /* what comes after the start does not matter */
        json_object_set_new(state, "step", json_integer(777));
        for (uint32_t t = 0; t < TENSORS; t++)
            memset(v.at[t], 0, (size_t)elements(t) * size_of(t));
        if (step == 3) { /* the next start waits */
            struct hd__ckpt_save next = save;
            next.step = 99;
            ck_ok(hd__ckpt_async_writer_start(saver, &next, &err));
            ck_ok(hd__ckpt_async_writer_join(saver, &err));
            ck_ok(store.ops->remove(store.ckpt, "step-00000099", &err));
        }
        ck_ok(hd__ckpt_async_writer_join(saver, &err));
        ck_assert_int_eq(hd__ckpt_async_writer_busy(saver), 0);
        load_as(s.dir, &out, deal_random, 2);
        check_equal(&wanted, &out);
        free_values(&v);
        free_values(&out);
        free_values(&wanted);
        json_decref(state);
        hd__free_array(&r.list);
    }
    /* an error comes with the join, once */
    struct hd__ckpt_run bad = {1, 0, 0, 8, NULL};
    float eight[8] = {0};
    bad.data = eight;
    const struct hd__ckpt_save save = {.step = 5, .tensors = model, .n_tensors = TENSORS, .runs = &bad, .n_runs = 1};
    ck_ok(hd__ckpt_async_writer_start(saver, &save, &err));
    ck_refused(hd__ckpt_async_writer_join(saver, &err), HD_E_INTERNAL, "8 elements");
    ck_ok(hd__ckpt_async_writer_join(saver, &err));
    hd__ckpt_async_writer_destroy(saver);
    close_store(&store);
    scratch_finish(&s);
}
END_TEST

/* ---- kill -9 while saving: 100 times, at a random write, rename or moment; the newest checkpoint always
 * loads and is whole. The values of step n come from seed n, so that a mixture of two steps would show. */

static struct hd_ckpt_ops fragile; /* the store's ops, which end the process at one of its calls */
static int calls_left;

static int32_t fragile_write(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, const void *data, uint64_t bytes,
                             struct hd_error *e)
{
    if (__atomic_sub_fetch(&calls_left, 1, __ATOMIC_SEQ_CST) == 0) {
        sound->write(tx, file, offset, data, bytes / 2, e); /* torn */
        raise(SIGKILL);
    }
    return sound->write(tx, file, offset, data, bytes, e);
}

static int32_t fragile_commit(struct hd_ckpt_tx *tx, struct hd_error *e)
{
    if (__atomic_sub_fetch(&calls_left, 1, __ATOMIC_SEQ_CST) == 0)
        raise(SIGKILL);
    return sound->commit(tx, e);
}

static int32_t fragile_remove(struct hd_ckpt *c, const char *name, struct hd_error *e)
{
    if (__atomic_sub_fetch(&calls_left, 1, __ATOMIC_SEQ_CST) == 0)
        raise(SIGKILL);
    return sound->remove(c, name, e);
}

static void save_forever(const char *dir, uint64_t step, int calls)
{
    struct hd__ckpt_store store = open_store(dir);
    sound = store.ops;
    fragile = *sound;
    fragile.write = fragile_write;
    fragile.commit = fragile_commit;
    fragile.remove = fragile_remove;
    calls_left = calls;
    store.ops = &fragile;
    for (;; step++) {
        struct values v = make_values(step);
        runs r = deal_flat(&v, 0, 1);
        const struct hd__ckpt_save save = {
            .step = step, .tensors = model, .n_tensors = TENSORS, .runs = r.list.at, .n_runs = r.list.count, .keep = 2};
        if (hd__ckpt_save(&store, &save, &err))
            _exit(1);
        free_values(&v);
        hd__free_array(&r.list);
    }
}

START_TEST(killed_while_saving)
{
    struct scratch s;
    uint64_t state = 1337, step = 0;
    scratch_init(&s);
    for (int k = 0; k < 100; k++) {
        /* even: at a call; odd: at a moment */
        int calls = k % 2 ? -1 : 1 + (int)(scratch_random(&state) % 24);
        unsigned wait = (unsigned)(scratch_random(&state) % 20000);
        int status;
        pid_t child = fork();
        if (!child)
            save_forever(s.dir, step + 1, calls);
        if (calls < 0) {
            usleep(wait);
            kill(child, SIGKILL);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the saver failed: %d", status);
        char name[32];
        struct hd__ckpt_store store = open_store(s.dir);
        int32_t rc = hd__ckpt_latest(&store, name, &err);
        if (rc) { /* nothing was complete yet */
            ck_assert_int_eq(rc, HD_E_NOTFOUND);
            ck_assert_uint_eq(step, 0);
        } else {
            uint64_t newest = strtoull(name + 5, NULL, 10);
            ck_assert_uint_ge(newest, step);
            step = newest;
            struct values wanted = make_values(step), out = make_values(0);
            load_as(s.dir, &out, deal_flat, 1);
            check_equal(&wanted, &out);
            free_values(&wanted);
            free_values(&out);
        }
        close_store(&store);
    }
    ck_assert_uint_gt(step, 10);
    scratch_finish(&s);
}
END_TEST

/* ---- every call fails once: the save ends on all ranks with the same code, the checkpoint before stays, the
 * next save is fine. In a world of two whose blocks are shared, so that there is something to read back. */

static int32_t fails(struct hd_error *e)
{
    return __atomic_sub_fetch(&calls_left, 1, __ATOMIC_SEQ_CST) ? HD_OK : hd_fail(e, HD_E_IO, "the call that fails");
}

static int32_t failing_begin(struct hd_ckpt *c, const char *name, int32_t leader, struct hd_ckpt_tx **tx,
                             struct hd_error *e)
{
    int32_t rc = fails(e);
    return rc ? rc : sound->begin(c, name, leader, tx, e);
}

static int32_t failing_write(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, const void *data, uint64_t bytes,
                             struct hd_error *e)
{
    int32_t rc = fails(e);
    return rc ? rc : sound->write(tx, file, offset, data, bytes, e);
}

static int32_t failing_flush(struct hd_ckpt_tx *tx, struct hd_error *e)
{
    int32_t rc = fails(e);
    return rc ? rc : sound->flush(tx, e);
}

static int32_t failing_read_back(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, void *data, uint64_t bytes,
                                 struct hd_error *e)
{
    int32_t rc = fails(e);
    return rc ? rc : sound->read_back(tx, file, offset, data, bytes, e);
}

static runs deal_halves(struct values *v, int rank, int ranks)
{
    runs r = {0};
    for (uint32_t t = 0; t < TENSORS; t++) {
        int64_t n = elements(t), half = n / 2;
        add_run(&r, v, t, rank ? half : 0, ranks == 1 ? n : rank ? n - half : half);
    }
    return r;
}

START_TEST(every_call_fails)
{
    struct scratch s;
    struct values old = make_values(20), new = make_values(21);
    int calls = 0, done = 0;
    scratch_init(&s);
    struct hd__ckpt_store store = open_store(s.dir);
    sound = store.ops;
    struct hd_ckpt_ops failing = *sound;
    failing.begin = failing_begin;
    failing.write = failing_write;
    failing.flush = failing_flush;
    failing.read_back = failing_read_back;
    struct member like = {.dir = s.dir, .values = &old, .deal = deal_halves, .step = 1};
    ck_ok(save_as(&like, 2));
    while (!done) {
        struct values out = make_values(0);
        calls_left = ++calls;
        like = (struct member){.dir = s.dir, .values = &new, .deal = deal_halves, .step = 2, .ops = &failing};
        int32_t rc = save_as(&like, 2);
        done = calls_left > 0;
        if (done)
            ck_ok(rc);
        else
            ck_refused(rc, HD_E_IO, "the call that fails");
        ck_assert_int_ne(access(scratch_path(&s, ".tmp-step-00000002"), F_OK), 0);
        load_as(s.dir, &out, deal_flat, 1);
        check_equal(done ? &new : &old, &out);
        free_values(&out);
    }
    /* two begins, three flushes, and writes and reads back of several files */
    ck_assert_int_gt(calls, 12);
    close_store(&store);
    free_values(&old);
    free_values(&new);
    scratch_finish(&s);
}
END_TEST

/* A disk that is full, as far as a limit of the size of files is one. */
START_TEST(full_disk)
{
    struct scratch s;
    struct values in = make_values(22);
    const struct rlimit limit = {1 << 20, RLIM_INFINITY};
    scratch_init(&s);
    signal(SIGXFSZ, SIG_IGN);
    for (settings.direct = 0; settings.direct < 2; settings.direct++) {
        const struct member like = {.dir = s.dir, .values = &in, .deal = deal_flat, .step = 1};
        setrlimit(RLIMIT_FSIZE, &limit);
        ck_refused(save_as(&like, 2), HD_E_IO, "File too large");
        ck_assert_ptr_nonnull(strstr(err.message, ".safetensors"));
        ck_assert_int_ne(access(scratch_path(&s, ".tmp-step-00000001"), F_OK), 0);
    }
    free_values(&in);
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"resharding", resharding},
        {"files", files},
        {"housekeeping", housekeeping},
        {"runs of a folder", runs_of_a_folder},
        {"an old one stays", an_old_one_stays},
        {"leftovers", leftovers},
        {"not files", not_files},
        {"other model", other_model},
        {"flipped bits", flipped_bits},
        {"hostile index", hostile_index},
        {"bad saves", bad_saves},
        {"gathers of checksums", gathers_of_checksums},
        {"background", background},
        {"killed", killed_while_saving},
        {"every call fails", every_call_fails},
        {"full disk", full_disk},
        {NULL, NULL},
    };
    return scratch_run("checkpoint", tests);
}
