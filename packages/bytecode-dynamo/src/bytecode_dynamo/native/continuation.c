/* Continuation(function, *arguments): what the first half of a cut function returns to the frame hook, which then calls
   function(*arguments).  An exact type, so that user code cannot make one by accident. */
#include "native.h"

PyTypeObject *continuation_type;

void continuation_release(Continuation *self) {
    Py_ssize_t count = Py_SIZE(self);
    Py_SET_SIZE(self, 0);
    for (Py_ssize_t i = 0; i < count; i++)
        Py_CLEAR(self->arguments[i]);
}

static int continuation_traverse(Continuation *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->function);
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++)
        Py_VISIT(self->arguments[i]);
    return 0;
}

static int continuation_clear(Continuation *self) {
    Py_CLEAR(self->function);
    continuation_release(self);
    return 0;
}

static void continuation_dealloc(Continuation *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    continuation_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *continuation_make(PyObject *type, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Py_ssize_t count = PyVectorcall_NARGS(nargsf) - 1;
    if (count < 0 || (keywords != NULL && PyTuple_GET_SIZE(keywords) != 0))
        return PyErr_Format(PyExc_TypeError, "Continuation(function, *arguments) takes no keywords");
    Continuation *self = PyObject_GC_NewVar(Continuation, (PyTypeObject *)type, count);
    if (self == NULL)
        return NULL;
    self->function = Py_NewRef(args[0]);
    for (Py_ssize_t i = 0; i < count; i++)
        self->arguments[i] = Py_NewRef(args[i + 1]);
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *continuation_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    if (keywords != NULL && PyDict_GET_SIZE(keywords) != 0)
        return PyErr_Format(PyExc_TypeError, "Continuation(function, *arguments) takes no keywords");
    return continuation_make((PyObject *)type, &PyTuple_GET_ITEM(args, 0), (size_t)PyTuple_GET_SIZE(args), NULL);
}

static PyObject *continuation_arguments(Continuation *self, void *closure) {
    PyObject *result = PyTuple_New(Py_SIZE(self));
    for (Py_ssize_t i = 0; result != NULL && i < Py_SIZE(self); i++)
        PyTuple_SET_ITEM(result, i, Py_NewRef(self->arguments[i]));
    return result;
}

static PyMemberDef members[] = {
    {"function", T_OBJECT_EX, offsetof(Continuation, function), READONLY, "what to call"}, {NULL}};
static PyGetSetDef getset[] = {{"arguments", (getter)continuation_arguments, NULL, "its positional arguments", NULL}, {NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Continuation(function, *arguments): run by the frame hook after the frame that returned it."},
    {Py_tp_new, continuation_new},
    {Py_tp_dealloc, continuation_dealloc},
    {Py_tp_traverse, continuation_traverse},
    {Py_tp_clear, continuation_clear},
    {Py_tp_members, members},
    {Py_tp_getset, getset},
    {0, NULL}};
static PyType_Spec spec = {"bytecode_dynamo._hook.Continuation", sizeof(Continuation) - sizeof(PyObject *), sizeof(PyObject *),
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int continuation_init(PyObject *module) {
    continuation_type = (PyTypeObject *)PyType_FromSpec(&spec);
    if (continuation_type == NULL)
        return -1;
    continuation_type->tp_vectorcall = continuation_make;
    return PyModule_AddObjectRef(module, "Continuation", (PyObject *)continuation_type);
}
