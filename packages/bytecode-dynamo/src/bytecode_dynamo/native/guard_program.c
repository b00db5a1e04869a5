/* GuardProgram objects: parsed from tuples, dead when an object that they refer to weakly dies. */
#include "guards.h"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

PyTypeObject *guard_program_type;

#define TEXT(op) #op,
static const char *const op_names[] = {OPS(TEXT)};
#undef TEXT

void guard_program_set_owner(PyObject *program, Entry *entry) { ((Program *)program)->owner = entry; }

/* ---- death of an object that the program refers to weakly ---- */

static PyObject *on_death(PyObject *program_ref, PyObject *dead_ref) {
    PyObject *program = PyWeakref_GET_OBJECT(program_ref);
    if (program == Py_None)
        Py_RETURN_NONE;
    Program *self = (Program *)Py_NewRef(program);
    self->dead = 1;
    if (self->owner != NULL)
        entry_invalidate(self->owner);
    Py_DECREF(self);
    Py_RETURN_NONE;
}
static PyMethodDef death_method = {"on_death", on_death, METH_O, NULL};

/* The object that `expected` stands for: itself, or what it refers to weakly. */
static PyObject *expected_object(Program *self, PyObject *expected) {
    if (!PyWeakref_CheckRef(expected))
        return expected;
    PyObject *object = PyWeakref_GET_OBJECT(expected);
    if (object == Py_None)
        return PyErr_Format(PyExc_ReferenceError, "an expected object has died");
    PyObject *self_ref = PyWeakref_NewRef((PyObject *)self, NULL);
    PyObject *callback = self_ref != NULL ? PyCFunction_New(&death_method, self_ref) : NULL;
    PyObject *death = callback != NULL ? PyWeakref_NewRef(object, callback) : NULL;
    int failed = death == NULL || PyList_Append(self->deaths, death) < 0;
    Py_XDECREF(death);
    Py_XDECREF(callback);
    Py_XDECREF(self_ref);
    return failed ? NULL : object;
}

/* ---- construction ---- */

static int bad_register(Program *self, int number) {
    if (number >= 0 && number < self->register_count)
        return 0;
    PyErr_SetString(PyExc_ValueError, "no such register");
    return 1;
}

static int parse_key(Program *self, Key *key, PyObject *row) {
    PyObject *expected;
    if (!PyArg_ParseTuple(row, "OiiO", &key->key, &key->target, &key->test, &expected))
        return -1;
    if (key->test < 0 || key->test >= TEST_COUNT || (key->target >= 0 && bad_register(self, key->target)))
        return PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_ValueError, "no such test"), -1);
    key->expected = key->test == TEST_IDENTITY ? expected_object(self, expected) : expected;
    key->hash = PyObject_Hash(key->key);
    return key->expected == NULL || (key->hash == -1 && PyErr_Occurred()) ? -1 : 0;
}

static int parse_class_row(Program *self, Key *key, PyObject *row) {
    PyObject *box;
    if (!PyArg_ParseTuple(row, "UO!", &key->key, &PyTuple_Type, &box))
        return -1;
    key->expected = PyTuple_GET_SIZE(box) ? PyTuple_GET_ITEM(box, 0) : NULL;
    return 0;
}

static int parse_probe(Program *self, Probe *probe, PyObject *row) {
    if (!PyArg_ParseTuple(row, "O!O", &PyCFunction_Type, &probe->callable, &probe->expected))
        return -1;
    if (PyCFunction_GET_FLAGS(probe->callable) == METH_NOARGS) {
        probe->function = PyCFunction_GET_FUNCTION(probe->callable);
        probe->self = PyCFunction_GET_SELF(probe->callable);
    }
    return 0;
}

static int parse_word(Program *self, Word *word, PyObject *row) {
    return PyArg_ParseTuple(row, "KK", &word->value, &word->mask) ? 0 : -1;
}

static int parse_number(Program *self, Number *number, PyObject *row) {
    if (!PyArg_ParseTuple(row, "iiOn", &number->kind, &number->source, &number->type, &number->dim))
        return -1;
    return bad_register(self, number->source) ? -1 : 0;
}

