/* Good jobs: every key where it belongs, defaults, the command line, the mesh, printing and reading back. */
#include <math.h>

#include "core/base/dtype.h"
#include "tests/core/job/common.h"
#include "tests/suite.h"

START_TEST(every_key)
{
    struct hd__job *j = load(full_job, NULL, NULL, NULL);
    ck_assert_str_eq(j->name, "kjv");
    ck_assert_int_eq(j->steps, 300);
    ck_assert_int_eq(j->seed, 7);
    ck_assert_int_eq(j->deterministic, HD__DETERMINISTIC_EXACT);
    ck_assert_int_eq(j->launch_ranks, 4);
    ck_assert_uint_eq(j->plugin_path.count, 2);
    ck_assert_str_eq(j->plugin_path.text[1], "./b");
    ck_assert_double_eq(j->comm_timeout, 120);
    ck_assert_double_eq(j->comm_dead_after, 5);
    ck_assert_double_eq(j->late_after, 10);
    ck_assert_int_eq(j->flight_operations, 64);
    ck_assert_int_eq(j->schedule.kind, HD__LR_COSINE);
    ck_assert_int_eq(j->schedule.warmup, 100);
    ck_assert_double_eq(j->schedule.min_lr, 3e-5);
    ck_assert_uint_eq(j->train.count, 2);
    ck_assert_uint_eq(j->train.weighted, 1);
    ck_assert_str_eq(j->train.at[1].path, "b.txt");
    ck_assert_double_eq(j->train.at[0].weight, 0.7);
    ck_assert_uint_eq(j->val.count, 1);
    ck_assert_str_eq(j->val.at[0].path, "v.txt");
    ck_assert_uint_eq(j->val.weighted, 0);
    ck_assert_int_eq(j->seq_len, 256);
    ck_assert_int_eq(j->batch, 32);
    ck_assert_int_eq(j->shuffle, 0);
    ck_assert_int_eq(j->eval_every, 100);
    ck_assert_int_eq(j->eval_batches, 5);
    ck_assert_uint_eq(j->precision.compute, HD_BF16);
    ck_assert_uint_eq(j->precision.grad, HD_F32);
    ck_assert_uint_eq(j->precision.reduce, HD_BF16);
    ck_assert_uint_eq(j->precision.loss_scaling, HD__LOSS_SCALE_NONE);
    ck_assert_int_eq(j->recompute, HD__RECOMPUTE_EVERY);
    ck_assert_int_eq(j->recompute_every, 2);
    ck_assert_str_eq(j->checkpoint_dir, "out");
    ck_assert_int_eq(j->checkpoint_every, 100);
    ck_assert_int_eq(j->checkpoint_keep, 2);
    ck_assert_int_eq(j->checkpoint_async, 0);
    ck_assert_str_eq(j->resume, "never");
    ck_assert_int_eq(j->metrics_every, 10);
    ck_assert_str_eq(j->metrics_jsonl, "m.jsonl");
    hd__job_free(j);
}
END_TEST

/* Each dtype of class FLOAT can be chosen by its name. */
START_TEST(dtypes)
{
    for (uint32_t n = 0, d; (d = hd__dtype_float_at(n)); n++) {
        char override[64];
        snprintf(override, sizeof override, "precision.master=%s", hd_dtype_name(d));
        struct hd__job *j = load(small_job, override, NULL, NULL);
        ck_assert_uint_eq(j->precision.master, d);
        hd__job_free(j);
    }
}
END_TEST

/* comm.dead_after is an older name: one value is there, that of the command line where both say one. */
START_TEST(dead_after)
{
    static const struct {
        const char *file, *words[2];
        double want;
    } rows[] = {{"comm: {dead_after: 2s}\n", {NULL}, 2},
                {"", {"comm.dead_after=3s"}, 3},
                {"comm: {dead_after: 2s}\n", {"liveness.dead_after=4s"}, 4},
                {"liveness: {dead_after: 2s}\n", {"comm.dead_after=6s"}, 6}};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        char *text = hd__format("%s%s", small_job, rows[i].file);
        struct hd__job *j = load(text, rows[i].words[0], rows[i].words[1], NULL);
        ck_assert_double_eq(j->comm_dead_after, rows[i].want);
        ck_assert_double_eq(json_number_value(hd__job_value_get(j, "liveness.dead_after")->json), rows[i].want);
        ck_assert_ptr_null(hd__job_value_get(j, "comm.dead_after"));
        hd__job_free(j);
        free(text);
    }
}
END_TEST

