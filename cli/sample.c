/* heddle sample: text from a trained model. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/ranks.h"
#include "cli/sample_output.h"
#include "core/base/file.h"
#include "service/train/sample.h"

enum { PROMPT_FILE_MOST = 64 << 20, SEQUENCE_STEP = 32 };

struct sample_request {
    struct hd__cli_weights weights;
    struct hd__cli_text_flags text_flags;
    const char *prompt[HD__CLI_VALUES], *stop[HD__CLI_VALUES];
    const char *prompt_file, *count, *tokens, *temperature, *top_k, *top_p, *seed, *samples_text;
    int n_prompts, n_stops, json, ignore_eos, single_rank, no_cache;
    int64_t samples;
    struct hd__train_sample_config config;
    struct hd__cli_job loaded;
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

static int parse(struct sample_request *r)
{
    int64_t seed = 0;
    const char *flag = r->count ? "--max-new" : "--tokens";
    const char *count = r->count ? r->count : r->tokens ? r->tokens : "200";
    int code;
    if (r->count && r->tokens)
        return hd__cli_usage_error(&hd__command_sample, "--tokens is another name of --max-new: leave one out");
    if ((code = hd__cli_parse_whole(&hd__command_sample, flag, count, 1, 1000000000, &r->config.count)) ||
        (code = parse_number("--temperature", r->temperature, 0, 100, &r->config.temperature)) ||
        (code = hd__cli_parse_whole(&hd__command_sample, "--top-k", r->top_k, 0, 1000000000, &r->config.top_k)) ||
        (code = parse_number("--top-p", r->top_p, 0, 1, &r->config.top_p)) ||
        (code = hd__cli_parse_whole(&hd__command_sample, "--samples", r->samples_text, 1, 1000000, &r->samples)) ||
        (code = hd__cli_parse_whole(&hd__command_sample, "--seed", r->seed, 0, INT64_MAX - 1000000, &seed)))
        return code;
    r->config.seed = (uint64_t)seed;
    int is_cold = r->config.temperature == 0;
    char idle[64];
    snprintf(idle, sizeof idle, "%s%s%s%s", is_cold && r->config.top_k ? ", --top-k" : "",
             r->config.top_p < 1 ? ", --top-p" : "", r->samples > 1 ? ", --samples above 1" : "",
             seed != 1 ? ", --seed" : "");
    if ((is_cold || r->config.top_k == 1) && *idle)
        hd__log(HD_LOG_WARN, NULL, "%s %s no effect with %s, which takes the likeliest token", idle + 2,
                strchr(idle + 2, ',') ? "have" : "has", is_cold ? "--temperature 0" : "--top-k 1");
    return r->config.top_p > 0 ? HD__EXIT_DONE
                               : hd__cli_usage_error(&hd__command_sample, "--top-p 0 keeps no token: wanted a number "
                                                                          "above 0; --temperature 0 is greedy");
}

/* ---- prompts */

static int32_t add_text(struct sample_request *r, const char *bytes, size_t count, struct hd_error *err)
{
    struct hd__sample_prompt p = {.text = hd__alloc(count + 1), .bytes = count};
    const int is_text = r->text.kind == HD__CLI_TEXT_TOKENIZER;
    json_t *line = is_text ? json_pack("{s:s%}", "prompt", bytes, count) : NULL; /* NULL where it is not UTF-8 */
    memcpy(p.text, bytes, count);
    int32_t rc = line && r->text.chat ? hd__cli_text_encode_line(&r->text, line, &p.ids, err)
                 : is_text && !line   ? hd_fail(err, HD_E_INVALID, "is no text: a prompt is UTF-8")
                                      : hd__cli_text_encode(&r->text, bytes, count, 1, &p.ids, err);
    json_decref(line);
    if (!p.ids.count)
        hd__cli_text_add_first(&r->text, &p.ids);
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
    if (!p.ids.count)
        hd__cli_text_add_first(&r->text, &p.ids);
    hd__push(&r->prompts, p);
    return rc;
}

