/* Requests of ranks: greetings, keys, barriers; and those whose reply is not due yet. */
#include <stdlib.h>
#include <unistd.h>

#include "runtime/rendezvous/liveness.h"
#include "runtime/rendezvous/server_internal.h"

enum { WAITS_PER_RANK = 64 };

static void reply(struct server_conn *c, uint32_t id, int32_t code, const void *value, size_t bytes)
{
    hd__server_conn_send(c, &(struct hd__frame){.type = WIRE_REPLY,
                                                .id = id,
                                                .arg = code,
                                                .value = value,
                                                .value_bytes = (uint32_t)HD__MIN(bytes, (size_t)WIRE_VALUE_MAX)});
}

/* `later`: it may be let in when another has left. */
static void reject(struct server_conn *c, const char *why, int later)
{
    hd__server_conn_send(
        c, &(struct hd__frame){
               .type = WIRE_REJECT, .arg = later, .value = (const uint8_t *)why, .value_bytes = (uint32_t)strlen(why)});
    c->closing = 1;
}

/* ---- waiting requests */

static int is_waiting_for(const struct waiting_request *w, uint32_t type, const char *key, size_t key_bytes)
{
    return w->type == type && w->key_bytes == key_bytes && memcmp(w->key, key, key_bytes) == 0;
}

/* Do so many wait for it? */
static int are_here(const struct hd__server *s, uint32_t type, const char *key, size_t key_bytes, int32_t many)
{
    int32_t here = 0; /* counted only where it may be so many */
    for (uint32_t i = 0; (int32_t)s->waits.count >= many && i < s->waits.count; i++)
        here += is_waiting_for(&s->waits.at[i], type, key, key_bytes);
    return here >= many;
}

/* Answers and forgets every waiting request of this type and key. */
static void answer_waits(struct hd__server *s, uint32_t type, const char *key, size_t key_bytes, const void *value,
                         size_t bytes)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->waits.count; i++) {
        struct waiting_request *w = &s->waits.at[i];
        struct server_conn *c = is_waiting_for(w, type, key, key_bytes) ? s->conn_of[w->rank] : NULL;
        if (c)
            reply(c, w->id, HD_OK, value, bytes);
        else if (kept++ != i) /* each put passes all that wait for something else */
            s->waits.at[kept - 1] = *w;
    }
    s->waits.count = kept;
}

/* The ranks without a waiting request for this barrier. */
static void missing_ranks(struct hd__server *s, const struct waiting_request *barrier, char *out, size_t room)
{
    uint8_t *missing = hd__alloc((size_t)s->options.size);
    memset(missing, 1, (size_t)s->options.size);
    for (uint32_t i = 0; i < s->waits.count; i++)
        if (is_waiting_for(&s->waits.at[i], barrier->type, barrier->key, barrier->key_bytes))
            missing[s->waits.at[i].rank] = 0;
    hd__server_format_ranks(s, missing, out, room);
    free(missing);
}

/* ---- roll calls: the ranks that are left agree on who they are */

/* Answers a roll call, now and for those who come later: a byte a rank, 1 for those that wait. */
static void answer_roll_call(struct hd__server *s, const struct waiting_request *call)
{
    const struct waiting_request w = *call; /* it is forgotten meanwhile */
    size_t bytes = (size_t)s->options.size;
    uint8_t *present = hd__alloc(bytes);
    for (uint32_t i = 0; i < s->waits.count; i++)
        if (is_waiting_for(&s->waits.at[i], WIRE_ROLL_CALL, w.key, w.key_bytes))
            present[s->waits.at[i].rank] = 1;
    hd__store_kv_put(&s->kv, w.key, w.key_bytes, present, bytes);
    answer_waits(s, WIRE_ROLL_CALL, w.key, w.key_bytes, present, bytes);
    free(present);
}