START_TEST(components)
{
    struct hd__job *j = load(full_job, NULL, NULL, NULL);
    ck_assert_str_eq(j->device->use, "cpu");
    ck_assert_uint_eq(j->device->kind, HD_KIND_DEVICE);
    ck_assert_str_eq(j->optimizer->origin, "job.yaml:12:19");
    ck_assert_uint_eq(j->n_strategies, 2);
    ck_assert_str_eq(j->strategies[1]->use, "zero");
    ck_assert_str_eq(j->strategies[1]->path, "strategies.zero");
    ck_assert_str_eq(j->checkpoint->use, "posix");
    ck_assert_str_eq(j->comm->use, "shm");
    ck_assert_str_eq(j->comm_axis[HD_AXIS_DP_REPLICATE]->use, "mpi");
    ck_assert_ptr_eq(j->comm_axis[HD_AXIS_DP_REPLICATE], j->comm_axis[HD_AXIS_DP_SHARD]);
    ck_assert_str_eq(j->comm_axis[HD_AXIS_TP]->use, "fast");
    ck_assert_ptr_eq(j->comm_axis[HD_AXIS_TP], j->comm_axis[HD_AXIS_TQ]);
    ck_assert_ptr_eq(j->comm_axis[HD_AXIS_PP], j->comm);
    ck_assert_uint_eq(j->n_hooks, 2);
    ck_assert_str_eq(j->hooks[0]->use, "check");
    ck_assert_str_eq(j->hooks[1]->use, "faults");
    ck_assert_uint_eq(j->n_sinks, 3);
    ck_assert_str_eq(j->sinks[0]->use, "tensorboard");
    ck_assert_str_eq(j->sinks[0]->path, "metrics.tensorboard");
    ck_assert_str_eq(j->sinks[1]->use, "other");
    ck_assert_str_eq(j->sinks[2]->use, "lines");
    ck_assert_str_eq(j->sinks[2]->path, "metrics.sinks.1");
    ck_assert_uint_eq(j->sinks[2]->kind, HD_KIND_METRICS);
    struct plugin_settings s;
    ck_assert_int_eq(parse_section(j, j->comm, &s), HD_OK); /* the core's keys are no concern of the plugin's */
    ck_assert_int_eq(s.stage, 0);
    ck_assert_int_eq(parse_section(j, j->comm_axis[HD_AXIS_TP], &s), HD_OK);
    ck_assert_int_eq(s.stage, 2);
    ck_assert_int_eq(parse_section(j, j->hooks[0], &s), HD_OK);
    ck_assert_int_eq(s.stage, 0);
    ck_assert_int_eq(parse_section(j, j->hooks[1], &s), HD_OK);
    ck_assert_int_eq(s.stage, 3);
    ck_assert_int_eq(parse_section(j, j->sinks[1], &s), HD_OK);
    ck_assert_int_eq(s.stage, 0);
    ck_assert_int_eq(parse_section(j, j->sinks[2], &s), HD_OK);
    ck_assert_int_eq(s.stage, 4);
    ck_assert_int_eq(parse_section(j, j->checkpoint, &s), HD_OK);
    ck_assert_int_eq(s.stage, 1);
    ck_assert_str_eq(j->data->use, "tokens");
    ck_assert_str_eq(j->data->origin, "default");
    ck_assert_int_eq(parse_section(j, j->data, &s), HD_OK);
    ck_assert_int_eq(s.stage, 7);
    ck_assert_int_eq(parse_section(j, j->strategies[1], &s), HD_OK);
    ck_assert_int_eq(s.stage, 3);
    ck_assert_int_eq(s.bucket, 25000000);
    ck_assert_int_eq(s.order, 1);
    hd__job_free(j);
}
END_TEST

START_TEST(axes)
{
    static const char text[] = "comm: {axes: {dp_shard: shm, dp: mpi, pp: mpi}}\n";
    char *all = hd__format("%s%s", small_job, text);
    struct hd__job *j = load(all, NULL, NULL, NULL);
    ck_assert_str_eq(j->comm->use, "shm");
    ck_assert_str_eq(j->comm->origin, "default");
    ck_assert_ptr_eq(j->comm_axis[HD_AXIS_DP_SHARD], j->comm); /* shared with what is there, and finer than dp */
    ck_assert_str_eq(j->comm_axis[HD_AXIS_DP_REPLICATE]->use, "mpi");
    ck_assert_ptr_eq(j->comm_axis[HD_AXIS_PP], j->comm_axis[HD_AXIS_DP_REPLICATE]);
    hd__job_free(j);
    free(all);
}
END_TEST

START_TEST(defaults)
{
    struct hd__job *j = load(small_job, NULL, NULL, NULL);
    ck_assert_int_eq(hd__job_resolve(j, 0, &err), HD_OK);
    ck_assert_str_eq(j->name, "job");
    ck_assert_int_eq(j->seed, 1337);
    ck_assert_str_eq(j->device->use, "cpu");
    ck_assert_uint_eq(j->n_strategies, 1);
    ck_assert_str_eq(j->strategies[0]->use, "zero");
    ck_assert_str_eq(j->strategies[0]->origin, "default");
    ck_assert_ptr_null(j->checkpoint);
    ck_assert_double_eq(j->val_fraction, 0);
    ck_assert_int_eq(j->shuffle, 1);
    ck_assert_int_eq(j->schedule.kind, HD__LR_CONSTANT);
    ck_assert_int_eq(j->schedule.warmup, 0);
    ck_assert_int_eq(j->eval_every, 0);
    ck_assert_uint_eq(j->precision.compute, HD_F32);
    ck_assert_uint_eq(j->precision.optimizer, HD_F32);
    ck_assert_int_eq(j->recompute, HD__RECOMPUTE_NONE);
    ck_assert_int_eq(j->metrics_every, 1);
    ck_assert_str_eq(j->metrics_jsonl, "runs/job/metrics.jsonl");
    ck_assert_uint_eq(j->n_sinks, 0);
    ck_assert_int_eq(j->ranks, 1);
    ck_assert_int_eq(j->micro_batch, 4);
    ck_assert_int_eq(j->accumulation, 1);
    for (int a = 0; a < HD_AXIS_COUNT; a++)
        ck_assert_int_eq(j->mesh[a], 1);
    hd__job_free(j);
    j = load(small_job, "checkpoint.every=5", "job.name=x", "strategies.zero.stage=1");
    ck_assert_str_eq(j->checkpoint->use, "posix");
    ck_assert_str_eq(j->checkpoint_dir, "runs/x/checkpoints");
    ck_assert_str_eq(j->resume, "auto");
    ck_assert_int_eq(j->checkpoint_keep, 3);
    struct plugin_settings s;
    ck_assert_int_eq(parse_section(j, j->strategies[0], &s), HD_OK);
    ck_assert_int_eq(s.stage, 1);
    hd__job_free(j);
}
END_TEST

