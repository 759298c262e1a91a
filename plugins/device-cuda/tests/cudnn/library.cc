/* A libcudnn without a GPU: it takes the backend's graphs that plugins/device-cuda makes, and computes them as they
 * are written, operation by operation, in the emulator's streams. So what it shows is that these graphs are
 * attention. That cuDNN itself has kernels for them, test_cudnn asks the real one, where there is one.
 *
 * FAKE_CUDNN: none (it has no kernel), second (the first proposal cannot be had), wrong (a row of a result is),
 * unwritten (a result is left out). FAKE_CUDNN_VERSION: 91900. */
#include "plugins/device-cuda/attention/cudnn_attention.h"
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <map>
#include <math.h>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

#define PUBLIC extern "C" __attribute__((visibility("default")))

namespace
{

std::string last_words;

int fail(int status, const char *words)
{
    last_words = words;
    return status;
}

bool asked_for(const char *what)
{
    const char *fault = getenv("FAKE_CUDNN");
    return fault && !strcmp(fault, what);
}

/* ---- descriptors: a type and the bytes of its attributes */

struct descriptor {
    int type;
    bool final;
    std::map<int, std::vector<char>> attributes;

    template <class T> T get(int name) const
    {
        T x;
        auto at = attributes.find(name);
        memcpy(&x, at == attributes.end() ? std::vector<char>(sizeof x).data() : at->second.data(), sizeof x);
        return x;
    }
    bool has(int name) const
    {
        return attributes.count(name) != 0;
    }
    const descriptor *at(int name) const
    {
        return get<const descriptor *>(name);
    }
};

size_t size_of(int type)
{
    return type == DNN_TYPE_BOOLEAN ? sizeof(bool)
           : type == DNN_TYPE_INT64 || type == DNN_TYPE_VOID_PTR || type == DNN_TYPE_HANDLE ||
                   type == DNN_TYPE_BACKEND_DESCRIPTOR
               ? 8
               : 4;
}

/* ---- tensors */

struct tensor {
    int64_t dim[4], stride[4], id;
    int dtype;
    bool is_virtual, is_scalar;
};

tensor tensor_of(const descriptor *x)
{
    tensor t;
    memcpy(t.dim, x->attributes.at(DNN_ATTR_TENSOR_DIMENSIONS).data(), sizeof t.dim);
    memcpy(t.stride, x->attributes.at(DNN_ATTR_TENSOR_STRIDES).data(), sizeof t.stride);
    t.id = x->get<int64_t>(DNN_ATTR_TENSOR_UNIQUE_ID);
    t.dtype = x->get<int>(DNN_ATTR_TENSOR_DATA_TYPE);
    t.is_virtual = x->get<bool>(DNN_ATTR_TENSOR_IS_VIRTUAL);
    t.is_scalar = x->get<bool>(DNN_ATTR_TENSOR_IS_BY_VALUE);
    return t;
}

int64_t extent_of(const tensor &t) /* elements from its first to behind its last */
{
    int64_t last = 0;
    for (int n = 0; n < 4; n++)
        last += (t.dim[n] - 1) * t.stride[n];
    return last + 1;
}

/* Where element `at` lies. A dim of t that is shorter than the index' is shared by as many neighbours: one row for
 * all, a kv head for the query heads of its group. */
int64_t offset_of(const tensor &t, const int64_t *at, const int64_t *dim)
{
    int64_t offset = 0;
    for (int n = 0; n < 4; n++)
        offset += at[n] * t.dim[n] / dim[n] * t.stride[n];
    return offset;
}

float from_16(uint16_t bits, int dtype)
{
    return dtype == DNN_DATA_BFLOAT16 ? __uint_as_float((uint32_t)bits << 16) : emulate_from_half(bits);
}

uint16_t to_16(float x, int dtype)
{
    return dtype == DNN_DATA_BFLOAT16 ? emulate_to_bfloat(x) : emulate_to_half(x);
}

bool is_16(int dtype)
{
    return dtype == DNN_DATA_BFLOAT16 || dtype == DNN_DATA_HALF;
}

float load(const void *memory, int dtype, int64_t at)
{
    return is_16(dtype) ? from_16(((const uint16_t *)memory)[at], dtype) : ((const float *)memory)[at];
}

void store(void *memory, int dtype, int64_t at, float x)
{
    if (is_16(dtype))
        ((uint16_t *)memory)[at] = to_16(x, dtype);
    else
        ((float *)memory)[at] = x;
}

/* ---- a run: what is virtual lives in vectors */

struct job {
    std::vector<const descriptor *> ops;
    std::map<int64_t, void *> operands;
    std::map<int64_t, float> scalars;
    std::map<int64_t, std::vector<float>> kept;
};

/* A tensor's elements, found once. */
struct values {
    const float *scalar, *kept; /* or NULL */
    const void *memory;
    int dtype;
    float operator[](int64_t offset) const
    {
        return scalar ? *scalar : kept ? kept[offset] : load(memory, dtype, offset);
    }
};

values values_of(const job &j, const tensor &t)
{
    if (t.is_scalar)
        return {&j.scalars.at(t.id), nullptr, nullptr, 0};
    if (t.is_virtual)
        return {nullptr, j.kept.at(t.id).data(), nullptr, 0};
    return {nullptr, nullptr, j.operands.at(t.id), t.dtype};
}

float read(const job &j, const tensor &t, int64_t offset)
{
    return values_of(j, t)[offset];
}

void write(job &j, const tensor &t, int64_t offset, float x)
{
    if (!t.is_virtual)
        return store(j.operands.at(t.id), t.dtype, offset, x);
    auto &values = j.kept[t.id];
    values.resize((size_t)extent_of(t), NAN);
    values[(size_t)offset] = is_16(t.dtype) ? from_16(to_16(x, t.dtype), t.dtype) : x;
}

template <class F> void each(const int64_t *dim, F f)
{
    int64_t at[4];
    for (at[0] = 0; at[0] < dim[0]; at[0]++)
        for (at[1] = 0; at[1] < dim[1]; at[1]++)
            for (at[2] = 0; at[2] < dim[2]; at[2]++)
                for (at[3] = 0; at[3] < dim[3]; at[3]++)
                    f(at);
}

float apply(int mode, float x, float b, float t)
{
    switch (mode) {
    case DNN_POINTWISE_ADD:
        return x + b;
    case DNN_POINTWISE_SUB:
        return x - b;
    case DNN_POINTWISE_MUL:
        return x * b;
    case DNN_POINTWISE_DIV:
        return x / b;
    case DNN_POINTWISE_EXP:
        return expf(x);
    case DNN_POINTWISE_LOG:
        return logf(x);
    case DNN_POINTWISE_IDENTITY:
        return x;
    case DNN_POINTWISE_CMP_GE:
        return x >= b;
    default:
        return t != 0 ? x : b;
    }
}

void run_pointwise(job &j, const descriptor *op)
{
    const descriptor *what = op->at(DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    int mode = what->get<int>(DNN_ATTR_POINTWISE_MODE);
    int64_t axis = what->get<int64_t>(DNN_ATTR_POINTWISE_AXIS);
    tensor x = tensor_of(op->at(DNN_ATTR_OPERATION_POINTWISE_XDESC)),
           y = tensor_of(op->at(DNN_ATTR_OPERATION_POINTWISE_YDESC));
    const descriptor *b = op->at(DNN_ATTR_OPERATION_POINTWISE_BDESC), *t = op->at(DNN_ATTR_OPERATION_POINTWISE_TDESC);
    tensor tb = b ? tensor_of(b) : x, tt = t ? tensor_of(t) : x;
    each(y.dim, [&](const int64_t *at) {
        float r = mode == DNN_POINTWISE_GEN_INDEX
                      ? (float)at[axis]
                      : apply(mode, read(j, x, offset_of(x, at, y.dim)), b ? read(j, tb, offset_of(tb, at, y.dim)) : 0,
                              t ? read(j, tt, offset_of(tt, at, y.dim)) : 0);
        write(j, y, offset_of(y, at, y.dim), r);
    });
}

void run_matmul(job &j, const descriptor *op)
{
    tensor a = tensor_of(op->at(DNN_ATTR_OPERATION_MATMUL_ADESC)),
           b = tensor_of(op->at(DNN_ATTR_OPERATION_MATMUL_BDESC)),
           c = tensor_of(op->at(DNN_ATTR_OPERATION_MATMUL_CDESC));
    const int64_t whole_left[4] = {c.dim[0], c.dim[1], c.dim[2], a.dim[3]},
                  whole_right[4] = {c.dim[0], c.dim[1], b.dim[2], c.dim[3]};
    values x = values_of(j, a), y = values_of(j, b);
    each(c.dim, [&](const int64_t *at) {
        const int64_t left[4] = {at[0], at[1], at[2], 0}, right[4] = {at[0], at[1], 0, at[3]};
        int64_t i = offset_of(a, left, whole_left), l = offset_of(b, right, whole_right);
        float sum = 0;
        for (int64_t k = 0; k < a.dim[3]; k++, i += a.stride[3], l += b.stride[2])
            sum += x[i] * y[l];
        write(j, c, offset_of(c, at, c.dim), sum);
    });
}

void run_reduction(job &j, const descriptor *op)
{
    int how = op->at(DNN_ATTR_OPERATION_REDUCTION_DESC)->get<int>(DNN_ATTR_REDUCTION_OPERATOR);
    tensor x = tensor_of(op->at(DNN_ATTR_OPERATION_REDUCTION_XDESC)),
           y = tensor_of(op->at(DNN_ATTR_OPERATION_REDUCTION_YDESC));
    std::vector<float> sum((size_t)extent_of(y), how == DNN_REDUCE_TENSOR_MAX ? -INFINITY : 0);
    each(x.dim, [&](const int64_t *at) {
        float v = read(j, x, offset_of(x, at, x.dim)), &s = sum[(size_t)offset_of(y, at, x.dim)];
        s = how == DNN_REDUCE_TENSOR_MAX ? fmaxf(s, v) : s + v;
    });
    each(y.dim, [&](const int64_t *at) {
        int64_t offset = offset_of(y, at, y.dim);
        write(j, y, offset, sum[(size_t)offset]);
    });
}

/* The same memory, read with other dims and strides. */
void run_reshape(job &j, const descriptor *op)
{
    tensor x = tensor_of(op->at(DNN_ATTR_OPERATION_RESHAPE_XDESC)),
           y = tensor_of(op->at(DNN_ATTR_OPERATION_RESHAPE_YDESC));
    each(y.dim, [&](const int64_t *at) {
        int64_t offset = offset_of(y, at, y.dim);
        write(j, y, offset, read(j, x, offset));
    });
}

void run(void *data)
{
    job &j = *(job *)data;
    for (const descriptor *op : j.ops)
        switch (op->type) {
        case DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
            run_pointwise(j, op);
            break;
        case DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
            run_matmul(j, op);
            break;
        case DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
            run_reduction(j, op);
            break;
        default:
            run_reshape(j, op);
        }
    j.kept.clear();
}

/* ---- what finalizing finds */

const int outputs[] = {DNN_ATTR_OPERATION_POINTWISE_YDESC, DNN_ATTR_OPERATION_MATMUL_CDESC,
                       DNN_ATTR_OPERATION_REDUCTION_YDESC, DNN_ATTR_OPERATION_RESHAPE_YDESC};
const int inputs[] = {DNN_ATTR_OPERATION_POINTWISE_XDESC, DNN_ATTR_OPERATION_POINTWISE_BDESC,
                      DNN_ATTR_OPERATION_POINTWISE_TDESC, DNN_ATTR_OPERATION_MATMUL_ADESC,
                      DNN_ATTR_OPERATION_MATMUL_BDESC,    DNN_ATTR_OPERATION_REDUCTION_XDESC,
                      DNN_ATTR_OPERATION_RESHAPE_XDESC};

std::vector<const descriptor *> ops_of(const descriptor *graph)
{
    const std::vector<char> &bytes = graph->attributes.at(DNN_ATTR_OPERATIONGRAPH_OPS);
    std::vector<const descriptor *> ops(bytes.size() / sizeof(void *));
    memcpy((void *)ops.data(), bytes.data(), bytes.size());
    return ops;
}

int finalize_graph(const descriptor *graph)
{
    std::map<int64_t, int> made;
    for (const descriptor *op : ops_of(graph)) {
        for (int name : inputs)
            if (op->has(name)) {
                tensor t = tensor_of(op->at(name));
                if (t.is_virtual && !made[t.id])
                    return fail(DNN_STATUS_BAD_PARAM, "a virtual tensor is read before it is made");
            }
        for (int name : outputs)
            if (op->has(name) && made[tensor_of(op->at(name)).id]++)
                return fail(DNN_STATUS_BAD_PARAM, "a tensor is made twice");
    }
    return DNN_STATUS_SUCCESS;
}

int finalize_tensor(const descriptor *x)
{
    for (int name : {DNN_ATTR_TENSOR_DATA_TYPE, DNN_ATTR_TENSOR_DIMENSIONS, DNN_ATTR_TENSOR_STRIDES,
                     DNN_ATTR_TENSOR_UNIQUE_ID, DNN_ATTR_TENSOR_BYTE_ALIGNMENT})
        if (!x->has(name))
            return fail(DNN_STATUS_BAD_PARAM, "a tensor lacks an attribute");
    return DNN_STATUS_SUCCESS;
}

} // namespace

/* ---- the calls */

PUBLIC size_t cudnnGetVersion(void)
{
    const char *version = getenv("FAKE_CUDNN_VERSION");
    return version ? strtoul(version, nullptr, 10) : 91900;
}

PUBLIC const char *cudnnGetErrorString(int status)
{
    return status == DNN_STATUS_SUCCESS         ? "CUDNN_STATUS_SUCCESS"
           : status == DNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                : "CUDNN_STATUS_BAD_PARAM";
}

PUBLIC void cudnnGetLastErrorString(char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", last_words.c_str());
}

PUBLIC int cudnnCreate(void **handle)
{
    *handle = calloc(1, sizeof(void *));
    return DNN_STATUS_SUCCESS;
}

PUBLIC int cudnnDestroy(void *handle)
{
    free(handle);
    return DNN_STATUS_SUCCESS;
}

PUBLIC int cudnnSetStream(void *handle, cudaStream_t stream)
{
    memcpy(handle, &stream, sizeof stream);
    return DNN_STATUS_SUCCESS;
}

PUBLIC int cudnnBackendCreateDescriptor(int type, dnn_descriptor *x)
{
    *x = new descriptor{type, false, {}};
    return DNN_STATUS_SUCCESS;
}

PUBLIC int cudnnBackendDestroyDescriptor(dnn_descriptor x)
{
    delete (descriptor *)x;
    return DNN_STATUS_SUCCESS;
}

PUBLIC int cudnnBackendSetAttribute(dnn_descriptor x, int name, int type, int64_t count, const void *elements)
{
    descriptor *d = (descriptor *)x;
    if (d->final || !elements || count < 1)
        return fail(DNN_STATUS_BAD_PARAM, "an attribute of what is finished, or of nothing");
    d->attributes[name].assign((const char *)elements, (const char *)elements + size_of(type) * (size_t)count);
    return DNN_STATUS_SUCCESS;
}

PUBLIC int cudnnBackendGetAttribute(dnn_descriptor x, int name, int, int64_t room, int64_t *count, void *elements)
{
    const descriptor *d = (const descriptor *)x;
    if (!d->final)
        return fail(DNN_STATUS_BAD_PARAM, "it is not finished");
    if (name == DNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        *(int64_t *)elements = 1000;
        return DNN_STATUS_SUCCESS;
    }
    *count = asked_for("none") ? 0 : room < 2 ? room : 2;
    for (int64_t n = 0; n < *count; n++) {
        descriptor *proposal = ((descriptor **)elements)[n];
        proposal->attributes[DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] =
            d->attributes.at(DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        proposal->attributes[DNN_ATTR_ENGINEHEUR_RESULTS] = {(char)n};
        proposal->final = true;
    }
    return DNN_STATUS_SUCCESS;
}

PUBLIC int cudnnBackendFinalize(dnn_descriptor x)
{
    descriptor *d = (descriptor *)x;
    int rc = d->type == DNN_BACKEND_TENSOR_DESCRIPTOR           ? finalize_tensor(d)
             : d->type == DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR ? finalize_graph(d)
                                                                : DNN_STATUS_SUCCESS;
    if (d->type == DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR && asked_for("second") &&
        d->at(DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->attributes.at(DNN_ATTR_ENGINEHEUR_RESULTS)[0] == 0)
        rc = fail(DNN_STATUS_NOT_SUPPORTED, "not this one");
    d->final = rc == DNN_STATUS_SUCCESS;
    return rc;
}

static void name_operands(job &j, const descriptor *pack)
{
    const std::vector<char> &ids = pack->attributes.at(DNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
                            &at = pack->attributes.at(DNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (size_t n = 0; n < ids.size() / 8; n++) {
        int64_t id;
        void *memory;
        memcpy(&id, &ids[8 * n], 8);
        memcpy(&memory, &at[8 * n], 8);
        j.operands[id] = memory;
    }
    for (const descriptor *op : j.ops)
        for (int name : inputs)
            if (op->has(name)) {
                tensor t = tensor_of(op->at(name));
                if (t.is_scalar)
                    j.scalars[t.id] = *(const float *)j.operands.at(t.id);
            }
}

/* Faults: the last operation writes one of the results. */
static void add_fault(job &j)
{
    if (asked_for("unwritten"))
        j.ops.pop_back();
}

static void spoil(void *data)
{
    job &j = *(job *)data;
    run(data);
    const descriptor *op = j.ops.back();
    for (int name : outputs)
        if (op->has(name)) {
            tensor t = tensor_of(op->at(name));
            int64_t row = t.dim[2] - 1; /* the last position of the last head: a small one */
            for (int64_t n = 0; n < t.dim[3]; n++)
                store(j.operands.at(t.id), t.dtype, (t.dim[1] - 1) * t.stride[1] + row * t.stride[2] + n * t.stride[3],
                      0);
        }
}

PUBLIC int cudnnBackendExecute(void *handle, dnn_descriptor plan, dnn_descriptor pack)
{
    static std::vector<std::unique_ptr<job>> jobs; /* a captured launch may run again at any time */
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    auto launch = driver ? (int (*)(void *, void (*)(void *), void *))dlsym(driver, "cuLaunchHostFunc") : nullptr;
    const descriptor *config = ((const descriptor *)plan)->at(DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    void *stream;
    if (!launch || !((const descriptor *)pack)->final)
        return fail(DNN_STATUS_BAD_PARAM, "no driver, or a pack that is not finished");
    jobs.push_back(std::make_unique<job>());
    job &j = *jobs.back();
    j.ops = ops_of(config->at(DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
    name_operands(j, (const descriptor *)pack);
    add_fault(j);
    memcpy(&stream, handle, sizeof stream);
    return launch(stream, asked_for("wrong") ? spoil : run, &j) ? fail(5000, "the launch") : DNN_STATUS_SUCCESS;
}
