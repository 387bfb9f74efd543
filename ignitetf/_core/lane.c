/* Lane: the requests and answers of one connection.
 *
 * Requests are sent in the order of the plan, as many as the window allows. The next page of a cursor
 * is requested when the head of the current page has arrived. Rows are landed as their bytes arrive.
 */
#include "lane.h"

enum {
  BUFFER_BYTES = 256 << 10, /* fits into the processor's cache */
  LARGE_BYTES = 32 << 10,   /* values of rows of this size are received directly into their place */
  LEFT_BYTES = 8 << 20,     /* from this size on, rows are passed to the general decoder */
  ROWS_AHEAD = 6,           /* the memory of a row is prefetched this many rows before */
  MOST_ERROR = 1 << 20
};

/* Counts the rows that have landed since the last time. */
static void commit(Lane *lane, Unit *unit) {
  Landing *landing = lane->landing;
  if (!lane->pending || landing->keys) return; /* rows by key are counted with their answer */
  int64_t place = unit->base + unit->done;
  if (!landing->places) count_landed(landing, place, lane->pending);
  else
    for (int64_t i = 0; i < lane->pending; i++) count_landed(landing, landing->places[place + i], 1);
  lane->group = NULL; /* the consumer may have taken it */
  unit->done += lane->pending;
  unit->mark = lane->mark;
  lane->pending = 0;
}

/* Keeps an entry of the current answer for the general decoder, which finds the place if it is -1. */
static int leave(Lane *lane, Unit *unit, int64_t place, int64_t size, int64_t mark) {
  int found = need_here(lane, size);
  if (found != GOES_ON) return found;
  if (lane->left_size + size > lane->left_room) {
    int64_t room = 2 * (lane->left_size + size);
    uint8_t *larger = realloc(lane->left_bytes, (size_t)room);
    if (!larger) return NO_MEMORY;
    lane->left_bytes = larger;
    lane->left_room = room;
  }
  if (lane->left_rows == lane->left_places_room) {
    int64_t room = 2 * lane->left_rows + 64;
    int64_t *larger = realloc(lane->left_place, (size_t)room * 8);
    if (!larger) return NO_MEMORY;
    lane->left_place = larger;
    lane->left_places_room = room;
  }
  memcpy(lane->left_bytes + lane->left_size, here(lane), (size_t)size);
  lane->left_size += size;
  lane->left_place[lane->left_rows++] = place;
  lane->left_unit = lane->current;
  commit(lane, unit);
  if (lane->landing->keys) {
    lane->pending++; /* counted with the other rows at the end */
    if (place >= 0) lane->slot[lane->found_slot] = -1;
    else lane->unplaced++;
  } else {
    unit->done++;
  }
  unit->mark = lane->mark = mark;
  consume(lane, size);
  return GOES_ON;
}

/* Compares an entry with the same entry that was delivered before. */
static int replay(Lane *lane, Unit *unit, int64_t size) {
  int found = skip(lane, size);
  if (found != GOES_ON) return found;
  unit->done++;
  unit->mark = lane->mark;
  return unit->done == unit->replay && unit->mark != unit->replay_mark ? REPLAYED : GOES_ON;
}

/* Receives enough bytes to know where the value at `at` ends, and returns that in `end`. */
static int find_end(Lane *lane, int64_t at, int64_t *end) {
  for (int64_t tried = at + 5;; tried = at + 4 * (tried - at)) {
    if (tried > lane->left) tried = lane->left;
    int found = need(lane, tried);
    if (found != GOES_ON) return found;
    int64_t have = lane->end - lane->begin;
    if (have > lane->left) have = lane->left;
    *end = value_end(lane->landing->layout->extents, here(lane), at, have, 0);
    if (*end > at) return GOES_ON;
    if (*end == OTHER) return damaged(lane, "a value of a type that cannot be measured");
    if (*end == IMPOSSIBLE) return damaged(lane, "a value has an impossible length");
    if (have == lane->left) return damaged(lane, "an answer is shorter than what it holds");
    if (tried < have) tried = have;
  }
}

