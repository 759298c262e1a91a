/* Hooks around a rank's transport, and calls to make through them. */
#ifndef HD_TESTS_RUNTIME_COMM_HOOKED_H
#define HD_TESTS_RUNTIME_COMM_HOOKED_H

#include "conformance/comm/ranks.h"
#include "runtime/comm/hook.h"
#include "runtime/rendezvous/store.h"

extern const char *hook_folder; /* for files; NULL: the working directory */
extern float hook_data[4][4096];

/* Puts a hook around the rank's transport: the plug-in of that name, whose options are "key=value key=value"; or
 * slots of the test's. These fail the rank (1) as EXPECT does. */
int wrap(struct rank *rank, const char *name, const char *words);
int wrap_with(struct rank *rank, const struct hd_hook_ops *ops, const char *name, const void *settings,
              struct hd__flight *flight);
int group_of_all(struct rank *rank, const char *name, struct hd_comm_group **group);
/* Sums and messages of many sizes, in place too, with the right results. */
int valid_calls(struct rank *rank);

/* An all_reduce from hook_data[from] to hook_data[to]. */
struct hd_comm_call sum(int from, int to, uint64_t count);
/* Starts it and waits for it. */
int32_t run(struct rank *rank, struct hd_comm_group *group, const struct hd_comm_call *call, struct hd_error *err);

#define HOOK_TEST(name, body, ranks)                                               \
    START_TEST(name)                                                               \
    {                                                                              \
        struct ranks_options o = {.size = ranks, .timeout = 30, .dead_after = 30}; \
        ck_assert_int_eq(run_ranks(&o, body, NULL), 0);                            \
    }                                                                              \
    END_TEST

#endif
