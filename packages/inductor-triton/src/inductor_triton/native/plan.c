/* Launch plans: a list of kernel launches over tensors and sizes, run by one call from Python.

   A plan launches its kernels one by one at first, then as a CUDA graph of its own whose kernel nodes are patched where an
   address, a size or a function differs from the launch before: the host's cost is that of one launch, and nothing is copied.
   What a launch looks like at given sizes and alignments is a table, made by the callable `resolve`. The driver's functions come
   as addresses, so neither headers nor libraries of CUDA are needed. The GIL is held throughout; a plan's own state is only
   touched where no Python code can run. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stddef.h>
#include <structmember.h>
#include <string.h>

#define MAX_ARGUMENTS 1024 /* parameters of a kernel */
#define MAX_TENSORS 65536 /* tensors and sizes of a plan, which a call has on its stack */
#define TRAILING 2         /* Triton's kernels take two scratch pointers after their own arguments */
#define PLAIN_CALLS 2
#define BEGINS_EARLY 6 /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */

typedef struct {
    void *function;
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    void **parameters, **extra;
    void *kernel, *context;
} NodeParameters; /* CUDA_KERNEL_NODE_PARAMS_v2 */

typedef struct {
    int id, padding, value[16];
} LaunchAttribute; /* CUlaunchAttribute */

typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    void *stream;
    LaunchAttribute *attributes;
    unsigned count;
} LaunchSettings; /* CUlaunchConfig */

typedef struct {
    unsigned char from_port, to_port, type, reserved[5];
} EdgeData; /* CUgraphEdgeData */

typedef struct {
    int (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*graph_create)(void **, unsigned);
    int (*graph_add_kernel)(void **, void *, void *const *, size_t, const NodeParameters *);
    int (*graph_instantiate)(void **, void *, unsigned long long);
    int (*graph_set_parameters)(void *, void *, const NodeParameters *);
    int (*graph_launch)(void *, void *);
    int (*graph_destroy)(void *);
    int (*graph_exec_destroy)(void *);
    int (*stream_is_capturing)(void *, int *);
    int (*get_context)(void **);
    int (*push_context)(void *);
    int (*pop_context)(void **);
    int (*launch_with)(const LaunchSettings *, void *, void **, void **);
    int (*graph_add_edges)(void *, void *const *, void *const *, const EdgeData *, size_t); /* NULL in old drivers */
} Driver;

typedef struct {
    int slot; /* a tensor of the plan, or -1: `value` is the argument itself */
    uint64_t value;
} Argument;

typedef struct {
    void *function;
    unsigned programs, threads, shared;
    int early; /* it waits for the launches ahead itself, so it may begin before they have ended */
    int first, count;
} Operation;

typedef struct {
    size_t memory; /* bytes for intermediates: the tensor after those that are given */
    int operations, arguments;
    int complete; /* every operation has programs to run */
    Operation *operation;
    Argument *argument;
} Table;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Driver driver;
    void *context;
    PyObject *resolve, *stream_of, *allocate, *release, *device, *table_object, *name;
    volatile int32_t *flag;
    int tensors, sizes, calls, graph_state; /* 0: none yet, 1: made, -1: the driver refused */
    Table *table;
    int64_t *size;
    uint8_t *aligned;
    uint64_t *base;
    void *graph, *exec;
    void **node;
    int nodes;
    Table *patched; /* the table whose values the nodes have; only compared */
} Plan;

static long long graph_launches, plain_launches, patched_nodes;

/* Tables */

static void table_free(PyObject *capsule) {
    Table *table = PyCapsule_GetPointer(capsule, "table");
    PyMem_Free(table->operation);
    PyMem_Free(table->argument);
    PyMem_Free(table);
}