/* Prefetches the memory of the row that is ROWS_AHEAD rows later. Places of a permutation are far
 * apart, so each column of a row would wait for memory. It must be a row of the same unit: that row
 * has not landed, so the consumer cannot have taken its group. */
static void expect_row(const Landing *landing, const Unit *unit, int64_t number) {
  const Layout *layout = landing->layout;
  number += ROWS_AHEAD;
  if (number >= unit->base + unit->rows) return;
  int64_t place = landing->places[number], row = place % layout->rows;
  const Group *group = __atomic_load_n(landing->group + place / layout->rows, __ATOMIC_ACQUIRE);
  if (!group) return;
  const uint8_t *dense = group->dense->bytes;
  for (int32_t i = 0; i < layout->columns; i++) {
    const Column *column = layout->column + i;
    if (column->heap < 0) {
      __builtin_prefetch(dense + column->values + row * column->size, 1);
    } else {
      __builtin_prefetch(dense + column->starts + 8 * row, 1);
      __builtin_prefetch(dense + column->lengths + 8 * row, 1);
    }
    if (column->nullable) __builtin_prefetch(dense + column->valid + row, 1);
  }
}

static void has_landed(Lane *lane, int64_t place) {
  if (lane->landing->keys) {
    lane->landed_place[lane->pending - lane->left_rows] = place;
    lane->slot[lane->found_slot] = -1; /* has arrived */
  }
  lane->pending++;
}

/* Parses the next entry of the answer. */
static int land_entry(Lane *lane, Unit *unit, int64_t behind) {
  Landing *landing = lane->landing;
  Layout *layout = landing->layout;
  int64_t key, value = 0, rows = layout->rows;
  int found = find_end(lane, 0, &key);
  if (found == GOES_ON) found = find_end(lane, key, &value);
  if (found != GOES_ON) return found;
  value -= key;
  if (key + value + behind > lane->left)
    return damaged(lane, "an answer is shorter than what it holds");
  if ((found = need_here(lane, key)) != GOES_ON) return found;
  int64_t mark = add_to_mark(lane->mark, here(lane), key), place;
  if (landing->keys) {
    place = place_of_key(lane, unit, here(lane), key);
    if (place < 0) return leave(lane, unit, -1, key + value, mark);
  } else {
    int64_t number = unit->done + lane->pending;
    if (number < unit->replay) {
      lane->mark = mark;
      return replay(lane, unit, key + value);
    }
    if (unit->rows >= 0 && number >= unit->rows) {
      lane->a = number + 1;
      return COUNT;
    }
    place = unit->base + number;
    if (landing->places) {
      expect_row(landing, unit, place);
      place = landing->places[place];
    }
  }
  if (!lane->group || place < lane->group_first || place >= lane->group_first + rows) {
    if (!landing->places && !landing->keys) commit(lane, unit);
    if (!(lane->group = group_of(landing, place))) return NO_MEMORY;
    lane->group_first = place / rows * rows;
  }
  int64_t row = place - lane->group_first, head = key + 5;
  Head object;
  if (layout->columns == 1 && !land_value(lane, 0, row, here(lane), here(lane) + key)) {
    if ((found = skip(lane, key + value)) != GOES_ON) return found;
    lane->mark = mark;
    has_landed(lane, place);
    return GOES_ON;
  }
  if (value > LARGE_BYTES && !layout->plain && !lane->from_stash &&
      !__atomic_load_n(&layout->whole_rows, __ATOMIC_ACQUIRE)) {
    if ((found = need_here(lane, head + OBJECT_HEAD)) != GOES_ON) return found;
    const uint8_t *at = here(lane);
    if (at[key] == WRAPPED && value >= 5 + OBJECT_HEAD + 4) {
      /* Only its head has arrived, so its size is compared with the size of its wrapper. */
      found = read_head(at + head, value - 9, &object);
      if (!found) found = form_of(lane, &object);
      if (found == UNKNOWN) return found;
      if (!found && !land_value(lane, 0, row, at, at + key)) {
        consume(lane, head);
        found = land_arriving(lane, row, &object);
        if (found != GOES_ON) return found;
        lane->mark = mark;
        has_landed(lane, place);
        return GOES_ON;
      }
    }
  }
  if ((found = need_here(lane, key + value)) != GOES_ON) return found;
  const uint8_t *at = here(lane);
  found = land_value(lane, 0, row, at, at + key);
  if (!found && layout->plain && layout->columns > 1) {
    found = land_value(lane, 1, row, at + key, at + key + value);
  } else if (!found) {
    int wrapped = at[key] == WRAPPED && value >= 9 && !int32_at(at + key + value - 4);
    found = wrapped ? land_object(lane, row, at + head, value - 9) : IS_LEFT;
  }
  if (found == IS_LEFT) return leave(lane, unit, place, key + value, mark);
  if (found) return found;
  lane->mark = mark;
  consume(lane, key + value);
  has_landed(lane, place);
  if (landing->places && !landing->keys && lane->pending == 256) commit(lane, unit);
  return GOES_ON;
}

