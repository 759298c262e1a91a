/* What comm-mpi adds to MPI: the same non-blocking call, through the plugin and bare, in turn in one process.
 *
 *     mpirun -n 2 build/bench/mpi/overhead build/plugins/comm-mpi/heddle-comm-mpi.so [SAMPLES]
 *
 * A sample is one call and the wait for it, timed on rank 0 after a barrier; plugin and bare call take turns. The
 * least and the median of each are printed, and the plugin's as a ratio. Every result is checked. */
#include <mpi.h>

#define BENCH_END MPI_Abort(MPI_COMM_WORLD, 2)
#include "../plugin.h"
#include "heddle/comm.h"

enum { MOST = 32 << 20 };

static const struct hd_comm_ops *ops;
static struct hd_comm *comm;
static struct hd_comm_group *group;
static int rank, size;

static void open_plugin(const char *path)
{
    static _Alignas(16) char settings[256];
    struct hd_error err = HD_ERROR_INIT;
    struct hd_world world = {.struct_size = sizeof world,
                             .rank = rank,
                             .size = size,
                             .local_rank = rank,
                             .local_size = size,
                             .instance = "bench",
                             .timeout = 60,
                             .dead_after = 60};
    int32_t ranks[256];
    for (int i = 0; i < size; i++)
        ranks[i] = i;
    ops = bench_component(path, HD_KIND_COMM, NULL, settings, sizeof settings)->ops;
    bench_check(ops->open(&bench_host, settings, &world, &comm, &err), &err, path);
    bench_check(ops->group(comm, "bench", ranks, size, &group, &err), &err, path);
}

/* ---- a sample */

static double through(uint32_t coll, uint32_t dtype, const void *in, void *out, uint64_t count)
{
    struct hd_comm_call call = {.struct_size = sizeof call,
                                .coll = coll,
                                .dtype = dtype,
                                .redop = HD_SUM,
                                .send = in,
                                .recv = out,
                                .count = count};
    struct hd_error err = HD_ERROR_INIT;
    hd_request request;
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    bench_check(ops->collective(group, &call, &request, &err) || ops->wait(comm, request, 1e18, &err), &err, "a call");
    return MPI_Wtime() - began;
}

static double bare(uint32_t coll, const void *in, void *out, uint64_t count)
{
    MPI_Request request;
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    if (coll == HD_COLL_ALL_REDUCE)
        MPI_Iallreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
    else if (coll == HD_COLL_ALL_GATHER)
        MPI_Iallgather(in, (int)count, MPI_FLOAT, out, (int)count, MPI_FLOAT, MPI_COMM_WORLD, &request);
    else
        MPI_Ireduce_scatter_block(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return MPI_Wtime() - began;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Small whole numbers: every order gives the same sum. */
static void check(uint32_t coll, const float *out, uint64_t count)
{
    float all = (float)(size * (size + 1) / 2);
    for (uint64_t i = 0; i < count * (coll == HD_COLL_ALL_GATHER ? (uint64_t)size : 1); i++)
        if (out[i] != (coll == HD_COLL_ALL_GATHER ? (float)(i / count + 1) : all))
            bench_stop("element %llu is %g", (unsigned long long)i, out[i]);
}

static void one(const char *name, uint32_t coll, uint64_t bytes, int samples, float *in, float *out)
{
    double *time[2] = {malloc((size_t)samples * sizeof(double)), malloc((size_t)samples * sizeof(double))};
    uint64_t count = bytes / 4 / (coll == HD_COLL_ALL_REDUCE ? 1 : (uint64_t)size);
    for (int k = -10; k < samples; k++) {
        double a, b;
        if (k & 1) {
            a = through(coll, HD_F32, in, out, count);
            check(coll, out, count);
            b = bare(coll, in, out, count);
        } else {
            b = bare(coll, in, out, count);
            a = through(coll, HD_F32, in, out, count);
        }
        if (k >= 0)
            time[0][k] = a, time[1][k] = b;
    }
    for (int i = 0; i < 2; i++)
        qsort(time[i], (size_t)samples, sizeof(double), by_size);
    if (rank == 0)
        printf("%-14s %10llu %10.2f %10.2f %7.3f %10.2f %10.2f %7.3f\n", name, (unsigned long long)bytes,
               time[0][0] * 1e6, time[1][0] * 1e6, time[0][0] / time[1][0], time[0][samples / 2] * 1e6,
               time[1][samples / 2] * 1e6, time[0][samples / 2] / time[1][samples / 2]);
    fflush(stdout);
    free(time[0]), free(time[1]);
}

int main(int argc, char **argv)
{
    int samples = argc > 2 ? atoi(argv[2]) : 200, level;
    float *in = malloc(MOST), *out = malloc(MOST);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    open_plugin(argv[1]);
    for (size_t i = 0; i < MOST / 4; i++)
        in[i] = (float)(rank + 1);
    memset(out, 0, MOST);
    if (rank == 0)
        printf("# %d ranks, fp32; time (us): least through the plugin, bare, ratio; median through the plugin, bare, "
               "ratio\n",
               size);
    for (uint64_t bytes = 4096; bytes <= 16 << 20; bytes *= 4) {
        int n = bytes > 1 << 20 ? samples / 4 + 1 : samples;
        one("all_reduce", HD_COLL_ALL_REDUCE, bytes, n, in, out);
        one("all_gather", HD_COLL_ALL_GATHER, bytes, n, in, out);
        one("reduce_scatter", HD_COLL_REDUCE_SCATTER, bytes, n, in, out);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    ops->group_free(group);
    ops->close(comm); /* ends MPI too */
    free(in), free(out);
    return 0;
}
