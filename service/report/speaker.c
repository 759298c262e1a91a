#include "service/report/speaker.h"

#include <stdlib.h>
#include <unistd.h>

#include "core/base/base.h"
#include "runtime/rendezvous/liveness.h"

int hd__speaker_blames_another(int32_t code)
{
    return code == HD_E_PEER || code == HD_E_CANCELLED || code == HD_E_TIMEOUT || code == HD_E_MISMATCH;
}

uint64_t hd__speaker_shared(const struct hd__speaker *s, uint32_t number)
{
    return hd__origin(HD__ORIGIN_ALL, s->phase << 24 | (number & 0xffffff));
}

/* ---- the end of the job, as the rendezvous told it */

static int job_ended(const struct hd__speaker *s, struct hd_error *end)
{
    return s->store && hd__store_liveness_check(hd__store_liveness(s->store), NULL, end);
}

/* Is this failure the end that another rank has told? */
static int is_told_by_another(const struct hd__speaker *s, const struct hd_error *err)
{
    struct hd_error end = HD_ERROR_INIT;
    if (!job_ended(s, &end) || end.peer == s->rank)
        return 0;
    return err->origin ? err->origin == end.origin : hd__speaker_blames_another(err->code);
}

/* Do ranks find it alike before the first step? They read the same job, and mostly the same files. */
static int is_found_alike(int32_t code)
{
    return code == HD_E_INVALID || code == HD_E_UNSUPPORTED || code == HD_E_NOTFOUND || code == HD_E_MISMATCH ||
           code == HD_E_CORRUPT;
}

/* Another rank's end may be felt before it is heard of: an operation was aborted, or while this rank opens, memory or a
 * socket of the other is gone. So may a failure that all ranks find alike, where one is to say it. */
static void wait_for_end(const struct hd__speaker *s, const struct hd_error *err, int opening)
{
    int alike = is_found_alike(err->code), first = !s->rank || !s->shared_log;
    int32_t rank = hd__origin_rank(err->origin);
    int relayed = err->code == HD_E_PEER || err->code == HD_E_CANCELLED || (rank >= 0 && rank != s->rank);
    double until = hd__now() + (relayed || (opening && !alike) ? 0.5 : opening && !first ? 1 : 0);
    while (s->store && !job_ended(s, NULL) && hd__now() < until)
        usleep(1000);
}

/* By this rank, another, or the rendezvous; else the start failed, as a step may: who died, or was late. */
static int is_refused(const struct hd__speaker *s, const struct hd_error *err)
{
    struct hd_error end = HD_ERROR_INIT;
    int ended = job_ended(s, &end);
    if (ended && hd__store_liveness_fault(hd__store_liveness(s->store)) == HD_E_INVALID)
        return 1;
    if (ended && end.peer != s->rank)
        return 0;
    return !s->barrier_failed && err->code != HD_E_TIMEOUT && err->code != HD_E_PEER && err->code != HD_E_CANCELLED;
}

/* ---- what is said */

/* Tells the others of a failure, once. */
static void tell_others(struct hd__speaker *s, const struct hd_error *err)
{
    if (!s->store || s->told)
        return;
    s->told = 1;
    hd__store_liveness_notify(hd__store_liveness(s->store), NULL, NULL);
    hd__store_end(s->store, err);
}

/* In a few words, since the report has all of them: "rank 2 gave up", "rank 2 died (silent for 2.0 s)". */
static void say_end(const struct hd__speaker *s)
{
    struct hd_error end = HD_ERROR_INIT;
    job_ended(s, &end);
    if (end.origin)
        hd__log(HD_LOG_ERROR, NULL, "rank %d gave up, so this rank ends", (int)end.peer);
    else
        hd__log(HD_LOG_ERROR, NULL, "%.*s, so this rank ends", (int)strcspn(end.message, ":"), end.message);
}

/* A failure of another kind, where another rank refused the job, came of that. */
static void say_refusal(const struct hd__speaker *s, const struct hd_error *err)
{
    struct hd_error end = HD_ERROR_INIT;
    int came_of_it = job_ended(s, &end) && !is_found_alike(err->code);
    if (!s->shared_log || !(came_of_it || is_told_by_another(s, err)))
        hd__log(HD_LOG_ERROR, NULL, "%s", came_of_it ? end.message : err->message);
}

int hd__speaker_fail(struct hd__speaker *s, struct hd_error *err, int opening)
{
    int32_t code = err->code;
    if (opening && !err->origin && is_found_alike(code))
        err->origin = hd__speaker_shared(s, (uint32_t)-code);
    wait_for_end(s, err, opening);
    int refused = opening && is_refused(s, err);
    if (refused)
        say_refusal(s, err);
    /* INVALID is how the others hear of a refusal. */
    err->code = refused ? HD_E_INVALID : code == HD_E_INVALID ? HD_E_INTERNAL : code;
    tell_others(s, err);
    err->code = code;
    if (!refused && is_told_by_another(s, err))
        say_end(s);
    else if (!refused)
        hd__log(HD_LOG_ERROR, NULL, "%s%s%s", err->message, err->where[0] ? "; at " : "", err->where);
    return refused ? 2 : 1;
}

int hd__speaker_abandon(const struct hd__speaker *s, const char *phase)
{
    struct hd_error end = HD_ERROR_INIT;
    int refused = hd__store_liveness_fault(hd__store_liveness(s->store)) == HD_E_INVALID;
    hd__store_liveness_check(hd__store_liveness(s->store), NULL, &end);
    if (!refused || !s->shared_log)
        hd__log(HD_LOG_ERROR, NULL, "%s, so this rank ends, while %s", end.message, phase);
    return refused ? 2 : 1;
}

/* A rank that refused, stopped or gave up has said why. */
void hd__speaker_exit(int32_t rank, int32_t process, int exit_code, int signal, int32_t why)
{
    int said = exit_code == 2 || exit_code == 3 || (exit_code <= 1 && why == HD_E_CANCELLED);
    if (!signal && !said)
        hd__log(HD_LOG_ERROR, NULL, "rank %d (process %d) ended with exit code %d", rank, process, exit_code);
}

/* ---- before there is a rendezvous */

static struct {
    int on;
    char text[1024];
} deferred;

void hd__speaker_print(const char *text)
{
    char *copy = hd__printable(hd__strdup(text));
    if (!deferred.on)
        fprintf(stderr, "%s\n", copy);
    else if (!*deferred.text)
        snprintf(deferred.text, sizeof deferred.text, "%s", copy);
    free(copy);
}

void hd__speaker_defer(int on)
{
    deferred.on = on;
    if (on)
        *deferred.text = 0;
}

const char *hd__speaker_deferred(void)
{
    return deferred.text;
}
