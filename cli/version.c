/* heddle version */
#include "core/base/version.h" /* from meson */
#include "cli/command.h"
#include "core/base/base.h"

static int run(int argc, char **argv)
{
    int json = argc == 2 && strcmp(argv[1], "--json") == 0;
    if (argc > 1 && !json)
        return hd__cli_usage_error(&hd__command_version, "it does not know '%s'", argv[1]);
    if (json)
        printf("{\"version\": \"%s\", \"abi\": \"%d.%d\", \"build\": \"%s\"}\n", HD__VERSION, HD_ABI_MAJOR,
               HD_ABI_MINOR, HD__BUILD);
    else
        printf("heddle %s (plugin ABI %d.%d, %s)\n", HD__VERSION, HD_ABI_MAJOR, HD_ABI_MINOR, HD__BUILD);
    return HD__EXIT_DONE;
}

const struct hd__command hd__command_version = {
    .name = "version",
    .usage = "[--json]",
    .summary = "print the version of heddle and of its plugin ABI",
    .help = "A plugin built for ABI 1.N works with every heddle of ABI 1.N and later minors.\n",
    .example = "  heddle version --json\n",
    .run = run,
};
