/* Answers of a server: XML, and errors with what a person can do about them. */
#include <expat.h>
#include <stdlib.h>

#include "internal.h"

struct reading {
    void (*on_text)(void *user, const char *element, const char *text);
    void *user;
    char text[4096];
    size_t n;
};

static void XMLCALL begin_element(void *user, const XML_Char *name, const XML_Char **attributes)
{
    (void)name, (void)attributes;
    ((struct reading *)user)->n = 0;
}

static void XMLCALL end_element(void *user, const XML_Char *name)
{
    struct reading *r = user;
    r->text[r->n] = 0;
    r->on_text(r->user, name, r->text);
    r->n = 0;
}

static void XMLCALL add_text(void *user, const XML_Char *text, int bytes)
{
    struct reading *r = user;
    size_t n = (size_t)bytes, room = sizeof r->text - 1 - r->n;
    n = n < room ? n : room;
    memcpy(r->text + r->n, text, n);
    r->n += n;
}

int s3_xml_read(const char *text, size_t bytes, void (*on_text)(void *user, const char *element, const char *text),
                void *user)
{
    struct reading *r = calloc(1, sizeof *r);
    XML_Parser parser = XML_ParserCreate(NULL);
    int ok = r && parser && bytes < INT32_MAX;
    if (ok) {
        r->on_text = on_text;
        r->user = user;
        XML_SetUserData(parser, r);
        XML_SetElementHandler(parser, begin_element, end_element);
        XML_SetCharacterDataHandler(parser, add_text);
        ok = XML_Parse(parser, text, (int)bytes, 1) == XML_STATUS_OK;
    }
    if (parser)
        XML_ParserFree(parser);
    free(r);
    return ok ? 0 : -1;
}

struct words {
    char *code, *message;
};

static void on_error_text(void *user, const char *element, const char *text)
{
    struct words *w = user;
    if (!strcmp(element, "Code"))
        snprintf(w->code, 64, "%s", text);
    else if (!strcmp(element, "Message"))
        snprintf(w->message, 200, "%s", text);
}

void s3_error_read(const struct s3_answer *a, char code[64], char message[200])
{
    struct words words = {code, message};
    *code = *message = 0;
    if (a->text && a->bytes)
        s3_xml_read(a->text, a->bytes, on_error_text, &words);
    for (char *c = message; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

/* Errors that are not tried again, by their code in the answer, or by the status where that has none. */
static const struct {
    const char *code;
    const char *says;
    long status;
    int32_t is;
    int32_t reserved;
} causes[] = {
    {"NoSuchKey", "there is no such object", 0, HD_E_NOTFOUND, 0},
    {"NoSuchBucket", "there is no such bucket: create it, or see to its name in checkpoint.dir", 0, HD_E_INVALID, 0},
    {"SignatureDoesNotMatch", "the signature is wrong: see to AWS_SECRET_ACCESS_KEY and checkpoint.region", 0,
     HD_E_INVALID, 0},
    {"InvalidAccessKeyId", "the server does not know this AWS_ACCESS_KEY_ID: see to it, and to checkpoint.endpoint", 0,
     HD_E_INVALID, 0},
    {"ExpiredToken", "the credentials have expired: export new ones and start again", 0, HD_E_INVALID, 0},
    {"InvalidToken", "AWS_SESSION_TOKEN is not of this key: export all three anew", 0, HD_E_INVALID, 0},
    {"RequestTimeTooSkewed", "the clock of this machine is wrong: set it (by NTP)", 0, HD_E_INVALID, 0},
    {"AccessDenied",
     "not permitted: the key needs s3:GetObject, s3:PutObject and s3:DeleteObject on the prefix and s3:ListBucket on "
     "the bucket",
     0, HD_E_INVALID, 0},
    {"InvalidRange", "the object is shorter than when it was written: it was cut or replaced", 416, HD_E_CORRUPT, 0},
    {"BadDigest", "the bytes changed on their way: look at this machine's memory and network", 0, HD_E_IO, 0},
    {"XAmzContentSHA256Mismatch", "the bytes changed on their way: look at this machine's memory and network", 0,
     HD_E_IO, 0},
    {NULL, "not permitted: see to the credentials and what they may do", 403, HD_E_INVALID, 0},
    {NULL, "nothing is there: see to checkpoint.endpoint and checkpoint.path_style", 404, HD_E_INVALID, 0},
};

int32_t s3_explain(const struct hd_ckpt *ckpt, const struct s3_request *r, const struct s3_answer *a,
                   struct hd_error *err)
{
    char code[64], message[200];
    const char *key = r->key ? r->key : "(list)";
    s3_error_read(a, code, message);
    if (err)
        err->native = a->status;
    if (a->status == 301 || a->status == 307 || !strcmp(code, "AuthorizationHeaderMalformed") ||
        !strcmp(code, "PermanentRedirect") || !strcmp(code, "IllegalLocationConstraintException"))
        return hd_fail(err, HD_E_INVALID, "%s: the bucket is not in region %s%s%s: set checkpoint.region or AWS_REGION",
                       ckpt->location, ckpt->region, *a->region ? " but in " : "", a->region);
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
        if (causes[i].code ? !strcmp(code, causes[i].code) : !*code && a->status == causes[i].status)
            return hd_fail(err, causes[i].is, "%s: %s %s: %s (%ld %s%s%s)", ckpt->location, r->method, key,
                           causes[i].says, a->status, code, *message ? ": " : "", message);
    return hd_fail(err, a->status == 416 ? HD_E_CORRUPT : HD_E_IO, "%s: %s %s: the server says %ld %s%s%s",
                   ckpt->location, r->method, key, a->status, code, *message ? ": " : "", message);
}
