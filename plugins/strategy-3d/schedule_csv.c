/* A schedule from a file, in the format that torch.distributed.pipelining writes and reads ("compute_only"):
 *
 *     0F0,0F1,,,0B0,0B1
 *     ,1F0,1B0,1F1,1B1
 *
 * One row a stage, first row stage 0; one cell an action, in the order in which the stage runs them: number of the
 * chunk, F, B, I or W, number of the micro-batch. An empty cell is an idle slot for the eye and means nothing. Chunks
 * are numbered along the model; a chunk belongs to the row in which it is; B is I (gradients of activations) and W (of
 * weights) as one. Lines that are empty or begin with # are skipped. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "schedule.h"

#define LARGEST (64 << 20) /* bytes of a file */
#define MOST_CHUNKS 65536

struct reader {
    const char *path;
    struct pp_schedule *s;
    struct hd_error *err;
    char *text;
    int32_t rows, chunks; /* found so far */
    int32_t line, reserved;
};

static int32_t read_text(struct reader *r)
{
    FILE *file = fopen(r->path, "rb");
    size_t got = 0;
    if (!file)
        return hd_fail(
            r->err, HD_E_INVALID,
            "strategies.3d.schedule: cannot open %s: %s: name a file of rows, or gpipe, 1f1b, interleaved, zb-h1, zb-v",
            r->path, strerror(errno));
    r->text = malloc(LARGEST + 1);
    if (r->text)
        got = fread(r->text, 1, LARGEST + 1, file);
    int bad = ferror(file);
    fclose(file);
    if (!r->text)
        return hd_fail(r->err, HD_E_NOMEM, "no memory to read the schedule %s", r->path);
    if (bad)
        return hd_fail(r->err, HD_E_IO, "cannot read the schedule %s", r->path);
    if (got > LARGEST || memchr(r->text, 0, got))
        return hd_fail(r->err, HD_E_INVALID, "%s is no schedule: %s", r->path,
                       got > LARGEST ? "over 64 MiB" : "it has zero bytes");
    r->text[got] = 0;
    return HD_OK;
}

/* ---- one cell */

static int32_t cell_fault(const struct reader *r, const char *row, const char *cell, int32_t length, const char *what)
{
    return hd_fail(r->err, HD_E_INVALID, "%s:%d:%d: '%.*s' %s", r->path, r->line, (int)(cell - row) + 1,
                   length > 40 ? 40 : length, cell, what);
}

/* Decimal digits at *at; -1 where there are none or too many. */
static int32_t number(const char **at, const char *end)
{
    int64_t n = 0;
    const char *from = *at;
    while (*at < end && isdigit((unsigned char)**at) && n < INT32_MAX)
        n = n * 10 + *(*at)++ - '0';
    return *at == from || n > INT32_MAX ? -1 : (int32_t)n;
}

/* Other cells that torch writes: communication, which heddle derives itself, and compound actions. */
static int names_other_action(const char *at, const char *end)
{
    static const char *const others[] = {"SEND_", "RECV_", "WAIT_", "UNSHARD", "RESHARD", "REDUCE_GRAD", "OVERLAP_F_B"};
    for (size_t n = 0; n < sizeof others / sizeof *others; n++)
        if ((size_t)(end - at) >= strlen(others[n]) && !strncmp(at, others[n], strlen(others[n])))
            return 1;
    return 0;
}

static int32_t parse(const struct reader *r, const char *row, const char *cell, int32_t length, struct pp_action *a)
{
    static const char letters[] = "FBIW"; /* PP_F, PP_B, ... */
    const char *at = cell, *end = cell + length, *letter;
    int32_t chunk = number(&at, end), micro;
    if (*cell == '(' || (chunk >= 0 && names_other_action(at, end)))
        return cell_fault(r, row, cell, length,
                          "is not an action of a compute schedule: write F, B, I and W only (torch: format "
                          "\"compute_only\"); heddle adds the communication");
    letter = at < end ? strchr(letters, *at) : NULL;
    at++;
    micro = letter ? number(&at, end) : -1;
    if (chunk < 0 || !letter || !*letter || micro < 0 || at != end)
        return cell_fault(r, row, cell, length, "is no action: a chunk, one of F B I W, a micro-batch, as in 2F0");
    if (chunk >= MOST_CHUNKS)
        return cell_fault(r, row, cell, length, "has too large a chunk: at most 65535");
    *a = (struct pp_action){(int32_t)(letter - letters), chunk, micro, r->line, (int32_t)(cell - row) + 1};
    return HD_OK;
}

/* ---- rows */

static int blank_or_comment(const char *row, const char *end)
{
    while (row < end && isspace((unsigned char)*row))
        row++;
    return row == end || *row == '#';
}

