/* Times of blocks as metrics.blocks writes them, for tests of splits that were measured. */
#ifndef HD_TESTS_ANALYSIS_BLOCKS_H
#define HD_TESTS_ANALYSIS_BLOCKS_H

#include <check.h>
#include <stdio.h>

/* seconds[layers + 2]: embedding, layers, head. Block b is in file b of `files`, in turn: FILE, FILE.1, ... */
static inline void write_blocks(const char *path, const double *seconds, int layers, int files)
{
    for (int n = 0; n < files; n++) {
        char part[256];
        FILE *f;
        snprintf(part, sizeof part, n ? "%s.%d" : "%s", path, n);
        f = fopen(part, "w");
        ck_assert_msg(f != NULL, "%s", part);
        fprintf(f, "# stage %d of %d\n", n, files);
        for (int b = n; b < layers + 2; b += files) {
            if (b == 0 || b == layers + 1)
                fprintf(f, "%s,%.9f\n", b ? "head" : "embed", seconds[b]);
            else
                fprintf(f, "L%d,%.9f\n", b - 1, seconds[b]);
        }
        ck_assert_int_eq(fclose(f), 0);
    }
}

#endif
