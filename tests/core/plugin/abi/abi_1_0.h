/* What an optimizer needs of heddle's headers as they were with ABI 1.0, verbatim but for comments: plugins that were
 * built then are still used. Nothing here may change. */
#include <stddef.h>
#include <stdint.h>

struct hd_host;
struct hd_attrs;

struct hd_error {
    size_t struct_size;
    int32_t code;
    int32_t scope;
    int64_t native;
    int64_t peer;
    char where[128];
    char message[1024];
};

struct hd_option {
    const char *name;
    const char *value;
    const char *unit;
    const char *help;
    const char *choices;
    const char *aliases;
    double min, max;
    uint32_t type;
    uint32_t level;
    uint32_t flags;
    uint32_t reserved;
    size_t offset;
};

struct hd_component {
    size_t struct_size;
    uint32_t kind;
    uint32_t reserved;
    const char *name;
    const char *summary;
    uint64_t caps;
    const struct hd_option *options;
    size_t n_options;
    size_t option_size;
    size_t settings_size;
    int32_t (*probe)(const struct hd_host *host, struct hd_error *err);
    const void *ops;
};

struct hd_plugin {
    char magic[8];
    size_t struct_size;
    uint32_t abi_minor;
    uint32_t reserved;
    const char *name;
    const char *version;
    const char *licence;
    const struct hd_component *const *components;
};

struct hd_range {
    int64_t first;
    int64_t count;
    double value;
};

struct hd_optim_args {
    size_t struct_size;
    int64_t first, count;
    const float *grad;
    float *param;
    float *state[4];
    double norm2;
    const double *hyper;
    const struct hd_range *decay;
    uint64_t n_decay;
};

struct hd_optimizer_ops {
    size_t struct_size;
    uint64_t caps;
    uint32_t n_states;
    uint32_t reserved;
    const char *const *state_names;
    double (*decay)(const void *settings, const char *param, uint32_t ndim);
    int32_t (*emit)(const void *settings, uint32_t *op, struct hd_attrs *attrs, struct hd_error *err);
    int32_t (*step)(const void *settings, const struct hd_optim_args *args);
    uint32_t (*states)(const void *settings);
    double (*learning_rate)(const void *settings);
    double (*clip)(const void *settings);
    int32_t (*check)(const void *settings, struct hd_error *err);
};

enum { HD_OK = 0, HD_E_INVALID = -1, HD_KIND_OPTIMIZER = 4, HD_OPT_FLOAT = 3, HD_OPTION_GLOBAL = 1 };
enum { HD_HYPER_LR = 0, HD_HYPER_INV_SCALE = 2, HD_HYPER_SKIP = 3 };
#define HD_OPTIM_FLAT (UINT64_C(1) << 0)
