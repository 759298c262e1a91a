/* Profiles of a run's steps: the first ones are left out, where there are others. */
#include "core/base/file.h"
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
    int wanted = (l->is_leader && l->job->metrics_profile) || (l->job->metrics_blocks && is_stage_leader(l));
    if (wanted && (l->steps_run >= PROFILE_AFTER || l->job->steps - l->progress.step + l->steps_run <= PROFILE_AFTER))
        hd__exec_set_profiling(l->s.exec, 1);
    l->steps_run++;
}

void hd__loop_profile_end(struct hd__train_loop *l)
{
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

void hd__loop_print_profile(const struct hd__train_loop *l)
{
    struct hd__text text = {0};
    if (!l->profiled_steps)
        return;
    if (l->job->metrics_blocks)
        write_blocks(l);
    if (!l->job->metrics_profile || !l->is_leader)
        return;
    hd__exec_profile_print(hd__exec_get_profile(l->s.exec), l->profiled_steps, l->profiled_s, hd__loop_device_peak(l),
                           the_plan ? the_plan->instr_s : NULL, &text);
    hd__text_add(&text, "\n");
    hd__text_print(&text, stdout);
}