static int read_operation(Table *table, int position, PyObject *entry) {
    Operation *operation = &table->operation[position];
    unsigned long long function;
    PyObject *arguments;
    if (!PyArg_ParseTuple(entry, "KIIIpO!", &function, &operation->programs, &operation->threads, &operation->shared,
                          &operation->early, &PyTuple_Type, &arguments))
        return -1;
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    if (count + TRAILING > MAX_ARGUMENTS) {
        PyErr_SetString(PyExc_ValueError, "too many arguments of one kernel");
        return -1;
    }
    Argument *grown = PyMem_Realloc(table->argument, (table->arguments + count + 1) * sizeof(Argument));
    if (!grown) {
        PyErr_NoMemory();
        return -1;
    }
    table->argument = grown;
    operation->function = (void *)(uintptr_t)function;
    operation->first = table->arguments;
    operation->count = (int)count;
    table->complete &= operation->programs > 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int slot;
        PyObject *value;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(arguments, i), "iO", &slot, &value))
            return -1;
        table->argument[table->arguments++] = (Argument){slot, PyLong_AsUnsignedLongLongMask(value)};
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* table(((function, programs, threads, shared, early, ((slot, value), ...)), ...), memory) */
static PyObject *make_table(PyObject *self, PyObject *args) {
    PyObject *entries;
    Py_ssize_t memory;
    if (!PyArg_ParseTuple(args, "O!n", &PyTuple_Type, &entries, &memory))
        return NULL;
    Table *table = PyMem_Calloc(1, sizeof *table);
    if (!table)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(table, "table", table_free);
    if (!capsule) {
        PyMem_Free(table);
        return NULL;
    }
    table->complete = 1;
    table->memory = (size_t)memory;
    table->operations = (int)PyTuple_GET_SIZE(entries);
    table->operation = PyMem_Calloc(table->operations + 1, sizeof(Operation));
    if (!table->operation) {
        Py_DECREF(capsule);
        return PyErr_NoMemory();
    }
    for (int i = 0; i < table->operations; i++)
        if (read_operation(table, i, PyTuple_GET_ITEM(entries, i))) {
            Py_DECREF(capsule);
            return NULL;
        }
    return capsule;
}

/* Launches */

static NodeParameters fill(const Table *table, const Operation *operation, const uint64_t *base, uint64_t *value, void **pointer) {
    const Argument *argument = table->argument + operation->first;
    for (int i = 0; i < operation->count; i++)
        value[i] = argument[i].slot < 0 ? argument[i].value : base[argument[i].slot] + argument[i].value;
    for (int i = 0; i < TRAILING; i++)
        value[operation->count + i] = 0;
    for (int i = 0; i < operation->count + TRAILING; i++)
        pointer[i] = &value[i];
    return (NodeParameters){operation->function, operation->programs, 1, 1, operation->threads, 1, 1, operation->shared, pointer};
}

static int launch_early(Plan *plan, const NodeParameters *p, void *stream) {
    LaunchAttribute attribute = {BEGINS_EARLY, 0, {1}};
    LaunchSettings settings = {p->grid_x, 1, 1, p->block_x, 1, 1, p->shared, stream, &attribute, 1};
    return plan->driver.launch_with(&settings, p->function, p->parameters, NULL);
}

static int launch_plainly(Plan *plan, const Table *table, const uint64_t *base, void *stream) {
    uint64_t value[MAX_ARGUMENTS];
    void *pointer[MAX_ARGUMENTS];
    for (int i = 0; i < table->operations; i++) {
        const Operation *o = &table->operation[i];
        if (o->programs == 0)
            continue;
        NodeParameters p = fill(table, o, base, value, pointer);
        int code = o->early ? launch_early(plan, &p, stream)
                            : plan->driver.launch_kernel(p.function, p.grid_x, 1, 1, p.block_x, 1, 1, p.shared, stream, pointer, NULL);
        if (code)
            return code;
        plain_launches++;
    }
    return 0;
}

/* the kernel ahead has reached its end, or says that the next one may begin; what it wrote need not be visible yet */
static const EdgeData programmatic = {1, 0, 1};

