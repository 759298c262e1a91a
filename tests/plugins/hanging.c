/* ckpt-hanging: ckpt-posix that does not come back from closing, beside which another process removes what was saved,
 * or whose disk waits for a file, before it has written or once it has committed. */
#include <fcntl.h>
#include <fenv.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "heddle/ckpt.h"
#include "heddle/host.h"
#include "tests/plugins/inner.h"

#define REMOVED "step-00000001" /* as soon as it was listed */
#define READ "step-00000003"    /* after its size was asked for */

struct settings {
    int64_t posix[32]; /* of the inner plug-in */
    int32_t hang, removed, slow, commits, leaves, one, empty, reserved;
};

static struct hd_ckpt_ops ops;
static const struct hd_ckpt_ops *posix;
static const struct settings *asked;
static int lists;

static int32_t hanging_open(const struct hd_host *host, const void *settings, const char *location,
                            struct hd_ckpt **ckpt, struct hd_error *err)
{
    static const char scheme[] = "hanging://";
    size_t n = sizeof scheme - 1;
    asked = settings;
    if (asked->one)
        location = "one";
    int32_t rc = posix->open(host, asked->posix, strncmp(location, scheme, n) ? location : location + n, ckpt, err);
    if (asked->leaves) {
        umask(0777);
        fesetround(FE_UPWARD);
        rc = rc || chdir("/") ? HD_E_IO : HD_OK;
    }
    return rc;
}

static int32_t hanging_begin(struct hd_ckpt *ckpt, const char *name, int32_t leader, struct hd_ckpt_tx **tx,
                             struct hd_error *err)
{
    return asked->empty ? HD_OK : posix->begin(ckpt, name, leader, tx, err);
}

static void hanging_close(struct hd_ckpt *ckpt)
{
    while (asked->hang)
        pause();
    posix->close(ckpt);
}

static int32_t hanging_list(struct hd_ckpt *ckpt, void (*visit)(void *user, const char *name), void *user,
                            struct hd_error *err)
{
    if (asked->removed)
        visit(user, lists++ ? READ : REMOVED);
    return posix->list(ckpt, visit, user, err);
}

static int32_t hanging_size(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t *bytes,
                            struct hd_error *err)
{
    *bytes = 100;
    return asked->removed && !strcmp(name, READ) ? HD_OK : posix->size(ckpt, name, file, bytes, err);
}

/* Nothing is on the disk before there is a file of this name. */
static int32_t hanging_flush(struct hd_ckpt_tx *tx, struct hd_error *err)
{
    while (asked->slow && access("disk-goes-on", F_OK))
        usleep(1000);
    return posix->flush(tx, err);
}

static int32_t hanging_commit(struct hd_ckpt_tx *tx, struct hd_error *err)
{
    int32_t rc = posix->commit(tx, err);
    if (asked->commits && !rc)
        close(open("disk-committed", O_CREAT | O_WRONLY, 0600));
    while (asked->commits && !rc && access("disk-goes-on", F_OK))
        usleep(1000);
    return rc;
}

static int32_t hanging_move(struct hd_ckpt *ckpt, const char *name, const char *to, struct hd_error *err)
{
    while (asked->slow && access("disk-goes-on", F_OK))
        usleep(1000);
    return posix->move(ckpt, name, to, err);
}

static struct hd_option options[16] = {
    {.name = "hang",
     .type = HD_OPT_BOOL,
     .value = "false",
     .help = "it does not come back from closing",
     .offset = offsetof(struct settings, hang)},
    {.name = "removed",
     .type = HD_OPT_BOOL,
     .value = "false",
     .help = "another process removes checkpoints",
     .offset = offsetof(struct settings, removed)},
    {.name = "slow",
     .type = HD_OPT_BOOL,
     .value = "false",
     .help = "it writes and moves once there is a file disk-goes-on",
     .offset = offsetof(struct settings, slow)},
    {.name = "commits",
     .type = HD_OPT_BOOL,
     .value = "false",
     .help = "it makes a file disk-committed, and waits for disk-goes-on",
     .offset = offsetof(struct settings, commits)},
    {.name = "leaves",
     .type = HD_OPT_BOOL,
     .value = "false",
     .help = "it leaves another umask, folder and rounding",
     .offset = offsetof(struct settings, leaves)},
    {.name = "one",
     .type = HD_OPT_BOOL,
     .value = "false",
     .help = "it stores in one folder, whatever its location",
     .offset = offsetof(struct settings, one)},
    {.name = "empty",
     .type = HD_OPT_BOOL,
     .value = "false",
     .help = "its begin gives nothing",
     .offset = offsetof(struct settings, empty)},
};

static struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_CKPT,
    .name = "hanging",
    .summary = "hangs while it closes: for tests",
    .options = options,
    .n_options = 7,
    .option_size = sizeof *options,
    .settings_size = sizeof(struct settings),
    .ops = &ops,
};

HD_PLUGIN_DESCRIPTOR(plugin, "ckpt-hanging", "0.1.0", "Apache-2.0", component);

__attribute__((visibility("default"))) const struct hd_plugin *HD_PLUGIN_ENTRY(void);
const struct hd_plugin *HD_PLUGIN_ENTRY(void)
{
    const struct hd_component *inner = inner_component(CKPT_POSIX);
    if (!inner || !inner_options(&component, options, 7, sizeof options / sizeof *options, inner,
                                 offsetof(struct settings, posix)))
        return NULL;
    posix = inner->ops;
    ops = *posix;
    ops.begin = hanging_begin;
    ops.close = hanging_close;
    ops.list = hanging_list;
    ops.size = hanging_size;
    ops.open = hanging_open;
    ops.flush = hanging_flush;
    ops.commit = hanging_commit;
    ops.move = hanging_move;
    return &plugin;
}
