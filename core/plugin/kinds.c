/* Kinds of plugins: the size of each kind's table and its mandatory slots. */
#include "core/plugin/plugin.h"

#define SLOT(type, slot)                   \
    {                                      \
#slot, offsetof(struct type, slot) \
    }

/* Every table of slots begins alike, which is how normalising reads caps without knowing the kind. */
#define HEAD(type)                                               \
    _Static_assert(offsetof(struct type, struct_size) == 0, ""); \
    _Static_assert(offsetof(struct type, caps) == sizeof(size_t), "")
HEAD(hd_device_ops);
HEAD(hd_comm_ops);
HEAD(hd_optimizer_ops);
HEAD(hd_ckpt_ops);
HEAD(hd_model_ops);
HEAD(hd_strategy_ops);
HEAD(hd_hook_ops);
HEAD(hd_data_ops);
HEAD(hd_metrics_ops);
HEAD(hd_tokenizer_ops);

static const struct hd__plugin_slot device_slots[] = {SLOT(hd_device_ops, open),     SLOT(hd_device_ops, close),
                                                      SLOT(hd_device_ops, supports), SLOT(hd_device_ops, prepare),
                                                      SLOT(hd_device_ops, launch),   SLOT(hd_device_ops, release)};

static const struct hd__plugin_slot comm_slots[] = {
    SLOT(hd_comm_ops, open), SLOT(hd_comm_ops, close),    SLOT(hd_comm_ops, group), SLOT(hd_comm_ops, send),
    SLOT(hd_comm_ops, recv), SLOT(hd_comm_ops, progress), SLOT(hd_comm_ops, test),  SLOT(hd_comm_ops, abort)};

static const struct hd__plugin_slot optimizer_slots[] = {SLOT(hd_optimizer_ops, learning_rate)};

static const struct hd__plugin_slot ckpt_slots[] = {
    SLOT(hd_ckpt_ops, open),  SLOT(hd_ckpt_ops, close),  SLOT(hd_ckpt_ops, begin),  SLOT(hd_ckpt_ops, write),
    SLOT(hd_ckpt_ops, flush), SLOT(hd_ckpt_ops, commit), SLOT(hd_ckpt_ops, cancel), SLOT(hd_ckpt_ops, list),
    SLOT(hd_ckpt_ops, size),  SLOT(hd_ckpt_ops, read),   SLOT(hd_ckpt_ops, remove), SLOT(hd_ckpt_ops, read_back)};

static const struct hd__plugin_slot model_slots[] = {SLOT(hd_model_ops, open), SLOT(hd_model_ops, close),
                                                     SLOT(hd_model_ops, info), SLOT(hd_model_ops, build)};

static const struct hd__plugin_slot hook_slots[] = {SLOT(hd_hook_ops, open), SLOT(hd_hook_ops, close)};

static const struct hd__plugin_slot data_slots[] = {SLOT(hd_data_ops, open), SLOT(hd_data_ops, close),
                                                    SLOT(hd_data_ops, info), SLOT(hd_data_ops, read)};

static const struct hd__plugin_slot metrics_slots[] = {SLOT(hd_metrics_ops, open), SLOT(hd_metrics_ops, write),
                                                       SLOT(hd_metrics_ops, close)};

static const struct hd__plugin_slot tokenizer_slots[] = {SLOT(hd_tokenizer_ops, open),   SLOT(hd_tokenizer_ops, close),
                                                         SLOT(hd_tokenizer_ops, info),   SLOT(hd_tokenizer_ops, encode),
                                                         SLOT(hd_tokenizer_ops, decode), SLOT(hd_tokenizer_ops, find)};

static const char *check_device(const void *ops)
{
    const struct hd_device_ops *o = ops;
    if (!o->alloc != !o->free)
        return "slots 'alloc' and 'free' go together, one is missing";
    if ((o->caps & HD_DEVICE_STREAMS) && (!o->alloc || !o->sync || !o->event || !o->event_free || !o->record ||
                                          !o->follow || !o->reached || !o->copy || !o->native))
        return "it says HD_DEVICE_STREAMS, but not all slots of streams are there: see heddle/device.h";
    if (!o->capture_begin != !o->capture_end || !o->capture_begin != !o->replay ||
        !o->capture_begin != !o->captured_free)
        return "slots 'capture_begin', 'capture_end', 'replay' and 'captured_free' go together, one is missing";
    return NULL;
}

