/* Faults planted at random in the programs of a job: what changes its meaning has to be found by verify or by the token
 * machine. What neither finds is emulated, where it must train like one rank all the same. */
#ifndef HD_CONFORMANCE_FAULTS_H
#define HD_CONFORMANCE_FAULTS_H

#include "runtime/exec/select.h"

enum { CONF_FAULTS = 40, CONF_FAULTS_CUSTOM = 35 }; /* kinds; the first of those in ops of a strategy's own */

struct conf_planted {
    struct hd__compiled *fine, *broken; /* one job, compiled twice in fp64 for reference kernels; broken is edited */
    struct hd__compiled *one;           /* the same on one rank; NULL: what was not found is not looked into */
    const char *mesh;                   /* for messages */
    /* Averages of parameters have to keep their weights as well. check proves that they are averages, not which. */
    int averages_too;
    uint32_t first_kind; /* kinds below are not planted */
    uint32_t planted, missed;
    uint32_t found[CONF_FAULTS], kept[CONF_FAULTS]; /* kept: without effect, or missed */
};

void conf_faults_seed(uint64_t seed);
uint32_t conf_faults_pick(uint32_t n); /* 0 to n - 1; the same numbers everywhere */
/* `wanted` faults more, one after another; a line on stderr for each that is missed. */
void conf_faults_plant(struct conf_planted *to, uint32_t wanted);
const char *conf_faults_name(uint32_t kind);

#endif