/* Options of other programs' requests; NULL: the line has none. */
static const char *find_option(const json_t *line)
{
    static const char *const keys[] = {"temperature", "top_p", "top_k", "max_tokens", "max_new_tokens", "stop", "seed"};
    for (size_t i = 0; i < HD__COUNT(keys); i++)
        if (json_object_get(line, keys[i]) && !json_is_null(json_object_get(line, keys[i])))
            return keys[i];
    return NULL;
}

static int32_t read_lines(struct sample_request *r, char *text, size_t bytes, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    const char *idle = NULL;
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
        if (!idle && (idle = find_option(line)))
            hd__log(HD_LOG_WARN, NULL,
                    "--prompt-file %s:%zu: %s is not read: --temperature, --max-new, --stop and the like are of all "
                    "prompts",
                    r->prompt_file, number, idle);
        rc = line ? add_line(r, line, &why) : hd_fail(&why, HD_E_INVALID, "not JSON: %s", parse_error.text);
        json_decref(line);
        if (rc)
            hd_fail(err, rc, "--prompt-file %s:%zu: %s", r->prompt_file, number, why.message);
    }
    return rc;
}

/* A file of JSON lines, by its name, has a prompt a line; of any other the whole text is the prompt. */
static int32_t read_prompt_file(struct sample_request *r, struct hd_error *err)
{
    const char *name = r->prompt_file;
    struct hd_error why = HD_ERROR_INIT;
    size_t bytes;
    char *text = hd__read_text(name, "prompt file", PROMPT_FILE_MOST, &bytes, err);
    int32_t rc = text ? HD_OK : err->code;
    if (!rc && (!memcmp(text, "\x1f\x8b", 2) || !memcmp(text, "\x28\xb5\x2f\xfd", 4)))
        rc = hd_fail(err, HD_E_UNSUPPORTED, "--prompt-file %s: is packed (gzip, zstd): unpack it first", name);
    else if (!rc && (hd__ends_with(name, ".jsonl") || hd__ends_with(name, ".ndjson") || hd__ends_with(name, ".json")))
        rc = read_lines(r, text, bytes, err);
    else if (!rc && (rc = add_text(r, text, bytes, &why)))
        hd_fail(err, rc, "--prompt-file %s: %s", name, why.message);
    if (!rc && !r->prompts.count)
        rc = hd_fail(err, HD_E_INVALID, "--prompt-file %s: has no prompt", r->prompt_file);
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
    if (rc || r->prompts.count)
        return rc;
    struct stat in;
    if (!fstat(STDIN_FILENO, &in) && (S_ISFIFO(in.st_mode) || S_ISREG(in.st_mode)))
        hd__log(HD_LOG_WARN, NULL, "standard input is not read: give --prompt TEXT or --prompt-file FILE");
    return add_text(r, "", 0, err);
}

/* ---- the model */

/* On the mesh each data rank has a sequence, all the same; a pipeline keeps its number of micro-batches, which its
 * schedule may need. */
