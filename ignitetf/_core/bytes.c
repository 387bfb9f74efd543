/* Copies runs of bytes of a page to Python's `bytes` or to memory, without Python code for each run.
 *
 * runs.py -> this
 */
#include "functions.h"

/* From this average size on, objects are filled without the GIL, because receiving threads need it
 * several times per page. Shorter objects take as long to create as to fill. */
enum { LONG_BYTES = 1 << 10 };

/* Puts the runs as objects into an array. If `places` is given, the objects are not filled, and it
 * receives the address of each object's bytes. Returns 0, or -1 with an error. */
static int make_bytes(const Runs *runs, PyObject **out, char **places) {
  for (int64_t i = 0; i < runs->count; i++) {
    const char *bytes = places ? NULL : (const char *)run_at(runs, i);
    PyObject *made = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)run_length(runs, i));
    if (!made) return -1;
    if (places) places[i] = PyBytes_AsString(made);
    PyObject *before = out[i];
    out[i] = made;
    Py_XDECREF(before);
  }
  return 0;
}

static int make_long_bytes(const Runs *runs, PyObject **out) {
  char **places = malloc(sizeof *places * (size_t)runs->count);
  if (!places) {
    PyErr_NoMemory();
    return -1;
  }
  int failed = make_bytes(runs, out, places);
  if (!failed) {
    PyThreadState *state = PyEval_SaveThread();
    for (int64_t i = 0; i < runs->count; i++)
      memcpy(places[i], run_at(runs, i), (size_t)run_length(runs, i));
    PyEval_RestoreThread(state);
  }
  free(places);
  return failed;
}

static int takes_objects(const Py_buffer *out, int64_t count) {
  if (out->itemsize == sizeof(PyObject *) && out->format && !strcmp(out->format, "O"))
    return holds(out, count, sizeof(PyObject *));
  PyErr_SetString(PyExc_ValueError, "bytes are put into an array of objects");
  return -1;
}

/* bytes_of(page, starts, lengths, out): `out` is an array of objects that no other code uses. */
static PyObject *bytes_of(PyObject *self, PyObject *args) {
  PyObject *array;
  Py_buffer views[4] = {0};
  Runs runs;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*y*y*O", views, views + 1, views + 2, &array)) return NULL;
  int failed = find_runs(&runs, views, views + 1, views + 2) ||
               PyObject_GetBuffer(array, views + 3, PyBUF_FORMAT | PyBUF_ND | PyBUF_WRITABLE) ||
               takes_objects(views + 3, runs.count);
  if (!failed && runs.count)
    failed = runs.nbytes / runs.count >= LONG_BYTES ? make_long_bytes(&runs, views[3].buf)
                                                    : make_bytes(&runs, views[3].buf, NULL);
  release_all(views, 4);
  if (failed) return NULL;
  Py_RETURN_NONE;
}

static int fits(const Py_buffer *out, const int64_t *at, const Runs *runs) {
  for (int64_t i = 0; i < runs->count; i++)
    if (at[i] < 0 || at[i] > out->len || run_length(runs, i) > out->len - at[i]) {
      PyErr_Format(PyExc_ValueError, "run %lld does not fit into %lld bytes at %lld", (long long)i,
                   (long long)out->len, (long long)at[i]);
      return -1;
    }
  return 0;
}

static void copy_each(uint8_t *out, const int64_t *at, const Runs *runs) {
  for (int64_t i = 0; i < runs->count; i++)
    memcpy(out + at[i], run_at(runs, i), (size_t)run_length(runs, i));
}

/* copy_runs(out, at, page, starts, lengths): copies run i of the page to `at[i]` of `out`, which
 * must not overlap the page. */
static PyObject *copy_runs(PyObject *self, PyObject *args) {
  Py_buffer views[5] = {0};
  Runs runs;
  (void)self;
  if (!PyArg_ParseTuple(args, "w*y*y*y*y*", views, views + 1, views + 2, views + 3, views + 4))
    return NULL;
  int failed = find_runs(&runs, views + 2, views + 3, views + 4) ||
               holds(views + 1, runs.count, sizeof(int64_t)) ||
               fits(views, views[1].buf, &runs);
  if (!failed && runs.nbytes > MANY_BYTES) {
    PyThreadState *state = PyEval_SaveThread();
    copy_each(views[0].buf, views[1].buf, &runs);
    PyEval_RestoreThread(state);
  } else if (!failed) {
    copy_each(views[0].buf, views[1].buf, &runs);
  }
  release_all(views, 5);
  if (failed) return NULL;
  Py_RETURN_NONE;
}

PyMethodDef bytes_methods[] = {{"bytes_of", bytes_of, METH_VARARGS, NULL},
                               {"copy_runs", copy_runs, METH_VARARGS, NULL},
                               {NULL, NULL, 0, NULL}};
