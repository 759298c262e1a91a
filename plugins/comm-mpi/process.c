/* MPI lives once in a process: it is started with the first transport and ended with the last, and cannot be started
 * again. */
#include "internal.h"

static struct {
    int users, finalised, disorder;
} process;

int32_t cm_fail(struct hd_error *err, int mpi_code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0, class = MPI_ERR_OTHER;
    MPI_Error_string(mpi_code, text, &length);
    MPI_Error_class(mpi_code, &class);
    if (err)
        err->native = mpi_code;
    return hd_fail(err, class == MPI_ERR_NO_MEM ? HD_E_NOMEM : HD_E_IO, "mpi: %s: %s", what, text);
}

int32_t cm_process_open(struct hd_error *err)
{
    int running = 0, level, code;
    if (process.finalised || process.disorder)
        return hd_fail(err, HD_E_UNSUPPORTED, "mpi: MPI was ended in this process and cannot be started again");
    MPI_Initialized(&running);
    if (!running && (code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level)) != MPI_SUCCESS)
        return hd_fail(err, HD_E_IO, "mpi: MPI_Init_thread failed with code %d", code);
    if (process.users++)
        return HD_OK;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    code = cm_sums_open();
    return code == MPI_SUCCESS ? HD_OK : cm_fail(err, code, "MPI_Op_create");
}

/* After a failure MPI_Finalize could wait for a rank that never comes: the process then ends without it, which a
 * launcher takes for what it is. */
void cm_process_close(int in_order)
{
    process.disorder |= !in_order;
    if (--process.users || process.disorder)
        return;
    cm_sums_close();
    MPI_Finalize();
    process.finalised = 1;
}
