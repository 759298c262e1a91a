/* libFuzzer over index.json of checkpoints. JSON gets the checksum that is right for it, so that what lies behind
 * the checksum is fuzzed as well. tests/fuzz/run builds and runs it. */
#include <stdlib.h>

#include "service/checkpoint/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char *with_checksum(const uint8_t *data, size_t bytes)
{
    char sum[17];
    json_t *json = json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, NULL);
    json_object_del(json, "checksum");
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (text) {
        snprintf(sum, sizeof sum, "%016llx", (unsigned long long)hd__hash(text, strlen(text), 0));
        free(text);
        json_object_set_new(json, "checksum", json_string(sum));
        text = json_dumps(json, 0);
    }
    json_decref(json);
    return text;
}

static void parse(const char *text, size_t bytes)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__ckpt *c = hd__alloc(sizeof *c);
    snprintf(c->name, sizeof c->name, "step-00000001");
    if (hd__ckpt_index_parse(c, text, bytes, &err)) {
        if (!strstr(err.message, "index.json"))
            abort();
    } else {
        /* what the index says must be usable: every block of every tensor is found in its file */
        uint64_t begin, length;
        for (uint64_t b = 0; b < c->layout.n_blocks && b < 1000; b++)
            if (hd__ckpt_locate_block(&c->layout, b, &begin, &length) >= c->layout.n_files || length > HD__CKPT_BLOCK)
                abort();
        if (hd__ckpt_check_tensors(c, c->tensors, c->n_tensors, &err))
            abort();
    }
    hd__ckpt_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = with_checksum(data, bytes);
    parse((const char *)data, bytes);
    if (text)
        parse(text, strlen(text));
    free(text);
    return 0;
}
