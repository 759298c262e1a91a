/* cli/plan/page: heddle plan --html: a plan, or several, as a page that needs nothing beside it. */
#ifndef HD_CLI_PLAN_PAGE_H
#define HD_CLI_PLAN_PAGE_H

#include <jansson.h>

#include "analysis/plan/machine_file.h"

struct hd__plan_page {
    const char *const *words; /* of the command line */
    const char *name;         /* of the job */
    int64_t ranks;            /* 0: several numbers of them */
    const struct hd__machine *machine;
    const char *assumed; /* --assume; NULL: nothing */
    const char *job;     /* its file; NULL: that of the fastest plan, where there is one */
};

/* `plan`: what --json prints: of a single plan, of --search, --fewest, --sweep, --compare or --scaling. */
int32_t hd__plan_write_page(const char *path, const struct hd__plan_page *page, const json_t *plan,
                            struct hd_error *err);

#endif
