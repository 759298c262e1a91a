/* A fixture: the plugins that were built, in the folder PLUGINS. */
#ifndef HD_TESTS_SUPPORT_PLUGINS_H
#define HD_TESTS_SUPPORT_PLUGINS_H

#include <check.h>

#include "runtime/exec/select.h"

static struct hd__plugins *plugins;

static void setup(void)
{
    struct hd_error err = HD_ERROR_INIT;
    plugins = hd__plugins_create(hd__exec_host_table());
    ck_assert_msg(!hd__plugins_add_folder(plugins, PLUGINS, &err), "%s", err.message);
}

static void teardown(void)
{
    hd__plugins_destroy(plugins);
}

#endif