/* Values that ranks must agree on: texts, of paths the names; nothing that each rank may have for itself. */
START_TEST(global_values)
{
    static const char text[] = "checkpoint: {dir: /saves/a, resume: /saves/a/step-00000007}\n"
                               "metrics: {blocks: /d/blocks.csv}\n";
    static const char *const overrides[] = {
        "data.val=[{\"path\":\"/d/b.txt\",\"weight\":2},{\"path\":\"c.txt\",\"weight\":1}]", "job.seed=7",
        "metrics.every=5", NULL};
    static const char *const own[] = {
        "job.name",      "launch.ranks",    "plugins.path",      "liveness.late_after", "liveness.operations",
        "comm.tune",     "comm.progress",   "data.check_tokens", "data.cache",          "checkpoint.dir",
        "metrics.jsonl", "watch.throughput"};
    static const char *const steps[] = {"device.capture", "metrics.profile", "metrics.blocks"};
    char *all = hd__format("%s%s", small_job, text), *val;
    struct hd__job *j = load(all, overrides[0], overrides[1], overrides[2]);
    json_t *global = hd__job_global_json(j);
    ck_assert_str_eq(json_string_value(json_object_get(global, "job.seed")), "7");
    ck_assert_str_eq(json_string_value(json_object_get(global, "data.shuffle")), "true");
    ck_assert_str_eq(json_string_value(json_object_get(global, "checkpoint.resume")), "step-00000007");
    ck_assert_str_eq(json_string_value(json_object_get(global, "comm.use")), "shm");
    ck_assert_str_eq(json_string_value(json_object_get(global, "metrics.every")),
                     "5"); /* all ranks have part in a row */
    val = json_dumps(json_object_get(global, "data.val"), JSON_COMPACT | JSON_SORT_KEYS);
    ck_assert_str_eq(val, "[{\"path\":\"b.txt\",\"weight\":2},{\"path\":\"c.txt\",\"weight\":1}]");
    for (size_t i = 0; i < HD__COUNT(own); i++)
        ck_assert_msg(!json_object_get(global, own[i]), "%s is compared", own[i]);
    for (size_t i = 0; i < HD__COUNT(steps); i++) /* an operation is captured on all ranks or on none */
        ck_assert_msg(json_object_get(global, steps[i]) != NULL, "%s is not compared", steps[i]);
    json_decref(global);
    hd__job_free(j);
    free(val);
    free(all);
}
END_TEST

START_TEST(file_name)
{
    struct hd__job *j = NULL;
    ck_assert_int_eq(hd__job_parse("some/dir/my job.v2.yaml", small_job, strlen(small_job), NULL, 0, &j, &err), HD_OK);
    ck_assert_str_eq(j->name, "my_job.v2");
    hd__job_free(j);
    char marked[2000]; /* as some editors begin UTF-8 */
    snprintf(marked, sizeof marked, "\xef\xbb\xbf%s", small_job);
    ck_assert_int_eq(hd__job_parse("marked.yaml", marked, strlen(marked), NULL, 0, &j, &err), HD_OK);
    hd__job_free(j);
    ck_assert_int_eq(hd__job_load("/nonexistent/x.yaml", NULL, 0, &j, &err), HD_E_INVALID);
    ck_assert_str_eq(err.message, "/nonexistent/x.yaml: cannot open the job file: No such file or directory");
    ck_assert_int_eq(hd__job_load("/", NULL, 0, &j, &err), HD_E_INVALID);
    ck_assert_str_eq(err.message, "/: cannot open the job file: not a regular file but a folder");
}
END_TEST

