/* metrics.jsonl: one write() per line; enough digits to distinguish any two floats. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/file.h"
#include "service/metrics/internal.h"

struct hd__metrics {
    int fd, is_terminal;
    int moved;               /* its name is another's, or nobody's */
    off_t end;               /* the file's, behind the last line */
    int write_failed;        /* lost: the last line was not written */
    int headless;            /* the file's first line is not that of a start, though ours */
    int same, ours;          /* the file has lines of this run alone; with its id, */
    off_t keep;              /* and these are before its first step */
    struct hd__text outlive; /* lines of what is not kept that stay all the same */
    char *path;
    char *run; /* its id; "" where there is none */
    double started;
    int64_t first_step; /* the last step before this run */
    char *start;        /* the first line */
    HD__ARRAY(struct hd__metrics_sink *) sinks;
    uint32_t n_sets;
    struct hd__watch watch;
    pid_t command;          /* watch.command while it runs; 0: none */
    int32_t command_status; /* of the failure that was last said */
};

/* "val_loss_NAME" of the run's sets. A sink may have them after the run was closed. */
static char set_metrics[HD__METRICS_SETS][64];

/* ---- the file, which is appended to, or set aside: never overwritten */

static int is_event(const json_t *line, const char *a, const char *b)
{
    const char *event = json_string_value(json_object_get(line, "event"));
    return event && (!strcmp(event, a) || !strcmp(event, b));
}

/* Stays although its step is trained again, in which it does not happen again: a change of ranks, and the alarm that
 * names what was corrupt, whose step is never saved. */
static int outlives(const json_t *line)
{
    const char *rule = is_event(line, "alarm", "alarm") ? json_string_value(json_object_get(line, "rule")) : NULL;
    return is_event(line, "restart", "restart") || is_event(line, "shrink", "grow") ||
           (rule && (!strcmp(rule, "replicas") || !strcmp(rule, "rerun")));
}

/* m->keep: the bytes of its lines up to `step`; without a torn last one. m->same: they are of this run, or of a heddle
 * without ids. */
static int32_t scan(struct hd__metrics *m, int64_t step, struct hd_error *err)
{
    FILE *file = fdopen(dup(m->fd), "r");
    const char *path = m->path;
    int cut = 0;
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int32_t rc = HD_OK;
    m->same = 1;
    if (!file)
        return hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
    while (!rc && (n = getline(&line, &room, file)) > 0) {
        json_t *object = line[n - 1] == '\n' ? json_loadb(line, (size_t)n, 0, NULL) : NULL;
        const char *of = json_string_value(json_object_get(object, "run"));
        int64_t at = json_integer_value(json_object_get(object, "step"));
        int stays = outlives(object); /* and cuts nothing: steps behind it may be lower */
        cut |= m->keep && !stays && (!object || at > step || at < 0);
        m->headless |= !m->keep && !is_event(object, "start", "resume");
        if (!m->keep && m->headless && !(of && strspn(of, "0123456789abcdef") == 16 && json_object_get(object, "step")))
            rc = hd_fail(err, HD_E_INVALID,
                         "%s: its first line does not start a run, so heddle did not write it: name another file, or "
                         "move this one away",
                         path);
        m->same &= !m->headless && (cut || !of || !strcmp(of, m->run));
        m->ours |= of && !strcmp(of, m->run);
        if (cut && stays)
            hd__text_add(&m->outlive, "%s", line);
        json_decref(object);
        m->keep += cut ? 0 : n;
    }
    free(line);
    fclose(file);
    return rc;
}

/* To PATH.1, or the next number that is free. */
static int32_t set_aside(const struct hd__metrics *m, struct hd_error *err)
{
    const char *path = m->path;
    for (int n = 1;; n++) {
        char *to = hd__format("%s.%d", path, n);
        int why = link(path, to) ? errno : 0; /* a rename would replace what is there */
        if (!why && unlink(path))
            why = errno;
        if (why == EPERM || why == EOPNOTSUPP) /* no links on this file system */
            why = !access(to, F_OK) ? EEXIST : rename(path, to) ? errno : 0;
        if (!why)
            hd__log(HD_LOG_INFO, NULL, "%s %s; renamed to %s", path,
                    m->headless ? "was truncated by another process" : "belongs to another run", to);
        free(to);
        if (why && why != EEXIST)
            return hd_fail(err, HD_E_IO, "%s cannot be set aside: %s", path, strerror(why));
        if (!why)
            return HD_OK;
    }
}