/* Answers roll calls, of those that wait from `first` on, for which every rank that is connected waits. */
static void answer_roll_calls(struct hd__server *s, uint32_t first)
{
    int32_t connected = 0;
    for (int32_t r = 0; r < s->options.size; r++)
        connected += s->rank_state[r] == HD__RANK_CONNECTED;
    for (uint32_t i = first; i < s->waits.count; i++) {
        const struct waiting_request *w = &s->waits.at[i];
        int seen = i > first && is_waiting_for(w, w[-1].type, w[-1].key, w[-1].key_bytes);
        if (w->type == WIRE_ROLL_CALL && !seen && are_here(s, w->type, w->key, w->key_bytes, connected)) {
            answer_roll_call(s, w);
            i = first - 1; /* they have left the list */
        }
    }
}

void hd__server_drop_waits(struct hd__server *s, int32_t rank)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->waits.count; i++)
        if (s->waits.at[i].rank != rank)
            s->waits.at[kept++] = s->waits.at[i];
    s->waits.count = kept;
    answer_roll_calls(s, 0);
}

void hd__server_expire_waits(struct hd__server *s, double now)
{
    for (uint32_t i = 0; i < s->waits.count;) {
        if (s->waits.at[i].deadline > now) {
            i++;
            continue;
        }
        struct waiting_request w = s->waits.at[i];
        char text[256] = "";
        if (w.type == WIRE_ROLL_CALL) {
            answer_roll_call(s, &w); /* with those behind it, maybe some before it */
            i = 0;
            continue;
        }
        if (w.type == WIRE_BARRIER)
            missing_ranks(s, &w, text, sizeof text);
        struct server_conn *c = s->conn_of[w.rank];
        if (c)
            reply(c, w.id, HD_E_TIMEOUT, text, strlen(text));
        memmove(&s->waits.at[i], &s->waits.at[i + 1], (--s->waits.count - i) * sizeof w);
    }
}

static void add_wait(struct hd__server *s, struct server_conn *c, const struct hd__frame *f, double now)
{
    struct waiting_request w = {.rank = c->rank, .type = f->type, .id = f->id, .key_bytes = f->key_bytes};
    int mine = 0;
    for (uint32_t i = 0; i < s->waits.count; i++)
        mine += s->waits.at[i].rank == c->rank;
    if (mine >= WAITS_PER_RANK) {
        reply(c, f->id, HD_E_INVALID, "too many waiting requests", 25);
        return;
    }
    w.deadline = now + f->arg / 1e3;
    memcpy(w.key, f->key, f->key_bytes);
    hd__push(&s->waits, w);
}

/* ---- requests */

/* HELLO is answered with a challenge, and with this side's proof: who asks learns nothing by it, since the proof is
 * good for its nonce only. */
static void on_hello(struct server_conn *c, const struct hd__frame *f)
{
    uint8_t challenge[WIRE_CHALLENGE];
    struct hd__auth_handshake *h = &c->handshake;
    if (f->type != WIRE_SAY_HELLO || f->value_bytes != WIRE_HELLO || !hd__store_wire_u32(f->value + 4)) {
        c->closing = 1;
        return;
    }
    h->rank = hd__store_wire_u32(f->value);
    h->size = hd__store_wire_u32(f->value + 4);
    memcpy(h->rank_nonce, f->value + 8, WIRE_NONCE);
    hd__tls_bind(c->tls, c->secret);
    hd__auth_random(h->server_nonce, WIRE_NONCE);
    memcpy(challenge, h->server_nonce, WIRE_NONCE);
    hd__auth_prove(c->secret, HD__AUTH_SERVER, h, challenge + WIRE_NONCE);
    hd__server_conn_send(
        c, &(struct hd__frame){.type = WIRE_CHALLENGE_RANK, .value = challenge, .value_bytes = WIRE_CHALLENGE});
}

