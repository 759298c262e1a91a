/* heddle sample: text from a trained model. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "cli/sample_output.h"
#include "core/base/file.h"
#include "service/train/sample.h"

enum { PROMPT_FILE_MOST = 64 << 20, SEQUENCE_STEP = 32 };

struct sample_request {
    struct hd__cli_weights weights;
    struct hd__cli_text_flags text_flags;
    const char *prompt[HD__CLI_VALUES], *stop[HD__CLI_VALUES];
    const char *prompt_file, *count, *tokens, *temperature, *top_k, *top_p, *seed, *samples_text;
    int n_prompts, n_stops, json, ignore_eos;
    int64_t samples;
    struct hd__train_sample_config config;
    struct hd__cli_text text;
    HD__ARRAY(struct hd__sample_prompt) prompts;
};

static int parse_number(const char *flag, const char *text, double low, double high, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (end != text && !*end && *out >= low && *out <= high)
        return HD__EXIT_DONE;
    return hd__cli_usage_error(&hd__command_sample, "%s %s: wanted a number from %g to %g", flag, text, low, high);
}

static int parse_whole(const char *flag, const char *text, int64_t low, int64_t high, int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (end != text && !*end && !errno && *out >= low && *out <= high)
        return HD__EXIT_DONE;
    return hd__cli_usage_error(&hd__command_sample, "%s %s: wanted a whole number from %" PRId64 " to %" PRId64, flag,
                               text, low, high);
}

static int parse(struct sample_request *r)
{
    int64_t seed = 0;
    const char *flag = r->count ? "--max-new" : "--tokens", *count = r->count ? r->count : r->tokens;
    int code;
    if (r->count && r->tokens)
        return hd__cli_usage_error(&hd__command_sample, "--tokens is another name of --max-new: leave one out");
    if ((code = parse_whole(flag, count ? count : "200", 1, 1000000000, &r->config.count)) ||
        (code = parse_number("--temperature", r->temperature, 0, 100, &r->config.temperature)) ||
        (code = parse_whole("--top-k", r->top_k, 0, 1000000000, &r->config.top_k)) ||
        (code = parse_number("--top-p", r->top_p, 0, 1, &r->config.top_p)) ||
        (code = parse_whole("--samples", r->samples_text, 1, 1000000, &r->samples)) ||
        (code = parse_whole("--seed", r->seed, 0, INT64_MAX - 1000000, &seed)))
        return code;
    r->config.seed = (uint64_t)seed;
    return r->config.top_p > 0 ? HD__EXIT_DONE
                               : hd__cli_usage_error(&hd__command_sample, "--top-p 0 keeps no token: wanted a number "
                                                                          "above 0; --temperature 0 is greedy");
}

/* ---- prompts */

/* A prompt of no tokens begins where a document does. */
static void begin_empty(const struct hd__cli_text *text, struct hd__ids *ids)
{
    int64_t first = 0;
    if (ids->count)
        return;
    if (text->kind == HD__CLI_TEXT_BYTES)
        first = '\n';
    else if (text->kind == HD__CLI_TEXT_TOKENIZER && text->tokenizer.info.bos >= 0)
        first = text->tokenizer.info.bos;
    else if (text->kind == HD__CLI_TEXT_TOKENIZER)
        first = HD__MAX(hd__tokenizer_eod(&text->tokenizer), 0);
    ids->at = hd__realloc(ids->at, sizeof *ids->at);
    ids->at[0] = (int32_t)first;
    ids->count = ids->room = 1;
}

static int32_t add_text(struct sample_request *r, const char *bytes, size_t count, struct hd_error *err)
{
    struct hd__sample_prompt p = {.text = hd__alloc(count + 1), .bytes = count};
    json_t *line = r->text.chat ? json_pack("{s:s%}", "prompt", bytes, count) : NULL;
    memcpy(p.text, bytes, count);
    int32_t rc = line           ? hd__cli_text_encode_line(&r->text, line, &p.ids, err)
                 : r->text.chat ? hd_fail(err, HD_E_INVALID, "a prompt for --chat has to be UTF-8")
                                : hd__cli_text_encode(&r->text, bytes, count, 1, &p.ids, err);
    json_decref(line);
    begin_empty(&r->text, &p.ids);
    hd__push(&r->prompts, p);
    return rc;
}

