/* analysis/plan/machine_file: a kind of machine, described by a few published figures: machines/NAME.yaml. */
#ifndef HD_ANALYSIS_PLAN_MACHINE_FILE_H
#define HD_ANALYSIS_PLAN_MACHINE_FILE_H

#include "core/base/base.h"
#include "heddle/ops.h"

enum { HD__MACHINE_LEVELS = 4 };

/* A level of the network, from the innermost: ranks that are in the same unit of `ranks` ranks reach each other. */
struct hd__machine_level {
    const char *name;
    int64_t ranks;    /* of a unit; of the last level, where it names none: INT32_MAX */
    double bandwidth; /* bytes a second that one rank sends, one direction */
    double latency;   /* seconds a hop of a collective, or a message */
    double share;     /* of the bandwidth that is reached; 0: the machine's link_share */
};

struct hd__machine {
    const char *name, *path;
    const char *device;    /* plugin that compiles for it: "cuda" */
    int64_t ranks;         /* devices of one machine */
    int64_t threads;       /* of a rank, with which a CPU was measured; 0: not known */
    const char *processor; /* that was measured; NULL: not known */
    int64_t memory;        /* bytes a rank */
    double bandwidth;      /* bytes a second of that memory */
    double host_link;      /* bytes a second between it and the host's, one direction; 0: they are one memory */
    int64_t host_memory;   /* bytes of a machine; 0: not known */
    double kernel;         /* seconds that an instruction costs beside its work */
    /* Dense peaks, FLOPs a second, by width of the operands; 0: that of the next wider. */
    double peak_fp32, peak_16, peak_fp64;
    /* Shares of a peak that are reached: by large products, by attention, by its gradients (0: as attention), of the
     * memory's bandwidth, of a link's. */
    double product, attention, attention_grad, memory_share, link_share;
    /* A product whose m, n or k is this long reaches half of that, by this dim alone: d / (d + half). For devices whose
     * products are not cut into tiles that `units` units compute in waves, tile_m x tile_n each. */
    double half;
    double units, tile_m, tile_n;
    double collective; /* seconds that a collective or message costs beside its hops and bytes */
    double slowed;     /* share of its speed that compute loses while a collective is under way */
    double price;      /* dollars a rank and hour; 0: not known */
    double spot_price; /* the same of a spot instance, of which there is */
    double spot_share; /* this share of the rank-hours */
    double power;      /* watts a rank; 0: not known */
    double mtbf;       /* seconds between failures of one rank; 0: not known */
    struct hd__machine_level level[HD__MACHINE_LEVELS];
    uint32_t n_levels, reserved;
    /* By op, and of operands of 4 or more bytes and of 2: how many times as long as by the rates above. 0: once. */
    double times[HD_OP_LIMIT][2];
    struct hd__arena arena;
};

/* Reads machines/NAME.yaml of this heddle, or a file: what has a slash or ends in .yaml. HD_E_NOTFOUND lists the names
 * that there are; messages of the file begin with its place. */
int32_t hd__machine_read(const char *name, struct hd__machine *machine, struct hd_error *err);
void hd__machine_free(struct hd__machine *machine); /* of zeros is fine */

/* HD_E_INVALID where the last level is of fewer ranks. */
int32_t hd__machine_reaches(const struct hd__machine *machine, int64_t ranks, struct hd_error *err);
uint16_t hd__op_named(const char *name); /* HD_OP_LIMIT: there is none */
/* Peak of a dtype, FLOPs a second. */
double hd__machine_peak(const struct hd__machine *machine, uint32_t dtype);

#endif
