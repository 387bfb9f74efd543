/* Checks the arrays that Python passes to functions. */
#define _GNU_SOURCE
#include "functions.h"

#include <dlfcn.h>

/* Whether an array has `count` items of `size` bytes, at an address that is aligned for them. */
int holds(const Py_buffer *array, int64_t count, size_t size) {
  if (array->len / (Py_ssize_t)size == count && array->len % (Py_ssize_t)size == 0 &&
      (uintptr_t)array->buf % size == 0)
    return 0;
  PyErr_Format(PyExc_ValueError, "an array of %lld bytes where %lld items of %d were expected",
               (long long)array->len, (long long)count, (int)size);
  return -1;
}

/* Makes runs from a page and two arrays of int64; checks that all runs are inside the page. */
int find_runs(Runs *runs, const Py_buffer *page, const Py_buffer *starts, const Py_buffer *lengths) {
  int64_t count = starts->len / 8;
  if (holds(starts, count, 8) || holds(lengths, count, 8)) return -1;
  *runs = (Runs){page->buf, starts->buf, lengths->buf, count, 0, 0, 0};
  for (int64_t i = 0; i < count; i++) {
    int64_t start = runs->starts[i], length = runs->lengths[i];
    if (start < 0 || length < 0 || length > page->len - start) {
      PyErr_Format(PyExc_ValueError, "run %lld reaches beyond the %lld bytes that it is part of",
                   (long long)i, (long long)page->len);
      return -1;
    }
    /* Runs may overlap, so their sum may overflow. */
    runs->nbytes = runs->nbytes > INT64_MAX - length ? INT64_MAX : runs->nbytes + length;
  }
  return 0;
}

void release_all(Py_buffer *views, int count) {
  for (int i = 0; i < count; i++)
    if (views[i].obj) PyBuffer_Release(views + i);
}

/* Returns a library that this process has loaded; NULL with an error. */
void *library_of(const char *path) {
  void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!found) PyErr_Format(PyExc_ValueError, "%s cannot be loaded: %s", path, dlerror());
  return found;
}

/* Returns a function of a library; NULL with an error. */
void *function_of(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) PyErr_Format(PyExc_ValueError, "the library lacks the function %s", name);
  return found;
}
