/* Lookup of a job's components by name or alias; the job's strategies, and in front of them those that its mesh
 * needs. */
#include "core/compile/internal.h"

/* Finds the component of a section, which an alias may name, and notes it in `chosen`. */
static int32_t find(struct hd__job *job, struct hd__plugins *plugins, uint32_t kind, struct hd__job_section *section,
                    struct hd__chosen *chosen, struct hd_error *err)
{
    const struct hd__component *c;
    const struct hd_alias *alias;
    int32_t rc = hd__plugin_find(plugins, kind, section->use, &c, err);
    if (rc && kind == HD_KIND_CKPT && !strcmp(section->origin, "default")) /* the plugin that a URL names */
        hd_fail(err, rc, "checkpoint.dir: %s; a store that speaks S3 is s3://BUCKET/PREFIX, with checkpoint.endpoint",
                hd__arena_strdup(&job->arena, err->message));
    if (rc) {
        rc = hd__job_locate_error(job, hd__arena_format(&job->arena, "%s.use", section->path), err);
        return hd__job_mistake(job, HD_OK, err, NULL);
    }
    if ((alias = hd__plugin_alias(c, section->use)))
        hd__job_section_rename(job, section, c->name, alias->preset);
    *chosen = (struct hd__chosen){.component = c, .section = section};
    return HD_OK;
}

static int32_t parse(struct hd__job *job, struct hd__job_section *section, struct hd__chosen *chosen,
                     struct hd_error *err)
{
    const struct hd__component *c = chosen->component;
    chosen->settings = hd__arena_alloc(&job->arena, c->settings_size);
    return hd__job_section_parse(job, section, c->options, c->n_options, sizeof(struct hd_option), chosen->settings,
                                 err);
}

int32_t hd__compile_choose(struct hd__job *job, struct hd__plugins *plugins, uint32_t kind,
                           struct hd__job_section *section, struct hd__chosen *chosen, struct hd_error *err)
{
    int32_t rc = find(job, plugins, kind, section, chosen, err);
    return rc ? rc : parse(job, section, chosen, err);
}

/* "comm-libfabric, comm-nccl"; NULL: none has it. */
static const char *plugins_with(struct hd__job *job, struct hd__plugins *plugins, uint32_t kind, const char *option)
{
    const struct hd__plugin_entry *all;
    const char *found = NULL;
    size_t n;
    hd__plugin_scan(plugins, &all, &n);
    for (size_t i = 0; i < n; i++) {
        const struct hd__component *c = all[i].kind == kind ? all[i].component : NULL;
        const struct hd__options table = {c ? c->options : NULL, c ? c->n_options : 0, sizeof(struct hd_option)};
        if (hd__option_find(&table, option) >= 0)
            found = hd__arena_format(&job->arena, "%s%s%s", found ? found : "", found ? ", " : "", all[i].label);
    }
    return found;
}

void hd__compile_mistakes(struct hd__job *job, struct hd__plugins *plugins)
{
    for (uint32_t i = 0; i < job->sections.count; i++) {
        struct hd__chosen unused;
        struct hd_error noted = HD_ERROR_INIT;
        if (!job->sections.at[i]->parsed)
            hd__compile_choose(job, plugins, job->sections.at[i]->kind, job->sections.at[i], &unused, &noted);
    }
    for (uint32_t i = 0; i < job->mistakes.count; i++) {
        struct hd__job_mistake *m = &job->mistakes.at[i];
        m->others = m->unknown && m->in ? plugins_with(job, plugins, m->in->kind, m->unknown) : NULL;
    }
}

/* ---- strategies */

/* A strategy stands once, by whichever name; of two equal ones core/job has said so. */
static int32_t check_alias(struct hd__compiled *c, uint64_t s, struct hd_error *err)
{
    const struct hd__job_section *this = c->strategies[s].section, *other;
    for (uint64_t k = 0; k < c->n_strategies; k++) {
        other = c->strategies[k].section;
        if (k == s || c->strategies[k].component != c->strategies[s].component || !this->alias)
            continue;
        return hd_fail(err, HD_E_INVALID,
                       "%s: %s is strategy %s%s%s, which the job already lists as %s, at %s: remove one", this->origin,
                       this->alias, this->use, this->preset ? " with " : "", this->preset ? this->preset : "",
                       other->alias ? other->alias : other->use, other->origin);
    }
    return HD_OK;
}