START_TEST(overrides)
{
    struct hd__job *j = load(full_job, "optimizer.lr=1e-2", "strategies.zero.stage=1", "strategies.0.order=1f1b");
    struct plugin_settings s;
    ck_assert_int_eq(parse_section(j, j->optimizer, &s), HD_OK);
    ck_assert_double_eq(s.lr, 1e-2);
    ck_assert_int_eq(parse_section(j, j->strategies[0], &s), HD_OK);
    ck_assert_int_eq(s.order, 1);
    ck_assert_int_eq(parse_section(j, j->strategies[1], &s), HD_OK);
    ck_assert_int_eq(s.stage, 1);
    ck_assert_str_eq(hd__job_where(j, "optimizer.lr"), "command line");
    ck_assert_str_eq(hd__job_where(j, "optimizer.betas"), "job.yaml:12:43");
    ck_assert_str_eq(hd__job_where(j, "strategies.zero.bucket"), "job.yaml:11:13");
    ck_assert_str_eq(hd__job_where(j, "strategies.zero.order"), "job.yaml:9:5");
    ck_assert_str_eq(hd__job_where(j, "data.order"), "job.yaml:15:1");
    ck_assert_str_eq(hd__job_where(j, "nothing.at.all"), "job.yaml:1:1");
    hd__job_free(j);
    j = load(full_job, "data.train=a: b # c.txt", "recompute=full", "comm.hooks=[\"trace\"]");
    ck_assert_str_eq(j->train.at[0].path, "a: b # c.txt");
    ck_assert_int_eq(j->recompute, HD__RECOMPUTE_FULL);
    ck_assert_uint_eq(j->n_hooks, 1);
    ck_assert_str_eq(j->hooks[0]->use, "trace");
    ck_assert(j->n_comm_levels == 1 && j->comm_levels[0] == 0);
    hd__job_free(j);
    j = load(full_job, "comm.levels=numa", NULL, NULL);
    ck_assert(j->n_comm_levels == 1 && j->comm_levels[0] == 2);
    hd__job_free(j);
    j = load(full_job, "comm.levels=[machine, numa]", NULL, NULL);
    ck_assert(j->n_comm_levels == 2 && j->comm_levels[0] == 0 && j->comm_levels[1] == 2);
    hd__job_free(j);
    j = load(full_job, "mesh.dp.replicate=2", "recompute.every=3", "data.train.0.path=z");
    ck_assert_int_eq(j->mesh_asked[HD_AXIS_DP_REPLICATE], 2);
    ck_assert_int_eq(j->mesh_asked[HD_AXIS_DP_SHARD], 0);
    ck_assert_int_eq(j->recompute_every, 3);
    ck_assert_str_eq(j->train.at[0].path, "z");
    hd__job_free(j);
    /* The later one wins; the command line wins over an alias in the file. */
    j = load("job: {steps: 1}\noptimizer: {use: sgd}\nmodel: {use: t}\ndata: {train: a, block_size: 4, "
             "global_batch: 2}\n",
             "data.batch=8", "data.seq_len=16", "data.batch=6");
    ck_assert_int_eq(j->batch, 6);
    ck_assert_int_eq(j->seq_len, 16);
    hd__job_free(j);
}
END_TEST

START_TEST(precision)
{
    static const struct {
        const char *override;
        uint32_t scaling;
        double scale;
    } cases[] = {
        {"precision.compute=fp16", HD__LOSS_SCALE_DYNAMIC, 65536},
        {"precision.compute=bf16", HD__LOSS_SCALE_NONE, 1},
        {"precision.grad=fp16", HD__LOSS_SCALE_DYNAMIC, 65536},
        {"precision.reduce=fp16", HD__LOSS_SCALE_DYNAMIC, 65536},
        {"precision.loss_scale=dynamic", HD__LOSS_SCALE_DYNAMIC, 65536},
        {"precision.loss_scale=128", HD__LOSS_SCALE_STATIC, 128},
        {"precision={compute: fp16, loss_scale: none}", HD__LOSS_SCALE_NONE, 1},
    };
    struct hd__job *j = load(small_job, cases[_i].override, NULL, NULL);
    ck_assert_uint_eq(j->precision.loss_scaling, cases[_i].scaling);
    ck_assert_double_eq(j->precision.loss_scale, cases[_i].scale);
    hd__job_free(j);
    j = load(small_job, "precision.compute=fp64", NULL, NULL);
    ck_assert_uint_eq(j->precision.compute, HD_F64);
    hd__job_free(j);
}
END_TEST

/* As any other word: quoted, as programs write JSON, and in any case. */
START_TEST(words_for_what_heddle_chooses)
{
    static const char *const values[] = {"auto", "\"auto\"", "AUTO"};
    for (size_t n = 0; n < HD__COUNT(values); n++) {
        char mesh[32], strategies[32];
        snprintf(mesh, sizeof mesh, "mesh=%s", values[n]);
        snprintf(strategies, sizeof strategies, "strategies=%s", values[n]);
        struct hd__job *j = load(small_job, mesh, strategies, NULL);
        ck_assert(j->auto_mesh && j->auto_strategies);
        hd__job_free(j);
    }
}
END_TEST

