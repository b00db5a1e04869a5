/* The PEP 523 frame hook: decides at the start of each frame whether to run its code or a replacement.

   A hit turns the fresh frame into a frame of the replacement, in place, and evaluates it: the function object, globals,
   closure and arguments stay.  When the frame's chunk of stack lacks room, a function with the arguments in slot order is
   called instead.  Frames of generators, class bodies and modules are never touched, nor frames that are resumed.

   A thread has at most one active region.  While guards or the callback of a miss run, the thread has none. */
#include "frames.h"

#define NOINLINE __attribute__((noinline))
#define ASIDE 2                           /* of Cache.skip: without a region meanwhile */
#define EVERY_KIND                                                                                                     \
    (CO_OPTIMIZED | CO_NEWLOCALS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE)

static _Thread_local Region *active_region = NULL;         /* strong */
static _Thread_local Continuation *expected = NULL;        /* borrowed: the next frame of its function belongs to it */
static int active_threads = 0;
static _PyFrameEvalFunction previous_evaluator = NULL;
static PyCodeObject *discard_code = NULL;                  /* returns its argument; has no RESUME, so tracing misses it */
static PyTypeObject *frame_view_type;
static PyObject *null_object, *skip_object, *aside_object, *run_once_object, *look_again_object;
static int in_place = 1;                                   /* tests turn it off */
static unsigned long fallback_count = 0;

/* ---- evaluation ---- */

#if RECURSION_PER_CALL
/* With a hook, every Python call takes units of the small budget for C recursion.  They are lent back, up to a depth
   that the C stack bears, so that sys.getrecursionlimit() is the limit that counts. */
#define LEND_LIMIT 4000
static _Thread_local int lent = 0;

static inline PyObject *evaluate(PyThreadState *thread, Frame *frame) {
    if (lent >= LEND_LIMIT)
        return _PyEval_EvalFrameDefault(thread, frame, 0);
    lent++;
    thread->c_recursion_remaining += RECURSION_PER_CALL;
    PyObject *result = _PyEval_EvalFrameDefault(thread, frame, 0);
    thread->c_recursion_remaining -= RECURSION_PER_CALL;
    lent--;
    return result;
}
#else
/* A tail call: deep recursion must not take more C stack than without the hook. */
static inline PyObject *evaluate(PyThreadState *thread, Frame *frame) { return _PyEval_EvalFrameDefault(thread, frame, 0); }
#endif

/* Turns a fresh frame into one of `code`.  0: there is no room, or it is not the top frame. */
static inline int retarget(PyThreadState *thread, Frame *frame, PyCodeObject *code) {
    PyCodeObject *old = FRAME_CODE(frame);
    PyObject **base = (PyObject **)frame, **top = base + FRAME_SIZE(code);
    if (base + FRAME_SIZE(old) != thread->datastack_top || top >= thread->datastack_limit)
        return 0;
    for (int i = old->co_nlocalsplus; i < code->co_nlocalsplus; i++)
        frame_empty_slot(frame, i);
    for (int i = code->co_nlocalsplus; i < old->co_nlocalsplus; i++)
        frame_clear_slot(frame, i);
    thread->datastack_top = top;
    frame_begin(frame, code);
    return 1;
}

/* Ends a frame that was not evaluated, with `result` or the current exception. */
static NOINLINE PyObject *discard(PyThreadState *thread, Frame *frame, PyObject *result) {
#if CALLEE_CLEARS
    PyCodeObject *old = FRAME_CODE(frame);
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    if (result == NULL)
        PyErr_Fetch(&type, &value, &traceback);
    for (int i = 0; i < old->co_nlocalsplus; i++)
        frame_clear_slot(frame, i);
    /* Every frame has room for one slot and one stack entry. */
    frame_fill_slot(frame, 0, result != NULL ? result : Py_NewRef(Py_None));
    thread->datastack_top = (PyObject **)frame + FRAME_SIZE(discard_code);
    frame_begin(frame, discard_code);
    PyObject *returned = _PyEval_EvalFrameDefault(thread, frame, 0);
    if (result == NULL) {
        Py_XDECREF(returned);
        PyErr_Restore(type, value, traceback);
        return NULL;
    }
    return returned;
#else
    return result;
#endif
}