static int parse_source(Program *self, int *source, PyObject *row) {
    *source = (int)PyLong_AsLong(row);
    return PyErr_Occurred() || bad_register(self, *source) ? -1 : 0;
}

#define PARSE_ROWS(step, rows, member, parse)                                                                          \
    do {                                                                                                               \
        (step)->count = (int)PyTuple_GET_SIZE(rows);                                                                   \
        (step)->member = PyMem_Calloc((step)->count ? (step)->count : 1, sizeof(*(step)->member));                     \
        if ((step)->member == NULL)                                                                                    \
            return PyErr_NoMemory(), -1;                                                                               \
        for (Py_ssize_t row = 0; row < (step)->count; row++)                                                           \
            if (parse(self, &(step)->member[row], PyTuple_GET_ITEM(rows, row)) < 0)                                    \
                return -1;                                                                                             \
        return 0;                                                                                                      \
    } while (0)

static int parse_rows(Program *self, Step *step, PyObject *rows) {
    if (!PyTuple_Check(rows)) {
        PyErr_SetString(PyExc_TypeError, "a tuple of rows is expected");
        return -1;
    }
    switch (step->op) {
    case OP_DICT: PARSE_ROWS(step, rows, keys, parse_key);
    case OP_CLASS: PARSE_ROWS(step, rows, keys, parse_class_row);
    case OP_STATE: PARSE_ROWS(step, rows, probes, parse_probe);
    case OP_STATE_WORDS:
        if (PyTuple_GET_SIZE(rows) != STATE_WORDS) {
            PyErr_SetString(PyExc_ValueError, "every word of the state is expected");
            return -1;
        }
        PARSE_ROWS(step, rows, words, parse_word);
    case OP_SHAPES: PARSE_ROWS(step, rows, numbers, parse_number);
    default: PARSE_ROWS(step, rows, sources, parse_source);
    }
}

static int parse_index(Step *step, PyObject *number, Py_ssize_t end) {
    step->index = PyLong_AsSsize_t(number);
    if (!PyErr_Occurred() && (step->index < 0 || step->index >= end))
        PyErr_SetString(PyExc_ValueError, "no such index");
    return PyErr_Occurred() ? -1 : 0;
}

static int parse_class_type(PyObject *object) {
    if (PyType_Check(object))
        return 0;
    PyErr_SetString(PyExc_TypeError, "a class is expected");
    return -1;
}

static int parse_operands(Program *self, Step *step, PyObject *a, PyObject *b, PyObject *c) {
    switch (step->op) {
    case OP_ARGUMENT: case OP_CLOSURE: case OP_METHOD_FIELD: case OP_LENGTH:
        return parse_index(step, a, PY_SSIZE_T_MAX);
    case OP_FUNCTION_FIELD:
        return parse_index(step, a, FUNCTION_FIELDS);
    case OP_INSTANCE_DICT: case OP_TYPE_IS:
        step->object = a;
        return parse_class_type(a);
    case OP_MEMBER: case OP_ITEM:
        step->object = a;
        return parse_index(step, b, PY_SSIZE_T_MAX) < 0 ? -1 : parse_class_type(a);
    case OP_GETTER:
        if (!Py_IS_TYPE(b, &PyGetSetDescr_Type))
            return PyErr_SetString(PyExc_TypeError, "a get-set descriptor is expected"), -1;
        step->object = a;
        step->last = ((PyGetSetDescrObject *)b)->d_getset;
        return parse_class_type(a);
    case OP_CLASS_DICT: case OP_CLASS_LOOKUP:
        step->index = a == Py_None ? 0 : PyLong_AsSsize_t(a);
        step->object = b;
        return PyErr_Occurred() ? -1 : 0;
    case OP_CONSTANT: case OP_EQUALS: case OP_ELEMENT: case OP_KEYS:
        step->object = a;
        return 0;
    case OP_FIELD_IS:
        if (parse_index(step, b, FUNCTION_FIELDS) < 0)
            return -1;      /* fall through */
    case OP_IDENTITY:
        step->object = expected_object(self, a);
        return step->object == NULL ? -1 : 0;
    case OP_CLASS:
        step->object = a;
        return parse_class_type(a) < 0 ? -1 : parse_rows(self, step, b);
    case OP_DICT: case OP_DISTINCT: case OP_EMPTY: case OP_STATE: case OP_STATE_WORDS:
        return parse_rows(self, step, a);
    case OP_SHAPES:
        if (parse_rows(self, step, a) < 0)
            return -1;
        step->shapes = shape_program(b, step->count);
        return step->shapes == NULL ? -1 : 0;
    case OP_TENSOR:     /* the example comes in a list, which the caller empties */
        if (!PyList_Check(a) || PyList_GET_SIZE(a) != 1)
            return PyErr_SetString(PyExc_TypeError, "a list with the example is expected"), -1;
        step->tensor = tensor_expectation(PyList_GET_ITEM(a, 0), b, c);
        return step->tensor == NULL ? -1 : 0;
    }
    return 0;
}