START_TEST(meshes)
{
    static const struct {
        const char *mesh;
        int64_t ranks, want[HD_AXIS_COUNT], accumulation, micro;
    } cases[] = {
        {"mesh={dp: auto}", 4, {1, 1, 4, 1, 1, 1, 1}, 1, 12},
        {"mesh={tp: 2, pp: 3}", 12, {3, 1, 2, 1, 1, 2, 1}, 1, 24},
        {"mesh={dp: {replicate: 2, shard: auto}, cp: 2}", 16, {1, 2, 4, 2, 1, 1, 1}, 1, 6},
        {"mesh={dp: {shard: 4}}", 8, {1, 2, 4, 1, 1, 1, 1}, 1, 6},
        {"mesh={dp: {replicate: 2, shard: 3}}", 0, {1, 2, 3, 1, 1, 1, 1}, 1, 8},
        {"mesh={dp: 2, ep: 4}", 8, {1, 1, 2, 1, 4, 1, 1}, 1, 6},
        {"mesh={tp: 8}", 0, {1, 1, 1, 1, 1, 8, 1}, 1, 48},
    };
    struct hd__job *j = load(small_job, "data.batch=48", cases[_i].mesh, NULL);
    ck_assert_msg(hd__job_resolve(j, cases[_i].ranks, &err) == HD_OK, "%s", err.message);
    for (int a = 0; a < HD_AXIS_COUNT; a++)
        ck_assert_int_eq(j->mesh[a], cases[_i].want[a]);
    ck_assert_int_eq(j->accumulation, cases[_i].accumulation);
    ck_assert_int_eq(j->micro_batch, cases[_i].micro);
    hd__job_free(j);
    j = load(small_job, "data.batch=48", cases[_i].mesh, "data.micro_batch=2"); /* the same, in micro-batches */
    ck_assert_int_eq(hd__job_resolve(j, cases[_i].ranks, &err), HD_OK);
    ck_assert_int_eq(j->micro_batch, 2);
    ck_assert_int_eq(j->accumulation, cases[_i].micro / 2);
    hd__job_free(j);
}
END_TEST

START_TEST(launch_ranks)
{
    struct hd__job *j = load(small_job, "launch.ranks=4", NULL, NULL);
    ck_assert_int_eq(hd__job_resolve(j, 0, &err), HD_OK);
    ck_assert_int_eq(j->ranks, 4);
    ck_assert_int_eq(hd__job_resolve(j, 2, &err), HD_OK); /* an outer launcher knows better; and again */
    ck_assert_int_eq(j->ranks, 2);
    ck_assert_int_eq(j->micro_batch, 2);
    hd__job_free(j);
}
END_TEST

/* launch.ranks is a machine's. Where there may be fewer of these dp follows, and the batch stays. */
START_TEST(launch_nodes)
{
    static const struct {
        const char *nodes, *mesh, *micro;
        int64_t ranks, all, dp, micro_batch, accumulation; /* ranks: asked for; all: that train */
    } rows[] = {
        {"launch.nodes=2", "launch.ranks=4", NULL, 0, 8, 8, 6, 1},
        {"launch.nodes=4", "mesh.dp=8", NULL, 0, 8, 8, 6, 1},
        {"launch.nodes=1:4", "mesh.dp=4", NULL, 3, 3, 3, 8, 2},
        {"launch.nodes=1:4", "mesh.dp=4", "data.micro_batch=3", 3, 3, 3, 2, 8},
        {"launch.nodes=1:4", "mesh.dp=4", "data.micro_batch=3", 2, 2, 2, 3, 8},
        {"launch.nodes=1:4", "mesh={dp: 4, tp: 2}", "data.micro_batch=3", 2, 2, 1, 3, 16},
        {"launch.nodes=1:8", "mesh.dp=8", "data.micro_batch=5", 7, 7, 7, 4, 2}, /* 7 each: not seven times 1 */
        {"launch.nodes=2:4", "mesh={dp: {replicate: 4, shard: 2}}", "data.micro_batch=6", 4, 4, 4, 6, 2},
    };
    struct hd__job *j;
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        j = load(small_job, rows[i].nodes, rows[i].mesh, rows[i].micro ? rows[i].micro : "data.seq_len=256");
        j->batch = 48;
        ck_assert_msg(hd__job_resolve(j, rows[i].ranks, &err) == HD_OK, "%zu: %s", i, err.message);
        ck_assert_int_eq(j->ranks, rows[i].all);
        ck_assert_int_eq(j->mesh[HD_AXIS_DP_REPLICATE] * j->mesh[HD_AXIS_DP_SHARD], rows[i].dp);
        ck_assert_int_eq(j->micro_batch, rows[i].micro_batch);
        ck_assert_int_eq(j->accumulation, rows[i].accumulation);
        hd__job_free(j);
    }
    j = load(small_job, "launch.nodes=1:4", "mesh.dp=4", "launch.scale_batch=sqrt");
    j->batch = 48;
    for (int64_t ranks = 4; ranks >= 1; ranks--) {
        ck_assert_int_eq(hd__job_resolve(j, ranks, &err), HD_OK);
        ck_assert_int_eq(j->batch, 12 * ranks);
        ck_assert_int_eq(j->micro_batch * j->accumulation * ranks, j->batch);
        ck_assert_double_eq_tol(j->lr_factor, sqrt((double)ranks / 4), 1e-15);
    }
    hd__job_free(j);
    j = load(small_job, "launch.nodes=1:4", "mesh.dp=4", "launch.scale_batch=linear");
    j->batch = 50;
    ck_assert_int_ne(hd__job_resolve(j, 3, &err), HD_OK);
    ck_assert_ptr_nonnull(strstr(err.message, "cannot be cut into equal parts for 4 machines"));
    ck_assert_ptr_nonnull(strstr(err.message, "nearest that work: data.batch=52"));
    hd__job_free(j);
    j = load(small_job, "launch.nodes=1:4", "mesh={dp: 4, tp: 2}", NULL);
    ck_assert_int_ne(hd__job_resolve(j, 3, &err), HD_OK);
    hd__job_free(j);
}
END_TEST