/* Answers */

static void drop_stash(Lane *lane) {
  while (lane->stash) {
    Stash *next = lane->stash->next;
    free(lane->stash);
    lane->stash = next;
  }
  lane->stashed = 0;
}

/* Keeps an answer whose rows do not have places yet. */
static int keep(Lane *lane, Unit *unit, int64_t number) {
  Stash *stash = malloc(sizeof *stash + (size_t)lane->left);
  if (!stash) return NO_MEMORY;
  stash->unit = number;
  stash->size = lane->left;
  stash->expected = unit->expected;
  stash->next = NULL;
  int found = pull(lane, stash->bytes, lane->left);
  if (found != GOES_ON) {
    free(stash);
    return found;
  }
  Stash **at = &lane->stash;
  while (*at) at = &(*at)->next;
  *at = stash;
  lane->stashed++;
  lane->asked += stash->expected; /* counts as requested until it has landed */
  __atomic_store_n(&unit->state, KEPT, __ATOMIC_RELEASE);
  return GOES_ON;
}

/* Reads the number of entries of the page, and requests the next page. */
static int begin_page(Lane *lane, int64_t number, int may_ask) {
  Landing *landing = lane->landing;
  Unit *unit = landing->unit + number;
  int found = need_here(lane, 4);
  if (found != GOES_ON) return found;
  int64_t count = int32_at(here(lane));
  consume(lane, 4);
  if (count < 0 || count > lane->left) return damaged(lane, "a page with an impossible count");
  lane->current = number;
  lane->entries = count;
  lane->pending = 0;
  lane->mark = unit->mark;
  lane->group = NULL;
  lane->asked_next = 0;
  if (landing->keys) {
    lane->mark = lane->unplaced = 0;
    return count > unit->rows ? damaged(lane, "an answer has more entries than were requested")
                              : make_slots(lane, unit);
  }
  int64_t behind = unit->done + count;
  int more = unit->rows >= 0 ? behind < unit->rows : count == landing->page_rows;
  if (more && may_ask && count && is_near(lane, unit, behind)) {
    lane->asked_next = 1;
    found = ask_next_page(lane, unit, number);
  }
  return found == GOES_ON && may_ask ? refill(lane) : found;
}

/* Returns the number of the unit to which the answer with the next bytes belongs; -1 for none. */
static int64_t answered_unit(const Lane *lane) {
  uint64_t number = (uint64_t)int64_at(here(lane)) - (uint64_t)lane->first_id;
  return number < (uint64_t)lane->landing->units ? (int64_t)number : -1;
}