static int32_t find_named(struct hd__compiled *c, struct hd_error *err)
{
    int32_t rc = HD_OK;
    c->n_strategies = c->job->n_strategies;
    c->strategies = hd__realloc(c->strategies, c->n_strategies * sizeof *c->strategies);
    for (uint64_t s = 0; s < c->n_strategies && !rc; s++)
        rc = find(c->job, c->plugins, HD_KIND_STRATEGY, c->job->strategies[s], &c->strategies[s], err);
    for (uint64_t s = c->n_strategies; s-- > 0 && !rc;)
        rc = check_alias(c, s, err);
    return rc;
}

/* ---- axes that no strategy of the job cuts */

static uint64_t axes_cut(const struct hd__compiled *c)
{
    uint64_t cut = 0;
    for (uint64_t s = 0; s < c->n_strategies; s++)
        cut |= c->strategies[s].component->ops.strategy.cuts;
    return cut;
}

/* "mesh.pp is 2, mesh.tp is 4"; `first` is the key of the first. */
static const char *axes_text(struct hd__compiled *c, uint64_t axes, const char **first)
{
    const char *text = NULL;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (axes & HD_AXIS_BIT(a)) {
            if (!text)
                *first = hd__arena_format(&c->job->arena, "mesh.%s", hd__axis_name(a));
            text = hd__arena_format(&c->job->arena, "%s%smesh.%s is %d", text ? text : "", text ? ", " : "",
                                    hd__axis_name(a), c->mesh.size[a]);
        }
    return text;
}

/* Adds the strategy that cuts an axis; none if none is installed: a later check refuses an axis that nothing cuts. */
static int32_t add_for_axis(struct hd__compiled *c, int32_t axis, struct hd_error *err)
{
    uint64_t live = hd__mesh_axes(&c->mesh), taken = axes_cut(c) & live;
    const struct hd__component *found;
    const char *first = hd__arena_format(&c->job->arena, "mesh.%s", hd__axis_name(axis)), *because;
    int32_t rc = hd__plugin_find_cutter(c->plugins, (uint32_t)axis, taken, &found, err);
    if (rc) {
        char *why = hd__arena_format(&c->job->arena, "%s is %d, and %s", first, c->mesh.size[axis], err->message);
        return hd__job_fail(c->job, first, err, "%s", why);
    }
    if (!found)
        return HD_OK;
    because = axes_text(c, found->ops.strategy.cuts & live, &first);
    rc = hd__job_strategy_add(c->job, found->name, because, hd__job_where(c->job, first), err);
    return rc ? rc : find_named(c, err);
}

/* One that meshes bring is there when the command line sets its options: on one rank, or without its axes, it has
 * nothing to do. Any other has to stand in the job. */
static int32_t add_named(struct hd__compiled *c, const char *name, struct hd_error *err)
{
    const struct hd__component *found;
    struct hd_error absent = HD_ERROR_INIT;
    if (hd__plugin_find(c->plugins, HD_KIND_STRATEGY, name, &found, &absent) || !found->ops.strategy.cuts)
        return hd__job_unplaced_fail(c->job, err);
    int32_t rc = hd__job_strategy_add(c->job, name, hd__arena_format(&c->job->arena, "strategies.%s is set", name),
                                      "command line", err);
    return rc ? rc : find_named(c, err);
}

int32_t hd__compile_strategies(struct hd__compiled *c, struct hd_error *err)
{
    int32_t rc = find_named(c, err);
    for (int32_t a = HD_AXIS_COUNT; a-- > 0 && !rc;)
        if (c->mesh.size[a] > 1 && !(axes_cut(c) & HD_AXIS_BIT(a)))
            rc = add_for_axis(c, a, err);
    while (!rc && hd__job_unplaced(c->job))
        rc = add_named(c, hd__job_unplaced(c->job), err);
    for (uint64_t s = 0; s < c->n_strategies && !rc; s++)
        rc = parse(c->job, c->job->strategies[s], &c->strategies[s], err);
    return rc;
}
