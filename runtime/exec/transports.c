/* A group over several axes uses the transport of the outermost axis larger than 1; groups of all ranks use
 * comm.use. */
#include "runtime/exec/transports.h"

#include <stdlib.h>

#include "runtime/comm/hierarchical.h"
#include "runtime/comm/hook.h"
#include "runtime/comm/request_pool.h"
#include "runtime/comm/topology.h"
#include "runtime/exec/internal.h"
#include "runtime/rendezvous/store.h"

const struct hd__job_section *hd__exec_transports_section(const struct hd__compiled *c, uint32_t axes)
{
    const struct hd__job *job = c->job;
    uint32_t world = hd__mesh_axes(&c->mesh);
    if ((axes & world) == world && __builtin_popcount(world) > 1)
        return job->comm;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if ((axes & HD_AXIS_BIT(a)) && c->mesh.size[a] > 1)
            return job->comm_axis[a] ? job->comm_axis[a] : job->comm;
    return job->comm;
}

/* Location of a rank: the first rank on its machine (launchers number a machine's ranks in a row), and the index of its
 * package or NUMA node, for each of the job's levels. */
struct rank_location {
    int32_t machine, at[HD__LEVELS_COUNT];
};
_Static_assert(HD__COUNT(((struct hd__job *)0)->comm_levels) == HD__LEVELS_COUNT,
               "a job names each level once at most");

static int32_t locate_self(const struct hd__transports *t, struct rank_location *mine, struct hd_error *err)
{
    const struct hd__job *job = t->compiled->job;
    struct hd__topology *topology;
    int32_t rc = hd__comm_topology_open(job->comm_levels, job->n_comm_levels, &topology, err);
    *mine = (struct rank_location){.machine = t->rank - t->local_rank};
    for (uint32_t i = 0; i < job->n_comm_levels && !rc; i++)
        mine->at[i] = hd__comm_topology_locate(topology, (uint32_t)job->comm_levels[i], t->local_rank, t->local_ranks);
    hd__comm_topology_close(topology);
    return rc;
}

static void log_levels(const struct hd__transports *t, const struct hd__topology_levels *levels)
{
    if (t->rank)
        return;
    if (levels->unbound_rank >= 0)
        hd__log(HD_LOG_WARN, "comm",
                "comm.levels: rank %d may run on the cores of more than one %s: bind ranks to fewer cores; %s",
                levels->unbound_rank, hd__comm_topology_level_name(levels->dropped_level),
                hd__comm_topology_fallback(levels));
    for (uint32_t i = 0; i < levels->n; i++) {
        int32_t n = 0;
        for (int32_t r = 0; r < t->compiled->mesh.ranks; r++)
            n += levels->leaders[i][r] == r;
        if (levels->level[i] != HD__LEVELS_MACHINE)
            hd__log(HD_LOG_INFO, "comm", "comm.levels: the ranks are on %d %ss", n,
                    hd__comm_topology_level_name(levels->level[i]));
    }
}

static int32_t fail_location(int32_t rank, int32_t machine, struct hd_error *err)
{
    return hd_fail(err, HD_E_INVALID,
                   "the launcher says that rank %d is number %d on its machine, counted from 0: comm.inside needs the "
                   "ranks of a machine in a row, as srun --distribution=block numbers them",
                   rank, rank - machine);
}

/* The first rank of a machine collects the locations of all there: a rank then asks once a machine, not once a rank. */
static int32_t collect_machine(const struct hd__transports *t, const struct rank_location *mine, double deadline,
                               struct hd_error *err)
{
    int32_t n = t->compiled->mesh.ranks, count = 1, rc = HD_OK;
    struct rank_location *here = hd__alloc((size_t)(n - t->rank) * sizeof *here);
    char key[64];
    here[0] = *mine;
    for (int32_t r = t->rank + 1; r < n && !rc; r++) {
        struct rank_location *of = &here[count];
        size_t bytes = sizeof *of;
        snprintf(key, sizeof key, "comm/at/%d", r);
        rc = hd__store_get(t->store, key, of, &bytes, deadline, err);
        if (!rc && of->machine == r)
            break;
        if (!rc && of->machine != t->rank)
            rc = fail_location(r, of->machine, err);
        count++;
    }
    snprintf(key, sizeof key, "comm/machine/%d", t->rank);
    rc = rc ? rc : hd__store_put(t->store, key, here, (size_t)count * sizeof *here, err);
    free(here);
    return rc;
}

