/* Profiles of a run's steps: the first ones are left out, where there are others. */
#include <stdlib.h>

#include "core/base/file.h"
#include "core/program/ops.h"
#include "service/metrics/watch.h"
#include "service/train/loop/internal.h"
#include "service/train/train.h"

enum { PROFILE_AFTER = 2 };

static const struct hd__train_plan *the_plan; /* of this process */

void hd__train_set_plan(const struct hd__train_plan *plan)
{
    the_plan = plan;
}

const struct hd__train_plan *hd__loop_plan(void)
{
    return the_plan;
}

/* After a step: once there are enough of them, what they took beside what was planned. */
void hd__loop_compare_plan(struct hd__train_loop *l)
{
    int64_t n = l->steps_run - 1 - HD__PLANNED_AFTER;
    if (!the_plan || !l->is_leader || n < 0 || n >= HD__PLANNED_STEPS)
        return;
    l->planned_from[n] = l->step_s;
    if (n < HD__PLANNED_STEPS - 1)
        return;
    double median = hd__watch_median(l->planned_from, HD__PLANNED_STEPS);
    hd__log(HD_LOG_INFO, NULL, "a step takes %.4g ms (median of the last %d), planned by %s: %.4g ms, %+.1f %%%s",
            1e3 * median, HD__PLANNED_STEPS, the_plan->machine, 1e3 * the_plan->step_s,
            100 * (the_plan->step_s / median - 1),
            l->job->metrics_profile ? "" : "; metrics.profile=true has both by kind of instruction");
}

/* The first rank of each pipeline stage. */
static int is_stage_leader(const struct hd__train_loop *l)
{
    int32_t coord[HD_AXIS_COUNT], others = 0;
    hd__mesh_coord(&l->p->mesh, l->s.env->rank, coord);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        others |= a != HD_AXIS_PP && coord[a];
    return !others;
}

void hd__loop_profile_begin(struct hd__train_loop *l)
{
    int counts = l->steps_run >= PROFILE_AFTER || l->job->steps - l->progress.step + l->steps_run <= PROFILE_AFTER;
    int wanted = (l->is_leader && l->job->metrics_profile) || (l->job->metrics_blocks && is_stage_leader(l));
    if (wanted && counts)
        hd__exec_set_profiling(l->s.exec, 1);
    if ((l->job->metrics_profile || l->job->metrics_blocks) && counts)
        hd__exec_replay_no_comm(l->s.exec);
    l->measured_steps += counts;
    l->steps_run++;
}

void hd__loop_profile_end(struct hd__train_loop *l)
{
    if (l->measured_steps) {
        l->measured_s += l->step_s;
        l->measured_comm_s += l->comm_s;
    }
    if (!hd__exec_get_profile(l->s.exec))
        return;
    hd__exec_set_profiling(l->s.exec, 0);
    l->profiled_steps++;
    l->profiled_s += l->step_s;
}

static void add_blocks_path(const struct hd__train_loop *l, struct hd__text *path)
{
    hd__text_add(path, "%s", l->job->metrics_blocks);
    if (l->p->stage)
        hd__text_add(path, ".%d", l->p->stage);
}

/* Before the first step, not after the last. */
int32_t hd__loop_check_blocks(const struct hd__train_loop *l, struct hd_error *err)
{
    struct hd__text path = {0};
    struct hd_error why = HD_ERROR_INIT;
    if (!l->job->metrics_blocks || !is_stage_leader(l) || l->progress.step >= l->job->steps)
        return HD_OK;
    add_blocks_path(l, &path);
    hd__make_folders(path.at);
    int32_t rc = hd__output_check(path.at, HD__PROFILE_BEGINS, &why);
    if (rc)
        hd__job_fail(l->job, "metrics.blocks", err, "metrics.blocks: %s", why.message);
    else
        hd__train_session_warn_replaced(&l->s, "metrics.blocks", path.at);
    hd__text_free(&path);
    return rc;
}

static void write_blocks(const struct hd__train_loop *l)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__text path = {0};
    add_blocks_path(l, &path);
    if (hd__exec_profile_write_blocks(hd__exec_get_profile(l->s.exec), l->profiled_steps * l->job->accumulation,
                                      path.at, &err))
        hd__log(HD_LOG_ERROR, NULL, "metrics.blocks: %s", err.message);
    hd__text_free(&path);
}

/* ---- the roofline */

