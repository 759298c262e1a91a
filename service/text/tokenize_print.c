/* Progress for people. */
#include <inttypes.h>
#include <unistd.h>

#include "service/text/tokenize.h"

static void add_seconds(struct hd__text *text, double seconds)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        hd__text_add(text, "%" PRId64 " h %" PRId64 " min", s / 3600, s / 60 % 60);
    else if (s >= 60)
        hd__text_add(text, "%" PRId64 " min %" PRId64 " s", s / 60, s % 60);
    else
        hd__text_add(text, "%" PRId64 " s", s);
}

int32_t hd__tokenize_print(void *print, const struct hd__tokenize_state *s, struct hd_error *err)
{
    struct hd__tokenize_print *p = print;
    int terminal = isatty(STDERR_FILENO);
    struct hd__text text = {0};
    char all[32], speed[32];
    double rate = s->seconds > 0 ? (double)(s->bytes - s->begun_at) / s->seconds : 0;
    (void)err;
    if (s->seconds - p->last < (terminal ? 0.5 : 10))
        return HD_OK;
    p->last = s->seconds;
    hd__text_add(&text, "%s: %.1f %% of %s, %" PRIu64 " documents, %" PRIu64 " tokens, %s/s, ", p->what,
                 s->all_bytes ? 100 * (double)s->bytes / (double)s->all_bytes : 100.0,
                 hd__bytes_text(s->all_bytes, all), s->documents, s->tokens, hd__bytes_text((uint64_t)rate, speed));
    add_seconds(&text, rate > 0 ? (double)(s->all_bytes - s->bytes) / rate : 0);
    hd__text_add(&text, " left");
    if (terminal)
        fprintf(stderr, "\r%s\033[K", hd__printable(text.at));
    else
        hd__log(HD_LOG_INFO, NULL, "%s", text.at);
    p->on_line = terminal;
    hd__text_free(&text);
    return HD_OK;
}

void hd__tokenize_print_end(struct hd__tokenize_print *p)
{
    if (p->on_line)
        fputc('\n', stderr);
    p->on_line = 0;
}
