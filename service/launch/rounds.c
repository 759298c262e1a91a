/* Rounds: all ranks are started again after a failure, unless that would be in vain. */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "service/launch/round_internal.h"

#define LONGEST_PAUSE 600.0 /* seconds; or launch.pause, where that is longer */

/* ---- what is counted */

int hd__launch_tally_open(struct hd__launch_tally *t, const struct hd__launch_policy *policy, int32_t ranks)
{
    *t = (struct hd__launch_tally){.policy = policy};
    for (int32_t i = 0; i < ranks * HD__COPIES && policy->copies; i++) {
        int fd = memfd_create("heddle checkpoint.peers", MFD_CLOEXEC);
        if (fd < 0)
            return -1;
        hd__push(&t->copies, fd);
    }
    t->progress = mmap(NULL, sizeof *t->progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t->progress != MAP_FAILED)
        return 0;
    t->progress = NULL;
    return -1;
}

void hd__launch_tally_close(struct hd__launch_tally *t)
{
    for (uint32_t i = 0; i < t->restarts.count; i++)
        free((void *)t->restarts.at[i].lost);
    hd__free_array(&t->restarts);
    for (uint32_t i = 0; i < t->copies.count; i++)
        close(t->copies.at[i]);
    hd__free_array(&t->copies);
    if (t->progress)
        munmap(t->progress, sizeof *t->progress);
}

double hd__launch_pause(const struct hd__launch_tally *t)
{
    double pause = t->policy->pause;
    for (int32_t i = 1; i < t->in_a_row && pause < LONGEST_PAUSE; i++)
        pause = HD__MIN(2 * pause, LONGEST_PAUSE);
    return pause;
}

int hd__launch_may_restart(struct hd__launch_tally *t, const struct hd__launch_outcome *out, int free)
{
    struct hd__launch_progress *p = t->progress;
    int64_t failed = p->failed_step, before = t->failed_step, newest = hd__launch_newest(p);
    t->failed_step = failed;
    p->failed_step = 0;
    t->in_a_row = newest > t->best ? !free : t->in_a_row + !free;
    t->best = HD__MAX(t->best, newest);
    if (!out->code || out->code == 2 || (out->code == 3 && !free) || out->stopped || p->stopping)
        return 0;
    if (failed && failed == before) {
        hd__log(HD_LOG_ERROR, NULL, "step %" PRId64 " has failed twice by itself: the ranks are not started again",
                failed);
        return 0;
    }
    if (!free && t->in_a_row > t->policy->restarts) {
        if (t->policy->restarts)
            hd__log(HD_LOG_ERROR, NULL,
                    "launch.restarts: %" PRId64 " in a row have made no newer checkpoint: the job has failed",
                    t->policy->restarts);
        return 0;
    }
    if (t->policy->deadline > 0 && hd__now() + hd__launch_pause(t) >= t->policy->deadline) {
        hd__log(HD_LOG_ERROR, NULL, "the job's time is up: the ranks are not started again");
        return 0;
    }
    return 1;
}

int hd__launch_wait(double seconds, const sigset_t *signals)
{
    double until = hd__now() + seconds, left;
    while ((left = until - hd__now()) > 0) {
        double most = HD__MIN(left, 1.0);
        struct timespec wait = {.tv_sec = (time_t)most, .tv_nsec = (long)((most - (double)(time_t)most) * 1e9)};
        if (hd__launch_asks_to_stop(sigtimedwait(signals, NULL, &wait)))
            return 0;
    }
    return 1;
}

void hd__launch_note_restart(struct hd__launch_tally *t, const char *event, const struct hd__launch_outcome *out,
                             struct hd__launch_env *env)
{
    struct hd__launch_restart restart = {.event = event,
                                         .round = (int32_t)t->restarts.count + 1,
                                         .ranks = env->size,
                                         .n_lost = out->n_lost,
                                         .since = out->since};
    int32_t *lost = hd__alloc(((size_t)out->n_lost + 1) * sizeof *lost);
    if (out->n_lost)
        memcpy(lost, out->lost, (size_t)out->n_lost * sizeof *lost);
    restart.lost = lost;
    hd__push(&t->restarts, restart);
    env->restarts = t->restarts.at;
    env->n_restarts = (int32_t)t->restarts.count;
}

const char *hd__launch_from(const struct hd__launch_tally *t, char text[96])
{
    const struct hd__launch_progress *p = t->progress;
    if (p->copied > p->saved)
        snprintf(text, 96, "step %" PRId64 ", which is in memory (on disk: %" PRId64 ")", p->copied, p->saved);
    else
        snprintf(text, 96, "step %" PRId64, p->saved);
    return hd__launch_newest(p) ? text : "the beginning, since there is no checkpoint yet";
}

/* ---- on this machine alone */

static int run_rounds(struct hd__launch_round *r, struct hd__server_options *options, struct hd__launch_tally *t)
{
    struct hd__launch_outcome out = {.lost = hd__alloc((size_t)r->n * sizeof(int32_t)),
                                     .ended = hd__alloc((size_t)r->n * sizeof(int32_t))};
    char from[96];
    int code;
    while (!(code = hd__launch_run_round(r, &out)) && t->policy->restarts && hd__launch_may_restart(t, &out, 0)) {
        hd__launch_note_restart(t, "restart", &out, &r->env);
        hd__log(HD_LOG_WARN, NULL, "restart %d of %" PRId64 " in a row: all ranks are started again in %.3g s, from %s",
                t->in_a_row, t->policy->restarts, hd__launch_pause(t), hd__launch_from(t, from));
        if (!hd__launch_wait(hd__launch_pause(t), &r->signals)) {
            hd__log(HD_LOG_INFO, NULL, "stopped before the restart");
            out.code = t->progress->saved ? 3 : out.code; /* 3: a state is saved */
            break;
        }
        hd__store_secret_generate(options->secret); /* what is left of a round does not get into the next */
        out.code = 0;
    }
    free(out.lost);
    free(out.ended);
    return code ? code : out.code;
}

int hd__launch_local(int32_t n, double dead_after, const struct hd__reporter *reporter,
                     const struct hd__launch_policy *policy, int (*body)(void *user, const struct hd__launch_env *env),
                     void *user)
{
    struct hd__server_options options = hd__launch_server_options(n, dead_after, reporter);
    struct hd__launch_tally tally;
    struct hd__launch_round r = {.n = n,
                                 .dead_after = dead_after,
                                 .serve = &options,
                                 .body = body,
                                 .user = user,
                                 .env = {.size = n,
                                         .local_size = n,
                                         .launched_by_heddle = 1,
                                         .reporter = reporter,
                                         .deadline = policy->deadline,
                                         .store = {.host = "127.0.0.1", .dead_after = dead_after}}};
    int code;
    if (hd__launch_tally_open(&tally, policy, n)) /* ranks tell by it how long they save after a fault */
        return hd__launch_fail_start("mmap or memfd_create");
    r.env.progress = tally.progress;
    r.env.copies = tally.copies.at;
    hd__launch_block_signals(&r.signals);
    signal(SIGPIPE, SIG_IGN); /* the others may have read their port, and the one that is left be dead */
    code = run_rounds(&r, &options, &tally);
    hd__launch_tally_close(&tally);
    return code;
}