/* Reads the head of the next answer. */
static int begin_answer(Lane *lane) {
  lane->left = 4;
  int found = need(lane, 4);
  if (found != GOES_ON) return found;
  int64_t length = int32_at(here(lane));
  if (length < 10) return damaged(lane, "an answer of impossible length");
  lane->begin += 4;
  lane->left = length;
  if ((found = need_here(lane, 10)) != GOES_ON) return found;
  int64_t number = answered_unit(lane);
  int flags = uint16_at(here(lane) + 8);
  consume(lane, 10);
  if (flags & ~3) return damaged(lane, "an answer with unknown flags");
  if (number < 0) return damaged(lane, "an answer to a request that was not sent");
  Unit *unit = lane->landing->unit + number;
  if (!lane->sent[number]) return damaged(lane, "an answer to a request that was not sent");
  if (flags & 2) {
    if ((found = need_here(lane, 12)) != GOES_ON) return found;
    lane->topology_major = int64_at(here(lane));
    lane->topology_minor = int32_at(here(lane) + 8);
    consume(lane, 12);
  }
  lane->unanswered--;
  lane->asked -= unit->expected;
  lane->answers++;
  lane->bytes += length;
  unit->nbytes += length;
  measure(lane, number, length);
  lane->sent[number] = 0;
  if (unit->state == ENDED) return skip(lane, lane->left); /* a page after the last one */
  if (flags & 1) {
    if (lane->left > MOST_ERROR) return damaged(lane, "an error of impossible length");
    if ((found = need_here(lane, lane->left)) != GOES_ON) return found;
    lane->a = number;
    __atomic_store_n(&unit->state, HALF, __ATOMIC_RELEASE);
    return FAILED;
  }
  if (!lane->landing->keys && !unit->cursor) {
    if ((found = need_here(lane, 8 + lane->landing->first_skip)) != GOES_ON) return found;
    unit->cursor = int64_at(here(lane));
    consume(lane, 8 + lane->landing->first_skip);
  }
  if (unit->base < 0) return keep(lane, unit, number);
  return begin_page(lane, number, 1);
}

/* Ends the answer whose entries have been parsed. */
static int end_answer(Lane *lane) {
  Landing *landing = lane->landing;
  Unit *unit = landing->unit + lane->current;
  int more = 0;
  if (landing->has_more) {
    int found = need_here(lane, 1);
    if (found != GOES_ON) return found;
    more = *here(lane);
    consume(lane, 1);
    if (more > 1) return damaged(lane, "a page ends with no bool");
  }
  if (lane->left) return damaged(lane, "an answer is longer than what it holds");
  int64_t landed = lane->pending;
  if (landing->keys) {
    for (int64_t i = 0; i < landed - lane->left_rows; i++)
      count_landed(landing, lane->landed_place[i], 1);
    if (!keep_absent(lane, unit)) return NO_MEMORY;
    unit->done = landed;
    unit->mark = lane->mark;
    lane->pending = 0;
  } else {
    commit(lane, unit);
  }
  lane->group = NULL;
  if (!more && !landing->keys && unit->rows >= 0 && unit->done != unit->rows) {
    lane->a = unit->done;
    return COUNT;
  }
  if (more && !lane->asked_next && unit->rows >= 0 && unit->done >= unit->rows) {
    lane->a = unit->done + 1;
    return COUNT;
  }
  lane->current = -1;
  if (!more) {
    if (lane->asked_next && unit->rows < 0) lane->asked_next = 0;
    lane->open--;
    lane->cursors -= has_cursor(lane, unit);
    lane->ended++;
    unit_ended(landing, unit);
  } else if (!lane->asked_next) {
    __atomic_store_n(&unit->state, HALF, __ATOMIC_RELEASE);
  }
  return GOES_ON;
}

static void back_to_own(Lane *lane) {
  if (!lane->from_stash) return;
  lane->from_stash = 0;
  lane->buffer = lane->own_buffer;
  lane->begin = lane->own_begin;
  lane->end = lane->own_end;
  lane->room = lane->own_room;
}