static int parse_step(Program *self, Step *step, PyObject *row) {
    PyObject *a = Py_None, *b = Py_None, *c = Py_None;
    if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "iii|OOO", &step->op, &step->target, &step->source, &a, &b, &c))
        return PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_TypeError, "a tuple is expected"), -1);
    if (step->op < 0 || step->op >= OP_COUNT) {
        PyErr_SetString(PyExc_ValueError, "no such operation");
        return -1;
    }
    if ((step->target >= 0 && bad_register(self, step->target)) || (step->source >= 0 && bad_register(self, step->source)))
        return -1;
    return parse_operands(self, step, a, b, c);
}

static int bad_registers(Program *self, PyObject *numbers) {
    int number;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++)
        if (parse_source(self, &number, PyTuple_GET_ITEM(numbers, i)) < 0)
            return 1;
    return 0;
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"ops", "registers", "python", "wanted", "loader", "roots", NULL};
    PyObject *ops, *python = Py_None, *wanted = NULL, *loader = NULL, *roots = NULL;
    Py_ssize_t registers;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!n|OO!O!O!", names, &PyTuple_Type, &ops, &registers, &python,
                                     &PyTuple_Type, &wanted, guard_program_type, &loader, &PyTuple_Type, &roots))
        return NULL;
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->ops = Py_NewRef(ops);
    self->python = Py_NewRef(python);
    self->wanted = wanted != NULL ? Py_NewRef(wanted) : PyTuple_New(0);
    self->loader = Py_XNewRef(loader);
    self->roots = roots != NULL ? Py_NewRef(roots) : PyTuple_New(0);
    self->deaths = PyList_New(0);
    self->register_count = registers;
    self->failed = -1;
    self->registers = PyMem_Calloc(registers ? registers : 1, sizeof(PyObject *));
    self->steps = PyMem_Calloc(PyTuple_GET_SIZE(ops) + 1, sizeof(Step));
    if (self->wanted == NULL || self->roots == NULL || self->deaths == NULL || self->registers == NULL || self->steps == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    if (bad_registers(self, self->wanted) || bad_registers(self, self->roots)) {
        Py_DECREF(self);
        return NULL;
    }
    self->steps[PyTuple_GET_SIZE(ops)].op = -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ops); i++) {
        self->count = i + 1;
        if (parse_step(self, &self->steps[i], PyTuple_GET_ITEM(ops, i)) < 0) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static int program_traverse(Program *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->ops);
    Py_VISIT(self->python);
    Py_VISIT(self->loader);
    Py_VISIT(self->deaths);
    return 0;
}

static void free_steps(Program *self) {
    Py_ssize_t count = self->count;
    self->count = 0;
    self->dead = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        Step *step = &self->steps[i];
        if (step->op == OP_TENSOR && step->tensor != NULL)
            Py_DECREF(step->tensor->type);
        PyMem_Free(step->memory);
        PyMem_Free(step->shapes);
    }
}

