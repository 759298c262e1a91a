/* The table, and whether there is a GPU. */
#include "internal.h"

static int32_t probe(const struct hd_host *host, struct hd_error *err)
{
    struct nc_api api = {0};
    int32_t rc = nc_driver_open(&api, "libcuda.so.1", err);
    (void)host; /* NCCL itself may lie where only the job knows */
    return rc ? rc : nc_driver_tried(&api, err);
}

#define CAPS (HD_COMM_STREAM_ORDERED | HD_COMM_INDEPENDENT_P2P | HD_COMM_DEVICE_MEMORY | HD_COMM_ANY_ORDER)

static const struct hd_comm_ops ops = {
    .struct_size = sizeof ops,
    .caps = CAPS,
    .open = nc_open,
    .close = nc_close,
    .group = nc_group,
    .group_free = nc_group_free,
    .collective = nc_collective,
    .send = nc_send,
    .recv = nc_recv,
    .progress = nc_progress,
    .test = nc_test,
    .wait = nc_wait,
    .abort = nc_abort,
};

HD_PLUGIN(
    "comm-nccl", "0.1.0", "Apache-2.0", .kind = HD_KIND_COMM, .name = "nccl",
    .summary = "collectives and messages between NVIDIA GPUs by NCCL 2.18 and later, ordered by the device's stream",
    .caps = CAPS, HD_OPTIONS(nc_options, struct nc_settings), .probe = probe, .ops = &ops)
