/* A scratch folder for a test, and seeded damage for files. */
#ifndef HD_TESTS_SUPPORT_SCRATCH_H
#define HD_TESTS_SUPPORT_SCRATCH_H

#include <check.h>
#include <stdint.h>
#include <stdlib.h>

#include "core/base/base.h"

struct scratch {
    char dir[64];
};

void scratch_init(struct scratch *s);
void scratch_finish(const struct scratch *s); /* removes all of it */
/* "DIR/NAME"; the text lives until the process ends. */
const char *scratch_path(const struct scratch *s, const char *name);
const char *scratch_write(const struct scratch *s, const char *name, const void *data, size_t bytes);
void *scratch_read(const char *path, size_t *bytes); /* free it */

/* xorshift64*: the same numbers everywhere */
uint64_t scratch_random(uint64_t *state);

/* Damages data in one of several ways: flipped bits, bytes that parsers fear, a cut, a copied stretch.
 * Returns the new length, at most `bytes`. */
size_t scratch_damage(uint64_t *state, uint8_t *data, size_t bytes);

/* Runs a suite of one list of tests: {NULL} ends it. */
struct scratch_test {
    const char *name;
    const TTest *test;
};
int scratch_run(const char *name, const struct scratch_test *tests);

#define ck_ok(call)                                                             \
    do {                                                                        \
        int32_t ck_rc = (call);                                                 \
        ck_assert_msg(ck_rc == HD_OK, "%s: %d: %s", #call, ck_rc, err.message); \
    } while (0)
/* The call fails with this code and its message has these words. */
#define ck_refused(call, rc_wanted, words)                                                                       \
    do {                                                                                                         \
        int32_t ck_rc = (call);                                                                                  \
        ck_assert_msg(ck_rc == (rc_wanted), "%s: %d (wanted %d): %s", #call, ck_rc, rc_wanted, err.message);     \
        ck_assert_msg(strstr(err.message, words) != NULL, "%s: \"%s\" lacks \"%s\"", #call, err.message, words); \
    } while (0)

#endif
