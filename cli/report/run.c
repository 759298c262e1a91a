/* Reading a run. A line that cannot be used is left out and listed. */
#include "cli/report/run.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "cli/ckpt_store.h"
#include "core/base/file.h"

/* Bytes of a file and of a line that are read: a run of a million steps has a tenth of these. */
#define FILE_MAX (INT64_C(4) << 30)
#define LINE_MAX_BYTES (INT64_C(16) << 20)
enum { FAULTS_MAX = 8 }; /* listed; the others are counted */

struct reading {
    struct hd__report_run *run;
    const char *name; /* of the file, for messages */
    uint32_t line, room, unlisted;
    int is_ours; /* a line of metrics was found */
};

static void add_fault(struct reading *r, const char *what)
{
    if (r->run->faults.count >= FAULTS_MAX)
        r->unlisted++;
    else
        hd__push(&r->run->faults, hd__format("%s:%u: %s", r->name, r->line, what));
}

/* ---- rows */

static struct hd__report_field *field_of(struct reading *r, const char *name)
{
    struct hd__report_run *run = r->run;
    for (uint32_t k = 0; k < run->n_fields; k++)
        if (!strcmp(run->fields[k].name, name))
            return &run->fields[k];
    if (run->n_fields == HD__REPORT_FIELDS) {
        run->dropped++;
        return NULL;
    }
    struct hd__report_field *f = &run->fields[run->n_fields++];
    *f = (struct hd__report_field){hd__strdup(name), hd__alloc(r->room * sizeof *f->values)};
    for (uint32_t i = 0; i < r->room; i++)
        f->values[i] = NAN;
    return f;
}

static void grow(struct reading *r)
{
    struct hd__report_run *run = r->run;
    uint32_t room = r->room ? 2 * r->room : 1024;
    double **columns[] = {&run->step, &run->tokens, &run->seconds};
    for (size_t k = 0; k < HD__COUNT(columns); k++)
        *columns[k] = hd__realloc(*columns[k], room * sizeof(double));
    for (uint32_t k = 0; k < run->n_fields; k++) {
        run->fields[k].values = hd__realloc(run->fields[k].values, room * sizeof(double));
        for (uint32_t i = r->room; i < room; i++)
            run->fields[k].values[i] = NAN;
    }
    r->room = room;
}

/* Numbers of a row, and of the objects in it. */
static void add_fields(struct reading *r, json_t *object, const char *prefix, int depth)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        char *name = hd__format("%s%s", prefix, key);
        if (json_is_object(value) && depth < 3) {
            char *inner = hd__format("%s.", name);
            add_fields(r, value, inner, depth + 1);
            free(inner);
        } else if (json_is_number(value) && strcmp(name, "step") && strcmp(name, "tokens")) {
            struct hd__report_field *f = field_of(r, name);
            if (f)
                f->values[r->run->n_rows] = json_number_value(value);
        }
        free(name);
    }
}

static void add_row(struct reading *r, json_t *row)
{
    struct hd__report_run *run = r->run;
    double step = json_number_value(json_object_get(row, "step"));
    double took = json_number_value(json_object_get(row, "step_s"));
    uint32_t n = run->n_rows;
    const json_t *job = json_object_get(run->start, "job");
    double every = json_number_value(json_object_get(json_object_get(job, "metrics"), "every"));
    double from = json_number_value(json_object_get(run->start, "from_step")), last = n ? run->step[n - 1] : from;
    if (step <= last) {
        char why[96];
        snprintf(why, sizeof why, "step %.0f after step %.0f: left out", step, last);
        add_fault(r, why);
        return;
    }
    /* rows of multiples of metrics.every; before `from` another may have held */
    double first_missing = every > 0 ? (floor(fmax(last, from) / every) + 1) * every : 0;
    double last_missing = every > 0 ? (ceil(step / every) - 1) * every : -1;
    if (n && first_missing <= last_missing) {
        char why[96];
        snprintf(why, sizeof why, "the rows of steps %.0f to %.0f are missing", first_missing, last_missing);
        add_fault(r, why);
    }
    if (n == r->room)
        grow(r);
    add_fields(r, row, "", 0);
    run->step[n] = step;
    run->tokens[n] = json_number_value(json_object_get(row, "tokens"));
    run->seconds[n] = (n ? run->seconds[n - 1] : 0) + fmax(took, 0) * (step - last);
    run->n_rows++;
}

/* ---- lines */

/* Losses before and behind a line that resumes a run are of other held-out files. */
static void note_files(struct reading *r, const json_t *line)
{
    const json_t *before = json_object_get(json_object_get(r->run->start, "files_of"), "data.val"),
                 *now = json_object_get(json_object_get(line, "files_of"), "data.val");
    char why[256];
    if (!json_is_string(before) || !json_is_string(now) || json_equal(before, now))
        return;
    snprintf(why, sizeof why, "data.val has other files from here on (%s, before %s): val_loss is not comparable",
             json_string_value(now), json_string_value(before));
    add_fault(r, hd__printable(why));
}

