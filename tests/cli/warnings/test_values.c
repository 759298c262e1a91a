/* Warnings of values that have no effect, and lines about strategies that the mesh brought. */
#include <check.h>
#include <stdlib.h>

#include "cli/warnings/warnings.h"
#include "tests/suite.h"
#include "tests/support/job_text.h"

static void assert_warnings(const char *text, const char *want)
{
    struct hd__text out = {0};
    ck_assert_msg(compile(text) == HD_OK, "%s", err.message);
    hd__warn_values(job, &out);
    ck_assert_str_eq(out.at ? out.at : "", want);
    hd__text_free(&out);
}

static const struct {
    const char *text, *want; /* the lines after the name of the file; "": none */
} idle[] = {
    {"mesh: {dp: 2}\nstrategies: [{use: zero, stage: 1, prefetch: 3}]\n",
     "2:46: warning: strategies.zero.prefetch has no effect where strategies.zero.stage is 1: leave it out, or say "
     "strategies.zero.stage=3\n"},
    {"mesh: {dp: 2}\nstrategies: [{use: zero, stage: 3, prefetch: 3}]\n", ""},
    {"mesh: {dp: 2}\nstrategies: [{use: fsdp, prefetch: 3}]\n", ""},
    {"mesh: {dp: 2}\nstrategies: [{use: ddp, prefetch: 3}]\n",
     "2:35: warning: strategies.ddp.prefetch has no effect where strategies.ddp.stage is 0: leave it out, or "
     "say "
     "strategies.ddp.stage=3\n"},
    {"mesh: {dp: 2}\nstrategies: [{use: zero, stage: 1, prefetch: 1}]\n", ""}, /* the default */
    {"strategies: [{use: fsdp}]\n", ""},                                       /* the alias says it, not the job */
    {"strategies: [{use: zero, stage: 3}]\n",
     "1:33: warning: strategies.zero.stage has no effect where dp x cp x ep is 1: leave it out\n"},
    {"mesh: {dp: 2}\nstrategies: [{use: zero, compress.rank: 2}]\n",
     "2:41: warning: strategies.zero.compress.rank has no effect where strategies.zero.compress.kind is none: leave it "
     "out, or say strategies.zero.compress.kind=powersgd\n"},
    {"mesh: {dp: 2}\nstrategies: [{use: 3d, schedule: zb-v}, {use: zero}]\n",
     "2:34: warning: strategies.3d.schedule has no effect where mesh.pp is 1: leave it out\n"},
    {"mesh: {dp: 2}\nstrategies: [{use: 3d, sequence_parallel: true}, {use: zero}]\n",
     "2:43: warning: strategies.3d.sequence_parallel has no effect where mesh.tp is 1: leave it out\n"},
    {"mesh: {pp: 2}\nstrategies: [{use: 3d, split: time, split_intensity: 5}, {use: zero}]\n", ""},
    {"comm: {hooks: [check]}\n",
     "1:15: warning: comm.hooks has no effect where the number of ranks is 1: leave it out\n"},
    {"comm: {timeout: 20s}\nmesh: {dp: 2}\n", ""},
    {"precision: {compute: fp64, master: bf16}\n",
     "1:36: warning: precision.master has no effect where precision.compute is fp64: leave it out\n"},
    {"precision: {optimizer: bf16}\n", ""},
    {"precision: {master: bf16}\n",
     "1:21: warning: precision.master rounds weights to nearest: smaller updates, in bf16 below 1/256 of a weight, are "
     "lost: leave it out, or say optimizer.rounding=stochastic (adamw, for bf16)\n"},
    {"device: {staging: 1MB}\n", "1:19: warning: device.staging has no effect where device.use is cpu: leave it out\n"},
    {"device: {capture: false}\n",
     "1:19: warning: device.capture has no effect where device.use is cpu: leave it out\n"},
    {"mesh: {dp: 2}\ncomm: {axes: {dp: shm, dp_shard: shm}}\n", ""},
    {"mesh: {dp: 2}\ncomm: {axes: {tp: shm}}\n",
     "2:14: warning: comm.axes.tp has no effect where mesh.tp is 1: leave it out\n"},
    {"mesh: {dp: 2}\ncomm: {timeout: 4s}\n",
     "2:17: warning: comm.timeout is below liveness.dead_after: a wait ends the job before a dead rank is known\n"},
    {"mesh: {dp: 2}\ncomm: {timeout: 10s}\n",
     "2:17: warning: comm.timeout is not above liveness.late_after: it ends the job before a late rank is named\n"},
    {"mesh: {dp: 2}\ncomm: {timeout: 4s}\nliveness: {dead_after: 1s, late_after: 2s}\n", ""},
    {"mesh: {dp: 2}\ncomm: {dead_after: 4s}\n", ""},
    {"mesh: {dp: 2}\ncomm: {use: shm, inside: shm}\n",
     "2:26: warning: comm.inside has no effect where it is the same transport as comm.use: leave it out\n"},
    {"mesh: {dp: 2}\ncomm: {use: mpi, inside: shm, axes: {dp: libfabric}}\n",
     "2:26: warning: comm.inside has no effect, because comm.axes gives the only axis above 1 a transport of its own, "
     "and comm.use is not opened: name that transport in comm.use\n"},
    {"mesh: {dp: {replicate: 2, shard: 2}}\ncomm: {use: mpi, inside: shm, axes: {dp: libfabric}}\n", ""},
    {"data: {train: [a.txt, 'http://x/y.bin'], seq_len: 8, batch: 4, http_timeout: 3s}\n", ""},
    {"mesh: {dp: 2}\nwatch: {straggler: 10}\n",
     "2:20: warning: watch.straggler is 10: so there is hardly ever an alarm: it is a share, as 0.1 for 10%\n"},
    {"watch: {memory: 5, loss_spike: 0}\n",
     "1:17: warning: watch.memory is 5: so there is hardly ever an alarm: it is a share, as 0.1 for 10%\n"},
    {"watch: {data_wait: 1, throughput: 0.1, grad_norm: 20}\n",
     "1:20: warning: watch.data_wait is 1: so there is hardly ever an alarm: it is a share, as 0.1 for 10%\n"},
    {"checkpoint: {every: 4, keep: {every: 3}}\n",
     "1:30: warning: checkpoint.keep every is no multiple of checkpoint.every: only steps that are multiples of both "
     "are kept\n"},
    {"checkpoint: {every: 30m, keep: {every: 3}}\n",
     "1:32: warning: checkpoint.keep every keeps checkpoints at multiples of its value, but checkpoint.every is not a "
     "number of steps: make it one\n"},
    {"checkpoint: {every: 4, keep: {every: 8}}\n", ""},
    {"eval: {every: 0}\n", ""},
    {"precision: {compute: fp32, loss_scale: dynamic}\n",
     "1:40: warning: precision.loss_scale is not needed: gradients have the range of fp32, and none of them become 0: "
     "leave it out\n"},
    {"precision: {compute: bf16, loss_scale: 65536}\n",
     "1:40: warning: precision.loss_scale is not needed: gradients have the range of fp32, and none of them become 0: "
     "leave it out\n"},
    {"precision: {compute: fp16, loss_scale: none}\n",
     "1:40: warning: precision.loss_scale does not scale, and small gradients (in fp16 below 6e-8) become 0: leave it "
     "out, which is dynamic\n"},
    {"precision: {compute: fp16, loss_scale: 1024}\n", ""},
    {"precision: {compute: bf16, loss_scale: none}\n", ""},
    {"mesh: {dp: 2}\ncomm: {timeout: 600000}\n",
     "2:17: warning: comm.timeout is longer than anyone waits: a number without a unit is of seconds; say 10m or "
     "600000ms\n"},
    {"mesh: {dp: 2}\nliveness: {dead_after: 5000}\ncomm: {timeout: 10000}\n",
     "2:24: warning: liveness.dead_after is longer than anyone waits: a number without a unit is of seconds; say 10m "
     "or "
     "600000ms\n"},
    {"mesh: {dp: 2}\ncomm: {timeout: 24h}\n", ""},
    {"eval: {batches: 3}\n",
     "1:17: warning: eval.batches has no effect on training, because eval.every is 0: set eval.every, or evaluate by "
     "`heddle eval`\n"},
    {"data: {train: a.txt, val: missing.txt, seq_len: 8, batch: 4}\n",
     "1:27: warning: data.val has no effect on training, because eval.every is 0: set eval.every, or evaluate by "
     "`heddle eval`\n"},
    {"data: {train: a.txt, val_fraction: 0.1, seq_len: 8, batch: 4}\n",
     "1:36: warning: data.val_fraction only keeps data from training, because eval.every is 0: set eval.every, or "
     "evaluate by `heddle eval`\n"},
    {"eval: {every: 1, batches: 1}\ndata: {train: a.txt, val: b.txt, seq_len: 8, batch: 4}\n", ""},
};

START_TEST(idle_values)
{
    char *text = hd__format("%s" DENSE "%s", idle[_i].text, strstr(idle[_i].text, "data:") ? WITHOUT_DATA : REST);
    char *want = hd__format("%s%s", *idle[_i].want ? "job.yaml:" : "", idle[_i].want);
    assert_warnings(text, want);
    free(want);
    free(text);
}
END_TEST

START_TEST(strategies_that_the_mesh_brings)
{
    assert_warnings("mesh: {tp: 2}\n" DENSE REST,
                    "mesh.tp is 2: strategy 3d is used (add {use: 3d, ...} to `strategies` to set its options)\n");
    assert_warnings("mesh: {pp: 2, tp: 2}\n" DENSE REST,
                    "mesh.pp is 2, mesh.tp is 2: strategy 3d is used (add {use: 3d, ...} to `strategies` to set its "
                    "options)\n");
    assert_warnings("mesh: {tp: 2}\nstrategies: [{use: zero}, {use: 3d}]\n" DENSE REST, "");
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("values");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_loop_test(c, idle_values, 0, (int)HD__COUNT(idle));
    tcase_add_test(c, strategies_that_the_mesh_brings);
    return suite_run_case("values", c);
}
