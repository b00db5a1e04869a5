/* Regions, entries, and which entries a code object has in which region.

   A region owns its caches, which own the entries; a code object's extra only refers to them.  So everything that an entry
   keeps alive is visible to the garbage collector through the region, and dies with the region or with the code object. */
#include "native.h"

PyTypeObject *entry_type, *region_type;
Py_ssize_t extra_index = -1;
uint64_t cache_generation = 0;

static void cache_unlink_region(Cache *cache) {
    if (cache->previous != NULL)
        cache->previous->next = cache->next;
    else
        cache->region->caches = cache->next;
    if (cache->next != NULL)
        cache->next->previous = cache->previous;
}

static void cache_unlink_code(Cache *cache) {
    CodeExtra *extra = code_extra(cache->code, 0);
    if (extra == NULL)
        return;
    for (Cache **at = &extra->first; *at != NULL; at = &(*at)->next_of_code)
        if (*at == cache) {
            *at = cache->next_of_code;
            return;
        }
}

/* Takes the entries out first: dropping them can run any code. */
static void cache_clear_entries(Cache *cache) {
    Entry **entries = cache->entries;
    Py_ssize_t count = cache->count;
    cache->entries = NULL;
    cache->count = cache->room = 0;
    cache_generation++;
    for (Py_ssize_t i = 0; i < count; i++) {
        entries[i]->cache = NULL;
        Py_DECREF(entries[i]);
    }
    PyMem_Free(entries);
}

static void cache_free(Cache *cache) {
    cache_clear_entries(cache);
    PyMem_Free(cache);
}

/* The code object dies. */
static void extra_free(void *pointer) {
    CodeExtra *extra = pointer;
    if (extra == NULL)
        return;
    while (extra->first != NULL) {
        Cache *cache = extra->first;
        extra->first = cache->next_of_code;
        cache_unlink_region(cache);
        cache_free(cache);
    }
    PyMem_Free(extra);
}

