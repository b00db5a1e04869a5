/* GuardProgram: one stream of operations on registers that hold borrowed pointers.

   An operation reads its source register, which an earlier operation of the same check has filled from a living owner, proves
   what it needs to know of the object, and writes its target register.  No Python code runs before the last step, so nothing
   can die in between.  A register has one writer; its content stays valid as long as that writer's dictionary is unchanged
   (version tags are never used twice), which is how whole dictionaries are passed over.

   The operations come as a tuple of tuples, which the program keeps: everything in the C structures is borrowed from it.
   Objects that must be able to die come as weak references; when one dies, the program and its entry are invalid for good. */
#include "guards.h"
#include <math.h>
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define SELDOM __attribute__((noinline)) static

SELDOM int load_keys(Step *step, PyObject *dict, PyObject **registers) {
    for (Py_ssize_t i = 0; i < step->count; i++) {
        Key *key = &step->keys[i];
        PyObject *value = dict_lookup(dict, key->key, key->hash);
        if ((value == NULL) != (key->test == TEST_ABSENT))
            return 0;
        if (key->test == TEST_IDENTITY ? value != key->expected
                                       : key->test == TEST_EQUALS && !same_constant(value, key->expected))
            return 0;
        if (key->test == TEST_TYPE && (PyObject *)Py_TYPE(value) != key->expected)
            return 0;
        if (key->target >= 0)
            registers[key->target] = value;
    }
    return 1;
}

static int check_dict(Step *step, PyObject *dict, PyObject **registers) {
    if (!PyDict_Check(dict))
        return 0;
    uint64_t version = dict_version(dict);
    if (dict == step->last && version == step->version && version != 0)
        return 1;
    step->last = NULL;
    if (!load_keys(step, dict, registers))
        return 0;
    step->last = dict;
    step->version = version;
    return 1;
}

static int check_keys(Step *step, PyObject *dict) {
    if (!PyDict_Check(dict))
        return 0;
    if (PyTuple_GET_SIZE(step->object) == 0)
        return PyDict_GET_SIZE(dict) == 0;
    if (!PyDict_CheckExact(dict) && PyODict_Check(dict))          /* its order changes without a new version */
        return same_keys(dict, step->object);
    uint64_t version = dict_version(dict);
    if (dict == step->last && version == step->version && version != 0)
        return 1;
    step->last = NULL;
    if (!same_keys(dict, step->object))
        return 0;
    step->last = dict;
    step->version = version;
    return 1;
}

SELDOM int check_empty(Step *step, PyObject **registers) {
    for (Py_ssize_t i = 0; i < step->count; i++) {
        PyObject *dict = registers[step->sources[i]];
        if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != 0)
            return 0;
    }
    return 1;
}

static int check_class(Step *step) {
    PyTypeObject *type = (PyTypeObject *)step->object;
    if (type->tp_version_tag != 0 && type->tp_version_tag == step->version)
        return 1;
    for (Py_ssize_t i = 0; i < step->count; i++)
        if (_PyType_Lookup(type, step->keys[i].key) != step->keys[i].expected)
            return 0;
    step->version = type->tp_version_tag;
    return 1;
}

SELDOM int check_state(Step *step) {
    for (Py_ssize_t i = 0; i < step->count; i++) {
        Probe *probe = &step->probes[i];
        PyObject *value =
            probe->function != NULL ? probe->function(probe->self, NULL) : PyObject_CallNoArgs(probe->callable);
        if (value == NULL) {
            PyErr_Clear();
            return 0;
        }
        int same = same_constant(value, probe->expected);
        Py_DECREF(value);
        if (!same)
            return 0;
    }
    return 1;
}

SELDOM int check_words(Step *step) {
    StateWords now;
    if (state_read(&now) < 0)
        return 0;
    uint64_t different = 0;
    for (Py_ssize_t i = 0; i < step->count; i++)
        different |= (now.word[i] ^ step->words[i].value) & step->words[i].mask;
    return different == 0;
}

static int check_distinct(Step *step, PyObject **registers) {
    PyObject *object = registers[step->source];
    for (Py_ssize_t i = 0; i < step->count; i++)
        if (registers[step->sources[i]] == object)
            return 0;
    return 1;
}

static PyObject *element_of(PyObject *tensor) {
    static PyObject *name = NULL;
    if (name == NULL)
        name = PyUnicode_InternFromString("item");
    PyObject *value = name != NULL ? PyObject_CallMethodNoArgs(tensor, name) : NULL;
    if (value == NULL)
        PyErr_Clear();
    return value;
}

SELDOM int check_element(Step *step, PyObject *tensor) {
    PyObject *value = element_of(tensor);
    if (value == NULL)
        return 0;
    int holds = step->object != Py_None ? same_constant(value, step->object)
                                        : PyFloat_CheckExact(value) && isfinite(PyFloat_AS_DOUBLE(value));
    Py_DECREF(value);
    return holds;
}

