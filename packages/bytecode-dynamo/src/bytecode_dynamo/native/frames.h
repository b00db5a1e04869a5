/* Interpreter frames: what the versions of CPython name differently (Include/internal/pycore_frame.h, from 3.14 on
   pycore_interpframe.h).  Slots, a frame's variables and the stack above them, hold references of their own here. */
#ifndef BYTECODE_DYNAMO_FRAMES_H
#define BYTECODE_DYNAMO_FRAMES_H

#include "native.h"
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#endif
#undef Py_BUILD_CORE

typedef _PyInterpreterFrame Frame;

#if PY_VERSION_HEX >= 0x030C0000
/* The evaluator clears the frame that it is given, and has to be given every frame. */
#define CALLEE_CLEARS 1
#define FRAME_SIZE(code) ((Py_ssize_t)(code)->co_framesize)
#else
#define CALLEE_CLEARS 0
#define FRAME_SIZE(code) ((Py_ssize_t)((code)->co_nlocalsplus + (code)->co_stacksize + FRAME_SPECIALS_SIZE))
#endif

/* Units of the budget for C recursion that a Python call takes while there is a hook.  (3.14 looks at the C stack itself.) */
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000
#define RECURSION_PER_CALL 2
#else
#define RECURSION_PER_CALL 0
#endif

#define FRAME_SLOTS(frame) ((PyObject **)(frame)->localsplus)
#define FRAME_SLOT(frame, i) SLOT_OBJECT(FRAME_SLOTS(frame)[i])

#if PY_VERSION_HEX >= 0x030E0000

#define FRAME_CODE(frame) ((PyCodeObject *)PyStackRef_AsPyObjectBorrow((frame)->f_executable))
#define FRAME_FUNCTION(frame) ((PyFunctionObject *)PyStackRef_AsPyObjectBorrow((frame)->f_funcobj))

static inline void frame_empty_slot(Frame *frame, int i) { frame->localsplus[i] = PyStackRef_NULL; }
static inline void frame_clear_slot(Frame *frame, int i) { PyStackRef_CLEAR(frame->localsplus[i]); }
static inline void frame_fill_slot(Frame *frame, int i, PyObject *object) {
    frame->localsplus[i] = PyStackRef_FromPyObjectSteal(object);
}

/* Makes the frame one that is about to begin `code`, with an empty stack. */
static inline void frame_begin(Frame *frame, PyCodeObject *code) {
    _PyStackRef old = frame->f_executable;
    frame->f_executable = PyStackRef_FromPyObjectNew(code);
    frame->instr_ptr = _PyCode_CODE(code);
    frame->stackpointer = frame->localsplus + code->co_nlocalsplus;
    PyStackRef_CLOSE(old);
}

#else

#if PY_VERSION_HEX >= 0x030D0000
#define FRAME_CODE_FIELD(frame) ((frame)->f_executable)
#define FRAME_FUNCTION(frame) ((PyFunctionObject *)(frame)->f_funcobj)
#define FRAME_REWIND(frame, code) ((frame)->instr_ptr = _PyCode_CODE(code))
#elif PY_VERSION_HEX >= 0x030C0000
#define FRAME_CODE_FIELD(frame) ((frame)->f_code)
#define FRAME_FUNCTION(frame) ((PyFunctionObject *)(frame)->f_funcobj)
#define FRAME_REWIND(frame, code) ((frame)->prev_instr = _PyCode_CODE(code) - 1)
#else
#define FRAME_CODE_FIELD(frame) ((frame)->f_code)
#define FRAME_FUNCTION(frame) ((frame)->f_func)
#define FRAME_REWIND(frame, code) ((frame)->prev_instr = _PyCode_CODE(code) - 1)
#endif
#define FRAME_CODE(frame) ((PyCodeObject *)FRAME_CODE_FIELD(frame))

static inline void frame_empty_slot(Frame *frame, int i) { frame->localsplus[i] = NULL; }
static inline void frame_clear_slot(Frame *frame, int i) { Py_CLEAR(frame->localsplus[i]); }
static inline void frame_fill_slot(Frame *frame, int i, PyObject *object) { frame->localsplus[i] = object; }

/* Makes the frame one that is about to begin `code`, with an empty stack. */
static inline void frame_begin(Frame *frame, PyCodeObject *code) {
    PyCodeObject *old = FRAME_CODE(frame);
    FRAME_CODE_FIELD(frame) = (void *)Py_NewRef((PyObject *)code);
    FRAME_REWIND(frame, code);
    frame->stacktop = code->co_nlocalsplus;
    Py_DECREF(old);
}

#endif
#endif
