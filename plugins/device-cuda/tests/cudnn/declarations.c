/* What device-cuda declares of cuDNN for itself, held against cudnn.h where that is found. */
#include "plugins/device-cuda/attention/cudnn_attention.h"
#include <cudnn.h>

#define ROW(name, value) _Static_assert(DNN_##name == (int)CUDNN_##name, #name);
CU_DNN_VALUES(ROW)
#undef ROW

/* A call through a pointer of ours passes what cuDNN's function takes. */
#define SAME(name, type) _Static_assert(__builtin_types_compatible_p(__typeof__(&cudnn##name), type), #name)
SAME(GetVersion, size_t (*)(void));
SAME(GetErrorString, const char *(*)(cudnnStatus_t));
SAME(GetLastErrorString, void (*)(char *, size_t));
SAME(Create, cudnnStatus_t (*)(cudnnHandle_t *));
SAME(Destroy, cudnnStatus_t (*)(cudnnHandle_t));
SAME(SetStream, cudnnStatus_t (*)(cudnnHandle_t, cudaStream_t));
SAME(BackendCreateDescriptor, cudnnStatus_t (*)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *));
SAME(BackendDestroyDescriptor, cudnnStatus_t (*)(cudnnBackendDescriptor_t));
SAME(BackendSetAttribute, cudnnStatus_t (*)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                            cudnnBackendAttributeType_t, int64_t, const void *));
SAME(BackendGetAttribute, cudnnStatus_t (*)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                            cudnnBackendAttributeType_t, int64_t, int64_t *, void *));
SAME(BackendFinalize, cudnnStatus_t (*)(cudnnBackendDescriptor_t));
SAME(BackendExecute, cudnnStatus_t (*)(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t));
