/* NAME.loss: a bit for each token of NAME.bin, whether the loss counts its prediction; for data.loss: completion. */
#include <stdlib.h>

#include "heddle/file.h"
#include "internal.h"

#define LOSS_MAGIC "HDLOSS1\n"
enum { LOSS_HEADER = 8, LOSS_ENDS = 8 }; /* bytes; of the latter, hd_file_ends of NAME.bin, older files have none */

static int is_marked(const struct hd_data *f, uint64_t token)
{
    return f->loss[LOSS_HEADER + token / 8] >> token % 8 & 1;
}

static int32_t check_loss(const struct hd_data *f, const char *path, struct hd_error *err)
{
    uint64_t wanted = LOSS_HEADER + f->count / 8 + (f->count % 8 > 0), at = LOSS_HEADER, bytes;
    int knows = f->loss_bytes == wanted + LOSS_ENDS;
    if (f->loss_bytes < LOSS_HEADER || memcmp(f->loss, LOSS_MAGIC, LOSS_HEADER))
        return hd_fail(err, HD_E_CORRUPT, "%s: does not begin with HDLOSS1", path);
    if (f->loss_bytes != wanted && !knows)
        return hd_fail(err, HD_E_CORRUPT, "%s: %lu bytes; the marks of the %lu tokens of %s take %lu: write both again",
                       path, (unsigned long)f->loss_bytes, (unsigned long)f->count, f->path, (unsigned long)wanted);
    if (knows && !f->http && read_le(f->loss + wanted, LOSS_ENDS) != hd_file_ends(f->path, &bytes))
        return hd_fail(err, HD_E_CORRUPT,
                       "%s: marks the tokens of another file than this %s: copy both together, or write both again",
                       path, f->path);
    while (at < wanted && !f->loss[at])
        at++;
    return at < wanted ? HD_OK
                       : hd_fail(err, HD_E_INVALID,
                                 "%s: marks no token, so there is nothing to train on: its documents have no "
                                 "completions; say data.loss: all to train on all tokens",
                                 path);
}

int32_t tokens_open_loss(struct hd_data *f, struct hd_error *err)
{
    char *path = tokens_beside(f->path, "loss");
    int32_t rc;
    if (!path)
        return hd_fail(err, HD_E_NOMEM, "data-tokens: no memory");
    rc = tokens_load_beside(f, "loss", &f->loss, &f->loss_bytes, err);
    if (rc == HD_E_NOTFOUND)
        rc = hd_fail(err, HD_E_NOTFOUND,
                     "%s: there is no such file, and data.loss: completion reads from it what the loss counts of %s: "
                     "write both by `heddle data tokenize --chat-template NAME`, or say data.loss: all",
                     path, f->path);
    if (!rc)
        rc = check_loss(f, path, err);
    free(path);
    return rc;
}

int32_t tokens_labels(struct hd_data *f, uint64_t first, uint64_t count, int64_t *labels, struct hd_error *err)
{
    if (first > f->count || count > f->count - first)
        return hd_fail(err, HD_E_INVALID, "%s: labels %lu to %lu of %lu were asked for", f->path, (unsigned long)first,
                       (unsigned long)(first + count), (unsigned long)f->count);
    uint64_t after = count && first + count == f->count; /* nothing follows the last token */
    int32_t rc = count > after ? tokens_read(f, first + 1, count - after, labels, err) : HD_OK;
    for (uint64_t i = 0; i < count && !rc; i++)
        if ((after && i + 1 == count) || !is_marked(f, first + i + 1))
            labels[i] = TOKENS_NO_LABEL;
    return rc;
}
