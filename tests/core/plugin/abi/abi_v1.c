/* Made by freeze.py. Every constant and every field of the public ABI, as ABI 1.0 has it: a build that fails here
 * breaks plugins that are already built. Fields and constants may be appended, nothing else may change. Before the
 * release of 1.0, or after appending: python3 tests/core/plugin/abi/freeze.py, and look at the diff.
 *
 * The function at the end of each struct makes it visible in the library's debug information, which abi_v1.abi
 * shows. */
#include "heddle/ckpt.h"
#include "heddle/comm.h"
#include "heddle/data.h"
#include "heddle/device.h"
#include "heddle/hook.h"
#include "heddle/host.h"
#include "heddle/metrics.h"
#include "heddle/model.h"
#include "heddle/ops.h"
#include "heddle/optimizer.h"
#include "heddle/plugin.h"
#include "heddle/program.h"
#include "heddle/strategy.h"
#include "heddle/tokenizer.h"
#include "heddle/types.h"

#if UINTPTR_MAX != UINT64_MAX
#error "the frozen offsets are those of 64-bit pointers"
#endif

#define CONSTANT(name, value) _Static_assert((name) == (value), #name " has changed: see the top of this file")
#define STRUCT(type, bytes)                                                        \
    _Static_assert(sizeof(struct type) >= (bytes), "struct " #type " has shrunk"); \
    void abi_##type(const struct type *p);                                         \
    void abi_##type(const struct type *p)                                          \
    {                                                                              \
        (void)p;                                                                   \
    }                                                                              \
    _Static_assert(1, "")
#define FIELD(type, field, at, ...)                                                                   \
    _Static_assert(offsetof(struct type, field) == (at), #type "." #field " has moved: see the top"); \
    _Static_assert(__builtin_types_compatible_p(__typeof__(((struct type *)0)->field), __VA_ARGS__),  \
                   #type "." #field " has another type: see the top")

_Static_assert(sizeof HD_PLUGIN_MAGIC == 9, "HD_PLUGIN_MAGIC has changed");
_Static_assert(__builtin_memcmp(HD_PLUGIN_MAGIC, "heddle\n\x1a", 9) == 0, "HD_PLUGIN_MAGIC has changed");
_Static_assert(__builtin_strcmp(HD_PLUGIN_SYMBOL, "heddle_plugin_v1") == 0, "HD_PLUGIN_SYMBOL has changed");

CONSTANT(HD_OK, 0);
CONSTANT(HD_E_INVALID, -1);
CONSTANT(HD_E_UNSUPPORTED, -2);
CONSTANT(HD_E_NOMEM, -3);
CONSTANT(HD_E_IO, -4);
CONSTANT(HD_E_TIMEOUT, -5);
CONSTANT(HD_E_PEER, -6);
CONSTANT(HD_E_MISMATCH, -7);
CONSTANT(HD_E_CANCELLED, -8);
CONSTANT(HD_E_CORRUPT, -9);
CONSTANT(HD_E_NOTFOUND, -10);
CONSTANT(HD_E_INTERNAL, -11);
CONSTANT(HD_SCOPE_OP, 0);
CONSTANT(HD_SCOPE_PEER, 1);
CONSTANT(HD_SCOPE_GROUP, 2);
CONSTANT(HD_SCOPE_DEVICE, 3);
CONSTANT(HD_SCOPE_PROCESS, 4);
CONSTANT(HD_F32, 1);
CONSTANT(HD_BF16, 2);
CONSTANT(HD_F16, 3);
CONSTANT(HD_F64, 4);
CONSTANT(HD_I32, 5);
CONSTANT(HD_U8, 6);
CONSTANT(HD_SUM, 1);
CONSTANT(HD_MAX, 2);
CONSTANT(HD_AVG, 3);
CONSTANT(HD_AXIS_PP, 0);
CONSTANT(HD_AXIS_DP_REPLICATE, 1);
CONSTANT(HD_AXIS_DP_SHARD, 2);
CONSTANT(HD_AXIS_CP, 3);
CONSTANT(HD_AXIS_EP, 4);
CONSTANT(HD_AXIS_TP, 5);
CONSTANT(HD_AXIS_TQ, 6);
CONSTANT(HD_LOG_ERROR, 0);
CONSTANT(HD_LOG_WARN, 1);
CONSTANT(HD_LOG_INFO, 2);
CONSTANT(HD_LOG_DEBUG, 3);
CONSTANT(HD_KIND_DEVICE, 1);
CONSTANT(HD_KIND_COMM, 2);
CONSTANT(HD_KIND_STRATEGY, 3);
CONSTANT(HD_KIND_OPTIMIZER, 4);
CONSTANT(HD_KIND_CKPT, 5);
CONSTANT(HD_KIND_MODEL, 6);
CONSTANT(HD_KIND_HOOK, 7);
CONSTANT(HD_KIND_DATA, 8);
CONSTANT(HD_KIND_METRICS, 9);
CONSTANT(HD_KIND_TOKENIZER, 10);
CONSTANT(HD_OPT_BOOL, 1);
CONSTANT(HD_OPT_INT, 2);
CONSTANT(HD_OPT_FLOAT, 3);
CONSTANT(HD_OPT_SIZE, 4);
CONSTANT(HD_OPT_DURATION, 5);
CONSTANT(HD_OPT_ENUM, 6);
CONSTANT(HD_OPT_STRING, 7);
CONSTANT(HD_OPT_LIST, 8);
CONSTANT(HD_LEVEL_USER, 0);
CONSTANT(HD_LEVEL_TUNER, 1);
CONSTANT(HD_LEVEL_DEV, 2);
CONSTANT(HD_OP_EINSUM, 1);
CONSTANT(HD_OP_ADD, 2);
CONSTANT(HD_OP_BIAS, 3);
CONSTANT(HD_OP_BIAS_DW, 4);
CONSTANT(HD_OP_RMSNORM, 5);
CONSTANT(HD_OP_RMSNORM_DX, 6);
CONSTANT(HD_OP_RMSNORM_DW, 7);
CONSTANT(HD_OP_LAYERNORM, 8);
CONSTANT(HD_OP_LAYERNORM_DX, 9);
CONSTANT(HD_OP_LAYERNORM_DW, 10);
CONSTANT(HD_OP_ROPE, 11);
CONSTANT(HD_OP_ATTENTION, 12);
CONSTANT(HD_OP_ATTENTION_GRAD, 13);
CONSTANT(HD_OP_SWIGLU, 14);
CONSTANT(HD_OP_SWIGLU_GRAD, 15);
CONSTANT(HD_OP_GELU, 16);
CONSTANT(HD_OP_GELU_GRAD, 17);
CONSTANT(HD_OP_EMBED, 18);
CONSTANT(HD_OP_EMBED_DW, 19);
CONSTANT(HD_OP_POSITION, 20);
CONSTANT(HD_OP_POSITION_DW, 21);
CONSTANT(HD_OP_ROWMAX, 22);
CONSTANT(HD_OP_XENT_LOCAL, 23);
CONSTANT(HD_OP_NLL, 24);
CONSTANT(HD_OP_NLL_GRAD, 25);
CONSTANT(HD_OP_XENT_GRAD, 26);
CONSTANT(HD_OP_TOTAL, 27);
CONSTANT(HD_OP_SPREAD, 28);
CONSTANT(HD_OP_XENT_HEAD, 29);
CONSTANT(HD_OP_EINSUM_BIAS, 30);
CONSTANT(HD_OP_EINSUM_GELU, 31);
CONSTANT(HD_OP_EINSUM_GELU_GRAD, 32);
CONSTANT(HD_OP_EINSUM_BIAS_DW, 33);
CONSTANT(HD_OP_ADD_RMSNORM, 34);
CONSTANT(HD_OP_ADD_LAYERNORM, 35);
CONSTANT(HD_OP_RMSNORM_DX_ADD, 36);
CONSTANT(HD_OP_LAYERNORM_DX_ADD, 37);
CONSTANT(HD_OP_RMSNORM_GRAD_ADD, 38);
CONSTANT(HD_OP_LAYERNORM_GRAD_ADD, 43);
CONSTANT(HD_OP_ATTENTION_MERGE, 39);
CONSTANT(HD_OP_SLICE, 40);
CONSTANT(HD_OP_MASK, 41);
CONSTANT(HD_OP_PAD, 42);
CONSTANT(HD_OP_ALL_REDUCE, 50);
CONSTANT(HD_OP_ALL_GATHER, 51);
CONSTANT(HD_OP_REDUCE_SCATTER, 52);
CONSTANT(HD_OP_ALL_TO_ALL, 53);
CONSTANT(HD_OP_BROADCAST, 54);
CONSTANT(HD_OP_SEND, 55);
CONSTANT(HD_OP_RECV, 56);
CONSTANT(HD_OP_SHIFT, 57);
CONSTANT(HD_OP_ENCODE, 100);
CONSTANT(HD_OP_DECODE, 101);
CONSTANT(HD_OP_ORTHOGONALISE, 102);
CONSTANT(HD_OP_CUSTOM, 110);
CONSTANT(HD_OP_FEED, 60);
CONSTANT(HD_OP_FILL0, 61);
CONSTANT(HD_OP_ACCUM, 62);
CONSTANT(HD_OP_COPY, 63);
CONSTANT(HD_OP_BLEND, 66);
CONSTANT(HD_OP_RELEASE, 64);
CONSTANT(HD_OP_WAIT, 65);
CONSTANT(HD_OP_SUMSQ, 70);
CONSTANT(HD_OP_ADAMW, 71);
CONSTANT(HD_OP_SGD, 72);
CONSTANT(HD_OP_OPTIM_STEP, 73);
CONSTANT(HD_OP_GATE, 80);
CONSTANT(HD_OP_GATE_GRAD, 81);
CONSTANT(HD_OP_ROUTE, 82);
CONSTANT(HD_OP_DISPATCH, 83);
CONSTANT(HD_OP_DISPATCH_DX, 84);
CONSTANT(HD_OP_GROUPED, 85);
CONSTANT(HD_OP_GROUPED_DW, 86);
CONSTANT(HD_OP_COMBINE, 87);
CONSTANT(HD_OP_COMBINE_DZ, 88);
CONSTANT(HD_OP_COMBINE_DG, 89);
CONSTANT(HD_OP_EXPERT_COUNT, 90);
CONSTANT(HD_OP_ROUTER_LOSS, 91);
CONSTANT(HD_OP_ROUTER_LOSS_DZ, 92);
CONSTANT(HD_OP_GELU_ERF, 103);
CONSTANT(HD_OP_GELU_ERF_GRAD, 104);
CONSTANT(HD_OP_RELU2, 105);
CONSTANT(HD_OP_RELU2_GRAD, 106);
CONSTANT(HD_OP_SOFTCAP, 107);
CONSTANT(HD_OP_SOFTCAP_GRAD, 108);
CONSTANT(HD_OP_SCALE, 109);
CONSTANT(HD_OP_ROPE_AT, 111);
CONSTANT(HD_OP_ATTENTION_CACHED, 112);
CONSTANT(HD_OP_LIMIT, 128);
CONSTANT(HD_HYPER_LR, 0);
CONSTANT(HD_HYPER_STEP, 1);
CONSTANT(HD_HYPER_INV_SCALE, 2);
CONSTANT(HD_HYPER_SKIP, 3);
CONSTANT(HD_HYPER_COUNT, 8);
CONSTANT(HD_CUSTOM_OTHER, 0);
CONSTANT(HD_CUSTOM_LINEAR, 1);
CONSTANT(HD_CUSTOM_MAP, 2);
CONSTANT(HD_CUSTOM_ENCODE, 3);
CONSTANT(HD_CUSTOM_DECODE, 4);
CONSTANT(HD_INIT_NORMAL, 1);
CONSTANT(HD_INIT_ZEROS, 2);
CONSTANT(HD_INIT_ONES, 3);
CONSTANT(HD_MEM_HOST, 0);
CONSTANT(HD_MEM_PINNED, 1);
CONSTANT(HD_MEM_DEVICE, 2);
CONSTANT(HD_STREAM_COMPUTE, 0);
CONSTANT(HD_STREAM_COMM, 1);
CONSTANT(HD_STREAM_OUT, 2);
CONSTANT(HD_STREAM_IN, 3);
CONSTANT(HD_COLL_ALL_REDUCE, 1);
CONSTANT(HD_COLL_ALL_GATHER, 2);
CONSTANT(HD_COLL_REDUCE_SCATTER, 3);
CONSTANT(HD_COLL_ALL_TO_ALL, 4);
CONSTANT(HD_COLL_BROADCAST, 5);
CONSTANT(HD_COLL_REDUCE, 6);
CONSTANT(HD_COLL_BARRIER, 7);
CONSTANT(HD_STATE_ELEMENT, 0);
CONSTANT(HD_STATE_BLOCK, 1);
CONSTANT(HD_STATE_ROW, 2);
CONSTANT(HD_STATE_COLUMN, 3);
CONSTANT(HD_STATE_ROW_FACTOR, 4);
CONSTANT(HD_STATE_COLUMN_FACTOR, 5);
CONSTANT(HD_STATE_ONE, 6);
CONSTANT(HD_HOOK_SEND, 64);
CONSTANT(HD_HOOK_RECV, 65);
CONSTANT(HD_METRIC_INT, 1);
CONSTANT(HD_METRIC_FLOAT, 2);
CONSTANT(HD_PHASE_F, 0);
CONSTANT(HD_PHASE_R, 1);
CONSTANT(HD_PHASE_B, 2);
CONSTANT(HD_PHASE_W, 3);
CONSTANT(HD_PHASE_O, 4);
CONSTANT(HD_ACTION_F, 0);
CONSTANT(HD_ACTION_B, 1);
CONSTANT(HD_ACTION_W, 2);
CONSTANT(HD_FLAT_WHOLE, 0);
CONSTANT(HD_FLAT_MASTER, 1);
CONSTANT(HD_FLAT_GRAD, 2);
CONSTANT(HD_FLAT_SHARD, 3);
CONSTANT(HD_FLAT_LOW, 4);
CONSTANT(HD_FLAT_COMMON, 5);
CONSTANT(HD_FACT_EQUAL, 1);
CONSTANT(HD_FACT_AVERAGE, 2);
CONSTANT(HD_FACT_ZERO_SUM, 4);
CONSTANT(HD_FACT_FEEDBACK, 8);
CONSTANT(HD_FACT_MIX, 16);
CONSTANT(HD_LIFE_TEMP, 0);
CONSTANT(HD_LIFE_PERSISTENT, 1);
CONSTANT(HD_LIFE_STEP, 2);
CONSTANT(HD_MEMORY_MAIN, 0);
CONSTANT(HD_MEMORY_HOST, 1);
CONSTANT(HD_MEMORY_FILE, 2);
CONSTANT(HD_PART_MASTER, 1);
CONSTANT(HD_PART_LOW, 2);
CONSTANT(HD_PART_STATES, 4);
CONSTANT(HD_ATTR_CONCAT, 256);
CONSTANT(HD_DEVICE_ZEROED_MEMORY, 256);
CONSTANT(HD_COMM_INDEPENDENT_P2P, 64);
CONSTANT(HD_MAX_OUT, 6);
CONSTANT(HD_MAX_DIMS, 6);
CONSTANT(HD_DATA_IN_ORDER, 1);
CONSTANT(HD_OPTION_GLOBAL, 1);
CONSTANT(HD_SUM_DIGITS, 24);
CONSTANT(HD_DEVICE_NORM_SUMS, 64);
CONSTANT(HD_ATTR_INTERLEAVED, 1024);
CONSTANT(HD_MAX_IN, 8);
CONSTANT(HD_DEVICE_HOST_MEMORY, 1);
CONSTANT(HD_INSTR_LOGITS, 1);
CONSTANT(HD_COMM_STREAM_ORDERED, 1);
CONSTANT(HD_ABI_MAJOR, 1);
CONSTANT(HD_HOOK_HOLD, 1);
CONSTANT(HD_TOKENIZER_SPECIAL, 1);
CONSTANT(HD_DEVICE_PERMUTES, 16);
CONSTANT(HD_OPTIM_HEAD, 2);
CONSTANT(HD_OPTION_REQUIRED, 2);
CONSTANT(HD_ATTR_STOCHASTIC, 4);
CONSTANT(HD_COMM_HOST_PROGRESS, 2);
CONSTANT(HD_ATTR_ONCE, 2);
CONSTANT(HD_PARAM_WHOLE, 1);
CONSTANT(HD_COMM_DEVICE_MEMORY, 8);
CONSTANT(HD_DEVICE_EPILOGUES, 32);
CONSTANT(HD_DEVICE_MASKS, 512);
CONSTANT(HD_SUM_SHIFT, 192);
CONSTANT(HD_OPTION_PATH, 4);
CONSTANT(HD_INSTR_EXACT, 2);
CONSTANT(HD_DEVICE_PADDED_VOCAB, 128);
CONSTANT(HD_COMM_ANY_ORDER, 16);
CONSTANT(HD_OPTIM_EMBEDDING, 1);
CONSTANT(HD_METRICS_EACH_MACHINE, 1);
CONSTANT(HD_DEVICE_DOCUMENTS, 2048);
CONSTANT(HD_ATTR_ACCUMULATE, 1);
CONSTANT(HD_ATTR_NOT_CAUSAL, 512);
CONSTANT(HD_DEVICE_STREAMS, 4);
CONSTANT(HD_TOKENIZER_SKIP_SPECIAL, 1);
CONSTANT(HD_COMM_LOCAL_ONLY, 4);
CONSTANT(HD_OPTIM_FLAT, 1);
CONSTANT(HD_OPTION_FIXED, 8);
CONSTANT(HD_COMM_MESSAGES_ONLY, 32);
CONSTANT(HD_DEVICE_XENT_HEAD, 2);
CONSTANT(HD_PASS_WAIT, 1);
CONSTANT(HD_OPTIM_CUT, 2147483648);
CONSTANT(HD_DEVICE_ADDS_ONCE, 8);
CONSTANT(HD_STRATEGY_API, 6);
CONSTANT(HD_TOKENIZER_FRAME, 2);
CONSTANT(HD_DEVICE_IGNORED_LABELS, 1024);

STRUCT(hd_error, 1192);
FIELD(hd_error, struct_size, 0, size_t);
FIELD(hd_error, code, 8, int32_t);
FIELD(hd_error, scope, 12, int32_t);
FIELD(hd_error, native, 16, int64_t);
FIELD(hd_error, peer, 24, int64_t);
FIELD(hd_error, where, 32, char[128]);
FIELD(hd_error, message, 160, char[1024]);
FIELD(hd_error, origin, 1184, uint64_t);

STRUCT(hd_host, 88);
FIELD(hd_host, struct_size, 0, size_t);
FIELD(hd_host, abi_minor, 8, uint32_t);
FIELD(hd_host, reserved, 12, uint32_t);
FIELD(hd_host, log, 16, void (*)(uint32_t level, const char *component, const char *format, ...));
FIELD(hd_host, alloc, 24, void *(*)(size_t bytes));
FIELD(hd_host, free, 32, void (*)(void *p));
FIELD(hd_host, store_put, 40,
      int32_t (*)(struct hd_store *store, const char *key, const void *value, size_t bytes, struct hd_error *err));
FIELD(hd_host, store_get, 48,
      int32_t (*)(struct hd_store *store, const char *key, void *value, size_t *bytes, double deadline,
                  struct hd_error *err));
FIELD(hd_host, build, 56, const struct hd_builder_api *);
FIELD(hd_host, pass, 64, const struct hd_pass_api *);
FIELD(hd_host, get_extension, 72, const void *(*)(const char *name));
FIELD(hd_host, set_variable, 80, int32_t (*)(const char *name, const char *value, struct hd_error *err));

STRUCT(hd_list, 24);
FIELD(hd_list, count, 0, uint64_t);
FIELD(hd_list, text, 8, const char *const *);
FIELD(hd_list, number, 16, const double *);

STRUCT(hd_option, 104);
FIELD(hd_option, name, 0, const char *);
FIELD(hd_option, value, 8, const char *);
FIELD(hd_option, unit, 16, const char *);
FIELD(hd_option, help, 24, const char *);
FIELD(hd_option, choices, 32, const char *);
FIELD(hd_option, aliases, 40, const char *);
FIELD(hd_option, min, 48, double);
FIELD(hd_option, max, 56, double);
FIELD(hd_option, type, 64, uint32_t);
FIELD(hd_option, level, 68, uint32_t);
FIELD(hd_option, flags, 72, uint32_t);
FIELD(hd_option, reserved, 76, uint32_t);
FIELD(hd_option, offset, 80, size_t);
FIELD(hd_option, words, 88, const char *);
FIELD(hd_option, needs, 96, const char *);

STRUCT(hd_alias, 24);
FIELD(hd_alias, name, 0, const char *);
FIELD(hd_alias, preset, 8, const char *);
FIELD(hd_alias, summary, 16, const char *);

STRUCT(hd_check_job, 32);
FIELD(hd_check_job, struct_size, 0, size_t);
FIELD(hd_check_job, ranks, 8, int32_t);
FIELD(hd_check_job, apart, 12, int32_t);
FIELD(hd_check_job, before, 16, const void *const *);
FIELD(hd_check_job, n_before, 24, uint64_t);

STRUCT(hd_component, 120);
FIELD(hd_component, struct_size, 0, size_t);
FIELD(hd_component, kind, 8, uint32_t);
FIELD(hd_component, reserved, 12, uint32_t);
FIELD(hd_component, name, 16, const char *);
FIELD(hd_component, summary, 24, const char *);
FIELD(hd_component, caps, 32, uint64_t);
FIELD(hd_component, options, 40, const struct hd_option *);
FIELD(hd_component, n_options, 48, size_t);
FIELD(hd_component, option_size, 56, size_t);
FIELD(hd_component, settings_size, 64, size_t);
FIELD(hd_component, probe, 72, int32_t (*)(const struct hd_host *host, struct hd_error *err));
FIELD(hd_component, ops, 80, const void *);
FIELD(hd_component, aliases, 88, const struct hd_alias *);
FIELD(hd_component, n_aliases, 96, size_t);
FIELD(hd_component, alias_size, 104, size_t);
FIELD(hd_component, check, 112,
      int32_t (*)(const struct hd_host *host, const void *settings, const struct hd_check_job *job,
                  struct hd_error *err));

STRUCT(hd_plugin, 56);
FIELD(hd_plugin, magic, 0, char[8]);
FIELD(hd_plugin, struct_size, 8, size_t);
FIELD(hd_plugin, abi_minor, 16, uint32_t);
FIELD(hd_plugin, reserved, 20, uint32_t);
FIELD(hd_plugin, name, 24, const char *);
FIELD(hd_plugin, version, 32, const char *);
FIELD(hd_plugin, licence, 40, const char *);
FIELD(hd_plugin, components, 48, const struct hd_component *const *);

STRUCT(hd_range, 24);
FIELD(hd_range, first, 0, int64_t);
FIELD(hd_range, count, 8, int64_t);
FIELD(hd_range, value, 16, double);

STRUCT(hd_attrs, 176);
FIELD(hd_attrs, struct_size, 0, size_t);
FIELD(hd_attrs, scale, 8, double);
FIELD(hd_attrs, eps, 16, double);
FIELD(hd_attrs, sign, 24, int32_t);
FIELD(hd_attrs, flags, 28, uint32_t);
FIELD(hd_attrs, redop, 32, uint32_t);
FIELD(hd_attrs, from, 36, uint32_t);
FIELD(hd_attrs, to, 40, uint32_t);
FIELD(hd_attrs, index, 44, uint32_t);
FIELD(hd_attrs, parts, 48, uint32_t);
FIELD(hd_attrs, peer, 52, int32_t);
FIELD(hd_attrs, window, 56, int64_t);
FIELD(hd_attrs, table, 64, const double *);
FIELD(hd_attrs, n_table, 72, uint64_t);
FIELD(hd_attrs, ranges, 80, const struct hd_range *);
FIELD(hd_attrs, n_ranges, 88, uint64_t);
FIELD(hd_attrs, beta1, 96, double);
FIELD(hd_attrs, beta2, 104, double);
FIELD(hd_attrs, clip, 112, double);
FIELD(hd_attrs, step, 120, int32_t (*)(const void *settings, const void *args));
FIELD(hd_attrs, settings, 128, const void *);
FIELD(hd_attrs, zigzag_parts, 136, int64_t);
FIELD(hd_attrs, zigzag_length, 144, int64_t);
FIELD(hd_attrs, top_k, 152, int64_t);
FIELD(hd_attrs, share, 160, double);
FIELD(hd_attrs, z_scale, 168, double);

STRUCT(hd_operand, 120);
FIELD(hd_operand, data, 0, void *);
FIELD(hd_operand, dtype, 8, uint32_t);
FIELD(hd_operand, ndim, 12, uint32_t);
FIELD(hd_operand, dim, 16, uint8_t[8]);
FIELD(hd_operand, extent, 24, int64_t[6]);
FIELD(hd_operand, start, 72, int64_t[6]);

STRUCT(hd_instr_desc, 312);
FIELD(hd_instr_desc, struct_size, 0, size_t);
FIELD(hd_instr_desc, op, 8, uint32_t);
FIELD(hd_instr_desc, n_in, 12, uint32_t);
FIELD(hd_instr_desc, n_out, 16, uint32_t);
FIELD(hd_instr_desc, reserved, 20, uint32_t);
FIELD(hd_instr_desc, in, 24, const struct hd_operand *);
FIELD(hd_instr_desc, out, 32, const struct hd_operand *);
FIELD(hd_instr_desc, attrs, 40, struct hd_attrs);
FIELD(hd_instr_desc, label, 216, char[64]);
FIELD(hd_instr_desc, grads, 280, uint32_t);
FIELD(hd_instr_desc, flags, 284, uint32_t);
FIELD(hd_instr_desc, params, 288, const struct hd_optim_param *);
FIELD(hd_instr_desc, n_params, 296, uint64_t);
FIELD(hd_instr_desc, custom, 304, const struct hd_custom_op *);

STRUCT(hd_custom_kernel, 16);
FIELD(hd_custom_kernel, device, 0, const char *);
FIELD(hd_custom_kernel, run, 8, hd_custom_fn);

STRUCT(hd_custom_op, 96);
FIELD(hd_custom_op, struct_size, 0, size_t);
FIELD(hd_custom_op, name, 8, const char *);
FIELD(hd_custom_op, in, 16, const char *);
FIELD(hd_custom_op, out, 24, const char *);
FIELD(hd_custom_op, proof, 32, uint32_t);
FIELD(hd_custom_op, state, 36, uint32_t);
FIELD(hd_custom_op, flops, 40, double);
FIELD(hd_custom_op, settings, 48, const void *);
FIELD(hd_custom_op, settings_bytes, 56, size_t);
FIELD(hd_custom_op, run, 64, hd_custom_fn);
FIELD(hd_custom_op, kernels, 72, const struct hd_custom_kernel *);
FIELD(hd_custom_op, n_kernels, 80, uint64_t);
FIELD(hd_custom_op, check, 88,
      int32_t (*)(const void *settings, const struct hd_instr_desc *instr, struct hd_error *err));

STRUCT(hd_param_desc, 80);
FIELD(hd_param_desc, struct_size, 0, size_t);
FIELD(hd_param_desc, name, 8, const char *);
FIELD(hd_param_desc, dims, 16, const char *);
FIELD(hd_param_desc, init, 24, uint32_t);
FIELD(hd_param_desc, reserved, 28, uint32_t);
FIELD(hd_param_desc, std, 32, double);
FIELD(hd_param_desc, file_name, 40, const char *);
FIELD(hd_param_desc, file_axes, 48, const char *);
FIELD(hd_param_desc, part, 56, uint32_t);
FIELD(hd_param_desc, parts, 60, uint32_t);
FIELD(hd_param_desc, part_axis, 64, uint32_t);
FIELD(hd_param_desc, flags, 68, uint32_t);
FIELD(hd_param_desc, part_dim, 72, uint32_t);
FIELD(hd_param_desc, part_span, 76, uint32_t);

STRUCT(hd_builder_api, 112);
FIELD(hd_builder_api, struct_size, 0, size_t);
FIELD(hd_builder_api, dim, 8, void (*)(struct hd_program *p, char letter, const char *name, int64_t extent));
FIELD(hd_builder_api, extent, 16, int64_t (*)(struct hd_program *p, char letter));
FIELD(hd_builder_api, block, 24, void (*)(struct hd_program *p, const char *name));
FIELD(hd_builder_api, param, 32, hd_tensor (*)(struct hd_program *p, const struct hd_param_desc *desc));
FIELD(hd_builder_api, input, 40, hd_tensor (*)(struct hd_program *p, const char *name));
FIELD(hd_builder_api, emit, 48,
      hd_tensor (*)(struct hd_program *p, uint32_t op, const struct hd_attrs *attrs, const hd_tensor *ins,
                    uint32_t n_in, const char *out_dims, hd_tensor *outs));
FIELD(hd_builder_api, residual, 56, hd_tensor (*)(struct hd_program *p, hd_tensor t));
FIELD(hd_builder_api, tokenwise, 64, hd_tensor (*)(struct hd_program *p, hd_tensor t));
FIELD(hd_builder_api, loss, 72, void (*)(struct hd_program *p, hd_tensor loss));
FIELD(hd_builder_api, logits, 80, void (*)(struct hd_program *p, hd_tensor logits));
FIELD(hd_builder_api, loss_scale, 88, double (*)(struct hd_program *p));
FIELD(hd_builder_api, fail, 96, void (*)(struct hd_program *p, const char *format, ...));
FIELD(hd_builder_api, auxiliary, 104, void (*)(struct hd_program *p, hd_tensor loss));

STRUCT(hd_device_place, 24);
FIELD(hd_device_place, struct_size, 0, size_t);
FIELD(hd_device_place, local_rank, 8, int32_t);
FIELD(hd_device_place, local_ranks, 12, int32_t);
FIELD(hd_device_place, threads, 16, int32_t);
FIELD(hd_device_place, reserved, 20, uint32_t);

STRUCT(hd_device_ops, 184);
FIELD(hd_device_ops, struct_size, 0, size_t);
FIELD(hd_device_ops, caps, 8, uint64_t);
FIELD(hd_device_ops, open, 16,
      int32_t (*)(const struct hd_host *host, const void *settings, const struct hd_device_place *place,
                  struct hd_device **device, struct hd_error *err));
FIELD(hd_device_ops, close, 24, void (*)(struct hd_device *device));
FIELD(hd_device_ops, alloc, 32,
      int32_t (*)(struct hd_device *device, uint32_t kind, size_t bytes, void **memory, struct hd_error *err));
FIELD(hd_device_ops, free, 40, void (*)(struct hd_device *device, uint32_t kind, void *memory));
FIELD(hd_device_ops, supports, 48, int32_t (*)(struct hd_device *device, uint32_t op, uint32_t dtype));
FIELD(hd_device_ops, prepare, 56,
      int32_t (*)(struct hd_device *device, const struct hd_instr_desc *instr, struct hd_kernel **kernel,
                  struct hd_error *err));
FIELD(hd_device_ops, launch, 64,
      int32_t (*)(struct hd_device *device, struct hd_kernel *kernel, uint32_t stream, struct hd_error *err));
FIELD(hd_device_ops, release, 72, void (*)(struct hd_device *device, struct hd_kernel *kernel));
FIELD(hd_device_ops, sync, 80, int32_t (*)(struct hd_device *device, uint32_t stream, struct hd_error *err));
FIELD(hd_device_ops, peak_flops, 88, double (*)(struct hd_device *device, uint32_t dtype));
FIELD(hd_device_ops, event, 96, int32_t (*)(struct hd_device *device, struct hd_event **event, struct hd_error *err));
FIELD(hd_device_ops, event_free, 104, void (*)(struct hd_device *device, struct hd_event *event));
FIELD(hd_device_ops, record, 112,
      int32_t (*)(struct hd_device *device, struct hd_event *event, uint32_t stream, struct hd_error *err));
FIELD(hd_device_ops, follow, 120,
      int32_t (*)(struct hd_device *device, uint32_t stream, struct hd_event *event, struct hd_error *err));
FIELD(hd_device_ops, reached, 128,
      int32_t (*)(struct hd_device *device, struct hd_event *event, int32_t *done, struct hd_error *err));
FIELD(hd_device_ops, copy, 136,
      int32_t (*)(struct hd_device *device, uint32_t stream, void *to, const void *from, size_t bytes,
                  struct hd_error *err));
FIELD(hd_device_ops, native, 144, void *(*)(struct hd_device *device, uint32_t stream));
FIELD(hd_device_ops, capture_begin, 152, int32_t (*)(struct hd_device *device, struct hd_error *err));
FIELD(hd_device_ops, capture_end, 160,
      int32_t (*)(struct hd_device *device, struct hd_captured **captured, struct hd_error *err));
FIELD(hd_device_ops, replay, 168,
      int32_t (*)(struct hd_device *device, struct hd_captured *captured, struct hd_error *err));
FIELD(hd_device_ops, captured_free, 176, void (*)(struct hd_device *device, struct hd_captured *captured));

STRUCT(hd_comm_call, 56);
FIELD(hd_comm_call, struct_size, 0, size_t);
FIELD(hd_comm_call, coll, 8, uint32_t);
FIELD(hd_comm_call, dtype, 12, uint32_t);
FIELD(hd_comm_call, redop, 16, uint32_t);
FIELD(hd_comm_call, root, 20, int32_t);
FIELD(hd_comm_call, send, 24, const void *);
FIELD(hd_comm_call, recv, 32, void *);
FIELD(hd_comm_call, count, 40, uint64_t);
FIELD(hd_comm_call, tag, 48, uint64_t);

STRUCT(hd_world, 80);
FIELD(hd_world, struct_size, 0, size_t);
FIELD(hd_world, rank, 8, int32_t);
FIELD(hd_world, size, 12, int32_t);
FIELD(hd_world, local_rank, 16, int32_t);
FIELD(hd_world, local_size, 20, int32_t);
FIELD(hd_world, store, 24, struct hd_store *);
FIELD(hd_world, instance, 32, const char *);
FIELD(hd_world, timeout, 40, double);
FIELD(hd_world, dead_after, 48, double);
FIELD(hd_world, stream, 56, void *);
FIELD(hd_world, device, 64, const char *);
FIELD(hd_world, job_ranks, 72, const int32_t *);

STRUCT(hd_comm_launcher, 40);
FIELD(hd_comm_launcher, struct_size, 0, size_t);
FIELD(hd_comm_launcher, command, 8, const char *const *);
FIELD(hd_comm_launcher, environment, 16, const char *const *);
FIELD(hd_comm_launcher, source, 24, const char *);
FIELD(hd_comm_launcher, local_environment, 32, const char *const *);

STRUCT(hd_comm_ops, 136);
FIELD(hd_comm_ops, struct_size, 0, size_t);
FIELD(hd_comm_ops, caps, 8, uint64_t);
FIELD(hd_comm_ops, open, 16,
      int32_t (*)(const struct hd_host *host, const void *settings, const struct hd_world *world, struct hd_comm **comm,
                  struct hd_error *err));
FIELD(hd_comm_ops, close, 24, void (*)(struct hd_comm *comm));
FIELD(hd_comm_ops, memory, 32, int32_t (*)(struct hd_comm *comm, size_t bytes, void **base, struct hd_error *err));
FIELD(hd_comm_ops, group, 40,
      int32_t (*)(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n, struct hd_comm_group **group,
                  struct hd_error *err));
FIELD(hd_comm_ops, group_free, 48, void (*)(struct hd_comm_group *group));
FIELD(hd_comm_ops, collective, 56,
      int32_t (*)(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                  struct hd_error *err));
FIELD(hd_comm_ops, send, 64,
      int32_t (*)(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                  hd_request *request, struct hd_error *err));
FIELD(hd_comm_ops, recv, 72,
      int32_t (*)(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                  hd_request *request, struct hd_error *err));
FIELD(hd_comm_ops, progress, 80, int32_t (*)(struct hd_comm *comm, struct hd_error *err));
FIELD(hd_comm_ops, test, 88,
      int32_t (*)(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err));
FIELD(hd_comm_ops, wait, 96,
      int32_t (*)(struct hd_comm *comm, hd_request request, double deadline, struct hd_error *err));
FIELD(hd_comm_ops, abort, 104, void (*)(struct hd_comm *comm, const char *reason));
FIELD(hd_comm_ops, caps_of, 112, uint64_t (*)(const struct hd_comm *comm));
FIELD(hd_comm_ops, launcher, 120, const struct hd_comm_launcher *);
FIELD(hd_comm_ops, caps_with, 128, uint64_t (*)(const void *settings));

STRUCT(hd_optim_param, 112);
FIELD(hd_optim_param, struct_size, 0, size_t);
FIELD(hd_optim_param, name, 8, const char *);
FIELD(hd_optim_param, first, 16, int64_t);
FIELD(hd_optim_param, count, 24, int64_t);
FIELD(hd_optim_param, rows, 32, int64_t);
FIELD(hd_optim_param, cols, 40, int64_t);
FIELD(hd_optim_param, all_rows, 48, int64_t);
FIELD(hd_optim_param, all_cols, 56, int64_t);
FIELD(hd_optim_param, ndim, 64, uint32_t);
FIELD(hd_optim_param, group, 68, uint32_t);
FIELD(hd_optim_param, flags, 72, uint32_t);
FIELD(hd_optim_param, reserved, 76, uint32_t);
FIELD(hd_optim_param, state, 80, int64_t[4]);

STRUCT(hd_optim_state, 24);
FIELD(hd_optim_state, struct_size, 0, size_t);
FIELD(hd_optim_state, kind, 8, uint32_t);
FIELD(hd_optim_state, dtype, 12, uint32_t);
FIELD(hd_optim_state, block, 16, int64_t);

STRUCT(hd_optim_matrix, 24);
FIELD(hd_optim_matrix, data, 0, void *);
FIELD(hd_optim_matrix, row, 8, int64_t);
FIELD(hd_optim_matrix, col, 16, int64_t);

STRUCT(hd_optim_host, 32);
FIELD(hd_optim_host, struct_size, 0, size_t);
FIELD(hd_optim_host, context, 8, void *);
FIELD(hd_optim_host, product, 16,
      int32_t (*)(void *context, uint32_t dtype, int64_t m, int64_t n, int64_t k, const struct hd_optim_matrix *a,
                  const struct hd_optim_matrix *b, const struct hd_optim_matrix *c, struct hd_error *err));
FIELD(hd_optim_host, parallel, 24,
      void (*)(void *context, int64_t n, void (*fn)(void *user, int64_t first, int64_t last), void *user));

STRUCT(hd_optim_args, 144);
FIELD(hd_optim_args, struct_size, 0, size_t);
FIELD(hd_optim_args, first, 8, int64_t);
FIELD(hd_optim_args, count, 16, int64_t);
FIELD(hd_optim_args, grad, 24, const float *);
FIELD(hd_optim_args, param, 32, float *);
FIELD(hd_optim_args, state, 40, float *[4]);
FIELD(hd_optim_args, norm2, 72, double);
FIELD(hd_optim_args, hyper, 80, const double *);
FIELD(hd_optim_args, decay, 88, const struct hd_range *);
FIELD(hd_optim_args, n_decay, 96, uint64_t);
FIELD(hd_optim_args, err, 104, struct hd_error *);
FIELD(hd_optim_args, params, 112, const struct hd_optim_param *);
FIELD(hd_optim_args, n_params, 120, uint64_t);
FIELD(hd_optim_args, scratch, 128, void *);
FIELD(hd_optim_args, host, 136, const struct hd_optim_host *);

STRUCT(hd_optim_shard, 64);
FIELD(hd_optim_shard, struct_size, 0, size_t);
FIELD(hd_optim_shard, grad, 8, hd_tensor);
FIELD(hd_optim_shard, norm2, 12, hd_tensor);
FIELD(hd_optim_shard, hyper, 16, hd_tensor);
FIELD(hd_optim_shard, master, 20, hd_tensor);
FIELD(hd_optim_shard, low, 24, hd_tensor);
FIELD(hd_optim_shard, state, 28, hd_tensor[4]);
FIELD(hd_optim_shard, reserved, 44, uint32_t);
FIELD(hd_optim_shard, decay, 48, const struct hd_range *);
FIELD(hd_optim_shard, n_decay, 56, uint64_t);

STRUCT(hd_optimizer_ops, 128);
FIELD(hd_optimizer_ops, struct_size, 0, size_t);
FIELD(hd_optimizer_ops, caps, 8, uint64_t);
FIELD(hd_optimizer_ops, n_states, 16, uint32_t);
FIELD(hd_optimizer_ops, reserved, 20, uint32_t);
FIELD(hd_optimizer_ops, state_names, 24, const char *const *);
FIELD(hd_optimizer_ops, decay, 32, double (*)(const void *settings, const char *param, uint32_t ndim));
FIELD(hd_optimizer_ops, emit, 40,
      int32_t (*)(const void *settings, uint32_t *op, struct hd_attrs *attrs, struct hd_error *err));
FIELD(hd_optimizer_ops, step, 48, int32_t (*)(const void *settings, const struct hd_optim_args *args));
FIELD(hd_optimizer_ops, states, 56, uint32_t (*)(const void *settings));
FIELD(hd_optimizer_ops, learning_rate, 64, double (*)(const void *settings));
FIELD(hd_optimizer_ops, clip, 72, double (*)(const void *settings));
FIELD(hd_optimizer_ops, check, 80, int32_t (*)(const void *settings, struct hd_error *err));
FIELD(hd_optimizer_ops, group, 88, uint32_t (*)(const void *settings, const struct hd_optim_param *param));
FIELD(hd_optimizer_ops, group_states, 96, uint32_t (*)(const void *settings, uint32_t group));
FIELD(hd_optimizer_ops, scratch, 104, uint64_t (*)(const void *settings, const struct hd_optim_param *param));
FIELD(hd_optimizer_ops, flops, 112, double (*)(const void *settings, const struct hd_optim_param *param));
FIELD(hd_optimizer_ops, state, 120,
      void (*)(const void *settings, uint32_t group, uint32_t state, struct hd_optim_state *out));

STRUCT(hd_ckpt_ops, 120);
FIELD(hd_ckpt_ops, struct_size, 0, size_t);
FIELD(hd_ckpt_ops, caps, 8, uint64_t);
FIELD(hd_ckpt_ops, open, 16,
      int32_t (*)(const struct hd_host *host, const void *settings, const char *location, struct hd_ckpt **ckpt,
                  struct hd_error *err));
FIELD(hd_ckpt_ops, close, 24, void (*)(struct hd_ckpt *ckpt));
FIELD(hd_ckpt_ops, begin, 32,
      int32_t (*)(struct hd_ckpt *ckpt, const char *name, int32_t leader, struct hd_ckpt_tx **tx,
                  struct hd_error *err));
FIELD(hd_ckpt_ops, write, 40,
      int32_t (*)(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, const void *data, uint64_t bytes,
                  struct hd_error *err));
FIELD(hd_ckpt_ops, flush, 48, int32_t (*)(struct hd_ckpt_tx *tx, struct hd_error *err));
FIELD(hd_ckpt_ops, commit, 56, int32_t (*)(struct hd_ckpt_tx *tx, struct hd_error *err));
FIELD(hd_ckpt_ops, cancel, 64, void (*)(struct hd_ckpt_tx *tx));
FIELD(hd_ckpt_ops, list, 72,
      int32_t (*)(struct hd_ckpt *ckpt, void (*visit)(void *user, const char *name), void *user, struct hd_error *err));
FIELD(hd_ckpt_ops, size, 80,
      int32_t (*)(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t *bytes, struct hd_error *err));
FIELD(hd_ckpt_ops, read, 88,
      int32_t (*)(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t offset, void *data, uint64_t bytes,
                  struct hd_error *err));
FIELD(hd_ckpt_ops, remove, 96, int32_t (*)(struct hd_ckpt *ckpt, const char *name, struct hd_error *err));
FIELD(hd_ckpt_ops, read_back, 104,
      int32_t (*)(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, void *data, uint64_t bytes,
                  struct hd_error *err));
FIELD(hd_ckpt_ops, move, 112,
      int32_t (*)(struct hd_ckpt *ckpt, const char *name, const char *location, struct hd_error *err));

STRUCT(hd_model_info, 112);
FIELD(hd_model_info, struct_size, 0, size_t);
FIELD(hd_model_info, vocab, 8, int64_t);
FIELD(hd_model_info, layers, 16, int64_t);
FIELD(hd_model_info, hidden, 24, int64_t);
FIELD(hd_model_info, heads, 32, int64_t);
FIELD(hd_model_info, kv_heads, 40, int64_t);
FIELD(hd_model_info, head_dim, 48, int64_t);
FIELD(hd_model_info, ffn, 56, int64_t);
FIELD(hd_model_info, max_seq_len, 64, int64_t);
FIELD(hd_model_info, family, 72, const char *);
FIELD(hd_model_info, weights, 80, const char *);
FIELD(hd_model_info, experts, 88, int64_t);
FIELD(hd_model_info, experts_per_token, 96, int64_t);
FIELD(hd_model_info, untrainable, 104, const char *);

STRUCT(hd_model_ops, 56);
FIELD(hd_model_ops, struct_size, 0, size_t);
FIELD(hd_model_ops, caps, 8, uint64_t);
FIELD(hd_model_ops, open, 16,
      int32_t (*)(const struct hd_host *host, const void *settings, struct hd_model **model, struct hd_error *err));
FIELD(hd_model_ops, close, 24, void (*)(struct hd_model *model));
FIELD(hd_model_ops, info, 32, int32_t (*)(struct hd_model *model, struct hd_model_info *info, struct hd_error *err));
FIELD(hd_model_ops, build, 40, int32_t (*)(struct hd_model *model, struct hd_program *program, struct hd_error *err));
FIELD(hd_model_ops, config_json, 48, int32_t (*)(struct hd_model *model, const char **text, struct hd_error *err));

STRUCT(hd_hook_group, 40);
FIELD(hd_hook_group, struct_size, 0, size_t);
FIELD(hd_hook_group, name, 8, const char *);
FIELD(hd_hook_group, ranks, 16, const int32_t *);
FIELD(hd_hook_group, n, 24, int32_t);
FIELD(hd_hook_group, me, 28, int32_t);
FIELD(hd_hook_group, below, 32, struct hd_comm_group *);

STRUCT(hd_hook_op, 96);
FIELD(hd_hook_op, struct_size, 0, size_t);
FIELD(hd_hook_op, call, 8, struct hd_comm_call *);
FIELD(hd_hook_op, group, 16, const struct hd_hook_group *);
FIELD(hd_hook_op, peer, 24, int32_t);
FIELD(hd_hook_op, stream, 28, uint32_t);
FIELD(hd_hook_op, seq, 32, uint64_t);
FIELD(hd_hook_op, number, 40, uint64_t);
FIELD(hd_hook_op, began, 48, double);
FIELD(hd_hook_op, ended, 56, double);
FIELD(hd_hook_op, user, 64, uint64_t[4]);

STRUCT(hd_hook_api, 64);
FIELD(hd_hook_api, struct_size, 0, size_t);
FIELD(hd_hook_api, next_group, 8,
      const struct hd_hook_group *(*)(const struct hd_hook_place *place, const struct hd_hook_group *group));
FIELD(hd_hook_api, each_op, 16,
      void (*)(const struct hd_hook_place *place, void (*visit)(void *user, const struct hd_hook_op *op), void *user));
FIELD(hd_hook_api, release, 24, void (*)(const struct hd_hook_place *place, const struct hd_hook_op *op));
FIELD(hd_hook_api, aborted, 32, int32_t (*)(const struct hd_hook_place *place));
FIELD(hd_hook_api, retract, 40, void (*)(const struct hd_hook_place *place));
FIELD(hd_hook_api, each_algorithm, 48,
      void (*)(const struct hd_hook_place *place,
               void (*visit)(void *user, const char *group, uint32_t coll, const char *algorithm, uint64_t calls),
               void *user));
FIELD(hd_hook_api, reset_store, 56, void (*)(const struct hd_hook_place *place));

STRUCT(hd_hook_place, 64);
FIELD(hd_hook_place, struct_size, 0, size_t);
FIELD(hd_hook_place, api, 8, const struct hd_hook_api *);
FIELD(hd_hook_place, world, 16, const struct hd_world *);
FIELD(hd_hook_place, transport, 24, const char *);
FIELD(hd_hook_place, folder, 32, const char *);
FIELD(hd_hook_place, below, 40, const struct hd_comm_ops *);
FIELD(hd_hook_place, comm, 48, struct hd_comm *);
FIELD(hd_hook_place, stream, 56, uint32_t);
FIELD(hd_hook_place, reserved, 60, uint32_t);

STRUCT(hd_hook_ops, 72);
FIELD(hd_hook_ops, struct_size, 0, size_t);
FIELD(hd_hook_ops, caps, 8, uint64_t);
FIELD(hd_hook_ops, open, 16,
      int32_t (*)(const struct hd_host *host, const void *settings, const struct hd_hook_place *place,
                  struct hd_hook **hook, struct hd_error *err));
FIELD(hd_hook_ops, close, 24, void (*)(struct hd_hook *hook));
FIELD(hd_hook_ops, group, 32,
      int32_t (*)(struct hd_hook *hook, const struct hd_hook_group *group, struct hd_error *err));
FIELD(hd_hook_ops, begin, 40, int32_t (*)(struct hd_hook *hook, struct hd_hook_op *op, struct hd_error *err));
FIELD(hd_hook_ops, end, 48,
      int32_t (*)(struct hd_hook *hook, struct hd_hook_op *op, int32_t code, struct hd_error *err));
FIELD(hd_hook_ops, progress, 56, int32_t (*)(struct hd_hook *hook, struct hd_error *err));
FIELD(hd_hook_ops, leave, 64, void (*)(struct hd_hook *hook));

STRUCT(hd_data_source, 32);
FIELD(hd_data_source, struct_size, 0, size_t);
FIELD(hd_data_source, path, 8, const char *);
FIELD(hd_data_source, hints, 16, uint32_t);
FIELD(hd_data_source, reserved, 20, uint32_t);
FIELD(hd_data_source, vocab, 24, int64_t);

STRUCT(hd_data_info, 24);
FIELD(hd_data_info, struct_size, 0, size_t);
FIELD(hd_data_info, tokens, 8, uint64_t);
FIELD(hd_data_info, max_token, 16, int64_t);

STRUCT(hd_data_ops, 80);
FIELD(hd_data_ops, struct_size, 0, size_t);
FIELD(hd_data_ops, caps, 8, uint64_t);
FIELD(hd_data_ops, open, 16,
      int32_t (*)(const struct hd_host *host, const void *settings, const struct hd_data_source *source,
                  struct hd_data **data, struct hd_error *err));
FIELD(hd_data_ops, close, 24, void (*)(struct hd_data *data));
FIELD(hd_data_ops, info, 32, int32_t (*)(struct hd_data *data, struct hd_data_info *info, struct hd_error *err));
FIELD(hd_data_ops, read, 40,
      int32_t (*)(struct hd_data *data, uint64_t first, uint64_t count, int64_t *tokens, struct hd_error *err));
FIELD(hd_data_ops, check, 48, int32_t (*)(const void *settings, struct hd_error *err));
FIELD(hd_data_ops, labels, 56,
      int32_t (*)(struct hd_data *data, uint64_t first, uint64_t count, int64_t *labels, struct hd_error *err));
FIELD(hd_data_ops, labeled, 64, int32_t (*)(const void *settings));
FIELD(hd_data_ops, document_end, 72,
      int32_t (*)(struct hd_data *data, uint64_t token, uint64_t limit, uint64_t *end, struct hd_error *err));

STRUCT(hd_metrics_start, 48);
FIELD(hd_metrics_start, struct_size, 0, size_t);
FIELD(hd_metrics_start, job, 8, const char *);
FIELD(hd_metrics_start, record, 16, const char *);
FIELD(hd_metrics_start, step, 24, int64_t);
FIELD(hd_metrics_start, steps, 32, int64_t);
FIELD(hd_metrics_start, run, 40, const char *);

STRUCT(hd_metric, 32);
FIELD(hd_metric, name, 0, const char *);
FIELD(hd_metric, type, 8, uint32_t);
FIELD(hd_metric, reserved, 12, uint32_t);
FIELD(hd_metric, integer, 16, int64_t);
FIELD(hd_metric, number, 24, double);

STRUCT(hd_metrics_record, 48);
FIELD(hd_metrics_record, struct_size, 0, size_t);
FIELD(hd_metrics_record, metrics, 8, const struct hd_metric *);
FIELD(hd_metrics_record, count, 16, size_t);
FIELD(hd_metrics_record, metric_size, 24, size_t);
FIELD(hd_metrics_record, step, 32, int64_t);
FIELD(hd_metrics_record, time, 40, double);

STRUCT(hd_metrics_ops, 40);
FIELD(hd_metrics_ops, struct_size, 0, size_t);
FIELD(hd_metrics_ops, caps, 8, uint64_t);
FIELD(hd_metrics_ops, open, 16,
      int32_t (*)(const struct hd_host *host, const void *settings, const struct hd_metrics_start *start,
                  struct hd_metrics **metrics, struct hd_error *err));
FIELD(hd_metrics_ops, write, 24,
      int32_t (*)(struct hd_metrics *metrics, const struct hd_metrics_record *record, struct hd_error *err));
FIELD(hd_metrics_ops, close, 32, void (*)(struct hd_metrics *metrics));

STRUCT(hd_tokenizer_info, 48);
FIELD(hd_tokenizer_info, struct_size, 0, size_t);
FIELD(hd_tokenizer_info, vocab, 8, int64_t);
FIELD(hd_tokenizer_info, bos, 16, int64_t);
FIELD(hd_tokenizer_info, eos, 24, int64_t);
FIELD(hd_tokenizer_info, pad, 32, int64_t);
FIELD(hd_tokenizer_info, unk, 40, int64_t);

STRUCT(hd_tokenizer_ops, 64);
FIELD(hd_tokenizer_ops, struct_size, 0, size_t);
FIELD(hd_tokenizer_ops, caps, 8, uint64_t);
FIELD(hd_tokenizer_ops, open, 16,
      int32_t (*)(const struct hd_host *host, const char *path, struct hd_tokenizer **tokenizer, struct hd_error *err));
FIELD(hd_tokenizer_ops, close, 24, void (*)(struct hd_tokenizer *tokenizer));
FIELD(hd_tokenizer_ops, info, 32, void (*)(const struct hd_tokenizer *tokenizer, struct hd_tokenizer_info *info));
FIELD(hd_tokenizer_ops, encode, 40,
      int32_t (*)(const struct hd_tokenizer *tokenizer, const char *text, size_t bytes, uint32_t flags,
                  void (*emit)(void *user, const int32_t *ids, size_t count), void *user, struct hd_error *err));
FIELD(hd_tokenizer_ops, decode, 48,
      int32_t (*)(const struct hd_tokenizer *tokenizer, const int32_t *ids, size_t count, uint32_t flags,
                  void (*emit)(void *user, const char *text, size_t bytes), void *user, struct hd_error *err));
FIELD(hd_tokenizer_ops, find, 56, int64_t (*)(const struct hd_tokenizer *tokenizer, const char *token, size_t bytes));

STRUCT(hd_pass_instr, 128);
FIELD(hd_pass_instr, struct_size, 0, size_t);
FIELD(hd_pass_instr, id, 8, uint32_t);
FIELD(hd_pass_instr, op, 12, uint32_t);
FIELD(hd_pass_instr, block, 16, uint32_t);
FIELD(hd_pass_instr, phase, 20, uint32_t);
FIELD(hd_pass_instr, members, 24, uint64_t);
FIELD(hd_pass_instr, axes, 32, uint32_t);
FIELD(hd_pass_instr, redop, 36, uint32_t);
FIELD(hd_pass_instr, n_in, 40, uint32_t);
FIELD(hd_pass_instr, n_out, 44, uint32_t);
FIELD(hd_pass_instr, micro, 48, int32_t);
FIELD(hd_pass_instr, chunk, 52, int32_t);
FIELD(hd_pass_instr, in, 56, hd_tensor[8]);
FIELD(hd_pass_instr, out, 88, hd_tensor[6]);
FIELD(hd_pass_instr, flags, 112, uint32_t);
FIELD(hd_pass_instr, reserved, 116, uint32_t);
FIELD(hd_pass_instr, attrs, 120, const struct hd_attrs *);

STRUCT(hd_pass_param, 72);
FIELD(hd_pass_param, struct_size, 0, size_t);
FIELD(hd_pass_param, name, 8, const char *);
FIELD(hd_pass_param, tensor, 16, hd_tensor);
FIELD(hd_pass_param, block, 20, uint32_t);
FIELD(hd_pass_param, ndim, 24, uint32_t);
FIELD(hd_pass_param, obligation, 28, uint32_t);
FIELD(hd_pass_param, replicated, 32, uint32_t);
FIELD(hd_pass_param, reserved, 36, uint32_t);
FIELD(hd_pass_param, stages, 40, uint64_t);
FIELD(hd_pass_param, count, 48, int64_t);
FIELD(hd_pass_param, rows, 56, int64_t);
FIELD(hd_pass_param, parts, 64, uint32_t);
FIELD(hd_pass_param, group, 68, uint32_t);

STRUCT(hd_pass_flat, 80);
FIELD(hd_pass_flat, struct_size, 0, size_t);
FIELD(hd_pass_flat, members, 8, uint64_t);
FIELD(hd_pass_flat, block, 16, uint32_t);
FIELD(hd_pass_flat, axes, 20, uint32_t);
FIELD(hd_pass_flat, n_params, 24, uint32_t);
FIELD(hd_pass_flat, reserved, 28, uint32_t);
FIELD(hd_pass_flat, params, 32, const uint32_t *);
FIELD(hd_pass_flat, offset, 40, const int64_t *);
FIELD(hd_pass_flat, count, 48, int64_t);
FIELD(hd_pass_flat, ways, 56, int64_t);
FIELD(hd_pass_flat, whole, 64, hd_tensor);
FIELD(hd_pass_flat, master, 68, hd_tensor);
FIELD(hd_pass_flat, low, 72, hd_tensor);
FIELD(hd_pass_flat, common, 76, hd_tensor);

STRUCT(hd_pass_bucket, 40);
FIELD(hd_pass_bucket, struct_size, 0, size_t);
FIELD(hd_pass_bucket, flat, 8, uint32_t);
FIELD(hd_pass_bucket, axes, 12, uint32_t);
FIELD(hd_pass_bucket, section, 16, uint32_t);
FIELD(hd_pass_bucket, index, 20, uint32_t);
FIELD(hd_pass_bucket, last, 24, uint32_t);
FIELD(hd_pass_bucket, rounds, 28, uint32_t);
FIELD(hd_pass_bucket, grad, 32, hd_tensor);
FIELD(hd_pass_bucket, out, 36, hd_tensor);

STRUCT(hd_pass_block, 80);
FIELD(hd_pass_block, struct_size, 0, size_t);
FIELD(hd_pass_block, name, 8, const char *);
FIELD(hd_pass_block, id, 16, uint32_t);
FIELD(hd_pass_block, n_params, 20, uint32_t);
FIELD(hd_pass_block, params, 24, int64_t);
FIELD(hd_pass_block, flops, 32, double[3]);
FIELD(hd_pass_block, bytes, 56, double[3]);

STRUCT(hd_action, 12);
FIELD(hd_action, kind, 0, uint32_t);
FIELD(hd_action, chunk, 4, uint32_t);
FIELD(hd_action, micro, 8, uint32_t);

STRUCT(hd_pass_api, 480);
FIELD(hd_pass_api, struct_size, 0, size_t);
FIELD(hd_pass_api, live_axes, 8, uint32_t (*)(const struct hd_program *p));
FIELD(hd_pass_api, axis_size, 16, int32_t (*)(const struct hd_program *p, uint32_t axis));
FIELD(hd_pass_api, extent, 24, int64_t (*)(const struct hd_program *p, char dim));
FIELD(hd_pass_api, shard_params, 32, void (*)(struct hd_program *p, char dim, uint32_t axis));
FIELD(hd_pass_api, shard_residual, 40, void (*)(struct hd_program *p, char dim, uint32_t axis));
FIELD(hd_pass_api, n_sections, 48, uint32_t (*)(const struct hd_program *p));
FIELD(hd_pass_api, section_name, 56, const char *(*)(const struct hd_program *p, uint32_t section));
FIELD(hd_pass_api, n_instr, 64, uint32_t (*)(const struct hd_program *p, uint32_t section));
FIELD(hd_pass_api, instr, 72,
      void (*)(const struct hd_program *p, uint32_t section, uint32_t index, struct hd_pass_instr *out));
FIELD(hd_pass_api, n_params, 80, uint32_t (*)(const struct hd_program *p));
FIELD(hd_pass_api, param, 88, void (*)(const struct hd_program *p, uint32_t index, struct hd_pass_param *out));
FIELD(hd_pass_api, param_of, 96, uint32_t (*)(const struct hd_program *p, hd_tensor t));
FIELD(hd_pass_api, count, 104, int64_t (*)(const struct hd_program *p, hd_tensor t));
FIELD(hd_pass_api, partial, 112, uint32_t (*)(const struct hd_program *p, hd_tensor t));
FIELD(hd_pass_api, dtype, 120, uint32_t (*)(const struct hd_program *p, const char *what));
FIELD(hd_pass_api, optimizer_states, 128, uint32_t (*)(const struct hd_program *p));
FIELD(hd_pass_api, flat, 136,
      uint32_t (*)(struct hd_program *p, const char *name, uint32_t block, uint32_t axes, const uint32_t *params,
                   uint32_t n_params, uint64_t members));
FIELD(hd_pass_api, flat_get, 144, void (*)(const struct hd_program *p, uint32_t flat, struct hd_pass_flat *out));
FIELD(hd_pass_api, flat_whole, 152,
      hd_tensor (*)(struct hd_program *p, uint32_t flat, const char *name, uint32_t dtype, uint32_t life));
FIELD(hd_pass_api, flat_shard, 160,
      hd_tensor (*)(struct hd_program *p, uint32_t flat, const char *name, uint32_t dtype, uint32_t life,
                    hd_tensor inside));
FIELD(hd_pass_api, flat_view, 168, hd_tensor (*)(struct hd_program *p, uint32_t flat, hd_tensor whole, uint32_t param));
FIELD(hd_pass_api, flat_range, 176,
      hd_tensor (*)(struct hd_program *p, uint32_t flat, hd_tensor whole, int64_t first, int64_t count));
FIELD(hd_pass_api, flat_role, 184, void (*)(struct hd_program *p, uint32_t flat, uint32_t role, hd_tensor t));
FIELD(hd_pass_api, insert, 192,
      void (*)(struct hd_program *p, uint32_t section, uint32_t index, int32_t after,
               const struct hd_pass_instr *instr));
FIELD(hd_pass_api, append, 200, void (*)(struct hd_program *p, const char *section, const struct hd_pass_instr *instr));
FIELD(hd_pass_api, replace_in, 208,
      void (*)(struct hd_program *p, uint32_t section, uint32_t index, uint32_t k, hd_tensor t));
FIELD(hd_pass_api, replace_out, 216,
      void (*)(struct hd_program *p, uint32_t section, uint32_t index, uint32_t k, hd_tensor t));
FIELD(hd_pass_api, update, 224, void (*)(struct hd_program *p, uint32_t flat, hd_tensor low));
FIELD(hd_pass_api, norm2, 232, hd_tensor (*)(struct hd_program *p));
FIELD(hd_pass_api, fail, 240, void (*)(struct hd_program *p, const char *format, ...));
FIELD(hd_pass_api, stage, 248, int32_t (*)(const struct hd_program *p));
FIELD(hd_pass_api, micro_batches, 256, uint32_t (*)(const struct hd_program *p));
FIELD(hd_pass_api, n_blocks, 264, uint32_t (*)(const struct hd_program *p));
FIELD(hd_pass_api, block, 272, void (*)(const struct hd_program *p, uint32_t index, struct hd_pass_block *out));
FIELD(hd_pass_api, chunks, 280,
      void (*)(struct hd_program *p, uint32_t n_chunks, const uint32_t *stage_of_chunk,
               const uint32_t *chunk_of_block));
FIELD(hd_pass_api, actions, 288,
      void (*)(struct hd_program *p, uint32_t stage, const struct hd_action *list, uint32_t n));
FIELD(hd_pass_api, flat_shard_in, 296,
      hd_tensor (*)(struct hd_program *p, uint32_t flat, const char *name, uint32_t dtype, uint32_t memory));
FIELD(hd_pass_api, states_in, 304, void (*)(struct hd_program *p, uint32_t flat, uint32_t memory));
FIELD(hd_pass_api, file_folder, 312, void (*)(struct hd_program *p, const char *folder));
FIELD(hd_pass_api, fetch, 320,
      void (*)(struct hd_program *p, const char *section, uint32_t flat, uint32_t what, uint32_t load, uint32_t slot));
FIELD(hd_pass_api, staged, 328, hd_tensor (*)(struct hd_program *p, const char *section, hd_tensor t));
FIELD(hd_pass_api, store, 336, void (*)(struct hd_program *p, const char *section, uint32_t flat, uint32_t what));
FIELD(hd_pass_api, ring_attention, 344, void (*)(struct hd_program *p, uint32_t axis));
FIELD(hd_pass_api, vector, 352,
      hd_tensor (*)(struct hd_program *p, uint32_t flat, const char *name, int64_t count, uint32_t dtype, uint32_t axes,
                    uint32_t life));
FIELD(hd_pass_api, vector_like, 360,
      hd_tensor (*)(struct hd_program *p, const char *name, hd_tensor like, uint32_t axes, uint32_t life));
FIELD(hd_pass_api, apart, 368, void (*)(struct hd_program *p, uint32_t axes));
FIELD(hd_pass_api, n_flats, 376, uint32_t (*)(const struct hd_program *p));
FIELD(hd_pass_api, section, 384, void (*)(struct hd_program *p, const char *name, uint32_t every));
FIELD(hd_pass_api, keep, 392, void (*)(struct hd_program *p, uint32_t flat, hd_tensor t, const char *name));
FIELD(hd_pass_api, dim, 400, uint32_t (*)(struct hd_program *p, const char *name, int64_t extent));
FIELD(hd_pass_api, view, 408,
      hd_tensor (*)(struct hd_program *p, hd_tensor inside, const char *name, int64_t first, const uint32_t *dims,
                    uint32_t n));
FIELD(hd_pass_api, split_section, 416, void (*)(struct hd_program *p, uint32_t section, int64_t last));
FIELD(hd_pass_api, split_tp, 424, void (*)(struct hd_program *p, int32_t ways));
FIELD(hd_pass_api, first_round, 432, void (*)(struct hd_program *p, uint32_t section));
FIELD(hd_pass_api, declare, 440,
      void (*)(struct hd_program *p, hd_tensor t, uint32_t facts, uint32_t axes, const char *section));
FIELD(hd_pass_api, custom_op, 448, uint32_t (*)(struct hd_program *p, const struct hd_custom_op *op));
FIELD(hd_pass_api, remove, 456, void (*)(struct hd_program *p, uint32_t section, uint32_t index));
FIELD(hd_pass_api, hyper, 464, hd_tensor (*)(struct hd_program *p));
FIELD(hd_pass_api, reduce, 472, uint32_t (*)(struct hd_program *p, const struct hd_pass_bucket *bucket));

STRUCT(hd_strategy_ops, 64);
FIELD(hd_strategy_ops, struct_size, 0, size_t);
FIELD(hd_strategy_ops, caps, 8, uint64_t);
FIELD(hd_strategy_ops, api, 16, uint32_t);
FIELD(hd_strategy_ops, reserved, 20, uint32_t);
FIELD(hd_strategy_ops, layout, 24,
      int32_t (*)(const struct hd_host *host, const void *settings, struct hd_program *program, struct hd_error *err));
FIELD(hd_strategy_ops, transform, 32,
      int32_t (*)(const struct hd_host *host, const void *settings, struct hd_program *program, struct hd_error *err));
FIELD(hd_strategy_ops, partition, 40,
      int32_t (*)(const struct hd_host *host, const void *settings, struct hd_program *program, struct hd_error *err));
FIELD(hd_strategy_ops, cuts, 48, uint64_t);
FIELD(hd_strategy_ops, reduce, 56,
      int32_t (*)(const struct hd_host *host, const void *settings, struct hd_program *program,
                  const struct hd_pass_bucket *bucket, struct hd_error *err));