/* Begins to land a kept answer if its rows have places now. */
static int begin_kept(Lane *lane, int *began) {
  Stash **at = &lane->stash;
  while (*at && lane->landing->unit[(*at)->unit].base < 0) at = &(*at)->next;
  *began = *at != NULL;
  if (!*at) return GOES_ON;
  Stash *stash = *at;
  *at = stash->next;
  stash->next = lane->stash;
  lane->stash = stash; /* the first answer is the one that is being landed */
  lane->stashed--;
  lane->asked -= stash->expected;
  lane->own_buffer = lane->buffer;
  lane->own_begin = lane->begin;
  lane->own_end = lane->end;
  lane->own_room = lane->room;
  lane->from_stash = 1;
  lane->buffer = stash->bytes;
  lane->begin = 0;
  lane->end = lane->room = lane->left = stash->size;
  return begin_page(lane, stash->unit, 0);
}

static void end_kept(Lane *lane) {
  back_to_own(lane);
  Stash *done = lane->stash;
  lane->stash = done->next;
  free(done);
}

/* Waits until the consumer has taken a group, another lane has ended a unit, or 50 ms have passed. */
static void wait_for_room(Lane *lane) {
  Landing *landing = lane->landing;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 50000000;
  if (until.tv_nsec >= 1000000000) {
    until.tv_nsec -= 1000000000;
    until.tv_sec++;
  }
  pthread_mutex_lock(&landing->lock);
  if (!landing->stopped) pthread_cond_timedwait(&landing->room, &landing->lock, &until);
  pthread_mutex_unlock(&landing->lock);
  lane->since = now_ns();
  lane->progress = 0;
}

/* All units are read and all requests answered: the connection can be used again. */
static int is_done(const Lane *lane) {
  return lane->current < 0 && !lane->left_rows && !lane->absent && !lane->stash
      && !lane->unanswered && lane->ended == lane->units;
}

static int advance(Lane *lane) {
  for (;;) {
    if (__atomic_load_n(&lane->landing->stopped, __ATOMIC_ACQUIRE)) {
      /* The caller has every row, and may stop before the lane looks here. */
      return is_done(lane) ? DONE : STOPPED;
    }
    int found, began = 0;
    if (lane->current >= 0) {
      Unit *unit = lane->landing->unit + lane->current;
      int64_t behind = lane->landing->has_more ? 1 : 0;
      while (lane->entries) {
        if (lane->left_size >= LEFT_BYTES && !lane->landing->keys) return LEFT;
        if ((found = land_entry(lane, unit, behind)) != GOES_ON) {
          if (!lane->landing->keys) commit(lane, unit);
          return found;
        }
        lane->entries--;
      }
      int kept = lane->from_stash;
      if ((found = end_answer(lane)) != GOES_ON) return found;
      if (kept) end_kept(lane);
      if (lane->left_rows || lane->absent) return LEFT;
      continue;
    }
    if (lane->left_rows || lane->absent) return LEFT;
    if (lane->stash && (found = begin_kept(lane, &began)) != GOES_ON) return found;
    if (began) continue;
    if ((found = refill(lane)) != GOES_ON) return found;
    if (lane->unanswered) {
      if ((found = begin_answer(lane)) != GOES_ON) return found;
      continue;
    }
    if (lane->ended == lane->units) return DONE;
    wait_for_room(lane);
  }
}

/* Python */

