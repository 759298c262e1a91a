/* Ranks write what they have of each sequence into one file beside the result, which rank 0 makes of it in the end: as
 * with a checkpoint, all see the same folder. */
#include "cli/eval/eval_tokens.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/file.h"

/* NumPy's .npy, version 1.0; the "v" is NPY_HEAD less these 10 bytes. */
#define NPY_BEGINS "\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': ("
#define JSONL_BEGINS "{\"sequence\": "
#define ANSWER_BEGINS "{\"logprob\": "
#define PART_BEGINS "heddle eval part"
enum { PART_HEAD = sizeof PART_BEGINS - 1, NPY_SHAPE = sizeof NPY_BEGINS - 1, NPY_HEAD = 128, LINE_MOST = 64 << 20 };

struct part_file {
    char *path;
    int fd;
};

static int32_t fail_io(const char *path, struct hd_error *err)
{
    return hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
}

/* A magic is every array's, so the rest is looked at, too: float32 of two dimensions, none above 0. */
static int is_other_npy(const char *path)
{
    struct {
        char head[NPY_HEAD];
        float values[1024];
    } own = {0};
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(&own, 1, sizeof own, file) : 0;
    int end = n < NPY_HEAD, other = memcmp(own.head, NPY_BEGINS, HD__MIN(n, (size_t)NPY_SHAPE)) != 0;
    own.head[NPY_HEAD - 1] = 0;
    if (!end)
        sscanf(own.head + NPY_SHAPE, "%*d, %*d), }%n", &end);
    for (size_t i = 0; i < HD__COUNT(own.values); i++)
        other |= own.values[i] > 0;
    if (file)
        fclose(file);
    return other || !end;
}

/* Before any rank starts. */
static int32_t check_output(const char *option, const char *path, const char *begins, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    char *part = hd__format("%s.part", path);
    hd__make_folders(path);
    int32_t rc = hd__output_check(path, begins, &why);
    if (!rc && !strcmp(begins, NPY_BEGINS) && is_other_npy(path))
        rc = hd_fail(&why, HD_E_INVALID,
                     "%s is there, and heddle did not write it: name another file, or move this one away", path);
    if (!rc)
        rc = hd__output_check(part, PART_BEGINS, &why);
    free(part);
    return rc ? hd_fail(err, rc, "%s: %s", option, why.message) : HD_OK;
}

/* Rank 0 creates it, of this size and of zeros; the others open it once it is there. */
static int32_t open_part(struct hd__train_session *s, const char *result, int64_t bytes, struct part_file *part,
                         struct hd_error *err)
{
    int leader = s->env->rank == 0;
    int32_t rc = HD_OK;
    part->path = hd__format("%s.part", result);
    part->fd = -1;
    if (leader) {
        hd__make_folders(part->path);
        FILE *file = hd__output_create(part->path, PART_BEGINS, err);
        if (file)
            fputs(PART_BEGINS, file);
        rc = file ? hd__output_close(file, part->path, err) : err->code;
    }
    if (!rc && !leader)
        rc = hd__exec_barrier(s->exec, err);
    if (!rc && ((part->fd = open(part->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW)) < 0 ||
                (leader && ftruncate(part->fd, PART_HEAD + bytes))))
        rc = fail_io(part->path, err);
    return rc || !leader ? rc : hd__exec_barrier(s->exec, err);
}

static int32_t copy_at(const struct part_file *part, void *data, size_t bytes, int64_t offset, int writes,
                       struct hd_error *err)
{
    for (size_t done = 0; done < bytes;) {
        char *at = (char *)data + done;
        off_t to = (off_t)(PART_HEAD + offset + (int64_t)done);
        ssize_t n = writes ? pwrite(part->fd, at, bytes - done, to) : pread(part->fd, at, bytes - done, to);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail_io(part->path, err);
        done += (size_t)n;
    }
    return HD_OK;
}

static void close_part(struct hd__train_session *s, struct part_file *part)
{
    if (part->fd >= 0) {
        close(part->fd);
        if (s->env->rank == 0)
            unlink(part->path);
    }
    free(part->path);
}

/* As of a mean loss; JSON has no other word than null. */
static void warn_of_broken(const char *path, int64_t broken, const char *word)
{
    if (broken)
        hd__log(HD_LOG_WARN, NULL,
                "%s: %" PRId64 " log-likelihood%s not finite (%s): precision.compute overflows (fp32 has more room), "
                "or these weights are broken",
                path, broken, broken == 1 ? " is" : "s are", word);
}

/* ---- every token */

static int is_jsonl(const char *path)
{
    size_t n = strlen(path);
    return n > 6 && !strcmp(path + n - 6, ".jsonl");
}

static const char *begins(const char *path)
{
    return is_jsonl(path) ? JSONL_BEGINS : NPY_BEGINS;
}

