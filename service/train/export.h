/* service/train/export: an open session's weights as a Hugging Face folder: config.json and model.safetensors. */
#ifndef HD_SERVICE_TRAIN_EXPORT_H
#define HD_SERVICE_TRAIN_EXPORT_H

#include "service/train/session.h"

/* Refuses a folder that cannot be made or written, or has a model that is no export of heddle's. */
int32_t hd__train_export_check(const char *folder, struct hd_error *err);
/* The session has one rank and its weights are loaded. Creates the folder; replaces files in it. */
int32_t hd__train_export(struct hd__train_session *session, const char *folder, struct hd_error *err);

#endif
