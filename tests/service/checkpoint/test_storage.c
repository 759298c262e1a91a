/* A storage plugin that says that it has committed and has not, and slots that fail without a message or with a code
 * that is no HD_E_: each is an error by name, and no checkpoint is lost in silence. */
#include "heddle/plugin.h"
#include "service/checkpoint/checkpoint.h"
#include "tests/support/scratch.h"

const struct hd_plugin *heddle_plugin_v1_posix(void);

static struct hd_error err = HD_ERROR_INIT;
static struct hd_ckpt_ops real;
static int32_t said;

static int32_t commit_nothing(struct hd_ckpt_tx *tx, struct hd_error *e)
{
    (void)e;
    real.cancel(tx);
    return HD_OK;
}

static int32_t commit_silently(struct hd_ckpt_tx *tx, struct hd_error *e)
{
    (void)e;
    real.cancel(tx);
    return said;
}

static int32_t begin_silently(struct hd_ckpt *ckpt, const char *name, int32_t leader, struct hd_ckpt_tx **tx,
                              struct hd_error *e)
{
    (void)ckpt, (void)name, (void)leader, (void)tx, (void)e;
    return said;
}

static int32_t write_silently(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, const void *data,
                              uint64_t bytes, struct hd_error *e)
{
    (void)tx, (void)file, (void)offset, (void)data, (void)bytes, (void)e;
    return said;
}

static int32_t flush_silently(struct hd_ckpt_tx *tx, struct hd_error *e)
{
    (void)tx, (void)e;
    return said;
}

static int32_t read_silently(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t offset, void *data,
                             uint64_t bytes, struct hd_error *e)
{
    (void)ckpt, (void)name, (void)file, (void)offset, (void)data, (void)bytes, (void)e;
    return said;
}

static int32_t size_silently(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t *bytes,
                             struct hd_error *e)
{
    (void)ckpt, (void)name, (void)file, (void)bytes, (void)e;
    return said;
}

static struct hd__ckpt_store open_store(const struct scratch *s, const struct hd_ckpt_ops *ops)
{
    static const struct hd_host host = {.struct_size = sizeof host};
    static int32_t settings[2]; /* direct, fsync: neither */
    struct hd__ckpt_store store = {.ops = ops, .threads = 1};
    ck_ok(real.open(&host, settings, s->dir, &store.ckpt, &err));
    return store;
}

/* Saves, and loads where that was done. */
static int32_t use(const struct hd__ckpt_store *store)
{
    static const struct hd__ckpt_tensor tensor = {"model", "w", HD_F32, 1, {5}};
    float values[5] = {1, 2, 3, 4, 5};
    const struct hd__ckpt_run run = {.count = 5, .data = values};
    const struct hd__ckpt_save save = {.step = 1, .tensors = &tensor, .runs = &run, .n_tensors = 1, .n_runs = 1};
    struct hd__ckpt *ckpt = NULL;
    err = (struct hd_error)HD_ERROR_INIT;
    int32_t rc = hd__ckpt_save(store, &save, &err);
    if (!rc)
        rc = hd__ckpt_open(store, "step-00000001", &ckpt, &err);
    if (!rc)
        rc = hd__ckpt_load(ckpt, &tensor, 1, &run, 1, &err);
    hd__ckpt_close(ckpt);
    return rc;
}

START_TEST(commits_nothing)
{
    struct scratch s;
    struct hd_ckpt_ops ops = real = *(const struct hd_ckpt_ops *)heddle_plugin_v1_posix()->components[0]->ops;
    scratch_init(&s);
    ops.commit = commit_nothing;
    struct hd__ckpt_store store = open_store(&s, &ops);
    ck_refused(use(&store), HD_E_NOTFOUND,
               "the storage has committed step-00000001, and its index.json is not there: nothing was saved");
    ops = real;
    ck_ok(use(&store));
    real.close(store.ckpt);
    scratch_finish(&s);
}
END_TEST

START_TEST(fails_silently)
{
    static const char *const slots[] = {"begin", "write", "flush", "commit", "read"};
    char words[96];
    real = *(const struct hd_ckpt_ops *)heddle_plugin_v1_posix()->components[0]->ops;
    for (size_t i = 0; i < HD__COUNT(slots); i++)
        for (int turn = 0; turn < 2; turn++) {
            struct scratch s;
            struct hd_ckpt_ops ops = real;
            scratch_init(&s);
            struct hd__ckpt_store store = open_store(&s, &ops);
            ops.begin = i == 0 ? begin_silently : real.begin;
            ops.write = i == 1 ? write_silently : real.write;
            ops.flush = i == 2 ? flush_silently : real.flush;
            ops.commit = i == 3 ? commit_silently : real.commit;
            ops.read = i == 4 ? read_silently : real.read;
            said = turn ? 7 : HD_E_IO;
            snprintf(words, sizeof words,
                     turn ? "the storage's %s returned 7, which is no HD_E_ code"
                          : "the storage's %s failed (code -4) without a message (hd_fail)",
                     slots[i]);
            ck_refused(use(&store), turn ? HD_E_INTERNAL : HD_E_IO, words);
            real.close(store.ckpt);
            scratch_finish(&s);
        }
}
END_TEST

START_TEST(no_size)
{
    struct scratch s;
    struct hd_ckpt_ops ops = real = *(const struct hd_ckpt_ops *)heddle_plugin_v1_posix()->components[0]->ops;
    struct hd__ckpt *ckpt = NULL;
    scratch_init(&s);
    struct hd__ckpt_store store = open_store(&s, &ops);
    ck_ok(use(&store));
    ops.size = size_silently;
    said = HD_E_IO;
    err = (struct hd_error)HD_ERROR_INIT;
    ck_refused(hd__ckpt_open(&store, "step-00000001", &ckpt, &err), HD_E_IO,
               "the storage's size failed (code -4) without a message (hd_fail)");
    real.close(store.ckpt);
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"commits nothing", commits_nothing}, {"fails silently", fails_silently}, {"no size", no_size}, {NULL, NULL}};
    return scratch_run("storage", tests);
}
