/* Finds where the objects of a page begin.
 *
 * values.c (the length of a value) -> this
 */
#include "core.h"
#include "functions.h"

/* Finds the starts of `count` objects in a page. Returns whether they fill the page exactly. */
static int find_objects(const uint8_t *bytes, int64_t size, int64_t count, const Extent *extents,
                        int64_t *starts) {
  int64_t at = 0;
  for (int64_t i = 0; i < count; i++) {
    starts[i] = at;
    at = value_end(extents, bytes, at, size, 0);
    if (at < 0 || at > size) return 0;
  }
  return at == size;
}

/* object_starts(page, count, extents, starts): int32 [256, 5], see Extent, and int64 [count]. Returns
 * whether `count` objects fill the page exactly. */
static PyObject *object_starts(PyObject *self, PyObject *args) {
  Py_buffer views[3] = {0};
  long long count;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*Ly*w*", views, &count, views + 1, views + 2)) return NULL;
  int failed = holds(views + 1, 256 * 5, 4) || holds(views + 2, count, 8), fills = 0;
  if (!failed) {
    PyThreadState *state = views[0].len > MANY_BYTES ? PyEval_SaveThread() : NULL;
    fills = find_objects(views[0].buf, views[0].len, count, views[1].buf, views[2].buf);
    if (state) PyEval_RestoreThread(state);
  }
  release_all(views, 3);
  if (failed) return NULL;
  return PyBool_FromLong(fills);
}

PyMethodDef objects_methods[] = {{"object_starts", object_starts, METH_VARARGS, NULL},
                                 {NULL, NULL, 0, NULL}};
