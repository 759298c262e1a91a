/* The heddle command: finds the subcommand, prints help, splits a command line. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/job.h"
#include "core/base/base.h"
#include "core/plugin/crash.h"
#include "service/launch/launch.h"
#include "service/report/speaker.h"

#define COMMAND_ADDRESS(name) &hd__command_##name,
static const struct hd__command *const commands[] = {HD__COMMANDS(COMMAND_ADDRESS)};

static int is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int overview(FILE *out)
{
    fputs("heddle trains transformers across processes and machines.\n\nusage: heddle COMMAND [ARGUMENTS]\n\n", out);
    for (size_t i = 0; i < HD__COUNT(commands); i++)
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\n`heddle help COMMAND` says more, with an example.\n"
          "exit codes: 0 done, 1 failed, 2 refused before the first step, 3 stopped by a signal\n",
          out);
    return HD__EXIT_DONE;
}

static int help(const struct hd__command *c)
{
    printf("%s\n\nusage: heddle %s %s\n\n%s\nexample:\n%s", c->summary, c->name, c->usage, c->help, c->example);
    return HD__EXIT_DONE;
}

static const struct hd__command *find_command(const char *name)
{
    for (size_t i = 0; i < HD__COUNT(commands); i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static int fail_unknown_command(const char *name)
{
    const char *names[HD__COUNT(commands)], *nearest;
    for (size_t i = 0; i < HD__COUNT(commands); i++)
        names[i] = commands[i]->name;
    nearest = hd__nearest(name, names, HD__COUNT(names));
    fprintf(stderr, "heddle: there is no command '%s'%s%s%s (`heddle help` lists them)\n", name,
            nearest ? ": did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
    return HD__EXIT_REFUSED;
}

int hd__cli_usage_error(const struct hd__command *command, const char *format, ...)
{
    char why[1024];
    struct hd__text text = {0};
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    hd__text_add(&text, "heddle %s: %s (`heddle help %s`)", command->name, why, command->name);
    hd__speaker_print(text.at);
    hd__text_free(&text);
    return HD__EXIT_REFUSED;
}

static const struct hd__cli_flag *find_flag(const struct hd__cli_flag *flags, size_t n, const char *word)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(flags[i].name, word))
            return &flags[i];
    return NULL;
}

/* The key of a core section that has this name, as --seed of job.seed; NULL: none. */
static const char *key_of_option(const char *word, char path[HD__KEY_PLACE])
{
    char name[40] = "";
    for (size_t i = 2; word[1] == '-' && i - 2 < sizeof name - 1 && word[i]; i++)
        name[i - 2] = word[i] == '-' ? '_' : word[i];
    return hd__job_key_place(name, path) && strchr(path, '.') ? path : NULL;
}

/* Options of others' training scripts, and the job's keys for them; NULL: not one of these. */
static const char *word_of_option(const char *word)
{
    static const char *const rows[][2] = {{"lr", "optimizer.lr=VALUE"},
                                          {"learning_rate", "optimizer.lr=VALUE"},
                                          {"weight_decay", "optimizer.weight_decay=VALUE"},
                                          {"max_grad_norm", "optimizer.clip=VALUE"},
                                          {"resume", "checkpoint.resume=PATH (auto is the default)"},
                                          {"resume_from_checkpoint", "checkpoint.resume=PATH (auto is the default)"},
                                          {"bf16", "precision.compute=bf16"},
                                          {"fp16", "precision.compute=fp16"}};
    for (size_t i = 0, n = word[1] == '-' ? strcspn(word + 2, "=") : 0; i < HD__COUNT(rows); i++) {
        size_t k = 0;
        while (k < n && (word[2 + k] == '-' ? '_' : word[2 + k]) == rows[i][0][k])
            k++;
        if (n && k == n && !rows[i][0][k])
            return rows[i][1];
    }
    return NULL;
}

/* With the nearest of the command's options. */
static int fail_unknown_option(const struct hd__command *command, const struct hd__cli_flag *flags, size_t n,
                               const char *word)
{
    const char **names = hd__alloc((n + 1) * sizeof *names), *nearest;
    char path[HD__KEY_PLACE];
    for (size_t i = 0; i < n; i++)
        names[i] = flags[i].name;
    nearest = hd__nearest(word, names, n);
    free(names);
    const char *key = nearest || strncmp(command->usage, "JOB", 3) != 0 ? NULL : key_of_option(word, path);
    const char *other = command == &hd__command_train ? word_of_option(word) : NULL;
    if (other)
        return hd__cli_usage_error(command, "there is no option %s: keys of the job have no dashes: %s", word, other);
    if (key)
        return hd__cli_usage_error(command, "there is no option %s: keys of the job have no dashes: %s=VALUE", word,
                                   key);
    if (!nearest && word[2] && strchr(word, '='))
        return hd__cli_usage_error(command, "there is no option %s: keys of the job have no dashes: %s", word,
                                   strchr(word, '.') ? word + 2 : "write SECTION.KEY=VALUE");
    return hd__cli_usage_error(command, "there is no option %s%s%s%s", word, nearest ? ": did you mean " : "",
                               nearest ? nearest : "", nearest ? "?" : "");
}

