/* How the benchmarks of a device plugin begin. */
#ifndef HD_BENCH_DEVICE_H
#define HD_BENCH_DEVICE_H

#include "plugin.h"

#include "heddle/device.h"

struct bench_device {
    const struct hd_device_ops *ops;
    struct hd_device *device;
    _Alignas(16) char settings[256];
};

static void bench_open(struct bench_device *x, const char *path, const char *const *words)
{
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = 1};
    struct hd_error err = HD_ERROR_INIT;
    x->ops = bench_component(path, HD_KIND_DEVICE, words, x->settings, sizeof x->settings)->ops;
    bench_check(x->ops->open(&bench_host, x->settings, &place, &x->device, &err), &err, path);
}

#endif
