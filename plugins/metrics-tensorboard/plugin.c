/* The slots of metrics-tensorboard: an event file, one write() a step. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "events.h"
#include "heddle/host.h"
#include "heddle/metrics.h"

struct tensorboard_settings {
    const char *dir;
};

struct hd_metrics {
    char *path;
    int64_t step;       /* step of the checkpoint that the run resumes from */
    int32_t fd, folder; /* folder: of the run, locked; -1: no locks there */
    int32_t begun;      /* the file has its first records */
    int32_t reserved;
};

static const struct hd_option options[] = {
    {.name = "dir",
     .type = HD_OPT_STRING,
     .flags = HD_OPTION_REQUIRED | HD_OPTION_PATH,
     .offset = offsetof(struct tensorboard_settings, dir),
     .help = "folder, in which each run of heddle has one of its own: DIR/RUN, as TensorBoard shows runs"},
};

/* TensorBoard groups charts by the part before the slash. Metrics not listed get run/. */
static const struct {
    const char *name, *tag; /* tag NULL: not shown */
} tags[] = {
    {"loss", "train/loss"},
    {"val_loss", "val/loss"},
    {"grad_norm", "train/grad_norm"},
    {"lr", "train/lr"},
    {"loss_scale", "train/loss_scale"},
    {"skipped", NULL},
    {"tokens", NULL},
    {"tokens_per_s", "perf/tokens_per_s"},
    {"step_s", "perf/step_s"},
    {"tokens_per_s_per_rank", "perf/tokens_per_s_per_rank"},
    {"samples_per_s", "perf/samples_per_s"},
    {"comm_s", "perf/comm_s"},
    {"exposed_comm_s", "perf/exposed_comm_s"},
    {"data_wait_s", "perf/data_wait_s"},
    {"mfu", "perf/mfu"},
    {"arena_bytes", NULL},
    {"rss_bytes", "memory/rss_bytes"},
};

/* NULL: not shown. `room` takes the tag of a metric that is not listed. */
static const char *tag_of(const char *name, char room[80])
{
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++)
        if (!strcmp(tags[i].name, name))
            return tags[i].tag;
    if (!strncmp(name, "alarms_", strlen("alarms_")))
        return NULL; /* counters; the alarms are in metrics.jsonl */
    snprintf(room, 80, "run/%s", name);
    return room;
}

/* mkdir -p */
static int make_folders(const char *path)
{
    char *copy = NULL;
    int rc = asprintf(&copy, "%s/", path) < 0 ? -1 : 0;
    for (char *slash = rc ? NULL : strchr(copy + 1, '/'); slash && !rc; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        rc = mkdir(copy, 0777) && errno != EEXIST ? -1 : 0;
        *slash = '/';
    }
    free(copy);
    return rc;
}

/* Writes all or nothing, so that the next step begins a record. Frees the events. */
static int32_t write_out(const struct hd_metrics *m, struct events *events, struct hd_error *err)
{
    off_t start = lseek(m->fd, 0, SEEK_END);
    ssize_t n = events->no_memory ? 0 : write(m->fd, events->at, events->length);
    int32_t rc = HD_OK;
    if (events->no_memory)
        rc = hd_fail(err, HD_E_NOMEM, "%s: no memory", m->path);
    else if (n != (ssize_t)events->length)
        rc = hd_fail(err, HD_E_IO, "%s cannot be written: %s", m->path, n < 0 ? strerror(errno) : "disk full?");
    if (rc && n > 0 && (start < 0 || ftruncate(m->fd, start)))
        rc = hd_fail(err, HD_E_IO, "%s ends with a partial record: %s", m->path, strerror(errno));
    events_free(events);
    return rc;
}

static void tensorboard_close(struct hd_metrics *m)
{
    if (!m)
        return;
    if (m->fd >= 0)
        close(m->fd);
    if (m->folder >= 0)
        close(m->folder);
    free(m->path);
    free(m);
}

