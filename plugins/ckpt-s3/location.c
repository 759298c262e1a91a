/* The address of a store and the credentials for it: options first, then the variables that all clients of S3 know. */
#include <ctype.h>
#include <stdlib.h>
#include <sys/random.h>

#include "internal.h"

int32_t s3_no_memory(struct hd_error *err)
{
    return hd_fail(err, HD_E_NOMEM, "ckpt-s3: no memory");
}

char *s3_format(const char *format, ...)
{
    char *out = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&out, format, args);
    va_end(args);
    return n < 0 ? NULL : out;
}

int32_t s3_token(char out[S3_TOKEN], struct hd_error *err)
{
    uint64_t bits;
    if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
        return hd_fail(err, HD_E_IO, "ckpt-s3: no random numbers for a name");
    snprintf(out, S3_TOKEN, "%016llx", (unsigned long long)bits);
    return HD_OK;
}

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

int32_t s3_check_name(const char *name, struct hd_error *err)
{
    if (!*name || name[0] == '.' || name[strspn(name, LETTERS DIGITS "-_.")] || strlen(name) > 200)
        return hd_fail(err, HD_E_INVALID, "checkpoint: '%.64s' is not a valid name", name);
    return HD_OK;
}

/* The option, else the first variable that is set; NULL. */
static const char *setting(const char *option, const char *variable, const char *another)
{
    const char *value = option && *option ? option : getenv(variable);
    value = (!value || !*value) && another ? getenv(another) : value;
    return value && *value ? value : NULL;
}

/* s3://BUCKET/PREFIX. Slashes at the end, and doubled ones, are refused or dropped: they would be other keys. */
static int32_t split(struct hd_ckpt *ckpt, const char *location, struct hd_error *err)
{
    const char *bucket = location + 5, *prefix;
    if (strncmp(location, "s3://", 5) != 0)
        return hd_fail(err, HD_E_INVALID, "%s is no s3://BUCKET/PREFIX: ckpt-posix stores in folders", location);
    size_t n = strcspn(bucket, "/"), end;
    prefix = bucket + n + (bucket[n] == '/');
    for (end = strlen(prefix); end && prefix[end - 1] == '/';)
        end--;
    if (n < 3 || n > 63 || strspn(bucket, "abcdefghijklmnopqrstuvwxyz" DIGITS "-.") != n || bucket[0] == '-' ||
        bucket[0] == '.')
        return hd_fail(err, HD_E_INVALID, "%s: '%.*s' is no name of a bucket: 3 to 63 small letters, digits, - and .",
                       location, (int)n, bucket);
    if (end > 700 || strspn(prefix, LETTERS DIGITS "-_./") < end || prefix[0] == '/' || strstr(prefix, "//") ||
        strstr(prefix, "../") || !strncmp(prefix, "./", 2) || strstr(prefix, "/./"))
        return hd_fail(err, HD_E_INVALID,
                       "%s: a prefix has letters, digits, -, _, . and single slashes, and no part that is . or ..",
                       location);
    ckpt->bucket = s3_format("%.*s", (int)n, bucket);
    ckpt->prefix = s3_format("%.*s%s", (int)end, prefix, end ? "/" : "");
    ckpt->location = s3_format("s3://%.*s%s%.*s", (int)n, bucket, end ? "/" : "", (int)end, prefix);
    return ckpt->bucket && ckpt->prefix && ckpt->location ? HD_OK : s3_no_memory(err);
}