void hd__loop_measure_rates(struct hd__train_loop *l)
{
    struct hd_error err = HD_ERROR_INIT;
    if (the_plan) {
        l->rates = the_plan->rates;
    } else if (l->job->metrics_roofline || l->job->metrics_profile) {
        l->rates.flops = hd__exec_peak_flops(l->s.exec);
        l->rates.bytes = l->rates.flops > 0 ? hd__exec_copy_rate(l->s.exec, &err) : 0;
        l->rates.source = "measured at the start";
    }
    if (l->rates.source && l->rates.flops <= 0 && l->is_leader)
        hd__log(HD_LOG_WARN, NULL, "no roofline: device %s does not know its rate of products in %s",
                l->s.compiled->device_choice.component->name, hd_dtype_name(l->job->precision.compute));
    if (err.code && l->is_leader)
        hd__log(HD_LOG_WARN, NULL, "no roofline: the rate of a copy cannot be measured: %s", err.message);
}

/* The distance of a step from its roofline: what products and other instructions take above theirs, and the rest. */
static void add_distance(const struct hd__train_loop *l, const struct hd__roofline *r, double step_s, json_t *event,
                         struct hd__text *text)
{
    const struct hd__profile *profile = hd__exec_get_profile(l->s.exec);
    double steps = (double)l->profiled_steps;
    double products = hd__exec_profile_seconds(profile, HD__ROOFLINE_PRODUCT) / steps - r->products_s;
    double other = hd__exec_profile_seconds(profile, HD__ROOFLINE_OTHER) / steps - r->other_s;
    double all = step_s - r->seconds, rest = all - products - other;
    hd__text_add(
        text,
        "\nthe distance of %.3f ms: products %.3f, other %.3f, between instructions and in communication calls "
        "%.3f",
        1e3 * all, 1e3 * products, 1e3 * other, 1e3 * rest);
    json_object_set_new(event, "distance",
                        json_pack("{s:f,s:f,s:f}", "products_s", products, "other_s", other, "rest_s", rest));
}

static void add_roofline(const struct hd__train_loop *l, struct hd__text *text)
{
    double steps = (double)l->measured_steps, step_s = l->measured_s / steps;
    struct hd__roofline r = hd__roofline_of(l->p, &l->rates, l->measured_comm_s / steps);
    json_t *event =
        json_pack("{s:s,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:s}", "event", "roofline", "step",
                  (json_int_t)l->progress.step, "steps", (json_int_t)l->measured_steps, "step_s", step_s, "roofline_s",
                  r.seconds, "roofline_ratio", step_s / r.seconds, "products_s", r.products_s, "other_s", r.other_s,
                  "exposed_comm_s", r.comm_s, "flops", r.flops, "bytes", r.bytes, "product_flops_per_s", l->rates.flops,
                  "copy_bytes_per_s", l->rates.bytes, "rates", l->rates.source);
    hd__roofline_text(&r, &l->rates, step_s, text);
    if (l->job->metrics_profile && l->profiled_steps)
        add_distance(l, &r, step_s, event, text);
    hd__text_add(text, "\n");
    hd__metrics_log_event(l->metrics, event);
}

/* By op, beside what a machine file says: heddle calibrate reads it. */
static void log_profile(const struct hd__train_loop *l)
{
    struct hd__op_seconds *by = hd__alloc(sizeof *by);
    json_t *rows = json_array();
    double steps = (double)l->profiled_steps;
    hd__exec_profile_ops(hd__exec_get_profile(l->s.exec), the_plan->instr_s, by);
    for (uint32_t op = 0; op < HD_OP_LIMIT; op++)
        for (int narrow = 0; narrow < 2; narrow++)
            if (by->measured[op][narrow] > 0)
                json_array_append_new(rows, json_pack("{s:s,s:i,s:f,s:f}", "op", hd__op((uint16_t)op)->name, "bytes",
                                                      narrow ? 2 : 4, "seconds", by->measured[op][narrow] / steps,
                                                      "planned_s", by->planned[op][narrow] / steps));
    free(by);
    hd__metrics_log_event(l->metrics, json_pack("{s:s,s:I,s:I,s:f,s:o}", "event", "profile", "step",
                                                (json_int_t)l->progress.step, "steps", (json_int_t)l->profiled_steps,
                                                "step_s", l->profiled_s / steps, "instructions", rows));
}

void hd__loop_print_profile(const struct hd__train_loop *l)
{
    struct hd__text text = {0};
    int has_rates = l->rates.flops > 0 && l->rates.bytes > 0;
    if (l->profiled_steps && l->job->metrics_blocks)
        write_blocks(l);
    if (!l->is_leader)
        return;
    if (l->profiled_steps && l->job->metrics_profile) {
        hd__exec_profile_print(hd__exec_get_profile(l->s.exec), l->profiled_steps, l->profiled_s,
                               hd__loop_device_peak(l), the_plan ? the_plan->instr_s : NULL,
                               has_rates ? &l->rates : NULL, &text);
        hd__text_add(&text, "\n");
        if (the_plan)
            log_profile(l);
    }
    if (l->measured_steps && has_rates)
        add_roofline(l, &text);
    if (text.length)
        hd__text_print(&text, stdout);
}