/* callable(function, *arguments of the frame), the function left out when NULL. */
static PyObject *call_with_arguments(PyObject *callable, PyFunctionObject *function, Frame *frame) {
    Py_ssize_t count = argument_count(FRAME_CODE(frame)), first = function != NULL;
    PyObject *few[16], **args = count + first <= 16 ? few : PyMem_Malloc((count + first) * sizeof(PyObject *));
    if (args == NULL)
        return PyErr_NoMemory();
    args[0] = (PyObject *)function;
    for (Py_ssize_t i = 0; i < count; i++)
        args[i + first] = FRAME_SLOT(frame, i);
    PyObject *result = PyObject_Vectorcall(callable, args, (size_t)(count + first), NULL);
    if (args != few)
        PyMem_Free(args);
    return result;
}

/* Calls the entry as a function, because the frame could not be turned into a frame of its code. */
static NOINLINE PyObject *call_flat(PyThreadState *thread, Frame *frame, Entry *entry) {
    PyFunctionObject *function = FRAME_FUNCTION(frame);
    fallback_count++;
    PyCodeObject *flat = entry_flat_code(entry);
    if (flat == NULL)
        return discard(thread, frame, NULL);
    PyObject *callee = PyFunction_New((PyObject *)flat, function->func_globals), *result = NULL;
    if (callee != NULL && function->func_closure != NULL && flat->co_nfreevars != 0 &&
        PyFunction_SetClosure(callee, function->func_closure) < 0)
        Py_CLEAR(callee);
    if (callee != NULL) {
        result = call_with_arguments(callee, NULL, frame);
        Py_DECREF(callee);
    }
    return discard(thread, frame, result);
}

/* Runs continuations until something else comes back.  Their frames return continuations instead of running them. */
static NOINLINE PyObject *run_continuations(PyObject *result) {
    while (result != NULL && Py_IS_TYPE(result, continuation_type)) {
        Continuation *continuation = (Continuation *)result;
        expected = continuation;
        result = PyObject_Vectorcall(continuation->function, continuation->arguments, (size_t)Py_SIZE(continuation), NULL);
        expected = NULL;
        Py_DECREF(continuation);
    }
    return result;
}

/* Lets a frame that has returned go of its variables: continuations are the only ones that may hold them.  Before 3.12 the
   caller clears the frame, which is too late.  A frame object that somebody else has keeps them, as in eager mode. */
static void clear_finished(Frame *frame) {
#if !CALLEE_CLEARS
    if (frame->frame_obj != NULL && Py_REFCNT(frame->frame_obj) > 1)
        return;
    for (int i = 0; i < frame->stacktop; i++)
        frame_clear_slot(frame, i);
#endif
}

/* Runs an entry that has to be kept alive meanwhile; takes the reference. */
static NOINLINE PyObject *run_held(PyThreadState *thread, Frame *frame, Entry *entry, int bounce) {
    PyObject *result =
        in_place && retarget(thread, frame, entry->code) ? evaluate(thread, frame) : call_flat(thread, frame, entry);
    if (entry->returns_continuation && !bounce && result != NULL && Py_IS_TYPE(result, continuation_type)) {
        clear_finished(frame);
        result = run_continuations(result);
    }
    Py_DECREF(entry);
    return result;
}

/* ---- guards and misses ---- */

/* A guard that is a Python function: (function, *arguments) -> bool. */
static NOINLINE int check_callable(PyObject *guard, Frame *frame) {
    PyObject *result = call_with_arguments(guard, FRAME_FUNCTION(frame), frame);
    int truth = result != NULL ? PyObject_IsTrue(result) : -1;
    Py_XDECREF(result);
    return truth;
}

static int check_entry(Entry *entry, Frame *frame, PyCodeObject *code) {
    PyObject *guard = entry->guard;
    if (guard == Py_None)
        return 1;
    if (Py_IS_TYPE(guard, guard_program_type))
        return guard_program_check(guard, FRAME_SLOTS(frame), argument_count(code), FRAME_FUNCTION(frame));
    Py_INCREF(guard);
    int result = check_callable(guard, frame);
    Py_DECREF(guard);
    return result;
}

static int lookups;      /* under way in all threads: guards may run Python code, which lets others run */

/* The entry that applies, as a new reference; NULL with or without an exception.  Entries keep their order while another
   lookup goes through them; where some were added or removed meanwhile, all are looked at again. */
