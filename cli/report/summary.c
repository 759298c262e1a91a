/* A run in numbers; what differs between runs. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "cli/report/report.h"
#include "service/metrics/metrics.h"
#include "service/metrics/watch.h"
#include "service/report/json_fields.h"

/* ---- numbers of a run */

/* Median of the rows that have the field; NaN: none do. */
static double median(const struct hd__report_run *run, const char *field)
{
    const double *values = hd__report_values(run, field);
    double *sorted = hd__alloc((run->n_rows + 1) * sizeof *sorted), middle;
    uint32_t n = 0;
    for (uint32_t i = 0; values && i < run->n_rows; i++)
        if (isfinite(values[i]))
            sorted[n++] = values[i];
    middle = n ? hd__watch_median(sorted, n) : NAN;
    free(sorted);
    return middle;
}

/* The row with the least or largest value; -1: none. */
static int64_t extreme(const struct hd__report_run *run, const char *field, int largest)
{
    const double *values = hd__report_values(run, field);
    int64_t best = -1;
    for (uint32_t i = 0; values && i < run->n_rows; i++)
        if (isfinite(values[i]) && (best < 0 || (largest ? values[i] > values[best] : values[i] < values[best])))
            best = i;
    return best;
}

/* Sum over the rows of a field and of the time that it is part of. */
static double share(const struct hd__report_run *run, const char *field)
{
    const double *part = hd__report_values(run, field), *whole = hd__report_values(run, "step_s");
    double parts = 0, wholes = 0;
    for (uint32_t i = 0; part && whole && i < run->n_rows; i++)
        if (isfinite(part[i]) && isfinite(whole[i])) {
            parts += part[i];
            wholes += whole[i];
        }
    return wholes > 0 ? parts / wholes : NAN;
}

static double event_sum(const json_t *events, const char *event, const char *field, uint32_t *n)
{
    double sum = 0;
    size_t i;
    json_t *one;
    *n = 0;
    json_array_foreach(events, i, one)
    {
        const char *is = json_string_value(json_object_get(one, "event"));
        if (!is || strcmp(is, event))
            continue;
        ++*n;
        const json_t *value = json_object_get(one, field);
        sum += json_is_true(value) ? 1 : json_number_value(value);
    }
    return sum;
}

static const json_t *job_value(const struct hd__report_run *run, const char *section, const char *key)
{
    return json_object_get(json_object_get(json_object_get(run->start, "job"), section), key);
}

/* ---- rows of the table */

static void add_count(double n, struct hd__text *out)
{
    char text[48];
    int at = snprintf(text, sizeof text, "%.0f", n);
    for (int k = 0; k < at; k++)
        hd__text_add(out, "%s%c", k && (at - k) % 3 == 0 ? "," : "", text[k]);
}

static void add_seconds(double s, struct hd__text *out)
{
    if (s >= 3600)
        hd__text_add(out, "%.0fh%02.0fm", floor(s / 3600), floor(fmod(s, 3600) / 60));
    else if (s >= 60)
        hd__text_add(out, "%.0fm%02.0fs", floor(s / 60), floor(fmod(s, 60)));
    else if (s >= 1)
        hd__text_add(out, "%.3g s", s);
    else
        hd__text_add(out, "%.3g ms", 1e3 * s);
}

static void fact_job(const struct hd__report_run *run, struct hd__text *out)
{
    hd__text_add(out, "%s", run->name);
}

static void fact_run(const struct hd__report_run *run, struct hd__text *out)
{
    hd__text_add(out, "%s", run->id);
}

static void fact_state(const struct hd__report_run *run, struct hd__text *out)
{
    double last = run->n_rows ? run->step[run->n_rows - 1] : 0;
    double steps = json_number_value(job_value(run, "job", "steps"));
    if (steps > 0 && last >= steps)
        hd__text_add(out, "complete");
    else if (steps > 0)
        hd__text_add(out, "at step %.0f of %.0f", last, steps);
    if (json_array_size(run->reports))
        hd__text_add(out, "; failure reports: %zu", json_array_size(run->reports));
}

static void fact_parameters(const struct hd__report_run *run, struct hd__text *out)
{
    if (json_object_get(run->start, "parameters"))
        add_count(json_number_value(json_object_get(run->start, "parameters")), out);
}

static void fact_mesh(const struct hd__report_run *run, struct hd__text *out)
{
    const char *axis;
    json_t *size;
    double ranks = 1;
    json_object_foreach(json_object_get(run->start, "mesh"), axis, size) ranks *= json_number_value(size);
    if (!run->start)
        return;
    hd__text_add(out, "%.0f", ranks);
    json_object_foreach(json_object_get(run->start, "mesh"), axis, size) if (json_integer_value(size) > 1)
        hd__text_add(out, ", %s %" JSON_INTEGER_FORMAT, axis, json_integer_value(size));
}

