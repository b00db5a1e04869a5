/* Activated(function, region, after=None): a callable that makes a region the active one of the thread during its calls. */
#include "native.h"

static int force_eager; /* Activated objects call without a region */

typedef struct {
    PyObject_HEAD
    PyObject *function, *after;
    Region *region;
    vectorcallfunc vectorcall;
    PyObject *dict, *weakrefs;
} Activated;

static PyObject *activated_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Activated *self = (Activated *)callable;
    PyObject *function = Py_NewRef(self->function), *after = Py_XNewRef(self->after);
    Region *before = activate(force_eager ? NULL : (Region *)Py_XNewRef((PyObject *)self->region));
    PyObject *result = PyObject_Vectorcall(function, args, nargsf, keywords);
    Py_XDECREF((PyObject *)activate(before));
    Py_DECREF(function);
    if (after != NULL) {
        PyObject *said = result != NULL ? PyObject_CallNoArgs(after) : NULL;
        if (said == NULL)
            Py_CLEAR(result);
        Py_XDECREF(said);
        Py_DECREF(after);
    }
    return result;
}

static PyObject *activated_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"function", "region", "after", NULL};
    PyObject *function, *region, *after = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|O", names, &function, &region, &after))
        return NULL;
    if (region != Py_None && !Py_IS_TYPE(region, region_type))
        return PyErr_Format(PyExc_TypeError, "region must be a Region or None");
    if (!PyCallable_Check(function))
        return PyErr_Format(PyExc_TypeError, "function must be callable");
    Activated *self = (Activated *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->function = Py_NewRef(function);
    self->region = region == Py_None ? NULL : (Region *)Py_NewRef(region);
    self->after = after == Py_None ? NULL : Py_NewRef(after);
    self->vectorcall = activated_call;
    return (PyObject *)self;
}

static int activated_traverse(Activated *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->function);
    Py_VISIT(self->region);
    Py_VISIT(self->after);
    Py_VISIT(self->dict);
    return 0;
}

static int activated_clear(Activated *self) {
    Py_CLEAR(self->function);
    Py_CLEAR(self->region);
    Py_CLEAR(self->after);
    Py_CLEAR(self->dict);
    return 0;
}

static void activated_dealloc(Activated *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    activated_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *activated_get(PyObject *self, PyObject *instance, PyObject *owner) {
    return instance != NULL && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

static PyMemberDef activated_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Activated, vectorcall), READONLY},
    {"__dictoffset__", T_PYSSIZET, offsetof(Activated, dict), READONLY},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Activated, weakrefs), READONLY},
    {"function", T_OBJECT, offsetof(Activated, function), 0, "what is called"},
    {"region", T_OBJECT, offsetof(Activated, region), READONLY, "the region active meanwhile, or None"},
    {NULL}};
static PyGetSetDef activated_getset[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {NULL}};
static PyType_Slot activated_slots[] = {
    {Py_tp_doc, "Activated(function, region, after=None): calls the function with the region (None: no region) active, and then\n"
                "after() unless it raised. Binds like a function."},
    {Py_tp_new, activated_new},
    {Py_tp_dealloc, activated_dealloc},
    {Py_tp_traverse, activated_traverse},
    {Py_tp_clear, activated_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, activated_members},
    {Py_tp_getset, activated_getset},
    {Py_tp_descr_get, activated_get},
    {0, NULL}};
static PyType_Spec activated_spec = {
    "bytecode_dynamo._hook.Activated", sizeof(Activated), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL, activated_slots};

static PyObject *set_force_eager(PyObject *module, PyObject *value) {
    int truth = PyObject_IsTrue(value);
    if (truth < 0)
        return NULL;
    force_eager = truth;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_force_eager", set_force_eager, METH_O, "True: Activated objects call their functions without a region, in all threads."},
    {NULL}};

int activated_init(PyObject *module) {
    PyObject *type = PyType_FromSpec(&activated_spec);
    if (type == NULL || PyModule_AddFunctions(module, methods) < 0 || PyModule_AddObjectRef(module, "Activated", type) < 0)
        return -1;
    Py_DECREF(type);
    return 0;
}
