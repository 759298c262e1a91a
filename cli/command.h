/* cli/command: what a subcommand is. A new one is a file with `const struct hd__command hd__command_NAME` and a line
 * in HD__COMMANDS. */
#ifndef HD_CLI_COMMAND_H
#define HD_CLI_COMMAND_H

#include <jansson.h>
#include <stdint.h>

/* Exit codes of every command. */
enum {
    HD__EXIT_DONE = 0,
    HD__EXIT_FAILED = 1,  /* after the start, or check and verify found a fault */
    HD__EXIT_REFUSED = 2, /* before the first step: command line, job file, inputs, plugins */
    HD__EXIT_STOPPED = 3  /* by a signal */
};

struct hd__command {
    const char *name;
    const char *usage;                 /* after the name: "[NAME] [--json]" */
    const char *summary;               /* one line */
    const char *help;                  /* what it does and its options; whole lines */
    const char *example;               /* whole lines that can be typed */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns an exit code */
};

/* In the order of the help. */
#define HD__COMMANDS(X) \
    X(train)            \
    X(explain)          \
    X(plan)             \
    X(calibrate)        \
    X(check)            \
    X(eval)             \
    X(sample)           \
    X(ckpt)             \
    X(data)             \
    X(plugins)          \
    X(test)             \
    X(bench)            \
    X(trace)            \
    X(report)           \
    X(debug)            \
    X(doctor)           \
    X(slurm)            \
    X(k8s)              \
    X(import)           \
    X(version)

#define HD__DECLARE_COMMAND(name) extern const struct hd__command hd__command_##name;
HD__COMMANDS(HD__DECLARE_COMMAND)
#undef HD__DECLARE_COMMAND

/* Output on stdout is a command's result: where it is lost (a full disk), the command has failed. Returns the exit
 * code. */
int hd__cli_check_stdout(int code);

/* The message to stderr, with the way to the command's help; returns HD__EXIT_REFUSED. */
int hd__cli_usage_error(const struct hd__command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A flag of a command, or an option with a value; an option with both may be given HD__CLI_VALUES times: `value` has
 * room for as many, and *set counts them. */
enum { HD__CLI_VALUES = 64 };
struct hd__cli_flag {
    const char *name;   /* "--json" */
    const char **value; /* NULL for a plain flag */
    int *set;
};
/* Words that are no flags, in their order. */
struct hd__cli_words {
    const char **at;
    size_t count;
};
/* Splits the words after the command's name; after "--" none is a flag. HD__EXIT_DONE or a refusal; in both cases the
 * caller frees words->at. */
int hd__cli_split(const struct hd__command *command, int argc, char **argv, const struct hd__cli_flag *flags,
                  size_t n_flags, struct hd__cli_words *words);
/* A flag's value; HD__EXIT_DONE, or the usage error. */
int hd__cli_parse_whole(const struct hd__command *command, const char *flag, const char *text, int64_t low,
                        int64_t high, int64_t *out);

/* One document on stdout, and a newline; takes the reference. `flags`: of json_dumpf. */
void hd__cli_print_json(json_t *document, size_t flags);

#endif