static int32_t add_line(struct sample_request *r, const json_t *line, struct hd_error *err)
{
    const json_t *prompt = json_object_get(line, "prompt");
    struct hd__sample_prompt p = {0};
    int32_t rc = hd__cli_text_encode_line(&r->text, line, &p.ids, err);
    p.bytes = json_string_length(prompt);
    p.text = hd__alloc(p.bytes + 1);
    if (p.bytes)
        memcpy(p.text, json_string_value(prompt), p.bytes);
    begin_empty(&r->text, &p.ids);
    hd__push(&r->prompts, p);
    return rc;
}

static int32_t read_lines(struct sample_request *r, char *text, size_t bytes, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    size_t number = 0;
    int32_t rc = HD_OK;
    for (char *at = text, *end = text + bytes, *next; at < end && !rc; at = next) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline : end) - at);
        json_error_t parse_error;
        next = newline ? newline + 1 : end;
        number++;
        if (strspn(at, " \t\r\n") >= length)
            continue;
        json_t *line = json_loadb(at, length, 0, &parse_error);
        rc = line ? add_line(r, line, &why) : hd_fail(&why, HD_E_INVALID, "not JSON: %s", parse_error.text);
        json_decref(line);
        if (rc)
            hd_fail(err, rc, "--prompt-file %s:%zu: %s", r->prompt_file, number, why.message);
    }
    return rc;
}

/* A file *.jsonl has a prompt a line; of any other the whole text is the prompt. */
static int32_t read_prompt_file(struct sample_request *r, struct hd_error *err)
{
    size_t name = strlen(r->prompt_file), bytes;
    FILE *file = hd__open_regular(r->prompt_file, "prompts", err);
    if (!file)
        return err->code;
    char *text = hd__alloc(PROMPT_FILE_MOST + 1);
    bytes = fread(text, 1, PROMPT_FILE_MOST + 1, file);
    int32_t rc = ferror(file) ? hd_fail(err, HD_E_IO, "%s: %s", r->prompt_file, strerror(errno)) : HD_OK;
    if (bytes > PROMPT_FILE_MOST)
        rc = hd_fail(err, HD_E_INVALID, "--prompt-file %s: is longer than 64 MiB", r->prompt_file);
    text[HD__MIN(bytes, PROMPT_FILE_MOST)] = 0;
    if (!rc && name > 6 && !strcmp(r->prompt_file + name - 6, ".jsonl"))
        rc = read_lines(r, text, bytes, err);
    else if (!rc)
        rc = add_text(r, text, bytes, err);
    if (!rc && !r->prompts.count)
        rc = hd_fail(err, HD_E_INVALID, "--prompt-file %s: has no prompt", r->prompt_file);
    fclose(file);
    free(text);
    return rc;
}

static int32_t read_prompts(struct sample_request *r, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = HD_OK;
    for (int i = 0; i < r->n_prompts && !rc; i++)
        if ((rc = add_text(r, r->prompt[i], strlen(r->prompt[i]), &why)))
            hd_fail(err, rc, "--prompt: %s", why.message);
    if (!rc && r->prompt_file)
        rc = read_prompt_file(r, err);
    return rc || r->prompts.count ? rc : add_text(r, "", 0, err);
}

/* ---- the model */

