/* The native part of the engine, as a Python module. */
#include "core.h"

static int module_exec(PyObject *module) {
  return add_layout(module) || add_landing(module) || add_lane(module) ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", NULL, 0, NULL, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