/* TensorBoard reads the files of a folder in the order of their names. */
static int32_t open_file(struct hd_metrics *m, const char *dir, struct hd_error *err)
{
    struct timespec now;
    char host[65] = "";
    clock_gettime(CLOCK_REALTIME, &now);
    gethostname(host, sizeof host - 1);
    if (asprintf(&m->path, "%s/events.out.tfevents.%010lld.%s.%d.%09ld", dir, (long long)now.tv_sec, host,
                 (int)getpid(), now.tv_nsec) < 0) {
        m->path = NULL;
        return hd_fail(err, HD_E_NOMEM, "%s: no memory", dir);
    }
    m->fd = open(m->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    return m->fd < 0 ? hd_fail(err, HD_E_IO, "%s: %s", m->path, strerror(errno)) : HD_OK;
}

/* Copies of one run's checkpoints that go on at once have one id, and would draw one curve. */
static int32_t lock_folder(struct hd_metrics *m, const char *dir, struct hd_error *err)
{
    m->folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (m->folder >= 0 && flock(m->folder, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return hd_fail(err, HD_E_INVALID,
                       "%s: another process is writing this run: wait for its end, or name another folder", dir);
    return HD_OK;
}

static int32_t check_dir(const char *dir, struct hd_error *err)
{
    return strstr(dir, "://") ? hd_fail(err, HD_E_INVALID, "%s is a URL: name a folder", dir)
           : !*dir            ? hd_fail(err, HD_E_INVALID, "the name of its folder is empty")
                              : HD_OK;
}

/* Could it be made in the first folder above it that is there, or files in it? 0, or errno. */
static int can_make(const char *dir)
{
    struct stat st;
    char *at = strdup(dir), *slash, *probe = NULL;
    while (at && *at && lstat(at, &st) && errno == ENOENT) {
        if ((slash = strrchr(at, '/')))
            slash[slash == at] = 0; /* "/" stays */
        else
            memcpy(at, ".", 2);
    }
    int why = !at || asprintf(&probe, "%s/.heddle-XXXXXX", at) < 0 ? ENOMEM
              : mkdtemp(probe) && !rmdir(probe)                    ? 0
                                                                   : errno;
    free(probe);
    free(at);
    return why;
}

static int32_t tensorboard_check(const struct hd_host *host, const void *settings, const struct hd_check_job *job,
                                 struct hd_error *err)
{
    const char *dir = ((const struct tensorboard_settings *)settings)->dir;
    (void)host, (void)job;
    int32_t rc = check_dir(dir, err);
    int why = rc ? 0 : can_make(dir);
    return why ? hd_fail(err, HD_E_IO, "%s: %s", dir, strerror(why)) : rc;
}

static int32_t tensorboard_open(const struct hd_host *host, const void *settings, const struct hd_metrics_start *start,
                                struct hd_metrics **metrics, struct hd_error *err)
{
    const char *dir = ((const struct tensorboard_settings *)settings)->dir;
    int knows_run = start->struct_size >= offsetof(struct hd_metrics_start, run) + sizeof start->run && start->run;
    char *folder = NULL;
    (void)host;
    if (check_dir(dir, err))
        return HD_E_INVALID;
    struct hd_metrics *m = calloc(1, sizeof *m);
    if (!m || asprintf(&folder, "%s%s%s", dir, knows_run ? "/" : "", knows_run ? start->run : "") < 0) {
        free(m);
        return hd_fail(err, HD_E_NOMEM, "%s: no memory", dir);
    }
    m->fd = m->folder = -1;
    m->step = start->step;
    int32_t rc = make_folders(folder) ? hd_fail(err, HD_E_IO, "%s: %s", folder, strerror(errno))
                 : knows_run          ? lock_folder(m, folder, err)
                                      : HD_OK;
    rc = rc ? rc : open_file(m, folder, err);
    free(folder);
    if (rc)
        tensorboard_close(m);
    else
        *metrics = m;
    return rc;
}

static int32_t tensorboard_write(struct hd_metrics *m, const struct hd_metrics_record *record, struct hd_error *err)
{
    struct events events = {0}, summary = {0};
    char room[80];
    for (size_t i = 0; i < record->count; i++) {
        const struct hd_metric *x = hd_metric_at(record, i);
        const char *tag = tag_of(x->name, room);
        if (tag && isfinite(x->number))
            events_scalar(&summary, tag, x->number);
    }
    if (!m->begun) {
        events_version(&events, record->time);
        events_restart(&events, record->time, m->step + 1);
    }
    events_summary(&events, record->time, record->step, &summary);
    int32_t rc = write_out(m, &events, err);
    m->begun |= !rc;
    return rc;
}

static const struct hd_metrics_ops ops = {
    .struct_size = sizeof ops,
    .open = tensorboard_open,
    .write = tensorboard_write,
    .close = tensorboard_close,
};

static const struct hd_component tensorboard_component = {
    .struct_size = sizeof tensorboard_component,
    .kind = HD_KIND_METRICS,
    .name = "tensorboard",
    .summary = "event files that TensorBoard shows",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .option_size = sizeof options[0],
    .settings_size = sizeof(struct tensorboard_settings),
    .ops = &ops,
    .check = tensorboard_check,
};

HD_PLUGIN_ONE("metrics-tensorboard", "0.1.0", "Apache-2.0", tensorboard_component)