/* Calls `take` for each cell that is not empty. */
static int32_t each_cell(struct reader *r, const char *row, const char *end,
                         int32_t (*take)(struct reader *r, const char *row, const char *cell, int32_t length))
{
    int32_t rc = HD_OK;
    for (const char *cell = row, *next; cell <= end && !rc; cell = next + 1) {
        const char *first = cell, *last;
        next = memchr(cell, ',', (size_t)(end - cell));
        next = next ? next : end;
        last = next;
        while (first < last && (isspace((unsigned char)*first) || *first == '"'))
            first++;
        while (last > first && (isspace((unsigned char)last[-1]) || last[-1] == '"'))
            last--;
        if (last > first)
            rc = take(r, row, first, (int32_t)(last - first));
    }
    return rc;
}

static int32_t each_row(struct reader *r, int32_t (*take)(struct reader *r, const char *row, const char *end))
{
    int32_t rc = HD_OK;
    r->rows = r->line = 0;
    for (const char *row = r->text, *next; *row && !rc; row = *next ? next + 1 : next) {
        next = row + strcspn(row, "\n");
        r->line++;
        if (!blank_or_comment(row, next)) {
            rc = take(r, row, next);
            r->rows++;
        }
    }
    return rc;
}

/* First walk: how many rows and chunks. */
static int32_t measure_cell(struct reader *r, const char *row, const char *cell, int32_t length)
{
    struct pp_action a;
    int32_t rc = parse(r, row, cell, length, &a);
    if (!rc && a.chunk >= r->chunks)
        r->chunks = a.chunk + 1;
    return rc;
}

static int32_t measure_row(struct reader *r, const char *row, const char *end)
{
    return each_cell(r, row, end, measure_cell);
}

/* Second walk: the actions. */
static int32_t take_cell(struct reader *r, const char *row, const char *cell, int32_t length)
{
    struct pp_list *l = &r->s->stage[r->rows];
    struct pp_action *a = &l->at[l->count];
    char what[120];
    int32_t rc = parse(r, row, cell, length, a), *of;
    if (rc)
        return rc;
    of = &r->s->stage_of[a->chunk];
    if (a->micro >= r->s->micros) {
        snprintf(what, sizeof what, "has micro-batch %d: the job has %d of them, 0 to %d", a->micro, r->s->micros,
                 r->s->micros - 1);
        return cell_fault(r, row, cell, length, what);
    }
    if (*of >= 0 && *of != r->rows) {
        snprintf(what, sizeof what, "puts chunk %d on stage %d, but it is on stage %d already", a->chunk, r->rows, *of);
        return cell_fault(r, row, cell, length, what);
    }
    *of = r->rows;
    r->s->split |= a->kind == PP_W;
    l->count++;
    return HD_OK;
}

static int32_t take_row(struct reader *r, const char *row, const char *end)
{
    int32_t cells = 1;
    for (const char *c = row; c < end; c++)
        cells += *c == ',';
    int32_t rc = pp_room(r->s, r->rows, cells, r->err);
    if (!rc)
        rc = each_cell(r, row, end, take_cell);
    if (!rc && !r->s->stage[r->rows].count)
        rc = hd_fail(r->err, HD_E_INVALID, "%s:%d:1: stage %d does nothing in this row", r->path, r->line, r->rows);
    return rc;
}

static int32_t fill(struct reader *r, int32_t stages, int32_t micros, int32_t virtual)
{
    int32_t rc;
    if (r->rows != stages)
        return hd_fail(r->err, HD_E_INVALID, "%s has %d row%s, mesh.pp is %d: one row a stage", r->path, r->rows,
                       r->rows == 1 ? "" : "s", stages);
    if (virtual && r->chunks != virtual * stages)
        return hd_fail(r->err, HD_E_INVALID,
                       "%s has %d chunks, virtual: %d over %d stages makes %d: leave `virtual` out, the file says "
                       "it",
                       r->path, r->chunks, virtual, stages, virtual * stages);
    if ((rc = pp_alloc(r->s, r->path, stages, micros, r->chunks, r->err)))
        return rc;
    for (int32_t c = 0; c < r->chunks; c++)
        r->s->stage_of[c] = -1;
    if ((rc = each_row(r, take_row)))
        return rc;
    for (int32_t c = 0; c < r->chunks; c++)
        if (r->s->stage_of[c] < 0)
            return hd_fail(r->err, HD_E_INVALID,
                           "%s has no action of chunk %d, but some of chunk %d: chunks are numbered from 0 without "
                           "gaps",
                           r->path, c, r->chunks - 1);
    return pp_check(r->s, r->err);
}

int32_t pp_read(const char *path, int32_t stages, int32_t micros, int32_t virtual, struct pp_schedule *s,
                struct hd_error *err)
{
    struct reader r = {.path = path, .s = s, .err = err};
    int32_t rc = read_text(&r);
    if (!rc)
        rc = each_row(&r, measure_row);
    if (!rc)
        rc = fill(&r, stages, micros, virtual);
    free(r.text);
    return rc;
}
