/* Files that may be opened for reading, and what of their text may reach a terminal. */
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "core/base/file.h"
#include "heddle/file.h"
#include "tests/support/scratch.h"

static struct hd_error err = HD_ERROR_INIT;

static void make_socket(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    close(fd);
}

/* A FIFO without a writer would block; the suite's timeout would end that. */
START_TEST(regular)
{
    struct scratch s;
    uint64_t bytes = 0;
    int fd = -1;
    char text[4] = "";
    scratch_init(&s);
    ck_ok(hd_open_regular(scratch_write(&s, "file", "abc", 3), &fd, &bytes, &err));
    ck_assert_uint_eq(bytes, 3);
    ck_assert_int_eq(read(fd, text, 3), 3);
    ck_assert_str_eq(text, "abc");
    close(fd);
    ck_assert_int_eq(mkfifo(scratch_path(&s, "fifo"), 0600), 0);
    make_socket(scratch_path(&s, "socket"));
    ck_refused(hd_open_regular(scratch_path(&s, "fifo"), &fd, &bytes, &err), HD_E_INVALID,
               "fifo: not a regular file but a FIFO");
    ck_refused(hd_open_regular(scratch_path(&s, "socket"), &fd, &bytes, &err), HD_E_INVALID, "but a socket");
    ck_refused(hd_open_regular(s.dir, &fd, &bytes, &err), HD_E_INVALID, "but a folder");
    ck_refused(hd_open_regular("/dev/null", &fd, &bytes, &err), HD_E_INVALID, "but a device");
    ck_refused(hd_open_regular(scratch_path(&s, "none"), &fd, &bytes, &err), HD_E_NOTFOUND, "none: No such file");
    ck_assert_ptr_null(strstr(err.message, "expanded"));
    ck_refused(hd_open_regular(scratch_path(&s, "file/x"), &fd, &bytes, &err), HD_E_NOTFOUND, "Not a directory");
    ck_refused(hd_open_regular("~/none", &fd, &bytes, &err), HD_E_NOTFOUND, "~, * and $ are not expanded");
    ck_refused(hd_open_regular("none-*.bin", &fd, &bytes, &err), HD_E_NOTFOUND, "~, * and $ are not expanded");
    scratch_finish(&s);
}
END_TEST

/* As the ranks that mpirun or torchrun start do. */
START_TEST(output_checked_by_several)
{
    enum { PROCESSES = 4, TIMES = 6000 };
    struct scratch s;
    int status;
    scratch_init(&s);
    const char *path = scratch_path(&s, "result");
    for (int p = 0; p < PROCESSES; p++)
        if (!fork()) {
            int32_t rc = HD_OK;
            for (int i = 0; i < TIMES && !rc; i++)
                rc = hd__output_check(path, "result of", &err);
            _exit(rc != HD_OK);
        }
    for (int p = 0; p < PROCESSES; p++)
        ck_assert(wait(&status) > 0 && status == 0);
    ck_assert_int_ne(access(path, F_OK), 0);
    scratch_finish(&s);
}
END_TEST

START_TEST(printable)
{
    static const char *const rows[][2] = {
        {"plain, \ttab\nnewline", "plain, \ttab\nnewline"},
        {"\x1b[31mred\x1b[0m \x07 \r \x7f", "?[31mred?[0m ? ? ?"},
        {"Grüße, 東京, 🙂", "Grüße, 東京, 🙂"},
        {"C1 as UTF-8 \xc2\x9b"
         "31m, as a byte \x9b"
         "31m",
         "C1 as UTF-8 ??31m, as a byte ?31m"},
        {"cut \xe6\x9d", "cut ??"},
        {"latin \xfc"
         "ber \xff",
         "latin ?ber ?"},
        {"overlong \xe0\x80\xaf, a surrogate \xed\xa0\x80, beyond \xf4\x90\x80\x80",
         "overlong ???, a surrogate ???, beyond ????"},
        {"", ""},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        char *text = hd__strdup(rows[i][0]);
        ck_assert_str_eq(hd__printable(text), rows[i][1]);
        free(text);
    }
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {{"regular", regular},
                                         {"output checked by several", output_checked_by_several},
                                         {"printable", printable},
                                         {NULL, NULL}};
    return scratch_run("files", tests);
}
