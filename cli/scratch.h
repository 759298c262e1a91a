/* cli/scratch: a folder of a command's own for as long as it runs. */
#ifndef HD_CLI_SCRATCH_H
#define HD_CLI_SCRATCH_H

#include <jansson.h>

#include "core/base/base.h"

/* Makes NAME-XXXXXX in TMPDIR, or in /tmp where that is not set or too long. HD_E_IO. */
int32_t hd__scratch_make(const char *name, char folder[64], struct hd_error *err);
void hd__scratch_remove(const char *folder); /* with all that is in it */
/* The objects of a file of JSON lines in it, a new array: none where it is not there. */
json_t *hd__scratch_lines(const char *folder, const char *name);
void hd__scratch_show(const char *folder, const char *name); /* a file in it, on standard error */

#endif