int32_t hd__eval_per_token_check(const char *path, struct hd_error *err)
{
    size_t n = strlen(path);
    if (!is_jsonl(path) && (n < 5 || strcmp(path + n - 4, ".npy")))
        return hd_fail(err, HD_E_INVALID, "--per-token %s: wanted a file *.npy or *.jsonl", path);
    return check_output("--per-token", path, begins(path), err);
}

struct per_token {
    struct part_file part;
    int64_t seq_len;
};

static int32_t write_losses(void *user, const struct hd__train_losses_row *row, struct hd_error *err)
{
    const struct per_token *t = user;
    float *values = hd__alloc((size_t)row->count * sizeof *values);
    int32_t rc = HD_OK;
    for (int64_t n = 0; n < row->count; n++)
        values[n] = -row->loss[n];
    for (int64_t n = 0, m; n < row->count && !rc; n = m) {
        for (m = n + 1; m < row->count && row->position[m] == row->position[m - 1] + 1;)
            m++;
        rc = copy_at(&t->part, values + n, (size_t)(m - n) * sizeof *values,
                     (row->sequence * t->seq_len + row->position[n]) * (int64_t)sizeof *values, 1, err);
    }
    free(values);
    return rc;
}

static void write_npy_head(FILE *file, int64_t rows, int64_t columns)
{
    char shape[64];
    snprintf(shape, sizeof shape, "%" PRId64 ", %" PRId64 "), }", rows, columns);
    fwrite(NPY_BEGINS, 1, NPY_SHAPE, file);
    fprintf(file, "%-*s\n", NPY_HEAD - NPY_SHAPE - 1, shape);
}

static void write_json_row(FILE *file, int64_t sequence, const float *values, int64_t count)
{
    fprintf(file, JSONL_BEGINS "%" PRId64 ", \"loglikelihoods\": [", sequence);
    for (int64_t n = 0; n < count; n++)
        if (isfinite(values[n]))
            fprintf(file, "%s%.9g", n ? ", " : "", (double)values[n]);
        else
            fprintf(file, "%snull", n ? ", " : "");
    fputs("]}\n", file);
}

static int32_t write_result(const struct per_token *t, const char *path, int64_t sequences, struct hd_error *err)
{
    FILE *file = hd__output_create(path, begins(path), err);
    float *values = hd__alloc((size_t)t->seq_len * sizeof *values);
    int32_t rc = file ? HD_OK : err->code;
    int64_t broken = 0;
    if (!rc && !is_jsonl(path))
        write_npy_head(file, sequences, t->seq_len);
    for (int64_t i = 0; i < sequences && !rc; i++) {
        rc = copy_at(&t->part, values, (size_t)t->seq_len * sizeof *values, i * t->seq_len * (int64_t)sizeof *values, 0,
                     err);
        for (int64_t n = 0; n < t->seq_len && !rc; n++)
            broken += isinf(values[n]) != 0;
        if (!rc && is_jsonl(path))
            write_json_row(file, i, values, t->seq_len);
        else if (!rc)
            fwrite(values, sizeof *values, (size_t)t->seq_len, file);
    }
    free(values);
    warn_of_broken(path, broken, is_jsonl(path) ? "null" : "-inf");
    int32_t closed = file ? hd__output_close(file, path, rc ? &(struct hd_error)HD_ERROR_INIT : err) : HD_OK;
    return rc ? rc : closed;
}

int32_t hd__eval_per_token(struct hd__train_session *s, int32_t part, int64_t sequences, const char *path,
                           struct hd_error *err)
{
    struct per_token t = {.seq_len = s->compiled->job->seq_len};
    struct hd__train_losses_config config = {.sequences = sequences, .visit = write_losses, .user = &t};
    int32_t rc = hd__train_feed_open(s->compiled, s->env->rank, part, &config.feed, err);
    if (!rc)
        rc = hd__train_feed_seek(config.feed, 0, err);
    if (!rc)
        rc = open_part(s, path, sequences * t.seq_len * (int64_t)sizeof(float), &t.part, err);
    if (!rc)
        rc = hd__train_token_losses(s, &config, err);
    if (!rc)
        rc = hd__exec_barrier(s->exec, err);
    if (!rc && s->env->rank == 0)
        rc = write_result(&t, path, sequences, err);
    close_part(s, &t.part);
    hd__train_feed_close(config.feed);
    return rc;
}

/* ---- requests: rows of them */

static void add_row(struct hd__eval_requests *r, size_t begin, size_t end, size_t counted, int64_t seq_len)
{
    struct hd__eval_row row = {.first = begin, .request = r->tokens.count - 1};
    if (end - begin > (size_t)seq_len + 1)
        row.first = end - (size_t)seq_len - 1;
    row.count = (int64_t)(end - row.first) - 1;
    row.counted = (int64_t)(counted - row.first) - 1;
    hd__push(&r->rows, row);
    r->tokens.at[row.request] += (int64_t)(end - counted);
}