CodeExtra *code_extra(PyCodeObject *code, int create) {
    void *pointer = NULL;
    if (GetCodeExtra((PyObject *)code, extra_index, &pointer) < 0)
        return NULL;
    if (pointer == NULL && create) {
        pointer = PyMem_Calloc(1, sizeof(CodeExtra));
        if (pointer == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        if (SetCodeExtra((PyObject *)code, extra_index, pointer) < 0) {
            PyMem_Free(pointer);
            return NULL;
        }
    }
    return pointer;
}

Cache *cache_find(CodeExtra *extra, Region *region) {
    Cache *cache = extra == NULL ? NULL : extra->first;
    while (cache != NULL && cache->region != region)
        cache = cache->next_of_code;
    return cache;
}

Cache *cache_of(PyCodeObject *code, Region *region, int create) {
    CodeExtra *extra = code_extra(code, create);
    Cache *cache = cache_find(extra, region);
    if (cache != NULL || !create || extra == NULL)
        return cache;
    cache = PyMem_Calloc(1, sizeof(Cache));
    if (cache == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    cache->region = region;
    cache->code = code;
    cache->next_of_code = extra->first;
    extra->first = cache;
    cache->next = region->caches;
    if (region->caches != NULL)
        region->caches->previous = cache;
    region->caches = cache;
    cache_generation++;
    return cache;
}

#define SIGNATURE_FLAGS \
    (CO_VARARGS | CO_VARKEYWORDS | CO_OPTIMIZED | CO_NEWLOCALS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)

/* Adds the entry at the front. */
int cache_add(PyCodeObject *code, Region *region, Entry *entry) {
    PyCodeObject *new = entry->code;
    if (new == NULL || entry->cache != NULL) {
        PyErr_SetString(PyExc_ValueError, "the entry is invalid or belongs to a code object already");
        return -1;
    }
    if (new->co_argcount != code->co_argcount || new->co_kwonlyargcount != code->co_kwonlyargcount ||
        ((new->co_flags ^ code->co_flags) & SIGNATURE_FLAGS) || new->co_nfreevars != code->co_nfreevars) {
        PyErr_SetString(PyExc_ValueError, "replacement code must have the signature, flags and free variables of the original");
        return -1;
    }
    Cache *cache = cache_of(code, region, 1);
    if (cache == NULL)
        return -1;
    if (cache->count == cache->room) {
        Py_ssize_t room = cache->room ? 2 * cache->room : 2;
        Entry **entries = PyMem_Realloc(cache->entries, room * sizeof(Entry *));
        if (entries == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        cache->entries = entries;
        cache->room = room;
    }
    memmove(cache->entries + 1, cache->entries, cache->count * sizeof(Entry *));
    cache->entries[0] = (Entry *)Py_NewRef((PyObject *)entry);
    cache->count++;
    entry->cache = cache;
    cache_generation++;
    region->changes++;
    return 0;
}

void cache_move_to_front(Cache *cache, Py_ssize_t index) {
    Entry *entry = cache->entries[index];
    memmove(cache->entries + 1, cache->entries, index * sizeof(Entry *));
    cache->entries[0] = entry;
}

/* Takes the entry out of its cache and lets go of what it holds. */
void entry_invalidate(Entry *entry) {
    Cache *cache = entry->cache;
    Py_INCREF(entry);
    if (cache != NULL) {
        for (Py_ssize_t i = 0; i < cache->count; i++)
            if (cache->entries[i] == entry) {
                cache->count--;
                memmove(cache->entries + i, cache->entries + i + 1, (cache->count - i) * sizeof(Entry *));
                break;
            }
        entry->cache = NULL;
        cache_generation++;
        Py_DECREF(entry);
    }
    Py_SETREF(entry->guard, Py_NewRef(Py_None));
    Py_CLEAR(entry->code);
    Py_CLEAR(entry->flat);
    Py_DECREF(entry);
}

/* Code of the entry that takes every argument positionally, in slot order; never intercepted itself. Borrowed. */
PyCodeObject *entry_flat_code(Entry *entry) {
    if (entry->flat != NULL)
        return entry->flat;
    PyCodeObject *code = entry->code;
    PyObject *replace = PyObject_GetAttrString((PyObject *)code, "replace");
    PyObject *empty = PyTuple_New(0);
    PyObject *changes =
        Py_BuildValue("{s:n,s:i,s:i,s:i}", "co_argcount", argument_count(code), "co_kwonlyargcount", 0,
                      "co_posonlyargcount", 0, "co_flags", code->co_flags & ~(CO_VARARGS | CO_VARKEYWORDS));
    PyObject *flat = replace && empty && changes ? PyObject_Call(replace, empty, changes) : NULL;
    Py_XDECREF(replace);
    Py_XDECREF(empty);
    Py_XDECREF(changes);
    if (flat == NULL)
        return NULL;
    CodeExtra *extra = code_extra((PyCodeObject *)flat, 1);
    if (extra == NULL) {
        Py_DECREF(flat);
        return NULL;
    }
    extra->skip = 1;
    entry->flat = (PyCodeObject *)flat;
    return entry->flat;
}

/* ---- Entry ---- */

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"guard", "code", "returns_continuation", NULL};
    PyObject *guard, *code;
    int returns_continuation = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!|p", names, &guard, &PyCode_Type, &code, &returns_continuation))
        return NULL;
    if (guard != Py_None && !PyObject_TypeCheck(guard, guard_program_type) && !PyCallable_Check(guard))
        return PyErr_Format(PyExc_TypeError, "guard must be None, a GuardProgram or a callable");
    Entry *self = (Entry *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->guard = Py_NewRef(guard);
    self->code = (PyCodeObject *)Py_NewRef(code);
    self->returns_continuation = returns_continuation;
    if (PyObject_TypeCheck(guard, guard_program_type))
        guard_program_set_owner(guard, self);
    return (PyObject *)self;
}

static int entry_traverse(Entry *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->guard);
    Py_VISIT(self->code);
    Py_VISIT(self->flat);
    return 0;
}

static int entry_clear(Entry *self) {
    Py_CLEAR(self->guard);
    Py_CLEAR(self->code);
    Py_CLEAR(self->flat);
    return 0;
}

static void entry_dealloc(Entry *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    if (self->guard != NULL && PyObject_TypeCheck(self->guard, guard_program_type))
        guard_program_set_owner(self->guard, NULL);
    entry_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *entry_invalidate_method(Entry *self, PyObject *ignored) {
    entry_invalidate(self);
    Py_RETURN_NONE;
}

static PyObject *entry_is_valid(Entry *self, void *closure) { return PyBool_FromLong(self->code != NULL); }

static PyMethodDef entry_methods[] = {
    {"invalidate", (PyCFunction)entry_invalidate_method, METH_NOARGS, "Take the entry out of its cache, for good."}, {NULL}};
static PyGetSetDef entry_getset[] = {{"valid", (getter)entry_is_valid, NULL, "False once invalidated", NULL}, {NULL}};
static PyMemberDef entry_members[] = {
    {"guard", T_OBJECT, offsetof(Entry, guard), READONLY, "when the entry applies"},
    {"code", T_OBJECT, offsetof(Entry, code), READONLY, "what runs then; None once invalidated"},
    {"returns_continuation", T_INT, offsetof(Entry, returns_continuation), READONLY, "whether the result may be a Continuation"},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, "how often it was used"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Entry, weakrefs), READONLY},
    {NULL}};
