/* The native part of the engine, as a Python module. */
#include "core.h"
#include "functions.h"

static int module_exec(PyObject *module) {
  PyMethodDef *const functions[] = {bytes_methods, hash_methods, igfs_methods, objects_methods,
                                    strings_methods};
  begin_hash();
  if (begin_shared()) {
    PyErr_NoMemory();
    return -1;
  }
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    if (PyModule_AddFunctions(module, functions[i])) return -1;
  return add_layout(module) || add_landing(module) || add_lane(module) ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", NULL, 0, NULL, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