/* ---- printing */

static void parse_all(struct hd__job *j)
{
    struct plugin_settings s;
    struct hd__job_section *all[] = {
        j->device, j->comm, j->optimizer, j->data, j->model, j->checkpoint, j->comm_axis[HD_AXIS_TP]};
    for (size_t i = 0; i < HD__COUNT(all); i++)
        if (all[i])
            ck_assert_msg(!parse_section(j, all[i], &s), "%s", err.message);
    for (uint64_t i = 0; i < j->n_strategies; i++)
        ck_assert_int_eq(parse_section(j, j->strategies[i], &s), HD_OK);
    for (uint64_t i = 0; i < j->n_hooks; i++)
        ck_assert_int_eq(parse_section(j, j->hooks[i], &s), HD_OK);
    for (uint64_t i = 1; i < j->n_sinks; i++)
        ck_assert_int_eq(parse_section(j, j->sinks[i], &s), HD_OK);
}

static void same_values(const struct hd__job *a, const struct hd__job *b)
{
    ck_assert_uint_eq(a->values.count, b->values.count);
    for (uint32_t i = 0; i < a->values.count; i++) {
        const struct hd__job_value *value = &a->values.at[i], *other = NULL;
        for (uint32_t k = 0; k < b->values.count && !other; k++)
            if (!strcmp(b->values.at[k].path, value->path))
                other = &b->values.at[k];
        ck_assert_msg(other != NULL, "%s is lost", value->path);
        ck_assert_msg(!strcmp(value->path, "comm.axes") || !strcmp(value->path, "comm.hooks") ||
                          !strcmp(value->path, "metrics.sinks") || !strcmp(value->text, other->text),
                      "%s: %s, then %s", value->path, value->text, other->text);
    }
}

/* What is printed is a job, and the same one; whether or not plugins' sections and the mesh were resolved. */
START_TEST(round_trip)
{
    const char *text = _i & 1 ? full_job : small_job;
    struct hd__job *a = load(text, "data.train=a: \"b\".txt", "model.offload.path='no\ttabs \\ '", NULL);
    struct hd__text first = {0}, second = {0};
    if (_i & 2)
        ck_assert_int_eq(hd__job_resolve(a, 0, &err), HD_OK);
    if (_i & 4)
        parse_all(a);
    hd__job_print(a, &first);
    struct hd__job *b = load(first.at, NULL, NULL, NULL);
    if (_i & 2)
        ck_assert_int_eq(hd__job_resolve(b, 0, &err), HD_OK);
    if (_i & 4)
        parse_all(b);
    same_values(a, b);
    hd__job_print(b, &second);
    json_t *ja = hd__job_json(a), *jb = hd__job_json(b);
    ck_assert(json_equal(ja, jb));
    json_decref(ja);
    json_decref(jb);
    hd__job_free(a);
    hd__job_free(b);
    hd__text_free(&first);
    hd__text_free(&second);
}
END_TEST

START_TEST(printed)
{
    struct hd__job *j = load("job: {steps: 20, name: n}\n"
                             "optimizer: {use: sgd, lr: 1e-2, offload: {path: /tmp}}\n"
                             "model: {use: transformer, layers: 2}\n"
                             "comm: {axes: {dp: mpi, tp: {use: fast}}, hooks: [check]}\n"
                             "data: {train: [a.txt, b.txt], seq_len: 8, batch: 4}\n",
                             "job.seed=5", NULL, NULL);
    struct plugin_settings s;
    struct hd__text out = {0};
    ck_assert_int_eq(hd__job_resolve(j, 2, &err), HD_OK);
    ck_assert_int_eq(parse_section(j, j->optimizer, &s), HD_OK);
    ck_assert_str_eq(s.path, "/tmp");
    hd__job_print(j, &out);
    static const char want[] = "job:\n"
                               "  name: n                                        # job.yaml:1:24\n"
                               "  steps: 20                                      # job.yaml:1:14\n"
                               "  seed: 5                                        # command line\n"
                               "  deterministic: normal                          # default\n"
                               "launch:\n"
                               "  nodes: 1                                       # default\n"
                               "  scale_batch: never                             # default\n"
                               "  restarts: 0                                    # default\n"
                               "  pause: 30s                                     # default\n"
                               "  margin: 60s                                    # default\n"
                               "plugins:\n"
                               "  path: []                                       # default\n"
                               "device:\n"
                               "  use: cpu                                       # default\n"
                               "  staging: 4MiB                                  # default\n"
                               "  capture: true                                  # default\n"
                               "liveness:\n"
                               "  dead_after: 5s                                 # default\n"
                               "  late_after: 10s                                # default\n"
                               "  operations: 64                                 # default\n"
                               "comm:\n"
                               "  use: shm                                       # default\n"
                               "  axes:\n"
                               "    dp: mpi                                      # job.yaml:4:19\n"
                               "    tp:\n"
                               "      use: fast                                  # job.yaml:4:34\n"
                               "  hooks:\n"
                               "    - check                                      # job.yaml:4:50\n"
                               "  levels: machine                                # default\n"
                               "  sums: tree                                     # default\n"
                               "  timeout: 300s                                  # default\n"
                               "  progress: between                              # default\n"
                               "mesh:\n"
                               "  pp: 1                                          # default\n"
                               "  dp: 2                                          # default, auto\n"
                               "  cp: 1                                          # default\n"
                               "  ep: 1                                          # default\n"
                               "  tp: 1                                          # default\n"
                               "strategies:\n"
                               "  - use: zero                                    # default\n"
                               "    stage: 0                                     # default\n"
                               "optimizer:\n"
                               "  use: sgd                                       # job.yaml:2:18\n"
                               "  lr: 0.01                                       # job.yaml:2:27\n"
                               "  betas: [0.9, 0.999]                            # default\n"
                               "  stage: 0                                       # default\n"
                               "  bucket: 1MiB                                   # default\n"
                               "  order: 1f1b                                    # default\n"
                               "  overlap: true                                  # default\n"
                               "  offload:\n"
                               "    path: /tmp                                   # job.yaml:2:49\n"
                               "schedule:\n";
    ck_assert_msg(!strncmp(out.at, want, strlen(want)), "%s", out.at);
    ck_assert_ptr_nonnull(strstr(out.at, "\n  layers: 2                                      # job.yaml:3:35\n"));
    ck_assert_ptr_nonnull(strstr(out.at, "\n  train: [a.txt, b.txt]                          # job.yaml:5:15\n"));
    ck_assert_ptr_nonnull(
        strstr(out.at, "\n  micro_batch: 2                                 # default, batch / (dp x ep)\n"));
    ck_assert_ptr_nonnull(strstr(out.at, "\nrecompute: none                                  # default\n"));
    hd__text_free(&out);
    json_t *json = hd__job_json(j);
    json_int_t seed, dp;
    double lr;
    const char *axis;
    ck_assert_int_eq(json_unpack(json, "{s:{s:I}, s:{s:I}, s:{s:F}, s:{s:{s:s}}}", "job", "seed", &seed, "mesh", "dp",
                                 &dp, "optimizer", "lr", &lr, "comm", "axes", "dp", &axis),
                     0);
    ck_assert_int_eq(seed, 5);
    ck_assert_int_eq(dp, 2);
    ck_assert_double_eq(lr, 0.01);
    ck_assert_str_eq(axis, "mpi");
    json_decref(json);
    hd__job_free(j);
}
END_TEST

