#include "service/text/lineage.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "heddle/file.h"

/* Places of one order, or, where the hash differs, of two. */
static enum hd__kin compare_parts(const char *a, const char *b)
{
    uint64_t x[3] = {0}, y[3] = {0};
    sscanf(a, "%" SCNx64 ":%" SCNx64 "-%" SCNx64, &x[0], &x[1], &x[2]);
    sscanf(b, "%" SCNx64 ":%" SCNx64 "-%" SCNx64, &y[0], &y[1], &y[2]);
    return x[0] == y[0] && (x[2] <= y[1] || y[2] <= x[1]) ? HD__KIN_APART : HD__KIN_SPLITS;
}

/* One file that was tokenized, with the splits since then. */
static enum hd__kin compare_one(const char *a, const char *b)
{
    for (int splits = 0;; splits++) {
        size_t n = strcspn(a, " ,");
        if (n != strcspn(b, " ,") || memcmp(a, b, n) != 0)
            return splits ? compare_parts(a, b) : HD__KIN_NONE;
        a += n;
        b += n;
        if (*a != ' ' || *b != ' ')
            return *a == ' ' || *b == ' ' ? HD__KIN_PART : HD__KIN_SAME;
        a++;
        b++;
    }
}

static const char *next(const char *at)
{
    at = strchr(at, ',');
    return at ? at + 1 : "";
}

enum hd__kin hd__lineage_compare(const char *a, const char *b)
{
    enum hd__kin most = HD__KIN_NONE;
    for (; *a; a = next(a))
        for (const char *at = b; *at; at = next(at))
            if (!strncmp(a, at, 16)) /* there may be thousands of each */
                most = HD__MAX(most, compare_one(a, at));
    return most;
}

void hd__lineage_add(struct hd__text *made_of, json_t *inputs, const struct hd__indexed *x, const json_t *meta,
                     int64_t seed, uint64_t first, uint64_t end)
{
    char *bin = hd__format("%s.bin", x->prefix), *path = realpath(bin, NULL), own[17], part[64] = "";
    const char *at = json_string_value(json_object_get(meta, HD__LINEAGE_KEY));
    uint64_t bytes, order[] = {hd_file_ends(bin, &bytes), (uint64_t)seed};
    snprintf(own, sizeof own, "%016" PRIx64, order[0]);
    if (first < end)
        snprintf(part, sizeof part, " %016" PRIx64 ":%" PRIx64 "-%" PRIx64, hd__hash(order, sizeof order, 0), first,
                 end);
    for (at = at ? at : own; *at; at = next(at))
        hd__text_add(made_of, "%s%.*s%s", made_of->length ? "," : "", (int)strcspn(at, ","), at, part);
    json_object_update(inputs, json_object_get(meta, HD__LINEAGE_INPUTS));
    if (path)
        json_object_set_new(inputs, hd__printable(path), json_string(own));
    free(path);
    free(bin);
}