/* All-gathers the locations through the store. */
static int32_t find_levels(const struct hd__transports *t, struct hd__topology_levels *levels, struct hd_error *err)
{
    struct hd__job *job = t->compiled->job;
    int32_t n = t->compiled->mesh.ranks, *all = hd__alloc((1 + HD__LEVELS_COUNT) * (size_t)n * sizeof *all), rc;
    int32_t *at[HD__LEVELS_COUNT];
    double deadline = hd__now() + job->comm_timeout;
    struct rank_location where, *of = hd__alloc((size_t)n * sizeof *of);
    char key[64];
    snprintf(key, sizeof key, "comm/at/%d", t->rank);
    rc = locate_self(t, &where, err);
    if (!rc && where.machine < 0)
        rc = fail_location(t->rank, where.machine, err);
    rc = rc ? rc : hd__store_put(t->store, key, &where, sizeof where, err);
    if (!rc && t->local_rank == 0)
        rc = collect_machine(t, &where, deadline, err);
    for (int32_t r = 0; r < n && !rc;) {
        size_t bytes = (size_t)(n - r) * sizeof *of;
        snprintf(key, sizeof key, "comm/machine/%d", r);
        rc = hd__store_get(t->store, key, of + r, &bytes, deadline, err);
        r += (int32_t)(bytes / sizeof *of);
    }
    for (uint32_t i = 0; i < HD__LEVELS_COUNT; i++)
        at[i] = all + (1 + i) * (size_t)n;
    for (int32_t r = 0; r < n && !rc; r++) {
        all[r] = of[r].machine;
        for (uint32_t i = 0; i < HD__LEVELS_COUNT; i++)
            at[i][r] = of[r].at[i];
    }
    if (!rc) {
        hd__comm_topology_levels(levels, job->comm_levels, job->n_comm_levels, all, at, n, &job->arena);
        log_levels(t, levels);
    }
    free(of);
    free(all);
    return rc;
}

/* Splits `transport`, which serves `world`, at one level: it goes on between the parts (machines, packages, NUMA
 * nodes), and comm.inside is opened within this rank's part. Recursive where another level follows. */
static int32_t open_level(struct hd__transports *t, const struct hd__topology_levels *levels, uint32_t level,
                          const struct hd_world *world, struct hd__comm *transport, struct hd_error *err)
{
    const struct hd__chosen *chosen = hd__exec_chosen_comm(t->compiled, t->compiled->job->comm_inside);
    const int32_t *leaders = levels->leaders[level];
    struct hd__comm intra = {.tuning = transport->tuning, .counts = transport->counts}, inter = *transport;
    /* rank of the job -> rank in `world` */
    int32_t *number = hd__alloc((size_t)t->compiled->mesh.ranks * sizeof *number);
    int32_t *local = hd__alloc((size_t)world->size * sizeof *local), rc; /* leaders, in ranks of `world` */
    for (int32_t n = 0; n < world->size; n++) {
        int32_t r = hd_job_rank(world, n);
        number[r] = n;
        local[n] = number[leaders[r]];
    }
    struct hd_world ours = hd__comm_hier_intra_world(
        world, local, hd__arena_alloc(&t->compiled->job->arena, (size_t)world->size * sizeof *local));
    ours.instance = hd__arena_format(&t->compiled->job->arena, "comm/inside/%u/%d", level, leaders[t->rank]);
    rc = hd__comm_open(&chosen->component->ops.comm, hd__exec_host_table(), chosen->settings, &ours, &intra, err);
    if (!rc && level + 1 < levels->n)
        rc = open_level(t, levels, level + 1, &ours, &intra, err);
    if (!rc)
        hd__comm_hier_create(&inter, &intra, world, local, transport);
    else
        hd__comm_close(transport);
    free(number);
    free(local);
    return rc;
}

