/* core/base/yaml_tree: a YAML document as a tree with the position of every node.
 *
 * A job file is plain data: mappings with scalar keys, lists, scalars. Anchors, aliases, tags, several documents,
 * duplicate keys and empty values are refused with their position. */
#ifndef HD_CORE_BASE_YAML_TREE_H
#define HD_CORE_BASE_YAML_TREE_H

#include "core/base/base.h"

enum { HD__SCALAR = 1, HD__LIST, HD__MAP };
enum { HD__TREE_DEPTH = 16, HD__TREE_NODES = 100000, HD__TREE_KEYS = 1000, HD__TREE_BYTES = 1 << 20 };

struct hd__tree_node {
    uint32_t kind;
    uint32_t line, column; /* from 1; 0: not from a file */
    uint32_t quoted;       /* a scalar that was in quotes: never null */
    uint32_t count;        /* items of a list or a map */
    uint32_t room;
    const char *text;             /* scalar */
    const char *origin;           /* "job.yaml:12:7", "command line", "default" */
    struct hd__tree_node **value; /* list: items; map: values */
    struct hd__tree_node **key;   /* map: keys, scalars */
    void *leaf;                   /* for printing: the node's JSON */
    const char *note;             /* for printing: a word after the origin */
};

/* Reads one document; `name` is what messages and origins call it. Messages begin with the place. With
 * `place` the text is not a file: origins and messages say `place` alone, without line and column. */
int32_t hd__tree_parse(const char *name, const char *text, size_t bytes, const char *place, struct hd__arena *arena,
                       struct hd__tree_node **root, struct hd_error *err);

/* Nodes that are in no file; `origin` is what messages call their place. In the arena, as are copies of the texts. */
struct hd__tree_node *hd__tree_scalar(struct hd__arena *arena, const char *text, const char *origin);
struct hd__tree_node *hd__tree_map(struct hd__arena *arena, const char *origin);
/* The value of a key; NULL if the node is not a map or lacks it. */
struct hd__tree_node *hd__tree_get(const struct hd__tree_node *map, const char *key);
/* Adds or replaces. The key takes the value's origin. */
void hd__tree_set(struct hd__tree_node *map, const char *key, struct hd__tree_node *value, struct hd__arena *arena);
void hd__tree_push(struct hd__tree_node *list, struct hd__tree_node *value, struct hd__arena *arena);
/* Empty, ~ or null, without quotes. */
int hd__tree_is_null(const struct hd__tree_node *node);
/* A node and all below it as flow YAML: "{replicate: 2, shard: auto}". */
void hd__tree_text(const struct hd__tree_node *node, struct hd__text *out);
const char *hd__tree_kind_name(const struct hd__tree_node *node); /* "a list", "a mapping", "a single value" */

#endif
