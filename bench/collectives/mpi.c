/* The same sweep as `heddle bench`, on MPI: fp32, out of place, nccl-tests' sizes. One line a size:
 *     op bytes microseconds      (median over batches of the mean of calls back to back, the slowest rank)
 * Usage: mpirun -np N ./mpi FIRST LAST FACTOR */
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

static void call(int op, int count)
{
    if (op == 0)
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (op == 1)
        MPI_Reduce_scatter_block(in, out, count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
        MPI_Allgather(in, count / ranks, MPI_FLOAT, out, count / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static double measure(int op, size_t bytes)
{
    double times[BATCHES];
    int batches = bytes >= (32u << 20) ? 9 : BATCHES, count = (int)(bytes / sizeof(float));
    int calls = bytes <= 8192 ? 200 : bytes <= (1u << 20) ? 20 : bytes <= (8u << 20) ? 3 : 1;
    for (int i = 0; i < 5; i++)
        call(op, count);
    for (int k = 0; k < batches; k++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        for (int i = 0; i < calls; i++)
            call(op, count);
        double mine = (MPI_Wtime() - began) / calls;
        MPI_Allreduce(&mine, &times[k], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
    qsort(times, (size_t)batches, sizeof *times, by_value);
    return times[batches / 2] * 1e6;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"all_reduce", "reduce_scatter", "all_gather"};
    size_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 8, last = argc > 2 ? strtoull(argv[2], NULL, 10) : 128u << 20;
    size_t factor = argc > 3 ? strtoull(argv[3], NULL, 10) : 4;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    in = malloc(last);
    out = malloc(last);
    memset(in, 0, last);
    memset(out, 0, last);
    for (int op = 0; op < 3; op++)
        for (size_t bytes = first; bytes <= last; bytes *= factor) {
            if (op > 0 && bytes / sizeof(float) < (size_t)ranks)
                continue;
            double us = measure(op, bytes);
            if (rank == 0)
                printf("%s %zu %.3f\n", names[op], bytes, us);
        }
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