static Entry *find_entry(Cache *cache, Region *region, Frame *frame, PyCodeObject *code) {
    Entry *found = NULL;
    int holds = 0;
    lookups++;
    for (Py_ssize_t i = 0; holds >= 0 && found == NULL && cache != NULL && i < cache->count;) {
        Entry *entry = (Entry *)Py_NewRef((PyObject *)cache->entries[i]);
        uint64_t generation = cache_generation;
        holds = check_entry(entry, frame, code);
        int is_same = generation == cache_generation;
        if (holds == 1 && entry->code != NULL)
            found = entry;
        else
            Py_DECREF(entry);
        if (found != NULL && i > 0 && is_same && lookups == 1)
            cache_move_to_front(cache, i);
        i = is_same ? i + 1 : 0;
        cache = is_same ? cache : cache_of(code, region, 0);
    }
    lookups--;
    return found;
}

static PyObject *view_frame(Frame *frame, PyCodeObject *code, uint64_t changes) {
    PyObject *view = PyStructSequence_New(frame_view_type);
    if (view == NULL)
        return NULL;
    PyFunctionObject *function = FRAME_FUNCTION(frame);
    Py_ssize_t given = argument_count(code), count = code->co_nlocals;
    PyObject *locals = PyTuple_New(count);
    PyObject *closure = function->func_closure != NULL ? Py_NewRef(function->func_closure) : PyTuple_New(0);
    for (Py_ssize_t i = 0; locals != NULL && i < count; i++) {
        PyObject *value = i < given ? FRAME_SLOT(frame, i) : NULL;
        PyTuple_SET_ITEM(locals, i, Py_NewRef(value != NULL ? value : null_object));
    }
    PyStructSequence_SetItem(view, 0, Py_NewRef((PyObject *)code));
    PyStructSequence_SetItem(view, 1, Py_NewRef((PyObject *)function));
    PyStructSequence_SetItem(view, 2, Py_NewRef(frame->f_globals));
    PyStructSequence_SetItem(view, 3, Py_NewRef(frame->f_builtins));
    PyStructSequence_SetItem(view, 4, closure);
    PyStructSequence_SetItem(view, 5, locals);
    PyObject *number = PyLong_FromUnsignedLongLong(changes);
    PyStructSequence_SetItem(view, 6, number);
    if (locals == NULL || closure == NULL || number == NULL)
        Py_CLEAR(view);
    return view;
}

/* Asks the region's callback.  The entry to run as a new reference; NULL: run the original, look again, or an exception.
   `changes` is the count of the region's changes before its entries were looked at. */
static NOINLINE Entry *ask(Region *region, Frame *frame, PyCodeObject *code, uint64_t changes, int *again) {
    PyObject *callback = Py_NewRef(region->callback);
    PyObject *view = view_frame(frame, code, changes);
    PyObject *answer = view != NULL ? PyObject_CallOneArg(callback, view) : NULL;
    Py_XDECREF(view);
    Py_DECREF(callback);
    if (answer == NULL)
        return NULL;
    *again = answer == look_again_object;
    if (answer == run_once_object || *again) {
        Py_DECREF(answer);
        return NULL;
    }
    if (answer == skip_object || answer == aside_object) {
        Cache *cache = cache_of(code, region, 1);
        if (cache != NULL)
            cache->skip = answer == skip_object ? 1 : ASIDE;
        region->changes++;
        Py_DECREF(answer);
        return NULL;
    }
    if (!Py_IS_TYPE(answer, entry_type)) {
        PyErr_Format(PyExc_TypeError, "the callback must return an Entry, SKIP, STEP_ASIDE, RUN_ONCE or LOOK_AGAIN, not %.100s", Py_TYPE(answer)->tp_name);
        Py_DECREF(answer);
        return NULL;
    }
    Entry *entry = (Entry *)answer;
    int is_stored = entry->cache != NULL && entry->cache == cache_of(code, region, 0);
    *again = entry->code == NULL;             /* something that it depends on has died since */
    if (*again || (!is_stored && cache_add(code, region, entry) < 0))
        Py_CLEAR(entry);
    return entry;
}

