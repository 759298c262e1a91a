/* Death of a rank: its connection has closed, or nothing came from it for liveness.dead_after. The server names it, and
 * the job ends on all ranks with this cause; service/report/diagnose.c adds who waited for it. */
#include "runtime/rendezvous/liveness.h"
#include "runtime/rendezvous/server_internal.h"

#define STRANGER_SECONDS 5.0

void hd__server_rank_died(struct hd__server *s, int32_t rank, const char *cause)
{
    char text[400], absent[256];
    if (s->options.members)
        return;
    s->rank_state[rank] = HD__RANK_DEAD;
    int n = snprintf(text, sizeof text, "rank %d died (%s)", rank, cause);
    if (hd__server_absent_ranks(s, absent) >= 0) /* a launcher may have ended it for their sake */
        snprintf(text + n, sizeof text - (size_t)n, " before %s had come", absent);
    hd__server_end_job(s, HD_E_PEER, rank, 0, text);
}

/* A beat that is late may wait for a timer of a core that stands still: a frame wakes it on any. */
static void nudge(const struct hd__server *s, struct server_conn *c, double now)
{
    double beat = hd__store_heartbeat_seconds(s->options.dead_after);
    if (now - HD__MAX(c->last_heard + beat, c->nudged) < beat)
        return;
    c->nudged = now;
    hd__server_conn_send(c, &(struct hd__frame){.type = WIRE_HEARTBEAT, .arg = hd__store_thread_id()});
}

const char *hd__server_conn_check_timeout(struct hd__server *s, struct server_conn *c, double now, char text[64])
{
    double silent = now - c->last_heard;
    if (c->rank < 0)
        return now - c->opened > STRANGER_SECONDS ? "no greeting" : NULL;
    if (c->leaving)
        return NULL;
    nudge(s, c, now);
    if (silent < hd__store_silence_seconds(s->options.dead_after) ||
        hd__store_is_starved(c->thread, silent, s->options.dead_after))
        return NULL;
    snprintf(text, 64, "silent for %.1f s", silent);
    return text;
}
