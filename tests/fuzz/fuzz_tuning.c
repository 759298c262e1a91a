/* libFuzzer over files of `comm.tune`: whatever the bytes are, rules, or an error that begins with the place.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I. -Iinclude \
 *       tests/fuzz/fuzz_tuning.c runtime/comm/tuning_file.c \
 *       runtime/comm/algorithms/[a-z]*.c core/base/[a-z]*.c -lyaml -ljansson -lxxhash -lm -lpthread -o fuzz
 *   mkdir -p corpus && build/heddle bench --comm libfabric --tune corpus/a.json \
 *       && ./fuzz -max_total_time=600 -max_len=4096 corpus
 */
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
