/* One rank's part of a report. Called from the thread that listens to the rendezvous while the program runs. */
#include "service/report/report.h"

#include <stdlib.h>

#include "service/report/diagnose.h"

enum { LISTED = 8 }; /* members that are always listed one by one */

struct run {
    int32_t count, step;
};

/* Member i is ranks[0] and a multiple of each run's step, the first run's varying fastest. 0: it is not. */
static int find_runs(const int32_t *ranks, int32_t n, struct run runs[HD__REPORT_RUNS])
{
    int32_t found = 0;
    int64_t size = 1;
    for (; size < n && found < HD__REPORT_RUNS; found++) {
        int32_t step = ranks[size] - ranks[0], count = 2;
        if (step < 1)
            return 0;
        while (count * size < n && ranks[count * size] == ranks[0] + (int64_t)count * step)
            count++;
        runs[found] = (struct run){count, step};
        size *= count;
    }
    for (int32_t i = 0; i < n; i++) {
        int64_t rest = i, rank = ranks[0];
        for (int32_t k = 0; k < found; k++, rest /= runs[k - 1].count)
            rank += rest % runs[k].count * runs[k].step;
        if (size != n || ranks[i] != rank)
            return 0;
    }
    return found;
}

/* "0,1,2", or of more members a sum of runs, "0-8191", "0-8160/32+0-3": those of a mesh's axes are one. */
static json_t *members_json(const struct hd__flight_channel *c)
{
    struct run runs[HD__REPORT_RUNS];
    struct hd__text text = {0};
    int32_t found = c->n > LISTED ? find_runs(c->ranks, c->n, runs) : 0, first = c->n ? c->ranks[0] : 0;
    hd__text_add(&text, "%s", "");
    for (int32_t i = 0; i < c->n && !found; i++)
        hd__text_add(&text, "%s%d", i ? "," : "", c->ranks[i]);
    for (int32_t k = found; k-- > 0; first = 0) {
        hd__text_add(&text, "%s%d-%d", k + 1 < found ? "+" : "", first, first + (runs[k].count - 1) * runs[k].step);
        if (runs[k].step > 1)
            hd__text_add(&text, "/%d", runs[k].step);
    }
    json_t *all = json_string(text.at);
    hd__text_free(&text);
    return all;
}

static json_t *channel_json(const struct hd__flight_channel *c)
{
    json_t *out = json_pack("{s:s, s:o, s:I}", "group", c->group, "ranks", members_json(c), "count",
                            (json_int_t)__atomic_load_n(&c->count, __ATOMIC_RELAXED));
    if (c->from >= 0)
        json_object_update_new(
            out, json_pack("{s:i, s:i, s:I}", "from", c->from, "to", c->to, "stream", (json_int_t)c->stream));
    return out;
}

/* Age in seconds; 0 stands for an event that has not happened, which is left out. */
static void add_time(json_t *to, const char *key, double at, double now)
{
    if (at > 0)
        json_object_set_new(to, key, json_real((double)(int64_t)((now - at) * 1e6) / 1e6));
}

static json_t *op_json(const struct hd__flight_record *r, double now)
{
    static const char *const redops[] = {"", "sum", "max", "avg"};
    const struct hd__flight_op *op = r->op;
    json_t *out =
        json_pack("{s:I, s:I, s:I, s:s, s:s, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "n", (json_int_t)r->number,
                  "channel", (json_int_t)op->channel->index, "seq", (json_int_t)r->seq, "op", op->name, "section",
                  op->section, "instruction", (json_int_t)op->instr, "block", op->block, "dtype",
                  hd_dtype_name(op->dtype), "redop", op->redop < HD__COUNT(redops) ? redops[op->redop] : "?", "root",
                  (json_int_t)op->root, "count", (json_int_t)op->count, "bytes", (json_int_t)op->bytes, "calls",
                  (json_int_t)op->calls, "tag", (json_int_t)op->tag);
    add_time(out, "enqueued", r->enqueued, now);
    add_time(out, "waited", r->waited, now);
    add_time(out, "completed", r->completed, now);
    if (r->completed > 0 && r->code != HD_OK)
        json_object_set_new(out, "code", json_string(hd_code_name((int32_t)r->code)));
    return out;
}

/* The newest `n` records, oldest first. */
static json_t *ops_json(const struct hd__flight *f, uint64_t n, double now)
{
    json_t *ops = json_array();
    uint64_t last = __atomic_load_n(&f->number, __ATOMIC_ACQUIRE);
    for (uint64_t number = last > n ? last - n + 1 : 1; number <= last; number++) {
        struct hd__flight_record r;
        if (hd__comm_flight_read(f, number, &r))
            json_array_append_new(ops, op_json(&r, now));
    }
    return ops;
}

size_t hd__report_rank_dump(const struct hd__flight *f, int32_t rank, const char *at, double call, char *out,
                            size_t room)
{
    for (uint64_t n = f->room;; n /= 2) {
        double now = hd__now();
        json_t *channels = json_array(), *dump;
        for (const struct hd__flight_channel *c = __atomic_load_n(&f->channels, __ATOMIC_ACQUIRE); c;
             c = __atomic_load_n(&c->next, __ATOMIC_ACQUIRE))
            json_array_append_new(channels, channel_json(c));
        dump =
            json_pack("{s:i, s:I, s:s, s:f, s:f, s:I, s:I, s:o, s:o}", "rank", rank, "step",
                      (json_int_t)__atomic_load_n(&f->step, __ATOMIC_RELAXED), "at", at, "call", call, "waited",
                      hd__comm_flight_waited(f), "waiting", (json_int_t)__atomic_load_n(&f->waiting, __ATOMIC_ACQUIRE),
                      "operations", (json_int_t)__atomic_load_n(&f->number, __ATOMIC_ACQUIRE), "channels", channels,
                      "ops", ops_json(f, n, now));
        size_t bytes = json_dumpb(dump, out, room, JSON_COMPACT | JSON_REAL_PRECISION(9));
        json_decref(dump);
        if (bytes <= room)
            return bytes;
        if (!n)
            return (size_t)snprintf(out, room, "{\"rank\":%d}", rank);
    }
}