static int program_clear(Program *self) {
    free_steps(self);
    Py_CLEAR(self->ops);
    Py_XSETREF(self->python, Py_NewRef(Py_None));
    Py_CLEAR(self->deaths);
    return 0;
}

static void program_dealloc(Program *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    program_clear(self);
    Py_CLEAR(self->python);
    Py_CLEAR(self->wanted);
    Py_CLEAR(self->roots);
    Py_CLEAR(self->loader);
    PyMem_Free(self->registers);
    PyMem_Free(self->steps);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- methods ---- */

static int parse_call(PyObject *args, PyObject **function, PyObject **arguments, long *times) {
    return PyArg_ParseTuple(args, "O!O!|l", &PyFunction_Type, function, &PyTuple_Type, arguments, times);
}

static PyObject *program_check_method(Program *self, PyObject *args) {
    PyObject *function, *arguments;
    long times = 1;
    if (!parse_call(args, &function, &arguments, &times))
        return NULL;
    int holds = 0;
    while (times-- > 0) {
        holds = guard_program_check((PyObject *)self, &PyTuple_GET_ITEM(arguments, 0), PyTuple_GET_SIZE(arguments),
                                    (PyFunctionObject *)function);
        if (holds < 0)
            return NULL;
    }
    return PyBool_FromLong(holds);
}

#define MOST_ROOTS 8

/* What a check has found for the loader that its code calls first: strong references, and what they were found from.  Those
   objects live as long as the frame, so that a loader called with the same ones is called for it, or for one like it. */
static _Thread_local struct {
    PyObject *loader, **values, *roots[MOST_ROOTS];     /* loader, roots: borrowed, never followed */
    Py_ssize_t count;
} kept;

void guard_program_forget(void) {
    PyObject **values = kept.values;
    Py_ssize_t count = values != NULL ? kept.count : 0;
    kept.loader = NULL;
    kept.values = NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        Py_DECREF(values[i]);
    PyMem_Free(values);
}

static inline PyObject *register_at(Program *self, PyObject *numbers, Py_ssize_t i) {
    return self->registers[PyLong_AsSsize_t(PyTuple_GET_ITEM(numbers, i))];
}

void guard_program_keep(Program *self) {
    Py_ssize_t count = PyTuple_GET_SIZE(self->wanted), roots = PyTuple_GET_SIZE(self->roots);
    if (kept.values != NULL || roots > MOST_ROOTS || (kept.values = PyMem_Malloc((count + 1) * sizeof(PyObject *))) == NULL)
        return;
    for (Py_ssize_t i = 0; i < count; i++)
        kept.values[i] = Py_NewRef(register_at(self, self->wanted, i));
    for (Py_ssize_t i = 0; i < roots; i++)
        kept.roots[i] = register_at(self, self->roots, i);
    kept.count = count;
    kept.loader = self->loader;
}

/* Gives what is kept for a loader that is called with these arguments to a tuple. */
static int take_kept(Program *self, PyObject *const *arguments, Py_ssize_t count, PyObject *tuple) {
    if (kept.loader != (PyObject *)self || kept.count != PyTuple_GET_SIZE(tuple) || count > MOST_ROOTS ||
        memcmp(kept.roots, arguments, count * sizeof(PyObject *)) != 0)
        return 0;
    for (Py_ssize_t i = 0; i < kept.count; i++)
        PyTuple_SET_ITEM(tuple, i, kept.values[i]);
    PyMem_Free(kept.values);
    kept.values = NULL;
    kept.loader = NULL;
    return 1;
}

/* Registers by number as a tuple; what the steps read comes as arguments.  The tuple is made first: nothing may run in between. */
static PyObject *program_load(Program *self, PyObject *const *arguments, Py_ssize_t count) {
    PyObject *loaded = PyTuple_New(PyTuple_GET_SIZE(self->wanted));
    if (loaded != NULL && take_kept(self, arguments, count, loaded))
        return loaded;
    if (loaded == NULL || guard_program_run(self, arguments, count) < 0) {
        Py_XDECREF(loaded);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "a module changed while its compiled call began");
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(loaded); i++)
        PyTuple_SET_ITEM(loaded, i, Py_NewRef(register_at(self, self->wanted, i)));
    return loaded;
}