static int load(struct sample_request *r, const struct hd__cli_job_arguments *arguments, int64_t seq_len)
{
    char batch[64], length[64];
    const char *more[] = {"data.micro_batch=1", "data.micro_batches=auto", batch, length};
    const uint32_t flags = HD__COMPILE_EVALUATION | HD__COMPILE_LOGITS | (r->no_cache ? 0 : HD__COMPILE_DECODE);
    int64_t ranks = hd__cli_launched_ranks(), sequences = 1;
    struct hd__cli_job asked;
    struct hd_error err = HD_ERROR_INIT;
    int code = r->single_rank ? HD__EXIT_DONE : hd__cli_resolve_job(arguments, ranks, &asked);
    if (!code && !r->single_rank) {
        const struct hd__job *job = asked.job;
        sequences = job->mesh[HD_AXIS_DP_REPLICATE] * job->mesh[HD_AXIS_DP_SHARD] * job->mesh[HD_AXIS_EP] *
                    (job->mesh[HD_AXIS_PP] > 1 ? job->accumulation : 1);
    }
    if (!r->single_rank)
        hd__cli_unload_job(&asked);
    snprintf(batch, sizeof batch, "data.batch=%" PRId64, sequences);
    snprintf(length, sizeof length, "data.seq_len=%" PRId64, seq_len);
    if (!code)
        code = r->single_rank
                   ? hd__cli_load_single_rank(arguments, flags, more, HD__COUNT(more) - !seq_len, &r->loaded)
                   : hd__cli_load_with(arguments, ranks, flags, more, HD__COUNT(more) - !seq_len, &r->loaded);
    if (!code)
        code = hd__cli_check_weights(&r->loaded, &r->weights);
    if (!code && hd__cli_text_open(&r->loaded, &r->text_flags, &r->text, &err))
        code = hd__cli_print_error(&err, HD__EXIT_REFUSED);
    if (!code)
        r->weights.tokens = hd__cli_text_maker(&r->loaded, &r->text);
    return code;
}

/* The sequence that the longest prompt and its answer take, which every axis can cut; 0: the job's own. The slots of an
 * expert depend on the sequence's length, so a model with experts keeps it. */
static int64_t shorter_sequence(const struct sample_request *r, int64_t longest)
{
    const struct hd__job *job = r->loaded.job;
    int64_t step = SEQUENCE_STEP * job->mesh[HD_AXIS_CP] * job->mesh[HD_AXIS_TP],
            need = (longest + r->config.count + step - 1) / step * step;
    return r->loaded.compiled->info.experts || need >= job->seq_len ? 0 : need;
}

/* Warns of the first prompt of each kind that is hardly meant. */
static void warn_prompts(const struct sample_request *r)
{
    const struct hd__job *job = r->loaded.job;
    const char *trained = hd__train_chat_template(r->loaded.compiled), *named = job->data_chat_template;
    const char *asked = r->text_flags.chat, *token = NULL;
    const char *what =
        trained && named && !strcmp(trained, named) ? "job's data.chat_template" : "chat template of data.train";
    const char *theirs = trained ? NULL : hd__train_other_chat_template(r->loaded.compiled, asked);
    int cut = 0;
    if (theirs)
        hd__log(HD_LOG_WARN, NULL, "--chat %s: %s starts turns differently, so the model has not seen such prompts",
                asked, theirs);
    if (asked && trained && strcmp(asked, trained) != 0)
        hd__log(HD_LOG_WARN, NULL, "--chat %s: the %s is %s, and the model has seen no such prompt", asked, what,
                trained);
    for (uint32_t i = 0; i < r->prompts.count; i++) {
        const struct hd__sample_prompt *p = &r->prompts.at[i];
        if (asked && !token && (token = hd__chat_find_written_token(&r->text.tokenizer, p->text, p->bytes)))
            hd__log(HD_LOG_WARN, NULL,
                    "--chat: a prompt has the text of %s, as letters: leave --chat out, or give the words alone",
                    token);
        if (!i && !asked && trained && strcmp(trained, "plain") != 0 &&
            !hd__chat_find_written_token(&r->text.tokenizer, p->text, p->bytes))
            hd__log(HD_LOG_WARN, NULL, "the %s is %s, and the prompt is no such one: say --chat %s", what, trained,
                    trained);
        if (!cut && (cut = (int64_t)p->ids.count > job->seq_len))
            hd__log(HD_LOG_WARN, NULL,
                    "a prompt has %zu tokens, and the model sees the last %" PRId64 " (data.seq_len)", p->ids.count,
                    job->seq_len);
    }
    for (int i = 0; i < r->n_stops + r->n_prompts; i++) {
        const int is_stop = i < r->n_stops;
        const char *text = is_stop ? r->stop[i] : r->prompt[i - r->n_stops];
        if ((token = strstr(text, "\\n")) && !islower((unsigned char)token[2]) && token[2] != '"' &&
            !strchr(text, '\n'))
            hd__log(HD_LOG_WARN, NULL, "--%s '%.60s' has a backslash and an n: a line feed is $'\\n' in bash",
                    is_stop ? "stop" : "prompt", text);
    }
}

