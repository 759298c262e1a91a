/* heddle doctor: GPUs, the links between them, and networks. */
#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "plugins/common/nvml.h"
#include "runtime/cpu/share.h"

#define OK HD__DOCTOR_OK
#define WARN HD__DOCTOR_WARN
#define BAD HD__DOCTOR_BAD

/* ---- GPUs */

static void check_gpu(struct hd__doctor *d, const struct nvml *n, unsigned i)
{
    struct nvml_gpu g;
    char object[32], memory[32];
    struct hd__text held = {0};
    nvml_read(n, i, &g);
    snprintf(object, sizeof object, "gpu %u", i);
    hd__bytes_text(isnan(g.memory_total) ? 0 : (uint64_t)g.memory_total, memory);
    for (unsigned k = 0; k < NVML_THROTTLE_REASONS; k++)
        if (g.throttle >> k & 1)
            hd__text_add(&held, "%s%s", held.length ? ", " : "", nvml_throttle_name(k));
    if (!*g.name)
        hd__doctor_add(d, BAD, "gpu", object, "nvidia-smi, and dmesg | grep Xid: reset or replace it",
                       "the driver does not answer for it");
    else if (g.ecc_uncorrected > 0)
        hd__doctor_add(d, BAD, "gpu", object, "nvidia-smi --gpu-reset; replace it where errors come back",
                       "%s, %s: %.0f uncorrected ECC errors", g.name, memory, g.ecc_uncorrected);
    else if (held.length)
        hd__doctor_add(d, WARN, "gpu", object, "cooling, power supply and power limit (nvidia-smi -q -d PERFORMANCE)",
                       "%s, %s: its clock is held down by %s, at %.0f degrees and %.0f of %.0f W", g.name, memory,
                       held.at, g.temperature, g.power, g.power_limit);
    else
        hd__doctor_add(d, OK, "gpu", object, NULL, "%s, %s, %.0f degrees, %.0f of %.0f W", g.name, memory,
                       g.temperature, g.power, g.power_limit);
    hd__text_free(&held);
}

static void check_links(struct hd__doctor *d, const struct nvml *n)
{
    static const char *const kinds[] = {"of a kind that the driver does not say", "NVLink", "PCIe switch",
                                        "PCIe host bridge", "between NUMA nodes"};
    uint32_t count[HD__COUNT(kinds)] = {0};
    for (unsigned a = 0; a < nvml_count(n); a++)
        for (unsigned b = a + 1; b < nvml_count(n); b++)
            count[nvml_link(n, a, b)]++;
    for (size_t k = 0; k < HD__COUNT(kinds); k++)
        if (count[k])
            hd__doctor_add(d, OK, "gpu", "links", NULL, "%u pair%s by %s", count[k], count[k] == 1 ? "" : "s",
                           kinds[k]);
}

void hd__doctor_devices(struct hd__doctor *d)
{
    char why[256];
    struct nvml *n = nvml_open(why);
    int is_there = !access("/proc/driver/nvidia", F_OK) || !access("/dev/nvidia0", F_OK);
    if (!n && is_there)
        hd__doctor_add(d, BAD, "gpu", "driver",
                       "install the user-space part of the driver that is loaded (containers: --gpus all)",
                       "this machine has a GPU, and %s", why);
    else if (!n)
        hd__doctor_add(d, OK, "gpu", "driver", NULL, "%s; jobs of device cpu need none", why);
    else if (!nvml_count(n))
        hd__doctor_add(d, WARN, "gpu", "driver", "lspci | grep -i nvidia; containers: --gpus all",
                       "it is there, and sees no GPU");
    for (unsigned i = 0; n && i < nvml_count(n); i++)
        check_gpu(d, n, i);
    if (n)
        check_links(d, n);
    nvml_close(n);
}

/* ---- networks */

static void check_interface(struct hd__doctor *d, const struct ifaddrs *at)
{
    char address[INET_ADDRSTRLEN] = "", path[128], speed[32], mtu[32];
    const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)at->ifa_addr;
    inet_ntop(AF_INET, &in->sin_addr, address, sizeof address);
    snprintf(path, sizeof path, "/sys/class/net/%.32s/speed", at->ifa_name);
    long mbit = hd__cpu_file_line(path, "", speed, sizeof speed) ? strtol(speed, NULL, 10) : 0;
    snprintf(path, sizeof path, "/sys/class/net/%.32s/mtu", at->ifa_name);
    hd__cpu_file_line(path, "", mtu, sizeof mtu);
    if (!(at->ifa_flags & IFF_RUNNING))
        hd__doctor_add(d, WARN, "network", at->ifa_name, "plug in its cable, or name another in comm.interface",
                       "%s, without a link", address);
    else if (mbit > 0)
        hd__doctor_add(d, OK, "network", at->ifa_name, NULL, "%s, %ld Mbit/s, mtu %s", address, mbit, mtu);
    else
        hd__doctor_add(d, OK, "network", at->ifa_name, NULL, "%s, mtu %s", address, mtu);
}

/* Ports of an RDMA device: "4: ACTIVE" of /sys/class/infiniband/DEVICE/ports/N/state. */
static void check_rdma(struct hd__doctor *d, const char *device)
{
    char path[512], state[64], rate[64], object[300];
    for (int port = 1; port <= 4; port++) {
        snprintf(path, sizeof path, "/sys/class/infiniband/%.200s/ports/%d/state", device, port);
        if (!hd__cpu_file_line(path, "", state, sizeof state))
            return;
        snprintf(path, sizeof path, "/sys/class/infiniband/%.200s/ports/%d/rate", device, port);
        hd__cpu_file_line(path, "", rate, sizeof rate);
        snprintf(object, sizeof object, "%.200s port %d", device, port);
        if (strstr(state, "ACTIVE"))
            hd__doctor_add(d, OK, "network", object, NULL, "%s, %s", state, rate);
        else
            hd__doctor_add(d, WARN, "network", object, "its cable, and the fabric's subnet manager (ibstat, opensm)",
                           "%s", state);
    }
}

void hd__doctor_networks(struct hd__doctor *d)
{
    struct ifaddrs *list = NULL;
    uint32_t before = d->lines.count;
    DIR *rdma = opendir("/sys/class/infiniband");
    if (!getifaddrs(&list))
        for (struct ifaddrs *at = list; at; at = at->ifa_next)
            if (at->ifa_addr && at->ifa_addr->sa_family == AF_INET && at->ifa_flags & IFF_UP &&
                !(at->ifa_flags & IFF_LOOPBACK))
                check_interface(d, at);
    freeifaddrs(list);
    for (struct dirent *e; rdma && (e = readdir(rdma));)
        if (e->d_name[0] != '.')
            check_rdma(d, e->d_name);
    if (rdma)
        closedir(rdma);
    if (d->lines.count == before)
        hd__doctor_add(d, WARN, "network", "interfaces", "ip link; containers: --network host",
                       "none but the loopback: jobs of this machine alone");
}