static void use_line(struct reading *r, json_t *line)
{
    struct hd__report_run *run = r->run;
    const char *event = json_string_value(json_object_get(line, "event"));
    const char *id = json_string_value(json_object_get(line, "run"));
    int starts = event && (!strcmp(event, "start") || !strcmp(event, "resume"));
    if (!event && !json_is_number(json_object_get(line, "step"))) {
        add_fault(r, "neither a step nor an event: left out");
        return;
    }
    r->is_ours |= starts || id != NULL;
    if (starts) {
        const char *before = json_string_value(json_object_get(run->start, "run"));
        if (before && id && strcmp(before, id) != 0)
            add_fault(r, "another run begins: what follows is not of the same run as the lines before");
        note_files(r, line);
        json_decref(run->start);
        run->start = json_incref(line);
        if (!strcmp(event, "resume"))
            json_array_append(run->events, line);
    } else if (event) {
        json_array_append(strcmp(event, "copy") ? run->events : run->copies, line);
    } else {
        add_row(r, line);
    }
}

static void parse_line(struct reading *r, const char *text, size_t n)
{
    json_error_t error;
    json_t *line = text[n - 1] == '\n' ? json_loadb(text, n, 0, &error) : NULL;
    char why[256];
    r->line++;
    if (text[n - 1] != '\n')
        add_fault(r, "the last line is cut: left out (a run that still writes, or a disk that was full)");
    else if (!json_is_object(line)) {
        snprintf(why, sizeof why, "damaged: %.120s: left out", line ? "no object" : error.text);
        add_fault(r, hd__printable(why));
    } else {
        use_line(r, line);
    }
    json_decref(line);
}

static int32_t read_lines(struct reading *r, FILE *file, struct hd_error *err)
{
    char *text = NULL;
    size_t room = 0;
    ssize_t n;
    int32_t rc = HD_OK;
    while (!rc && (n = getline(&text, &room, file)) > 0)
        if (n > LINE_MAX_BYTES)
            rc = hd_fail(err, HD_E_INVALID, "%s:%u: a line of %zd bytes: heddle did not write it", r->run->path,
                         r->line + 1, n);
        else
            parse_line(r, text, (size_t)n);
    if (!rc && ferror(file))
        rc = hd_fail(err, HD_E_IO, "%s: %s", r->run->path, strerror(errno));
    free(text);
    if (!rc && !r->is_ours)
        rc = hd_fail(err, HD_E_INVALID,
                     "%s is no run: it has no line of heddle's metrics; name a run's folder, as runs/NAME",
                     r->run->path);
    return rc;
}

/* ---- the rest of the folder */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add_report(struct hd__report_run *run, const char *name)
{
    char *path = hd__format("%s/%s", run->folder, name);
    json_t *report = json_load_file(path, 0, NULL);
    const char *words = json_string_value(json_object_get(json_object_get(report, "verdict"), "words"));
    json_array_append_new(run->reports,
                          json_pack("{s:s,s:s}", "file", path, "words", words ? words : "it cannot be read"));
    json_decref(report);
    free(path);
}

/* Reports of failures, and files of other runs that were set aside. */
static void list_folder(struct hd__report_run *run)
{
    HD__ARRAY(char *) names = {0};
    const char *base = strrchr(run->path, '/') ? strrchr(run->path, '/') + 1 : run->path;
    DIR *dir = opendir(run->folder);
    for (struct dirent *e; dir && (e = readdir(dir));)
        hd__push(&names, hd__strdup(e->d_name));
    if (dir)
        closedir(dir);
    hd__sort(&names, by_name);
    for (uint32_t i = 0; i < names.count; i++) {
        const char *name = names.at[i], *dot = strrchr(name, '.');
        if (!strncmp(name, "report-", 7) && dot && !strcmp(dot, ".json"))
            add_report(run, name);
        if (!strncmp(name, base, strlen(base)) && name[strlen(base)] == '.' &&
            strspn(dot + 1, "0123456789") == strlen(dot + 1))
            hd__push(&run->faults, hd__format("%s/%s beside it is of an earlier run, and not on this page: name it to "
                                              "see it",
                                              run->folder, name));
        free(names.at[i]);
    }
    hd__free_array(&names);
}

