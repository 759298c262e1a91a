/* The end of a suite's main. */
#ifndef HD_TESTS_SUITE_H
#define HD_TESTS_SUITE_H

#include <check.h>

/* Runs the suite, which is freed; returns what main returns: 0 where no test failed. CK_VERBOSITY says how much is
 * printed. */
static inline int suite_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

/* The same for a suite of one case. */
static inline int suite_run_case(const char *name, TCase *tests)
{
    Suite *suite = suite_create(name);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}

#endif
