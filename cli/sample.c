/* heddle sample: text from a trained model. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "cli/job.h"
#include "service/train/sample.h"

struct sample_request {
    struct hd__cli_weights weights;
    const char *prompt, *tokens, *temperature, *top_k, *seed;
    struct hd__train_sample_config config;
    int text; /* tokens are bytes */
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
    int code;
    if ((code = parse_whole("--tokens", r->tokens, 1, 1000000000, &r->config.count)) ||
        (code = parse_number("--temperature", r->temperature, 0, 100, &r->config.temperature)) ||
        (code = parse_whole("--top-k", r->top_k, 0, 1000000000, &r->config.top_k)) ||
        (code = parse_whole("--seed", r->seed, 0, INT64_MAX, &seed)))
        return code;
    r->config.seed = (uint64_t)seed;
    return HD__EXIT_DONE;
}

static void print_token(void *user, int32_t token)
{
    const struct sample_request *r = user;
    if (r->text)
        putchar(token);
    else
        printf(" %d", token);
    fflush(stdout);
}

/* The prompt as tokens: bytes for a byte-level model, else token ids with blanks between them. */
static int read_prompt(struct sample_request *r, int64_t vocab, int32_t *tokens, int64_t room)
{
    const char *at = r->prompt;
    r->text = vocab == 256;
    while (*at && r->config.n_prompt < room) {
        char *end = (char *)at + 1;
        long token = r->text ? (unsigned char)*at : strtol(at, &end, 10);
        if (end == at || token < 0 || token >= vocab)
            return hd__cli_usage_error(&hd__command_sample,
                                       "--prompt: this model has no byte vocabulary: wanted token ids from 0 to %lld "
                                       "with blanks between them",
                                       (long long)vocab - 1);
        tokens[r->config.n_prompt++] = (int32_t)token;
        at = end;
        while (!r->text && *at == ' ')
            at++;
    }
    if (*at)
        return hd__cli_usage_error(&hd__command_sample, "--prompt: longer than %lld tokens", (long long)room);
    if (!r->config.n_prompt)
        tokens[r->config.n_prompt++] = r->text ? '\n' : 0;
    r->config.prompt = tokens;
    r->config.emit = print_token;
    r->config.user = r;
    return HD__EXIT_DONE;
}

static int generate(struct hd__cli_job *loaded, struct sample_request *r)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__train_session session = {0};
    int64_t step;
    int32_t rc = hd__cli_open_weights(loaded, &r->weights, &session, &step, &err);
    if (!rc && r->text)
        fputs(r->prompt, stdout);
    if (!rc)
        rc = hd__train_sample(&session, &r->config, &err);
    if (!rc)
        putchar('\n');
    hd__train_session_close(&session, 0);
    return rc ? hd__cli_print_load_error(&err) : HD__EXIT_DONE;
}

static int run(int argc, char **argv)
{
    struct sample_request r = {.weights = {.checkpoint = "auto", .name = "model"},
                               .prompt = "",
                               .tokens = "200",
                               .temperature = "0.8",
                               .top_k = "0",
                               .seed = "1"};
    const struct hd__cli_flag flags[] = {{"--checkpoint", &r.weights.checkpoint, NULL},
                                         {"--prompt", &r.prompt, NULL},
                                         {"--tokens", &r.tokens, NULL},
                                         {"--temperature", &r.temperature, NULL},
                                         {"--top-k", &r.top_k, NULL},
                                         {"--seed", &r.seed, NULL},
                                         {"--weights", &r.weights.name, NULL},
                                         {"--random-weights", NULL, &r.weights.random}};
    static int32_t prompt[65536];
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0};
    int code = hd__cli_job_arguments(&hd__command_sample, argc, argv, flags, HD__COUNT(flags), &arguments);
    if (!code)
        code = parse(&r);
    if (!code)
        code = hd__cli_load_single_rank(&arguments, 1, &loaded);
    if (!code)
        code = hd__cli_check_weights(&loaded, &r.weights);
    if (!code)
        code = read_prompt(&r, loaded.compiled->info.vocab, prompt, HD__COUNT(prompt));
    if (!code)
        code = generate(&loaded, &r);
    hd__cli_unload_job(&loaded);
    return code;
}

const struct hd__command hd__command_sample = {
    .name = "sample",
    .usage = "JOB [key=value ...] [--checkpoint PATH] [--weights NAME] [--random-weights] [--prompt TEXT] [--tokens N] "
             "[--temperature T] "
             "[--top-k K] [--seed S]",
    .summary = "generate text",
    .help = "Loads the job's newest checkpoint (or --checkpoint; where there is none yet, the weights of model.from)\n"
            "on one rank and prints the prompt and what the model makes of it. A model with a vocabulary of 256\n"
            "reads and writes bytes; others take and print token ids.\n\n"
            "  --checkpoint PATH    a checkpoint's folder or name, instead of the newest\n"
            "  --weights NAME       an average that a strategy keeps instead of the weights: ema\n"
            "  --random-weights     initial weights, as job.seed draws them\n"
            "  --prompt TEXT        where to begin\n"
            "  --tokens N           how many to generate (200)\n"
            "  --temperature T      0 takes the likeliest token (0.8)\n"
            "  --top-k K            only the K likeliest tokens; 0: all (0)\n"
            "  --seed S             another seed, another text (1)\n",
    .example = "  heddle sample examples/kjv.yaml --prompt 'In the beginning' --tokens 300\n",
    .run = run,
};
