/* CUDA's codes as heddle's errors. */
#include "internal.h"

static int32_t code_of(cudaError_t rc)
{
    switch (rc) {
    case cudaErrorMemoryAllocation:
        return HD_E_NOMEM;
    case cudaErrorNotSupported:
    case cudaErrorStreamCaptureUnsupported: /* what is being captured cannot be: it is launched without */
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorCapturedEvent:
    case cudaErrorStreamCaptureWrongThread:
        return HD_E_UNSUPPORTED;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
        return HD_E_INVALID;
    default:
        return HD_E_IO;
    }
}

/* After these nothing that the process enqueues will run. */
static int32_t is_sticky(cudaError_t rc)
{
    switch (rc) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
        return 1;
    default:
        return 0;
    }
}

int32_t cu_fail(struct hd_error *err, cudaError_t rc, const char *label, const char *what)
{
    if (rc == cudaSuccess)
        return HD_OK;
    (void)cudaGetLastError(); /* it is told here: a launch that comes later must not find it */
    if (err) {
        err->native = rc;
        err->scope = is_sticky(rc) ? HD_SCOPE_PROCESS : HD_SCOPE_OP;
    }
    return hd_fail(err, code_of(rc), "%s%s%s: %s (%s)", label ? label : "", label && *label ? ": " : "", what,
                   cudaGetErrorString(rc), cudaGetErrorName(rc));
}

int32_t cu_refuse(struct hd_error *err, int32_t code, const struct hd_instr_desc *i, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return hd_fail(err, code, "%.64s: %s", i->label[0] ? i->label : "instruction", what);
}