static int lane_init(PyObject *self, PyObject *args, PyObject *kwargs) {
  Lane *lane = (Lane *)self;
  PyObject *landing;
  double limit_s, delay_s;
  long long first_id, window, least, most, most_cursors;
  (void)kwargs;
  if (lane->landing ||
      !PyArg_ParseTuple(args, "O!iiOOy*y*y*LddLLLL", LandingType, &landing, &lane->number, &lane->fd,
                        &lane->receive, &lane->send, &lane->units_view, &lane->frames_view,
                        &lane->frame_at_view, &first_id, &limit_s, &delay_s, &window, &least, &most,
                        &most_cursors))
    return -1;
  Py_INCREF(landing);
  Py_INCREF(lane->receive);
  Py_INCREF(lane->send);
  lane->landing = (Landing *)landing;
  lane->units = lane->units_view.len / 8;
  lane->unit = malloc((size_t)(lane->units + 1) * 8);
  lane->sent = calloc((size_t)lane->landing->units, 8);
  lane->buffer = malloc(BUFFER_BYTES);
  lane->room = BUFFER_BYTES;
  if (!lane->unit || !lane->sent || !lane->buffer) {
    PyErr_NoMemory();
    return -1;
  }
  memcpy(lane->unit, lane->units_view.buf, (size_t)lane->units * 8);
  const int64_t *at = lane->frame_at_view.buf;
  int bad = lane->frame_at_view.len / 8 != lane->landing->units + 1;
  for (int64_t i = 0; i < lane->landing->units && !bad; i++)
    bad = at[i] < 0 || at[i + 1] < at[i] || at[i + 1] > lane->frames_view.len;
  for (int64_t i = 0; i < lane->units && !bad; i++)
    bad = lane->unit[i] < 0 || lane->unit[i] >= lane->landing->units;
  if (bad) {
    PyErr_SetString(PyExc_ValueError, "requests that do not fit the units");
    return -1;
  }
  lane->first_id = first_id;
  lane->limit_ns = (int64_t)(limit_s * 1e9);
  lane->delay = delay_s;
  lane->window = window;
  lane->least_window = least;
  lane->most_window = most;
  lane->most_cursors = most_cursors;
  lane->current = -1;
  lane->since = lane->round_start = lane->round_end = now_ns();
  return 0;
}

static void lane_dealloc(PyObject *self) {
  Lane *lane = (Lane *)self;
  PyTypeObject *type = Py_TYPE(self);
  if (lane->from_stash) lane->buffer = lane->own_buffer;
  drop_stash(lane);
  free(lane->buffer);
  free(lane->unit);
  free(lane->sent);
  free(lane->out);
  free(lane->slot);
  free(lane->landed_place);
  free(lane->left_bytes);
  free(lane->left_place);
  free(lane->absent_row);
  Py_buffer *views[] = {&lane->units_view, &lane->frames_view, &lane->frame_at_view};
  for (int i = 0; i < 3; i++)
    if (views[i]->obj) PyBuffer_Release(views[i]);
  if (lane->landing) {
    Py_DECREF((PyObject *)lane->landing);
    Py_DECREF(lane->receive);
    Py_DECREF(lane->send);
  }
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

/* run() -> (event, unit, a, b, c, body or text). */
static PyObject *lane_run(PyObject *self, PyObject *unused) {
  Lane *lane = (Lane *)self;
  (void)unused;
  lane->state = PyEval_SaveThread();
  lane->since = now_ns();
  lane->progress = 0;
  int event = advance(lane);
  PyEval_RestoreThread(lane->state);
  if (event == RAISED) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a callback failed");
    return NULL;
  }
  if (event == NO_MEMORY) return PyErr_NoMemory();
  if (event == RESTART) __atomic_store_n(&lane->landing->layout->whole_rows, 1, __ATOMIC_RELEASE);
  int64_t unit = lane->current;
  const char *body = "";
  int64_t size = 0;
  if (event == DAMAGED) {
    body = lane->text;
    size = (int64_t)strlen(body);
  } else if (event == FAILED) {
    unit = lane->a;
    body = (const char *)here(lane);
    size = lane->left;
  }
  PyObject *found = Py_BuildValue("iLLLLy#", event, (long long)unit, (long long)lane->a,
                                  (long long)lane->b, (long long)lane->c, body, (Py_ssize_t)size);
  if (event == FAILED) consume(lane, size);
  return found;
}