/* The core's own tables hold the rules that plugins' must. */
START_TEST(tables)
{
    struct hd__options table;
    const char *name;
    size_t i = 0;
    for (; (name = hd__job_table(i, &table)); i++) {
        struct hd_option own[64];
        ck_assert_uint_le(table.count, HD__COUNT(own));
        for (size_t k = 0; k < table.count; k++) {
            own[k] = hd__option_at(&table, k);
            if (own[k].offset == offsetof(struct hd__job, special)) /* which nobody reads */
                own[k].offset = sizeof(struct hd__job) + 64 * k;
        }
        table = (struct hd__options){own, table.count, sizeof *own};
        ck_assert_msg(hd__options_check(&table, sizeof(struct hd__job) + sizeof own, &err) == HD_OK, "%s: %s", name,
                      err.message);
    }
    ck_assert_uint_eq(i, 18);
}
END_TEST

/* docs/job-file.md shows each table as the command prints it. */
START_TEST(documented)
{
    static char page[65536];
    FILE *in = fopen(DOCS "/job-file.md", "r");
    ck_assert_ptr_nonnull(in);
    size_t n = fread(page, 1, sizeof page - 1, in);
    fclose(in);
    ck_assert_uint_gt(n, 0);
    struct hd__options table;
    const char *name;
    for (size_t i = 0; (name = hd__job_table(i, &table)); i++) {
        struct hd__text text = {0};
        hd__text_add(&text, "```\n");
        hd__options_print(&table, &text);
        ck_assert_msg(!table.count || strstr(page, text.at) != NULL, "docs/job-file.md lacks the table of %s:\n%s",
                      name, text.at);
        hd__text_free(&text);
    }
}
END_TEST

/* Names and values that other trainers have: the job is the same as with heddle's. */
START_TEST(other_words)
{
    static const struct {
        const char *written, *means;
    } pairs[] = {
        {"job: {max_steps: 2e1}", "job: {steps: 20}"},
        {"mesh: {tensor_parallel: 2}", "mesh: {tp: 2}"},
        {"mesh: {pipeline_model_parallel_size: 2, context_parallel: 2}", "mesh: {pp: 2, cp: 2}"},
        {"mesh: {data_parallel: {replicate: 2, shard: auto}}", "mesh: {dp: {replicate: 2, shard: auto}}"},
        {"precision: bfloat16", "precision: {compute: bf16}"},
        {"precision: {compute: float16, grad: bfloat16, reduce: Float32}",
         "precision: {compute: fp16, grad: bf16, reduce: fp32}"},
        {"schedule: {lr_scheduler_type: cosine_with_min_lr, num_warmup_steps: 3, lr_min: 1e-9}",
         "schedule: {kind: cosine, warmup: 3, min_lr: 1e-9}"},
        {"schedule: {type: WarmupDecayLR, warmup_num_steps: 3}", "schedule: {kind: linear, warmup: 3}"},
        {"schedule: {kind: Cosine}", "schedule: {kind: cosine}"},
        {"checkpoint: {save_steps: 5, save_total_limit: 2}", "checkpoint: {every: 5, keep: 2}"},
    };
    for (size_t i = 0; i < HD__COUNT(pairs); i++) {
        char *text[2];
        json_t *json[2];
        for (int k = 0; k < 2; k++) {
            const char *section = k ? pairs[i].means : pairs[i].written;
            text[k] =
                hd__format("%s%s\n", strncmp(section, "job", 3) ? small_job : strchr(small_job, '\n') + 1, section);
            struct hd__job *j = load(text[k], NULL, NULL, NULL);
            json[k] = hd__job_json(j);
            hd__job_free(j);
        }
        ck_assert_msg(json_equal(json[0], json[1]), "%s", pairs[i].written);
        for (int k = 0; k < 2; k++) {
            json_decref(json[k]);
            free(text[k]);
        }
    }
}
END_TEST