static int load_model(struct sample_request *r, const struct hd__cli_job_arguments *arguments)
{
    struct hd_error err = HD_ERROR_INIT;
    int code = load(r, arguments, 0);
    if (!code && read_prompts(r, &err))
        code = hd__cli_print_error(&err, HD__EXIT_REFUSED);
    int64_t longest = 0;
    for (uint32_t i = 0; i < r->prompts.count; i++)
        longest = HD__MAX(longest, (int64_t)r->prompts.at[i].ids.count);
    int64_t shorter = code ? 0 : shorter_sequence(r, longest);
    if (!code) {
        r->weights.positions = HD__MIN(longest + r->config.count - 1, r->loaded.job->seq_len);
        warn_prompts(r);
    }
    if (!shorter)
        return code;
    hd__cli_text_close(&r->text);
    hd__cli_unload_job(&r->loaded);
    return load(r, arguments, shorter);
}

/* ---- generation */

static struct hd__sample_output output_of(const struct sample_request *r, int32_t rank)
{
    return (struct hd__sample_output){.text = &r->text,
                                      .stop = r->stop,
                                      .n_stops = (uint32_t)r->n_stops,
                                      .json = r->json,
                                      .ignore_eos = r->ignore_eos,
                                      .silent = rank != 0,
                                      .several = r->prompts.count * r->samples > 1};
}

/* Before ranks start: each would say it. */
static int check_output(const struct sample_request *r)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__sample_output out = output_of(r, 0);
    int32_t rc = hd__sample_output_open(&out, &err);
    const struct hd__job_value *seed = hd__job_value_get(r->loaded.job, "job.seed");
    if (!r->weights.random && !strcmp(seed->origin, "command line"))
        hd__log(HD_LOG_WARN, NULL, "job.seed has no effect on what is sampled: --seed draws it");
    if (r->config.top_k >= r->loaded.compiled->info.vocab)
        hd__log(HD_LOG_WARN, NULL, "--top-k has no effect: the vocabulary has %lld tokens",
                (long long)r->loaded.compiled->info.vocab);
    if (r->ignore_eos && !r->text.ends.count)
        hd__log(HD_LOG_WARN, NULL, "--ignore-eos has no effect: no token is known that ends a text");
    hd__sample_output_close(&out);
    return rc ? hd__cli_print_error(&err, HD__EXIT_REFUSED) : HD__EXIT_DONE;
}

static int32_t generate(struct sample_request *r, struct hd__train_session *session, struct hd_error *err)
{
    struct hd__sample_output out = output_of(r, session->env->rank);
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

/* A device or a model that cannot is slower, not wrong. */
static void say_no_cache(struct hd__train_session *session)
{
    const char *why = hd__exec_program(session->exec)->no_cache;
    if (why)
        fprintf(stderr, "keys and values are not kept: %s; every token is computed with all before it\n", why);
}

static int run_rank(void *user, const struct hd__launch_env *env)
{
    struct sample_request *r = user;
    struct hd__train_session session = {0};
    struct hd_error err = HD_ERROR_INIT;
    int64_t step;
    int code = HD__EXIT_DONE;
    hd__cli_begin_rank(env);
    int32_t rc = hd__cli_open_weights(&r->loaded, &r->weights, env, &session, &step, &err), opening = rc != HD_OK;
    if (!rc && !env->rank)
        say_no_cache(&session);
    if (!rc)
        rc = generate(r, &session, &err);
    opening |= err.code == HD_E_INVALID; /* found late, by all ranks alike */
    if (rc)
        code = env->size > 1 ? hd__speaker_fail(&session.speaker, &err, opening)
                             : hd__cli_print_error(&err, opening ? HD__EXIT_REFUSED : HD__EXIT_FAILED);
    hd__train_session_close(&session, rc && env->size > 1);
    return code;
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
                                         {"--random-weights", NULL, &r.weights.random},
                                         {"--single-rank", NULL, &r.single_rank},
                                         {"--no-cache", NULL, &r.no_cache}};
    struct hd__cli_job_arguments arguments;
    int code = hd__cli_job_arguments(&hd__command_sample, argc, argv, flags, HD__COUNT(flags), &arguments);
    if (!code)
        code = parse(&r);
    if (!code)
        code = load_model(&r, &arguments);
    if (!code)
        code = check_output(&r);
    if (!code)
        code = hd__cli_run_ranks(&r.loaded, argc, argv, &(struct hd__launch_policy){0}, run_rank, &r);
    for (uint32_t i = 0; i < r.prompts.count; i++) {
        free(r.prompts.at[i].text);
        free(r.prompts.at[i].ids.at);
    }
    hd__free_array(&r.prompts);
    hd__cli_text_close(&r.text);
    hd__cli_unload_job(&r.loaded);
    return code;
}

