/* heddle test: a plugin's conformance. The checks are a program of their own, heddle-test, beside this one. */
#include <errno.h>
#include <unistd.h>

#include "cli/command.h"
#include "core/base/base.h"
#include "service/launch/external.h"

static int run(int argc, char **argv)
{
    char self[4096], path[4200];
    const char *slash = strrchr(hd__launch_self_path(self), '/');
    if (argc < 2)
        return hd__cli_usage_error(&hd__command_test,
                                   "which plugin? Say KIND-NAME, as optim-lion, or the path of its .so");
    snprintf(path, sizeof path, "%.*s/heddle-test", slash ? (int)(slash - self) : 0, self);
    execv(path, argv);
    fprintf(stderr, "heddle test: %s cannot be run: %s: install heddle again, with all of its programs\n", path,
            strerror(errno));
    return HD__EXIT_FAILED;
}

const struct hd__command hd__command_test = {
    .name = "test",
    .usage = "KIND-NAME | FILE.so [WORD ...]",
    .summary = "check that a plugin does what its kind promises",
    .help =
        "Runs the checks that every plugin of its kind has to pass, each in a process of its own, prints a line for\n"
        "each and at the end \"N passed, N failed\"; exit code 1 if any failed.\n"
        "KIND-NAME is looked for as by `heddle plugins`; a path is that file.\n"
        "  set:KEY=VALUE      an option of the plugin, as often as needed\n"
        "comm:\n"
        "  results, failures  only what is computed; only deaths, deadlines, aborts and disagreement\n"
        "  few                each check with one or two numbers of ranks, where ranks take long to start\n"
        "  alone              no liveness tells it of a rank that died, which it has to see itself\n"
        "  strict             messages name ranks and sizes, as those of heddle's own transports do\n"
        "  soak=N seed=S ranks=R   N random operations on R ranks, and nothing else\n"
        "  huge=BYTES         operations of that size on two ranks, and nothing else\n"
        "ckpt:\n  at=URL             where its stores are, as s3://BUCKET/PREFIX\n"
        "device:\n"
        "  table              heddle's own table of ops against the reference kernels, too\n"
        "data:\n"
        "  path=PATH          what it is to open\n"
        "tokenizer:\n"
        "  path=PATH          what it is to open\n"
        "  token=TEXT         a special token of it, as often as needed\n"
        "  lossy              it normalizes text, so that not every byte comes back\n"
        "strategy:\n"
        "  strategies=[...]   the job's list, where it needs others than zero beside it\n"
        "  draws=N seed=S     so many jobs at random, others\n"
        "A check may take 60 s; CK_TIMEOUT_MULTIPLIER=10 in the environment doubles that on a busy machine.\n",
    .example = "  heddle test optim-lion\n  heddle test ./heddle-comm-pipes.so soak=100000 seed=7 ranks=4\n",
    .run = run,
};