static int make_graph(Plan *plan, const Table *table, const uint64_t *base) {
    uint64_t value[MAX_ARGUMENTS];
    void *pointer[MAX_ARGUMENTS];
    plan->node = PyMem_Calloc(table->operations + 1, sizeof(void *));
    int code = plan->node ? plan->driver.graph_create(&plan->graph, 0) : 2;
    for (int i = 0; i < table->operations && !code; i++) {
        NodeParameters p = fill(table, &table->operation[i], base, value, pointer);
        int early = i && table->operation[i].early && plan->driver.graph_add_edges;
        void *before = i && !early ? &plan->node[i - 1] : NULL;
        code = plan->driver.graph_add_kernel(&plan->node[i], plan->graph, before, before != NULL, &p);
        if (early && !code)
            code = plan->driver.graph_add_edges(plan->graph, &plan->node[i - 1], &plan->node[i], &programmatic, 1);
    }
    if (!code)
        code = plan->driver.graph_instantiate(&plan->exec, plan->graph, 0);
    plan->graph_state = code ? -1 : 1;
    plan->nodes = table->operations;
    return code;
}

static int differs(const Table *table, const Operation *operation, const uint64_t *old, const uint64_t *base) {
    const Argument *argument = table->argument + operation->first;
    for (int i = 0; i < operation->count; i++)
        if (argument[i].slot >= 0 && old[argument[i].slot] != base[argument[i].slot])
            return 1;
    return 0;
}

static int launch_graph(Plan *plan, Table *table, const uint64_t *base, void *stream) {
    uint64_t value[MAX_ARGUMENTS];
    void *pointer[MAX_ARGUMENTS];
    int other = plan->patched != table;
    if (other || memcmp(plan->base, base, (plan->tensors + 1) * sizeof *base)) {
        for (int i = 0; i < table->operations; i++) {
            if (!other && !differs(table, &table->operation[i], plan->base, base))
                continue;
            NodeParameters p = fill(table, &table->operation[i], base, value, pointer);
            int code = plan->driver.graph_set_parameters(plan->exec, plan->node[i], &p);
            if (code) {
                plan->patched = NULL;
                return code;
            }
            patched_nodes++;
        }
        plan->patched = table;
        memcpy(plan->base, base, (plan->tensors + 1) * sizeof *base);
    }
    graph_launches++;
    return plan->driver.graph_launch(plan->exec, stream);
}

static int launch(Plan *plan, Table *table, const uint64_t *base, void *stream) {
    int capturing = 0, code;
    plan->calls += plan->calls <= PLAIN_CALLS;
    if (plan->calls <= PLAIN_CALLS || plan->graph_state < 0 || !table->complete)
        return launch_plainly(plan, table, base, stream);
    if (plan->driver.stream_is_capturing(stream, &capturing) || capturing)
        return launch_plainly(plan, table, base, stream);
    if (plan->graph_state == 0) {
        if (make_graph(plan, table, base))
            return launch_plainly(plan, table, base, stream);
        plan->patched = table;
        memcpy(plan->base, base, (plan->tensors + 1) * sizeof *base);
    }
    code = launch_graph(plan, table, base, stream);
    return code;
}

/* Calls */

static int read_arguments(Plan *plan, PyObject *const *args, uint64_t *base, uint8_t *aligned, int64_t *size) {
    for (int i = 0; i < plan->tensors; i++) {
        PyObject *address = PyObject_CallMethodNoArgs(args[i], data_ptr);
        if (!address)
            return -1;
        base[i] = PyLong_AsUnsignedLongLong(address);
        Py_DECREF(address);
        aligned[i] = (base[i] & 15) == 0;
    }
    for (int i = 0; i < plan->sizes; i++)
        size[i] = PyLong_AsLongLong(args[plan->tensors + i]);
    return PyErr_Occurred() ? -1 : 0;
}

/* The table for these sizes and alignments, kept alive by the plan. */
static int find_table(Plan *plan, const uint8_t *aligned, const int64_t *size) {
    if (plan->table && !memcmp(plan->aligned, aligned, plan->tensors) && !memcmp(plan->size, size, plan->sizes * sizeof *size))
        return 0;
    PyObject *sizes = PyTuple_New(plan->sizes);
    for (int i = 0; sizes && i < plan->sizes; i++)
        PyTuple_SET_ITEM(sizes, i, PyLong_FromLongLong(size[i]));
    PyObject *object = sizes ? PyObject_CallFunction(plan->resolve, "y#O", aligned, (Py_ssize_t)plan->tensors, sizes) : NULL;
    Py_XDECREF(sizes);
    Table *table = object ? PyCapsule_GetPointer(object, "table") : NULL;
    if (!table) {
        Py_XDECREF(object);
        return -1;
    }
    if (plan->graph_state == 1 && table->operations != plan->nodes) {
        Py_DECREF(object);
        PyErr_SetString(PyExc_ValueError, "every table of a plan has the same launches");
        return -1;
    }
    PyObject *before = plan->table_object;
    plan->table_object = object;
    plan->table = table;
    plan->patched = NULL; /* its address may be used again */
    memcpy(plan->aligned, aligned, plan->tensors);
    memcpy(plan->size, size, plan->sizes * sizeof *size);
    Py_XDECREF(before);
    return 0;
}

