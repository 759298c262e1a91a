/* Plug-ins of a job, chosen before its programs are compiled: a mistake in any section is refused before anything
 * starts. */
#include "runtime/exec/select.h"

#include <stdlib.h>

#include "core/base/file.h"
#include "runtime/comm/open.h"
#include "runtime/comm/topology.h"
#include "runtime/comm/tuning_file.h"

const struct hd__chosen *hd__exec_chosen_comm(const struct hd__compiled *c, const struct hd__job_section *section)
{
    for (uint32_t i = 0; i < c->selection->comms.count; i++)
        if (c->selection->comms.at[i].section == section)
            return &c->selection->comms.at[i];
    return NULL;
}

static int32_t choose_comm(struct hd__compiled *c, struct hd__job_section *section, struct hd_error *err)
{
    struct hd__chosen chosen;
    if (!section || hd__exec_chosen_comm(c, section))
        return HD_OK;
    int32_t rc = hd__compile_choose(c->job, c->plugins, HD_KIND_COMM, section, &chosen, err);
    if (!rc)
        hd__push(&c->selection->comms, chosen);
    return rc;
}

/* A single rank needs no transport: a missing plug-in is only a warning, but invalid keys of its section are
 * refused. */
static int32_t check_comm(struct hd__compiled *c, struct hd_error *err)
{
    const struct hd__component *here;
    struct hd__chosen unused;
    struct hd_error absent = HD_ERROR_INIT;
    if (hd__plugin_find(c->plugins, HD_KIND_COMM, c->job->comm->use, &here, &absent)) {
        hd__log(HD_LOG_WARN, NULL, "comm.use: %s; one rank needs none", absent.message);
        return HD_OK;
    }
    return hd__compile_choose(c->job, c->plugins, HD_KIND_COMM, c->job->comm, &unused, err);
}

static int32_t choose_data(struct hd__compiled *c, struct hd_error *err)
{
    struct hd__chosen *chosen = &c->data_choice;
    int32_t rc = hd__compile_choose(c->job, c->plugins, HD_KIND_DATA, c->job->data, chosen, err);
    if (rc || !chosen->component->ops.data.check || !(rc = chosen->component->ops.data.check(chosen->settings, err)))
        return rc;
    return hd__compile_locate_error(c->job, "data", err);
}

/* Do two sinks of one plug-in write to the same place: have they a path in common, or all of their options? */
static int is_same_sink(struct hd__job *job, const struct hd__chosen *a, const struct hd__chosen *b)
{
    const struct hd__options table = {a->component->options, a->component->n_options, sizeof(struct hd_option)};
    int differ = 0;
    if (a->component != b->component)
        return 0;
    for (size_t i = 0; i < table.count; i++) {
        const struct hd_option o = hd__option_at(&table, i);
        const char *first = hd__option_text(&o, a->settings, &job->arena),
                   *second = hd__option_text(&o, b->settings, &job->arena);
        int is_path = (o.flags & HD_OPTION_PATH) != 0, same = !first || !second ? first == second
                                                              : is_path         ? hd__same_path(first, second)
                                                                                : !strcmp(first, second);
        if (same && first && is_path)
            return 1;
        differ |= !same;
    }
    return !differ;
}

static int32_t choose_sink(struct hd__compiled *c, struct hd__job_section *section, struct hd_error *err)
{
    struct hd__chosen chosen;
    int32_t rc = hd__compile_choose(c->job, c->plugins, HD_KIND_METRICS, section, &chosen, err);
    for (uint32_t i = 0; i < c->selection->sinks.count && !rc; i++) {
        const struct hd__chosen *before = &c->selection->sinks.at[i];
        if (is_same_sink(c->job, before, &chosen))
            rc = hd_fail(err, HD_E_INVALID,
                         "%s: %s: %s is there already, as %s at %s, and writes to the same place: "
                         "leave one of them out",
                         section->origin, section->path, section->use, before->section->path, before->section->origin);
    }
    if (!rc)
        hd__push(&c->selection->sinks, chosen);
    return rc;
}