/* A single value is a key like any other, for the command line too; the last word for a key wins by whatever name. */
START_TEST(words_of_the_command_line)
{
    char *text = hd__format("%sprecision: bf16\n", small_job);
    struct hd__job *j = load(text, "precision.grad=bfloat16", NULL, NULL);
    ck_assert_uint_eq(j->precision.compute, HD_BF16);
    ck_assert_uint_eq(j->precision.grad, HD_BF16);
    hd__job_free(j);
    j = load(text, "precision=fp32", "mesh.tensor_parallel=4", "mesh.tp=2");
    ck_assert_uint_eq(j->precision.compute, HD_F32);
    ck_assert_int_eq(j->mesh_asked[HD_AXIS_TP], 2);
    hd__job_free(j);
    free(text);
}
END_TEST

/* Options of a plugin: a word of another trainer, an alias beside its dotted name, and one that is a mapping. */
START_TEST(words_of_a_plugin)
{
    struct hd__job *j = load(small_job, "optimizer={use: sgd, zero_stage: All, offload: {folder: x}}", NULL, NULL);
    struct plugin_settings s;
    ck_assert_int_eq(parse_section(j, j->optimizer, &s), HD_OK);
    ck_assert_int_eq(s.stage, 9);
    ck_assert_str_eq(s.path, "x");
    hd__job_free(j);
    j = load(small_job, "optimizer={use: sgd, stage: SOME, nvme: {path: y}, graph: static}", NULL, NULL);
    ck_assert_int_eq(parse_section(j, j->optimizer, &s), HD_OK);
    ck_assert_int_eq(s.stage, 3);
    ck_assert_str_eq(s.path, "y");
    ck_assert_ptr_null(hd__job_value_get(j, "optimizer.graph")); /* there is nothing to say of it */
    hd__job_free(j);
}
END_TEST

/* Overrides of a strategy that is not there wait for it. */
START_TEST(strategy_to_come)
{
    struct hd__job *j = load(small_job, "strategies.late.stage=3", "strategies.never.stage=3", "strategies.late.lr=1");
    struct plugin_settings s;
    ck_assert_str_eq(hd__job_unplaced(j), "late");
    ck_assert_int_eq(hd__job_strategy_add(j, "late", "the mesh", "job.yaml:1:1", &err), HD_OK);
    ck_assert_int_eq(parse_section(j, j->strategies[0], &s), HD_OK);
    ck_assert_int_eq(s.stage, 3);
    ck_assert_double_eq(s.lr, 1);
    ck_assert_str_eq(hd__job_unplaced(j), "never");
    ck_assert_int_eq(hd__job_unplaced_fail(j, &err), HD_E_INVALID);
    ck_assert_str_eq(err.message, "command line: 'strategies.never.stage=3': no strategy never in the job, which has "
                                  "late, zero: add {use: never} to `strategies`");
    hd__job_free(j);
    j = load(small_job, "strategies.late.stage=3", "strategies=[{use: late}]", NULL); /* the last one wins */
    ck_assert_ptr_null(hd__job_unplaced(j));
    ck_assert_int_eq(parse_section(j, j->strategies[0], &s), HD_OK);
    ck_assert_int_eq(s.stage, 0);
    hd__job_free(j);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("job");
    tcase_add_test(tc, other_words);
    tcase_add_test(tc, words_of_the_command_line);
    tcase_add_test(tc, words_of_a_plugin);
    tcase_add_test(tc, strategy_to_come);
    tcase_add_test(tc, every_key);
    tcase_add_test(tc, dtypes);
    tcase_add_test(tc, dead_after);
    tcase_add_test(tc, components);
    tcase_add_test(tc, axes);
    tcase_add_test(tc, defaults);
    tcase_add_test(tc, global_values);
    tcase_add_test(tc, file_name);
    tcase_add_test(tc, overrides);
    tcase_add_loop_test(tc, precision, 0, 7);
    tcase_add_test(tc, words_for_what_heddle_chooses);
    tcase_add_loop_test(tc, meshes, 0, 7);
    tcase_add_test(tc, launch_ranks);
    tcase_add_test(tc, launch_nodes);
    tcase_add_loop_test(tc, round_trip, 0, 8);
    tcase_add_test(tc, printed);
    tcase_add_test(tc, tables);
    tcase_add_test(tc, documented);
    return suite_run_case("job", tc);
}