static int32_t set_address(struct hd_ckpt *ckpt, struct hd_error *err)
{
    const struct s3_settings *s = ckpt->settings;
    const char *endpoint = setting(s->endpoint, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
               *region = setting(s->region, "AWS_REGION", "AWS_DEFAULT_REGION"),
               *ca = setting(s->ca, "AWS_CA_BUNDLE", NULL);
    int tls = endpoint && !strncmp(endpoint, "https://", 8), plain = endpoint && !strncmp(endpoint, "http://", 7);
    if (endpoint && ((!tls && !plain) || strpbrk(endpoint + 8, "@?# ") || !endpoint[8]))
        return hd_fail(err, HD_E_INVALID, "ckpt-s3: the endpoint '%.100s' is no http://HOST:PORT or https://HOST",
                       strchr(endpoint, '@') ? "(with a user and a password)" : endpoint);
    if (!endpoint && !region)
        return hd_fail(err, HD_E_INVALID,
                       "%s: the bucket's region is not known: set checkpoint.region or AWS_REGION; for a server other "
                       "than Amazon's, checkpoint.endpoint or AWS_ENDPOINT_URL",
                       ckpt->location);
    region = region ? region : "us-east-1";
    if (region[strspn(region, LETTERS DIGITS "-")])
        return hd_fail(err, HD_E_INVALID, "ckpt-s3: '%.60s' is no region", region);
    /* A certificate for *.s3.REGION.amazonaws.com is not one for a bucket with a dot. */
    int by_path = s->path_style == S3_AUTO ? endpoint || strchr(ckpt->bucket, '.') : s->path_style == S3_TRUE;
    const char *host = endpoint ? strstr(endpoint, "://") + 3 : NULL;
    size_t n = endpoint ? strlen(endpoint) : 0;
    while (n && endpoint[n - 1] == '/')
        n--;
    if (!endpoint && by_path)
        ckpt->base = s3_format("https://s3.%s.amazonaws.com/%s/", region, ckpt->bucket);
    else if (!endpoint)
        ckpt->base = s3_format("https://%s.s3.%s.amazonaws.com/", ckpt->bucket, region);
    else if (by_path)
        ckpt->base = s3_format("%.*s/%s/", (int)n, endpoint, ckpt->bucket);
    else
        ckpt->base = s3_format("%.*s%s.%.*s/", (int)(host - endpoint), endpoint, ckpt->bucket,
                               (int)(n - (size_t)(host - endpoint)), host);
    ckpt->region = s3_format("%s", region);
    ckpt->signing = s3_format("aws:amz:%s:s3", region);
    ckpt->ca = ca ? s3_format("%s", ca) : NULL;
    return ckpt->base && ckpt->region && ckpt->signing && (!ca || ckpt->ca) ? HD_OK : s3_no_memory(err);
}

static int32_t set_credentials(struct hd_ckpt *ckpt, struct hd_error *err)
{
    const char *id = setting(NULL, "AWS_ACCESS_KEY_ID", NULL), *secret = setting(NULL, "AWS_SECRET_ACCESS_KEY", NULL),
               *session = setting(NULL, "AWS_SESSION_TOKEN", NULL);
    if (!id || !secret)
        return hd_fail(err, HD_E_INVALID,
                       "%s: %s is not set where this rank runs: export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
                       "there; of a profile of ~/.aws, `eval \"$(aws configure export-credentials --format env)\"` "
                       "does so",
                       ckpt->location, id ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
    for (const char *all[] = {id, secret, session ? session : ""}, **p = all; p < all + 3; p++)
        for (const char *c = *p; *c; c++)
            if (!isgraph((unsigned char)*c))
                return hd_fail(err, HD_E_INVALID,
                               "%s: the AWS_... credentials have a space or a line's end in them: export them again",
                               ckpt->location);
    ckpt->key_id = s3_format("%s", id);
    ckpt->secret = s3_format("%s", secret);
    ckpt->session = session ? s3_format("x-amz-security-token: %s", session) : NULL;
    return ckpt->key_id && ckpt->secret && (!session || ckpt->session) ? HD_OK : s3_no_memory(err);
}

int32_t s3_locate(struct hd_ckpt *ckpt, const char *location, struct hd_error *err)
{
    int32_t rc = split(ckpt, location, err);
    rc = rc ? rc : set_address(ckpt, err);
    return rc ? rc : set_credentials(ckpt, err);
}