static void fact_tokens(const struct hd__report_run *run, struct hd__text *out)
{
    if (run->n_rows)
        add_count(run->tokens[run->n_rows - 1], out);
}

static void fact_time(const struct hd__report_run *run, struct hd__text *out)
{
    if (run->n_rows)
        add_seconds(run->seconds[run->n_rows - 1], out);
}

static void fact_loss(const struct hd__report_run *run, struct hd__text *out)
{
    const double *loss = hd__report_values(run, "loss");
    if (loss && run->n_rows && isfinite(loss[run->n_rows - 1]))
        hd__text_add(out, "%.4f", loss[run->n_rows - 1]);
}

static void fact_val_loss(const struct hd__report_run *run, struct hd__text *out)
{
    int64_t best = extreme(run, "val_loss", 0);
    if (best >= 0)
        hd__text_add(out, "%.4f at step %.0f", hd__report_values(run, "val_loss")[best], run->step[best]);
}

static void fact_throughput(const struct hd__report_run *run, struct hd__text *out)
{
    double rate = median(run, "tokens_per_s");
    if (isfinite(rate))
        add_count(rate, out);
}

static void fact_step(const struct hd__report_run *run, struct hd__text *out)
{
    double took = median(run, "step_s");
    if (isfinite(took))
        add_seconds(took, out);
}

/* The peak of a rank's device; 0: not known, as of a run that went on, whose rows may be of several. */
static double peak_of(const struct hd__report_run *run, char text[32])
{
    int whole = !json_object_get(run->start, "from_step");
    double peak = whole ? json_number_value(json_object_get(run->start, "peak_flops")) : 0;
    snprintf(text, 32, "%.3g %s", peak / (peak < 1e12 ? 1e9 : 1e12), peak < 1e12 ? "GFLOP/s" : "TFLOP/s");
    return peak;
}

static void fact_mfu(const struct hd__report_run *run, struct hd__text *out)
{
    double mfu = median(run, "mfu");
    char peak[32];
    if (mfu > 0)
        hd__text_add(out, "%.1f %%", 100 * mfu);
    if (mfu > 0 && peak_of(run, peak) > 0)
        hd__text_add(out, " of %s", peak);
}

/* Device cpu measures its peak at each start; others know theirs. */
static int on_same_cpu(const struct hd__report_run *a, const struct hd__report_run *b)
{
    static const char *const sections[] = {"device", "precision", "mesh"};
    const json_t *device = json_object_get(json_object_get(a->start, "job"), "device");
    const char *use = json_string_value(json_object_get(device, "use"));
    int same = use && !strcmp(use, "cpu") &&
               json_equal(json_object_get(a->start, "machine"), json_object_get(b->start, "machine"));
    for (size_t i = 0; i < HD__COUNT(sections); i++)
        same &= json_equal(json_object_get(json_object_get(a->start, "job"), sections[i]),
                           json_object_get(json_object_get(b->start, "job"), sections[i]));
    return same;
}

void hd__report_doubt_mfu(struct hd__report *r)
{
    char text[2][32];
    double first = peak_of(r->runs, text[0]);
    for (uint32_t k = 0; k < r->n; k++) {
        struct hd__report_run *run = &r->runs[k];
        double peak = peak_of(run, text[1]);
        if (median(run, "mfu") > HD__MFU_DOUBTED)
            hd__push(&run->faults, hd__format("%s: %s", run->label, HD__MFU_WORDS));
        if (peak > 0 && first > 0 && fmax(peak / first, first / peak) > 2 && on_same_cpu(run, r->runs))
            hd__push(&run->faults,
                     hd__format("%s: MFU is of a peak of %s, and that of %s of %s, though the device is "
                                "the same: it may have been busy while one was measured: compare tokens/s",
                                run->label, text[1], r->runs->label, text[0]));
    }
}

static void fact_comm(const struct hd__report_run *run, struct hd__text *out)
{
    double part = share(run, hd__report_values(run, "exposed_comm_s") ? "exposed_comm_s" : "comm_s");
    if (isfinite(part))
        hd__text_add(out, "%.1f %% of the step", 100 * part);
}

enum { ROWS = 1000 }; /* the newest: a rank may have been replaced */

