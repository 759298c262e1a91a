/* The same sweep as `heddle bench`, on MPI: fp32, out of place (but MPI_Bcast), nccl-tests' sizes. One line a size:
 *     op bytes microseconds      (median over batches of the mean of calls back to back, the slowest rank)
 * sendrecv: to the next rank, from the one before. Usage: mpirun -np N ./mpi [FIRST LAST FACTOR [OP,...]];
 * by default what ./run asks for: 8 bytes to 128 MiB by 4, all operations. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 21 };

static int rank, ranks;
static float *in, *out;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void all_reduce(int count)
{
    MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter(int count)
{
    MPI_Reduce_scatter_block(in, out, count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(int count)
{
    MPI_Allgather(in, count / ranks, MPI_FLOAT, out, count / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void broadcast(int count)
{
    MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void reduce(int count)
{
    MPI_Reduce(in, out, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}

static void all_to_all(int count)
{
    MPI_Alltoall(in, count / ranks, MPI_FLOAT, out, count / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void sendrecv(int count)
{
    MPI_Sendrecv(in, count, MPI_FLOAT, (rank + 1) % ranks, 0, out, count, MPI_FLOAT, (rank + ranks - 1) % ranks, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void barrier(int count)
{
    (void)count;
    MPI_Barrier(MPI_COMM_WORLD);
}

static const struct op {
    const char *name;
    void (*call)(int count);
    int cut; /* into one piece a rank */
} ops[] = {{"all_reduce", all_reduce, 0}, {"reduce_scatter", reduce_scatter, 1},
           {"all_gather", all_gather, 1}, {"broadcast", broadcast, 0},
           {"reduce", reduce, 0},         {"all_to_all", all_to_all, 1},
           {"sendrecv", sendrecv, 0},     {"barrier", barrier, 0}};

static double measure(const struct op *op, size_t bytes)
{
    double times[BATCHES];
    int batches = bytes >= (32u << 20) ? 9 : BATCHES, count = (int)(bytes / sizeof(float));
    int calls = bytes <= 8192 ? 200 : bytes <= (1u << 20) ? 20 : bytes <= (8u << 20) ? 3 : 1;
    for (int i = 0; i < 5; i++)
        op->call(count);
    for (int k = 0; k < batches; k++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        for (int i = 0; i < calls; i++)
            op->call(count);
        double mine = (MPI_Wtime() - began) / calls;
        MPI_Allreduce(&mine, &times[k], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
    qsort(times, (size_t)batches, sizeof *times, by_value);
    return times[batches / 2] * 1e6;
}

static int asked(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += n)
        if ((at == list || at[-1] == ',') && (!at[n] || at[n] == ','))
            return 1;
    return 0;
}

static void sweep(const struct op *op, size_t first, size_t last, size_t factor)
{
    int once = op->call == barrier;
    for (size_t bytes = once ? 0 : first; bytes <= last; bytes *= factor) {
        if (op->cut && bytes / sizeof(float) < (size_t)ranks)
            continue;
        double us = measure(op, bytes);
        if (rank == 0)
            printf("%s %zu %.3f\n", op->name, bytes, us);
        if (once)
            break;
    }
}

/* With values in it. malloc and memset to 0 is calloc to a compiler: pages that nobody wrote, which a reader finds
 * to be one and the same page of zeros, in its first cache however large the message. */
static float *page_aligned(size_t bytes)
{
    float *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    for (size_t i = 0; p && i < bytes / sizeof *p; i++)
        p[i] = (float)((size_t)rank + 1 + i % 13);
    return p;
}

int main(int argc, char **argv)
{
    size_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 8,
           last = argc > 2 ? strtoull(argv[2], NULL, 10) : 128u << 20;
    size_t factor = argc > 3 ? strtoull(argv[3], NULL, 10) : 4;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    in = page_aligned(last);
    out = page_aligned(last);
    if (!in || !out)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
        if (argc < 5 || asked(argv[4], ops[k].name))
            sweep(&ops[k], first, last, factor);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
