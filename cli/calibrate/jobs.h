/* cli/calibrate/jobs: small jobs that train, since an instruction takes another time among others, and beside other
 * ranks, than alone. */
#ifndef HD_CLI_CALIBRATE_JOBS_H
#define HD_CLI_CALIBRATE_JOBS_H

#include "core/base/base.h"

struct hd__calibrate_jobs {
    const char *machine, *device, *comm; /* machine: the text of its file so far */
    const uint32_t *dtypes;              /* of compute */
    uint32_t n_dtypes, ranks, steps;     /* steps: of each job */
};
/* Adds to `out` the rows `instructions` of a machine file. Trains in processes of its own, for about 10 seconds a
 * dtype with 6 steps. */
int32_t hd__calibrate_jobs(const struct hd__calibrate_jobs *jobs, struct hd__text *out, struct hd_error *err);

#endif