static void list_checkpoints(struct hd__report_run *run)
{
    const char *dir =
        json_string_value(json_object_get(json_object_get(json_object_get(run->start, "job"), "checkpoint"), "dir"));
    char *inside = hd__format("%s/checkpoints", run->folder);
    struct hd__cli_store store = {0};
    struct hd_error err = HD_ERROR_INIT;
    struct stat st;
    uint64_t *steps = NULL;
    uint32_t n = 0, torn = 0;
    dir = !stat(inside, &st) ? inside : dir;
    if (dir && !stat(dir, &st) && S_ISDIR(st.st_mode)) {
        int32_t rc = hd__cli_store_open(dir, &store, &err);
        rc = rc ? rc : hd__ckpt_list_steps(&store.store, &steps, &n, &torn, &err);
        if (rc)
            hd__push(&run->faults, hd__format("checkpoints are not listed: %s", err.message));
        hd__append(&run->checkpoints, steps, rc ? 0 : n);
        free(steps);
        hd__cli_store_close(&store);
    }
    free(inside);
}

/* ---- a run */

static void name_run(struct hd__report_run *run)
{
    char *copy = hd__strdup(run->path), *slash = strrchr(copy, '/'), *real;
    const char *file = slash ? slash + 1 : copy;
    if (slash)
        *slash = 0;
    run->folder = hd__strdup(!slash ? "." : *copy ? copy : "/");
    real = realpath(run->folder, NULL);
    const char *base = real && strrchr(real, '/') && strrchr(real, '/')[1] ? strrchr(real, '/') + 1 : run->folder;
    run->label = strcmp(file, "metrics.jsonl") ? hd__format("%s/%s", base, file) : hd__strdup(base);
    free(real);
    free(copy);
}

static int32_t read_file(struct hd__report_run *run, struct hd_error *err)
{
    struct stat st;
    int32_t rc;
    FILE *file = hd__open_regular(run->path, "metrics of the run", err);
    if (!file)
        return err->code;
    struct reading r = {.run = run, .name = run->path};
    if (fstat(fileno(file), &st) || st.st_size > FILE_MAX)
        rc = hd_fail(err, HD_E_INVALID, "%s: more than 4 GiB: heddle did not write it", run->path);
    else
        rc = read_lines(&r, file, err);
    fclose(file);
    if (r.unlisted)
        hd__push(&run->faults, hd__format("%s: %u more lines were left out", run->path, r.unlisted));
    if (run->dropped)
        hd__push(&run->faults, hd__format("%s: rows have more than %d fields; the others are not shown", run->path,
                                          HD__REPORT_FIELDS));
    return rc;
}

int32_t hd__report_read(const char *path, struct hd__report_run *run, struct hd_error *err)
{
    struct stat st;
    int32_t rc;
    char *inside = hd__format("%s%smetrics.jsonl", path, path[strlen(path) - 1] == '/' ? "" : "/");
    *run = (struct hd__report_run){
        .copies = json_array(), .events = json_array(), .reports = json_array(), .id = "", .name = ""};
    if (stat(path, &st))
        rc = hd_fail(err, HD_E_NOTFOUND, "%s is no run: %s; name a run's folder, as runs/NAME, or its metrics.jsonl",
                     path, strerror(errno));
    else if (S_ISDIR(st.st_mode) && access(inside, F_OK))
        rc = hd_fail(err, HD_E_NOTFOUND,
                     "%s is no run: it has no metrics.jsonl; name a run's folder, as runs/NAME, or the file that "
                     "metrics.jsonl of its job names",
                     path);
    else {
        run->path = hd__strdup(S_ISDIR(st.st_mode) ? inside : path);
        name_run(run);
        rc = read_file(run, err);
    }
    free(inside);
    if (rc)
        return rc;
    const char *id = json_string_value(json_object_get(run->start, "run"));
    const char *name =
        json_string_value(json_object_get(json_object_get(json_object_get(run->start, "job"), "job"), "name"));
    run->id = id ? id : "";
    run->name = name ? name : "";
    if (!run->start)
        hd__push(&run->faults, hd__format("%s: no line starts the run, so its job is unknown", run->path));
    list_folder(run);
    list_checkpoints(run);
    return HD_OK;
}

void hd__report_free(struct hd__report_run *run)
{
    for (uint32_t k = 0; k < run->n_fields; k++) {
        free(run->fields[k].name);
        free(run->fields[k].values);
    }
    for (uint32_t k = 0; k < run->faults.count; k++)
        free(run->faults.at[k]);
    hd__free_array(&run->faults);
    hd__free_array(&run->checkpoints);
    json_decref(run->start);
    json_decref(run->copies);
    json_decref(run->events);
    json_decref(run->reports);
    free(run->step);
    free(run->tokens);
    free(run->seconds);
    free(run->label);
    free(run->path);
    free(run->folder);
    *run = (struct hd__report_run){0};
}

const double *hd__report_values(const struct hd__report_run *run, const char *field)
{
    for (uint32_t k = 0; k < run->n_fields; k++)
        if (!strcmp(run->fields[k].name, field))
            return run->fields[k].values;
    return NULL;
}
