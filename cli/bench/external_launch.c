/* heddle bench as a rank: mpirun, srun or torchrun started this command once per rank, on one machine or several. */
#include "cli/bench/bench.h"

int32_t hd__bench_detect_launch(struct hd__bench_launch *m, struct hd__bench *bench, int32_t asked, int overlap,
                                struct hd_error *err)
{
    const struct hd__launch_env *env = &m->env;
    int found;
    int32_t rc = hd__launch_detect(&m->env, &found, err);
    if (rc || !found || env->size == 1) /* alone: not launched */
        return rc || found ? rc : hd__launch_check_alone(err);
    m->external =
        (struct hd__bench_external){.rank = env->rank, .local_rank = env->local_rank, .local_ranks = env->local_size};
    if (asked && asked != env->size)
        return hd_fail(err, HD_E_INVALID, "--ranks %d: the launcher started %d ranks; leave --ranks out", asked,
                       env->size);
    if (overlap)
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "--overlap wants ranks that it starts itself: run it without mpirun, srun or torchrun");
    bench->external = &m->external;
    bench->ranks = env->size;
    return HD_OK;
}

int32_t hd__bench_connect(struct hd__bench_launch *m, const struct hd__bench *bench, struct hd_error *err)
{
    if (!bench->external)
        return HD_OK;
    m->env.store.dead_after = bench->timeout;
    m->env.store.late_after = 10;
    hd__launch_setup_rank(&m->env);
    return hd__launch_connect(&m->env, bench->timeout, &m->external.store, &m->server, err);
}

void hd__bench_disconnect(struct hd__bench_launch *m, double timeout)
{
    hd__store_close(m->external.store);
    if (m->server)
        hd__server_drain(m->server, hd__now() + timeout);
    hd__server_close(m->server);
}