static int32_t open_once(const char *path, int extra, int *fd, struct stat *st, struct hd_error *err)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int why = hd__make_folders(path);
    /* Neither a FIFO, which would wait for its reader, nor what a link leads to. */
    *fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | extra, 0666);
    if (*fd < 0 && !why && errno == ELOOP)
        return hd_fail(err, HD_E_INVALID, "%s: a symbolic link: name the file itself", path);
    if (*fd < 0)
        return hd_fail(err, HD_E_IO, "%s: %s", path, strerror(why ? why : errno));
    if (fstat(*fd, st) || !(S_ISREG(st->st_mode) || S_ISCHR(st->st_mode)))
        return hd_fail(err, HD_E_INVALID, "%s: not a regular file", path);
    if (S_ISREG(st->st_mode) && fcntl(*fd, F_OFD_SETLK, &whole) && (errno == EAGAIN || errno == EACCES))
        return hd_fail(err, HD_E_INVALID, "%s: another process is writing it: wait for its end, or name another file",
                       path);
    return HD_OK;
}

/* ---- writing */

/* Writes a whole line or none, so that lines stay intact after a full disk. 0, or errno. */
static int write_whole(const struct hd__metrics *m, struct hd__text *text)
{
    off_t start = lseek(m->fd, 0, SEEK_END);
    size_t done = 0;
    int why = 0;
    while (done < text->length && !why) {
        ssize_t n = write(m->fd, text->at + done, text->length - done);
        if (n > 0)
            done += (size_t)n;
        else if (!n || errno != EINTR)
            why = n ? errno : ENOSPC;
    }
    if (why && done && start >= 0 && ftruncate(m->fd, start))
        hd__log(HD_LOG_WARN, "metrics", "%s ends with a partial line: %s", m->path, strerror(errno));
    hd__text_free(text);
    return why;
}

/* A failure is logged once, not in every step. */
static void write_line(struct hd__metrics *m, struct hd__text *text)
{
    struct stat st, there;
    int why = write_whole(m, text);
    if (why && !m->write_failed)
        hd__log(HD_LOG_WARN, "metrics", "%s cannot be written: %s; lines are dropped until it can be", m->path,
                strerror(why));
    m->write_failed = why != 0;
    if (m->moved || fstat(m->fd, &st))
        return;
    if (st.st_size < m->end)
        hd__log(HD_LOG_WARN, "metrics", "%s was truncated by another process: its lines so far are not in it", m->path);
    m->end = st.st_size;
    m->moved = !st.st_nlink ||
               (stat(m->path, &there) ? errno == ENOENT : there.st_ino != st.st_ino || there.st_dev != st.st_dev);
    if (m->moved && st.st_nlink)
        hd__log(HD_LOG_WARN, "metrics", "%s was renamed: lines go on into the renamed file until the job starts again",
                m->path);
    else if (m->moved)
        hd__log(HD_LOG_WARN, "metrics", "%s was removed: its lines are in no file from now on", m->path);
}

int32_t hd__metrics_open(const char *path, int64_t resumed, json_t *start, struct hd__metrics **metrics,
                         struct hd_error *err)
{
    struct hd__metrics *m = hd__alloc(sizeof *m);
    struct hd_error why = HD_ERROR_INIT;
    struct stat st;
    const char *run = json_string_value(json_object_get(start, "run"));
    *m = (struct hd__metrics){.fd = -1,
                              .path = hd__strdup(path),
                              .run = hd__strdup(run ? run : ""),
                              .is_terminal = hd__output_is_terminal(),
                              .first_step = resumed,
                              .start = json_dumps(start, JSON_COMPACT)};
    int32_t rc = open_once(path, 0, &m->fd, &st, &why);
    if (!rc && S_ISREG(st.st_mode) && st.st_size) /* a device as /dev/null takes lines, and has none */
        rc = scan(m, resumed, &why);
    *metrics = m;
    if (!rc)
        return HD_OK;
    hd__metrics_close(m);
    *metrics = NULL;
    return hd_fail(err, rc, "metrics.jsonl: %s", why.message);
}

