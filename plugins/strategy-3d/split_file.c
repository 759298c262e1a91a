/* Weights of blocks from files that `metrics.blocks` wrote: a row for each block of the model, its name and the seconds
 * that a micro-batch takes. With a pipeline each stage has a file of its own, FILE, FILE.1, FILE.2, ...; the first line
 * says how many: "# stage 0 of 2". */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "split.h"

struct reader {
    const char *path;
    const char *const *name;
    double *weight; /* < 0: not read yet */
    int32_t blocks, line;
    struct hd_error *err;
};

static int32_t fault(const struct reader *r, const char *what)
{
    return hd_fail(r->err, HD_E_INVALID, "%s:%d: %s", r->path, r->line, what);
}

static int32_t block_of(const struct reader *r, const char *name, size_t length)
{
    for (int32_t b = 0; b < r->blocks; b++)
        if (strlen(r->name[b]) == length && !strncmp(r->name[b], name, length))
            return b;
    return -1;
}

static int32_t take_row(struct reader *r, const char *row)
{
    const char *comma = strchr(row, ',');
    int32_t b = comma ? block_of(r, row, (size_t)(comma - row)) : -1;
    char *end;
    double seconds;
    if (!comma)
        return fault(r, "expected BLOCK,SECONDS");
    if (b < 0)
        return fault(r, "the model has no such block");
    seconds = strtod(comma + 1, &end);
    if (end == comma + 1 || (*end && *end != '\n' && *end != '\r') || !(seconds > 0) || !isfinite(seconds))
        return fault(r, "expected a number of seconds above 0 after the comma");
    if (r->weight[b] >= 0)
        return fault(r, "this block was there before");
    r->weight[b] = seconds;
    return HD_OK;
}

static int32_t read_rows(struct reader *r, FILE *file)
{
    char row[256];
    int32_t rc = HD_OK;
    while (!rc && fgets(row, sizeof row, file)) {
        r->line++;
        if (!strchr(row, '\n') && !feof(file))
            return fault(r, "this line is too long");
        if (row[0] != '#' && row[strspn(row, " \t\r\n")])
            rc = take_row(r, row);
    }
    return rc;
}

/* `stages`: what the first line must say; 0: tells it. */
static int32_t read_file(struct reader *r, int32_t stage, int32_t *stages)
{
    FILE *file = fopen(r->path, "r");
    int is = -1, of = 0, rc;
    if (!file)
        return hd_fail(r->err, HD_E_INVALID,
                       "strategies.3d.split: cannot open %s: %s: name a file that metrics.blocks wrote", r->path,
                       strerror(errno));
    r->line = 1;
    if (fscanf(file, "# stage %d of %d", &is, &of) != 2 || is != stage || of < 1 || of > 65536 ||
        (*stages && of != *stages))
        rc = *stages ? hd_fail(r->err, HD_E_INVALID, "%s:1: expected \"# stage %d of %d\"", r->path, stage, *stages)
                     : fault(r, "expected \"# stage 0 of N\", as metrics.blocks writes it");
    else {
        r->line = 0; /* the rest of the first line comes first */
        rc = read_rows(r, file);
    }
    *stages = of;
    fclose(file);
    return rc;
}

int32_t pp_split_read(const char *path, const char *const *name, int32_t blocks, double *weight, struct hd_error *err)
{
    struct reader r = {.path = path, .name = name, .weight = weight, .blocks = blocks, .err = err};
    char part[1024];
    int32_t stages = 0, rc;
    for (int32_t b = 0; b < blocks; b++)
        weight[b] = -1;
    rc = read_file(&r, 0, &stages);
    for (int32_t stage = 1; stage < stages && !rc; stage++) {
        snprintf(part, sizeof part, "%s.%d", path, stage);
        r.path = part;
        rc = read_file(&r, stage, &stages);
    }
    for (int32_t b = 0; b < blocks && !rc; b++)
        if (weight[b] < 0)
            rc = hd_fail(err, HD_E_INVALID, "%s has no time of block %s: it is of another model", path, name[b]);
    return rc;
}
