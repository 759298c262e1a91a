#include "tests/support/certificates.h"

#include <check.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <sys/stat.h>

static FILE *open_file(const char *name, const char *end, const char *how)
{
    char path[64];
    snprintf(path, sizeof path, "%s.%s", name, end);
    FILE *f = fopen(path, how);
    ck_assert_msg(f != NULL, "%s", path);
    return f;
}

static void add_extension(X509 *cert, int kind, const char *value)
{
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, NULL, kind, value);
    ck_assert(e && X509_add_ext(cert, e, -1) == 1);
    X509_EXTENSION_free(e);
}

void make_certificate(const char *name, const char *issuer, long seconds)
{
    static long serial;
    EVP_PKEY *key = EVP_EC_gen("P-256"), *signer = key;
    X509 *cert = X509_new(), *above = cert;
    mode_t mask = umask(077);
    ck_assert(key && cert);
    if (issuer) {
        FILE *f = open_file(issuer, "pem", "r"), *k = open_file(issuer, "key", "r");
        above = PEM_read_X509(f, NULL, NULL, NULL);
        signer = PEM_read_PrivateKey(k, NULL, NULL, NULL);
        ck_assert(above && signer);
        fclose(f);
        fclose(k);
    }
    X509_set_version(cert, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), seconds - 3600);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(above));
    add_extension(cert, NID_basic_constraints, issuer ? "critical,CA:FALSE" : "critical,CA:TRUE");
    ck_assert_int_gt(X509_sign(cert, signer, EVP_sha256()), 0);
    FILE *f = open_file(name, "pem", "w"), *k = open_file(name, "key", "w");
    ck_assert(PEM_write_X509(f, cert) == 1 && PEM_write_PrivateKey(k, key, NULL, NULL, 0, NULL, NULL) == 1);
    fclose(f);
    fclose(k);
    umask(mask);
    if (issuer) {
        X509_free(above);
        EVP_PKEY_free(signer);
    }
    X509_free(cert);
    EVP_PKEY_free(key);
}