struct hd__metrics *hd__metrics_open_machine(int64_t resumed)
{
    struct hd__metrics *m = hd__alloc(sizeof *m);
    *m = (struct hd__metrics){.fd = -1, .run = hd__strdup(""), .first_step = resumed};
    return m;
}

int32_t hd__metrics_check(const char *path, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    struct stat st;
    struct hd__metrics m = {.fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), .run = (char *)""};
    int32_t rc = HD_OK;
    if (m.fd < 0 && errno == ELOOP)
        rc = hd_fail(&why, HD_E_INVALID, "%s: a symbolic link: name the file itself", path);
    m.path = hd__strdup(path);
    if (m.fd >= 0 && !fstat(m.fd, &st) && S_ISREG(st.st_mode) && st.st_size)
        rc = scan(&m, 0, &why);
    if (m.fd >= 0)
        close(m.fd);
    hd__text_free(&m.outlive);
    free(m.path);
    return rc ? hd_fail(err, rc, "metrics.jsonl: %s", why.message) : HD_OK;
}

int32_t hd__metrics_begin(struct hd__metrics *m, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    struct hd__text text = {0};
    struct stat st;
    int32_t rc = HD_OK;
    int no;
    if (m->keep && m->same && (m->first_step || m->ours)) {
        hd__text_add(&text, "%s", m->outlive.at ? m->outlive.at : "");
        rc = ftruncate(m->fd, m->keep) ? hd_fail(&why, HD_E_IO, "%s: %s", m->path, strerror(errno)) : HD_OK;
    } else if (m->keep) {
        close(m->fd);
        m->fd = -1;
        rc = set_aside(m, &why);
        rc = rc ? rc : open_once(m->path, O_EXCL, &m->fd, &st, &why);
    }
    hd__text_add(&text, "%s\n", m->start);
    if (rc)
        hd__text_free(&text);
    else if ((no = write_whole(m, &text)))
        rc = hd_fail(&why, HD_E_IO, "%s cannot be written: %s", m->path, strerror(no));
    m->started = hd__now();
    return rc ? hd_fail(err, rc, "metrics.jsonl: %s", why.message) : HD_OK;
}