/* comm.inside: a transport of its own for the ranks of this machine, package or NUMA node; all become one. */
static int32_t open_inside(struct hd__transports *t, const struct hd_world *world, struct hd__comm *transport,
                           struct hd_error *err)
{
    struct hd__topology_levels levels;
    int32_t rc = hd__plugin_probe(t->compiled->plugins,
                                  hd__exec_chosen_comm(t->compiled, t->compiled->job->comm_inside)->component, err);
    rc = rc ? rc : find_levels(t, &levels, err);
    if (!rc)
        return open_level(t, &levels, 0, world, transport, err);
    hd__comm_close(transport);
    return rc;
}

/* Name in the files of hooks: a job's second libfabric is libfabric-2. */
static const char *hook_file_label(struct hd__transports *t, const struct hd__transport *of)
{
    int before = 0;
    for (uint32_t i = 0; i < t->opened.count; i++)
        before += !strcmp(t->opened.at[i]->section->use, of->section->use);
    return before ? hd__arena_format(&t->compiled->job->arena, "%s-%d", of->section->use, before + 1)
                  : of->section->use;
}

/* Hooks of the job, the last innermost. */
static int32_t wrap_in_hooks(struct hd__transports *t, struct hd__transport *of, const struct hd_world *world,
                             struct hd_error *err)
{
    const struct hd__compiled *c = t->compiled;
    struct hd__hook_context context = {.host = hd__exec_host_table(),
                                       .world = world,
                                       .flight = t->flight,
                                       .transport = hook_file_label(t, of),
                                       .folder = hd__job_folder(c->job)};
    int32_t rc = HD_OK;
    for (uint32_t i = c->selection->hooks.count; i-- > 0 && !rc;) {
        const struct hd__chosen *hook = &c->selection->hooks.at[i];
        rc = hd__plugin_probe(c->plugins, hook->component, err);
        rc = rc ? rc
                : hd__comm_hook_wrap(&of->open, &hook->component->ops.hook, hook->component->name, hook->settings,
                                     &context, err);
        if (rc == HD_E_INVALID) /* of its options */
            hd__job_locate_error(c->job, hook->section->path, err);
    }
    if (rc)
        hd__comm_close(&of->open);
    return rc;
}

void hd__exec_transports_abort(struct hd__transports *t, const char *reason)
{
    pthread_mutex_lock(&t->lock);
    if (!t->aborted)
        snprintf(t->reason, sizeof t->reason, "%s", reason);
    t->aborted = 1;
    for (uint32_t i = 0; i < t->opened.count; i++)
        t->opened.at[i]->ops->abort(t->opened.at[i]->comm, t->reason);
    pthread_mutex_unlock(&t->lock);
}

static int32_t open_one(struct hd__transports *t, const struct hd__job_section *section, struct hd__transport **out,
                        struct hd_error *err)
{
    const struct hd__job *job = t->compiled->job;
    const struct hd__chosen *chosen = hd__exec_chosen_comm(t->compiled, section);
    const struct hd__device *d = t->device;
    struct hd__transport *new = hd__alloc(sizeof *new);
    struct hd_world world = {.struct_size = sizeof world,
                             .rank = t->rank,
                             .size = t->compiled->mesh.ranks,
                             .local_rank = t->local_rank,
                             .local_size = t->local_ranks,
                             .store = t->store,
                             .timeout = job->comm_timeout,
                             .dead_after = job->comm_dead_after};
    /* comm.inside takes host memory only, so that no device stream is lent there */
    if (d->streams && (chosen->component->ops.comm.caps & HD_COMM_STREAM_ORDERED) && !job->comm_inside) {
        world.stream = d->ops->native(d->handle, HD_STREAM_COMM);
        world.device = d->name;
    }
    hd__exec_begin_call(t->exec, hd__arena_format(&t->compiled->job->arena, "opening comm-%s", section->use));
    new->section = section;
    new->open.tuning = &t->compiled->selection->tuning;
    new->open.counts = t->compiled->selection->hooks.count ? &new->counts : NULL;
    world.instance = hd__arena_format(&t->compiled->job->arena, "comm/%u", t->opened.count);
    int32_t rc = hd__plugin_probe(t->compiled->plugins, chosen->component, err);
    if (!rc)
        rc = hd__comm_open(&chosen->component->ops.comm, hd__exec_host_table(), chosen->settings, &world, &new->open,
                           err);
    if (rc == HD_E_INVALID) /* of its options */
        hd__job_locate_error(t->compiled->job, section->path, err);
    if (!rc && section == job->comm && job->comm_inside)
        rc = open_inside(t, &world, &new->open, err);
    if (!rc)
        rc = wrap_in_hooks(t, new, &world, err);
    if (rc) {
        free(new);
        return rc;
    }
    new->ops = &new->open.ops;
    new->stream_ordered = world.stream && (new->ops->caps &HD_COMM_STREAM_ORDERED);
    new->comm = new->open.comm;
    new->groups = hd__comm_groups_create(new->ops, new->comm, t->rank);
    pthread_mutex_lock(&t->lock); /* of aborts: after one it is aborted at once */
    hd__push(&t->opened, new);
    if (t->aborted)
        new->ops->abort(new->comm, t->reason);
    pthread_mutex_unlock(&t->lock);
    hd__exec_begin_call(t->exec, "creating groups");
    *out = new;
    return HD_OK;
}