static NOINLINE Entry *find_or_ask(Region *region, Cache *cache, Frame *frame, PyCodeObject *code) {
    Py_INCREF(region);
    Continuation *outer = expected;
    expected = NULL;
    active_region = NULL;
    Entry *entry = NULL;
    for (int again = 1; again;) {
        uint64_t changes = region->changes;
        entry = cache != NULL && !cache->skip ? find_entry(cache, region, frame, code) : NULL;
        again = 0;
        if (entry != NULL)
            region->hits++;
        else if (!PyErr_Occurred() && (cache == NULL || !cache->skip) && !region->run_only && region->callback != Py_None) {
            entry = ask(region, frame, code, changes, &again);
            region->misses += !again;
        }
        if (again)
            cache = cache_of(code, region, 0);
    }
    active_region = region;
    expected = outer;
    Py_DECREF(region);
    return entry;
}

/* Runs a frame, and all that it calls, without a region. */
static NOINLINE PyObject *run_aside(PyThreadState *thread, Frame *frame, Region *region) {
    Py_INCREF(region);
    active_region = NULL;
    PyObject *result = evaluate(thread, frame);
    active_region = region;
    Py_DECREF(region);
    return result;
}

/* The slow part stands apart: its locals must not be on the C stack while the frame runs. */
static NOINLINE PyObject *hook_region(PyThreadState *thread, Frame *frame, PyCodeObject *code, int bounce) {
    Region *region = active_region;
    CodeExtra *extra = code_extra(code, 0);
    if (extra != NULL && extra->skip)
        return evaluate(thread, frame);
    Cache *cache = cache_find(extra, region);
    if (cache != NULL && cache->skip)
        return cache->skip == ASIDE ? run_aside(thread, frame, region) : evaluate(thread, frame);
    Entry *entry = find_or_ask(region, cache, frame, code);
    if (entry == NULL && PyErr_Occurred())
        return discard(thread, frame, NULL);
    if (entry == NULL) {
        cache = cache_find(code_extra(code, 0), region);
        return cache != NULL && cache->skip == ASIDE ? run_aside(thread, frame, region) : evaluate(thread, frame);
    }
    entry->hits++;
    if (!entry->returns_continuation && in_place && retarget(thread, frame, entry->code)) {
        Py_DECREF(entry);
        return evaluate(thread, frame);
    }
    return run_held(thread, frame, entry, bounce);
}

static PyObject *hook(PyThreadState *thread, Frame *frame, int throwflag) {
    if (throwflag)
        return _PyEval_EvalFrameDefault(thread, frame, throwflag);
    int bounce = 0;
    if (expected != NULL && (PyObject *)FRAME_FUNCTION(frame) == expected->function) {
        bounce = 1;
        continuation_release(expected);       /* the frame has references of its own */
        expected = NULL;
    }
    if (active_region == NULL)
        return evaluate(thread, frame);
    PyCodeObject *code = FRAME_CODE(frame);
    if ((code->co_flags & EVERY_KIND) != (CO_OPTIMIZED | CO_NEWLOCALS) || frame->owner != FRAME_OWNED_BY_THREAD)
        return evaluate(thread, frame);
    return hook_region(thread, frame, code, bounce);
}

/* ---- activation ---- */

/* Makes a region (NULL: none) the active one of this thread; takes the reference and returns the one before. */
Region *activate(Region *region) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    Region *before = active_region;
    if (region != NULL && before == NULL && active_threads++ == 0) {
        _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
        if (current != hook) {
            previous_evaluator = current;
            _PyInterpreterState_SetEvalFrameFunc(interpreter, hook);
        }
    } else if (region == NULL && before != NULL && --active_threads == 0) {
        /* Somebody else's hook, put on top of ours, is left alone: it will put ours back, which then does nothing. */
        if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == hook)
            _PyInterpreterState_SetEvalFrameFunc(interpreter, previous_evaluator);
    }
    active_region = region;
    guard_program_forget();
    return before;
}

/* ---- module ---- */

static PyObject *set_region(PyObject *module, PyObject *region) {
    if (region != Py_None && !Py_IS_TYPE(region, region_type))
        return PyErr_Format(PyExc_TypeError, "a Region or None is expected");
    Region *before = activate(region == Py_None ? NULL : (Region *)Py_NewRef(region));
    if (before == NULL)
        Py_RETURN_NONE;
    return (PyObject *)before;
}

static PyObject *get_region(PyObject *module, PyObject *ignored) {
    return Py_NewRef(active_region != NULL ? (PyObject *)active_region : Py_None);
}