static void duration(double seconds, char out[32])
{
    long s = (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else
        snprintf(out, 32, "%ldm%02lds", s / 60, s % 60);
}

/* "  val_loss 2.1000 (wiki 2.0000, code 2.2000)" */
static void add_val_losses(const struct hd__metrics *m, const struct hd__metrics_row *r, struct hd__text *out)
{
    hd__text_add(out, "  val_loss %.4f", r->val_loss);
    for (uint32_t k = 0; k < m->n_sets; k++)
        hd__text_add(out, "%s%s %.4f", k ? ", " : " (", set_metrics[k] + strlen("val_loss_"), r->val_losses[k]);
    hd__text_add(out, "%s", m->n_sets ? ")" : "");
}

static void print_step(struct hd__metrics *m, const struct hd__metrics_row *r)
{
    double per_step = (hd__now() - m->started) / (double)HD__MAX(1, r->step - m->first_step);
    char left[32], memory[32], mfu[32] = "", scale[64] = "";
    struct hd__text val = {0};
    duration(per_step * (double)(r->steps - r->step), left);
    hd__bytes_text((uint64_t)r->rss_bytes, memory);
    if (r->mfu > 0)
        snprintf(mfu, sizeof mfu, "  mfu %.1f%%", 100 * r->mfu);
    if (!isnan(r->val_loss))
        add_val_losses(m, r, &val);
    if (r->loss_scale > 0)
        snprintf(scale, sizeof scale, "  scale %.0f%s", r->loss_scale,
                 isfinite(r->grad_norm) ? "" : " (overflow: skipped)");
    printf("%sstep %" PRId64 "/%" PRId64 "  loss %.4f%s  grad_norm %.3f%s  lr %.2e  %.0f tokens/s%s  mem %s  eta %s%s",
           m->is_terminal ? "\r\033[K" : "", r->step, r->steps, r->loss, val.at ? val.at : "", r->grad_norm, scale,
           r->lr, r->tokens_per_s, mfu, memory, left, m->is_terminal ? "" : "\n");
    if (m->is_terminal && (r->step == r->steps || !isnan(r->val_loss)))
        putchar('\n');
    hd__text_free(&val);
    fflush(stdout);
}

void hd__metrics_add_set(struct hd__metrics *m, const char *name)
{
    snprintf(set_metrics[m->n_sets++], sizeof set_metrics[0], "val_loss_%s", name);
}

int32_t hd__metrics_add_sink(struct hd__metrics *m, const struct hd__metrics_sink_config *config, struct hd_error *err)
{
    const struct hd_metrics_start start = {.struct_size = sizeof start,
                                           .job = config->job,
                                           .record = m->start,
                                           .step = m->first_step,
                                           .steps = config->steps,
                                           .run = *m->run ? m->run : NULL};
    struct hd__metrics_sink *sink;
    int32_t rc = hd__metrics_sink_open(config, &start, &sink, err);
    if (!rc)
        hd__push(&m->sinks, sink);
    return rc;
}

/* ---- one step */

enum { ALWAYS, EVALUATED, SCALED };
#define AT(field) offsetof(struct hd__metrics_row, field)

/* In the order of a line, which is not that of the row. digits 0: an integer. */
static const struct {
    const char *name;
    size_t offset; /* in the row */
    int digits, when;
} fields[] = {
    {"loss", AT(loss), 9, ALWAYS},
    {"val_loss", AT(val_loss), 9, EVALUATED},
    {"grad_norm", AT(grad_norm), 9, ALWAYS},
    {"loss_scale", AT(loss_scale), 9, SCALED},
    {"skipped", AT(skipped), 0, SCALED},
    {"lr", AT(lr), 9, ALWAYS},
    {"epoch", AT(epoch), 9, ALWAYS},
    {"tokens", AT(tokens), 0, ALWAYS},
    {"tokens_per_s", AT(tokens_per_s), 6, ALWAYS},
    {"tokens_per_s_per_rank", AT(tokens_per_s_per_rank), 6, ALWAYS},
    {"samples_per_s", AT(samples_per_s), 6, ALWAYS},
    {"step_s", AT(step_s), 6, ALWAYS},
    {"comm_s", AT(comm_s), 6, ALWAYS},
    {"exposed_comm_s", AT(exposed_comm_s), 6, ALWAYS},
    {"data_wait_s", AT(data_wait_s), 6, ALWAYS},
    {"mfu", AT(mfu), 6, ALWAYS},
    {"arena_bytes", AT(arena_bytes), 0, ALWAYS},
    {"rss_bytes", AT(rss_bytes), 0, ALWAYS},
};
_Static_assert(HD__COUNT(fields) + HD__METRICS_SETS + HD__WATCH_RULE_COUNT + HD_AXIS_COUNT + HD__RANK_STATS * 4 +
                       HD__METRICS_RANKS <=
                   HD__METRICS_MAX,
               "a record has no room for all fields");

static void add_metric(struct hd_metric x, int digits, struct hd__text *line)
{
    if (!digits)
        hd__text_add(line, ", \"%s\": %" PRId64, x.name, x.integer);
    else if (isfinite(x.number))
        hd__text_add(line, ", \"%s\": %.*g", x.name, digits, x.number);
    else /* JSON has no infinity: null stands for the values that a skipped step lacks */
        hd__text_add(line, ", \"%s\": null", x.name);
}

/* Converts the row to metrics, and to the rest of a line. */
static size_t metrics_of_row(const struct hd__metrics *m, const struct hd__metrics_row *row, struct hd_metric *metrics,
                             struct hd__text *line)
{
    size_t n = 0;
    for (size_t i = 0; i < HD__COUNT(fields); i++) {
        const void *at = (const char *)row + fields[i].offset;
        struct hd_metric x = {.name = fields[i].name, .type = fields[i].digits ? HD_METRIC_FLOAT : HD_METRIC_INT};
        if ((fields[i].when == EVALUATED && isnan(row->val_loss)) || (fields[i].when == SCALED && row->loss_scale <= 0))
            continue;
        x.integer = fields[i].digits ? 0 : *(const int64_t *)at;
        x.number = fields[i].digits ? *(const double *)at : (double)x.integer;
        add_metric(x, fields[i].digits, line);
        metrics[n++] = x;
    }
    for (uint32_t k = 0; k < m->n_sets && !isnan(row->val_loss); k++) {
        metrics[n] = (struct hd_metric){.name = set_metrics[k], .type = HD_METRIC_FLOAT, .number = row->val_losses[k]};
        add_metric(metrics[n++], 9, line);
    }
    for (size_t common, of_ranks = hd__metrics_of_ranks(row, metrics + n, &common), k = 0; k < of_ranks; k++, n++)
        if (k < common)
            add_metric(metrics[n], metrics[n].type == HD_METRIC_FLOAT ? 6 : 0, line);
    return n;
}

/* ---- alarms */

void hd__metrics_set_watch(struct hd__metrics *m, const struct hd__watch_config *config)
{
    m->watch.config = *config;
}

/* A status is said once, not for each alarm. */
static void reap_command(struct hd__metrics *m)
{
    int status = 0;
    if (!m->command || waitpid(m->command, &status, WNOHANG) != m->command)
        return;
    m->command = 0;
    if (status && status != m->command_status)
        hd__log(HD_LOG_WARN, "watch", "watch.command failed (%s %d), so nobody may know of the alarm: %s",
                WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), m->watch.config.command);
    m->command_status = status;
}

