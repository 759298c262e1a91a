/* Which provider, and which interface of this machine. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include "internal.h"

/* Names that mean a stack, and names that are refused. */
static const struct {
    const char *name, *stack, *why;
} known[] = {
    {"tcp", "tcp;ofi_rxm", NULL},
    {"verbs", "verbs;ofi_rxm", NULL},
    {"sockets", NULL, "it hangs, and libfabric has given it up: use tcp"},
    {"net", NULL, "it is an experiment of libfabric's: use tcp"},
    {"udp", NULL, "without congestion control it stalls on large messages: use tcp"},
    {"UDP", NULL, "without congestion control it stalls on large messages: use tcp"},
};

static const char *refused(const char *provider)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].why && !strncmp(provider, known[i].name, strlen(known[i].name)) &&
            (provider[strlen(known[i].name)] == 0 || provider[strlen(known[i].name)] == ';'))
            return known[i].why;
    return NULL;
}

static const char *stack_of(const char *provider)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].stack && !strcmp(provider, known[i].name))
            return known[i].stack;
    return provider;
}

/* Appends a name to a list "a, b", once. */
static void list_name(char *list, size_t room, const char *name)
{
    size_t n = strlen(list), bytes = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += bytes)
        if ((at == list || at[-1] == ' ') && (!at[bytes] || at[bytes] == ','))
            return;
    snprintf(list + n, room - n, "%s%s", n ? ", " : "", name);
}

/* ---- the interface */

static int text_of(const struct sockaddr *a, char out[INET6_ADDRSTRLEN])
{
    if (a && a->sa_family == AF_INET)
        return inet_ntop(AF_INET, &((const struct sockaddr_in *)a)->sin_addr, out, INET6_ADDRSTRLEN) != NULL;
    if (a && a->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)a)->sin6_addr))
        return inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)a)->sin6_addr, out, INET6_ADDRSTRLEN) != NULL;
    return 0;
}

/* The address of an interface, IPv4 before IPv6; an address stands for itself. */
static int32_t address_of(const char *interface, char out[INET6_ADDRSTRLEN], struct hd_error *err)
{
    struct ifaddrs *all = NULL;
    char have[256] = "";
    if (inet_pton(AF_INET, interface, have) == 1 || inet_pton(AF_INET6, interface, have) == 1) {
        snprintf(out, INET6_ADDRSTRLEN, "%s", interface);
        return HD_OK;
    }
    have[0] = out[0] = 0;
    if (getifaddrs(&all))
        return hd_fail(err, HD_E_IO, "libfabric: cannot list the interfaces of this machine");
    for (int family = 0; family < 2 && !out[0]; family++)
        for (const struct ifaddrs *i = all; i && !out[0]; i = i->ifa_next) {
            char text[INET6_ADDRSTRLEN];
            if (!i->ifa_addr || i->ifa_addr->sa_family != (family ? AF_INET6 : AF_INET) || !text_of(i->ifa_addr, text))
                continue;
            if (!strcmp(i->ifa_name, interface))
                strcpy(out, text);
            else
                list_name(have, sizeof have, i->ifa_name);
        }
    freeifaddrs(all);
    return out[0] ? HD_OK
                  : hd_fail(err, HD_E_INVALID,
                            "libfabric: interface '%s' is not on this machine, or has no address; there are: %s",
                            interface, *have ? have : "none");
}

static int is_loopback(const struct fi_info *info)
{
    if (info->addr_format == FI_SOCKADDR_IN && info->src_addr)
        return ntohl(((const struct sockaddr_in *)info->src_addr)->sin_addr.s_addr) >> 24 == 127;
    if (info->addr_format == FI_SOCKADDR_IN6 && info->src_addr)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)info->src_addr)->sin6_addr);
    return 0;
}

static int is_link_local(const struct fi_info *info)
{
    return info->addr_format == FI_SOCKADDR_IN6 && info->src_addr &&
           IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)info->src_addr)->sin6_addr);
}

/* ---- the provider */

static struct fi_info *wishes(const struct lf_settings *s)
{
    struct fi_info *h = fi_allocinfo();
    const char *provider = s->provider ? s->provider : "auto";
    if (!h)
        return NULL;
    h->ep_attr->type = FI_EP_RDM;
    h->caps = FI_TAGGED;
    h->mode = FI_CONTEXT | FI_CONTEXT2;
    /* Local registration is left to the provider: it knows when memory goes away. */
    h->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    h->domain_attr->threading = FI_THREAD_DOMAIN; /* one thread at a time calls into it */
    h->domain_attr->control_progress = h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    h->domain_attr->resource_mgmt = FI_RM_ENABLED;
    if (strcmp(provider, "auto"))
        h->fabric_attr->prov_name = strdup(stack_of(provider));
    return h;
}