/* A machine-local transport may serve axes whose groups stay on one machine. Launchers number a machine's ranks in a
 * row. */
static int32_t check_local(struct hd__transports *t, const struct hd__job_section *section, uint32_t axes,
                           struct hd_error *err)
{
    const struct hd__mesh *mesh = &t->compiled->mesh;
    const struct hd__chosen *chosen = hd__exec_chosen_comm(t->compiled, section);
    int32_t *ranks, n, first = t->rank - t->local_rank, remote_rank = -1;
    char name[64];
    if (!(chosen->component->ops.comm.caps & HD_COMM_LOCAL_ONLY) || t->local_ranks == mesh->ranks)
        return HD_OK;
    ranks = hd__alloc((size_t)mesh->ranks * sizeof *ranks);
    n = hd__mesh_group(mesh, t->rank, axes, 0, ranks);
    for (int32_t i = 0; i < n; i++)
        if (ranks[i] < first || ranks[i] >= first + t->local_ranks)
            remote_rank = ranks[i];
    free(ranks);
    if (remote_rank < 0)
        return HD_OK;
    hd__axes_text(axes, name);
    return hd__job_fail(t->compiled->job, section->path, err,
                        "comm-%s works inside one machine only, but %s connects rank %d with rank %d, which is not "
                        "among the %d ranks here: use another transport for axes across machines",
                        section->use, name, t->rank, remote_rank, t->local_ranks);
}

static int32_t transport_for(struct hd__transports *t, uint32_t axes, struct hd__transport **out, struct hd_error *err)
{
    const struct hd__job_section *section = hd__exec_transports_section(t->compiled, axes);
    int32_t rc = check_local(t, section, axes, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < t->opened.count; i++)
        if (t->opened.at[i]->section == section) {
            *out = t->opened.at[i];
            return HD_OK;
        }
    return open_one(t, section, out, err);
}

/* Different tuning rules select different algorithms, whose messages do not match: a deadlock. */
static int32_t check_same_tuning(struct hd__transports *t, struct hd_error *err)
{
    const struct hd__job *job = t->compiled->job;
    uint64_t mine = t->compiled->selection->tuning.hash, theirs = 0;
    size_t bytes = sizeof theirs;
    if (t->rank == 0)
        return hd__store_put(t->store, "comm/tuning", &mine, sizeof mine, err);
    int32_t rc = hd__store_get(t->store, "comm/tuning", &theirs, &bytes, hd__now() + job->comm_timeout, err);
    if (rc || theirs == mine)
        return rc;
    return hd__job_fail(t->compiled->job, "comm.tune", err,
                        "comm.tune: rank %d does not have the rules that rank 0 has: put the same file on all machines",
                        t->rank);
}

int32_t hd__exec_transports_open(struct hd__transports *t, struct hd_error *err)
{
    const struct hd__mesh *mesh = &t->compiled->mesh;
    struct hd__transport *unused;
    int32_t rc = HD_OK;
    if (mesh->ranks == 1)
        return HD_OK;
    rc = check_same_tuning(t, err);
    if (!rc)
        rc = transport_for(t, hd__mesh_axes(mesh), &unused, err);
    for (int32_t a = 0; a < HD_AXIS_COUNT && !rc; a++)
        if (mesh->size[a] > 1)
            rc = transport_for(t, HD_AXIS_BIT(a), &unused, err);
    return rc;
}

