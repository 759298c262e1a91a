/* Runs the eval section by micro-batches and reads what it leaves of each token. */
#include "service/train/token_losses.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/dtype.h"

struct losses {
    struct hd__train_session *s;
    const struct hd__train_losses_config *config;
    int64_t row, rows, all_rows; /* this rank's of a micro-batch */
    int64_t start, count;        /* its positions, as hd__sequence_position counts them */
    int64_t fed[2];              /* micro-batches of ids and of labels */
    int32_t *labels;
    int64_t *position;
    float *loss;
    uint8_t *likeliest;
};

static int32_t feed(void *user, int32_t input, int32_t *out, int64_t count, struct hd_error *err)
{
    struct losses *l = user;
    int32_t labels = input == HD__INPUT_LABELS;
    if (input == HD__INPUT_POSITIONS && l->config->feed)
        return hd__train_feed_next(l->config->feed, input, out, count, err);
    if (input == HD__INPUT_POSITIONS) {
        hd__train_session_feed_positions(l->s, out, count);
        return HD_OK;
    }
    const struct hd_program *p = hd__exec_program(l->s->exec);
    int32_t rc = HD_OK;
    int64_t first = l->fed[labels]++ * l->all_rows + l->row;
    if (count != l->rows * l->count)
        return hd_fail(err, HD_E_INTERNAL, "a micro-batch of %lld tokens, not %lld", (long long)count,
                       (long long)(l->rows * l->count));
    if (l->config->feed)
        rc = hd__train_feed_next(l->config->feed, labels, out, count, err);
    for (int64_t i = 0; i < count && !l->config->feed; i++)
        out[i] = l->config->token(l->config->user, first + i / l->count,
                                  hd__sequence_position(p, l->start + i % l->count), labels);
    if (labels && !rc)
        memcpy(l->labels, out, (size_t)count * sizeof *out);
    return rc;
}

/* The feed knows of empty places and of uneven shares. */
static int64_t sequence_of(const struct losses *l, int64_t micro, int64_t row)
{
    return l->config->feed ? hd__train_feed_sequence(l->config->feed, micro, row) : micro * l->all_rows + l->row + row;
}

static int64_t micro_batches(const struct losses *l)
{
    int64_t sequences = l->config->sequences;
    if (!l->config->feed)
        return (sequences + l->all_rows - 1) / l->all_rows;
    return sequences / l->s->compiled->job->batch * hd__micro_batches_of(hd__exec_program(l->s->exec), l->s->env->rank);
}

static int32_t visit_rows(struct losses *l, int64_t micro, struct hd_error *err)
{
    struct hd_program *p = hd__exec_program(l->s->exec);
    const void *at[HD__COUNT(p->kept_losses)];
    const struct hd__tensor *t = hd__tensor_const(p, p->kept_losses[0]);
    int32_t rc = hd__exec_copy_tensors(l->s->exec, HD__D2H, p->kept_losses, HD__COUNT(p->kept_losses), err);
    for (size_t k = 0; k < HD__COUNT(at); k++)
        at[k] = hd__exec_host_data(l->s->exec, p->kept_losses[k]);
    for (int64_t r = 0; r < l->rows && !rc; r++) {
        struct hd__train_losses_row row = {.sequence = sequence_of(l, micro, r),
                                           .count = l->count,
                                           .position = l->position,
                                           .loss = l->loss,
                                           .likeliest = l->likeliest};
        for (int64_t n = 0; n < l->count; n++) {
            double value[HD__COUNT(at)];
            int64_t i = r * l->count + n;
            for (size_t k = 0; k < HD__COUNT(at); k++)
                value[k] = hd__dtype_load(t->dtype, (const char *)at[k] + i * (int64_t)hd_dtype_size(t->dtype));
            l->loss[n] = l->labels[i] < 0 ? NAN : isnan(value[0]) ? INFINITY : (float)value[0];
            l->likeliest[n] = l->labels[i] >= 0 && value[2] >= value[1];
        }
        int there = row.sequence >= 0 && row.sequence < l->config->sequences;
        rc = there ? l->config->visit(l->config->user, &row, err) : HD_OK;
    }
    return rc;
}

/* This rank's rows and positions, and whether what is kept has them. */
static int32_t locate(struct losses *l, struct hd_error *err)
{
    struct hd_program *p = hd__exec_program(l->s->exec);
    const struct hd__tensor *ids = hd__tensor_const(p, p->labels ? p->labels : p->ids);
    const int32_t *coord = hd__exec_coord(l->s->exec);
    l->row = hd__global_start(p, ids, 0, coord);
    l->rows = hd__local_extent(p, ids, 0);
    l->start = hd__global_start(p, ids, 1, coord);
    l->count = hd__local_extent(p, ids, 1);
    l->all_rows = p->dims.at[ids->dim[0]].extent;
    for (size_t k = 0; k < HD__COUNT(p->kept_losses) && p->kept_losses[0]; k++) {
        const struct hd__tensor *t = hd__tensor_const(p, p->kept_losses[k]);
        if (t->ndim != 2 || hd__numel(p, t) != l->rows * l->count || t->dim[0] != ids->dim[0])
            return hd_fail(err, HD_E_UNSUPPORTED, "the losses of this model's tokens are not laid out as its labels");
    }
    return HD_OK;
}

int32_t hd__train_token_losses(struct hd__train_session *s, const struct hd__train_losses_config *config,
                               struct hd_error *err)
{
    struct hd_program *p = hd__exec_program(s->exec);
    struct losses l = {.s = s, .config = config};
    int32_t rc = locate(&l, err);
    size_t tokens = (size_t)(l.rows * l.count);
    l.labels = hd__alloc(tokens * sizeof *l.labels);
    l.position = hd__alloc((size_t)l.count * sizeof *l.position);
    l.loss = hd__alloc((size_t)l.count * sizeof *l.loss);
    l.likeliest = hd__alloc((size_t)l.count);
    for (int64_t n = 0; n < l.count; n++)
        l.position[n] = hd__sequence_position(p, l.start + n);
    hd__train_session_override_feed(s, feed, &l);
    if (!rc && p->gather_deferred)
        rc = hd__exec_run_section(s->exec, HD__SECTION_RESTORE, err);
    if (!rc)
        rc = hd__exec_run_section(s->exec, HD__SECTION_BEGIN, err);
    for (int64_t m = 0, all = micro_batches(&l); m < all && !rc; m++) {
        rc = hd__exec_run_section(s->exec, HD__SECTION_EVAL, err);
        if (!rc && p->kept_losses[0])
            rc = visit_rows(&l, m, err);
    }
    hd__train_session_override_feed(s, NULL, NULL);
    free(l.labels);
    free(l.position);
    free(l.loss);
    free(l.likeliest);
    return rc;
}