static PyObject *program_valid(Program *self, void *closure) { return PyBool_FromLong(!self->dead); }

static PyMethodDef program_methods[] = {
    {"check", (PyCFunction)program_check_method, METH_VARARGS,
     "check(function, arguments, times=1): whether a call would pass; arguments in slot order."},
    {"load", (PyCFunction)(void (*)(void))program_load, METH_FASTCALL,
     "load(*arguments): the wanted registers as a tuple, after the steps were taken from these arguments."},
    {NULL}};
static PyGetSetDef program_getset[] = {{"valid", (getter)program_valid, NULL, "False once an object it refers to died", NULL},
                                       {NULL}};
static PyMemberDef program_members[] = {
    {"ops", T_OBJECT, offsetof(Program, ops), READONLY, "the operations"},
    {"python", T_OBJECT, offsetof(Program, python), READONLY, "what has to be checked in Python, or None"},
    {"checks", T_ULONGLONG, offsetof(Program, checks), READONLY, "how often it ran"},
    {"failed", T_PYSSIZET, offsetof(Program, failed), READONLY, "index of the operation that failed last time, or -1"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Program, weakrefs), READONLY},
    {NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "GuardProgram(ops, registers, python=None, wanted=(), loader=None, roots=()): see guards.compile_guards and "
                "input_loader."},
    {Py_tp_new, program_new},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_traverse, program_traverse},
    {Py_tp_clear, program_clear},
    {Py_tp_methods, program_methods},
    {Py_tp_getset, program_getset},
    {Py_tp_members, program_members},
    {0, NULL}};
static PyType_Spec spec = {"bytecode_dynamo._hook.GuardProgram", sizeof(Program), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

/* Offset of the object pointer behind a member descriptor (a slot), or None. */
static PyObject *member_offset(PyObject *module, PyObject *descriptor) {
    if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type))
        Py_RETURN_NONE;
    PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    if (member->type != T_OBJECT_EX && member->type != T_OBJECT)
        Py_RETURN_NONE;
    return PyLong_FromSsize_t(member->offset);
}

static PyObject *has_generic_getattr(PyObject *module, PyObject *type) {
    return PyBool_FromLong(PyType_Check(type) && ((PyTypeObject *)type)->tp_getattro == PyObject_GenericGetAttr);
}

static PyObject *is_probe(PyObject *module, PyObject *function) {
    return PyBool_FromLong(PyCFunction_CheckExact(function));
}

static PyMethodDef module_methods[] = {
    {"has_generic_getattr", has_generic_getattr, METH_O, "Whether a class reads attributes by the default rules, in C."},
    {"is_probe", is_probe, METH_O, "Whether a STATE operation can call this built-in function."},
    {"member_offset", member_offset, METH_O, "Offset of the object pointer behind a member descriptor, or None."}, {NULL}};

int guards_init(PyObject *module) {
    guard_program_type = (PyTypeObject *)PyType_FromSpec(&spec);
    PyObject *numbers = PyDict_New();
    if (guard_program_type == NULL || numbers == NULL)
        return -1;
    for (int i = 0; i < OP_COUNT; i++) {
        PyObject *number = PyLong_FromLong(i);
        if (number == NULL || PyDict_SetItemString(numbers, op_names[i], number) < 0)
            return -1;
        Py_DECREF(number);
    }
    if (PyModule_AddObjectRef(module, "GUARD_OPS", numbers) < 0 ||
        PyModule_AddIntConstant(module, "MRO_OFFSET", offsetof(PyTypeObject, tp_mro)) < 0 ||
        PyModule_AddFunctions(module, module_methods) < 0 ||
        tensors_init(module) < 0 || state_init(module) < 0)
        return -1;
    Py_DECREF(numbers);
    return PyModule_AddObjectRef(module, "GuardProgram", (PyObject *)guard_program_type);
}