/* The rank that was the slowest most often, and how much slower it is than the median. */
static void fact_slowest(const struct hd__report_run *run, struct hd__text *out)
{
    const double *rank = hd__report_values(run, "compute_max_rank");
    double most = median(run, "compute_max_s"), middle = median(run, "compute_median_s");
    uint32_t first = run->n_rows > ROWS ? run->n_rows - ROWS : 0, best = 0;
    double of = 0;
    for (uint32_t i = first; rank && i < run->n_rows; i++) {
        uint32_t same = 0;
        for (uint32_t k = first; k < run->n_rows; k++)
            same += rank[k] == rank[i];
        if (same > best) {
            best = same;
            of = rank[i];
        }
    }
    if (best && middle > 0)
        hd__text_add(out, "rank %.0f, %.3g x the median", of, most / middle);
}

static void fact_memory(const struct hd__report_run *run, struct hd__text *out)
{
    const char *field = hd__report_values(run, "rss_max_bytes") ? "rss_max_bytes" : "rss_bytes";
    int64_t most = extreme(run, field, 1), arena = extreme(run, "arena_bytes", 1);
    char text[32];
    if (most >= 0)
        hd__text_add(out, "%s", hd__bytes_text((uint64_t)hd__report_values(run, field)[most], text));
    if (arena >= 0)
        hd__text_add(out, ", arena %s", hd__bytes_text((uint64_t)hd__report_values(run, "arena_bytes")[arena], text));
}

static void add_saves(const json_t *events, const char *event, struct hd__text *out)
{
    uint32_t n, after_faults; /* of these no time is known */
    double took = event_sum(events, event, "seconds", &n), exposed = event_sum(events, event, "exposed_s", &n);
    after_faults = (uint32_t)event_sum(events, event, "emergency", &n);
    hd__text_add(out, "%u", n);
    if (n > after_faults) {
        hd__text_add(out, ", ");
        add_seconds(took / (n - after_faults), out);
        hd__text_add(out, " each, ");
        add_seconds(exposed, out);
        hd__text_add(out, " exposed");
    }
}

static void fact_saves(const struct hd__report_run *run, struct hd__text *out)
{
    add_saves(run->events, "checkpoint", out);
}

static void fact_copies(const struct hd__report_run *run, struct hd__text *out)
{
    if (json_array_size(run->copies))
        add_saves(run->copies, "copy", out);
}

static void fact_checkpoints(const struct hd__report_run *run, struct hd__text *out)
{
    for (uint32_t k = 0; k < run->checkpoints.count; k++)
        if (k < 3 || k + 3 >= run->checkpoints.count)
            hd__text_add(out, "%s%" PRIu64, k ? ", " : "steps ", run->checkpoints.at[k]);
        else if (k == 3)
            hd__text_add(out, ", ...");
}

static void fact_restarts(const struct hd__report_run *run, struct hd__text *out)
{
    uint32_t restarts, shrunk, grown, resumed;
    event_sum(run->events, "restart", "seconds", &restarts);
    event_sum(run->events, "shrink", "seconds", &shrunk);
    event_sum(run->events, "grow", "seconds", &grown);
    event_sum(run->events, "resume", "seconds", &resumed);
    restarts += shrunk + grown;
    hd__text_add(out, "%u", restarts);
    if (resumed)
        hd__text_add(out, ", resumed %u time%s", resumed, resumed == 1 ? "" : "s");
}

static void fact_alarms(const struct hd__report_run *run, struct hd__text *out)
{
    uint32_t n;
    event_sum(run->events, "alarm", "value", &n);
    hd__text_add(out, "%u", n);
}

static const struct {
    const char *name;
    void (*add)(const struct hd__report_run *run, struct hd__text *out);
} facts[] = {{"job", fact_job},
             {"run", fact_run},
             {"state", fact_state},
             {"parameters", fact_parameters},
             {"ranks", fact_mesh},
             {"tokens", fact_tokens},
             {"training time", fact_time},
             {"last loss", fact_loss},
             {"best val_loss", fact_val_loss},
             {"tokens/s, median", fact_throughput},
             {"step, median", fact_step},
             {"MFU, median", fact_mfu},
             {"exposed communication", fact_comm},
             {"slowest rank", fact_slowest},
             {"memory of a rank, most", fact_memory},
             {"saves", fact_saves},
             {"copies in memory", fact_copies},
             {"checkpoints there", fact_checkpoints},
             {"restarts", fact_restarts},
             {"alarms", fact_alarms}};

const char *hd__report_fact_name(size_t k)
{
    return k < HD__COUNT(facts) ? facts[k].name : NULL;
}

