/* The endpoint: opened on the chosen provider, its address left in the store, addresses of others looked up. */
#include <sys/random.h>
#include <sys/stat.h>

#include "../common/shm_handle.h"
#include "internal.h"

/* A rank's entry in the store. */
struct address {
    char provider[64];
    uint64_t bytes;
    uint8_t address[LF_ADDRESS];
};

static int32_t failed(struct hd_comm *c, const char *what, int rc, struct hd_error *err)
{
    if (err)
        err->native = rc;
    return hd_fail(err, HD_E_IO, "libfabric: %s on provider %s: %s", what, c->info->fabric_attr->prov_name,
                   fi_strerror(-rc));
}

static int32_t open_objects(struct hd_comm *c, struct hd_error *err)
{
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
    struct fi_av_attr av = {.type = FI_AV_UNSPEC, .count = (size_t)c->world.size};
    const char *what = "fi_fabric";
    int rc = fi_fabric(c->info->fabric_attr, &c->fabric, NULL);
    cq.size = c->info->tx_attr->size + c->info->rx_attr->size;
    if (!rc)
        rc = fi_domain(c->fabric, c->info, &c->domain, NULL), what = "fi_domain";
    if (!rc)
        rc = fi_cq_open(c->domain, &cq, &c->cq, NULL), what = "fi_cq_open";
    if (!rc)
        rc = fi_av_open(c->domain, &av, &c->av, NULL), what = "fi_av_open";
    if (!rc)
        rc = fi_endpoint(c->domain, c->info, &c->ep, NULL), what = "fi_endpoint";
    if (!rc)
        rc = fi_ep_bind(c->ep, &c->av->fid, 0), what = "fi_ep_bind";
    if (!rc)
        rc = fi_ep_bind(c->ep, &c->cq->fid, FI_TRANSMIT | FI_RECV), what = "fi_ep_bind";
    if (!rc)
        rc = fi_enable(c->ep), what = "fi_enable";
    return rc ? failed(c, what, rc, err) : HD_OK;
}

static void key_of(const struct hd_comm *c, int32_t rank, char key[160])
{
    snprintf(key, 160, "%s/address/%d", c->instance, rank);
}

static int32_t announce(struct hd_comm *c, struct hd_error *err)
{
    struct address stored = {.bytes = sizeof stored.address};
    char key[160];
    size_t bytes = sizeof stored.address;
    int rc = fi_getname(&c->ep->fid, stored.address, &bytes);
    if (rc)
        return failed(c, "fi_getname", rc, err);
    if (bytes > sizeof stored.address)
        return failed(c, "fi_getname", -FI_ETOOSMALL, err);
    lf_strangers_init(c, stored.address, bytes);
    memcpy(c->address, stored.address, bytes);
    stored.bytes = c->address_bytes = bytes;
    snprintf(stored.provider, sizeof stored.provider, "%s", c->info->fabric_attr->prov_name);
    key_of(c, c->world.rank, key);
    return c->host->store_put(c->world.store, key, &stored, sizeof stored, err);
}

/* Rank 0's random number, by which the ranks of this job know each other's messages. */
static int32_t agree_on_nonce(struct hd_comm *c, struct hd_error *err)
{
    char key[160];
    size_t bytes = sizeof c->nonce;
    snprintf(key, sizeof key, "%s/nonce", c->instance);
    if (c->world.rank != 0)
        return c->host->store_get(c->world.store, key, &c->nonce, &bytes, lf_now() + c->world.timeout, err);
    if (getrandom(&c->nonce, sizeof c->nonce, 0) != sizeof c->nonce)
        return hd_fail(err, HD_E_IO, "libfabric: the kernel gives no random numbers");
    return c->host->store_put(c->world.store, key, &c->nonce, sizeof c->nonce, err);
}

int lf_peer_know(struct hd_comm *c, int32_t rank, const void *address)
{
    struct lf_peer *peer = &c->peer[rank];
    if (peer->known)
        return 1;
    if (fi_av_insert(c->av, address, 1, &peer->address, 0, NULL) != 1)
        return 0;
    peer->known = 1;
    lf_tell_ends(c, rank);
    return 1;
}

int32_t lf_peer_connect(struct hd_comm *c, int32_t rank, struct hd_error *err)
{
    struct address stored;
    size_t bytes = sizeof stored;
    char key[160];
    int32_t code;
    if (c->peer[rank].known)
        return HD_OK;
    key_of(c, rank, key);
    code = c->host->store_get(c->world.store, key, &stored, &bytes, lf_now() + c->world.timeout, err);
    if (code != HD_OK)
        return code;
    stored.provider[sizeof stored.provider - 1] = 0;
    if (bytes != sizeof stored || stored.bytes > sizeof stored.address ||
        strcmp(stored.provider, c->info->fabric_attr->prov_name))
        return hd_fail(err, HD_E_INVALID,
                       "libfabric: rank %d uses provider %s, rank %d %s: name one with comm.provider",
                       hd_job_rank(&c->world, rank), bytes == sizeof stored ? stored.provider : "(unknown)",
                       hd_job_rank(&c->world, c->world.rank), c->info->fabric_attr->prov_name);
    if (!lf_peer_know(c, rank, stored.address))
        return hd_fail(err, HD_E_IO, "libfabric: provider %s does not take the address of rank %d", stored.provider,
                       hd_job_rank(&c->world, rank));
    return HD_OK;
}

