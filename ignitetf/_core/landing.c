/* Landing: the units of a plan, and the groups of rows that their answers fill.
 *
 * Row `i` of a unit has place `base + i`, or `places[base + i]` if there is a permutation. A group
 * has the rows of `rows` consecutive places. Rows land in any order, from several lanes. The consumer
 * takes the groups in order, each when all of its rows have landed.
 */
#include "core.h"

PyTypeObject *LandingType;
static PyTypeObject *MemoryType;

/* Most groups of a plan whose number of rows is not known. */
enum { MANY_GROUPS = 1 << 20 };

/* Memory: a block as a buffer. */

typedef struct {
  PyObject_HEAD
  Layout *layout;
  Block *block;
  int64_t size;
} Memory;

static PyObject *new_memory(Layout *layout, Block *block, int64_t size) {
  Memory *memory = PyObject_New(Memory, MemoryType);
  if (!memory) return NULL;
  Py_INCREF((PyObject *)layout);
  memory->layout = layout;
  memory->block = block;
  memory->size = size;
  return (PyObject *)memory;
}

static void memory_dealloc(PyObject *self) {
  Memory *memory = (Memory *)self;
  PyTypeObject *type = Py_TYPE(self);
  block_give(&memory->layout->pool, memory->block);
  Py_DECREF((PyObject *)memory->layout);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

static int memory_buffer(PyObject *self, Py_buffer *view, int flags) {
  Memory *memory = (Memory *)self;
  return PyBuffer_FillInfo(view, self, memory->block->bytes, memory->size, 0, flags);
}

static PyType_Slot memory_slots[] = {{Py_tp_dealloc, memory_dealloc},
                                     {Py_bf_getbuffer, memory_buffer},
                                     {0, NULL}};
static PyType_Spec memory_spec = {"ignitetf._core._native.Memory", sizeof(Memory), 0,
                                  Py_TPFLAGS_DEFAULT, memory_slots};

/* Groups */

static void free_group(Landing *landing, Group *group) {
  Pool *pool = &landing->layout->pool;
  if (group->dense) block_give(pool, group->dense);
  for (int32_t i = 0; i < landing->layout->heaps; i++)
    while (group->heap && group->heap[i]) {
      Heap *heap = group->heap[i];
      group->heap[i] = heap->next;
      if (heap->block) block_give(pool, heap->block);
      free(heap);
    }
  pthread_mutex_destroy(&group->lock);
  free(group->heap);
  free(group->nulls);
  free(group);
}

static Group *new_group(Landing *landing) {
  Layout *layout = landing->layout;
  Group *group = calloc(1, sizeof *group);
  if (!group) return NULL;
  pthread_mutex_init(&group->lock, NULL);
  group->dense = block_take(&layout->pool, layout->dense_bytes);
  group->heap = calloc((size_t)layout->heaps + 1, sizeof *group->heap);
  group->nulls = calloc((size_t)layout->columns, 1);
  if (!group->dense || !group->heap || !group->nulls) {
    free_group(landing, group);
    return NULL;
  }
  for (int32_t i = 0; i < layout->columns; i++)
    if (layout->column[i].nullable)
      memset(group->dense->bytes + layout->column[i].valid, 1, (size_t)layout->rows);
  return group;
}

/* Returns the group of a place; NULL if out of memory, or if the place does not exist. */
Group *group_of(Landing *landing, int64_t place) {
  int64_t number = place / landing->layout->rows;
  if (place < 0 || number >= landing->most_groups) return NULL;
  Group *group = __atomic_load_n(landing->group + number, __ATOMIC_ACQUIRE);
  if (group) return group;
  pthread_mutex_lock(&landing->lock);
  group = landing->group[number];
  if (!group && number >= landing->head) {
    group = new_group(landing);
    if (number >= landing->made) landing->made = number + 1;
    __atomic_store_n(landing->group + number, group, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&landing->lock);
  return group;
}

/* Returns the bytes in use in a part of a heap. For a full part, `used` exceeds its size, because it
 * counts requested bytes. */
static int64_t used_of(const Heap *heap) {
  int64_t used = __atomic_load_n(&heap->used, __ATOMIC_ACQUIRE);
  return used < heap->block->size ? used : heap->block->size;
}

/* Adds a part to a heap whose newest part is `full`, unless another lane has already added one. */
static Heap *next_part(Landing *landing, Group *group, int64_t number, Heap *full, int64_t nbytes) {
  Layout *layout = landing->layout;
  pthread_mutex_lock(&group->lock);
  Heap *heap = group->heap[number];
  if (heap == full) {
    int64_t least = layout->heap_bytes[number] + layout->heap_bytes[number] / 8 + 4096;
    int64_t size = full ? 2 * full->block->size : least;
    heap = calloc(1, sizeof *heap);
    if (heap) heap->block = block_take(&layout->pool, size > nbytes ? size : nbytes);
    if (heap && heap->block) {
      heap->next = full;
      heap->begin = full ? full->begin + ((used_of(full) + 63) & ~63LL) : 0;
      __atomic_store_n(group->heap + number, heap, __ATOMIC_RELEASE);
    } else {
      free(heap);
      heap = NULL;
    }
  }
  pthread_mutex_unlock(&group->lock);
  return heap;
}

/* Returns room for some bytes in a heap, and their offset in it; NULL if out of memory. All values of
 * a heap have the same alignment. */
uint8_t *heap_room(Landing *landing, Group *group, int64_t number, int64_t nbytes, int64_t align,
                   int64_t *start) {
  int64_t size = (nbytes + align - 1) / align * align;
  Heap *heap = __atomic_load_n(group->heap + number, __ATOMIC_ACQUIRE);
  for (;;) {
    if (heap) {
      int64_t at = __atomic_fetch_add(&heap->used, size, __ATOMIC_ACQ_REL);
      if (at + nbytes <= heap->block->size) {
        *start = heap->begin + at;
        return heap->block->bytes + at;
      }
    }
    if (!(heap = next_part(landing, group, number, heap, size))) return NULL;
  }
}

static int64_t rows_of(const Landing *landing, int64_t number) {
  int64_t rows = landing->layout->rows, total = landing->total;
  if (total < 0) return rows;
  int64_t left = total - number * rows;
  return left < rows ? left : rows;
}

/* Returns 1 if the consumer can take the next group, 2 if no group is left, otherwise 0. */
static int is_ready(Landing *landing) {
  if (landing->total >= 0 && landing->head * landing->layout->rows >= landing->total) return 2;
  Group *group = __atomic_load_n(landing->group + landing->head, __ATOMIC_ACQUIRE);
  if (!group) return 0;
  return __atomic_load_n(&group->landed, __ATOMIC_ACQUIRE) == rows_of(landing, landing->head);
}

/* Counts rows of consecutive places as landed, and wakes the consumer if it can continue. */
void count_landed(Landing *landing, int64_t place, int64_t rows) {
  int64_t size = landing->layout->rows;
  while (rows) {
    int64_t number = place / size, here = (number + 1) * size - place;
    if (here > rows) here = rows;
    Group *group = __atomic_load_n(landing->group + number, __ATOMIC_ACQUIRE);
    int64_t landed = __atomic_add_fetch(&group->landed, here, __ATOMIC_ACQ_REL);
    if (landed == rows_of(landing, number)) {
      pthread_mutex_lock(&landing->lock);
      if (is_ready(landing)) pthread_cond_broadcast(&landing->ready);
      pthread_mutex_unlock(&landing->lock);
    }
    place += here;
    rows -= here;
  }
}

/* Records that a unit has all its rows; the places of the units after it may be known now. */
void unit_ended(Landing *landing, Unit *unit) {
  pthread_mutex_lock(&landing->lock);
  if (unit->rows < 0) unit->rows = unit->done;
  __atomic_store_n(&unit->state, ENDED, __ATOMIC_RELEASE);
  while (landing->known < landing->units) {
    Unit *next = landing->unit + landing->known;
    if (next->base < 0 || next->rows < 0) break;
    landing->known++;
    if (landing->known == landing->units) {
      landing->total = next->base + next->rows;
    } else if (next[1].base < 0) {
      next[1].base = next[1].first = next->base + next->rows;
    }
  }
  if (is_ready(landing)) pthread_cond_broadcast(&landing->ready);
  pthread_cond_broadcast(&landing->room);
  pthread_mutex_unlock(&landing->lock);
}

/* Returns the first place that must not be requested yet. It does not apply to units whose places are
 * not known; these are requested in order. */
int64_t open_end(const Landing *landing, int64_t window) {
  int64_t groups = 2 * window / landing->group_bytes + 2;
  if (groups < landing->ahead) groups = landing->ahead;
  return (__atomic_load_n(&landing->head, __ATOMIC_ACQUIRE) + groups) * landing->layout->rows;
}

/* Python */

static int take_view(PyObject *given, Py_buffer *view, int64_t item, int flags, int *has) {
  if (given == Py_None) return 0;
  if (PyObject_GetBuffer(given, view, flags)) return -1;
  *has = 1;
  if (view->len % item || (uintptr_t)view->buf % (item > 8 ? 8 : (uintptr_t)item)) {
    PyErr_SetString(PyExc_ValueError, "an array of another type");
    return -1;
  }
  return 0;
}

/* Landing(layout, units, places, keys, key_at, total, ahead, group_bytes, page_rows, has_more,
 * first_skip, next_op). */
static int landing_init(PyObject *self, PyObject *args, PyObject *kwargs) {
  Landing *landing = (Landing *)self;
  PyObject *layout, *units, *places, *keys, *key_at;
  long long total, ahead, group_bytes;
  int has_units = 0, has_at = 0;
  (void)kwargs;
  if (landing->layout ||
      !PyArg_ParseTuple(args, "O!OOOOLLLiiii", LayoutType, &layout, &units, &places, &keys, &key_at,
                        &total, &ahead, &group_bytes, &landing->page_rows, &landing->has_more,
                        &landing->first_skip, &landing->next_op))
    return -1;
  if (take_view(units, &landing->units_view, sizeof(Unit), PyBUF_WRITABLE, &has_units)) return -1;
  if (take_view(places, &landing->places_view, 8, PyBUF_SIMPLE, &landing->has_places)) return -1;
  if (take_view(keys, &landing->keys_view, 1, PyBUF_SIMPLE, &landing->has_keys)) return -1;
  if (take_view(key_at, &landing->key_at_view, 8, PyBUF_SIMPLE, &has_at)) return -1;
  Py_INCREF(layout);
  landing->layout = (Layout *)layout;
  landing->unit = landing->units_view.buf;
  landing->units = landing->units_view.len / (int64_t)sizeof(Unit);
  landing->places = landing->has_places ? landing->places_view.buf : NULL;
  landing->keys = landing->has_keys ? landing->keys_view.buf : NULL;
  landing->key_at = has_at ? landing->key_at_view.buf : NULL;
  landing->total = total;
  landing->ahead = ahead < 1 ? 1 : ahead;
  landing->group_bytes = group_bytes < 1 ? 1 : group_bytes;
  int64_t rows = landing->layout->rows;
  landing->most_groups = total < 0 ? MANY_GROUPS : (total + rows - 1) / rows + 1;
  landing->group = calloc((size_t)landing->most_groups, sizeof *landing->group);
  int64_t keyed = landing->key_at ? landing->key_at_view.len / 8 - 1 : 0, sum = 0;
  int bad = landing->units < 1 || (landing->has_places && landing->places_view.len / 8 != total) ||
            landing->has_keys != has_at;
  for (int64_t i = 0; i < landing->units && !bad; i++) {
    Unit *unit = landing->unit + i;
    if (landing->keys) bad |= unit->rows < 0 || unit->rows > 65536 || unit->base != sum;
    sum += unit->rows > 0 ? unit->rows : 0;
    if (landing->known == i && unit->base >= 0 && unit->rows >= 0) landing->known++;
    bad |= total >= 0 && (unit->base < 0 || unit->rows < 0 || unit->base + unit->rows > total);
  }
  for (int64_t i = 0; landing->places && !bad && i < total; i++)
    bad |= landing->places[i] < 0 || landing->places[i] >= total;
  if (landing->keys && !bad) {
    bad |= keyed != sum || landing->key_at[0] != 0;
    for (int64_t i = 0; i < keyed && !bad; i++) bad |= landing->key_at[i + 1] < landing->key_at[i];
    if (!bad) bad |= landing->key_at[keyed] > landing->keys_view.len;
  }
  pthread_mutex_init(&landing->lock, NULL);
  pthread_cond_init(&landing->ready, NULL);
  pthread_cond_init(&landing->room, NULL);
  if (bad) PyErr_SetString(PyExc_ValueError, "units that do not fit their places or keys");
  if (!landing->group) PyErr_NoMemory();
  return bad || !landing->group ? -1 : 0;
}

static void landing_dealloc(PyObject *self) {
  Landing *landing = (Landing *)self;
  PyTypeObject *type = Py_TYPE(self);
  if (landing->group) {
    for (int64_t i = landing->head; i < landing->made; i++)
      if (landing->group[i]) free_group(landing, landing->group[i]);
    free(landing->group);
  }
  Py_buffer *views[] = {&landing->units_view, &landing->places_view, &landing->keys_view,
                        &landing->key_at_view};
  for (int i = 0; i < 4; i++)
    if (views[i]->obj) PyBuffer_Release(views[i]);
  Py_XDECREF((PyObject *)landing->layout);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

/* Returns the parts of a heap as one block; the used size is stored for the next group. */
static PyObject *whole_heap(Landing *landing, Group *group, int32_t number) {
  Layout *layout = landing->layout;
  Heap *newest = group->heap[number];
  if (!newest) Py_RETURN_NONE;
  int64_t size = newest->begin + used_of(newest);
  if (size > layout->heap_bytes[number]) layout->heap_bytes[number] = size;
  if (newest->next) {
    Block *whole = block_take(&layout->pool, size);
    if (!whole) return PyErr_NoMemory();
    while (newest) {
      memcpy(whole->bytes + newest->begin, newest->block->bytes, (size_t)used_of(newest));
      block_give(&layout->pool, newest->block);
      Heap *next = newest->next;
      free(newest);
      newest = next;
    }
    group->heap[number] = newest = calloc(1, sizeof *newest);
    if (!newest) {
      block_give(&layout->pool, whole);
      return PyErr_NoMemory();
    }
    newest->block = whole;
  }
  PyObject *memory = new_memory(layout, newest->block, size);
  if (memory) newest->block = NULL;
  return memory;
}

/* Converts a group to (first place, rows, dense memory, heaps, columns with nulls as bytes). */
static PyObject *as_tuple(Landing *landing, Group *group, int64_t number) {
  Layout *layout = landing->layout;
  PyObject *heaps = PyTuple_New(layout->heaps);
  for (int32_t i = 0; heaps && i < layout->heaps; i++) {
    PyObject *heap = whole_heap(landing, group, i);
    if (!heap || PyTuple_SetItem(heaps, i, heap)) Py_CLEAR(heaps);
  }
  if (!heaps) return NULL;
  PyObject *dense = new_memory(layout, group->dense, layout->dense_bytes);
  if (!dense) {
    Py_DECREF(heaps);
    return NULL;
  }
  group->dense = NULL;
  return Py_BuildValue("LLNNy#", (long long)(number * layout->rows), (long long)group->landed,
                       dense, heaps, (char *)group->nulls, (Py_ssize_t)layout->columns);
}

/* take(seconds) -> the next group; None if its rows did not land within that time; False if all
 * groups have been taken. */
static PyObject *landing_take(PyObject *self, PyObject *args) {
  Landing *landing = (Landing *)self;
  double seconds;
  if (!PyArg_ParseTuple(args, "d", &seconds)) return NULL;
  int ready = is_ready(landing);
  if (!ready && seconds > 0) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    PyThreadState *state = PyEval_SaveThread();
    pthread_mutex_lock(&landing->lock);
    ready = is_ready(landing);
    if (!ready && !landing->stopped) {
      pthread_cond_timedwait(&landing->ready, &landing->lock, &until);
      ready = is_ready(landing);
    }
    pthread_mutex_unlock(&landing->lock);
    PyEval_RestoreThread(state);
  }
  if (ready == 2) Py_RETURN_FALSE;
  if (!ready) Py_RETURN_NONE;
  pthread_mutex_lock(&landing->lock);
  int64_t number = landing->head;
  Group *group = landing->group[number];
  landing->group[number] = NULL;
  __atomic_store_n(&landing->head, number + 1, __ATOMIC_RELEASE);
  pthread_cond_broadcast(&landing->room);
  pthread_mutex_unlock(&landing->lock);
  PyObject *found = as_tuple(landing, group, number);
  free_group(landing, group);
  return found;
}

/* Sets the runs of a row to empty, because their values are stored elsewhere. */
static void empty_runs(const Layout *layout, Group *group, int64_t row) {
  uint8_t *dense = group->dense->bytes;
  for (int32_t i = 0; i < layout->columns; i++) {
    const Column *column = layout->column + i;
    if (column->heap < 0) continue;
    memset(dense + column->starts + 8 * row, 0, 8);
    memset(dense + column->lengths + 8 * row, 0, 8);
  }
}

/* count(places): counts rows that Python has placed or leaves out; an int64 array. */
static PyObject *landing_count(PyObject *self, PyObject *args) {
  Landing *landing = (Landing *)self;
  Py_buffer places;
  if (!PyArg_ParseTuple(args, "y*", &places)) return NULL;
  const int64_t *place = places.buf;
  int lost = 0;
  for (int64_t i = 0; i < places.len / 8 && !lost; i++) {
    Group *group = group_of(landing, place[i]);
    lost = !group;
    if (lost) break;
    empty_runs(landing->layout, group, place[i] % landing->layout->rows);
    count_landed(landing, place[i], 1);
  }
  PyBuffer_Release(&places);
  if (lost) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

/* wake(): makes the consumer return from `take`, so that it can check for events. */
static PyObject *landing_wake(PyObject *self, PyObject *unused) {
  Landing *landing = (Landing *)self;
  (void)unused;
  pthread_mutex_lock(&landing->lock);
  pthread_cond_broadcast(&landing->ready);
  pthread_cond_broadcast(&landing->room);
  pthread_mutex_unlock(&landing->lock);
  Py_RETURN_NONE;
}

/* stop(): ends the lanes; nothing more is requested. */
static PyObject *landing_stop(PyObject *self, PyObject *unused) {
  __atomic_store_n(&((Landing *)self)->stopped, 1, __ATOMIC_RELEASE);
  return landing_wake(self, unused);
}

static PyMethodDef landing_methods[] = {{"take", landing_take, METH_VARARGS, NULL},
                                        {"count", landing_count, METH_VARARGS, NULL},
                                        {"wake", landing_wake, METH_NOARGS, NULL},
                                        {"stop", landing_stop, METH_NOARGS, NULL},
                                        {NULL, NULL, 0, NULL}};
static PyType_Slot landing_slots[] = {{Py_tp_init, landing_init},
                                      {Py_tp_dealloc, landing_dealloc},
                                      {Py_tp_methods, landing_methods},
                                      {Py_tp_new, PyType_GenericNew},
                                      {0, NULL}};
static PyType_Spec landing_spec = {"ignitetf._core._native.Landing", sizeof(Landing), 0,
                                   Py_TPFLAGS_DEFAULT, landing_slots};

int add_landing(PyObject *module) {
  MemoryType = (PyTypeObject *)PyType_FromSpec(&memory_spec);
  LandingType = (PyTypeObject *)PyType_FromSpec(&landing_spec);
  if (!MemoryType || !LandingType) return -1;
  return PyModule_AddObjectRef(module, "Landing", (PyObject *)LandingType);
}