/* Whether a query was sent that the node has not begun to answer. */
static int has_new_query(const Lane *lane) {
  for (int64_t i = lane->oldest; i < lane->next; i++) {
    const Unit *unit = lane->landing->unit + lane->unit[i];
    if (unit->state == ASKED && !unit->cursor) return 1;
  }
  return 0;
}

/* Discards answers until the node has begun all queries. If a node begins a query for a connection
 * that is gone, it keeps the cursor for ever. */
static int drain(Lane *lane) {
  back_to_own(lane);
  int found = skip(lane, lane->left);
  while (found == GOES_ON && has_new_query(lane)) {
    lane->left = 4;
    if ((found = need(lane, 4)) != GOES_ON) break;
    int64_t length = int32_at(here(lane));
    if (length < 10) return damaged(lane, "an answer of impossible length");
    lane->begin += 4;
    lane->left = length;
    if ((found = need_here(lane, 10)) != GOES_ON) break;
    int64_t number = answered_unit(lane);
    if (number < 0) return damaged(lane, "an answer to a request that was not sent");
    lane->landing->unit[number].cursor = -1;
    found = skip(lane, lane->left);
  }
  return found;
}

/* drain(): called before the connection of an unfinished lane is closed. */
static PyObject *lane_drain(PyObject *self, PyObject *unused) {
  Lane *lane = (Lane *)self;
  (void)unused;
  if (lane->landing->keys) Py_RETURN_NONE;
  lane->state = PyEval_SaveThread();
  lane->since = now_ns();
  lane->progress = 0;
  int found = drain(lane);
  PyEval_RestoreThread(lane->state);
  if (found == RAISED) return NULL;
  if (found == NO_MEMORY) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

/* left() -> (entries as bytes, their places as bytes of int64, rows of their unit whose keys have not
 * arrived as bytes of int64, their unit): rows for the general decoder. Only it can find the entries
 * of missing keys, if a node returned them in other bytes. */
static PyObject *lane_left(PyObject *self, PyObject *unused) {
  Lane *lane = (Lane *)self;
  (void)unused;
  PyObject *found =
      Py_BuildValue("y#y#y#L", (char *)lane->left_bytes, (Py_ssize_t)lane->left_size,
                    (char *)lane->left_place, (Py_ssize_t)(8 * lane->left_rows),
                    (char *)lane->absent_row, (Py_ssize_t)(8 * lane->absent),
                    (long long)lane->left_unit);
  lane->left_size = lane->left_rows = lane->absent = 0;
  return found;
}

/* state() -> (unanswered, open cursors, window, delay, rate, bytes, waited, calls, major, minor). */
static PyObject *lane_state(PyObject *self, PyObject *unused) {
  Lane *lane = (Lane *)self;
  (void)unused;
  return Py_BuildValue("LLLddLdLLL", (long long)lane->unanswered, (long long)lane->open,
                       (long long)lane->window, lane->delay, lane->rate, (long long)lane->bytes,
                       (double)lane->waited_ns * 1e-9, (long long)lane->calls,
                       (long long)lane->topology_major, (long long)lane->topology_minor);
}

static PyMethodDef lane_methods[] = {{"run", lane_run, METH_NOARGS, NULL},
                                     {"left", lane_left, METH_NOARGS, NULL},
                                     {"drain", lane_drain, METH_NOARGS, NULL},
                                     {"state", lane_state, METH_NOARGS, NULL},
                                     {NULL, NULL, 0, NULL}};
static PyType_Slot lane_slots[] = {{Py_tp_init, lane_init},
                                   {Py_tp_dealloc, lane_dealloc},
                                   {Py_tp_methods, lane_methods},
                                   {Py_tp_new, PyType_GenericNew},
                                   {0, NULL}};
static PyType_Spec lane_spec = {"ignitetf._core._native.Lane", sizeof(Lane), 0, Py_TPFLAGS_DEFAULT,
                                lane_slots};

int add_lane(PyObject *module) {
  PyObject *type = PyType_FromSpec(&lane_spec);
  return type ? PyModule_AddObjectRef(module, "Lane", type) : -1;
}
