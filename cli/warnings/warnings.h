/* cli/warnings: lines on standard error about a job that is valid: what was added to it, and values that have no effect
 * or are hardly meant. */
#ifndef HD_CLI_WARNINGS_H
#define HD_CLI_WARNINGS_H

#include "cli/job.h"

/* Prints all of them. */
void hd__cli_print_warnings(const struct hd__cli_job_arguments *arguments, const struct hd__cli_job *loaded);
/* Prints those about intervals of a job of epochs, whose steps are known once its data was looked at. */
void hd__cli_print_late_warnings(const struct hd__cli_job *loaded);

/* ---- values.c */
/* A line for each strategy that was added: "mesh.tp is 2: strategy 3d is used (add ... to set its options)"; and a
 * warning for each value without effect in this job (hd_option.needs) or hardly meant. All sections are parsed. */
void hd__warn_values(struct hd__job *job, struct hd__text *out);
/* Intervals that are longer than the job; none while job.epochs has not become steps. */
void hd__warn_intervals(struct hd__job *job, struct hd__text *out);

/* ---- usual.c */
/* Numbers outside what anyone uses. */
void hd__warn_unusual(struct hd__job *job, struct hd__text *out);
void hd__warn_unusual_config(const struct hd__compiled *c, struct hd__text *out); /* of model.from */

/* ---- strategies.c */
/* Pipelines that idle, strategies that cut nothing, recomputation that saves nothing, codes that are never used. */
void hd__warn_strategies(const struct hd__cli_job *loaded, struct hd__text *out);
/* Parts of a strategy that are due after the job's last step, or last due before it. */
void hd__warn_sections(const struct hd__cli_job *loaded, struct hd__text *out);

/* Parts of a strategy that most of the steps `first` to `last` have not, so that medians leave them out. */
void hd__warn_medians(const struct hd__cli_job *loaded, int64_t first, int64_t last, struct hd__text *out);

/* ---- idle_options.c */
/* Options of the model, a strategy or precision that change no program. */
void hd__warn_idle_options(const struct hd__cli_job_arguments *arguments, const struct hd__cli_job *loaded,
                           struct hd__text *out);

#endif