static void on_proof(struct hd__server *s, struct server_conn *c, const struct hd__frame *f)
{
    uint8_t body[8];
    int32_t rank = (int32_t)c->handshake.rank, size = (int32_t)c->handshake.size;
    char why[192] = "";
    if (f->type != WIRE_PROVE || f->value_bytes != WIRE_TAG ||
        !hd__auth_check_proof(c->secret, HD__AUTH_RANK, &c->handshake, f->value)) {
        hd__server_log_refused(s, c, "it did not prove that it knows the job's secret");
        c->closing = 1;
        return;
    }
    hd__auth_channel_init(&c->from, c->secret, HD__AUTH_RANK, &c->handshake);
    hd__auth_channel_init(&c->to, c->secret, HD__AUTH_SERVER, &c->handshake);
    c->proved = 1;
    if (size != s->options.size)
        snprintf(why, sizeof why,
                 s->options.members ? "launch.nodes is up to %d on node 0, and up to %d on this one"
                                    : "the job has %d ranks here and %d there",
                 s->options.size, size);
    else if (rank < 0 || rank >= size)
        snprintf(why, sizeof why, "%s %d is not one of 0 to %d", s->options.members ? "node" : "rank", rank, size - 1);
    else if (s->rank_state[rank] != HD__RANK_ABSENT)
        snprintf(why, sizeof why,
                 s->options.members ? "node %d is here already: two agents were started as this node"
                                    : "rank %d has connected before: two processes were started as this rank",
                 rank);
    if (why[0]) {
        const uint8_t *absent =
            s->options.members ? NULL : memchr(s->rank_state, HD__RANK_ABSENT, (size_t)s->options.size);
        if (absent) /* it should be that one, which others would await in vain */
            hd__server_end_job(s, HD_E_INVALID, (int32_t)(absent - s->rank_state), 0, why);
        reject(c, why, s->options.members && size == s->options.size && rank >= 0 && rank < size);
        return;
    }
    c->rank = rank;
    s->conn_of[rank] = c;
    c->in_room = WIRE_SEALED_MAX;
    s->rank_state[rank] = HD__RANK_CONNECTED;
    atomic_fetch_add(&s->come, 1);
    if (s->options.members)
        atomic_fetch_add(&s->visits[rank], 1);
    if (s->discovery >= 0 && !memchr(s->rank_state, HD__RANK_ABSENT, (size_t)size)) {
        close(s->discovery); /* nobody has to ask any more, and the name is free */
        s->discovery = -1;
    }
    if (!s->first_connected) {
        s->first_connected = c->last_heard;
        s->absent_logged = 0;
    }
    hd__store_wire_put_u32(body, (uint32_t)size);
    hd__store_wire_put_u32(body + 4, (uint32_t)s->options.rank);
    hd__server_conn_send(
        c, &(struct hd__frame){.type = WIRE_WELCOME, .arg = s->options.rank, .value = body, .value_bytes = 8});
    if (s->end.code != HD_OK)
        hd__server_send_end(s, c);
}

static void reach_memory(const struct hd__server_memory *memory, struct server_conn *c, const struct hd__frame *f)
{
    char key[WIRE_KEY_MAX + 1];
    uint8_t *value = NULL;
    size_t bytes = 0;
    int32_t code;
    snprintf(key, sizeof key, "%.*s", (int)f->key_bytes, f->key);
    if (f->type == WIRE_PUT) {
        code = memory->put(memory->user, key, f->value, f->value_bytes);
    } else {
        bytes = WIRE_VALUE_MAX;
        value = hd__alloc(bytes);
        code = memory->get(memory->user, key, value, &bytes);
    }
    reply(c, f->id, code, value, code ? 0 : bytes);
    free(value);
}

/* The value of a key, or of a roll call that is over. */
static void on_get(struct hd__server *s, struct server_conn *c, const struct hd__frame *f, double now)
{
    const struct hd__kv_item *item = hd__store_kv_get(&s->kv, f->key, f->key_bytes);
    if (item)
        reply(c, f->id, HD_OK, item->value, item->value_bytes);
    else
        add_wait(s, c, f, now);
    if (!item && f->type == WIRE_ROLL_CALL)
        answer_roll_calls(s, s->waits.count - 1);
}

