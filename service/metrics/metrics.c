/* One write() a line; numbers with enough digits to tell two floats apart. */
#include "service/metrics/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "core/base/file.h"
#include "service/metrics/tensorboard.h"

struct hd__metrics {
    int fd, is_terminal, write_failed; /* lost: the last line was not written */
    char *path;
    double started;
    int64_t first_step;                           /* step before the first of this run */
    struct hd__metrics_event_writer *tensorboard; /* NULL: none */
};

/* ---- resuming */

static int64_t line_step(const char *line, size_t length)
{
    json_t *object = json_loadb(line, length, 0, NULL);
    json_t *step = json_object_get(object, "step");
    int64_t value = json_is_integer(step) ? json_integer_value(step) : object ? 0 : -1;
    json_decref(object);
    return value;
}

int32_t hd__metrics_truncate(const char *path, int64_t step, struct hd_error *err)
{
    FILE *file = fopen(path, "r+");
    char *line = NULL;
    size_t room = 0;
    off_t keep = 0;
    ssize_t n;
    int32_t rc = HD_OK;
    if (!file)
        return errno == ENOENT ? HD_OK : hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
    while ((n = getline(&line, &room, file)) > 0) {
        int64_t at = line[n - 1] == '\n' ? line_step(line, (size_t)n) : -1;
        if (at < 0 || at > step)
            break;
        keep += n;
    }
    free(line);
    if (ftruncate(fileno(file), keep))
        rc = hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
    fclose(file);
    return rc;
}

/* ---- writing */