int32_t lf_job_lives(struct hd_comm *c, struct hd_error *err)
{
    struct address own;
    size_t bytes = sizeof own;
    char key[160];
    key_of(c, c->world.rank, key);
    return c->host->store_get(c->world.store, key, &own, &bytes, lf_now() + c->world.timeout, err);
}

static int32_t allocate_rx(struct hd_comm *c, struct hd_error *err)
{
    for (int i = 0; i < LF_RX_BUFFERS; i++) {
        struct lf_rx *rx = c->host->alloc(sizeof *rx + lf_control_bytes(c));
        if (!rx)
            return hd_fail(err, HD_E_NOMEM, "libfabric: no memory");
        rx->wire.kind = LF_RX;
        rx->next = c->rx_idle;
        c->rx_idle = c->rx[i] = rx;
    }
    lf_rx_post(c);
    return HD_OK;
}

/* Equal on ranks that can share memory and a loopback interface: a hash of the running kernel and of the namespaces of
 * processes and networks. 0 and errno: it cannot be told. */
static uint64_t machine_id(void)
{
    static const char *const files[] = {"/proc/self/ns/pid", "/proc/self/ns/net", "/dev/shm"};
    uint64_t h = shm_handle_machine();
    for (size_t i = 0; h && i < sizeof files / sizeof *files; i++) {
        struct stat about;
        if (!stat(files[i], &about))
            h = (h ^ about.st_dev ^ about.st_ino << 20) * UINT64_C(0x100000001b3);
    }
    return h;
}

/* Are all ranks on this machine? Launchers that do not say how many are here are taken to mean all: so they are asked.
 */
static int32_t find_machines(struct hd_comm *c, int32_t *away, struct hd_error *err)
{
    uint64_t mine = machine_id(), theirs;
    char key[160];
    int32_t code;
    *away = -1;
    if (!mine)
        return hd_fail(err, HD_E_IO, "libfabric: " SHM_BOOT_ID ": %s", strerror(errno));
    snprintf(key, sizeof key, "%s/machine/%d", c->instance, c->world.rank);
    code = c->host->store_put(c->world.store, key, &mine, sizeof mine, err);
    for (int32_t r = 0; r < c->world.size && code == HD_OK; r++) {
        size_t bytes = sizeof theirs;
        snprintf(key, sizeof key, "%s/machine/%d", c->instance, r);
        code = c->host->store_get(c->world.store, key, &theirs, &bytes, lf_now() + c->world.timeout, err);
        if (code == HD_OK && theirs != mine && *away < 0)
            *away = r;
    }
    return code;
}

/* With its head what shm sends at once; others gain from more, as a larger message waits for an answer. */
static int64_t eager_of(const struct hd_comm *c)
{
    return c->settings.eager ? c->settings.eager : lf_by_shm(c) ? 4048 : 8144;
}

int32_t lf_endpoint_open(struct hd_comm *c, struct hd_error *err)
{
    int local = c->world.local_size == c->world.size;
    const char *provider = c->settings.provider;
    int32_t away = -1, code = local ? find_machines(c, &away, err) : HD_OK;
    if (code == HD_OK && (!local || away >= 0) && provider && !strcmp(provider, "shm"))
        code = away < 0 ? hd_fail(err, HD_E_UNSUPPORTED,
                                  "libfabric: provider shm works inside one machine only, but this job has %d of its "
                                  "%d ranks here: set comm.provider to another",
                                  c->world.local_size, c->world.size)
                        : hd_fail(err, HD_E_UNSUPPORTED,
                                  "libfabric: provider shm works inside one machine only, but rank %d is on another "
                                  "than rank %d: set comm.provider to another",
                                  hd_job_rank(&c->world, away), hd_job_rank(&c->world, c->world.rank));
    if (code == HD_OK)
        code = lf_choose(c->host, &c->settings, local && away < 0, &c->info, err);
    if (code == HD_OK) {
        c->settings.eager = eager_of(c);
        c->rendezvous = (!local || away >= 0) && !strcmp(c->info->fabric_attr->prov_name, "tcp;ofi_rxm");
        code = open_objects(c, err);
    }
    if (code == HD_OK)
        code = allocate_rx(c, err);
    if (code == HD_OK)
        code = announce(c, err);
    if (code == HD_OK)
        code = agree_on_nonce(c, err);
    if (code == HD_OK)
        c->host->log(strcmp(provider ? provider : "auto", "auto") || c->world.rank ? HD_LOG_DEBUG : HD_LOG_INFO,
                     "comm-libfabric", "provider %s, domain %s", c->info->fabric_attr->prov_name,
                     c->info->domain_attr->name);
    return code == HD_OK ? lf_names_settle(c, err) : code;
}

void lf_endpoint_close(struct hd_comm *c)
{
    struct fid *fids[] = {c->ep ? &c->ep->fid : NULL, c->av ? &c->av->fid : NULL, c->cq ? &c->cq->fid : NULL,
                          c->domain ? &c->domain->fid : NULL, c->fabric ? &c->fabric->fid : NULL};
    for (size_t i = 0; i < sizeof fids / sizeof *fids; i++)
        if (fids[i])
            fi_close(fids[i]);
    if (c->info)
        lf_names_sweep(c); /* of a rank that was killed while others were opening */
    fi_freeinfo(c->info);
    for (int i = 0; i < LF_RX_BUFFERS; i++)
        c->host->free(c->rx[i]);
}