/* Nanoseconds of this process' hd__now(), 64 bits. */
static void on_clock(struct server_conn *c, const struct hd__frame *f)
{
    uint8_t value[8];
    uint64_t now = (uint64_t)(hd__now() * 1e9);
    hd__store_wire_put_u32(value, (uint32_t)now);
    hd__store_wire_put_u32(value + 4, (uint32_t)(now >> 32));
    reply(c, f->id, HD_OK, value, sizeof value);
}

void hd__server_on_frame(struct hd__server *s, struct server_conn *c, const struct hd__frame *f, double now)
{
    char cause[512], reason[401];
    uint64_t origin;
    if (c->rank < 0) {
        if (c->handshake.size)
            on_proof(s, c, f);
        else
            on_hello(c, f);
        return;
    }
    if (s->options.memory && (f->type == WIRE_PUT || f->type == WIRE_GET)) {
        reach_memory(s->options.memory, c, f);
        return;
    }
    switch (f->type) {
    case WIRE_PUT:
        if (hd__store_kv_put(&s->kv, f->key, f->key_bytes, f->value, f->value_bytes) != 0) {
            reply(c, f->id, HD_E_NOMEM, "the store is full", 17);
            break;
        }
        answer_waits(s, WIRE_GET, f->key, f->key_bytes, f->value, f->value_bytes);
        reply(c, f->id, HD_OK, NULL, 0);
        break;
    case WIRE_REMOVE:
        hd__store_kv_remove(&s->kv, f->key, f->key_bytes);
        reply(c, f->id, HD_OK, NULL, 0);
        break;
    case WIRE_GET:
    case WIRE_ROLL_CALL:
        on_get(s, c, f, now);
        break;
    case WIRE_BARRIER:
        add_wait(s, c, f, now);
        if (are_here(s, WIRE_BARRIER, f->key, f->key_bytes, s->options.size))
            answer_waits(s, WIRE_BARRIER, f->key, f->key_bytes, NULL, 0);
        break;
    case WIRE_CLOCK:
        on_clock(c, f);
        break;
    case WIRE_ABORT:
        if (!hd__store_wire_end(f, &origin, reason, sizeof reason)) {
            c->closing = 1;
            break;
        }
        snprintf(cause, sizeof cause, "rank %d: %s", c->rank, reason);
        /* A rank that gives up because its transport lost another did not die itself. */
        hd__server_end_job(s, f->arg < 0 && f->arg != HD_E_PEER ? f->arg : HD_E_CANCELLED, c->rank, origin, cause);
        break;
    case WIRE_DUMP:
        hd__server_dump_put(&s->dumps, c->rank, f->arg == HD__DUMP_FINAL ? HD__DUMP_FINAL : HD__DUMP_SNAPSHOT, f->value,
                            f->value_bytes);
        break;
    case WIRE_WAITING:
        hd__server_request_dumps(s, f->arg / 1e3, now);
        break;
    case WIRE_BUSY:
        atomic_store(&s->busy_until, now + f->arg / 1e3);
        break;
    case WIRE_BYE:
        s->rank_state[c->rank] = HD__RANK_LEFT;
        s->exit_code = HD__MAX(s->exit_code, f->arg - 1);
        s->said += f->arg > 0;
        hd__server_drop_waits(s, c->rank);
        c->leaving = 1;
        c->closing = s->dumps.active != HD__DUMP_FINAL && s->report.what != HD__DUMP_FINAL;
        break;
    case WIRE_HEARTBEAT: /* answered, so that a rank notices when the server is silent */
        c->thread = c->local ? f->arg : 0;
        hd__server_conn_send(c, &(struct hd__frame){.type = WIRE_HEARTBEAT, .arg = hd__store_thread_id()});
        break;
    default:
        c->closing = 1; /* no request: a broken client, and so a dead rank */
    }
}
