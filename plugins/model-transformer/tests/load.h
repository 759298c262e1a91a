/* Opens the built plugin as the core would, with a host of its own. */
#ifndef HD_MODEL_TRANSFORMER_TESTS_LOAD_H
#define HD_MODEL_TRANSFORMER_TESTS_LOAD_H

#include "heddle/host.h"
#include "heddle/model.h"

extern const struct hd_component *model_component;
extern const struct hd_model_ops *model_ops;
extern struct hd_host model_host; /* .build is the mock's */
extern char model_warnings[4096]; /* what was logged as a warning, a line each */

void model_load(void); /* once, before anything else */

/* Settings by the plugin's own table: key, value, ..., NULL. Only numbers, choices and strings. */
void *model_settings(const char *key, ...) __attribute__((sentinel));
/* The same, opened; NULL and err filled where that is refused. */
struct hd_model *model_open(struct hd_error *err, const void *settings);

#endif
