/* heddle bench as a rank: mpirun, srun or torchrun started this command, once a rank, on one machine or several. */
#include "cli/bench.h"

int32_t hd__bench_find_others(struct hd__bench_meeting *m, struct hd__bench *bench, int32_t asked, int overlap, struct hd_error *err)
{
    const struct hd__place_in_job *place = &m->place;
    int found;
    int32_t rc = hd__launch_environment(&m->place, &found, err);
    if (rc || !found || place->size == 1) /* alone: nothing was launched */
        return rc;
    m->among = (struct hd__bench_among){.rank = place->rank, .local_rank = place->local_rank, .local_ranks = place->local_size};
    if (asked && asked != place->size)
        return hd_fail(err, HD_E_INVALID, "--ranks %d: the launcher started %d ranks; leave --ranks out", asked, place->size);
    if (overlap)
        return hd_fail(err, HD_E_UNSUPPORTED, "--overlap wants ranks that it starts itself: run it without mpirun, srun or torchrun");
    bench->among = &m->among;
    bench->ranks = place->size;
    return HD_OK;
}

int32_t hd__bench_meet(struct hd__bench_meeting *m, const struct hd__bench *bench, struct hd_error *err)
{
    if (!bench->among)
        return HD_OK;
    m->place.store.dead_after = bench->timeout;
    hd__launch_settle(&m->place);
    return hd__launch_connect(&m->place, &m->among.store, &m->server, err);
}

void hd__bench_leave(struct hd__bench_meeting *m, double timeout)
{
    hd__store_close(m->among.store);
    if (m->server)
        hd__server_drain(m->server, hd__now() + timeout);
    hd__server_close(m->server);
}
