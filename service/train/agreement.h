/* service/train/agreement: do all ranks train the same job? Ranks of another launcher each read a job file and a
 * command line of their own, and may run another build: replicas would drift apart in silence. */
#ifndef HD_SERVICE_TRAIN_AGREEMENT_H
#define HD_SERVICE_TRAIN_AGREEMENT_H

#include "core/compile/compile.h"
#include "runtime/rendezvous/store.h"

/* Compares this rank's HD_OPTION_GLOBAL values and programs with rank 0's: 32 bytes a rank, and all values only where
 * they differ. HD_E_INVALID names the first key that differs and both values, or the builds. Where plug-ins alone
 * differ there is a warning. NULL store: alone. */
int32_t hd__train_agree(struct hd__compiled *compiled, int32_t rank, struct hd_store *store, struct hd_error *err);
/* Version and file of each plug-in of others that has a part in the numbers that are trained, by its label. */
json_t *hd__train_plugins_json(const struct hd__compiled *compiled);
uint64_t hd__train_hash_programs(const struct hd__compiled *compiled); /* of all stages */

#endif
