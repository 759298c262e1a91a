/* Checkpoints that a command hardly means to leave out: they are in another folder than checkpoint.dir. */
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/file.h"
#include "service/metrics/metrics.h"
#include "service/train/checkpointer/internal.h"

static int has_checkpoints(struct hd__job *job, const char *folder)
{
    glob_t found = {0};
    int n = !glob(hd__arena_format(&job->arena, "%s/step-*/index.json", folder), 0, NULL, &found) && found.gl_pathc;
    globfree(&found);
    return n;
}

const char *hd__train_checkpointer_find_near(struct hd__job *job)
{
    const char *dir = job->checkpoint_dir, *slash = strrchr(job->file, '/'),
               *inside = hd__arena_format(&job->arena, "%s/checkpoints", dir);
    int n = slash && *dir != '/' ? (int)(slash - job->file) : 0;
    const char *beside = hd__arena_format(&job->arena, "%.*s/%s", n, job->file, dir);
    if (has_checkpoints(job, inside))
        return hd__arena_format(&job->arena, "; %s has some: say checkpoint.dir=%s", inside, inside);
    return n && has_checkpoints(job, beside)
               ? hd__arena_format(
                     &job->arena,
                     "; %s has some: relative paths are relative to the working directory: run heddle in %.*s", beside,
                     n, job->file)
               : "";
}

void hd__train_checkpointer_warn_elsewhere(struct hd__job *job, int64_t step)
{
    const char *where = hd__job_where(job, "checkpoint.dir"), *dir = job->checkpoint_dir,
               *near = step ? "" : hd__train_checkpointer_find_near(job);
    int64_t saved;
    char *folder = hd__metrics_saved_in(job->metrics_jsonl, &saved);
    int newer = folder && saved > step && !hd__same_path(folder, dir) &&
                !access(hd__arena_format(&job->arena, "%s/step-%08" PRId64 "/index.json", folder, saved), F_OK);
    if (newer && step)
        hd__log(HD_LOG_WARN, NULL,
                "%s: checkpoint.dir: the newest checkpoint of %s is of step %" PRId64 ", and the last run of %s saved "
                "step %" PRId64 " in %s: checkpoint.dir=%s uses that one",
                where, dir, step, job->metrics_jsonl, saved, folder, folder);
    else if (newer)
        hd__log(HD_LOG_WARN, NULL,
                "%s: checkpoint.dir: %s has no checkpoint, and the run of %s before this one saved step %" PRId64
                " in %s: to go on from there, set checkpoint.dir=%s or move the checkpoints to %s",
                where, dir, job->metrics_jsonl, saved, folder, folder, dir);
    else if (*near)
        hd__log(HD_LOG_WARN, NULL, "%s: checkpoint.dir: %s has no checkpoint, and training begins at step 0%s", where,
                dir, near);
    free(folder);
}
