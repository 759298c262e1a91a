/* conformance/check: a list of checks, each run in a process of its own with a deadline; a line for each, and at the
 * end how many passed. The macros are those of the Check library as far as they are used here, so that the same code
 * serves an installed heddle, which has no Check. */
#ifndef HD_CONFORMANCE_CHECK_H
#define HD_CONFORMANCE_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"

#define START_TEST(name) static void name(int _i __attribute__((unused)))
#define END_TEST

/* Ends the check, which has failed, with a line on stderr. */
__attribute__((noreturn, format(printf, 3, 4))) void conf_fail(const char *file, int line, const char *format, ...);

#define ck_assert_msg(condition, ...)                   \
    do {                                                \
        if (!(condition))                               \
            conf_fail(__FILE__, __LINE__, __VA_ARGS__); \
    } while (0)
#define ck_assert(condition) ck_assert_msg(condition, "%s does not hold", #condition)
#define CONF_COMPARE(type, print, a, op, b)                                                                       \
    do {                                                                                                          \
        type conf_a = (type)(a), conf_b = (type)(b);                                                              \
        ck_assert_msg(conf_a op conf_b, "%s is %" print ", which should be %s %" print, #a, conf_a, #op, conf_b); \
    } while (0)
#define ck_assert_int_eq(a, b) CONF_COMPARE(long long, "lld", a, ==, b)
#define ck_assert_int_ne(a, b) CONF_COMPARE(long long, "lld", a, !=, b)
#define ck_assert_int_gt(a, b) CONF_COMPARE(long long, "lld", a, >, b)
#define ck_assert_int_ge(a, b) CONF_COMPARE(long long, "lld", a, >=, b)
#define ck_assert_int_le(a, b) CONF_COMPARE(long long, "lld", a, <=, b)
#define ck_assert_uint_eq(a, b) CONF_COMPARE(unsigned long long, "llu", a, ==, b)
#define ck_assert_uint_gt(a, b) CONF_COMPARE(unsigned long long, "llu", a, >, b)
#define ck_assert_uint_ge(a, b) CONF_COMPARE(unsigned long long, "llu", a, >=, b)
#define ck_assert_uint_lt(a, b) CONF_COMPARE(unsigned long long, "llu", a, <, b)
#define ck_assert_uint_le(a, b) CONF_COMPARE(unsigned long long, "llu", a, <=, b)
#define ck_abort_msg(...) conf_fail(__FILE__, __LINE__, __VA_ARGS__)
#define ck_assert_ptr_eq(a, b) ck_assert_msg((const void *)(a) == (const void *)(b), "%s is not %s", #a, #b)
#define ck_assert_ptr_nonnull(p) ck_assert_msg((p) != NULL, "%s is NULL", #p)
#define ck_assert_mem_eq(a, b, n) ck_assert_msg(!memcmp(a, b, n), "%s and %s differ", #a, #b)

/* The check `name`, with _i from `from` to before `to`: a line each, "name" or "name, _i". `unit` after the number says
 * what it counts, "ranks"; NULL: nothing. */
void conf_run(const char *name, void (*test)(int i), int from, int to, const char *unit);
#define RUN_TEST(test) conf_run(#test, test, 0, 1, NULL)
#define RUN_LOOP(test, from, to, unit) conf_run(#test, test, from, to, unit)

extern double conf_seconds; /* a check may take so many; 60, times CK_TIMEOUT_MULTIPLIER / 5 */
int conf_finish(void);      /* prints "N passed, N failed"; the exit code */

/* ---- what is tested */

struct hd__component;
struct hd__plugins;

struct conf_target {
    const char *label, *name; /* "optim-lion", "lion" */
    const char *folder;       /* where its file lies; NULL: where heddle looks */
    uint32_t kind;
    struct hd__plugins *plugins;
    const struct hd__component *component;
    const char **set; /* "key=value", of the words set:key=value */
    size_t n_set;
    const char *only; /* checks whose line has this text; NULL: all */
    const char *at;   /* ckpt: where the store is; NULL: in a folder of the check's own */
};
extern struct conf_target conf_target;

/* Its options with their defaults and what was set, as a job would give them; NULL and a message where they are
 * refused. They live until the process ends. */
void *conf_settings(struct hd_error *err);

/* A folder of the check's own, which is removed when it ends. */
const char *conf_folder(void);

/* `heddle train JOB WORDS...` in `folder`, with the plugin's folder among plugins.path: its exit code; what it printed
 * is in the text. */
int conf_train(const char *folder, const char *job, const char *words, struct hd__text *printed);

/* "{use: NAME, key: value}": the plugin as a job names it, with what was set. */
void conf_use(struct hd__text *text);
/* Of what conf_train printed: "loss 5.5501  norm 1.020" of the last step. */
void conf_end(const struct hd__text *printed, char end[128]);

/* Checks of each kind, by words of the command line that are not for all; 0 where a word is not understood. */
int conf_comm_word(const char *word);
void conf_with_ranks(const char *name, void (*test)(int i), int from, int to);
#define WITH_RANKS(test, from, to) conf_with_ranks(#test, test, from, to)
void conf_comm(void);
void conf_comm_failures(int few);
void conf_ckpt(void);
void conf_optim(void);
void conf_model(void);
void conf_hook(void);
int conf_data_word(const char *word);
int conf_ckpt_word(const char *word);
int conf_tokenizer_word(const char *word);
void conf_tokenizer(void);
void conf_data(void);
void conf_metrics(void);
int conf_device_word(const char *word);
void conf_device(void);
int conf_strategy_word(const char *word);
void conf_strategy(void);

#endif
