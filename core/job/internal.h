/* core/job/internal: what the files of this room share. */
#ifndef HD_CORE_JOB_INTERNAL_H
#define HD_CORE_JOB_INTERNAL_H

#include "core/base/yaml_tree.h"
#include "core/job/job.h"

/* ---- keys.c */
struct hd__job_core_section {
    const char *name;
    const struct hd_option *options;
    size_t count;
    uint32_t kind;   /* of the component that it names; 0: none */
    const char *use; /* the component if `use:` is left out; NULL: `use:` is mandatory */
};
extern const struct hd__job_core_section hd__job_core_sections[];
extern const size_t hd__job_core_section_count;
struct hd__options hd__job_core_table(const char *section);

/* ---- section_parse.c: a mapping through a table */
typedef int32_t (*hd__job_composite_fn)(struct hd__job *job, const char *path, struct hd__tree_node *node,
                                        struct hd_error *err);

struct hd__job_fields {
    const char *path;           /* "data", in front of names */
    const char *location;       /* where the section begins: a missing key is reported there */
    struct hd__tree_node *node; /* NULL: all defaults */
    struct hd__options table;
    void *settings;
    const struct hd__job_section *owner;  /* NULL: the core */
    const char *needs;                    /* hd_option.needs of options that have none; may be NULL */
    const struct hd__tree_node *preset;   /* values in place of defaults; may be NULL */
    const struct hd__options *other_keys; /* keys of the same mapping that are read elsewhere; may be NULL */
    int allow_unknown;                    /* unknown keys are left to other readers */
    int composites;                       /* keys may have readers of their own */
};
int32_t hd__job_fields_parse(struct hd__job *job, const struct hd__job_fields *fields, struct hd_error *err);

/* Notes a resolved value, in place of an earlier one of the same path. Takes the reference of json. */
void hd__job_value_set(struct hd__job *job, const struct hd__job_section *owner, const char *path, const char *text,
                       json_t *json, const char *origin, uint32_t flags);
/* Do warm-up and decay fit the steps, where these are known? */
int32_t hd__job_check_schedule(struct hd__job *job, struct hd_error *err);
/* A note behind the origin of a value that was set, for printing. */
void hd__job_value_note(struct hd__job *job, const char *path, const char *note);
/* The node as text and JSON, for values that are no single option. */
void hd__job_value_set_tree(struct hd__job *job, const char *path, const struct hd__tree_node *node, uint32_t flags);

/* HD_E_INVALID, with the node's position in front of the message. */
int32_t hd__job_node_fail(const struct hd__tree_node *node, struct hd_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Refuses gs://bucket/x and its like where a path of this machine is wanted, and none, off or true. */
int32_t hd__job_path_check(const struct hd__tree_node *node, const char *path, struct hd_error *err);
/* One option from one node. `path` is the key's full name. */
int32_t hd__job_node_parse(const struct hd__tree_node *node, const char *path, const struct hd_option *option,
                           void *settings, struct hd__arena *arena, struct hd_error *err);

/* ---- composite_keys.c */
struct hd__job_composite {
    const char *path;
    hd__job_composite_fn read; /* fills the job */
    uint32_t flags;            /* HD_OPTION_... of its value */
};
const struct hd__job_composite *hd__job_composite_key(const char *path); /* NULL: it is a plain option */
/* Fills the job, and notes the value for printing. */
int32_t hd__job_composite_read(const struct hd__job_composite *key, struct hd__job *job, struct hd__tree_node *node,
                               struct hd_error *err);

/* ---- composite_keys.c: a map of plain options, one of them */
struct hd__job_part {
    const char *key;
    const struct hd_option option;
    void *out;
};
int32_t hd__job_read_parts(struct hd__job *job, const char *path, const struct hd__tree_node *node,
                           const struct hd__job_part *parts, size_t n, struct hd_error *err);

/* ---- trace_key.c */
int32_t hd__job_read_trace(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err);

/* ---- sections.c */
void hd__job_sections_read(struct hd__job *job);
/* The job's field for the section of a kind; NULL for strategies, which are many. */
struct hd__job_section **hd__job_section_slot(struct hd__job *job, uint32_t kind);
int32_t hd__job_section_make(struct hd__job *job, const char *path, uint32_t kind, const char *use,
                             struct hd__tree_node *node, const char *place, struct hd__job_section **out,
                             struct hd_error *err);

/* ---- override.c */
const char *hd__job_foreign(const char *name); /* what to say of KEY or SECTION.KEY of others; NULL: nothing */
int32_t hd__job_override(struct hd__job *job, const char *word, struct hd_error *err);
/* Sets what the command line said of a strategy before it was there. */
int32_t hd__job_place(struct hd__job *job, const char *strategy, struct hd_error *err);

#endif