static int32_t choose_runtime(struct hd__compiled *c, struct hd_error *err)
{
    struct hd__job *job = c->job;
    struct hd__chosen chosen;
    int32_t rc = hd__compile_choose(job, c->plugins, HD_KIND_DEVICE, job->device, &c->device_choice, err);
    if (!rc)
        rc = choose_data(c, err);
    if (!rc && job->checkpoint)
        rc = hd__compile_choose(job, c->plugins, HD_KIND_CKPT, job->checkpoint, &c->checkpoint_choice, err);
    for (uint64_t i = 0; i < job->n_sinks && !rc; i++)
        rc = choose_sink(c, job->sinks[i], err);
    for (uint64_t i = 0; i < job->n_hooks && !rc; i++)
        if (!(rc = hd__compile_choose(job, c->plugins, HD_KIND_HOOK, job->hooks[i], &chosen, err)))
            hd__push(&c->selection->hooks, chosen);
    if (rc || c->mesh.ranks == 1)
        return rc ? rc : check_comm(c, err);
    rc = choose_comm(c, job->comm, err);
    for (int32_t a = 0; a < HD_AXIS_COUNT && !rc; a++)
        rc = choose_comm(c, job->comm_axis[a], err);
    return rc ? rc : choose_comm(c, job->comm_inside, err);
}

/* Unsupported combinations of keys are refused by name, never ignored. */
static int32_t refuse_unsupported(struct hd__job *job, struct hd_error *err)
{
    int levels = job->n_comm_levels > 1 || job->comm_levels[0];
    const struct {
        int asked;
        const char *path, *what;
    } rows[] = {{job->comm_sums == HD__SUMS_ANY && job->deterministic == HD__DETERMINISTIC_EXACT, "comm.sums",
                 "any does not go with job.deterministic: exact, which fixes the order of every sum"},
                {levels && !job->comm_inside, "comm.levels",
                 "it says which ranks are inside, but comm.inside names no transport for them: add comm.inside: shm"},
                {levels && !hd__comm_topology_available(), "comm.levels",
                 "this heddle was built without hwloc, which knows packages and NUMA nodes: use machine"}};
    for (size_t i = 0; i < HD__COUNT(rows); i++)
        if (rows[i].asked) {
            hd__job_fail(job, rows[i].path, err, "%s: %s", rows[i].path, rows[i].what);
            return err->code = HD_E_UNSUPPORTED;
        }
    return HD_OK;
}

static int in_any_order(const struct hd__compiled *c, const struct hd__job_section *section)
{
    const struct hd__chosen *chosen = hd__exec_chosen_comm(c, section);
    const struct hd_comm_ops *ops = &chosen->component->ops.comm;
    return (hd__comm_caps(ops, hd__comm_caps_with(ops, chosen->settings), &c->selection->tuning) & HD_COMM_ANY_ORDER) !=
           0;
}

/* A transport inside machines with its own order of sums would break the tree that the one between machines keeps. */
static int32_t check_intra_order(struct hd__compiled *c, struct hd_error *err)
{
    const struct hd__job_section *intra = c->job->comm_inside;
    if (!intra || c->mesh.ranks == 1 || c->selection->tuning.any_order || in_any_order(c, c->job->comm) ||
        !in_any_order(c, intra))
        return HD_OK;
    hd__job_fail(c->job, intra->path, err,
                 "comm.inside: %s adds in an order of its own, but sums over %s keep to comm.sums: tree: name a "
                 "transport that does too, as shm, or set comm.sums: any",
                 intra->use, c->job->comm->use);
    return err->code = HD_E_UNSUPPORTED;
}

int32_t hd__exec_compile(struct hd__job *job, struct hd__plugins *plugins, struct hd__compiled **compiled,
                         struct hd_error *err)
{
    return hd__exec_compile_with(job, plugins, 0, compiled, err);
}

int32_t hd__exec_compile_with(struct hd__job *job, struct hd__plugins *plugins, uint32_t flags,
                              struct hd__compiled **compiled, struct hd_error *err)
{
    double start = hd__now();
    struct hd__compiled *c = hd__compiled_new(job, plugins, hd__exec_host_table());
    int32_t rc = refuse_unsupported(job, err);
    c->selection = hd__alloc(sizeof *c->selection);
    c->selection->tuning.any_order = job->comm_sums == HD__SUMS_ANY;
    if (!rc && job->comm_tune && (rc = hd__comm_tuning_read(job->comm_tune, &c->selection->tuning, err)))
        rc = hd__job_fail(job, "comm.tune", err, "comm.tune: %s", err->message);
    if (!rc)
        rc = choose_runtime(c, err);
    if (!rc)
        rc = check_intra_order(c, err);
    if (!rc)
        rc = hd__compile_stages(c, flags, err);
    c->seconds = hd__now() - start;
    if (rc) {
        hd__exec_compiled_free(c);
        return rc;
    }
    *compiled = c;
    return HD_OK;
}

void hd__exec_compiled_free(struct hd__compiled *c)
{
    if (!c)
        return;
    hd__free_array(&c->selection->comms);
    hd__comm_tuning_free(&c->selection->tuning);
    hd__free_array(&c->selection->hooks);
    hd__free_array(&c->selection->sinks);
    free(c->selection);
    hd__compiled_finish(c);
}
