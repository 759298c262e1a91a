/* runtime/comm/tuning_file: reads and writes the rules of algorithms/select.h:
 *
 *     {"heddle_tuning": 1, "rules": [
 *       {"op": "all_reduce", "ranks": 4, "bytes": 65536, "use": "doubling", "chunk": 262144}]}
 *
 * ranks, bytes: upper bounds; default: any. chunk: bytes of a message; default: 256 KiB. */
#ifndef HD_RUNTIME_COMM_TUNING_FILE_H
#define HD_RUNTIME_COMM_TUNING_FILE_H

#include "runtime/comm/algorithms/select.h"

/* Errors are HD_E_INVALID and start with the position, "tune.json:3:12: ". */
int32_t hd__comm_tuning_parse(const char *name, const char *text, size_t bytes, struct hd__tuning *tuning,
                              struct hd_error *err);
int32_t hd__comm_tuning_read(const char *path, struct hd__tuning *tuning, struct hd_error *err);
#define HD__TUNING_BEGINS "{\"heddle_tuning\": " /* first bytes of such a file */
int32_t hd__comm_tuning_write(const char *path, const struct hd__tuning *tuning, struct hd_error *err);
void hd__comm_tuning_free(struct hd__tuning *tuning);

#endif