/* That of an alarm in the last step has a moment to fail in. */
static void finish_command(struct hd__metrics *m)
{
    for (double end = hd__now() + 1; m->command && hd__now() < end; reap_command(m))
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* One at a time: a command that hangs is not started again. */
static void run_command(struct hd__metrics *m, const struct hd__alarm *a)
{
    char step[32], words[sizeof a->words], rule[32];
    char *command = hd__strdup(m->watch.config.command);
    char *const argv[] = {"sh", "-c", command, "sh", rule, step, words, NULL};
    int why;
    snprintf(step, sizeof step, "%" PRId64, a->step);
    snprintf(rule, sizeof rule, "%s", a->rule);
    memcpy(words, a->words, sizeof words);
    reap_command(m);
    if (m->command)
        hd__log(HD_LOG_WARN, "watch", "watch.command of an earlier alarm still runs; it is not started for this one");
    else if ((why = posix_spawn(&m->command, "/bin/sh", NULL, NULL, argv, environ))) {
        m->command = 0;
        hd__log(HD_LOG_WARN, "watch", "watch.command cannot be started: %s", strerror(why));
    }
    free(command);
}

static void log_alarms(struct hd__metrics *m, const struct hd__metrics_row *r)
{
    struct hd__alarm alarms[HD__WATCH_ALARMS];
    uint32_t n = hd__watch_step(&m->watch, r, alarms);
    for (uint32_t i = 0; i < n; i++) {
        const struct hd__alarm *a = &alarms[i];
        struct hd__text text = {0};
        hd__text_add(&text, "{\"event\": \"alarm\", \"rule\": \"%s\", \"step\": %" PRId64 ", \"rank\": %d", a->rule,
                     a->step, a->rank);
        add_metric((struct hd_metric){.name = "value", .number = a->value}, 9, &text);
        add_metric((struct hd_metric){.name = "limit", .number = a->limit}, 9, &text);
        hd__text_add(&text, ", \"words\": \"%s\", \"run\": \"%s\"}\n", a->words, m->run);
        write_line(m, &text);
        hd__log(HD_LOG_WARN, "watch", "step %" PRId64 ": %s: %s", a->step, a->rule, a->words);
        if (m->watch.config.command)
            run_command(m, a);
    }
}

/* Counters begin with the run, so that a scrape sees them go from 0 to 1. */
static size_t metrics_of_alarms(const struct hd__metrics *m, struct hd_metric *metrics)
{
    static const char *const names[] = {
#define ALARM_NAME(constant, name) "alarms_" #name,
        HD__WATCH_RULES(ALARM_NAME)
#undef ALARM_NAME
    };
    size_t n = 0;
    for (int32_t k = 0; k < HD__WATCH_RULE_COUNT; k++)
        if (hd__watch_limit(&m->watch.config, k) > 0)
            metrics[n++] = (struct hd_metric){.name = names[k],
                                              .type = HD_METRIC_INT,
                                              .integer = m->watch.total[k],
                                              .number = (double)m->watch.total[k]};
    return n;
}

void hd__metrics_log_step(struct hd__metrics *m, const struct hd__metrics_row *r)
{
    struct hd_metric metrics[HD__METRICS_MAX];
    struct hd_metrics_record record = {
        .struct_size = sizeof record, .metrics = metrics, .metric_size = sizeof *metrics, .step = r->step};
    struct hd__text text = {0};
    struct timespec now;
    hd__text_add(&text, "{\"step\": %" PRId64, r->step);
    record.count = metrics_of_row(m, r, metrics, &text);
    hd__text_add(&text, ", \"run\": \"%s\"}\n", m->run);
    write_line(m, &text);
    reap_command(m);
    log_alarms(m, r);
    record.count += metrics_of_alarms(m, metrics + record.count);
    clock_gettime(CLOCK_REALTIME, &now);
    record.time = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    for (uint32_t i = 0; i < m->sinks.count; i++)
        hd__metrics_sink_put(m->sinks.at[i], &record);
    print_step(m, r);
}

void hd__metrics_log_event(struct hd__metrics *m, json_t *event)
{
    struct hd__text text = {0};
    char *line;
    if (m) {
        json_object_set_new(event, "run", json_string(m->run));
        line = json_dumps(event, JSON_REAL_PRECISION(9));
        hd__text_add(&text, "%s\n", line);
        write_line(m, &text);
        free(line);
    }
    json_decref(event);
}

void hd__metrics_close(struct hd__metrics *m)
{
    if (!m)
        return;
    finish_command(m);
    hd__text_free(&m->outlive);
    for (uint32_t i = 0; i < m->sinks.count; i++)
        hd__metrics_sink_close(m->sinks.at[i]);
    hd__free_array(&m->sinks);
    hd__watch_finish(&m->watch);
    if (m->fd >= 0)
        close(m->fd);
    free(m->start);
    free(m->path);
    free(m->run);
    free(m);
}

char *hd__metrics_saved_in(const char *path, int64_t *step)
{
    struct stat st;
    FILE *file = !stat(path, &st) && S_ISREG(st.st_mode) ? fopen(path, "re") : NULL;
    char *line = NULL, *folder = NULL;
    size_t room = 0;
    *step = 0;
    while (file && getline(&line, &room, file) > 0) {
        json_t *event = strstr(line, "\"event\"") ? json_loads(line, 0, NULL) : NULL;
        json_t *job = json_object_get(event, "job");
        const char *dir = json_string_value(json_object_get(json_object_get(job, "checkpoint"), "dir"));
        if (is_event(event, "start", "resume")) {
            free(folder);
            folder = dir ? hd__strdup(dir) : NULL;
        } else if (is_event(event, "checkpoint", "checkpoint")) {
            *step = json_integer_value(json_object_get(event, "step"));
        }
        json_decref(event);
    }
    free(line);
    if (file)
        fclose(file);
    return folder;
}

int64_t hd__metrics_open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int64_t n = folder ? -3 : 0; /* . and .., and the folder's own */
    while (folder && readdir(folder))
        n++;
    if (folder)
        closedir(folder);
    return n;
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