/* A context of the last tokens that have room before the continuation. Blanks at its end are the continuation's, since
 * tokens begin with them; the continuation's tokens are those of both together that the context does not have. */
static int32_t add_pair(struct hd__eval_requests *r, const struct hd__cli_text *text, const json_t *context,
                        const json_t *continuation, int64_t seq_len, struct hd_error *err)
{
    const char *words = json_string_value(context), *more = json_string_value(continuation);
    size_t begin = r->pool.count, n = json_string_length(context), n_more = json_string_length(continuation), split;
    struct hd__ids alone = {0};
    int32_t rc = HD_OK;
    while (text->kind != HD__CLI_TEXT_IDS && n && isspace((unsigned char)words[n - 1]))
        n--;
    char *all = hd__format("%s%s%s", words, text->kind == HD__CLI_TEXT_IDS ? " " : "", more);
    size_t rest = strlen(all) - n; /* of a context of blanks all */
    if (strlen(words) != json_string_length(context) || strlen(more) != n_more)
        rc = hd_fail(err, HD_E_INVALID, "a NUL character in the text");
    if (!rc && n)
        rc = hd__cli_text_encode(text, words, n, 1, &alone, err);
    if (!alone.count)
        hd__cli_text_add_first(text, &r->pool);
    split = alone.count ? begin + alone.count : r->pool.count;
    if (!rc && alone.count)
        rc = hd__cli_text_encode(text, all, strlen(all), 1, &r->pool, err);
    else if (!rc)
        rc = hd__cli_text_encode(text, all + strlen(all) - rest, rest, 0, &r->pool, err);
    if (!rc && split >= r->pool.count)
        rc = hd_fail(err, HD_E_INVALID, "the continuation has no token of its own: leave it out");
    if (!rc && r->pool.count - split > (size_t)seq_len)
        rc = hd_fail(err, HD_E_INVALID, "the continuation has %zu tokens, and data.seq_len is %lld: raise that",
                     r->pool.count - split, (long long)seq_len);
    if (!rc)
        add_row(r, begin, r->pool.count, split, seq_len);
    r->cut += !rc && r->pool.count - begin > (size_t)seq_len + 1;
    free(alone.at);
    free(all);
    return rc;
}

/* All tokens of a text, in windows: each token is predicted once, the last window from as much context as has room. */
static int32_t add_rolling(struct hd__eval_requests *r, const struct hd__cli_text *text, const json_t *string,
                           int64_t seq_len, struct hd_error *err)
{
    size_t begin = r->pool.count, room = (size_t)seq_len;
    hd__cli_text_add_first(text, &r->pool);
    int32_t rc = hd__cli_text_encode(text, json_string_value(string), json_string_length(string), 0, &r->pool, err);
    for (size_t at = begin + 1; at < r->pool.count && !rc;) {
        size_t end = HD__MIN(at + room, r->pool.count);
        add_row(r, end == r->pool.count ? begin : at - 1, end, at, seq_len);
        at = end;
    }
    return rc;
}

static int32_t add_request(struct hd__eval_requests *r, const struct hd__cli_text *text, const json_t *line,
                           int64_t seq_len, struct hd_error *err)
{
    const json_t *context = json_object_get(line, "context"), *continuation = json_object_get(line, "continuation"),
                 *whole = json_object_get(line, "text");
    hd__push(&r->tokens, 0);
    if (json_is_string(whole) && !context && !continuation)
        return add_rolling(r, text, whole, seq_len, err);
    if (!whole && json_is_string(context) && json_is_string(continuation))
        return add_pair(r, text, context, continuation, seq_len, err);
    return hd_fail(err, HD_E_INVALID, "wanted {\"context\": TEXT, \"continuation\": TEXT} or {\"text\": TEXT}");
}

