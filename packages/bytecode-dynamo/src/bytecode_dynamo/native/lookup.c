/* Reading attributes, items and constants without running Python code. */
#include "native.h"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Where an object with a managed dictionary has the pointer to it.  (3.12: the low bit set means there is none yet.) */
#define MANAGED_DICT(object) (((PyObject **)(object))[-3])
#define MANAGED_DICT_FLAG (1UL << 4)

PyObject *instance_dict(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject *dict = NULL;
    if (type->tp_flags & MANAGED_DICT_FLAG)
        dict = MANAGED_DICT(object);
    else if (type->tp_dictoffset > 0)
        dict = *(PyObject **)((char *)object + type->tp_dictoffset);
    if (dict != NULL && ((uintptr_t)dict & 1) == 0)
        return dict;
    dict = PyObject_GenericGetDict(object, NULL);     /* makes one; the object keeps it */
    if (dict == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(dict);
    return dict;
}

#if PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030E0000
/* 3.13.0 does not count stores through the values inlined in an object, even when its dictionary exists.  Taking the last
   item out and putting it back gives the dictionary values of its own. */
static int own_values(PyObject *dict) {
    if (((PyDictObject *)dict)->ma_values == NULL)
        return 1;
    if (!PyDict_CheckExact(dict) || PyDict_GET_SIZE(dict) == 0)
        return 0;
    PyObject *item = PyObject_CallMethod(dict, "popitem", NULL);
    if (item != NULL) {
        PyObject *key = PyTuple_GET_ITEM(item, 0);
        if (PyDict_SetItem(dict, key, PyTuple_GET_ITEM(item, 1)) < 0)
            PyErr_Clear();
        Py_DECREF(item);
    }
    PyErr_Clear();
    return ((PyDictObject *)dict)->ma_values == NULL;
}
#endif

#if PY_VERSION_HEX < 0x030E0000
uint64_t dict_version(PyObject *dict) {
#if PY_VERSION_HEX >= 0x030D0000
    if (!own_values(dict))
        return 0;
    return ((PyDictObject *)dict)->ma_version_tag >> 12;
#elif PY_VERSION_HEX >= 0x030C0000
    return ((PyDictObject *)dict)->ma_version_tag >> 8;
#else
    return ((PyDictObject *)dict)->ma_version_tag;
#endif
}
#endif

PyObject *dict_lookup(PyObject *dict, PyObject *key, Py_hash_t hash) {
    PyObject *value = _PyDict_GetItem_KnownHash(dict, key, hash);
    if (value == NULL)
        PyErr_Clear();
    return value;
}

PyObject *class_dict_lookup(PyTypeObject *type, Py_ssize_t index, PyObject *name) {
    PyObject *mro = type->tp_mro;
    if (mro == NULL || index >= PyTuple_GET_SIZE(mro))
        return NULL;
    PyTypeObject *owner = (PyTypeObject *)PyTuple_GET_ITEM(mro, index);
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *dict = PyType_GetDict(owner);
    PyObject *value = dict != NULL ? PyDict_GetItemWithError(dict, name) : NULL;
    Py_XDECREF(dict);
#else
    PyObject *value = owner->tp_dict != NULL ? PyDict_GetItemWithError(owner->tp_dict, name) : NULL;
#endif
    if (value == NULL)
        PyErr_Clear();
    return value;
}

Py_ssize_t container_length(PyObject *object) {
    if (PyDict_Check(object))
        return PyDict_GET_SIZE(object);
    if (PyList_Check(object) || PyTuple_Check(object) || PyBytes_Check(object))
        return Py_SIZE(object);
    if (PyUnicode_Check(object))
        return PyUnicode_GET_LENGTH(object);
    if (PyAnySet_Check(object))
        return PySet_GET_SIZE(object);
    if (!PyRange_Check(object))
        return -1;
    Py_ssize_t length = PyObject_Size(object);
    if (length < 0)
        PyErr_Clear();
    return length;
}

static int same_items(PyObject *const *a, PyObject *const *b, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (!same_constant(a[i], b[i]))
            return 0;
    return 1;
}

/* Same type and equal; floats bit by bit.  Types other than those named here are compared by their own ==: the caller lets
   only types through whose == is written in C. */
int same_constant(PyObject *a, PyObject *b) {
    PyTypeObject *type = Py_TYPE(b);
    if (a == b)
        return 1;
    if (Py_TYPE(a) != type || b == Py_None || type == &PyBool_Type)
        return 0;
    if (type == &PyFloat_Type)
        return memcmp(&((PyFloatObject *)a)->ob_fval, &((PyFloatObject *)b)->ob_fval, sizeof(double)) == 0;
    if (type == &PyComplex_Type)
        return memcmp(&((PyComplexObject *)a)->cval, &((PyComplexObject *)b)->cval, sizeof(Py_complex)) == 0;
    if (PyTuple_Check(b))
        return PyTuple_GET_SIZE(a) == PyTuple_GET_SIZE(b) &&
               same_items(&PyTuple_GET_ITEM(a, 0), &PyTuple_GET_ITEM(b, 0), PyTuple_GET_SIZE(b));
    if (type == &PySlice_Type) {
        PySliceObject *x = (PySliceObject *)a, *y = (PySliceObject *)b;
        return same_constant(x->start, y->start) && same_constant(x->stop, y->stop) && same_constant(x->step, y->step);
    }
    PyObject *equal = PyObject_RichCompare(a, b, Py_EQ);
    int result = equal == Py_True;
    Py_XDECREF(equal);
    if (equal == NULL)
        PyErr_Clear();
    return result;
}

static int same_key(PyObject *a, PyObject *b) {
    if (a == b)
        return 1;
    return Py_TYPE(a) == Py_TYPE(b) && (PyUnicode_CheckExact(b) || PyLong_CheckExact(b) || PyFloat_CheckExact(b) ||
                                        PyBytes_CheckExact(b) || PyTuple_CheckExact(b)) &&
           same_constant(a, b);
}

/* Whether a dictionary has exactly these keys, in this order (for OrderedDict, its own order). */
int same_keys(PyObject *dict, PyObject *keys) {
    Py_ssize_t count = PyTuple_GET_SIZE(keys), i = 0, position = 0;
    PyObject *key, *value;
    if (PyDict_GET_SIZE(dict) != count)
        return 0;
    if (PyODict_Check(dict)) {
        PyObject *iterator = PyODict_Type.tp_iter(dict);
        int same = iterator != NULL;
        while (same && (key = PyIter_Next(iterator)) != NULL) {
            same = i < count && same_key(key, PyTuple_GET_ITEM(keys, i));
            i++;
            Py_DECREF(key);
        }
        Py_XDECREF(iterator);
        PyErr_Clear();
        return same && i == count;
    }
    while (PyDict_Next(dict, &position, &key, &value))
        if (i >= count || !same_key(key, PyTuple_GET_ITEM(keys, i++)))
            return 0;
    return i == count;
}