static PyType_Slot entry_slots[] = {
    {Py_tp_doc, "Entry(guard, code, returns_continuation=False): replacement code and the guard under which it applies."},
    {Py_tp_new, entry_new},
    {Py_tp_dealloc, entry_dealloc},
    {Py_tp_traverse, entry_traverse},
    {Py_tp_clear, entry_clear},
    {Py_tp_methods, entry_methods},
    {Py_tp_getset, entry_getset},
    {Py_tp_members, entry_members},
    {0, NULL}};
static PyType_Spec entry_spec = {"bytecode_dynamo._hook.Entry", sizeof(Entry), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                 entry_slots};

/* ---- Region ---- */

static PyObject *region_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"callback", "name", NULL};
    PyObject *callback, *name = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O", names, &callback, &name))
        return NULL;
    Region *self = (Region *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->callback = Py_NewRef(callback);
    self->name = Py_NewRef(name);
    return (PyObject *)self;
}

static void region_drop_caches(Region *self) {
    while (self->caches != NULL) {
        Cache *cache = self->caches;
        cache_unlink_region(cache);
        cache_unlink_code(cache);
        cache_free(cache);
    }
}

static int region_traverse(Region *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->callback);
    Py_VISIT(self->name);
    for (Cache *cache = self->caches; cache != NULL; cache = cache->next)
        for (Py_ssize_t i = 0; i < cache->count; i++)
            Py_VISIT(cache->entries[i]);
    return 0;
}

static int region_clear(Region *self) {
    region_drop_caches(self);
    Py_CLEAR(self->callback);
    Py_CLEAR(self->name);
    return 0;
}