static int int_of(PyObject *object, int64_t *result) {
    int overflow = 0, plain = PyLong_CheckExact(object);
    *result = plain ? PyLong_AsLongLongAndOverflow(object, &overflow) : 0;
    return plain && !overflow;
}

SELDOM int check_shapes(Step *step, PyObject **registers) {
    int64_t few[32], *values = step->count <= 32 ? few : PyMem_Malloc(step->count * sizeof(int64_t));
    int holds = values != NULL;
    for (Py_ssize_t i = 0; holds && i < step->count; i++) {
        Number *number = &step->numbers[i];
        PyObject *object = registers[number->source];
        if (number->kind < 3)
            holds = tensor_number(object, number->type, number->kind, number->dim, &values[i]) == 0;
        else if (number->kind == 3)
            holds = int_of(object, &values[i]);
        else {
            PyObject *element = element_of(object);
            holds = element != NULL && int_of(element, &values[i]);
            Py_XDECREF(element);
        }
    }
    holds = holds && shape_program_run(step->shapes, values);
    if (values != few)
        PyMem_Free(values);
    return holds;
}

#define FIELD(name) offsetof(PyFunctionObject, name)
static const size_t function_fields[FUNCTION_FIELDS] = {FIELD(func_code),    FIELD(func_defaults), FIELD(func_kwdefaults), FIELD(func_closure),
                                         FIELD(func_globals), FIELD(func_name),     FIELD(func_qualname)};

static inline PyObject *function_field(PyObject *function, Py_ssize_t which) {
    PyObject *value = *(PyObject **)((char *)function + function_fields[which]);
    return value != NULL ? value : Py_None;
}

static PyObject *item_of(Step *step, PyObject *object) {
    if (step->object == (PyObject *)&PyList_Type)
        return PyList_Check(object) && step->index < PyList_GET_SIZE(object) ? PyList_GET_ITEM(object, step->index) : NULL;
    return PyTuple_Check(object) && step->index < PyTuple_GET_SIZE(object) ? PyTuple_GET_ITEM(object, step->index) : NULL;
}

/* What a class, or one of its bases, has under a name, or NULL. */
static PyObject *class_attribute(Step *step, PyTypeObject *type, PyObject **registers) {
    if (type == step->last && type->tp_version_tag != 0 && type->tp_version_tag == step->version)
        return registers[step->target];
    PyObject *value =
        step->op == OP_CLASS_DICT ? class_dict_lookup(type, step->index, step->object) : _PyType_Lookup(type, step->object);
    step->last = value != NULL ? type : NULL;
    step->version = type->tp_version_tag;
    return value;
}

/* What a C property gives, borrowed from the object. */
static PyObject *borrowed_property(Step *step, PyObject *object) {
    PyGetSetDef *property = step->last;
    PyObject *value = (PyObject *)Py_TYPE(object) == step->object ? property->get(object, property->closure) : NULL;
    if (value == NULL)
        PyErr_Clear();
    Py_XDECREF(value);
    return value;
}

/* The object that a loading step gives, or NULL. */
SELDOM PyObject *load(Step *step, PyObject **registers, PyObject *const *slots, Py_ssize_t count, PyFunctionObject *function) {
    PyObject *from = step->source >= 0 ? registers[step->source] : NULL;
    switch (step->op) {
    case OP_ARGUMENT: return step->index < count ? SLOT_OBJECT(slots[step->index]) : NULL;
    case OP_GLOBALS: return function->func_globals;
    case OP_BUILTINS: return function->func_builtins;
    case OP_CLOSURE:
        if (function->func_closure == NULL || step->index >= PyTuple_GET_SIZE(function->func_closure))
            return NULL;
        return PyTuple_GET_ITEM(function->func_closure, step->index);
    case OP_CONSTANT: return step->object;
    case OP_CELL: return PyCell_Check(from) ? PyCell_GET(from) : NULL;
    case OP_MEMBER: return (PyObject *)Py_TYPE(from) == step->object ? *(PyObject **)((char *)from + step->index) : NULL;
    case OP_GETTER: return borrowed_property(step, from);
    case OP_ITEM: return item_of(step, from);
    case OP_TYPE_OF: return (PyObject *)Py_TYPE(from);
    case OP_CLASS_DICT:
    case OP_CLASS_LOOKUP: return PyType_Check(from) ? class_attribute(step, (PyTypeObject *)from, registers) : NULL;
    case OP_FUNCTION_FIELD: return PyFunction_Check(from) ? function_field(from, step->index) : NULL;
    case OP_METHOD_FIELD:
        return PyMethod_Check(from) ? (step->index ? PyMethod_GET_SELF(from) : PyMethod_GET_FUNCTION(from)) : NULL;
    }
    return NULL;
}

