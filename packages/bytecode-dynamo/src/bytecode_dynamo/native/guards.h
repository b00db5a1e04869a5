/* The operations of a GuardProgram, and the program in memory: made by guard_program.c, run by guards.c. */
#ifndef BYTECODE_DYNAMO_GUARDS_H
#define BYTECODE_DYNAMO_GUARDS_H

#include "native.h"

/* name, arguments (dst: register written, src: register read) */
#define OPS(X)                                                                                                         \
    X(ARGUMENT)       /* dst; slot */                                                                                  \
    X(GLOBALS)        /* dst */                                                                                        \
    X(BUILTINS)       /* dst */                                                                                        \
    X(CLOSURE)        /* dst; index: a free variable's cell */                                                         \
    X(CONSTANT)       /* dst; object */                                                                                \
    X(CELL)           /* dst, src: contents of a cell */                                                               \
    X(INSTANCE_DICT)  /* dst, src; exact class */                                                                      \
    X(MEMBER)         /* dst, src; exact class, offset of an object pointer */                                         \
    X(GETTER)         /* dst, src; exact class, get-set descriptor whose result the object keeps alive */             \
    X(ITEM)           /* dst, src; list or tuple, index */                                                             \
    X(TYPE_OF)        /* dst, src */                                                                                   \
    X(CLASS_DICT)     /* dst, src; index into the MRO, name */                                                         \
    X(CLASS_LOOKUP)   /* dst, src; name: as an attribute of the class, unbound */                                      \
    X(FUNCTION_FIELD) /* dst, src; which: 0 code 1 defaults 2 kwdefaults 3 closure 4 globals 5 name 6 qualname */      \
    X(FIELD_IS)       /* src; object, which: that field of a function */                                               \
    X(METHOD_FIELD)   /* dst, src; 0 function 1 self */                                                                \
    X(DICT)           /* src; tuple of (key, dst or -1, test, expected) */                                             \
    X(CLASS)          /* class, tuple of (name, expected or None: absent, as 1-tuple) */                               \
    X(TYPE_IS)        /* src; class */                                                                                 \
    X(IDENTITY)       /* src; object or weak reference */                                                              \
    X(EQUALS)         /* src; constant */                                                                              \
    X(FINITE)         /* src: a float that is finite */                                                                \
    X(LENGTH)         /* src; int */                                                                                   \
    X(KEYS)           /* src; tuple */                                                                                 \
    X(TENSOR)         /* src; [example], sizes, strides */                                                             \
    X(ELEMENT)        /* src; the constant that a tensor's item() gives, or None: a finite float */                   \
    X(SAME)           /* src, src */                                                                                   \
    X(EMPTY)          /* tuple of registers: dictionaries without keys */                                              \
    X(DISTINCT)       /* src; tuple of registers with other objects */                                                 \
    X(STATE)          /* tuple of (built-in without arguments, result) */                                              \
    X(STATE_WORDS)    /* tuple of (word, mask) */                                                                      \
    X(SHAPES)         /* tuple of (kind, src, class, dim), stack program */

#define FUNCTION_FIELDS 7

#define NAME(op) OP_##op,
enum { OPS(NAME) OP_COUNT };
#undef NAME

enum { TEST_NONE, TEST_IDENTITY, TEST_EQUALS, TEST_ABSENT, TEST_TYPE, TEST_COUNT };

typedef struct {
    PyObject *key, *expected;
    Py_hash_t hash;
    int target, test;
} Key;

typedef struct {
    PyCFunction function;      /* NULL: call `callable` */
    PyObject *self, *callable, *expected;
} Probe;

typedef struct {
    uint64_t value, mask;
} Word;

typedef struct {
    int kind, source;          /* 0 size, 1 stride, 2 storage offset, 3 int, 4 int that is a tensor's item() */
    PyTypeObject *type;
    Py_ssize_t dim;
} Number;

typedef struct {
    int op, target, source, count;
    Py_ssize_t index;
    PyObject *object;
    uint64_t version;
    void *last;               /* the dictionary or class whose `version` is known; a property */
    union {
        Key *keys;
        Probe *probes;
        Word *words;
        Number *numbers;
        int *sources;
        TensorExpectation *tensor;
        void *memory;
    };
    ShapeProgram *shapes;
} Step;

typedef struct {
    PyObject_HEAD
    PyObject *ops;            /* the tuple that owns everything borrowed by the steps */
    PyObject *python;         /* None or (function, *arguments) -> bool */
    PyObject *wanted;         /* the registers that `load` returns, or that are kept for `loader` */
    PyObject *loader;         /* the program that loads what this one has found already, or NULL */
    PyObject *roots;          /* registers of what `loader` is called with */
    PyObject *deaths;         /* weak references with a callback */
    PyObject **registers;
    Step *steps;
    Py_ssize_t count, register_count, failed;
    int dead;
    Entry *owner;             /* borrowed */
    uint64_t checks;
    PyObject *weakrefs;
} Program;

/* Keeps what a loader will ask for next in this thread. */
void guard_program_keep(Program *program);

/* Takes the steps of a program that reads its arguments only; -1 when one fails. */
int guard_program_run(Program *program, PyObject *const *arguments, Py_ssize_t count);

#endif
