/* Strategies by the names that job files have for them, and those that a job does not name: aliases, their presets, and
 * axes of the mesh that something must cut. */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/suite.h"
#include "tests/support/job_text.h"

static void assert_compiles(const char *text)
{
    ck_assert_msg(compile(text) == HD_OK, "%s", err.message);
}

static void assert_refused(const char *text, const char *part)
{
    ck_assert_int_ne(compile(text), HD_OK);
    ck_assert_msg(strstr(err.message, part) != NULL, "'%s' is not in: %s", part, err.message);
}

static void assert_value(const char *path, const char *text)
{
    const struct hd__job_value *v = hd__job_value_get(job, path);
    ck_assert_msg(v != NULL, "%s is not set", path);
    ck_assert_str_eq(v->text, text);
}

static void assert_nothing_added(void)
{
    for (uint64_t i = 0; i < job->n_strategies; i++)
        ck_assert_ptr_null(job->strategies[i]->because);
}

/* ---- aliases */

/* Everything that is compiled, and the job as checkpoints and metrics have it, is that of the strategy's own name. */
static const struct {
    const char *alias, *own;
} same[] = {
    {"mesh: {dp: 2}\nstrategies: [{use: ddp}]\n", "mesh: {dp: 2}\nstrategies: [{use: zero, stage: 0}]\n"},
    {"mesh: {dp: 2}\nstrategies: [{use: fsdp}]\n", "mesh: {dp: 2}\nstrategies: [{use: zero, stage: FULL_SHARD}]\n"},
    {"mesh: {dp: 2}\nstrategies: [{use: fsdp, stage: 2}]\n", "mesh: {dp: 2}\nstrategies: [{use: zero, stage: 2}]\n"},
    {"mesh: {dp: 2}\nstrategies: [{use: fsdp, sharding_strategy: SHARD_GRAD_OP}]\n",
     "mesh: {dp: 2}\nstrategies: [{use: zero, stage: SHARD_GRAD_OP}]\n"},
    {"mesh: {dp: 2}\nstrategies: [{use: fsdp, offload: {optimizer: host}}]\n",
     "mesh: {dp: 2}\nstrategies: [{use: zero, stage: FULL_SHARD, offload.optimizer: host}]\n"},
    {"mesh: {tp: 2}\nstrategies: [{use: megatron, sequence_parallel: true}, {use: ddp}]\n",
     "mesh: {tp: 2}\nstrategies: [{use: 3d, sequence_parallel: true}, {use: zero, stage: 0}]\n"},
    {"mesh: {tp: 2}\n", "mesh: {tp: 2}\nstrategies: [{use: 3d}, {use: zero, stage: 0}]\n"},
    {"mesh: {dp: 2}\nstrategies: [{use: fsdp, stage: shard_grad_op}]\n",
     "mesh: {dp: 2}\nstrategies: [{use: zero, stage: SHARD_GRAD_OP}]\n"},
    /* a section zero_optimization of DeepSpeed's documentation of stage 3 with offload, with `use` in front */
    {"mesh: {dp: 2}\nstrategies: [{\"use\": \"zero\", \"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\", "
     "\"pin_memory\": true}, \"offload_param\": {\"device\": \"cpu\", \"pin_memory\": true}, \"overlap_comm\": true, "
     "\"contiguous_gradients\": true, \"sub_group_size\": 1e9, \"reduce_bucket_size\": \"auto\", "
     "\"stage3_prefetch_bucket_size\": \"auto\", \"stage3_param_persistence_threshold\": \"auto\", "
     "\"stage3_max_live_parameters\": 1e9, \"stage3_max_reuse_distance\": 1e9, "
     "\"stage3_gather_16bit_weights_on_model_save\": true}]\n",
     "mesh: {dp: 2}\nstrategies: [{use: zero, stage: 3, offload: {optimizer: host, params: host}, bucket: 25MB, "
     "max_live: 1000000000}]\n"},
    /* and of stage 2 */
    {"mesh: {dp: 2}\nstrategies: [{\"use\": \"zero\", \"stage\": 2, \"contiguous_gradients\": true, \"overlap_comm\": "
     "true, \"reduce_scatter\": true, \"reduce_bucket_size\": 5e8, \"allgather_partitions\": true, "
     "\"allgather_bucket_size\": 5e8, \"round_robin_gradients\": false}]\n",
     "mesh: {dp: 2}\nstrategies: [{use: zero, stage: 2, bucket: 500MB, gather_bucket: 500MB}]\n"},
    /* arguments of torch's FullyShardedDataParallel, and a fsdp_config of accelerate */
    {"mesh: {dp: 2}\nstrategies: [{use: fsdp, sharding_strategy: FULL_SHARD, forward_prefetch: true, "
     "backward_prefetch: BACKWARD_PRE, limit_all_gathers: true, use_orig_params: true, cpu_offload: false, "
     "sync_module_states: true}]\n",
     "mesh: {dp: 2}\nstrategies: [{use: zero, stage: FULL_SHARD, prefetch: 1, prefetch_backward: 1, max_inflight: "
     "2}]\n"},
    {"mesh: {dp: 2}\nstrategies:\n  - use: fsdp\n    fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
     "    fsdp_backward_prefetch: BACKWARD_POST\n    fsdp_cpu_ram_efficient_loading: true\n"
     "    fsdp_forward_prefetch: false\n    fsdp_offload_params: false\n    fsdp_sharding_strategy: 2\n"
     "    fsdp_state_dict_type: SHARDED_STATE_DICT\n    fsdp_sync_module_states: true\n    fsdp_use_orig_params: "
     "true\n",
     "mesh: {dp: 2}\nstrategies: [{use: zero, stage: SHARD_GRAD_OP, prefetch: 0, prefetch_backward: 0}]\n"},
    {"mesh: {dp: 2}\nstrategies: [{use: ddp, bucket_cap_mb: 25, gradient_as_bucket_view: true, static_graph: true, "
     "find_unused_parameters: false}]\n",
     "mesh: {dp: 2}\nstrategies: [{use: zero, bucket: 25MB}]\n"},
    {"strategies: [{use: zero, compress: {kind: powersgd, matrix_approximation_rank: 2, start_powerSGD_iter: 3}}]\n",
     "strategies: [{use: zero, compress: {kind: powersgd, rank: 2, warmup: 3}}]\n"},
    {"mesh: {pp: 2, tp: 2}\nstrategies: [{use: fsdp}]\n",
     "mesh: {pp: 2, tp: 2}\nstrategies: [{use: 3d}, {use: zero, stage: FULL_SHARD}]\n"},
};

