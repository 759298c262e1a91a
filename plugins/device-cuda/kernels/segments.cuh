/* A flat buffer cut into segments, so that a block's elements have one value of a table of ranges: a norm's weight, a
 * decay. */
#ifndef HD_DEVICE_CUDA_KERNELS_SEGMENTS_CUH
#define HD_DEVICE_CUDA_KERNELS_SEGMENTS_CUH

#include "kernels/operands.cuh"
#include <stdlib.h>

struct cu_segment {
    int64_t first, count;
    double value;
};

struct cu_cutter {
    cu_segment *segments;
    int64_t n, room;
};

/* Cuts [first, last) at multiples of `most`, so that segments begin where wide reads may. 0 where there is no
 * memory. */
static inline int cu_cut(cu_cutter *c, int64_t first, int64_t last, double value, int64_t most)
{
    while (first < last) {
        int64_t end = (first / most + 1) * most;
        end = end < last ? end : last;
        if (c->n == c->room) {
            int64_t room = c->room ? 2 * c->room : 256;
            cu_segment *more = (cu_segment *)realloc(c->segments, (size_t)room * sizeof *more);
            if (!more)
                return 0;
            c->segments = more;
            c->room = room;
        }
        c->segments[c->n++] = {first, end - first, value};
        first = end;
    }
    return 1;
}

/* Segments of elements [0, n) of this shard, which is [start, start + n) of the whole that ranges speak of; with
 * `gaps`, what lies in no range is there too, with the value 0. */
static inline int32_t cu_segments(struct hd_device *d, const struct hd_range *ranges, uint64_t n_ranges, int64_t start,
                                  int64_t n, int64_t most, int gaps, const cu_segment **segments, int64_t *count,
                                  struct hd_error *err)
{
    cu_cutter c = {};
    int64_t at = 0;
    int ok = 1;
    const void *table = NULL;
    for (uint64_t i = 0; ok && i < n_ranges; i++) {
        int64_t first = ranges[i].first - start, last = first + ranges[i].count;
        first = first < 0 ? 0 : first < n ? first : n;
        last = last < first ? first : last < n ? last : n;
        ok = (!gaps || cu_cut(&c, at, first, 0, most)) && cu_cut(&c, first, last, ranges[i].value, most);
        at = last > at ? last : at;
    }
    if (ok && gaps)
        ok = cu_cut(&c, at, n, 0, most);
    int32_t rc = ok ? HD_OK : hd_fail(err, HD_E_NOMEM, "no memory to cut a buffer into segments");
    if (!rc && c.n)
        rc = cu_table(d, c.segments, (size_t)c.n * sizeof *c.segments, &table, err);
    free(c.segments);
    *segments = (const cu_segment *)table;
    *count = c.n;
    return rc;
}

#endif
