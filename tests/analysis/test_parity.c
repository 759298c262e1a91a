/* Random parity: jobs drawn at random train like one rank. All ranks are emulated in fp64 with reference
 * kernels, in one arena each at the planned offsets, events in random order: loss, gradient norm, gradients
 * and parameters agree within 1e-9 in two steps, of which the second begins with what the first one left, and in two
 * of each section where some come later (hd__numerics), and the token machine proves each job.
 *
 *     test_parity [DRAWS [SEED]] draws more, by hand */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "analysis/numerics.h"
#include "analysis/sim/machine.h"
#include "tests/analysis/blocks.h"
#include "tests/suite.h"
#include "tests/support/scratch.h"

#define TOLERANCE 1e-9

static uint32_t draws = 300;
static uint64_t seed = 1;
static uint64_t state;

static uint32_t pick(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

#define ONE_OF(...) one_of((const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static int64_t one_of(const int64_t *values, size_t n)
{
    return values[pick((uint32_t)n)];
}

struct draw {
    int64_t replicate, shard, cp, tp, accumulation, zero, sequence_parallel, vocab_parallel, kv_heads, tied, bucket, pp,
        layers, gather_bucket, prefetch, prefetch_backward, prefetch_size, max_inflight, persist_below, max_live,
        reshard, overlap, gather_in_forward, offload_optimizer, offload_params, ring;
    const char *family, *schedule, *recompute;

    int64_t loss_scale; /* precision */
    const char *grad, *reduce, *compress;
    int64_t warmup;
    int64_t ep, experts, top_k; /* mixtral; ep 1 and experts 0 for others */
    const char *capacity;
    int64_t window; /* of attention; 0: all */
    int64_t split;  /* layers by measured times, in so many files; 0: evenly */
    int64_t vocab;  /* tp need not divide it */
    int documents;  /* data.documents: mask */
};

static struct scratch scratch;

/* 0 where a job checker would refuse: what does not divide. */
static int draw(struct draw *d)
{
    *d = (struct draw){.replicate = ONE_OF(1, 1, 1, 2),
                       .shard = ONE_OF(1, 2, 2, 4),
                       .cp = ONE_OF(1, 1, 1, 2, 2, 4),
                       .pp = ONE_OF(1, 1, 1, 2, 2, 3, 4),
                       .tp = ONE_OF(1, 1, 2, 2, 4),
                       .accumulation = ONE_OF(1, 2, 4),
                       .zero = ONE_OF(0, 0, 1, 1, 2, 3),
                       .sequence_parallel = ONE_OF(0, 1),
                       .vocab_parallel = ONE_OF(0, 1, 1),
                       .kv_heads = ONE_OF(1, 2, 4),
                       .tied = ONE_OF(0, 1),
                       .bucket = ONE_OF(0, 0, 4000, 25000000),
                       .gather_bucket = ONE_OF(0, 0, 8000, 25000000),
                       .prefetch = ONE_OF(0, 1, 1, 2),
                       .prefetch_backward = ONE_OF(0, 1, 1, 3),
                       .prefetch_size = ONE_OF(0, 0, 0, 3000),
                       .max_inflight = ONE_OF(0, 0, 0, 1),
                       .persist_below = ONE_OF(0, 0, 20, 100),
                       .max_live = ONE_OF(0, 0, 0, 4000),
                       .reshard = ONE_OF(0, 1, 1),
                       .overlap = ONE_OF(0, 1, 1),
                       .offload_optimizer = ONE_OF(0, 0, 1, 2),
                       .offload_params = ONE_OF(0, 0, 1),
                       .ring = ONE_OF(0, 1)};
    d->loss_scale = ONE_OF(1, 1, 64, 1000);
    d->grad = pick(8) ? "fp32" : "bf16"; /* accumulated in fp64 here; what travels in a dtype of its own does so */
    d->reduce = (const char *const[]){"fp32", "fp32", "fp32", "fp32", "bf16", "fp16"}[pick(6)];
    d->compress =
        (const char *const[]){"none", "none", "none", "none", "none", "fp16", "int8", "int4", "powersgd"}[pick(9)];
    d->warmup = ONE_OF(0, 0, 1, 2);
    if (strcmp(d->grad, d->reduce) != 0)
        d->compress = "none";
    if (d->compress[0] == 'i' && (d->zero > 1 || (d->zero && d->replicate > 1) || d->loss_scale > 1))
        d->compress = "none";
    if (!strcmp(d->compress, "powersgd") && (d->zero > 1 || d->loss_scale > 1))
        d->compress = "none";
    if (strcmp(d->compress, "powersgd") != 0 && d->compress[0] != 'i')
        d->warmup = 0;
    d->family = (const char *const[]){"llama", "gpt2", "qwen3", "mixtral", "mixtral"}[pick(5)];
    d->ep = 1;
    if (!strcmp(d->family, "mixtral")) {
        d->experts = ONE_OF(3, 4, 4, 4, 6);
        d->ep = ONE_OF(1, 2, 2, 3, 4);
        d->top_k = ONE_OF(1, 2, 2, 3);
        d->capacity = (const char *const[]){"dropless", "dropless", "1", "1.5"}[pick(4)];
        if (d->experts % d->ep)
            return 0;
    }
    d->schedule = (const char *const[]){"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}[pick(5)];
    d->recompute = (const char *const[]){"none", "selective", "full", "{every: 2}"}[pick(4)];
    d->layers = !strcmp(d->schedule, "interleaved") || !strcmp(d->schedule, "zb-v") ? 2 * d->pp : HD__MAX(2, d->pp);
    if (!strcmp(d->family, "gpt2"))
        d->kv_heads = 4;
    d->window = strcmp(d->family, "llama") && strcmp(d->family, "mixtral") ? 0 : ONE_OF(0, 0, 1, 2, 3, 5);
    d->split = d->pp > 1 ? ONE_OF(0, 0, 1, 2) : 0;
    if (d->split)
        d->layers += ONE_OF(0, 1, 2, 3);
    d->gather_in_forward = ONE_OF(0, 1, 1);
    d->vocab = ONE_OF(32, 32, 29, 31, 33);
    d->documents = d->compress[0] != 'i' && strcmp(d->compress, "powersgd") != 0 && state >> 60 & 1;
    int64_t ranks = d->replicate * d->shard * d->cp * d->tp * d->pp * d->ep;
    if (ranks == 1 && pick(10))
        return 0;
    if (d->zero && d->replicate > 1 && d->shard == 1 && d->cp == 1)
        return 0; /* refused: it would shard nothing */
    if (ranks > 16 || (16 * (d->ep == 3 ? 3 : 1)) % (d->replicate * d->shard * d->ep * d->accumulation))
        return 0;
    if (d->sequence_parallel && 8 % (d->cp * d->tp))
        return 0;
    if (!strcmp(d->schedule, "interleaved") && d->accumulation % d->pp)
        return 0;
    return 1;
}

static void precision_text(const struct draw *d, struct hd__text *text)
{
    hd__text_add(text, "precision: {grad: %s, reduce: %s", d->grad, d->reduce);
    if (d->loss_scale > 1)
        hd__text_add(text, ", loss_scale: %lld", (long long)d->loss_scale);
    hd__text_add(text, "}\n");
}

/* A layer may take ten times as long as another one, and embedding and head too. */
static const char *measured(const struct draw *d)
{
    const char *path = scratch_path(&scratch, "blocks.csv");
    double seconds[32];
    ck_assert_int_le(d->layers + 2, (int64_t)HD__COUNT(seconds));
    for (int64_t b = 0; b < d->layers + 2; b++)
        seconds[b] = 1e-3 * (1 + pick(10));
    write_blocks(path, seconds, (int)d->layers, (int)d->split);
    return path;
}

static void job_text(const struct draw *d, struct hd__text *text)
{
    hd__text_add(text, "job: {name: parity, steps: 3}\n");
    hd__text_add(text, "mesh: {pp: %lld, dp: {replicate: %lld, shard: %lld}, cp: %lld, ep: %lld, tp: %lld}\n",
                 (long long)d->pp, (long long)d->replicate, (long long)d->shard, (long long)d->cp, (long long)d->ep,
                 (long long)d->tp);
    hd__text_add(
        text,
        "strategies:\n  - {use: 3d, schedule: %s, sequence_parallel: %s, vocab_parallel: %s, context: %s, split: %s}\n",
        d->schedule, d->sequence_parallel ? "true" : "false", d->vocab_parallel ? "true" : "false",
        d->ring ? "ring" : "auto", d->split ? measured(d) : "layers");
    hd__text_add(
        text,
        "  - {use: zero, stage: %lld, bucket: %lld, gather_bucket: %lld, prefetch: %lld, prefetch_backward: %lld,\n",
        (long long)d->zero, (long long)d->bucket, (long long)d->gather_bucket, (long long)d->prefetch,
        (long long)d->prefetch_backward);
    hd__text_add(
        text,
        "     prefetch_size: %lld, max_inflight: %lld, persist_below: %lld, max_live: %lld, reshard_after_forward: %s, "
        "compress: {kind: %s, block: 64, rank: 64, warmup: %lld}, gather_in_forward: %s, overlap: %s",
        (long long)d->prefetch_size, (long long)d->max_inflight, (long long)d->persist_below, (long long)d->max_live,
        d->reshard ? "true" : "false", d->compress, (long long)d->warmup, d->gather_in_forward ? "true" : "false",
        d->overlap ? "true" : "false");
    hd__text_add(text, ", offload: {optimizer: %s%s, params: %s}}\n",
                 d->offload_optimizer == 2 ? "file"
                 : d->offload_optimizer    ? "host"
                                           : "none",
                 d->offload_optimizer == 2 ? ", path: /tmp" : "", d->zero == 3 && d->offload_params ? "host" : "none");
    precision_text(d, text);
    hd__text_add(text, "recompute: %s\n", d->recompute);
    hd__text_add(text, "optimizer: {use: adamw, lr: 1e-2, weight_decay: 0.1, clip: 1.0}\n");
    hd__text_add(text,
                 "model: {use: transformer, family: %s, layers: %lld, hidden: 16, heads: 4, kv_heads: %lld, "
                 "ffn: 32, vocab: %lld, "
                 "max_seq_len: 8, tied: %s",
                 d->family, (long long)d->layers, (long long)d->kv_heads, (long long)d->vocab,
                 d->tied ? "true" : "false");
    if (d->window)
        hd__text_add(text, ", sliding_window: %lld", (long long)d->window);
    if (d->experts)
        hd__text_add(text,
                     ", experts: %lld, experts_per_token: %lld, capacity: %s, router_aux_loss_coef: 0.3, "
                     "router_z_loss_coef: 0.1",
                     (long long)d->experts, (long long)d->top_k, d->capacity);
    int64_t batch = d->ep == 3 ? 48 : 16;
    hd__text_add(text, "}\ndata: {train: none, seq_len: 8, batch: %lld, micro_batch: %lld, documents: %s}\n",
                 (long long)batch, (long long)(batch / (d->replicate * d->shard * d->ep * d->accumulation)),
                 d->documents ? "mask" : "continue");
}

START_TEST(jobs_on_any_mesh_train_like_one_rank)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__plugins *plugins = hd__plugins_create(hd__exec_host_table());
    struct hd__numerics worst = {0};
    double began = hd__now(), ratio = 1;
    uint32_t splits = 0, padded = 0;
    scratch_init(&scratch);
    ck_assert_msg(hd__plugins_add_folder(plugins, PLUGINS, &err) == HD_OK, "%s", err.message);
    state = seed;
    for (uint32_t done = 0; done < draws;) {
        struct draw d;
        struct hd__text text = {0};
        struct hd__numerics result;
        if (!draw(&d))
            continue;
        job_text(&d, &text);
        ck_assert_msg(hd__numerics_text(text.at, NULL, 0, plugins, d.warmup == 1 ? 3 : 2, done, &result, &err) == HD_OK,
                      "draw %u: %s\n%s", done, err.message, text.at);
        ck_assert_msg(!result.failed[0] && result.worst < TOLERANCE, "draw %u: %s, %s differs by %.2e\n%s", done,
                      result.failed, result.where, result.worst, text.at);
        worst = result.worst > worst.worst ? result : worst;
        ratio = HD__MAX(ratio, result.memory_ratio);
        splits += d.split > 0;
        padded += d.vocab_parallel && d.vocab % d.tp;
        hd__text_free(&text);
        done++;
    }
    fprintf(
        stderr,
        "parity: %u draws in %.1f s, %u with measured splits, %u with a padded vocabulary, worst difference %.1e (%s), "
        "worst memory ratio %.3f\n",
        draws, hd__now() - began, splits, padded, worst.worst, worst.where, ratio);
    ck_assert_uint_gt(splits, 0);
    ck_assert_uint_gt(padded, 0);
    scratch_finish(&scratch);
    hd__plugins_destroy(plugins);
}
END_TEST

int main(int argc, char **argv)
{
    TCase *c = tcase_create("parity");
    if (argc > 1)
        draws = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    tcase_set_timeout(c, argc > 1 ? 36000 : 290);
    tcase_add_test(c, jobs_on_any_mesh_train_like_one_rank);
    return suite_run_case("parity", c);
}
