/* Dumps of ranks -> one report: diagnosed, written, printed. Runs in a thread of the server, of the launcher or of
 * rank 0. */
#include "service/report/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/file.h"
#include "core/base/option.h"
#include "service/report/diagnose.h"

/* ---- putting together */

/* A rank's dump, or why there is none. */
static json_t *dump_json(int32_t rank, const char *text, uint8_t state)
{
    static const char *const states[] = {HD__REPORT_NEVER_CAME, "silent", "left", "dead"};
    json_t *dump = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (json_is_object(dump)) {
        json_object_set_new(dump, "rank", json_integer(rank)); /* replaces that of the dump */
        json_object_set_new(dump, "state", json_string(state == HD__RANK_DEAD ? "dead" : "answered"));
        return dump;
    }
    json_decref(dump);
    return json_pack("{s:i, s:s}", "rank", rank, "state", states[state & 3]);
}

static json_t *report_json(const struct hd__reporter *reporter, const struct hd__rank_dumps *g)
{
    json_t *ranks = json_array(), *end = json_null(), *report;
    char when[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    for (int32_t r = 0; r < g->size; r++)
        json_array_append_new(ranks, dump_json(r, g->dump[r], g->state[r]));
    if (g->code != HD_OK)
        end = json_pack("{s:s, s:i, s:o}", "code", hd_code_name(g->code), "rank", g->rank, "cause",
                        hd__json_text(g->cause));
    report = json_pack("{s:s, s:s, s:s, s:i, s:o, s:o}", "kind", "heddle report", "job", reporter->job, "time", when,
                       "ranks", g->size, "end", end, "rank", ranks);
    return report;
}

static void add_diagnosis(json_t *report, const struct hd__report_diagnosis *diagnosis)
{
    json_t *out = json_pack("{s:s, s:i, s:o}", "kind", hd__report_diagnosis_name(diagnosis->kind), "rank",
                            diagnosis->rank, "words", hd__json_text(diagnosis->summary));
    if (diagnosis->op_rank >= 0)
        json_object_update_new(out, json_pack("{s:{s:i, s:I}}", "operation", "of_rank", diagnosis->op_rank, "n",
                                              (json_int_t)diagnosis->op_number));
    json_object_set_new(report, "verdict", out);
}

/* ---- writing */

/* report-20261121-141203.json; a second one of that second gets a number. */
static int open_file(const char *folder, const char *suffix, char path[512])
{
    time_t now = time(NULL);
    struct tm local;
    char when[32];
    strftime(when, sizeof when, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
    for (int n = 0; n < 100; n++) {
        char more[16] = "";
        if (n)
            snprintf(more, sizeof more, ".%d", n);
        snprintf(path, 512, "%.400s/report-%s%s%s.json", folder, when, suffix, more);
        if (!n)
            hd__make_folders(path);
        int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

static int write_report(const struct hd__reporter *reporter, const json_t *report, const char *suffix, char path[512])
{
    int fd = open_file(reporter->folder, suffix, path);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w"); /* json_dumpfd writes each token by itself */
    if (!file) {
        hd__log(HD_LOG_WARN, NULL, "the report cannot be written: %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return 0;
    }
    if (json_dumpf(report, file, JSON_INDENT(1)) | fclose(file))
        hd__log(HD_LOG_WARN, NULL, "%s: the report is incomplete: %s", path, strerror(errno));
    return 1;
}

/* One write, so that the lines stay together. */
static void print_text(struct hd__text *text)
{
    hd__printable(text->at);
    for (size_t at = 0; at < text->length;) {
        ssize_t n = write(STDERR_FILENO, text->at + at, text->length - at);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    hd__text_free(text);
}

/* The cause first: a launcher may kill this process while it writes the file. */
static void print_and_write(const struct hd__reporter *reporter, const json_t *report)
{
    struct hd__text cause = {0}, last = {0};
    char path[512];
    hd__text_add(&cause, "error: ");
    hd__report_summary(report, &cause);
    print_text(&cause);
    if (write_report(reporter, report, "", path)) {
        hd__text_add(&last, "  report: %s (`heddle debug` shows the operations side by side)\n", path);
        print_text(&last);
    }
}

/* Errors before the first step need no report. */
static int has_begun(const json_t *report)
{
    const json_t *dump;
    size_t i;
    json_array_foreach(json_object_get(report, "rank"), i,
                       dump) if (json_integer_value(json_object_get(dump, "step")) > 0) return 1;
    return 0;
}

static int32_t check_running_job(const struct hd__reporter *reporter, const struct hd__report_diagnosis *diagnosis,
                                 int32_t *rank, char cause[512])
{
    /* Dumps are taken at different times; but a wait cycle that was complete before the first was requested lasts
     * for ever. */
    if (diagnosis->kind == HD__DIAGNOSIS_MISMATCH ||
        (diagnosis->kind == HD__DIAGNOSIS_CYCLE && diagnosis->waited > HD__DUMP_SECONDS)) {
        *rank = diagnosis->rank;
        snprintf(cause, 512, "%.511s", diagnosis->summary);
        return HD_E_MISMATCH;
    }
    /* One that waits for others gives up by itself; one that is inside a call does not. */
    if (diagnosis->kind == HD__DIAGNOSIS_LATE && diagnosis->op_rank < 0 && diagnosis->waited >= reporter->timeout) {
        *rank = diagnosis->rank;
        snprintf(cause, 512, "%.400s (comm.timeout: %g s)", diagnosis->summary, reporter->timeout);
        return HD_E_TIMEOUT;
    }
    if (diagnosis->waited >= reporter->late_after)
        hd__log(HD_LOG_WARN, NULL, "%s", diagnosis->summary);
    return HD_OK;
}

int32_t hd__report_on_dumps(void *user, const struct hd__rank_dumps *g, int32_t *rank, char cause[512])
{
    const struct hd__reporter *reporter = user;
    struct hd__report_diagnosis diagnosis;
    int32_t code = HD_OK, answered = 0;
    while (answered < g->size && !g->dump[answered])
        answered++;
    /* a rank's death is reported even if no other is left to answer, or none has connected yet */
    if (answered == g->size && g->code != HD_E_PEER)
        return HD_OK;
    json_t *report = report_json(reporter, g);
    hd__report_diagnose(report, &diagnosis);
    if (g->code == HD_OK) {
        code = check_running_job(reporter, &diagnosis, rank, cause);
    } else if (diagnosis.kind != HD__DIAGNOSIS_FAILED || has_begun(report)) {
        add_diagnosis(report, &diagnosis);
        print_and_write(reporter, report);
    }
    json_decref(report);
    return code;
}

void hd__report_write_local(const struct hd__reporter *reporter, int32_t rank, int32_t size, const char *dump,
                            int32_t lost, const char *cause)
{
    const char **dumps = hd__alloc((size_t)size * sizeof *dumps);
    uint8_t *state = hd__alloc((size_t)size);
    struct hd__rank_dumps g = {
        .size = size, .code = HD_E_PEER, .rank = lost, .cause = cause, .dump = dumps, .state = state};
    struct hd__report_diagnosis diagnosis;
    char path[512], suffix[32];
    memset(state, HD__RANK_CONNECTED, (size_t)size);
    if (lost >= 0) /* else the launcher */
        state[lost] = HD__RANK_DEAD;
    dumps[rank] = dump;
    json_t *report = report_json(reporter, &g);
    hd__report_diagnose(report, &diagnosis);
    add_diagnosis(report, &diagnosis);
    snprintf(suffix, sizeof suffix, "-rank%d", rank);
    if (write_report(reporter, report, suffix, path))
        hd__log(HD_LOG_ERROR, NULL, "what this rank was doing: %s (give `heddle debug` the files of all ranks)", path);
    json_decref(report);
    free(dumps);
    free(state);
}

/* ---- reading */

static int is_report(const json_t *report)
{
    const char *kind = json_string_value(json_object_get(report, "kind"));
    json_int_t ranks = json_integer_value(json_object_get(report, "ranks"));
    const json_t *dumps = json_object_get(report, "rank"), *dump;
    size_t i;
    json_array_foreach(dumps, i, dump) if (!json_is_integer(json_object_get(dump, "rank"))) return 0;
    return kind && !strcmp(kind, "heddle report") && ranks > 0 && ranks < 1 << 24 && json_is_array(dumps);
}

#define REPORTS "; a failed job prints the path of its report: report-TIME.json, beside its metrics"
#define NO_REPORT "not a heddle report" REPORTS

static int32_t load_file(const char *path, json_t **report, struct hd_error *err)
{
    struct hd_error closed = HD_ERROR_INIT;
    FILE *file = hd__open_regular(path, "report", &closed);
    json_error_t why;
    int32_t rc = HD_OK;
    if (!file)
        return hd_fail(err, HD_E_INVALID, "%s" REPORTS, closed.message);
    *report = json_loadf(file, JSON_REJECT_DUPLICATES, &why);
    fclose(file);
    if (!*report)
        rc = hd_fail(err, HD_E_INVALID, "%s:%d:%d: %s: " NO_REPORT, path, why.line, why.column, why.text);
    else if (!is_report(*report))
        rc = hd_fail(err, HD_E_INVALID, "%s: " NO_REPORT, path);
    if (rc)
        json_decref(*report);
    return rc;
}

int32_t hd__report_load(const char *const *files, size_t n, json_t **report, struct hd_error *err)
{
    json_t *all = NULL, *mine;
    size_t at;
    int32_t rc = HD_OK;
    for (size_t i = 0; i < n && !rc; i++) {
        json_t *one = NULL;
        rc = load_file(files[i], &one, err);
        if (rc)
            break;
        if (!all)
            all = json_incref(one);
        /* add the dumps that the first report lacks */
        json_array_foreach(json_object_get(all, "rank"), at, mine)
        {
            json_t *theirs = json_array_get(json_object_get(one, "rank"), at);
            if (json_object_get(theirs, "ops") && !json_object_get(mine, "ops"))
                json_array_set(json_object_get(all, "rank"), at, theirs);
        }
        json_decref(one);
    }
    if (!rc && n > 1) { /* more dumps may give a better diagnosis */
        struct hd__report_diagnosis diagnosis;
        hd__report_diagnose(all, &diagnosis);
        add_diagnosis(all, &diagnosis);
    }
    if (rc)
        json_decref(all);
    else
        *report = all;
    return rc;
}