/* A whole line or none, so that what follows once there is room again begins a line. Said once, not in every step. */
static void write_line(struct hd__metrics *m, struct hd__text *text)
{
    off_t start = lseek(m->fd, 0, SEEK_END);
    size_t done = 0;
    while (done < text->length) {
        ssize_t n = write(m->fd, text->at + done, text->length - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    if (done < text->length && !m->write_failed)
        hd__log(HD_LOG_WARN, "metrics", "%s cannot be written: %s; lines are left out until it can be", m->path,
                strerror(errno));
    if (done < text->length && done && start >= 0 && ftruncate(m->fd, start))
        hd__log(HD_LOG_WARN, "metrics", "%s has half a line: %s", m->path, strerror(errno));
    m->write_failed = done < text->length;
    hd__text_free(text);
}

int32_t hd__metrics_open(const char *path, int64_t resumed, json_t *start, struct hd__metrics **metrics,
                         struct hd_error *err)
{
    struct hd__metrics *m;
    struct hd__text text = {0};
    char *first;
    int why;
    int32_t rc = resumed ? hd__metrics_truncate(path, resumed, err) : HD_OK;
    if (rc)
        return rc;
    why = hd__make_folders(path);
    m = hd__alloc(sizeof *m);
    m->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (resumed ? 0 : O_TRUNC), 0666);
    if (m->fd < 0) {
        why = why ? why : errno;
        free(m);
        return hd_fail(err, HD_E_IO, "metrics.jsonl: %s: %s", path, strerror(why));
    }
    m->path = hd__strdup(path);
    m->is_terminal = hd__output_is_terminal();
    m->started = hd__now();
    m->first_step = resumed;
    first = json_dumps(start, JSON_COMPACT);
    hd__text_add(&text, "%s\n", first);
    free(first);
    write_line(m, &text);
    *metrics = m;
    return HD_OK;
}

static void duration(double seconds, char out[32])
{
    long s = (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else
        snprintf(out, 32, "%ldm%02lds", s / 60, s % 60);
}

static void print_step(struct hd__metrics *m, const struct hd__metrics_row *r)
{
    double per_step = (hd__now() - m->started) / (double)HD__MAX(1, r->step - m->first_step);
    char left[32], memory[32], mfu[32] = "", val[32] = "", scale[64] = "";
    duration(per_step * (double)(r->steps - r->step), left);
    hd__bytes_text((uint64_t)r->rss_bytes, memory);
    if (r->mfu > 0)
        snprintf(mfu, sizeof mfu, "  mfu %.1f%%", 100 * r->mfu);
    if (!isnan(r->val_loss))
        snprintf(val, sizeof val, "  val_loss %.4f", r->val_loss);
    if (r->loss_scale > 0)
        snprintf(scale, sizeof scale, "  scale %.0f%s", r->loss_scale,
                 isfinite(r->grad_norm) ? "" : " (overflow: skipped)");
    printf("%sstep %" PRId64 "/%" PRId64 "  loss %.4f%s  norm %.3f%s  lr %.2e  %.0f tokens/s%s  %s  left %s%s",
           m->is_terminal ? "\r\033[K" : "", r->step, r->steps, r->loss, val, r->grad_norm, scale, r->lr,
           r->tokens_per_s, mfu, memory, left, m->is_terminal ? "" : "\n");
    if (m->is_terminal && (r->step == r->steps || !isnan(r->val_loss)))
        putchar('\n');
    fflush(stdout);
}

int32_t hd__metrics_open_tensorboard(struct hd__metrics *m, const char *folder, int64_t resumed, struct hd_error *err)
{
    return hd__metrics_event_writer_open(folder, resumed, &m->tensorboard, err);
}

static void write_tensorboard(struct hd__metrics *m, const struct hd__metrics_row *r)
{
    struct timespec now;
    const struct hd__metrics_scalar scalars[] = {
        {"train/loss", r->loss},
        {"val/loss", r->val_loss},
        {"train/grad_norm", isfinite(r->grad_norm) ? r->grad_norm : NAN},
        {"train/lr", r->lr},
        {"train/loss_scale", r->loss_scale > 0 ? r->loss_scale : NAN},
        {"perf/tokens_per_s", r->tokens_per_s},
        {"perf/step_s", r->step_s},
        {"perf/comm_s", r->comm_s},
        {"perf/mfu", r->mfu},
        {"memory/rss_bytes", (double)r->rss_bytes},
    };
    if (!m->tensorboard)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    hd__metrics_event_writer_write(m->tensorboard, (double)now.tv_sec + (double)now.tv_nsec * 1e-9, r->step, scalars,
                                   HD__COUNT(scalars));
}

/* JSON has no infinity: null stands for what a skipped step has no number of. */
static void add_number(struct hd__text *text, const char *name, double value)
{
    if (isfinite(value))
        hd__text_add(text, ", \"%s\": %.9g", name, value);
    else
        hd__text_add(text, ", \"%s\": null", name);
}

void hd__metrics_log_step(struct hd__metrics *m, const struct hd__metrics_row *r)
{
    struct hd__text text = {0};
    hd__text_add(&text, "{\"step\": %" PRId64, r->step);
    add_number(&text, "loss", r->loss);
    if (!isnan(r->val_loss))
        add_number(&text, "val_loss", r->val_loss);
    add_number(&text, "grad_norm", r->grad_norm);
    if (r->loss_scale > 0)
        hd__text_add(&text, ", \"loss_scale\": %.9g, \"skipped\": %" PRId64, r->loss_scale, r->skipped);
    hd__text_add(&text,
                 ", \"lr\": %.9g, \"tokens\": %" PRId64 ", \"tokens_per_s\": %.6g, \"step_s\": %.6g, "
                 "\"comm_s\": %.6g, \"mfu\": %.6g, \"arena_bytes\": %" PRId64 ", \"rss_bytes\": %" PRId64 "}\n",
                 r->lr, r->tokens, r->tokens_per_s, r->step_s, r->comm_s, r->mfu, r->arena_bytes, r->rss_bytes);
    write_line(m, &text);
    write_tensorboard(m, r);
    print_step(m, r);
}

void hd__metrics_close(struct hd__metrics *m)
{
    if (!m)
        return;
    hd__metrics_event_writer_close(m->tensorboard);
    close(m->fd);
    free(m->path);
    free(m);
}

int64_t hd__metrics_resident_bytes(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*s %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}
