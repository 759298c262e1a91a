/* The secret of a job whose processes are not all this one's children, and where they are to meet. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/rendezvous/address.h"
#include "service/launch/launch.h"

/* HEDDLE_SECRET_FILE: the secret in a file that nobody else can read. */
static int32_t read_secret_file(const char *path, uint8_t secret[HD__SECRET_BYTES], struct hd_error *err)
{
    char text[HD__SECRET_TEXT + 1] = "";
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 && !fstat(fd, &about) ? read(fd, text, sizeof text - 1) : -1;
    int32_t rc = HD_OK;
    if (n < 0)
        rc = hd_fail(err, HD_E_IO, "HEDDLE_SECRET_FILE: %s: %s", path, strerror(errno));
    else if (about.st_mode & 077 || about.st_uid != geteuid())
        rc = hd_fail(err, HD_E_INVALID,
                     "HEDDLE_SECRET_FILE: %s can be read by others: chown it to yourself and chmod 600", path);
    if (fd >= 0)
        close(fd);
    text[strcspn(text, "\n")] = '\0';
    if (!rc && !hd__store_secret_parse(text, secret))
        rc = hd_fail(err, HD_E_INVALID,
                     "HEDDLE_SECRET_FILE: %s does not begin with a line of 32 or 64 hexadecimal digits", path);
    return rc;
}

int32_t hd__launch_read_secret(uint8_t secret[HD__SECRET_BYTES], int *given, struct hd_error *err)
{
    const char *text = getenv("HEDDLE_SECRET"), *path = getenv("HEDDLE_SECRET_FILE");
    *given = text || path;
    if (text && path)
        return hd_fail(err, HD_E_INVALID, "HEDDLE_SECRET and HEDDLE_SECRET_FILE are both set: unset one of them");
    if (path)
        return read_secret_file(path, secret, err);
    if (text && !hd__store_secret_parse(text, secret))
        return hd_fail(err, HD_E_INVALID,
                       "HEDDLE_SECRET is not 32 or 64 hexadecimal digits, as `openssl rand -hex 32` prints");
    return HD_OK;
}

void hd__launch_warn_loopback(const char *key, const char *host)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list;
    struct sockaddr_storage at = {0};
    char text[HD__ADDRESS_TEXT];
    if (getaddrinfo(host, "1", &hints, &list))
        return;
    memcpy(&at, list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    if (!hd__address_is_loopback(&at))
        return;
    hd__address_text(&at, text);
    text[strlen(text) - 2] = '\0'; /* the port */
    hd__log(HD_LOG_WARN, NULL,
            "%s=%s is the loopback address %s, which other machines cannot reach: name an address of the network, or "
            "correct /etc/hosts",
            key, host, text);
}
