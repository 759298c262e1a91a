#include "runtime/exec/roofline.h"

#include "core/program/cost.h"
#include "core/program/ops.h"

int hd__roofline_kind(const struct hd_program *p, const struct hd__instr *i)
{
    uint8_t class = hd__op(i->op)->class;
    if (hd__is_async(i) || class == HD__CLASS_COLLECTIVE || class == HD__CLASS_P2P || i->op == HD_OP_WAIT ||
        i->op == HD_OP_RELEASE || i->op == HD_OP_FEED)
        return HD__ROOFLINE_NONE;
    return hd__instr_flops(p, i) > 0 ? HD__ROOFLINE_PRODUCT : HD__ROOFLINE_OTHER;
}

static double bytes_of(const struct hd_program *p, const struct hd__instr *i, const struct hd__roofline_rates *rates)
{
    return rates->bytes_of ? rates->bytes_of(p, i) : hd__instr_moved_bytes(p, i);
}

double hd__roofline_instr(const struct hd_program *p, const struct hd__instr *i, const struct hd__roofline_rates *rates)
{
    double moving = bytes_of(p, i, rates) / rates->bytes;
    switch (hd__roofline_kind(p, i)) {
    case HD__ROOFLINE_PRODUCT:
        return HD__MAX(hd__instr_flops(p, i) / rates->flops, moving);
    case HD__ROOFLINE_OTHER:
        return moving;
    default:
        return 0;
    }
}

struct hd__roofline hd__roofline_of(const struct hd_program *p, const struct hd__roofline_rates *rates, double comm_s)
{
    struct hd__roofline r = {.comm_s = comm_s};
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const hd__code *code = &p->sections.at[s].code;
        double repeat = hd__section_runs_per_step(&p->sections.at[s], NULL);
        for (uint32_t k = 0; k < code->count && repeat > 0; k++) {
            const struct hd__instr *i = &code->at[k];
            double seconds = repeat * hd__roofline_instr(p, i, rates);
            if (hd__roofline_kind(p, i) == HD__ROOFLINE_PRODUCT) {
                r.flops += repeat * hd__instr_flops(p, i);
                r.products_s += seconds;
            } else if (hd__roofline_kind(p, i) == HD__ROOFLINE_OTHER) {
                r.bytes += repeat * bytes_of(p, i, rates);
                r.other_s += seconds;
            }
        }
    }
    r.seconds = r.products_s + r.other_s + r.comm_s;
    return r;
}

void hd__roofline_text(const struct hd__roofline *r, const struct hd__roofline_rates *rates, double step_s,
                       struct hd__text *out)
{
    hd__text_add(out, "roofline of rank 0: %.3f ms a step, by rates %s\n", 1e3 * r->seconds, rates->source);
    hd__text_add(
        out, "  = products %.3f (%.2f GFLOP at %.1f GFLOP/s) + other %.3f (%.2f GB at %.1f GB/s) + exposed comm %.3f\n",
        1e3 * r->products_s, 1e-9 * r->flops, 1e-9 * rates->flops, 1e3 * r->other_s, 1e-9 * r->bytes,
        1e-9 * rates->bytes, 1e3 * r->comm_s);
    hd__text_add(out, "a step of %.3f ms takes %.2f times the roofline%s", 1e3 * step_s, step_s / r->seconds,
                 step_s / r->seconds < HD__ROOFLINE_DOUBTED ? ": " HD__ROOFLINE_WORDS : "");
}
