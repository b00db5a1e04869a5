#include "native.h"
PyTypeObject *guard_program_type;
static PyType_Slot s[]={{0,NULL}};
static PyType_Spec spec={"bytecode_dynamo._hook.GuardProgram",sizeof(PyObject),0,Py_TPFLAGS_DEFAULT,s};
int guards_init(PyObject*m){guard_program_type=(PyTypeObject*)PyType_FromSpec(&spec);return guard_program_type?PyModule_AddObjectRef(m,"GuardProgram",(PyObject*)guard_program_type):-1;}
int guard_program_check(PyObject *program, PyObject *const *slots, Py_ssize_t count, PyFunctionObject *function){return 1;}
void guard_program_set_owner(PyObject *program, Entry *entry){}
