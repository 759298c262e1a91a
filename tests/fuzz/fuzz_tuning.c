/* libFuzzer over files of `comm.tune`: whatever the bytes are, rules, or an error that begins with the place.
 * tests/fuzz/run builds and runs it. */
#include <stdlib.h>

#include "runtime/comm/tuning_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct hd__tuning tuning = {0};
    struct hd_error err = HD_ERROR_INIT;
    if (hd__comm_tuning_parse("fuzz", (const char *)data, bytes, &tuning, &err) && strncmp(err.message, "fuzz", 4))
        abort();
    hd__comm_tuning_free(&tuning);
    return 0;
}
