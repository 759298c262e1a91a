/* service/report/json_fields: fields of an object, where one that is missing or of another type counts as nothing. */
#ifndef HD_SERVICE_REPORT_JSON_FIELDS_H
#define HD_SERVICE_REPORT_JSON_FIELDS_H

#include <jansson.h>

static inline const char *hd__json_word(const json_t *object, const char *key) /* "": none */
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static inline double hd__json_number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

#endif
