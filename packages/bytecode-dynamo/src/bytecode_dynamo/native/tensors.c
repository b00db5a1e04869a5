/* Tensor metadata straight from the tensor's memory.

   tensor_layout.py finds the offsets by experiment when the process starts, with the two probes at the end of this file,
   and hands them to set_tensor_layout; it also tests that every kind of change in place is seen.  Without a layout the
   guards here are not used. */
#include "native.h"

#define INLINE_DIMS 5     /* more dimensions live out of line */

static struct {
    int known;
    Py_ssize_t impl;      /* in the Python object: pointer to the tensor's implementation */
    Py_ssize_t ndim, dims, storage_offset, info, keys, autograd;     /* in the implementation */
    Py_ssize_t requires_grad;                                        /* in the autograd record */
    uint64_t info_mask;
} layout;

static PyObject *name_requires_grad;

#define IMPL(tensor) (*(char **)((char *)(tensor) + layout.impl))
#define WORD(base, offset) (*(const int64_t *)((base) + (offset)))

static inline const int64_t *dims_of(const char *impl, int64_t ndim, const int64_t **strides) {
    const int64_t *sizes = (const int64_t *)(impl + layout.dims);
    if (ndim > INLINE_DIMS) {
        sizes = *(const int64_t *const *)sizes;
        *strides = sizes + ndim;
    } else
        *strides = sizes + INLINE_DIMS;
    return sizes;
}

/* A leaf says so in its autograd record; for results of operations the record does not say it, the getter does. */
static inline int requires_grad(PyObject *tensor, const char *impl) {
    const char *record = *(const char *const *)(impl + layout.autograd);
    if (record == NULL)
        return 0;
    if (*(const uint8_t *)(record + layout.requires_grad))
        return 1;
    PyObject *value = PyObject_GetAttr(tensor, name_requires_grad);
    int result = value == Py_True;
    Py_XDECREF(value);
    if (value == NULL)
        PyErr_Clear();
    return result;
}

void tensor_fetch(PyObject *tensor) {
    const char *impl = IMPL(tensor);
    __builtin_prefetch(impl + layout.autograd);
    __builtin_prefetch(impl + layout.dims);
    __builtin_prefetch(impl + layout.keys);
}

int tensor_matches(const TensorExpectation *expected, PyObject *tensor) {
    if (Py_TYPE(tensor) != expected->type)
        return 0;
    const char *impl = IMPL(tensor);
    int64_t ndim = expected->ndim;
    if (WORD(impl, layout.ndim) != ndim || (uint64_t)WORD(impl, layout.keys) != expected->keys ||
        (((uint64_t)WORD(impl, layout.info) ^ expected->info) & layout.info_mask))
        return 0;
    const int64_t *strides, *sizes = dims_of(impl, ndim, &strides), *wanted = expected->dims;
    for (int64_t i = 0; i < ndim; i++)
        if ((wanted[i] >= 0 && sizes[i] != wanted[i]) || (wanted[ndim + i] >= 0 && strides[i] != wanted[ndim + i]))
            return 0;
    return requires_grad(tensor, impl) == expected->requires_grad;
}

int tensor_number(PyObject *tensor, PyTypeObject *type, int what, Py_ssize_t dim, int64_t *result) {
    if (!layout.known || Py_TYPE(tensor) != type)
        return -1;
    const char *impl = IMPL(tensor);
    if (what == 2) {
        *result = WORD(impl, layout.storage_offset);
        return 0;
    }
    int64_t ndim = WORD(impl, layout.ndim);
    if (dim < 0 || dim >= ndim)
        return -1;
    const int64_t *strides, *sizes = dims_of(impl, ndim, &strides);
    *result = what == 0 ? sizes[dim] : strides[dim];
    return 0;
}

static int read_dims(PyObject *tuple, Py_ssize_t count, int64_t *target) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_SetString(PyExc_ValueError, "one size and one stride per dimension are expected");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        target[i] = item == Py_None ? -1 : PyLong_AsLongLong(item);
        if (target[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* What `example` is, with these sizes and strides (None: any).  The caller made sure that it is a plain strided tensor. */
TensorExpectation *tensor_expectation(PyObject *example, PyObject *sizes, PyObject *strides) {
    if (!layout.known) {
        PyErr_SetString(PyExc_RuntimeError, "the layout of tensors is not known");
        return NULL;
    }
    const char *impl = IMPL(example);
    Py_ssize_t ndim = WORD(impl, layout.ndim);
    TensorExpectation *self = PyMem_Malloc(sizeof(*self) + 2 * ndim * sizeof(int64_t));
    if (self == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    self->ndim = ndim;
    self->info = WORD(impl, layout.info);
    self->keys = WORD(impl, layout.keys);
    self->requires_grad = requires_grad(example, impl);
    if (read_dims(sizes, ndim, self->dims) < 0 || read_dims(strides, ndim, self->dims + ndim) < 0) {
        PyMem_Free(self);
        return NULL;
    }
    self->type = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(example));
    return self;
}

static PyObject *set_tensor_layout(PyObject *module, PyObject *args) {
    layout.known = 0;
    if (PyTuple_GET_SIZE(args) == 0)
        Py_RETURN_NONE;
    if (!PyArg_ParseTuple(args, "nnnnnnnnK", &layout.impl, &layout.ndim, &layout.dims, &layout.storage_offset, &layout.info,
                          &layout.keys, &layout.autograd, &layout.requires_grad, &layout.info_mask))
        return NULL;
    layout.known = 1;
    Py_RETURN_NONE;
}

/* The part of DLPack 1.x's exchange API that is used here. */
typedef struct {
    uint32_t major, minor;
    void *previous, *allocate, *from_object, *to_object;
    int (*view)(void *tensor, void *result);
} ExchangeApi;

typedef struct {
    void *data;
    int32_t device[2], ndim;
    uint32_t dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

static PyObject *sizes_address(PyObject *module, PyObject *args) {
    PyObject *capsule, *tensor;
    DLTensor result;
    if (!PyArg_ParseTuple(args, "OO", &capsule, &tensor))
        return NULL;
    const ExchangeApi *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (api == NULL)
        return NULL;
    if (api->major != 1)
        return PyErr_SetString(PyExc_RuntimeError, "another major version of the DLPack exchange API"), NULL;
    if (api->view(tensor, &result) != 0)
        return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_RuntimeError, "a tensor has no DLPack view"), NULL);
    return PyLong_FromVoidPtr(result.shape);
}

static PyObject *read_memory(PyObject *module, PyObject *args) {
    unsigned long long address;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Kn", &address, &size))
        return NULL;
    return PyBytes_FromStringAndSize((const char *)(uintptr_t)address, size);
}

static PyMethodDef methods[] = {
    {"set_tensor_layout", set_tensor_layout, METH_VARARGS,
     "Offsets of: impl, ndim, dims, storage offset, info, keys, autograd record, requires_grad in it; mask of info. No "
     "arguments: unknown."},
    {"sizes_address", sizes_address, METH_VARARGS, "sizes_address(exchange API, tensor): where a tensor keeps its sizes."},
    {"read_memory", read_memory, METH_VARARGS, "read_memory(address, size): a copy of the bytes there."},
    {NULL}};

int tensors_init(PyObject *module) {
    name_requires_grad = PyUnicode_InternFromString("requires_grad");
    return name_requires_grad == NULL ? -1 : PyModule_AddFunctions(module, methods);
}
