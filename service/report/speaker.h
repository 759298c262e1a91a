/* service/report/speaker: who says what when a job ends.
 *
 * The rendezvous tells all ranks one failure, the first that it heard: the end of the job. Failures are told apart
 * by their origin (struct hd_error), never by their text:
 *
 *     one of this rank's own       it says all of it
 *     another rank's               "rank 2 gave up, so this rank ends"
 *     one that every rank finds    the first that was heard is the one who says it
 *     before the first step        exit code 2, and no such line: the rank that refused the job has said why. Ranks
 *     that
 *                                  heddle started write to one log; under another launcher each may have its own, and
 *                                  repeats the words */
#ifndef HD_SERVICE_REPORT_SPEAKER_H
#define HD_SERVICE_REPORT_SPEAKER_H

#include "runtime/rendezvous/store.h"

struct hd__speaker {
    struct hd_store *store; /* NULL: there are no other ranks */
    int32_t rank;
    int32_t shared_log;     /* heddle started all ranks */
    int32_t barrier_failed; /* before the first step: no refusal, since ranks met and did not do the same */
    int32_t told;           /* the others were */
    uint32_t phase;         /* of the start; counted alike on all ranks */
    uint32_t reserved;
};

/* The origin of what every rank finds at this point of the job, and so none says but the first. */
uint64_t hd__speaker_shared(const struct hd__speaker *s, uint32_t number);
/* This rank's run failed, before the first step (`opening`) or later: says what is its to say, tells the others, and
 * returns the exit code: 2 where the job was refused, else 1. */
int hd__speaker_fail(struct hd__speaker *s, struct hd_error *err, int opening);
/* The job has ended, and this rank is inside a call that does not come back: the same, without a failure of its own. */
int hd__speaker_abandon(const struct hd__speaker *s, const char *phase);
/* A launcher's word for a rank that ended without one. `why`: hd__server_ended_by's code. */
void hd__speaker_exit(int32_t rank, int32_t process, int exit_code, int signal, int32_t why);
/* Does this code say what another rank did, or did not? */
int hd__speaker_blames_another(int32_t code);

/* ---- before there is a rendezvous: ranks of one machine refuse a job alike, and the first of them says it */

/* A line to stderr; after a call of defer, until one with 0, it is kept instead, the first of them. */
void hd__speaker_print(const char *text);
void hd__speaker_defer(int on);
const char *hd__speaker_deferred(void); /* "" where nothing was kept */

#endif
