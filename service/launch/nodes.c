/* Which machines a job runs on, and which of them this is: by the job, the command line and the environment. */
#include <stdlib.h>

#include "runtime/rendezvous/address.h"
#include "service/launch/agents.h"

/* NNODES, where the job does not say it; both may, if they agree. */
static int32_t find_count(const struct hd__launch_nodes_given *g, struct hd__launch_nodes *out, struct hd_error *err)
{
    const char *nnodes = getenv("NNODES");
    int32_t min = 1, max = 1;
    out->min = out->max = 1;
    if (g->nodes && !hd__range_parse(g->nodes, HD__LAUNCH_NODES, &out->min, &out->max))
        return hd_fail(err, HD_E_INVALID,
                       "%s: launch.nodes: '%s' is neither a number of machines (such as 4) nor a range MIN:MAX (such "
                       "as 2:4), up to %d",
                       g->nodes_at, g->nodes, HD__LAUNCH_NODES);
    if (!nnodes)
        return HD_OK;
    if (!hd__range_parse(nnodes, HD__LAUNCH_NODES, &min, &max))
        return hd_fail(err, HD_E_INVALID,
                       "the environment says NNODES='%s': neither a number of machines, as 4, nor a range MIN:MAX, as "
                       "2:4, from 1 to %d",
                       nnodes, HD__LAUNCH_NODES);
    if (g->nodes && (min != out->min || max != out->max))
        return hd_fail(err, HD_E_INVALID,
                       "%s: launch.nodes is %s, but the environment says NNODES=%s: make them equal, or unset NNODES",
                       g->nodes_at, g->nodes, nnodes);
    out->min = min;
    out->max = max;
    return HD_OK;
}

static int32_t find_node(const struct hd__launch_nodes_given *g, struct hd__launch_nodes *out, struct hd_error *err)
{
    const struct {
        const char *name, *text;
    } from[] = {{"--node-rank", g->node_rank},
                {"NODE_RANK", getenv("NODE_RANK")},
                {"JOB_COMPLETION_INDEX", getenv("JOB_COMPLETION_INDEX")}};
    const char *by = NULL;
    for (size_t i = 0; i < HD__COUNT(from); i++) {
        const char *text = from[i].text;
        char *end = "";
        long node = text ? strtol(text, &end, 10) : 0;
        if (!text)
            continue;
        if (*end || *text < '0' || *text > '9' || node >= out->max)
            return hd_fail(err, HD_E_INVALID, "%s '%s': the %d nodes of this job are counted from 0 to %d",
                           from[i].name, text, out->max, out->max - 1);
        if (by && node != out->node)
            return hd_fail(err, HD_E_INVALID, "%s says that this is node %d, and %s that it is node %ld: unset one", by,
                           out->node, from[i].name, node);
        by = by ? by : from[i].name;
        out->node = (int32_t)node;
    }
    return by || g->any_node
               ? HD_OK
               : hd_fail(err, HD_E_INVALID,
                         "the job runs on %s%d machines, and nothing says which of them this is: give --node-rank I (0 "
                         "to %d), or set NODE_RANK",
                         out->min < out->max ? "up to " : "", out->max, out->max - 1);
}

/* MASTER_ADDR and MASTER_PORT, if they are set. */
static int32_t find_master(char *host, size_t room, uint16_t *port, int *set, struct hd_error *err)
{
    const char *address = getenv("MASTER_ADDR"), *number = getenv("MASTER_PORT");
    char *end = "";
    long value = number ? strtol(number, &end, 10) : 0;
    *set = address || number;
    if (!*set)
        return HD_OK;
    if (!address || !*address || !number || *end || value < 1 || value > 65534 || strlen(address) >= room)
        return hd_fail(err, HD_E_INVALID,
                       "the environment says MASTER_ADDR=%s and MASTER_PORT=%s: both are needed, a name or address of "
                       "node 0 and a port from 1 to 65534; or unset both and say --rendezvous HOST:PORT",
                       address ? address : "", number ? number : "");
    snprintf(host, room, "%s", address);
    *port = (uint16_t)value;
    return HD_OK;
}

static int32_t find_rendezvous(const struct hd__launch_nodes_given *g, struct hd__launch_nodes *out,
                               struct hd_error *err)
{
    char host[sizeof out->host];
    uint16_t port = 0;
    int set;
    if (find_master(host, sizeof host, &port, &set, err))
        return HD_E_INVALID;
    if (!g->rendezvous && !set)
        return hd_fail(
            err, HD_E_INVALID,
            "the job runs on several machines, and nothing says where they meet: give --rendezvous HOST:PORT, "
            "a name or address of node 0 and a free port there, or set MASTER_ADDR and MASTER_PORT");
    if (g->rendezvous &&
        (!hd__address_split(g->rendezvous, out->host, sizeof out->host, &out->port) || out->port > 65534))
        return hd_fail(err, HD_E_INVALID,
                       "%s: launch.rendezvous: '%s' is not HOST:PORT, [ADDRESS]:PORT for IPv6, with a port from 1 to "
                       "65534",
                       g->rendezvous_at, g->rendezvous);
    if (g->rendezvous && set && (strcmp(host, out->host) != 0 || port != out->port))
        return hd_fail(err, HD_E_INVALID,
                       "%s: launch.rendezvous is %s, but the environment says MASTER_ADDR=%s and MASTER_PORT=%u: make "
                       "them equal, or unset the variables",
                       g->rendezvous_at, g->rendezvous, host, port);
    if (!g->rendezvous) {
        memcpy(out->host, host, sizeof host);
        out->port = port;
    }
    if (out->host[strspn(out->host, "0.:")])
        return HD_OK;
    return hd_fail(err, HD_E_INVALID,
                   "%s%s%s is every address of a machine, and none that others could connect to: name node 0, or an "
                   "address of it",
                   g->rendezvous ? g->rendezvous_at : "MASTER_ADDR=", g->rendezvous ? ": launch.rendezvous: " : "",
                   out->host);
}

int32_t hd__launch_nodes_find(const struct hd__launch_nodes_given *given, struct hd__launch_nodes *out,
                              struct hd_error *err)
{
    int32_t rc;
    *out = (struct hd__launch_nodes){0};
    rc = find_count(given, out, err);
    if (rc)
        return rc;
    if (out->max == 1 && !given->nodes && !getenv("NNODES") && (given->node_rank || given->rendezvous))
        return hd_fail(
            err, HD_E_INVALID,
            "%s%s is given, and the job runs on one machine: set launch.nodes (--nodes N or MIN:MAX), or leave it out",
            given->node_rank ? "" : given->rendezvous_at, given->node_rank ? "--node-rank" : ": launch.rendezvous");
    if (out->max == 1 && given->rendezvous)
        hd__log(HD_LOG_WARN, NULL,
                "%s: launch.rendezvous has no effect, because the job runs on one machine (%s): leave it out",
                given->rendezvous_at, given->nodes ? "launch.nodes" : "NNODES");
    if (out->max == 1)
        return given->node_rank ? find_node(given, out, err) : HD_OK;
    rc = find_node(given, out, err);
    return rc ? rc : find_rendezvous(given, out, err);
}