/* 0: of no use. Inside one machine shared memory comes first, then what nobody else can reach; between machines the
 * provider's own order counts. */
static int score(const struct fi_info *i, const struct lf_settings *s, int local)
{
    if (!(i->caps & FI_TAGGED) || (i->domain_attr->mr_mode & FI_MR_LOCAL) || refused(i->fabric_attr->prov_name) ||
        is_link_local(i))
        return 0;
    if (!strcmp(i->fabric_attr->prov_name, "shm"))
        return local && !s->interface ? 3 : 0;
    if (is_loopback(i))
        return local ? 2 : s->interface != NULL;
    return 1;
}

/* The domain is looked for here, since providers take it as a hint, which tcp does not heed. */
static int has_domain(const struct fi_info *i, const char *domain)
{
    return !domain || (i->domain_attr->name && !strcmp(i->domain_attr->name, domain));
}

static const struct fi_info *best_of(const struct fi_info *list, const struct lf_settings *s, int local,
                                     const char *domain)
{
    const struct fi_info *best = NULL;
    for (const struct fi_info *i = list; i; i = i->next)
        if (has_domain(i, domain) && score(i, s, local) > (best ? score(best, s, local) : 0))
            best = i;
    return best;
}

static int32_t pick(const struct fi_info *list, const struct lf_settings *s, int local, struct fi_info **info,
                    struct hd_error *err)
{
    const char *name = s->provider ? s->provider : "auto";
    const struct fi_info *best = best_of(list, s, local, s->domain);
    char domains[256] = "";
    if (best)
        return (*info = fi_dupinfo(best)) ? HD_OK : hd_fail(err, HD_E_NOMEM, "libfabric: no memory");
    if (!best_of(list, s, local, NULL))
        return hd_fail(
            err, strcmp(name, "auto") ? HD_E_INVALID : HD_E_UNSUPPORTED, /* the key, or the machine */
            "libfabric: comm.provider: provider '%s' works %s; `fi_info -l` lists those of this machine", name,
            local ? "not inside one machine" : "inside one machine only, or has no interface that reaches others");
    for (const struct fi_info *i = list; i; i = i->next)
        if (i->domain_attr->name && score(i, s, local))
            list_name(domains, sizeof domains, i->domain_attr->name);
    return hd_fail(err, HD_E_INVALID,
                   "libfabric: comm.domain: provider '%s' has no domain '%s'%s%s that would do here; there are: %s",
                   name, s->domain, s->interface ? " at " : "", s->interface ? s->interface : "",
                   *domains ? domains : "none");
}

int32_t lf_choose(const struct hd_host *host, const struct lf_settings *s, int local, struct fi_info **info,
                  struct hd_error *err)
{
    struct fi_info *hints = wishes(s), *list = NULL;
    const char *name = s->provider ? s->provider : "auto", *why = refused(name);
    char node[INET6_ADDRSTRLEN] = "";
    int32_t code = HD_OK, wrong = strcmp(name, "auto") ? HD_E_INVALID : HD_E_UNSUPPORTED; /* the key, or the machine */
    int rc;
    (void)host;
    if (s->chunk && s->chunk < 4096)
        code = hd_fail(err, HD_E_INVALID, "libfabric: comm.chunk: 0, or 4KiB and more");
    else if (why)
        code = hd_fail(err, wrong, "libfabric: comm.provider: provider '%s' is not used here: %s", name, why);
    else if (s->interface && !strcmp(name, "shm"))
        code = hd_fail(err, wrong,
                       "libfabric: comm.interface: provider shm is memory, and has no interfaces: leave it out");
    else if (!hints)
        code = hd_fail(err, HD_E_NOMEM, "libfabric: no memory");
    else if (s->interface)
        code = address_of(s->interface, node, err);
    if (code == HD_OK &&
        (rc = fi_getinfo(FI_VERSION(1, 11), *node ? node : NULL, NULL, *node ? FI_SOURCE : 0, hints, &list)))
        code = hd_fail(
            err, wrong,
            "libfabric: comm.provider: no provider '%s' with tagged messages%s%s (%s); `fi_info -l` lists those of "
            "this machine",
            name, *node ? " at " : "", node, fi_strerror(-rc));
    if (code == HD_OK)
        code = pick(list, s, local, info, err);
    fi_freeinfo(hints);
    fi_freeinfo(list);
    return code;
}
