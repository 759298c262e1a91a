/* In steady state the thread that computes allocates nothing, frees nothing and meets no page that is not there. */
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "service/train/session.h"
#include "tests/suite.h"
#include "tests/support/compile.h"

/* The allocator is counted, in this thread only. */
static __thread uint64_t allocations;

#ifndef __SANITIZE_ADDRESS__
#ifndef __SANITIZE_THREAD__
#define COUNTED
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

void *malloc(size_t n)
{
    allocations++;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    allocations++;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    allocations++;
    return __libc_realloc(p, n);
}

void free(void *p)
{
    allocations += p != NULL;
    __libc_free(p);
}
#endif
#endif

static long faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

static void write_corpus(char *path)
{
    int fd = mkstemp(path);
    char text[65536];
    ck_assert_int_ge(fd, 0);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + (i * 7 + i / 26) % 26);
    ck_assert_int_eq(write(fd, text, sizeof text), (ssize_t)sizeof text);
    close(fd);
}

/* Asserts nothing: Check allocates when it does. */
static int32_t one_step(struct hd__train_session *s, int64_t step)
{
    struct hd_error err = HD_ERROR_INIT;
    double *hyper = hd__exec_host_data(s->exec, hd__exec_program(s->exec)->hyper);
    hyper[HD_HYPER_LR] = 1e-3;
    hyper[HD_HYPER_STEP] = (double)step;
    hyper[HD_HYPER_INV_SCALE] = 1;
    return hd__exec_run_step(s->exec, step, &err);
}

static void steady(const char *family, const char *precision)
{
    static const struct hd__launch_env alone = {.size = 1, .local_size = 1};
    char path[] = "/tmp/heddle-steady-XXXXXX", text[1024];
    struct hd_error err = HD_ERROR_INIT;
    struct compiled c;
    struct hd__train_session s;
    uint64_t allocated;
    long faulted;
    int32_t rc = HD_OK;
    write_corpus(path);
    snprintf(text, sizeof text,
             "job: {steps: 9}\n"
             "device: {use: cpu, threads: 1}\n"
             "model: {use: transformer, family: %s, layers: 2, hidden: 64, heads: 4, ffn: 128, vocab: 256, "
             "max_seq_len: 64}\n"
             "data: {train: %s, seq_len: 64, batch: 8, micro_batch: 2}\n"
             "optimizer: {use: adamw, clip: 1.0}\n"
             "precision: {compute: %s}\n",
             family, path, precision);
    compile_text(&c, text, NULL, 0, 1);
    ck_assert_msg(!hd__train_session_open(&s, c.c, &alone, &err), "%s", err.message);
    ck_assert_msg(!hd__train_feed_open(c.c, 0, 0, &s.train_feed, &err) && !hd__train_session_init_params(&s, &err) &&
                      !hd__train_feed_seek(s.train_feed, 0, &err),
                  "%s", err.message);
    s.current_feed = s.train_feed;
    for (int64_t step = 1; step <= 3; step++)
        ck_assert_int_eq(one_step(&s, step), HD_OK);
    allocated = allocations;
    faulted = faults();
    for (int64_t step = 4; step <= 8 && !rc; step++)
        rc = one_step(&s, step);
    allocated = allocations - allocated;
    faulted = faults() - faulted;
    ck_assert_int_eq(rc, HD_OK);
    hd__train_session_close(&s, 0);
    compiled_free(&c);
    unlink(path);
#ifdef COUNTED
    ck_assert_msg(allocated == 0, "%llu allocations in five steps", (unsigned long long)allocated);
    ck_assert_msg(faulted == 0, "%ld page faults in five steps", faulted);
#endif
}

START_TEST(nothing_is_allocated_or_faulted_in)
{
    static const char *const jobs[][2] = {{"llama", "fp32"}, {"llama", "bf16"}, {"gpt2", "fp32"}, {"gpt2", "bf16"}};
    steady(jobs[_i][0], jobs[_i][1]);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("steady");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, nothing_is_allocated_or_faulted_in, 0, 4);
    return suite_run_case("steady", c);
}
