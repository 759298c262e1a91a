/* Validation of strategies' calls of hd_pass_api: ids in range, pointers set, slots called in their phase. */
#include <stdarg.h>

#include "core/passes/strategy_api.h"
#include "core/program/ops.h"

/* Kinds of ids: from `first` to below `end`, which is counted from what the program has, if that is given. */
struct id_range {
    char kind;
    const char *noun;
    uint32_t first, end;
    size_t count; /* offset in hd_program */
};

#define OF(array) offsetof(struct hd_program, array.count)

static struct id_range range_of(const struct hd_program *p, char kind, uint32_t section)
{
    static const struct id_range rows[] = {{'t', "tensor", 1, 0, OF(tensors)},
                                           {'s', "section", 0, 0, OF(sections)},
                                           {'i', "instruction", 0, 0, 0},
                                           {'T', "tensor", 0, 0, OF(tensors)},
                                           {'f', "flat buffer", 1, 1, OF(flats)},
                                           {'p', "parameter", 0, 0, OF(params)},
                                           {'b', "block", 0, 0, OF(blocks)},
                                           {'D', "dim", 0, 0, OF(dims)},
                                           {'a', "mesh axis", 0, HD_AXIS_COUNT, 0},
                                           {'A', "mask of mesh axes", 0, HD_AXIS_BIT(HD_AXIS_COUNT), 0},
                                           {'c', "dimension letter", 'A', 'z' + 1, 0},
                                           {'d', "dtype", HD_F32, HD_U8 + 1, 0},
                                           {'l', "lifetime", 0, HD_LIFE_STEP + 1, 0},
                                           {'m', "memory", 0, HD_MEMORY_FILE + 1, 0},
                                           {'r', "role", 0, HD_FLAT_COMMON + 1, 0},
                                           {'F', "mask of facts", 1, HD_FACT_MIX << 1, 0},
                                           {'w', "mask of parts", 0, HD_PART_STATES << 1, 0},
                                           {'+', "number", 1, UINT32_MAX, 0}};
    uint32_t n = 0;
    while (rows[n].kind != kind)
        n++;
    struct id_range r = rows[n];
    if (r.count)
        r.end += *(const uint32_t *)((const char *)p + r.count);
    if (kind == 'i' && section < p->sections.count)
        r.end = p->sections.at[section].code.count;
    return r;
}

static const char *const phases[] = {"layout", "partition", "transform"};

/* The slot that a function is behind. */
static const char *slot_of(const char *function)
{
    return !strncmp(function, "hd__pass_", 9) ? function + 9 : function;
}

int hd__pass_args(const struct hd_program *p, const char *function, const char *kinds, ...)
{
    uint32_t section = 0, id;
    int ok = hd__pass_ok(p) || *kinds == '?';
    if (!p->pass) /* called by the core itself */
        return ok;
    va_list args;
    va_start(args, kinds);
    for (const char *k = kinds; *k && ok; k++) {
        if (*k == '?')
            continue;
        if (*k >= '1' && *k <= '3') {
            if (!(ok = hd__pass_phase(p) == *k - '1'))
                hd__pass_refuse(p, "hd_pass_api.%s is for %s, and was called in %s", slot_of(function),
                                phases[*k - '1'], phases[hd__pass_phase(p)]);
            continue;
        }
        if (*k == '*') {
            if (!(ok = va_arg(args, const void *) != NULL))
                hd__pass_refuse(p, "hd_pass_api.%s: a pointer is NULL", slot_of(function));
            continue;
        }
        id = va_arg(args, uint32_t);
        const struct id_range r = range_of(p, *k, section);
        if (!(ok = id >= r.first && id < r.end))
            hd__pass_refuse(p, "hd_pass_api.%s: %s %d does not exist: %s %u to %u", slot_of(function), r.noun,
                            (int32_t)id, r.end > r.first ? "there are" : "there is none, not even", r.first,
                            r.end > r.first ? r.end - 1 : r.first);
        section = *k == 's' ? id : section;
    }
    va_end(args);
    return ok;
}

int hd__pass_instr_valid(const struct hd_program *p, const char *function, const struct hd_pass_instr *new)
{
    const char *slot = slot_of(function);
    const struct hd_custom_op *custom = new ? hd__pass_custom(p, new->op) : NULL;
    const struct hd__op *row =
        hd__op(!new || new->op == HD_OP_CUSTOM || new->op >= HD_OP_LIMIT ? 0 : (uint16_t) new->op);
    if (!hd__pass_args(p, slot, "3*", new))
        return 0;
    if (new->struct_size != sizeof *new || (new->attrs &&new->attrs->struct_size < HD__END(struct hd_attrs, z_scale)))
        hd__pass_refuse(p, "hd_pass_api.%s: struct_size of the %s is %zu: set it with sizeof", slot,
                        new->struct_size != sizeof *new ? "instruction" : "attributes",
                        new->struct_size != sizeof *new ? new->struct_size : new->attrs->struct_size);
    else if (custom && !hd__pass_custom_valid(p, slot, new))
        return 0;
    else if (!custom && !row->name)
        hd__pass_refuse(p, "hd_pass_api.%s: op %u does not exist: see heddle/ops.h, and custom_op", slot, new->op);
    else if (!custom && (new->n_in > HD_MAX_IN || new->n_out > HD_MAX_OUT || !hd__op_takes(row, new->n_in) ||
                         (row->n_out >= 0 && new->n_out != (uint32_t)row->n_out)))
        hd__pass_refuse(p, "hd_pass_api.%s: %s with %u inputs and %u outputs: see its row in heddle/ops.h", slot,
                        row->name, new->n_in, new->n_out);
    else if (new->phase > HD_PHASE_O || new->redop > HD_AVG)
        hd__pass_refuse(p, "hd_pass_api.%s: %s in phase %u with reduction %u: see HD_PHASE_... and HD_SUM", slot,
                        custom ? custom->name : row->name, new->phase, new->redop);
    for (uint32_t k = 0; hd__pass_ok(p) && k < new->n_in + new->n_out; k++)
        hd__pass_args(p, slot, "t", k < new->n_in ? new->in[k] : new->out[k - new->n_in]);
    return hd__pass_ok(p) && hd__pass_args(p, slot, "bA", new->block, new->axes);
}
