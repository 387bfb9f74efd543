/* Layout: how rows of a schema are converted to columns, and the forms in which they are stored. */
#include "core.h"

PyTypeObject *LayoutType;

enum { MOST_IDLE_BYTES = 320 << 20 }; /* a shuffled window, and answers in receipt */

/* Returns the form of rows; NULL if it is unknown. `last` is tried first. */
const Form *find_form(Layout *layout, const Form *last, int32_t type_id, int32_t schema_id,
                      int32_t flags) {
  if (last && last->schema_id == schema_id && last->type_id == type_id && last->flags == flags)
    return last;
  int32_t forms = __atomic_load_n(&layout->forms, __ATOMIC_ACQUIRE);
  for (int32_t i = 0; i < forms; i++) {
    const Form *form = layout->form[i];
    if (form->schema_id == schema_id && form->type_id == type_id && form->flags == flags)
      return form;
  }
  return NULL;
}

static int64_t aligned(int64_t at) { return (at + 63) & ~63LL; }

/* Layout(columns, extents, rows, plain, heap_bytes): int64 [n, 12] and int32 [256, 5], see Column and
 * Extent. */
static int layout_init(PyObject *self, PyObject *args, PyObject *kwargs) {
  Layout *layout = (Layout *)self;
  Py_buffer columns, extents;
  long long rows, heap_bytes;
  int plain;
  (void)kwargs;
  if (!PyArg_ParseTuple(args, "y*y*LpL", &columns, &extents, &rows, &plain, &heap_bytes)) return -1;
  int fits = extents.len == sizeof layout->extents;
  if (fits) memcpy(layout->extents, extents.buf, sizeof layout->extents);
  PyBuffer_Release(&extents);
  int64_t width = 12 * 8, count = columns.len / width;
  if (layout->column || !fits || count < 1 || count > MOST_COLUMNS || columns.len % width || rows < 1) {
    PyBuffer_Release(&columns);
    PyErr_SetString(PyExc_ValueError, "a layout has 1 to 1,024 columns, and rows");
    return -1;
  }
  layout->column = calloc((size_t)count, sizeof(Column));
  layout->heap_bytes = calloc((size_t)count, sizeof(int64_t));
  if (!layout->column || !layout->heap_bytes) {
    PyBuffer_Release(&columns);
    PyErr_NoMemory();
    return -1;
  }
  layout->columns = (int32_t)count;
  layout->rows = rows;
  layout->plain = plain;
  int64_t at = 0;
  for (int64_t i = 0; i < count; i++) {
    Column *column = layout->column + i;
    memcpy(column, (const uint8_t *)columns.buf + width * i, (size_t)width);
    column->heap = -1;
    if (column->kind == RUN || column->kind == UUID_TEXT) {
      layout->heap_bytes[layout->heaps] = heap_bytes;
      column->heap = layout->heaps++;
      column->starts = at = aligned(at);
      column->lengths = at = aligned(at + 8 * rows);
      at += 8 * rows;
    } else {
      column->values = at = aligned(at);
      at += rows * column->size;
    }
    if (column->nullable) {
      column->valid = at = aligned(at);
      at += rows;
    }
  }
  layout->dense_bytes = aligned(at);
  PyBuffer_Release(&columns);
  pool_begin(&layout->pool, MOST_IDLE_BYTES);
  return 0;
}

static void layout_dealloc(PyObject *self) {
  Layout *layout = (Layout *)self;
  PyTypeObject *type = Py_TYPE(self);
  if (layout->heap_bytes) pool_end(&layout->pool);
  for (int32_t i = 0; i < layout->forms; i++) {
    free(layout->form[i]->column);
    free(layout->form[i]);
  }
  free(layout->column);
  free(layout->heap_bytes);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

/* offsets() -> (values, starts, lengths, valid, heap) of each column; -1 for a missing one. */
static PyObject *layout_offsets(PyObject *self, PyObject *unused) {
  Layout *layout = (Layout *)self;
  (void)unused;
  PyObject *found = PyList_New(layout->columns);
  for (int32_t i = 0; found && i < layout->columns; i++) {
    const Column *c = layout->column + i;
    int dense = c->heap < 0;
    PyObject *item = Py_BuildValue(
        "LLLLL", dense ? (long long)c->values : -1LL, dense ? -1LL : (long long)c->starts,
        dense ? -1LL : (long long)c->lengths, c->nullable ? (long long)c->valid : -1LL,
        (long long)c->heap);
    if (!item || PyList_SetItem(found, i, item)) Py_CLEAR(found);
  }
  return found;
}

/* add_form(type_id, schema_id, flags, columns, lacking): int16 arrays. With None, such rows are left
 * to the general decoder. */
static PyObject *layout_add_form(PyObject *self, PyObject *args) {
  Layout *layout = (Layout *)self;
  int type_id, schema_id, flags;
  Py_buffer columns = {0}, lacking = {0};
  if (!PyArg_ParseTuple(args, "iiiz*z*", &type_id, &schema_id, &flags, &columns, &lacking))
    return NULL;
  Form *form = calloc(1, sizeof *form);
  int64_t fields = columns.buf ? columns.len / 2 : -1, lacks = lacking.buf ? lacking.len / 2 : 0;
  int bad = fields > MOST_FIELDS || lacks > layout->columns;
  if (form && !bad) {
    form->type_id = type_id;
    form->schema_id = schema_id;
    form->flags = flags;
    form->fields = (int32_t)fields;
    form->lacks = (int32_t)lacks;
    form->column = malloc((size_t)(columns.len + lacking.len + 2));
    if (form->column) {
      if (columns.buf) memcpy(form->column, columns.buf, (size_t)columns.len);
      if (lacks) memcpy(form->column + (fields > 0 ? fields : 0), lacking.buf, (size_t)lacking.len);
      for (int64_t i = 0; i < (fields > 0 ? fields : 0) + lacks; i++)
        bad |= form->column[i] < -1 || form->column[i] >= layout->columns;
    }
  }
  if (columns.buf) PyBuffer_Release(&columns);
  if (lacking.buf) PyBuffer_Release(&lacking);
  int added = 0;
  if (form && form->column && !bad) {
    hold_shared();
    if (!find_form(layout, NULL, type_id, schema_id, flags) && layout->forms < MOST_FORMS) {
      layout->form[layout->forms] = form;
      __atomic_add_fetch(&layout->forms, 1, __ATOMIC_RELEASE);
      added = 1;
    }
    release_shared();
  }
  int no_memory = !form || !(bad || form->column);
  if (!added && form) {
    free(form->column);
    free(form);
  }
  if (no_memory) return PyErr_NoMemory();
  if (bad) {
    PyErr_SetString(PyExc_ValueError, "a form with columns that the layout does not have");
    return NULL;
  }
  return PyBool_FromLong(added);
}

static PyMethodDef layout_methods[] = {
    {"offsets", layout_offsets, METH_NOARGS, NULL},
    {"add_form", layout_add_form, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyType_Slot layout_slots[] = {{Py_tp_init, layout_init},
                                     {Py_tp_dealloc, layout_dealloc},
                                     {Py_tp_methods, layout_methods},
                                     {Py_tp_new, PyType_GenericNew},
                                     {0, NULL}};
static PyType_Spec layout_spec = {"ignitetf._core._native.Layout", sizeof(Layout), 0,
                                  Py_TPFLAGS_DEFAULT, layout_slots};

int add_layout(PyObject *module) {
  LayoutType = (PyTypeObject *)PyType_FromSpec(&layout_spec);
  return LayoutType ? PyModule_AddObjectRef(module, "Layout", (PyObject *)LayoutType) : -1;
}