START_TEST(a_job_is_the_same_by_both_names)
{
    char *text = hd__format("%s" DENSE REST, same[_i].alias);
    struct hd__text printed = {0};
    json_t *json;
    uint32_t arena;
    assert_compiles(text);
    json = hd__job_json(job);
    arena = (uint32_t)compiled->stage[0]->arena_bytes;
    hd__job_print(job, &printed);
    free(text);
    text = hd__format("%s" DENSE REST, same[_i].own);
    assert_compiles(text);
    json_t *own = hd__job_json(job);
    char *one = json_dumps(json, JSON_SORT_KEYS), *two = json_dumps(own, JSON_SORT_KEYS);
    ck_assert_str_eq(one, two);
    free(one);
    free(two);
    json_decref(own);
    ck_assert_uint_eq(arena, (uint32_t)compiled->stage[0]->arena_bytes);
    assert_nothing_added();
    assert_compiles(printed.at); /* what is printed names it by its own name */
    own = hd__job_json(job);
    ck_assert(json_equal(json, own));
    json_decref(own);
    assert_nothing_added();
    json_decref(json);
    hd__text_free(&printed);
    free(text);
}
END_TEST

START_TEST(values_say_where_they_are_from)
{
    struct hd__text out = {0};
    assert_compiles("strategies: [{use: fsdp, bucket: 1MB}]\nmesh: {tp: 2, dp: 2}\n" DENSE REST);
    ck_assert_str_eq(hd__job_value_get(job, "strategies.fsdp.stage")->origin, "job.yaml:1:20");
    ck_assert_str_eq(hd__job_value_get(job, "strategies.fsdp.stage")->note, "fsdp");
    ck_assert_ptr_null(hd__job_value_get(job, "strategies.fsdp.bucket")->note);
    assert_value("strategies.fsdp.use", "zero");
    ck_assert_str_eq(hd__job_where(job, "strategies.3d.context"), "job.yaml:2:12");
    hd__job_print(job, &out);
    ck_assert_ptr_nonnull(strstr(out.at, "# job.yaml:2:12, mesh.tp is 2\n"));
    ck_assert_ptr_nonnull(strstr(out.at, "# job.yaml:1:20, fsdp\n"));
    hd__text_free(&out);
}
END_TEST

