/* The part of Python's stable ABI (3.11 and newer) that the core uses.
 *
 * It replaces Python.h, which many systems keep in a separate package: Debian, Ubuntu and Fedora
 * install python3 without it. The stable ABI does not change, so these declarations cannot change.
 * tests/unit/test_native.py compares them with Python.h: a compiler that reads both reports every
 * difference.
 */
#ifndef IGNITETF_ABI3_H
#define IGNITETF_ABI3_H

#include <stddef.h>
#include <sys/types.h>

#ifndef Py_PYTHON_H
typedef ssize_t Py_ssize_t;
typedef struct _object PyObject;
typedef struct _typeobject PyTypeObject;
typedef struct _ts PyThreadState;

struct _object {
  Py_ssize_t ob_refcnt;
  PyTypeObject *ob_type;
};

typedef struct {
  void *buf;
  PyObject *obj;
  Py_ssize_t len, itemsize;
  int readonly, ndim;
  char *format;
  Py_ssize_t *shape, *strides, *suboffsets;
  void *internal;
} Py_buffer;

typedef enum { PyGILState_LOCKED, PyGILState_UNLOCKED } PyGILState_STATE;

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef void (*freefunc)(void *);

typedef struct {
  const char *ml_name;
  PyCFunction ml_meth;
  int ml_flags;
  const char *ml_doc;
} PyMethodDef;

typedef struct {
  int slot;
  void *pfunc;
} PyType_Slot;

typedef struct {
  const char *name;
  int basicsize, itemsize;
  unsigned flags;
  PyType_Slot *slots;
} PyType_Spec;

typedef struct {
  int slot;
  void *value;
} PyModuleDef_Slot;

typedef struct {
  PyObject ob_base;
  PyObject *(*m_init)(void);
  Py_ssize_t m_index;
  PyObject *m_copy;
} PyModuleDef_Base;

typedef struct PyModuleDef {
  PyModuleDef_Base m_base;
  const char *m_name, *m_doc;
  Py_ssize_t m_size;
  PyMethodDef *m_methods;
  PyModuleDef_Slot *m_slots;
  int (*m_traverse)(PyObject *, int (*)(PyObject *, void *), void *);
  int (*m_clear)(PyObject *);
  freefunc m_free;
} PyModuleDef;

#define PyObject_HEAD PyObject ob_base;
#define PyModuleDef_HEAD_INIT {{1, NULL}, NULL, 0, NULL}
#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *

#define METH_VARARGS 1
#define METH_NOARGS 4
#define METH_O 8
#define PyBUF_SIMPLE 0
#define PyBUF_WRITABLE 1
#define PyBUF_FORMAT 4
#define PyBUF_ND 8
#define PyBUF_STRIDES 0x18
#define PyBUF_READ 0x100
#define PyBUF_WRITE 0x200
#define Py_TPFLAGS_DEFAULT 0
#define Py_bf_getbuffer 1
#define Py_tp_dealloc 52
#define Py_tp_init 60
#define Py_tp_methods 64
#define Py_tp_new 65
#define Py_tp_free 74
#define Py_mod_exec 2

#define Py_TYPE(object) (((PyObject *)(object))->ob_type)
#define Py_INCREF(object) Py_IncRef((PyObject *)(object))
#define Py_DECREF(object) Py_DecRef((PyObject *)(object))
#define Py_XDECREF(object) Py_DecRef((PyObject *)(object))
#define Py_CLEAR(object)                      \
  do {                                        \
    PyObject *py_cleared = (PyObject *)(object); \
    (object) = NULL;                          \
    Py_DecRef(py_cleared);                    \
  } while (0)
#define Py_None (&_Py_NoneStruct)
#define Py_RETURN_NONE return Py_IncRef(Py_None), Py_None
#define Py_RETURN_TRUE return PyBool_FromLong(1)
#define Py_RETURN_FALSE return PyBool_FromLong(0)
#define PyObject_New(type, object_type) ((type *)_PyObject_New(object_type))

/* These functions have other names in the library since "#" in a format means Py_ssize_t. */
#define PyArg_ParseTuple _PyArg_ParseTuple_SizeT
#define Py_BuildValue _Py_BuildValue_SizeT
#define PyObject_CallFunction _PyObject_CallFunction_SizeT
#define PyObject_CallMethod _PyObject_CallMethod_SizeT

extern PyObject _Py_NoneStruct;
#endif

extern PyObject *PyExc_OSError, *PyExc_RuntimeError, *PyExc_ValueError;

void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *);
PyGILState_STATE PyGILState_Ensure(void);
void PyGILState_Release(PyGILState_STATE);
PyThreadState *PyGILState_GetThisThreadState(void);

int _PyArg_ParseTuple_SizeT(PyObject *, const char *, ...);
PyObject *_Py_BuildValue_SizeT(const char *, ...);
PyObject *_PyObject_CallFunction_SizeT(PyObject *, const char *, ...);
PyObject *_PyObject_CallMethod_SizeT(PyObject *, const char *, const char *, ...);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);

PyObject *PyErr_NoMemory(void);
int PyErr_CheckSignals(void);
PyObject *PyErr_Occurred(void);
PyObject *PyErr_Format(PyObject *, const char *, ...);
void PyErr_SetString(PyObject *, const char *);
void PyErr_Clear(void);
void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
void PyErr_Restore(PyObject *, PyObject *, PyObject *);
void PyErr_NormalizeException(PyObject **, PyObject **, PyObject **);

PyObject *PyBool_FromLong(long);
PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
char *PyBytes_AsString(PyObject *);
PyObject *PyLong_FromLongLong(long long);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
long long PyLong_AsLongLong(PyObject *);
PyObject *PyList_New(Py_ssize_t);
int PyList_SetItem(PyObject *, Py_ssize_t, PyObject *);
Py_ssize_t PyList_Size(PyObject *);
PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
PyObject *PyUnicode_DecodeFSDefault(const char *);
PyObject *PyUnicode_EncodeFSDefault(PyObject *);
PyObject *PyTuple_New(Py_ssize_t);
int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);

int PyObject_GetBuffer(PyObject *, Py_buffer *, int);
int PyBuffer_FillInfo(Py_buffer *, PyObject *, void *, Py_ssize_t, int, int);
void PyBuffer_Release(Py_buffer *);
PyObject *PyMemoryView_FromMemory(char *, Py_ssize_t, int);

PyObject *PyType_FromSpec(PyType_Spec *);
void *PyType_GetSlot(PyTypeObject *, int);
PyObject *PyType_GenericNew(PyTypeObject *, PyObject *, PyObject *);
PyObject *_PyObject_New(PyTypeObject *);
int PyModule_AddObjectRef(PyObject *, const char *, PyObject *);
int PyModule_AddFunctions(PyObject *, PyMethodDef *);
PyObject *PyModuleDef_Init(PyModuleDef *);

#endif