const struct hd__command hd__command_sample = {
    .name = "sample",
    .usage = "JOB [key=value ...] [--prompt TEXT ...] [--prompt-file FILE] [--max-new N] [--temperature T] [--top-k K] "
             "[--top-p P] [--stop TEXT|ID ...] [--ignore-eos] [--samples N] [--seed S] [--json] [--chat TEMPLATE] "
             "[--tokenizer FILE] [--use NAME] [--checkpoint PATH] [--weights NAME] [--random-weights] "
             "[--single-rank] [--no-cache]",
    .summary = "generate text",
    .help =
        "Loads the job's newest checkpoint (or --checkpoint; where there is none yet, the weights of model.from)\n"
        "on the job's mesh, starts its ranks as `heddle train` does, and prints the prompt and what the model makes\n"
        "of it. Text goes through --tokenizer, or the tokenizer in model.from's folder. Without one a model with a\n"
        "vocabulary of 256 reads and writes bytes; others take and print token ids.\n\n"
        "  --prompt TEXT        where to begin; may be given several times\n"
        "  --prompt-file FILE   a text, or of a file *.jsonl (.ndjson, .json) lines {\"prompt\": TEXT} or "
        "{\"messages\": [...]}\n"
        "  --max-new N          how many tokens to generate at most (200); also --tokens\n"
        "  --temperature T      0 takes the likeliest token (0.8)\n"
        "  --top-k K            only the K likeliest tokens; 0: all (0)\n"
        "  --top-p P            only the likeliest tokens that make up P of the probability (1)\n"
        "  --stop TEXT|ID       ends where this text, or the token of this number, was generated; may be given\n"
        "                       several times. Digits are a text where tokens are bytes. The tokenizer's end of text\n"
        "                       ends it, too\n"
        "  --ignore-eos         it does not\n"
        "  --samples N          so many of each prompt: number k draws as --seed S + k does (1)\n"
        "  --seed S             another seed, another text (1)\n"
        "  --json               {\"prompt\", \"sample\", \"prompt_ids\", \"ids\", \"text\", \"finish\"}, a line each\n"
        "  --chat TEMPLATE      the prompt is what a user says: chatml, llama3, mistral\n"
        "  --tokenizer FILE     tokenizer.json, tokenizer.model, *.tiktoken, or a folder with one; none: ids\n"
        "  --use NAME           the tokenizer's plug-in, where it is not to be found by the file\n"
        "  --checkpoint PATH    a checkpoint's folder or name, instead of the newest\n"
        "  --weights NAME       an average that a strategy keeps instead of the weights: ema\n"
        "  --random-weights     initial weights, as job.seed draws them\n"
        "  --single-rank        on one rank, whatever the mesh\n"
        "  --no-cache           computes every token with all before it, instead of keeping their keys and values\n",
    .example = "  heddle sample examples/kjv.yaml --prompt 'In the beginning' --max-new 300\n",
    .run = run,
};