/* ---- axes of the mesh */

/* ---- conditions of options (needs) */

/* A condition names an option of the same table, or a key of the job. */
static void check_needs(const char *where, const struct hd_option *options, size_t n)
{
    const struct hd__options table = {options, n, sizeof *options};
    for (size_t i = 0; i < n; i++)
        for (const char *at = options[i].needs; at; at = strchr(at, '&'), at = at ? at + 1 : NULL) {
            char *key = hd__format("%.*s", (int)strcspn(at, "!="), at), *dot = strchr(key, '.');
            int known = hd__option_find(&table, key) >= 0 || !strcmp(key, "ranks") || !strcmp(key, "data_ranks") ||
                        !strcmp(key, "device.use");
            const char *name;
            struct hd__options core;
            for (size_t s = 0; dot && !known && (name = hd__job_table(s, &core)); s++)
                known = !strncmp(name, key, (size_t)(dot - key)) && hd__option_find(&core, dot + 1) >= 0;
            ck_assert_msg(known, "%s.%s: no key is called %s", where, options[i].name, key);
            ck_assert_ptr_nonnull(strchr(at, '='));
            free(key);
        }
}

START_TEST(conditions_name_keys)
{
    static const uint32_t kinds[] = {HD_KIND_STRATEGY, HD_KIND_STRATEGY,  HD_KIND_STRATEGY,  HD_KIND_STRATEGY,
                                     HD_KIND_DEVICE,   HD_KIND_OPTIMIZER, HD_KIND_OPTIMIZER, HD_KIND_MODEL,
                                     HD_KIND_DATA,     HD_KIND_HOOK};
    static const char *const names[] = {"zero",  "3d",  "localsgd",    "ema",    "cpu",
                                        "adamw", "sgd", "transformer", "tokens", "faults"};
    struct hd__options core;
    const char *name;
    for (size_t s = 0; (name = hd__job_table(s, &core)); s++)
        check_needs(name, core.at, core.count);
    for (size_t i = 0; i < HD__COUNT(names); i++) {
        const struct hd__component *c;
        ck_assert_int_eq(hd__plugin_find(registry, kinds[i], names[i], &c, &err), HD_OK);
        check_needs(names[i], c->options, c->n_options);
    }
}
END_TEST

START_TEST(an_axis_brings_its_strategy)
{
    assert_compiles("mesh: {tp: 2}\n" DENSE REST);
    ck_assert_str_eq(job->strategies[0]->because, "mesh.tp is 2");
    ck_assert_uint_eq(job->n_strategies, 2);
    ck_assert_str_eq(job->strategies[0]->use, "3d");
    ck_assert_str_eq(job->strategies[1]->use, "zero");
    assert_compiles("mesh: {pp: 2, tp: 2}\n" DENSE REST);
    ck_assert_str_eq(job->strategies[0]->because, "mesh.pp is 2, mesh.tp is 2");
    ck_assert_uint_eq(job->n_strategies, 2);
    assert_compiles("mesh: {pp: 2}\nstrategies: [{use: fsdp}, {use: ema}]\n" DENSE REST);
    ck_assert_str_eq(job->strategies[0]->use, "3d");
    assert_compiles("mesh: {ep: 2}\n" MOE REST);
    ck_assert_str_eq(job->strategies[0]->because, "mesh.ep is 2");
}
END_TEST