static void region_dealloc(Region *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    region_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *region_entries(Region *self, PyObject *code) {
    if (!PyCode_Check(code))
        return PyErr_Format(PyExc_TypeError, "a code object is expected");
    Cache *cache = cache_of((PyCodeObject *)code, self, 0);
    Py_ssize_t count = cache == NULL ? 0 : cache->count;
    PyObject *result = PyTuple_New(count);
    for (Py_ssize_t i = 0; result != NULL && i < count; i++)
        PyTuple_SET_ITEM(result, i, Py_NewRef((PyObject *)cache->entries[i]));
    return result;
}

static PyObject *region_codes(Region *self, PyObject *ignored) {
    PyObject *result = PyList_New(0);
    for (Cache *cache = self->caches; result != NULL && cache != NULL; cache = cache->next)
        if (PyList_Append(result, (PyObject *)cache->code) < 0)
            Py_CLEAR(result);
    return result;
}

static PyObject *region_add(Region *self, PyObject *args) {
    PyObject *code, *entry;
    if (!PyArg_ParseTuple(args, "O!O!", &PyCode_Type, &code, entry_type, &entry))
        return NULL;
    return cache_add((PyCodeObject *)code, self, (Entry *)entry) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *region_skip(Region *self, PyObject *args) {
    PyObject *code;
    int skip = 1;
    if (!PyArg_ParseTuple(args, "O!|p", &PyCode_Type, &code, &skip))
        return NULL;
    Cache *cache = cache_of((PyCodeObject *)code, self, 1);
    if (cache == NULL)
        return NULL;
    cache->skip = skip;
    self->changes++;
    Py_RETURN_NONE;
}

static PyObject *region_is_skipped(Region *self, PyObject *code) {
    if (!PyCode_Check(code))
        return PyErr_Format(PyExc_TypeError, "a code object is expected");
    Cache *cache = cache_of((PyCodeObject *)code, self, 0);
    return PyBool_FromLong(cache != NULL && cache->skip);
}

static PyObject *region_reset(Region *self, PyObject *args) {
    PyObject *code = Py_None;
    if (!PyArg_ParseTuple(args, "|O", &code))
        return NULL;
    if (code == Py_None) {
        region_drop_caches(self);
    } else if (PyCode_Check(code)) {
        Cache *cache = cache_of((PyCodeObject *)code, self, 0);
        if (cache != NULL) {
            cache_unlink_region(cache);
            cache_unlink_code(cache);
            cache_free(cache);
        }
    } else
        return PyErr_Format(PyExc_TypeError, "a code object is expected");
    Py_RETURN_NONE;
}

static PyMethodDef region_methods[] = {
    {"entries", (PyCFunction)region_entries, METH_O, "The entries of a code object, most recently used first."},
    {"codes", (PyCFunction)region_codes, METH_NOARGS, "The code objects that have a cache here."},
    {"add", (PyCFunction)region_add, METH_VARARGS, "add(code, entry): put an entry before the others of a code object."},
    {"skip", (PyCFunction)region_skip, METH_VARARGS, "skip(code, skip=True): run this code as it is, without asking."},
    {"is_skipped", (PyCFunction)region_is_skipped, METH_O, "Whether a code object is skipped in this region."},
    {"reset", (PyCFunction)region_reset, METH_VARARGS, "reset(code=None): forget the entries of one code object, or of all."},
    {NULL}};
static PyMemberDef region_members[] = {
    {"callback", T_OBJECT, offsetof(Region, callback), 0, "called with a FrameView when no entry applies; None: never compile"},
    {"name", T_OBJECT, offsetof(Region, name), 0, "for messages"},
    {"run_only", T_BOOL, offsetof(Region, run_only), 0, "use entries, never call the callback"},
    {"hits", T_ULONGLONG, offsetof(Region, hits), READONLY, "frames run by an entry"},
    {"changes", T_ULONGLONG, offsetof(Region, changes), READONLY, "how often entries were added or code was skipped"},
    {"misses", T_ULONGLONG, offsetof(Region, misses), READONLY, "calls of the callback"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Region, weakrefs), READONLY},
    {NULL}};
static PyType_Slot region_slots[] = {
    {Py_tp_doc, "Region(callback, name=None): one compilation policy with its own cache."},
    {Py_tp_new, region_new},
    {Py_tp_dealloc, region_dealloc},
    {Py_tp_traverse, region_traverse},
    {Py_tp_clear, region_clear},
    {Py_tp_methods, region_methods},
    {Py_tp_members, region_members},
    {0, NULL}};
static PyType_Spec region_spec = {"bytecode_dynamo._hook.Region", sizeof(Region), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                  region_slots};

int cache_init(PyObject *module) {
    extra_index = RequestCodeExtra(extra_free);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_RuntimeError, "no slot for data on code objects is left");
        return -1;
    }
    entry_type = (PyTypeObject *)PyType_FromSpec(&entry_spec);
    region_type = (PyTypeObject *)PyType_FromSpec(&region_spec);
    if (entry_type == NULL || region_type == NULL)
        return -1;
    if (PyModule_AddObjectRef(module, "Entry", (PyObject *)entry_type) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Region", (PyObject *)region_type);
}
