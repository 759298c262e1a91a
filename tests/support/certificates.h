/* Certificates for tests, made by libcrypto: a CA of a test's own, and what it signs. */
#ifndef HD_TESTS_CERTIFICATES_H
#define HD_TESTS_CERTIFICATES_H

/* Writes NAME.pem and NAME.key (mode 0600) into the present folder: signed by the certificate of `issuer`, or by itself
 * where that is NULL; valid from an hour ago for so many seconds. */
void make_certificate(const char *name, const char *issuer, long seconds);

#endif