/* Asks early for the memory of a tensor that is tested soon. */
static inline void tensor_prefetch(Step *step, PyObject **registers) {
    if (step->op == step[1].op && step->op == step[2].op && step->op == step[3].op) {
        PyObject *later = registers[step[3].source];
        if (later != NULL && Py_TYPE(later) == step[3].tensor->type)
            tensor_fetch(later);
    }
}

static inline int load_instance_dict(Step *step, PyObject **registers) {
    PyObject *object = registers[step->source];
    PyObject *dict = (PyObject *)Py_TYPE(object) == step->object ? instance_dict(object) : NULL;
    registers[step->target] = dict;
    return dict != NULL;
}

SELDOM int run_other(Step *step, PyObject **registers, PyObject *const *slots, Py_ssize_t count, PyFunctionObject *function) {
    switch (step->op) {
    case OP_EMPTY: return check_empty(step, registers);
    case OP_DISTINCT: return check_distinct(step, registers);
    case OP_STATE: return check_state(step);
    case OP_STATE_WORDS: return check_words(step);
    case OP_ELEMENT: return check_element(step, registers[step->source]);
    case OP_SHAPES: return check_shapes(step, registers);
    default: return (registers[step->target] = load(step, registers, slots, count, function)) != NULL;
    }
}

/* Steps of one kind in a row run in a loop of their own: its branches are foreseen, and its reads of memory overlap. */
#define EACH(op_, holds)                                                                                               \
    case op_:                                                                                                          \
        do {                                                                                                           \
            if (!(holds))                                                                                              \
                return step - self->steps;                                                                             \
        } while ((++step)->op == op_);                                                                                 \
        break

/* Index of the first step that fails, or -1.  Behind the last step is one without an operation. */
static Py_ssize_t run_steps(Program *self, PyObject *const *slots, Py_ssize_t count, PyFunctionObject *function) {
    Step *step = self->steps, *end = step + self->count;
    PyObject **registers = self->registers;
    while (step < end) {
        PyObject *source;
        switch (step->op) {
            EACH(OP_DICT, check_dict(step, registers[step->source], registers));
            EACH(OP_TENSOR, (tensor_prefetch(step, registers), tensor_matches(step->tensor, registers[step->source])));
            EACH(OP_INSTANCE_DICT, load_instance_dict(step, registers));
            EACH(OP_FIELD_IS, (source = registers[step->source], PyFunction_Check(source)) &&
                                  function_field(source, step->index) == step->object);
            EACH(OP_CLASS, check_class(step));
            EACH(OP_TYPE_IS, (PyObject *)Py_TYPE(registers[step->source]) == step->object);
            EACH(OP_IDENTITY, registers[step->source] == step->object);
            EACH(OP_EQUALS, same_constant(registers[step->source], step->object));
            EACH(OP_FINITE, (source = registers[step->source], PyFloat_CheckExact(source)) && isfinite(PyFloat_AS_DOUBLE(source)));
            EACH(OP_LENGTH, container_length(registers[step->source]) == step->index);
            EACH(OP_KEYS, check_keys(step, registers[step->source]));
            EACH(OP_SAME, registers[step->source] == registers[step->target]);
        default:
            if (!run_other(step, registers, slots, count, function))
                return step - self->steps;
            step++;
        }
    }
    return -1;
}

int guard_program_run(Program *self, PyObject *const *arguments, Py_ssize_t count) {
    return self->dead || run_steps(self, arguments, count, NULL) >= 0 ? -1 : 0;
}

static int run_python(Program *self, PyObject *const *slots, Py_ssize_t count, PyFunctionObject *function) {
    PyObject *few[16], **args = count < 16 ? few : PyMem_Malloc((count + 1) * sizeof(PyObject *));
    if (args == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    args[0] = (PyObject *)function;
    for (Py_ssize_t i = 0; i < count; i++)
        args[i + 1] = SLOT_OBJECT(slots[i]);
    PyObject *callable = Py_NewRef(self->python);
    Py_INCREF(self);
    PyObject *result = PyObject_Vectorcall(callable, args, (size_t)count + 1, NULL);
    Py_DECREF(callable);
    if (args != few)
        PyMem_Free(args);
    int truth = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    if (truth == 0)
        self->failed = self->count;
    Py_DECREF(self);
    return truth;
}

int guard_program_check(PyObject *program, PyObject *const *slots, Py_ssize_t count, PyFunctionObject *function) {
    Program *self = (Program *)program;
    guard_program_forget();
    if (self->dead)
        return 0;
    self->checks++;
    self->failed = run_steps(self, slots, count, function);
    if (self->failed >= 0)
        return 0;
    if (self->python != Py_None)
        return run_python(self, slots, count, function);
    if (self->loader != NULL)
        guard_program_keep(self);
    return 1;
}
