/* One checkpoint of GPT-2 124M's size (three groups of fp32 tensors, 1.49 GB) written and loaded, in MB/s
 * (10^6).
 *
 *     bench/checkpoint/run.sh [FOLDER]      builds this and alternates it with dd on the same disk
 *
 * save: from the call to the return of hd__ckpt_save: hashed, fsynced, renamed. cpu: user and system seconds
 * of the process. */
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "heddle/plugin.h"
#include "service/checkpoint/checkpoint.h"

const struct hd_plugin *heddle_plugin_v1_posix(void);

enum { LAYERS = 12, HIDDEN = 768, VOCAB = 50304, CONTEXT = 1024 };

static struct hd__ckpt_tensor tensors[1024];
static struct hd__ckpt_run runs[1024];
static uint32_t count;
static uint64_t bytes;

static void add(const char *group, const char *name, int64_t rows, int64_t columns)
{
    struct hd__ckpt_tensor *t = &tensors[count];
    *t = (struct hd__ckpt_tensor){group, strdup(name), HD_F32, columns ? 2 : 1, {rows, columns}};
    int64_t n = rows * (columns ? columns : 1);
    uint64_t *data = malloc((size_t)n * 4 + 8), state = count + 1;
    for (int64_t i = 0; i < (n + 1) / 2; i++) /* nothing that a disk could compress */
    {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
        data[i] = state ^ state >> 29;
    }
    runs[count] = (struct hd__ckpt_run){count, 0, 0, n, data};
    bytes += (uint64_t)n * 4;
    count++;
}

static void add_group(const char *group)
{
    static const struct {
        const char *name;
        int64_t rows, columns;
    } layer[] = {{"ln_1.weight", HIDDEN, 0},
                 {"attn.c_attn.weight", HIDDEN, 3 * HIDDEN},
                 {"attn.c_attn.bias", 3 * HIDDEN, 0},
                 {"attn.c_proj.weight", HIDDEN, HIDDEN},
                 {"attn.c_proj.bias", HIDDEN, 0},
                 {"ln_2.weight", HIDDEN, 0},
                 {"mlp.c_fc.weight", HIDDEN, 4 * HIDDEN},
                 {"mlp.c_fc.bias", 4 * HIDDEN, 0},
                 {"mlp.c_proj.weight", 4 * HIDDEN, HIDDEN},
                 {"mlp.c_proj.bias", HIDDEN, 0}};
    add(group, "wte.weight", VOCAB, HIDDEN);
    add(group, "wpe.weight", CONTEXT, HIDDEN);
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < HD__COUNT(layer); i++) {
            char name[64];
            snprintf(name, sizeof name, "h.%d.%s", l, layer[i].name);
            add(group, name, layer[i].rows, layer[i].columns);
        }
    add(group, "ln_f.weight", HIDDEN, 0);
}

static double cpu(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static int fail(const struct hd_error *err)
{
    fprintf(stderr, "%s\n", err->message);
    return 1;
}

int main(int argc, char **argv)
{
    struct hd_error err = HD_ERROR_INIT;
    const struct hd_host host = {.struct_size = sizeof host};
    struct {
        int32_t direct, fsync;
    } settings = {argc > 2 ? atoi(argv[2]) : 1, 1};
    struct hd__ckpt_store store = {.ops = heddle_plugin_v1_posix()->components[0]->ops};
    struct hd__ckpt *c;
    if (argc < 2 || store.ops->open(&host, &settings, argv[1], &store.ckpt, &err))
        return fail(&err);
    add_group("model"), add_group("optim-exp_avg"), add_group("optim-exp_avg_sq");
    const struct hd__ckpt_save save = {
        .step = 1, .tensors = tensors, .n_tensors = count, .runs = runs, .n_runs = count};
    double used = cpu(), start = hd__now();
    if (hd__ckpt_save(&store, &save, &err))
        return fail(&err);
    double saved = hd__now() - start, work = cpu() - used;
    start = hd__now();
    if (hd__ckpt_open(&store, "step-00000001", &c, &err) || hd__ckpt_load(c, tensors, count, runs, count, &err))
        return fail(&err);
    printf("%s: %.2f GB save %.0f MB/s (%.2f s, cpu %.2f s), load %.0f MB/s\n", settings.direct ? "direct" : "cached",
           (double)bytes * 1e-9, (double)bytes * 1e-6 / saved, saved, work, (double)bytes * 1e-6 / (hd__now() - start));
    hd__ckpt_close(c);
    return store.ops->remove(store.ckpt, "step-00000001", &err) ? fail(&err) : 0;
}
