/* A plug-in of tests whose hardware or library is not here: HEDDLE_TEST_ABSENT names one. */
#ifndef HD_TESTS_PLUGINS_ABSENT_H
#define HD_TESTS_PLUGINS_ABSENT_H

#include <stdlib.h>

#include "heddle/types.h"

static inline int32_t absent(const char *label, struct hd_error *err)
{
    const char *which = getenv("HEDDLE_TEST_ABSENT");
    return which && !strcmp(which, label) ? hd_fail(err, HD_E_UNSUPPORTED, "there is no %s", label) : HD_OK;
}

#endif