static int load(struct sample_request *r, const struct hd__cli_job_arguments *arguments, int64_t seq_len,
                struct hd__cli_job *loaded)
{
    char words[64];
    const char *more[] = {"data.batch=1", "data.micro_batch=1", words};
    struct hd_error err = HD_ERROR_INIT;
    snprintf(words, sizeof words, "data.seq_len=%" PRId64, seq_len);
    int code = hd__cli_load_single_rank(arguments, HD__COMPILE_LOGITS, more, seq_len ? 3 : 2, loaded);
    if (!code)
        code = hd__cli_check_weights(loaded, &r->weights);
    if (!code && hd__cli_text_open(loaded, &r->text_flags, &r->text, &err))
        code = hd__cli_print_error(&err, HD__EXIT_REFUSED);
    return code;
}

/* The sequence that the longest prompt and its answer take; 0: the job's own. The slots of an expert depend on the
 * sequence's length, so a model with experts keeps it. */
static int64_t shorter_sequence(const struct sample_request *r, const struct hd__cli_job *loaded)
{
    int64_t longest = 0, need;
    for (uint32_t i = 0; i < r->prompts.count; i++)
        longest = HD__MAX(longest, (int64_t)r->prompts.at[i].ids.count);
    need = (longest + r->config.count + SEQUENCE_STEP - 1) / SEQUENCE_STEP * SEQUENCE_STEP;
    return loaded->compiled->info.experts || need >= loaded->job->seq_len ? 0 : need;
}

static int load_model(struct sample_request *r, const struct hd__cli_job_arguments *arguments,
                      struct hd__cli_job *loaded)
{
    struct hd_error err = HD_ERROR_INIT;
    int code = load(r, arguments, 0, loaded);
    if (!code && read_prompts(r, &err))
        code = hd__cli_print_error(&err, HD__EXIT_REFUSED);
    int64_t shorter = code ? 0 : shorter_sequence(r, loaded);
    if (!shorter)
        return code;
    hd__cli_text_close(&r->text);
    hd__cli_unload_job(loaded);
    return load(r, arguments, shorter, loaded);
}

/* ---- generation */

static int32_t generate(struct sample_request *r, struct hd__train_session *session, struct hd_error *err)
{
    struct hd__sample_output out = {.text = &r->text,
                                    .stop = r->stop,
                                    .n_stops = (uint32_t)r->n_stops,
                                    .json = r->json,
                                    .ignore_eos = r->ignore_eos,
                                    .several = r->prompts.count * r->samples > 1};
    int32_t rc = hd__sample_output_open(&out, err);
    for (uint32_t i = 0; i < r->prompts.count && !rc; i++)
        for (int64_t k = 0; k < r->samples && !rc; k++) {
            struct hd__train_sample_config config = r->config;
            config.prompt = r->prompts.at[i].ids.at;
            config.n_prompt = (int64_t)r->prompts.at[i].ids.count;
            config.seed += (uint64_t)k;
            config.emit = hd__sample_output_token;
            config.user = &out;
            rc = hd__sample_output_begin(&out, &r->prompts.at[i], i, k, err);
            rc = rc ? rc : hd__train_sample(session, &config, err);
            rc = rc ? rc : hd__sample_output_end(&out, err);
        }
    hd__sample_output_close(&out);
    return rc;
}

static int run_model(struct sample_request *r, struct hd__cli_job *loaded)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__train_session session = {0};
    int64_t step;
    int32_t rc = hd__cli_open_weights(loaded, &r->weights, &session, &step, &err);
    if (!rc)
        rc = generate(r, &session, &err);
    hd__train_session_close(&session, 0);
    return rc ? hd__cli_print_load_error(&err) : HD__EXIT_DONE;
}

