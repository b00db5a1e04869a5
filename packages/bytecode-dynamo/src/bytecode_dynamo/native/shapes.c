/* Conditions on sizes: a stack program over 64-bit integers.  Anything that does not fit makes the condition fail. */
#include "native.h"

#define DEPTH 32

enum {
    PUSH, SYMBOL, ADD, MULTIPLY, NEGATE, FLOOR_DIVIDE, MODULO, MINIMUM, MAXIMUM, POWER,
    EQUAL, NOT_EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, AND, OR, NOT,
    REQUIRE               /* pops a condition: the program fails if it is false */
};

struct ShapeProgram {
    Py_ssize_t count;
    struct { int64_t op, operand; } code[];
};

static const signed char change[] = {1, 1, -1, -1, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, -1};
static const signed char needed[] = {0, 0, 2, 2, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1};

/* `code` is a flat tuple: operation, operand, operation, operand, ... */
ShapeProgram *shape_program(PyObject *code, Py_ssize_t symbols) {
    Py_ssize_t count = PyTuple_Check(code) ? PyTuple_GET_SIZE(code) / 2 : 0;
    ShapeProgram *self = PyMem_Malloc(sizeof(*self) + count * sizeof(self->code[0]));
    if (self == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    self->count = count;
    int depth = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t op = PyLong_AsLongLong(PyTuple_GET_ITEM(code, 2 * i));
        int64_t operand = PyLong_AsLongLong(PyTuple_GET_ITEM(code, 2 * i + 1));
        int bad = PyErr_Occurred() || op < 0 || op > REQUIRE || depth < needed[op];
        if (bad || (op == SYMBOL && (operand < 0 || operand >= symbols)) || (depth += change[op]) > DEPTH) {
            PyMem_Free(self);
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "malformed program for sizes");
            return NULL;
        }
        self->code[i].op = op;
        self->code[i].operand = operand;
    }
    return self;
}

static int floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *rest) {
    if (b == 0 || (a == INT64_MIN && b == -1))
        return -1;
    *quotient = a / b;
    *rest = a % b;
    if (*rest != 0 && (*rest < 0) != (b < 0)) {
        *quotient -= 1;
        *rest += b;
    }
    return 0;
}

static int power(int64_t base, int64_t exponent, int64_t *result) {
    if (exponent < 0 || exponent > 63)
        return -1;
    *result = 1;
    while (exponent-- > 0)
        if (__builtin_mul_overflow(*result, base, result))
            return -1;
    return 0;
}

static int binary(int64_t op, int64_t *a, int64_t b) {
    int64_t other;
    switch (op) {
    case ADD: return __builtin_add_overflow(*a, b, a) ? -1 : 0;
    case MULTIPLY: return __builtin_mul_overflow(*a, b, a) ? -1 : 0;
    case FLOOR_DIVIDE: return floor_divide(*a, b, a, &other);
    case MODULO: return floor_divide(*a, b, &other, a);
    case MINIMUM: *a = *a < b ? *a : b; return 0;
    case MAXIMUM: *a = *a > b ? *a : b; return 0;
    case POWER: return power(*a, b, a);
    case EQUAL: *a = *a == b; return 0;
    case NOT_EQUAL: *a = *a != b; return 0;
    case LESS: *a = *a < b; return 0;
    case LESS_EQUAL: *a = *a <= b; return 0;
    case GREATER: *a = *a > b; return 0;
    case GREATER_EQUAL: *a = *a >= b; return 0;
    case AND: *a = *a && b; return 0;
    case OR: *a = *a || b; return 0;
    }
    return -1;
}

int shape_program_run(const ShapeProgram *self, const int64_t *symbols) {
    int64_t stack[DEPTH + 1], *top = stack - 1;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        int64_t op = self->code[i].op, operand = self->code[i].operand;
        switch (op) {
        case PUSH: *++top = operand; break;
        case SYMBOL: *++top = symbols[operand]; break;
        case NEGATE:
            if (__builtin_sub_overflow((int64_t)0, *top, top))
                return 0;
            break;
        case NOT: *top = !*top; break;
        case REQUIRE:
            if (!*top--)
                return 0;
            break;
        default:
            top--;
            if (binary(op, top, top[1]) < 0)
                return 0;
        }
    }
    return 1;
}