int hd__cli_split(const struct hd__command *command, int argc, char **argv, const struct hd__cli_flag *flags,
                  size_t n_flags, struct hd__cli_words *words)
{
    uint64_t given = 0; /* options, by place in the table */
    int literal = 0;
    *words = (struct hd__cli_words){.at = hd__alloc(((size_t)argc + 1) * sizeof *words->at)};
    for (int i = 1; i < argc; i++) {
        const struct hd__cli_flag *flag = literal ? NULL : find_flag(flags, n_flags, argv[i]);
        if (!literal && !strcmp(argv[i], "--")) {
            literal = 1;
        } else if (flag && flag->value) {
            int many = flag->set != NULL;
            if (++i == argc || find_flag(flags, n_flags, argv[i]))
                return hd__cli_usage_error(command, "%s needs a value", flag->name);
            if (!argv[i][0] && !many) /* a prompt may be empty */
                return hd__cli_usage_error(command, "%s is given an empty value: a shell variable that is not set?",
                                           flag->name);
            if (many && *flag->set == HD__CLI_VALUES)
                return hd__cli_usage_error(command, "%s is given more than %d times", flag->name, HD__CLI_VALUES);
            if (!many && given >> (flag - flags) & 1)
                return hd__cli_usage_error(command, "%s is given twice", flag->name);
            given |= UINT64_C(1) << (flag - flags);
            flag->value[many ? (*flag->set)++ : 0] = argv[i];
        } else if (flag) {
            if (flag->set)
                *flag->set = 1;
        } else if (!argv[i][0]) {
            return hd__cli_usage_error(command, "an argument is empty: a shell variable that is not set?");
        } else if (!literal && argv[i][0] == '-') {
            return fail_unknown_option(command, flags, n_flags, argv[i]);
        } else {
            words->at[words->count++] = argv[i];
        }
    }
    return HD__EXIT_DONE;
}

int hd__cli_parse_whole(const struct hd__command *command, const char *flag, const char *text, int64_t low,
                        int64_t high, int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (end != text && !*end && !errno && *out >= low && *out <= high)
        return HD__EXIT_DONE;
    return hd__cli_usage_error(command, "%s %s: wanted a whole number from %" PRId64 " to %" PRId64, flag, text, low,
                               high);
}

void hd__cli_print_json(json_t *document, size_t flags)
{
    char *text = json_dumps(document, flags); /* to a file jansson writes each comma alone */
    puts(text ? text : "");
    free(text);
    json_decref(document);
}

/* --help counts anywhere before "--", so that `heddle train job.yaml --help` is answered, not run. */
static int wants_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (is_help(argv[i]))
            return 1;
    return 0;
}

/* Libraries read this as the first plugin that uses them is loaded; a value of the user's stays. Threads of a kernel
 * that is done wait for each other: briefly awake, then asleep, so that a core which another process needs is not
 * burnt. */
static void set_library_defaults(void)
{
    if (!getenv("OMP_WAIT_POLICY"))
        setenv("GOMP_SPINCOUNT", HD__CLI_OMP_SPINS, 0);
    setenv("IPATH_NO_BACKTRACE", "1", 0); /* libinfinipath, of libfabric, would take Ctrl-C, and end by exit(1) */
}

/* A closed one's number would be given to a file or socket, and messages go into it. Those of here fail as before. */
static void fill_standard_files(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0)
            return;
}

int hd__cli_check_stdout(int code)
{
    if (!fflush(stdout) && !ferror(stdout))
        return code;
    fprintf(stderr, "heddle: what it prints could not be written: %s\n", strerror(errno));
    return code ? code : HD__EXIT_FAILED;
}

int main(int argc, char **argv)
{
    struct hd_error err = HD_ERROR_INIT;
    fill_standard_files();
    set_library_defaults();
    hd__crash_catch("error: heddle", "");
    signal(SIGXFSZ, SIG_IGN); /* ulimit -f: the write fails, and its message has the file */
    int asked = argc > 1 && (is_help(argv[1]) || strcmp(argv[1], "help") == 0);
    if (argc < 2) {
        overview(stderr);
        return HD__EXIT_REFUSED;
    }
    if (asked && argc == 2)
        return hd__cli_check_stdout(overview(stdout));
    const char *name = asked ? argv[2] : strcmp(argv[1], "--version") == 0 ? "version" : argv[1];
    const struct hd__command *command = find_command(name);
    if (!command)
        return fail_unknown_command(name);
    if (asked && argc > 3) {
        fprintf(stderr, "heddle help: one command at a time: '%s' is too many\n", argv[3]);
        return HD__EXIT_REFUSED;
    }
    if (asked || wants_help(argc - 1, argv + 1))
        return hd__cli_check_stdout(help(command));
    if (hd__launch_check_names(&err))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    return hd__cli_check_stdout(command->run(argc - 1, argv + 1));
}