/* Launches with memory for intermediates, which is given back at once: what this stream does next comes later. */
static int launch_with_memory(Plan *plan, Table *table, uint64_t *base, PyObject *number) {
    void *stream = PyLong_AsVoidPtr(number);
    PyObject *memory = NULL, *done;
    base[plan->tensors] = 0;
    if (table->memory) {
        memory = PyObject_CallFunction(plan->allocate, "nO", (Py_ssize_t)table->memory, number);
        if (!memory)
            return -1;
        base[plan->tensors] = PyLong_AsUnsignedLongLong(memory);
    }
    int code = PyErr_Occurred() ? -1 : launch(plan, table, base, stream);
    if (plan->table != table)
        plan->patched = NULL; /* another thread came in between */
    if (memory) {
        done = PyObject_CallOneArg(plan->release, memory);
        Py_DECREF(memory);
        if (!done)
            return -1;
        Py_DECREF(done);
    }
    return code;
}

static PyObject *call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
    Plan *plan = (Plan *)self;
    uint64_t base[plan->tensors + 1];
    uint8_t aligned[plan->tensors + 1];
    int64_t size[plan->sizes + 1];
    if (PyVectorcall_NARGS(flags) != plan->tensors + plan->sizes || names)
        return PyErr_Format(PyExc_TypeError, "%U takes %d tensors and %d sizes", plan->name, plan->tensors, plan->sizes);
    if (read_arguments(plan, args, base, aligned, size))
        return NULL;
    if (plan->flag && *plan->flag) {
        *plan->flag = 0;
        return PyErr_Format(PyExc_IndexError, "index out of range in %U or a kernel launched before it", plan->name);
    }
    PyObject *stream = PyObject_CallOneArg(plan->stream_of, plan->device);
    if (!stream)
        return NULL;
    if (find_table(plan, aligned, size)) {
        Py_DECREF(stream);
        return NULL;
    }
    PyObject *kept = Py_NewRef(plan->table_object);
    void *current = NULL;
    int code = plan->driver.get_context(&current), pushed = current != plan->context;
    if (!code && pushed)
        code = plan->driver.push_context(plan->context);
    if (!code) {
        code = launch_with_memory(plan, PyCapsule_GetPointer(kept, "table"), base, stream);
        if (pushed)
            plan->driver.pop_context(&current);
    }
    Py_DECREF(kept);
    Py_DECREF(stream);
    if (PyErr_Occurred())
        return NULL;
    if (code)
        return PyErr_Format(PyExc_RuntimeError, "launching %U: CUDA driver error %d", plan->name, code);
    Py_RETURN_NONE;
}

/* The type */