static PyObject *skip_code(PyObject *module, PyObject *args) {
    PyObject *code;
    int skip = 1;
    if (!PyArg_ParseTuple(args, "O!|p", &PyCode_Type, &code, &skip))
        return NULL;
    CodeExtra *extra = code_extra((PyCodeObject *)code, 1);
    if (extra == NULL)
        return NULL;
    extra->skip = skip;
    Py_RETURN_NONE;
}

static PyObject *set_in_place(PyObject *module, PyObject *value) {
    int truth = PyObject_IsTrue(value);
    if (truth < 0)
        return NULL;
    in_place = truth;
    Py_RETURN_NONE;
}

/* In a forked child the thread that forked is the only one. */
static PyObject *forget_threads(PyObject *module, PyObject *ignored) {
    active_threads = active_region != NULL;
    if (active_threads == 0 && _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == hook)
        _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), previous_evaluator);
    Py_RETURN_NONE;
}

static PyObject *status(PyObject *module, PyObject *ignored) {
    int installed = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == hook;
    return Py_BuildValue("{s:i,s:O,s:k}", "threads", active_threads, "installed", installed ? Py_True : Py_False,
                         "fallback_calls", fallback_count);
}

static PyMethodDef methods[] = {
    {"set_region", set_region, METH_O, "Make a region (or None) this thread's active one; returns the one before."},
    {"get_region", get_region, METH_NOARGS, "This thread's active region, or None."},
    {"skip_code", skip_code, METH_VARARGS, "skip_code(code, skip=True): never intercept this code object, in any region."},
    {"set_in_place", set_in_place, METH_O, "False: run replacements as functions of their own (for tests)."},
    {"forget_threads", forget_threads, METH_NOARGS, "In a forked child: the other threads are gone."},
    {"status", status, METH_NOARGS, "Whether the hook is installed, how many threads have a region, calls of the fallback."},
    {NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_hook",
                                        "The frame hook, its caches and guard programs. See hook.py, cache.py and guards.py.", -1,
                                        methods};

static PyStructSequence_Field view_fields[] = {
    {"code", "the code object"},
    {"function", "the function object"},
    {"globals", "its globals"},
    {"builtins", "its built-ins"},
    {"closure", "the cells of its free variables, in the order of co_freevars"},
    {"locals", "the values of co_varnames; NULL where there is none yet"},
    {"changes", "the region's count of changes when its entries were looked at"},
    {NULL}};
static PyStructSequence_Desc view_description = {"bytecode_dynamo._hook.FrameView", "A frame about to start.", view_fields, 7};

static PyObject *sentinel(PyObject *module, const char *name) {
    PyObject *value = PyObject_CallFunction((PyObject *)&PyBaseObject_Type, NULL);
    if (value != NULL && PyModule_AddObjectRef(module, name, value) < 0)
        Py_CLEAR(value);
    return value;
}

static int make_discard_code(void) {
    PyObject *space = PyDict_New();
    if (space == NULL || PyDict_SetItemString(space, "__builtins__", PyEval_GetBuiltins()) < 0)
        return -1;
    PyObject *ran = PyRun_String("import opcode\n"
                                 "def discard(result): return result\n"
                                 "code = discard.__code__.replace(co_exceptiontable=b'', co_linetable=b'', co_code=bytes(\n"
                                 "    [opcode.opmap['LOAD_FAST'], 0, opcode.opmap['RETURN_VALUE'], 0]))\n",
                                 Py_file_input, space, space);
    Py_XDECREF(ran);
    if (ran != NULL)
        discard_code = (PyCodeObject *)Py_XNewRef(PyDict_GetItemString(space, "code"));
    Py_DECREF(space);
    return discard_code == NULL ? -1 : 0;
}

PyMODINIT_FUNC PyInit__hook(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    frame_view_type = PyStructSequence_NewType(&view_description);
    if (frame_view_type == NULL || activated_init(module) < 0 || continuation_init(module) < 0 || guards_init(module) < 0 ||
        cache_init(module) < 0 || watch_init() < 0 || make_discard_code() < 0 ||
        PyModule_AddObjectRef(module, "FrameView", (PyObject *)frame_view_type) < 0 ||
        (null_object = sentinel(module, "NULL")) == NULL || (skip_object = sentinel(module, "SKIP")) == NULL ||
        (aside_object = sentinel(module, "STEP_ASIDE")) == NULL || (run_once_object = sentinel(module, "RUN_ONCE")) == NULL ||
        (look_again_object = sentinel(module, "LOOK_AGAIN")) == NULL) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