void hd__report_fact(const struct hd__report_run *run, size_t k, struct hd__text *out)
{
    size_t before = out->length;
    facts[k].add(run, out);
    if (out->length == before)
        hd__text_add(out, "-");
}

/* ---- settings */

static void flatten(const json_t *object, const char *prefix, json_t *out)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        char *name = hd__format("%s%s", prefix, key);
        if (json_is_object(value) && json_object_size(value)) {
            char *inner = hd__format("%s.", name);
            flatten(value, inner, out);
            free(inner);
        } else if (json_is_string(value)) {
            json_object_set(out, name, value);
        } else {
            char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
            json_object_set_new(out, name, json_string(text));
            free(text);
        }
        free(name);
    }
}

json_t *hd__report_settings(const struct hd__report_run *run)
{
    json_t *out = json_object();
    flatten(json_object_get(run->start, "job"), "", out);
    return out;
}

/* Objects of a run's first line beside its job, and what their keys begin with; an older heddle has not all of them. */
static const char *const beside[][2] = {{"files_of", "files of "}, {"machine", "machine: "}};

json_t *hd__report_differences(const struct hd__report *r)
{
    static const char *const own[] = {"job.name", "checkpoint.dir", "metrics.jsonl"};
    json_t *settings[HD__REPORT_RUNS], *all = json_object(), *rows = json_array(), *value;
    const char *key;
    for (uint32_t k = 0; k < r->n; k++) {
        settings[k] = hd__report_settings(&r->runs[k]);
        for (size_t i = 0; i < HD__COUNT(beside); i++)
            flatten(json_object_get(r->runs[k].start, beside[i][0]), beside[i][1], settings[k]);
        json_object_update(all, settings[k]);
    }
    json_object_foreach(all, key, value)
    {
        int differ = 0, is_own = 0;
        json_t *values = json_array();
        for (size_t k = 0; k < HD__COUNT(own); k++)
            is_own |= !strcmp(key, own[k]);
        for (uint32_t k = 0; k < r->n; k++) {
            json_t *one = json_object_get(settings[k], key);
            differ |= !json_equal(one, json_object_get(settings[0], key)) && (one || json_object_get(settings[0], key));
            for (size_t i = 0; i < HD__COUNT(beside); i++)
                is_own |= !one && !strncmp(key, beside[i][1], strlen(beside[i][1]));
            json_array_append_new(values, one ? json_incref(one) : json_null());
        }
        if (differ && !is_own)
            json_array_append_new(rows, json_pack("{s:s,s:O}", "key", key, "values", values));
        json_decref(values);
    }
    for (uint32_t k = 0; k < r->n; k++)
        json_decref(settings[k]);
    json_decref(all);
    return rows;
}

/* ---- events */

double hd__report_event_step(const json_t *event)
{
    const json_t *step = json_object_get(event, "step");
    return json_number_value(step ? step : json_object_get(event, "from_step"));
}

void hd__report_event_words(const json_t *event, struct hd__text *out)
{
    const char *is = hd__json_word(event, "event");
    char text[32];
    if (!strcmp(is, "alarm")) {
        hd__text_add(out, "alarm %s, rank %.0f: %s", hd__json_word(event, "rule"),
                     json_number_value(json_object_get(event, "rank")), hd__json_word(event, "words"));
    } else if (!strcmp(is, "checkpoint") && json_is_true(json_object_get(event, "emergency"))) {
        hd__text_add(out, "saved after a fault");
    } else if (!strcmp(is, "checkpoint")) {
        hd__text_add(out, "saved in ");
        add_seconds(json_number_value(json_object_get(event, "seconds")), out);
        hd__text_add(out, ", %s; training waited ",
                     hd__bytes_text((uint64_t)fmax(json_number_value(json_object_get(event, "bytes")), 0), text));
        add_seconds(json_number_value(json_object_get(event, "exposed_s")), out);
    } else if (!strcmp(is, "restart") || !strcmp(is, "shrink") || !strcmp(is, "grow")) {
        size_t lost = json_array_size(json_object_get(event, "lost"));
        hd__text_add(out, "%s %.0f, to %.0f ranks", is, json_number_value(json_object_get(event, "round")),
                     json_number_value(json_object_get(event, "ranks")));
        if (lost)
            hd__text_add(out, ", %zu lost", lost);
        hd__text_add(out, "; it took ");
        add_seconds(json_number_value(json_object_get(event, "seconds")), out);
    } else if (!strcmp(is, "resume")) {
        hd__text_add(out, "resumed from a checkpoint");
    } else {
        hd__text_add(out, "%s", is);
    }
}