static const char *check_optimizer(const void *ops)
{
    const struct hd_optimizer_ops *o = ops;
    if (!o->emit && !o->step)
        return "both slots 'emit' and 'step' are missing, it cannot update anything";
    if (o->emit && o->state)
        return "slot 'state' is for 'step': the instruction that 'emit' names has fp32 states of the parameters' size";
    if (o->n_states > 4)
        return "n_states is above 4, the most that struct hd_optim_args holds";
    if (o->n_states && !o->state_names)
        return "state_names is NULL, but n_states is not 0";
    for (uint32_t i = 0, k = 0; i < o->n_states; i++, k = 0) {
        if (!o->state_names[i] || !o->state_names[i][0])
            return "state_names has fewer names than n_states";
        while (strcmp(o->state_names[k], o->state_names[i]) != 0)
            k++;
        if (k < i)
            return "state_names has a name twice, and checkpoints' files are named after them";
        if (!hd__is_state_name(o->state_names[i]))
            return "state_names has a name with '/' or '.', or of over 80 bytes: checkpoints' files are named after it";
    }
    return NULL;
}

/* Experimental: the table may change, so the number must be ours exactly. */
static const char *check_strategy(const void *ops)
{
    const struct hd_strategy_ops *o = ops;
    if (o->api != HD_STRATEGY_API)
        return "built for another version of heddle/strategy.h: build it with this heddle's headers";
    if (!o->layout && !o->transform && !o->partition && !o->reduce)
        return "the slots 'layout', 'partition', 'transform' and 'reduce' are missing, it cannot do anything";
    return NULL;
}

static const char *check_hook(const void *ops)
{
    const struct hd_hook_ops *o = ops;
    if (!o->group && !o->begin && !o->end && !o->progress && !o->leave)
        return "the slots 'group', 'begin', 'end', 'progress' and 'leave' are missing, it cannot see anything";
    return NULL;
}

#define KIND(kind, type, last, slots, fault)                                                                   \
    {                                                                                                          \
        kind, "struct " #type, sizeof(struct type), HD__END(struct type, last), slots, HD__COUNT(slots), fault \
    }

/* `last` is the last field of ABI 1.0 and never changes: fields that are appended later may be absent. */
static const struct hd__plugin_kind kinds[] = {
    KIND(HD_KIND_DEVICE, hd_device_ops, peak_flops, device_slots, check_device),
    KIND(HD_KIND_COMM, hd_comm_ops, abort, comm_slots, NULL),
    KIND(HD_KIND_OPTIMIZER, hd_optimizer_ops, clip, optimizer_slots, check_optimizer),
    KIND(HD_KIND_CKPT, hd_ckpt_ops, read_back, ckpt_slots, NULL),
    KIND(HD_KIND_MODEL, hd_model_ops, config_json, model_slots, NULL),
    KIND(HD_KIND_HOOK, hd_hook_ops, leave, hook_slots, check_hook),
    KIND(HD_KIND_DATA, hd_data_ops, check, data_slots, NULL),
    KIND(HD_KIND_METRICS, hd_metrics_ops, close, metrics_slots, NULL),
    KIND(HD_KIND_TOKENIZER, hd_tokenizer_ops, find, tokenizer_slots, NULL),
    {HD_KIND_STRATEGY, "struct hd_strategy_ops", sizeof(struct hd_strategy_ops),
     HD__END(struct hd_strategy_ops, transform), NULL, 0, check_strategy},
};

const struct hd__plugin_kind *hd__plugin_kind_find(uint32_t kind)
{
    for (size_t i = 0; i < HD__COUNT(kinds); i++)
        if (kinds[i].kind == kind)
            return &kinds[i];
    return NULL;
}

uint32_t hd__plugin_kind_of_label(const char *label, const char **name)
{
    const char *dash = strchr(label, '-');
    size_t n = dash ? (size_t)(dash - label) : 0;
    if (!dash || !dash[1])
        return 0;
    if (name)
        *name = dash + 1;
#define KIND_MATCH(constant, value, text)                    \
    if (n == sizeof text - 1 && memcmp(label, text, n) == 0) \
        return constant;
    HD_KINDS(KIND_MATCH)
#undef KIND_MATCH
    return 0;
}
