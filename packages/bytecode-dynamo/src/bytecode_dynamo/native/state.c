/* The thread's torch state in a few words: autograd flags, dispatch keys switched on and off (autocast, modes, functorch),
   torch functions, default dtype.  Read through functions that torch's libraries export; global_state.py tests that
   each word follows its setting, else nothing here is used. */
#include "native.h"
#include <dlfcn.h>

#define KEYS_SYMBOL "_ZN3c104impl26raw_local_dispatch_key_setE"

static struct {
    int known;
    void *core;                       /* handle of libc10 */
    Py_ssize_t flags;
    const uint8_t *(*autograd)(void);
    int8_t (*default_dtype)(void);
    int64_t (*stack_length)(void);
    int8_t (*disabled)(void);
} readers;

static _Thread_local const uint64_t *dispatch_keys = NULL;    /* included, excluded */

/* set_state_readers(libc10, libtorch_cpu, offset of the autograd flags in their record) -> whether all functions were found */
static PyObject *set_state_readers(PyObject *module, PyObject *args) {
    const char *core_path, *cpu_path;
    readers.known = 0;
    if (PyTuple_GET_SIZE(args) == 0)
        Py_RETURN_FALSE;
    if (!PyArg_ParseTuple(args, "ssn", &core_path, &cpu_path, &readers.flags))
        return NULL;
    void *core = dlopen(core_path, RTLD_LAZY | RTLD_NOLOAD), *cpu = dlopen(cpu_path, RTLD_LAZY | RTLD_NOLOAD);
    if (core == NULL || cpu == NULL)
        Py_RETURN_FALSE;
    readers.core = core;
    *(void **)&readers.autograd = dlsym(core, "_ZN3c1013AutogradState13get_tls_stateEv");
    *(void **)&readers.default_dtype = dlsym(core, "_ZN3c1031get_default_dtype_as_scalartypeEv");
    *(void **)&readers.stack_length = dlsym(cpu, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv");
    *(void **)&readers.disabled = dlsym(cpu, "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv");
    dispatch_keys = dlsym(core, KEYS_SYMBOL);
    readers.known = readers.autograd && readers.default_dtype && dispatch_keys && readers.stack_length && readers.disabled;
    return PyBool_FromLong(readers.known);
}

int state_read(StateWords *words) {
    if (!readers.known)
        return -1;
    if (dispatch_keys == NULL) {      /* its address is another one in each thread */
        dispatch_keys = dlsym(readers.core, KEYS_SYMBOL);
        if (dispatch_keys == NULL)
            return -1;
    }
    words->word[0] = readers.autograd()[readers.flags];
    words->word[1] = dispatch_keys[0];
    words->word[2] = dispatch_keys[1];
    words->word[3] = (uint64_t)readers.stack_length();
    words->word[4] = (uint8_t)readers.disabled();
    words->word[5] = (uint8_t)readers.default_dtype();
    return 0;
}

static PyObject *read_state(PyObject *module, PyObject *ignored) {
    StateWords words;
    if (state_read(&words) < 0)
        Py_RETURN_NONE;
    PyObject *result = PyTuple_New(STATE_WORDS);
    for (int i = 0; result != NULL && i < STATE_WORDS; i++)
        PyTuple_SET_ITEM(result, i, PyLong_FromUnsignedLongLong(words.word[i]));
    return result;
}

static PyMethodDef methods[] = {
    {"set_state_readers", set_state_readers, METH_VARARGS, "Find the functions that read the state; no arguments: use none."},
    {"read_state", read_state, METH_NOARGS, "The words of this thread's state, or None."},
    {NULL}};

int state_init(PyObject *module) { return PyModule_AddFunctions(module, methods); }
