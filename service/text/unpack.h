/* service/text/unpack: the bytes of a file, unpacked where it is gzip or zstd. Which of them it is its first bytes say,
 * not its name. Files that cannot be text are refused by name: Parquet, archives, images, weights. */
#ifndef HD_SERVICE_TEXT_UNPACK_H
#define HD_SERVICE_TEXT_UNPACK_H

#include "core/base/base.h"

struct hd__unpack;

int32_t hd__unpack_open(const char *path, struct hd__unpack **unpack, struct hd_error *err);
void hd__unpack_close(struct hd__unpack *unpack); /* NULL is fine */
/* Up to `room` bytes; *got is 0 only at the end. A file that ends within a compressed frame is HD_E_CORRUPT. */
int32_t hd__unpack_read(struct hd__unpack *unpack, char *out, size_t room, size_t *got, struct hd_error *err);
/* Bytes of the file itself that were read: what progress counts. */
uint64_t hd__unpack_consumed(const struct hd__unpack *unpack);

#endif
