#include "runtime/rendezvous/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct sockaddr_in *v4(const struct sockaddr_storage *at)
{
    return (const struct sockaddr_in *)(const void *)at;
}

static const struct sockaddr_in6 *v6(const struct sockaddr_storage *at)
{
    return (const struct sockaddr_in6 *)(const void *)at;
}

void hd__address_join(const char *host, uint16_t port, char *out, size_t room)
{
    snprintf(out, room, strchr(host, ':') ? "[%.100s]:%u" : "%.100s:%u", host, port);
}

void hd__address_text(const struct sockaddr_storage *at, char out[HD__ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "";
    int six = at->ss_family == AF_INET6;
    inet_ntop(at->ss_family, six ? (const void *)&v6(at)->sin6_addr : (const void *)&v4(at)->sin_addr, host,
              sizeof host);
    hd__address_join(host, ntohs(six ? v6(at)->sin6_port : v4(at)->sin_port), out, HD__ADDRESS_TEXT);
}

int hd__address_split(const char *text, char *host, size_t room, uint16_t *port)
{
    const char *colon = strrchr(text, ':'), *begin = text, *last = colon;
    char *end = "";
    long number = colon ? strtol(colon + 1, &end, 10) : 0;
    if (!colon || *end || end == colon + 1 || number < 1 || number > 65535)
        return 0;
    if (*text == '[' && last > text + 1 && last[-1] == ']') {
        begin++;
        last--;
    } else if (memchr(text, ':', (size_t)(colon - text))) {
        return 0; /* which colon? */
    }
    if (last == begin || (size_t)(last - begin) >= room)
        return 0;
    snprintf(host, room, "%.*s", (int)(last - begin), begin);
    *port = (uint16_t)number;
    return 1;
}

int hd__address_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return 0;
    return a->ss_family == AF_INET6 ? !memcmp(&v6(a)->sin6_addr, &v6(b)->sin6_addr, sizeof(struct in6_addr))
                                    : v4(a)->sin_addr.s_addr == v4(b)->sin_addr.s_addr;
}

int hd__address_is_loopback(const struct sockaddr_storage *at)
{
    return at->ss_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&v6(at)->sin6_addr)
                                     : ntohl(v4(at)->sin_addr.s_addr) >> 24 == 127;
}

int hd__address_is_here(const char *host)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list;
    int here = 0;
    if (getaddrinfo(host, NULL, &hints, &list))
        return 0;
    for (const struct addrinfo *a = list; a && !here; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        here = fd >= 0 && !bind(fd, a->ai_addr, a->ai_addrlen); /* any port */
        if (fd >= 0)
            close(fd);
    }
    freeaddrinfo(list);
    return here;
}