START_TEST(nothing_is_added_where_nothing_lacks)
{
    assert_compiles("mesh: {cp: 2, dp: 2}\n" DENSE REST); /* the core cuts the sequence */
    ck_assert_uint_eq(job->n_strategies, 1);
    assert_compiles("mesh: {tp: 2}\nstrategies: [{use: zero}, {use: 3d}]\n" DENSE REST);
    ck_assert_uint_eq(job->n_strategies, 2);
    ck_assert_str_eq(job->strategies[0]->use, "zero");
    assert_nothing_added();
    assert_compiles("mesh: {tp: 1}\n" DENSE REST);
    ck_assert_uint_eq(job->n_strategies, 1);
}
END_TEST

/* The command line may set what only the mesh brings; on one rank too, where it has nothing to do. */
START_TEST(the_command_line_sets_what_an_axis_brings)
{
    static const char text[] = DENSE REST;
    static const char *const words[] = {"strategies.3d.sequence_parallel=true", "mesh.tp=2", "strategies.ema.every=2"};
    for (size_t n = 1; n <= 3; n++) {
        forget();
        ck_assert_int_eq(hd__job_parse("job.yaml", text, strlen(text), words, n, &job, &err), HD_OK);
        ck_assert_int_eq(hd__job_resolve(job, 0, &err), HD_OK);
        int32_t rc = hd__exec_compile(job, registry, &compiled, &err);
        ck_assert_msg((rc == HD_OK) == (n < 3), "%s", err.message);
        if (rc)
            continue;
        assert_value("strategies.3d.sequence_parallel", "true");
        ck_assert_str_eq(job->strategies[0]->because, n == 1 ? "strategies.3d is set" : "mesh.tp is 2");
    }
    ck_assert_str_eq(err.message, "command line: 'strategies.ema.every=2': no strategy ema in the job, which has 3d, "
                                  "zero: add {use: ema} to `strategies`");
}
END_TEST

/* ---- mistakes */

