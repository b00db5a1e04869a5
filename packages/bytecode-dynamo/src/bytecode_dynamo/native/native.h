/* Shared declarations of the extension module bytecode_dynamo._hook (plain C, CPython 3.11 - 3.14 with the GIL). */
#ifndef BYTECODE_DYNAMO_NATIVE_H
#define BYTECODE_DYNAMO_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <structmember.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "bytecode_dynamo supports CPython 3.11 to 3.14 only"
#endif
#ifdef Py_GIL_DISABLED
#error "bytecode_dynamo does not support free-threaded builds"
#endif

#if PY_VERSION_HEX >= 0x030C0000
#define RequestCodeExtra PyUnstable_Eval_RequestCodeExtraIndex
#define GetCodeExtra PyUnstable_Code_GetExtra
#define SetCodeExtra PyUnstable_Code_SetExtra
#else
#define RequestCodeExtra _PyEval_RequestCodeExtraIndex
#define GetCodeExtra _PyCode_GetExtra
#define SetCodeExtra _PyCode_SetExtra
#endif

/* The object that a variable's slot holds, or NULL.  From 3.14 on, the lowest bit of a slot says that it holds no reference
   of its own (Include/internal/pycore_stackref.h); arrays of plain pointers can be read in the same way. */
#if PY_VERSION_HEX >= 0x030E0000
#define SLOT_OBJECT(slot) ((PyObject *)((uintptr_t)(slot) & ~(uintptr_t)1))
#else
#define SLOT_OBJECT(slot) (slot)
#endif

/* ---- cache.c: regions, entries, and the entries of a code object ---- */

typedef struct {
    PyObject_HEAD
    PyObject *guard;         /* None: always; a GuardProgram; or a callable (function, *arguments) -> bool */
    PyCodeObject *code;      /* NULL once invalidated */
    PyCodeObject *flat;      /* code with every argument positional, made when first needed */
    int returns_continuation;
    uint64_t hits;
    struct Cache *cache;     /* where the entry stands, or NULL */
    PyObject *weakrefs;
} Entry;

typedef struct Cache {
    struct Region *region;           /* owner */
    PyCodeObject *code;              /* borrowed: the code's extra refers back */
    struct Cache *next_of_code;
    struct Cache *next, *previous;   /* other codes of the region */
    Py_ssize_t count, room;
    Entry **entries;
    int skip;                /* 1: run as it is; ASIDE: so, too, and what it calls without a region */
} Cache;

typedef struct Region {
    PyObject_HEAD
    PyObject *callback;      /* called on a miss; None: never compile */
    PyObject *name;
    Cache *caches;
    char run_only;
    uint64_t hits, misses, skips;
    uint64_t changes;        /* how often entries were added or code was skipped */
    PyObject *weakrefs;
} Region;

typedef struct {
    int skip;                /* skipped in every region */
    Cache *first;
} CodeExtra;

extern PyTypeObject *entry_type, *region_type;
extern Py_ssize_t extra_index;
extern uint64_t cache_generation;    /* changes whenever any cache does */

int cache_init(PyObject *module);
CodeExtra *code_extra(PyCodeObject *code, int create);
Cache *cache_find(CodeExtra *extra, Region *region);
Cache *cache_of(PyCodeObject *code, Region *region, int create);
int cache_add(PyCodeObject *code, Region *region, Entry *entry);
void cache_move_to_front(Cache *cache, Py_ssize_t index);
void entry_invalidate(Entry *entry);
PyCodeObject *entry_flat_code(Entry *entry);

static inline Py_ssize_t argument_count(PyCodeObject *code) {
    return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
           !!(code->co_flags & CO_VARKEYWORDS);
}

/* ---- continuation.c ---- */

typedef struct {
    PyObject_VAR_HEAD
    PyObject *function;
    PyObject *arguments[1];
} Continuation;

extern PyTypeObject *continuation_type;
int continuation_init(PyObject *module);
void continuation_release(Continuation *continuation);   /* drop the arguments */

/* ---- hook.c, activated.c ---- */

/* Makes a region (NULL: none) the active one of this thread; takes the reference and returns the one before. */
Region *activate(Region *region);
int activated_init(PyObject *module);

/* ---- guards.c, guard_program.c ---- */

extern PyTypeObject *guard_program_type;
int guards_init(PyObject *module);
/* 1: all hold, 0: one fails, -1: exception.  `slots` are the arguments of a fresh frame. */
int guard_program_check(PyObject *program, PyObject *const *slots, Py_ssize_t count, PyFunctionObject *function);
void guard_program_forget(void);          /* what was kept for a loader in this thread */
void guard_program_set_owner(PyObject *program, Entry *entry);

/* ---- lookup.c: reading objects without running Python code; results are borrowed ---- */

PyObject *instance_dict(PyObject *object);                     /* NULL when it has none */
PyObject *dict_lookup(PyObject *dict, PyObject *key, Py_hash_t hash);
uint64_t dict_version(PyObject *dict);                         /* 0: do not trust it */
PyObject *class_dict_lookup(PyTypeObject *type, Py_ssize_t index, PyObject *name);
int same_constant(PyObject *a, PyObject *b);
int same_keys(PyObject *dict, PyObject *keys);
Py_ssize_t container_length(PyObject *object);                 /* -1: not a built-in container */

/* ---- watch.c: dict_version where CPython keeps none ---- */

int watch_init(void);

/* ---- tensors.c ---- */

typedef struct {
    PyTypeObject *type;
    int requires_grad;
    uint64_t info, keys;          /* dtype and device word, dispatch keys */
    Py_ssize_t ndim;
    int64_t dims[];               /* sizes, then strides; -1: any */
} TensorExpectation;

int tensors_init(PyObject *module);
TensorExpectation *tensor_expectation(PyObject *example, PyObject *sizes, PyObject *strides);
void tensor_fetch(PyObject *tensor);     /* prefetch what tensor_matches reads */
int tensor_matches(const TensorExpectation *expected, PyObject *tensor);
/* what: 0 size, 1 stride, 2 storage offset.  0 on success. */
int tensor_number(PyObject *tensor, PyTypeObject *type, int what, Py_ssize_t dim, int64_t *result);

/* ---- state.c ---- */

#define STATE_WORDS 6

typedef struct {
    uint64_t word[STATE_WORDS];
} StateWords;

int state_init(PyObject *module);
int state_read(StateWords *words);     /* -1: it cannot be read */

/* ---- shapes.c: boolean conditions on sizes, as a small stack program ---- */

typedef struct ShapeProgram ShapeProgram;
ShapeProgram *shape_program(PyObject *code, Py_ssize_t symbols);
int shape_program_run(const ShapeProgram *program, const int64_t *symbols);

#endif