int32_t hd__eval_requests_read(struct hd__eval_requests *r, const struct hd__cli_text *text, int64_t seq_len,
                               struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    FILE *file = hd__open_regular(r->path, "requests", err);
    char *line = NULL;
    size_t room = 0, number = 0;
    ssize_t n;
    int32_t rc = file ? HD_OK : err->code;
    while (!rc && (n = getline(&line, &room, file)) > 0) {
        json_error_t parse_error;
        json_t *object = NULL;
        number++;
        if (strspn(line, " \t\r\n") >= (size_t)n)
            continue;
        if (n > LINE_MOST)
            rc = hd_fail(&why, HD_E_INVALID, "a line of more than 64 MiB");
        else if (!(object = json_loadb(line, (size_t)n, 0, &parse_error)))
            rc = hd_fail(&why, HD_E_INVALID, "not JSON: %s", parse_error.text);
        else
            rc = add_request(r, text, object, seq_len, &why);
        if (rc)
            hd_fail(err, rc, "--requests %s:%zu: %s", r->path, number, why.message);
        json_decref(object);
    }
    if (!rc && !r->tokens.count)
        rc = hd_fail(err, HD_E_INVALID, "--requests %s: has no request", r->path);
    if (!rc && r->cut)
        hd__log(HD_LOG_WARN, NULL,
                "--requests %s: %u of %u requests lose the beginning of their context, as the model sees the last %lld "
                "tokens (data.seq_len)",
                r->path, r->cut, r->tokens.count, (long long)seq_len);
    free(line);
    if (file)
        fclose(file);
    return rc ? rc : check_output("--to", r->to, ANSWER_BEGINS, err);
}

void hd__eval_requests_free(struct hd__eval_requests *r)
{
    free(r->pool.at);
    hd__free_array(&r->rows);
    hd__free_array(&r->tokens);
}

/* ---- requests: answers. Of each row the file has a sum and whether all were the likeliest, of each part of the
 * sequence. */

struct answering {
    const struct hd__eval_requests *requests;
    struct part_file part;
    int64_t parts, mine;
};

static int32_t request_token(void *user, int64_t sequence, int64_t position, int labels)
{
    const struct answering *a = user;
    const struct hd__eval_row *row = &a->requests->rows.at[HD__MIN(sequence, (int64_t)a->requests->rows.count - 1)];
    if (position >= row->count || sequence >= a->requests->rows.count)
        return labels ? -1 : 0;
    if (labels && position < row->counted)
        return -1;
    return a->requests->pool.at[row->first + (size_t)position + (labels != 0)];
}

static int32_t write_answer(void *user, const struct hd__train_losses_row *row, struct hd_error *err)
{
    const struct answering *a = user;
    double answer[2] = {0, 1};
    for (int64_t n = 0; n < row->count; n++)
        if (request_token(user, row->sequence, row->position[n], 1) >= 0) { /* not by the loss: a model may give NaN */
            answer[0] -= (double)row->loss[n];
            answer[1] *= row->likeliest[n];
        }
    return copy_at(&a->part, answer, sizeof answer, (row->sequence * a->parts + a->mine) * (int64_t)sizeof answer, 1,
                   err);
}

static int32_t write_answers(const struct answering *a, struct hd_error *err)
{
    const struct hd__eval_requests *r = a->requests;
    FILE *file = hd__output_create(r->to, ANSWER_BEGINS, err);
    int32_t rc = file ? HD_OK : err->code;
    double answer[2];
    int64_t broken = 0;
    for (uint32_t i = 0, at = 0; i < r->tokens.count && !rc; i++) {
        double sum = 0;
        int likeliest = 1;
        for (; at < r->rows.count && r->rows.at[at].request == i; at++)
            for (int64_t k = 0; k < a->parts && !rc; k++) {
                rc = copy_at(&a->part, answer, sizeof answer, (at * a->parts + k) * (int64_t)sizeof answer, 0, err);
                sum += answer[0];
                likeliest &= answer[1] > 0;
            }
        if (isfinite(sum))
            fprintf(file, ANSWER_BEGINS "%.9g", sum);
        else
            fprintf(file, ANSWER_BEGINS "null");
        broken += !isfinite(sum);
        fprintf(file, ", \"is_greedy\": %s, \"tokens\": %" PRId64 "}\n", likeliest ? "true" : "false", r->tokens.at[i]);
    }
    warn_of_broken(r->to, broken, "null");
    int32_t closed = file ? hd__output_close(file, r->to, rc ? &(struct hd_error)HD_ERROR_INIT : err) : HD_OK;
    return rc ? rc : closed;
}

int32_t hd__eval_requests_run(struct hd__train_session *s, const struct hd__eval_requests *r, struct hd_error *err)
{
    struct answering a = {
        .requests = r, .parts = s->compiled->mesh.size[HD_AXIS_CP], .mine = hd__exec_coord(s->exec)[HD_AXIS_CP]};
    struct hd__train_losses_config config = {
        .token = request_token, .sequences = r->rows.count, .visit = write_answer, .user = &a};
    int32_t rc = open_part(s, r->to, (int64_t)r->rows.count * a.parts * 2 * (int64_t)sizeof(double), &a.part, err);
    if (!rc)
        rc = hd__train_token_losses(s, &config, err);
    if (!rc)
        rc = hd__exec_barrier(s->exec, err);
    if (!rc && s->env->rank == 0)
        rc = write_answers(&a, err);
    close_part(s, &a.part);
    return rc;
}