static const struct {
    const char *head, *says;
} refused[] = {
    {"strategies: [{use: fdsp}]\n", "job.yaml:1:20: there is no plugin strategy-fdsp: did you mean strategy-fsdp?"},
    {"strategies: [{use: megatrn}]\n", "did you mean strategy-megatron?"},
    {"strategies: [{use: deepspeed}]\n", "job.yaml:1:20: there is no plugin strategy-deepspeed; there are "},
    {"strategies: [{use: fsdp}, {use: zero}]\n",
     "job.yaml:1:20: fsdp is strategy zero with {stage: FULL_SHARD}, which the job already lists as zero, at "
     "job.yaml:1:33: remove one"},
    {"strategies: [{use: zero}, {use: fsdp}]\n", "job.yaml:1:33: fsdp is strategy zero with {stage: FULL_SHARD}"},
    {"strategies: [{use: ddp}, {use: fsdp}]\n", "which the job already lists as ddp, at job.yaml:1:20: remove one"},
    {"strategies: [{use: fsdp}, {use: fsdp}]\n", "job.yaml:1:33: strategies: fsdp is already listed, at job.yaml:1:20"},
    {"mesh: {tp: 2}\nstrategies: [{use: megatron}, {use: 3d}, {use: zero}]\n",
     "megatron is strategy 3d, which the job already lists as 3d"},
    {"strategies: [{use: fsdp, stag: 3}]\n", "job.yaml:1:26: strategies.fsdp: unknown key stag; did you mean stage?"},
    {"strategies: [{use: fsdp, stage: ful_shard}]\n", "did you mean FULL_SHARD?"},
    {"strategies: [{use: zero, offload_optimizer: ssd}]\n", "offload.optimizer: 'ssd' is none of none, host, file"},
    {"strategies: [{use: fsdp, offload_param: {device: nvme}}]\n",
     "job.yaml:1:50: strategies.fsdp.offload_param.device: 'nvme': parameters lie in memory"},
    {"strategies: [{use: fsdp, use_orig_params: false}]\n",
     "job.yaml:1:43: strategies.fsdp.use_orig_params: there is only true: parameters stay tensors of their own"},
    {"strategies: [{use: fsdp, offload_param: {device: cpu, pin_memory: false}}]\n",
     "strategies.fsdp.offload_param.pin_memory: there is only true"},
    {"strategies: [{use: zero, zero_quantized_weights: true}]\n", "there is only false: parameters are gathered as"},
    {"strategies: [{use: zero, contiguous_gradient: true}]\n", "did you mean contiguous_gradients?"},
    {"strategies: [{use: zero, compress: {matrix_approximation_rank: 2, rank: 2}}]\n",
     "compress.rank was already given at job.yaml:1:64"},
    {"strategies: [{use: zero}, {use: zero, stage: 3}]\n",
     "job.yaml:1:33: strategies: zero is already listed, at job.yaml:1:20"},
    {"mesh: {dp: 2}\nstrategies: [{use: zero}, {use: ema}, {use: localsgd}]\n",
     "job.yaml:2:27: strategies.ema: local-SGD replicas have no common weights"},
    {"mesh: {tp: 2, pp: auto}\n", "job.yaml:1:19: mesh.pp: 'auto': only mesh.dp may be auto"},
    {"strategies: [{use: fsdp, stage: 2, sharding_strategy: 3}]\n",
     "sharding_strategy was already given at job.yaml:1:33"},
    {"mesh: {dp: 2}\nstrategies: [{use: fsdp, bucket: 25}]\n", "job.yaml:2:34: strategies.fsdp.bucket is 25 bytes"},
    {"mesh: {dp: {replicate: 2, shard: 2}}\nstrategies: [{use: fsdp}]\n",
     "job.yaml:2:20: strategies.fsdp.stage FULL_SHARD shards over all data ranks"},
    {"strategies: [{use: ddp, offload_param: cpu}]\n", "strategies.ddp.offload.params: host needs stage: 3"},
    {"strategies: [{use: fsdp, offload_optimizer: nvme}]\n",
     "offload.optimizer: file needs strategies.zero.offload.path"},
    {"mesh: {tp: 3}\n", "job.yaml:1:12: mesh.tp = 3 must divide the kv heads (4)"},
    {"mesh: {ep: 2}\n", "the model has no experts"},
    {"mesh: {tp: 2}\nstrategies: [{use: ema}]\n",
     "strategies.ema: a strategy that holds and updates parameters must stand before it"},
    {"strategies: [{use: FSDP}]\n", "'FSDP' is no plugin's name"},
};

START_TEST(mistakes)
{
    char *text = hd__format("%s" DENSE REST, refused[_i].head);
    assert_refused(text, refused[_i].says);
    free(text);
}
END_TEST

START_TEST(offload_by_deepspeeds_names)
{
    int64_t arena;
    assert_compiles(
        "mesh: {dp: 2}\nstrategies: [{use: fsdp, offload_optimizer: host, offload_param: host}]\n" DENSE REST);
    arena = compiled->stage[0]->arena_bytes;
    assert_compiles(
        "mesh: {dp: 2}\nstrategies: [{use: fsdp, offload_optimizer: cpu, offload_param: cpu}]\n" DENSE REST);
    ck_assert_int_eq(compiled->stage[0]->arena_bytes, arena);
    assert_compiles("mesh: {dp: 2}\nstrategies: [{use: fsdp}]\n" DENSE REST);
    ck_assert_int_gt(compiled->stage[0]->arena_bytes, arena);
}
END_TEST

