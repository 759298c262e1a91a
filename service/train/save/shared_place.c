/* Looking for each other's checkpoint. */
#include "service/train/save/shared_place.h"

#include <inttypes.h>
#include <sys/random.h>
#include <unistd.h>

struct probe {
    char name[32];   /* of a checkpoint that rank 0 has begun */
    char place[480]; /* where, for people */
};

static void describe_place(const struct hd__shared_place *s, char *out, size_t room)
{
    char host[65] = "", cwd[256] = "";
    int relative = *s->dir != '/' && getcwd(cwd, sizeof cwd) != NULL;
    gethostname(host, sizeof host - 1);
    if (strstr(s->dir, "://"))
        snprintf(out, room, "%.400s", s->dir);
    else
        snprintf(out, room, "%s%s%.*s on %s", cwd, relative ? "/" : "", relative ? 140 : 390, s->dir, host);
}

static int32_t begin_probe(struct hd__shared_place *s, struct hd_error *err)
{
    struct probe p = {0};
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return hd_fail(err, HD_E_IO, "no random number to look for checkpoint.dir by");
    snprintf(p.name, sizeof p.name, "step-%020" PRIu64, number);
    describe_place(s, p.place, sizeof p.place);
    int32_t rc = s->ops->begin(s->ckpt, p.name, 1, &s->begun, err);
    return rc ? rc : hd__store_put(s->session->store, "checkpoint/probe", &p, sizeof p, err);
}

static int32_t find_probe(struct hd__shared_place *s, struct hd_error *err)
{
    struct hd__job *job = s->session->compiled->job;
    struct probe p;
    struct hd_error why = HD_ERROR_INIT;
    char here[sizeof p.place];
    size_t bytes = sizeof p;
    int32_t rc = hd__store_get(s->session->store, "checkpoint/probe", &p, &bytes, hd__now() + job->comm_timeout, err);
    if (rc)
        return rc;
    p.name[sizeof p.name - 1] = p.place[sizeof p.place - 1] = 0;
    rc = bytes == sizeof p ? s->ops->begin(s->ckpt, p.name, 0, &s->begun, &why) : HD_E_MISMATCH;
    if (rc && rc != HD_E_NOTFOUND) /* a store names the cause */
        return hd__job_fail(job, "checkpoint.dir", err, "checkpoint.dir: rank %d: %s", s->session->env->rank,
                            why.message);
    describe_place(s, here, sizeof here);
    return rc ? hd__job_fail(job, "checkpoint.dir", err,
                             "checkpoint.dir: %s, for rank %d, is not the folder that rank 0 has, %s: all ranks write "
                             "into one, so name one that all machines see (NFS, Lustre), or a store, as "
                             "s3://BUCKET/PATH",
                             here, s->session->env->rank, p.place)
              : HD_OK;
}

int32_t hd__shared_place_check(struct hd__shared_place *s, struct hd_error *err)
{
    const struct hd__launch_env *env = s->session->env;
    if (env->size == 1 || (env->launched_by_heddle && env->local_size == env->size))
        return HD_OK;
    return env->rank ? find_probe(s, err) : begin_probe(s, err);
}

void hd__shared_place_end(struct hd__shared_place *s)
{
    if (s->begun)
        s->ops->cancel(s->begun);
    s->begun = NULL;
}
