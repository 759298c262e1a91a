/* Embedding look-up, and its gradient summed in order of tokens for each row of the table. */
#include "kernels/rows.h"

enum { ROW_GRAIN = 16384, COLUMNS = 64 };

static int64_t row_of(const struct hd_operand *w, int64_t id)
{
    int64_t row = id - w->start[0];
    return row >= 0 && row < w->extent[0] ? row : -1;
}

static void embed_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    const struct hd_operand *w = &k->in[1];
    const int32_t *ids = k->in[0].data;
    float buf[CPU_CHUNK];
    int64_t h = w->extent[1];
    for (int64_t t = first; t < last; t++) {
        int64_t row = row_of(w, ids[t]);
        for (int64_t j = 0; j < h; j += CPU_CHUNK) {
            int64_t n = cpu_min(CPU_CHUNK, h - j);
            if (row < 0)
                memset(buf, 0, sizeof buf);
            cpu_end(k, 0, t * h + j, n, row < 0 ? buf : cpu_read(w, row * h + j, n, buf));
        }
    }
}

static void run_embed(struct hd_kernel *k)
{
    int64_t h = k->in[1].extent[1];
    cpu_parallel(k->device, hd_operand_count(&k->in[0]), 1 + ROW_GRAIN / (h + 1), embed_rows, k);
}

int32_t cpu_fast_embed(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_embed;
    return cpu_fast_dtypes(k, 1, err);
}

/* The state: tokens sorted by row, keeping their order: row r has order[begin[r] .. begin[r + 1]). */
struct by_row {
    int32_t *begin; /* rows + 2 */
    int32_t *order; /* tokens */
};

static struct by_row by_row(const struct hd_kernel *k)
{
    int32_t *begin = k->state;
    return (struct by_row){begin, begin + k->out[0].extent[0] + 2};
}

/* A counting sort; begin is counted two places up, so that filling moves it into place. */
static void sort_tokens(struct hd_kernel *k)
{
    const struct hd_operand *dw = &k->out[0];
    const int32_t *ids = k->in[0].data;
    int64_t rows = dw->extent[0], tokens = hd_operand_count(&k->in[0]);
    struct by_row b = by_row(k);
    memset(b.begin, 0, (size_t)(rows + 2) * sizeof *b.begin);
    for (int64_t t = 0; t < tokens; t++) {
        int64_t row = row_of(dw, ids[t]);
        if (row >= 0)
            b.begin[row + 2]++;
    }
    for (int64_t r = 2; r < rows + 2; r++)
        b.begin[r] += b.begin[r - 1];
    for (int64_t t = 0; t < tokens; t++) {
        int64_t row = row_of(dw, ids[t]);
        if (row >= 0)
            b.order[b.begin[row + 1]++] = (int32_t)t;
    }
}

/* All rows, some columns: so that threads have equal work, whatever the tokens. */
static void embed_dw_columns(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct by_row b = by_row(k);
    float buf[CPU_CHUNK], sum[CPU_CHUNK];
    int64_t h = k->out[0].extent[1], end = cpu_min(h, last * COLUMNS);
    for (int64_t row = 0; row < k->out[0].extent[0]; row++) {
        if (b.begin[row] == b.begin[row + 1] && cpu_accumulates(k))
            continue;
        for (int64_t j = first * COLUMNS; j < end; j += CPU_CHUNK) {
            int64_t n = cpu_min(CPU_CHUNK, end - j);
            memset(sum, 0, (size_t)n * sizeof *sum);
            for (int32_t i = b.begin[row]; i < b.begin[row + 1]; i++)
                cpu_add_to(sum, cpu_read(&k->in[1], b.order[i] * h + j, n, buf), n, 0);
            cpu_end(k, 0, row * h + j, n, sum);
        }
    }
}

static void run_embed_dw(struct hd_kernel *k)
{
    int64_t h = k->out[0].extent[1], work = hd_operand_count(&k->in[1]) + hd_operand_count(&k->out[0]);
    int64_t columns = (h + COLUMNS - 1) / COLUMNS;
    sort_tokens(k);
    cpu_parallel(k->device, columns, 1 + ROW_GRAIN * columns / (work + 1), embed_dw_columns, k);
}

int32_t cpu_fast_embed_dw(struct hd_kernel *k, struct hd_error *err)
{
    int64_t tokens = hd_operand_count(&k->in[0]), rows = k->out[0].extent[0];
    int32_t rc = cpu_fast_dtypes(k, 1, err);
    if (!rc && tokens > INT32_MAX)
        return hd_fail(err, HD_E_UNSUPPORTED, "more than 2^31 tokens");
    k->run = run_embed_dw;
    return rc ? rc : cpu_kernel_state(k, (size_t)(rows + 2 + tokens) * sizeof(int32_t), err);
}
