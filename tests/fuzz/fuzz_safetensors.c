/* libFuzzer over the safetensors reader: whatever the bytes are, an error that names the file, or tensors that read.
 * tests/fuzz/run builds and runs it. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "service/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void read_all(const struct hd__ckpt_st *st)
{
    struct hd_error err = HD_ERROR_INIT;
    for (uint32_t i = 0; i < hd__ckpt_st_count(st); i++) {
        const struct hd__ckpt_st_tensor *t = hd__ckpt_st_tensor_at(st, i);
        void *out = malloc(t->bytes + 1);
        float *floats = malloc((t->count + 1) * sizeof *floats);
        if (hd__ckpt_st_read(st, t, 0, t->bytes, out, &err) || hd__ckpt_st_find(st, t->name) == NULL)
            abort();
        hd__ckpt_st_read_f32(st, t, 0, t->count, floats, &err);
        free(out);
        free(floats);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__ckpt_st *st;
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    if (!hd__ckpt_st_open(path, &st, &err)) {
        read_all(st);
        hd__ckpt_st_close(st);
    } else if (!strstr(err.message, path)) {
        abort();
    }
    close(fd);
    return 0;
}