static int run(int argc, char **argv)
{
    struct sample_request r = {.weights = {.checkpoint = "auto", .name = "model"},
                               .temperature = "0.8",
                               .top_k = "0",
                               .top_p = "1",
                               .samples_text = "1",
                               .seed = "1"};
    const struct hd__cli_flag flags[] = {{"--checkpoint", &r.weights.checkpoint, NULL},
                                         {"--prompt", r.prompt, &r.n_prompts},
                                         {"--prompt-file", &r.prompt_file, NULL},
                                         {"--chat", &r.text_flags.chat, NULL},
                                         {"--max-new", &r.count, NULL},
                                         {"--tokens", &r.tokens, NULL},
                                         {"--temperature", &r.temperature, NULL},
                                         {"--top-k", &r.top_k, NULL},
                                         {"--top-p", &r.top_p, NULL},
                                         {"--stop", r.stop, &r.n_stops},
                                         {"--ignore-eos", NULL, &r.ignore_eos},
                                         {"--samples", &r.samples_text, NULL},
                                         {"--seed", &r.seed, NULL},
                                         {"--json", NULL, &r.json},
                                         {"--tokenizer", &r.text_flags.tokenizer, NULL},
                                         {"--use", &r.text_flags.use, NULL},
                                         {"--weights", &r.weights.name, NULL},
                                         {"--random-weights", NULL, &r.weights.random}};
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0};
    int code = hd__cli_job_arguments(&hd__command_sample, argc, argv, flags, HD__COUNT(flags), &arguments);
    if (!code)
        code = parse(&r);
    if (!code)
        code = load_model(&r, &arguments, &loaded);
    if (!code)
        code = run_model(&r, &loaded);
    for (uint32_t i = 0; i < r.prompts.count; i++) {
        free(r.prompts.at[i].text);
        free(r.prompts.at[i].ids.at);
    }
    hd__free_array(&r.prompts);
    hd__cli_text_close(&r.text);
    hd__cli_unload_job(&loaded);
    return code;
}

const struct hd__command hd__command_sample = {
    .name = "sample",
    .usage = "JOB [key=value ...] [--prompt TEXT ...] [--prompt-file FILE] [--max-new N] [--temperature T] [--top-k K] "
             "[--top-p P] [--stop TEXT|ID ...] [--ignore-eos] [--samples N] [--seed S] [--json] [--chat TEMPLATE] "
             "[--tokenizer FILE] [--use NAME] [--checkpoint PATH] [--weights NAME] [--random-weights]",
    .summary = "generate text",
    .help =
        "Loads the job's newest checkpoint (or --checkpoint; where there is none yet, the weights of model.from)\n"
        "on one rank and prints the prompt and what the model makes of it. Text goes through --tokenizer, or the\n"
        "tokenizer in model.from's folder. Without one a model with a vocabulary of 256 reads and writes bytes;\n"
        "others take and print token ids.\n\n"
        "  --prompt TEXT        where to begin; may be given several times\n"
        "  --prompt-file FILE   a text, or of a file *.jsonl lines {\"prompt\": TEXT} or {\"messages\": [...]}\n"
        "  --max-new N          how many tokens to generate at most (200); also --tokens\n"
        "  --temperature T      0 takes the likeliest token (0.8)\n"
        "  --top-k K            only the K likeliest tokens; 0: all (0)\n"
        "  --top-p P            only the likeliest tokens that make up P of the probability (1)\n"
        "  --stop TEXT|ID       ends where this text, or the token of this number, was generated; may be given\n"
        "                       several times. The tokenizer's end of text ends it, too\n"
        "  --ignore-eos         it does not\n"
        "  --samples N          so many of each prompt: number k draws as --seed S + k does (1)\n"
        "  --seed S             another seed, another text (1)\n"
        "  --json               {\"prompt\", \"sample\", \"prompt_ids\", \"ids\", \"text\", \"finish\"}, a line each\n"
        "  --chat TEMPLATE      the prompt is what a user says: chatml, llama3, mistral\n"
        "  --tokenizer FILE     tokenizer.json, tokenizer.model, *.tiktoken, or a folder with one; none: ids\n"
        "  --use NAME           the tokenizer's plug-in, where it is not to be found by the file\n"
        "  --checkpoint PATH    a checkpoint's folder or name, instead of the newest\n"
        "  --weights NAME       an average that a strategy keeps instead of the weights: ema\n"
        "  --random-weights     initial weights, as job.seed draws them\n",
    .example = "  heddle sample examples/kjv.yaml --prompt 'In the beginning' --max-new 300\n",
    .run = run,
};