void hd__exec_transports_group_name(const struct hd__mesh *mesh, uint32_t axes, uint64_t members, char out[96])
{
    char name[64];
    hd__axes_text(axes & hd__mesh_axes(mesh), name);
    snprintf(out, 96, "%s%s%.0lx", name, members ? "/" : "", (unsigned long)members);
}

int32_t hd__exec_transports_group(struct hd__transports *t, uint32_t axes, uint64_t members,
                                  struct hd__group_ref *group, struct hd_error *err)
{
    const struct hd__mesh *mesh = &t->compiled->mesh;
    int32_t *ranks = hd__alloc((size_t)mesh->ranks * sizeof *ranks), n, rc;
    char full[96];
    axes &= hd__mesh_axes(mesh);
    n = hd__mesh_group(mesh, t->rank, axes, members, ranks);
    hd__exec_transports_group_name(mesh, axes, members, full);
    rc = transport_for(t, axes, &group->transport, err);
    if (!rc)
        rc = hd__comm_groups_get(group->transport->groups, full, ranks, n, &group->of, err);
    free(ranks);
    return rc;
}

void hd__exec_transports_close(struct hd__transports *t)
{
    hd__exec_progress_stop(t->progress_thread);
    t->progress_thread = NULL;
    for (uint32_t i = 0; i < t->opened.count; i++) {
        hd__exec_begin_call(
            t->exec, hd__arena_format(&t->compiled->job->arena, "closing comm-%s", t->opened.at[i]->section->use));
        hd__comm_groups_destroy(t->opened.at[i]->groups);
        hd__comm_close(&t->opened.at[i]->open);
        hd__comm_counts_free(&t->opened.at[i]->counts);
        free(t->opened.at[i]);
    }
    hd__free_array(&t->opened);
}

/* 1 if anything moved, 0 if not, or an error. */
static int32_t progress_all(void *user, struct hd_error *err)
{
    struct hd__transports *t = user;
    int32_t moved = 0;
    for (uint32_t i = 0; i < t->opened.count; i++) {
        int32_t rc = hd__comm_moved(t->opened.at[i]->ops->progress(t->opened.at[i]->comm, err), err);
        if (rc < 0)
            return rc;
        moved |= rc;
    }
    return moved;
}

void hd__exec_transports_start_thread(struct hd__transports *t)
{
    if (t->compiled->job->comm_progress && t->opened.count)
        t->progress_thread = hd__exec_progress_start(progress_all, t);
}

int32_t hd__exec_transports_progress(struct hd__transports *t, struct hd_error *err)
{
    return t->progress_thread ? hd__exec_progress_poll(t->progress_thread, err) : progress_all(t, err);
}

static int32_t wait_and_progress_all(struct hd__transports *t, struct hd__transport *of, hd_request request,
                                     double deadline, struct hd_error *err)
{
    if (t->opened.count == 1)
        return hd__comm_done(of->ops->wait(of->comm, request, deadline, err), "wait", err);
    struct hd_deadline end = hd_deadline_from(deadline, hd__now());
    for (uint32_t idle = 0;; idle++) {
        int32_t done = 0, rc = progress_all(t, err);
        idle = rc ? 0 : idle;
        if (rc < 0 || (rc = hd__comm_done(of->ops->test(of->comm, request, &done, err), "test", err)) || done)
            return rc;
        if (hd_deadline_passed(&end, hd__now())) /* so that the transport names the late rank */
            return hd__comm_done(of->ops->wait(of->comm, request, 0, err), "wait", err);
        hd__comm_backoff(idle);
    }
}

int32_t hd__exec_transports_wait(struct hd__transports *t, struct hd__transport *of, hd_request request,
                                 double deadline, struct hd_error *err)
{
    hd__exec_progress_lock(t->progress_thread);
    int32_t rc = wait_and_progress_all(t, of, request, deadline, err);
    hd__exec_progress_unlock(t->progress_thread, -1);
    return rc;
}