/* ---- other strategies that are installed */

START_TEST(two_strategies_cut_an_axis)
{
    ck_assert_int_eq(hd__plugins_add_folder(registry, RIVALS, &err), HD_OK);
    assert_refused("mesh: {tp: 2}\n" DENSE REST, "job.yaml:1:12: mesh.tp is 2, and both strategy-");
    ck_assert_ptr_nonnull(strstr(err.message, "strategy-3d"));
    ck_assert_ptr_nonnull(strstr(err.message, "strategy-cutter"));
    ck_assert_ptr_nonnull(strstr(err.message, "cut tp: name one of them in `strategies`"));
    assert_compiles("mesh: {tp: 2}\nstrategies: [{use: 3d}, {use: zero}]\n" DENSE REST);
    assert_compiles("mesh: {pp: 2}\n" DENSE REST); /* that one does not cut pp */
    ck_assert_str_eq(job->strategies[0]->use, "3d");
    assert_refused("strategies: [{use: fsdp}]\n" DENSE REST, "fsdp is an alias of both strategy-");
}
END_TEST

/* 3d would cut tp a second time. */
START_TEST(one_that_cuts_too_much_is_not_added)
{
    ck_assert_int_eq(hd__plugins_add_folder(registry, RIVALS, &err), HD_OK);
    assert_refused("mesh: {tp: 2, pp: 2}\nstrategies: [{use: cutter}, {use: zero}]\n" DENSE REST,
                   "no strategy of the job cuts anything on tp");
    ck_assert_uint_eq(job->n_strategies, 2);
}
END_TEST

START_TEST(nobody_cuts_an_axis)
{
    static const char *const here[] = {"device-cpu",  "comm-shm",      "model-transformer",
                                       "optim-adamw", "strategy-zero", "data-tokens"};
    char folder[] = "/tmp/heddle-test-names-XXXXXX", command[64];
    hd__plugins_destroy(registry);
    registry = hd__plugins_create(hd__exec_host_table());
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (size_t i = 0; i < HD__COUNT(here); i++) {
        char *from = hd__format(PLUGINS "/%s/heddle-%s.so", here[i], here[i]);
        char *to = hd__format("%s/heddle-%s.so", folder, here[i]);
        ck_assert_int_eq(symlink(from, to), 0);
        free(from);
        free(to);
    }
    ck_assert_int_eq(hd__plugins_add_folder(registry, folder, &err), HD_OK);
    assert_refused("mesh: {tp: 2}\n" DENSE REST,
                   "job.yaml:1:12: mesh.tp is 2, but no strategy of the job cuts anything on "
                   "tp");
    assert_refused("mesh: {pp: 2}\n" DENSE REST,
                   "job.yaml:1:12: mesh.pp is 2, but no strategy of the job cuts the model into stages");
    assert_refused("mesh: {ep: 2}\n" MOE REST,
                   "job.yaml:1:12: mesh.ep is 2, but no strategy of the job puts experts on ep");
    assert_compiles("mesh: {dp: 2}\nstrategies: [{use: fsdp}]\n" DENSE REST);
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("names");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_loop_test(c, a_job_is_the_same_by_both_names, 0, (int)HD__COUNT(same));
    tcase_add_test(c, values_say_where_they_are_from);
    tcase_add_test(c, conditions_name_keys);
    tcase_add_test(c, an_axis_brings_its_strategy);
    tcase_add_test(c, the_command_line_sets_what_an_axis_brings);
    tcase_add_test(c, nothing_is_added_where_nothing_lacks);
    tcase_add_loop_test(c, mistakes, 0, (int)HD__COUNT(refused));
    tcase_add_test(c, offload_by_deepspeeds_names);
    tcase_add_test(c, two_strategies_cut_an_axis);
    tcase_add_test(c, one_that_cuts_too_much_is_not_added);
    tcase_add_test(c, nobody_cuts_an_axis);
    return suite_run_case("names", c);
}
