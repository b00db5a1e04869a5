/* Versions of dictionaries where CPython counts none (3.14 on): a watcher gives a dictionary a new one whenever it changes.

   The versions stand in a hash table by the dictionary's address, with open addressing; a dictionary leaves it when it dies.
   No version is used twice, also not for another dictionary at the same address.  The watcher is called before the change,
   and nothing else runs between the two. */
#include "native.h"

#if PY_VERSION_HEX >= 0x030E0000

typedef struct {
    PyObject *dict;          /* borrowed; NULL: free */
    uint64_t version;
} Row;

static Row *rows = NULL;
static size_t room = 0, used = 0;       /* room: a power of two, at least twice `used` */
static uint64_t last_version = 0;
static int watcher = -1;

static size_t home_of(PyObject *dict) { return (((uintptr_t)dict >> 4) * 0x9E3779B97F4A7C15u) >> 20 & (room - 1); }

/* The row of a dictionary, or the free one where it belongs. */
static Row *find_row(PyObject *dict) {
    size_t i = home_of(dict);
    while (rows[i].dict != NULL && rows[i].dict != dict)
        i = (i + 1) & (room - 1);
    return &rows[i];
}

static int grow(void) {
    size_t old_room = room;
    Row *old = rows, *wider = PyMem_Calloc(old_room ? 2 * old_room : 256, sizeof(Row));
    if (wider == NULL)
        return -1;
    rows = wider;
    room = old_room ? 2 * old_room : 256;
    for (size_t i = 0; i < old_room; i++)
        if (old[i].dict != NULL)
            *find_row(old[i].dict) = old[i];
    PyMem_Free(old);
    return 0;
}

/* Frees a row and closes the gap: rows behind it that are not at home move up. */
static void remove_row(Row *row) {
    size_t gap = row - rows, i = gap;
    used--;
    for (;;) {
        rows[gap].dict = NULL;
        size_t home;
        do {
            i = (i + 1) & (room - 1);
            if (rows[i].dict == NULL)
                return;
            home = home_of(rows[i].dict);
        } while (((i - home) & (room - 1)) < ((i - gap) & (room - 1)));
        rows[gap] = rows[i];
        gap = i;
    }
}

static int on_change(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
    Row *row = find_row(dict);
    if (row->dict == NULL)
        return 0;
    if (event == PyDict_EVENT_DEALLOCATED)
        remove_row(row);
    else
        row->version = ++last_version;
    return 0;
}

/* Starts to count; gives the first version, or 0. */
static uint64_t watch(PyObject *dict) {
    if (2 * (used + 1) > room && grow() < 0)
        return 0;
    if (PyDict_Watch(watcher, dict) < 0) {
        PyErr_Clear();
        return 0;
    }
    Row *row = find_row(dict);
    used++;
    row->dict = dict;
    return row->version = ++last_version;
}

uint64_t dict_version(PyObject *dict) {
    if (watcher < 0)
        return 0;
    Row *row = find_row(dict);
    return row->dict != NULL ? row->version : watch(dict);
}

int watch_init(void) {
    if (watcher < 0 && rows == NULL && grow() == 0 && (watcher = PyDict_AddWatcher(on_change)) < 0)
        PyErr_Clear();       /* all are taken: whole dictionaries are never passed over then */
    return 0;
}

#else

int watch_init(void) { return 0; }

#endif