static int plan_init(PyObject *self, PyObject *args, PyObject *keywords) {
    Plan *plan = (Plan *)self;
    static char *names[] = {"name", "driver", "context", "device", "tensors", "sizes", "functions", "flag", NULL};
    Py_buffer driver;
    unsigned long long context, flag;
    PyObject *name, *device, *resolve, *stream_of, *allocate, *release;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "Uy*KOii(OOOO)K", names, &name, &driver, &context, &device, &plan->tensors,
                                     &plan->sizes, &resolve, &stream_of, &allocate, &release, &flag))
        return -1;
    plan->name = Py_NewRef(name), plan->device = Py_NewRef(device), plan->resolve = Py_NewRef(resolve);
    plan->stream_of = Py_NewRef(stream_of), plan->allocate = Py_NewRef(allocate), plan->release = Py_NewRef(release);
    int fits = driver.len == sizeof(Driver) && plan->tensors + plan->sizes <= MAX_TENSORS;
    if (fits)
        memcpy(&plan->driver, driver.buf, sizeof(Driver));
    PyBuffer_Release(&driver);
    plan->context = (void *)(uintptr_t)context;
    plan->flag = (volatile int32_t *)(uintptr_t)flag;
    plan->call = call;
    plan->base = PyMem_Calloc(plan->tensors + 2, sizeof *plan->base);
    plan->aligned = PyMem_Calloc(plan->tensors + 1, 1);
    plan->size = PyMem_Calloc(plan->sizes + 1, sizeof *plan->size);
    if (!fits || !plan->base || !plan->aligned || !plan->size) {
        PyErr_SetString(PyExc_ValueError, "a plan takes the driver's functions and at most 65536 tensors and sizes");
        return -1;
    }
    return 0;
}

static void plan_dealloc(PyObject *self) {
    Plan *plan = (Plan *)self;
    PyObject_GC_UnTrack(self);
    if (plan->exec)
        plan->driver.graph_exec_destroy(plan->exec);
    if (plan->graph)
        plan->driver.graph_destroy(plan->graph);
    PyMem_Free(plan->base), PyMem_Free(plan->aligned), PyMem_Free(plan->size), PyMem_Free(plan->node);
    Py_XDECREF(plan->name), Py_XDECREF(plan->device), Py_XDECREF(plan->table_object);
    Py_XDECREF(plan->resolve), Py_XDECREF(plan->stream_of), Py_XDECREF(plan->allocate), Py_XDECREF(plan->release);
    Py_TYPE(self)->tp_free(self);
}

static int plan_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Plan *)self)->resolve);
    Py_VISIT(((Plan *)self)->stream_of);
    return 0;
}

static PyMemberDef plan_members[] = {{"resolver", T_OBJECT_EX, offsetof(Plan, resolve), READONLY}, {NULL}};

static PyTypeObject plan_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "plan.Plan",
    .tp_basicsize = sizeof(Plan),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Plan, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = PyType_GenericNew,
    .tp_init = plan_init,
    .tp_dealloc = plan_dealloc,
    .tp_traverse = plan_traverse,
    .tp_members = plan_members,
};

/* exceeds(count, things, limits): whether count(thing) > limit for one of them */
static PyObject *exceeds(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3 || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]) || PyTuple_GET_SIZE(args[1]) != PyTuple_GET_SIZE(args[2]))
        return PyErr_Format(PyExc_TypeError, "exceeds takes a callable and two tuples of one length");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[1]); i++) {
        PyObject *number = PyObject_CallOneArg(args[0], PyTuple_GET_ITEM(args[1], i));
        if (!number)
            return NULL;
        long found = PyLong_AsLong(number), limit = PyLong_AsLong(PyTuple_GET_ITEM(args[2], i));
        Py_DECREF(number);
        if (PyErr_Occurred())
            return NULL;
        if (found > limit)
            Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

/* counts(): graph launches, plain kernel launches and patched nodes since the module was loaded */
static PyObject *counts(PyObject *self, PyObject *unused) {
    return Py_BuildValue("LLL", graph_launches, plain_launches, patched_nodes);
}

static PyMethodDef methods[] = {{"table", make_table, METH_VARARGS, NULL},
                                {"places", places, METH_VARARGS, NULL},
                                {"lie_at", lie_at, METH_VARARGS, NULL},
                                {"set_layout", set_layout, METH_VARARGS, NULL},
                                {"exceeds", (PyCFunction)(void (*)(void))exceeds, METH_FASTCALL, NULL},
                                {"counts", counts, METH_NOARGS, NULL},
                                {NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "plan", NULL, -1, methods};

PyMODINIT_FUNC PyInit_plan(void) {
    data_ptr = PyUnicode_InternFromString("data_ptr");
    if (!data_ptr || PyType_Ready(&plan_type) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddObjectRef(module, "Plan", (PyObject *)&plan_type) < 0)
        Py_CLEAR(module);
    return module;
}
