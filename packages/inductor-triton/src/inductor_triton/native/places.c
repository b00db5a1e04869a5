/* Where tensors lie, without calling into torch: what a replay compares at every call, for hundreds of parameters. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

static PyObject *data_ptr; /* the method's name */

/* Where a tensor lies: its storage's memory and its offset there in elements, read from torch's own structures, whose layout
   extension.py finds by experiment; without a layout, and for what is no tensor, data_ptr() and 0. */
#define WORD(base, offset) (*(uint64_t *)((char *)(base) + (offset)))
static struct {
    PyTypeObject *type, *seen; /* NULL: unknown; a class below it that was seen last */
    Py_ssize_t tensor, storage, data, offset;
} layout;

static int is_tensor(PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == layout.seen)
        return 1;
    if (!layout.type || !PyType_IsSubtype(type, layout.type))
        return 0;
    Py_INCREF(type);
    Py_XSETREF(layout.seen, type);
    return 1;
}

static int place_of(PyObject *value, uint64_t place[2]) {
    if (is_tensor(value)) {
        uint64_t tensor = WORD(value, layout.tensor), storage = WORD((uintptr_t)tensor, layout.storage);
        if (storage) {
            place[0] = WORD((uintptr_t)storage, layout.data), place[1] = WORD((uintptr_t)tensor, layout.offset);
            return 0;
        }
    }
    PyObject *address = PyObject_CallMethodNoArgs(value, data_ptr);
    if (!address)
        return -1;
    place[0] = PyLong_AsUnsignedLongLong(address), place[1] = 0;
    Py_DECREF(address);
    return PyErr_Occurred() ? -1 : 0;
}

static int place_at(PyObject *values, PyObject *positions, Py_ssize_t i, uint64_t place[2]) {
    Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(positions, i));
    if (position >= 0 && position < PyTuple_GET_SIZE(values))
        return place_of(PyTuple_GET_ITEM(values, position), place);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_IndexError, "no such argument");
    return -1;
}

/* places(values, positions): where the tensors values[position] lie, 16 bytes each */
static PyObject *places(PyObject *self, PyObject *args) {
    PyObject *values, *positions;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &values, &PyTuple_Type, &positions))
        return NULL;
    PyObject *result = PyBytes_FromStringAndSize(NULL, PyTuple_GET_SIZE(positions) * 16);
    for (Py_ssize_t i = 0; result && i < PyTuple_GET_SIZE(positions); i++)
        if (place_at(values, positions, i, (uint64_t *)PyBytes_AS_STRING(result) + 2 * i))
            Py_CLEAR(result);
    return result;
}

#define TOGETHER 16

/* Whether the tensors at `count` positions lie at `found`; -1: they are to be asked one by one. Three loops, whose reads of
   memory do not wait for each other. */
static int lie_together(PyObject *values, PyObject *const *positions, Py_ssize_t count, const uint64_t *found) {
    uint64_t tensors[TOGETHER], storages[TOGETHER], differs = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t position = PyLong_AsSsize_t(positions[i]);
        if (position < 0 || position >= PyTuple_GET_SIZE(values) || !is_tensor(PyTuple_GET_ITEM(values, position)))
            return -1;
        tensors[i] = WORD(PyTuple_GET_ITEM(values, position), layout.tensor);
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (!(storages[i] = WORD((uintptr_t)tensors[i], layout.storage)))
            return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        differs |= (WORD((uintptr_t)storages[i], layout.data) ^ found[2 * i]) |
                   (WORD((uintptr_t)tensors[i], layout.offset) ^ found[2 * i + 1]);
    return !differs;
}

/* lie_at(values, positions, found): whether places(values, positions) == found */
static PyObject *lie_at(PyObject *self, PyObject *args) {
    PyObject *values, *positions, *found;
    if (!PyArg_ParseTuple(args, "O!O!S", &PyTuple_Type, &values, &PyTuple_Type, &positions, &found))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(positions);
    const uint64_t *wanted = (const uint64_t *)PyBytes_AS_STRING(found);
    int same = PyBytes_GET_SIZE(found) == count * 16;
    for (Py_ssize_t i = 0; same && i < count; i += TOGETHER) {
        Py_ssize_t some = count - i < TOGETHER ? count - i : TOGETHER;
        int together = lie_together(values, &PyTuple_GET_ITEM(positions, i), some, wanted + 2 * i);
        if (PyErr_Occurred())
            return NULL;
        same = together;
        for (Py_ssize_t k = i; together < 0 && same && k < i + some; k++) {
            uint64_t place[2];
            if (place_at(values, positions, k, place))
                return NULL;
            same = !memcmp(wanted + 2 * k, place, 16);
        }
    }
    return PyBool_FromLong(same);
}

/* set_layout(): unknown; set_layout(class, tensor, storage, data, offset): where an object has its tensor, a tensor its
   storage, a storage its memory, and a tensor its offset, in bytes */
static PyObject *set_layout(PyObject *self, PyObject *args) {
    layout.type = NULL;
    Py_CLEAR(layout.seen);
    if (PyTuple_GET_SIZE(args) && !PyArg_ParseTuple(args, "O!nnnn", &PyType_Type, &layout.type, &layout.tensor, &layout.storage,
                                                    &layout.data, &layout.offset))
        return NULL;
    Py_XINCREF(layout.type);
    Py_RETURN_NONE;
}
