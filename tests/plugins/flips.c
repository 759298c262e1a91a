/* device-flips: device-cpu on a processor that makes errors: from a rank's Nth product on, every other one has a bit
 * that is wrong. */
#include <stdlib.h>

#include "heddle/device.h"
#include "heddle/host.h"
#include "heddle/ops.h"
#include "tests/plugins/inner.h"

struct settings {
    int64_t cpu[32]; /* of the inner plug-in */
    int64_t rank, at;
};

struct hd_kernel {
    struct hd_kernel *cpu;
    uint8_t *product; /* NULL: another op */
};

static struct hd_device_ops ops;
static const struct hd_device_ops *cpu;
static const struct settings *asked;
static int64_t products;
static int is_bad;

static int32_t flips_open(const struct hd_host *host, const void *settings, const struct hd_device_place *place,
                          struct hd_device **device, struct hd_error *err)
{
    asked = settings;
    is_bad = place->local_rank == asked->rank;
    return cpu->open(host, asked->cpu, place, device, err);
}

static int32_t flips_prepare(struct hd_device *device, const struct hd_instr_desc *instr, struct hd_kernel **kernel,
                             struct hd_error *err)
{
    struct hd_kernel *k = calloc(1, sizeof *k);
    int32_t rc = k ? cpu->prepare(device, instr, &k->cpu, err) : hd_fail(err, HD_E_NOMEM, "no memory");
    if (rc) {
        free(k);
        return rc;
    }
    k->product = instr->op == HD_OP_EINSUM ? instr->out[0].data : NULL;
    *kernel = k;
    return HD_OK;
}

static int32_t flips_launch(struct hd_device *device, struct hd_kernel *kernel, uint32_t stream, struct hd_error *err)
{
    int32_t rc = cpu->launch(device, kernel->cpu, stream, err);
    if (!rc && kernel->product && is_bad && ++products >= asked->at && products % 2)
        *kernel->product ^= 1;
    return rc;
}

static void flips_release(struct hd_device *device, struct hd_kernel *kernel)
{
    cpu->release(device, kernel->cpu);
    free(kernel);
}

static struct hd_option options[16] = {
    {.name = "rank",
     .type = HD_OPT_INT,
     .value = "0",
     .max = 1e6,
     .help = "the rank of this machine with the bad processor",
     .offset = offsetof(struct settings, rank)},
    {.name = "at",
     .type = HD_OPT_INT,
     .value = "1",
     .max = 1e15,
     .help = "its first product that may be wrong",
     .offset = offsetof(struct settings, at)},
};

static struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_DEVICE,
    .name = "flips",
    .summary = "a processor with errors: for tests",
    .options = options,
    .n_options = 2,
    .option_size = sizeof *options,
    .settings_size = sizeof(struct settings),
    .ops = &ops,
};

HD_PLUGIN_DESCRIPTOR(plugin, "device-flips", "0.1.0", "Apache-2.0", component);

__attribute__((visibility("default"))) const struct hd_plugin *HD_PLUGIN_ENTRY(void);
const struct hd_plugin *HD_PLUGIN_ENTRY(void)
{
    const struct hd_component *inner = inner_component(DEVICE_CPU);
    if (!inner ||
        !inner_options(&component, options, 2, sizeof options / sizeof *options, inner, offsetof(struct settings, cpu)))
        return NULL;
    cpu = inner->ops;
    ops = *cpu;
    ops.open = flips_open;
    ops.prepare = flips_prepare;
    ops.launch = flips_launch;
    ops.release = flips_release;
    return &plugin;
}
