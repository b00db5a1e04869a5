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
    PyTypeObject *type; /* NULL: unknown */
    Py_ssize_t tensor, storage, data, offset;
} layout;

static int place_of(PyObject *value, uint64_t place[2]) {
    if (layout.type && PyObject_TypeCheck(value, layout.type)) {
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

/* lie_at(values, positions, found): whether places(values, positions) == found */
static PyObject *lie_at(PyObject *self, PyObject *args) {
    PyObject *values, *positions, *found;
    if (!PyArg_ParseTuple(args, "O!O!S", &PyTuple_Type, &values, &PyTuple_Type, &positions, &found))
        return NULL;
    int same = PyBytes_GET_SIZE(found) == PyTuple_GET_SIZE(positions) * 16;
    for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(positions); i++) {
        uint64_t place[2];
        if (place_at(values, positions, i, place))
            return NULL;
        same = !memcmp(PyBytes_AS_STRING(found) + 16 * i, place, 16);
    }
    return PyBool_FromLong(same);
}

/* set_layout(): unknown; set_layout(class, tensor, storage, data, offset): where an object has its tensor, a tensor its
   storage, a storage its memory, and a tensor its offset, in bytes */
static PyObject *set_layout(PyObject *self, PyObject *args) {
    layout.type = NULL;
    if (PyTuple_GET_SIZE(args) && !PyArg_ParseTuple(args, "O!nnnn", &PyType_Type, &layout.type, &layout.tensor, &layout.storage,
                                                    &layout.data, &layout.offset))
        return NULL;
    Py_XINCREF(layout.type);
    Py_RETURN_NONE;
}
